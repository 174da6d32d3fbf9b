package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

func (w *world) ioCommands() []*cli.Command {
	one := needs{queues: 1}
	lba := func() []cli.Flag {
		return []cli.Flag{
			namespaceFlag(),
			&cli.Uint64Flag{Name: "start-block", Aliases: []string{"slba"}, Usage: "first block"},
			&cli.Uint64Flag{Name: "block-count", Aliases: []string{"c"}, Usage: "number of blocks, 0-based: 0 is one block"},
		}
	}
	data := func(file string) []cli.Flag {
		return append(lba(), sizeFlag("data-size", "z", 0, "bytes, instead of --block-count"),
			&cli.StringFlag{Name: "data", Aliases: []string{"d"}, Usage: file},
			&cli.BoolFlag{Name: "latency", Usage: "say how long it took"})
	}
	fua := func() cli.Flag {
		return &cli.BoolFlag{Name: "force-unit-access", Aliases: []string{"f"}, Usage: "data is on stable media before the command completes"}
	}
	return []*cli.Command{
		w.verb("read", "read blocks to standard output or a file", one, data("file to write to; default standard output"), w.read),
		w.verb("write", "write blocks from standard input or a file", one, append(data("file to read from; default standard input"), fua()), w.write),
		w.verb("compare", "compare blocks with standard input or a file", one, data("file to compare with; default standard input"), w.compare),
		w.verb("flush", "make everything stable that was written", one, []cli.Flag{namespaceFlag()}, w.flush),
		w.verb("write-zeroes", "make blocks zero", one, append(lba(), fua(),
			&cli.BoolFlag{Name: "deac", Usage: "let the controller free them"}), w.writeZeroes),
		w.verb("verify", "have the controller check blocks", one, lba(), w.verify),
		w.verb("dsm", "manage ranges of blocks, mostly: free them", one, []cli.Flag{
			namespaceFlag(),
			&cli.StringFlag{Name: "slbs", Usage: "first blocks of the ranges, separated by commas"},
			&cli.StringFlag{Name: "blocks", Usage: "numbers of blocks of the ranges"},
			&cli.StringFlag{Name: "ctx-attrs", Usage: "context attributes of the ranges"},
			&cli.BoolFlag{Name: "ad", Usage: "deallocate"}, &cli.BoolFlag{Name: "idw", Usage: "integral dataset for write"},
			&cli.BoolFlag{Name: "idr", Usage: "integral dataset for read"},
			&cli.UintFlag{Name: "cdw11", Usage: "command dword 11, instead of the attributes"},
		}, w.dsm),
	}
}

// span is a range of bytes of a namespace, whole blocks.
type span struct{ off, size int64 }

// span is the range that --start-block, --block-count and --data-size say;
// given is how many bytes there are when the user names none.
func (s *session) span(n *initiator.Namespace, given int64) (r span, err error) {
	block := int64(n.BlockSize())
	slba, count := s.c.Uint64("start-block"), s.c.Uint64("block-count")
	if slba > math.MaxInt64/uint64(block) || count >= math.MaxInt64/uint64(block) {
		return r, usagef("block %d, %d blocks: %w", slba, count, initiator.ErrOutOfRange)
	}
	r = span{int64(slba) * block, int64(count+1) * block}
	size, err := size(s.c, "data-size")
	switch {
	case err != nil:
		return r, err
	case s.c.IsSet("block-count"):
		if size > r.size {
			return r, usagef("--data-size %d: more than %d blocks", size, count+1)
		}
	case size > 0:
		r.size = roundUp(size, block)
	case given > 0:
		r.size = roundUp(given, block)
	}
	if r.off > n.Size() || r.size > n.Size()-r.off {
		return r, fmt.Errorf("%d bytes at block %d: %w, which has %d blocks", r.size, slba, initiator.ErrOutOfRange, n.Blocks())
	}
	return r, nil
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// pieceSize is how much the commands that stream hold in memory.
const pieceSize = 4 << 20

// timed tells how long an I/O took when the user wants to know.
func (w *world) timed(s *session, name string, start time.Time) {
	if s.c.Bool("latency") {
		fmt.Fprintf(w.stderr, " latency: %s: %d us\n", name, time.Since(start).Microseconds())
	}
	fmt.Fprintf(w.stderr, "%s: Success\n", name)
}

func (w *world) read(s *session) (err error) {
	n, err := s.namespace()
	if err != nil {
		return err
	}
	r, err := s.span(n, 0)
	if err != nil {
		return err
	}
	out, want := w.stdout, r.size
	if size, _ := size(s.c, "data-size"); size > 0 {
		want = size // what was asked for, not its blocks
	}
	if name := s.c.String("data"); name != "" && name != "-" {
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		out = f
	}
	start := time.Now()
	buf := make([]byte, min(r.size, pieceSize))
	for done := int64(0); done < want; {
		p := buf[:min(int64(len(buf)), r.size-done)]
		if _, err := n.ReadAtContext(s.ctx, p, r.off+done); err != nil {
			return err
		}
		if _, err := out.Write(p[:min(int64(len(p)), want-done)]); err != nil {
			return err
		}
		done += int64(len(p))
	}
	w.timed(s, "read", start)
	return nil
}

// source is what write and compare take data from.
type source struct {
	io.ReadCloser
	size int64 // 0: not known before it is read
}

func (w *world) source(s *session) (*source, error) {
	name := s.c.String("data")
	if name == "" {
		name = "-"
	}
	in, err := w.input(name)
	if err != nil {
		return nil, err
	}
	src := &source{ReadCloser: in}
	if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			src.size = info.Size()
		}
	}
	return src, nil
}

// pieces calls fn with whole blocks of src, the last one filled up with zeroes,
// and where they go. Without a size from the user or the file it takes what
// comes.
func (s *session) pieces(n *initiator.Namespace, src *source, fn func(p []byte, off int64) error) error {
	r, err := s.span(n, src.size)
	if err != nil {
		return err
	}
	limit := r.size
	if src.size == 0 && !s.c.IsSet("block-count") && !s.c.IsSet("data-size") {
		limit = n.Size() - r.off // a pipe
	}
	buf := make([]byte, pieceSize)
	for done := int64(0); ; {
		p := buf[:min(pieceSize, limit-done)]
		if len(p) == 0 {
			return tooLong(src, src.size == 0 && limit > r.size, n)
		}
		got, err := io.ReadFull(src, p)
		whole := int(roundUp(int64(got), int64(n.BlockSize())))
		if got > 0 {
			clear(p[got:whole])
			if err := fn(p[:whole], r.off+done); err != nil {
				return err
			}
			done += int64(whole)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return s.tooShort(done, r.size)
		case err != nil:
			return err
		}
	}
}

// tooLong is the error of a pipe that has more than the namespace can hold.
func tooLong(src *source, pipe bool, n *initiator.Namespace) error {
	if !pipe {
		return nil
	}
	if k, _ := src.Read(make([]byte, 1)); k > 0 {
		return fmt.Errorf("the input goes on: %w, which has %d bytes", initiator.ErrOutOfRange, n.Size())
	}
	return nil
}

// tooShort is the error of an input that has less than the user said.
func (s *session) tooShort(done, want int64) error {
	if done == 0 || done < want && (s.c.IsSet("block-count") || s.c.IsSet("data-size")) {
		return fmt.Errorf("the input has %d bytes: expected %d", done, want)
	}
	return nil
}

// streamed runs write or compare.
func (w *world) streamed(s *session, name string, fn func(n *initiator.Namespace, p []byte, off int64) error) (err error) {
	n, err := s.namespace()
	if err != nil {
		return err
	}
	src, err := w.source(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	start := time.Now()
	if err := s.pieces(n, src, func(p []byte, off int64) error { return fn(n, p, off) }); err != nil {
		return err
	}
	w.timed(s, name, start)
	return nil
}

func (w *world) write(s *session) error {
	return w.streamed(s, "write", func(n *initiator.Namespace, p []byte, off int64) error {
		_, err := n.WriteAtContext(s.ctx, p, off, s.flags())
		return err
	})
}

// flags are the flags of a write that the options say.
func (s *session) flags() (f initiator.Flags) {
	if s.c.Bool("force-unit-access") {
		f |= initiator.FUA
	}
	if s.c.Bool("deac") {
		f |= initiator.Deallocate
	}
	return f
}

func (w *world) compare(s *session) error {
	return w.streamed(s, "compare", func(n *initiator.Namespace, p []byte, off int64) error {
		return n.Compare(s.ctx, p, off)
	})
}

func (w *world) flush(s *session) error {
	n, err := s.namespace()
	if err != nil {
		return err
	}
	if err := n.Flush(s.ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(w.stdout, "NVMe Flush: success")
	return err
}

// ranged runs a command without data.
func (w *world) ranged(s *session, name string, fn func(n *initiator.Namespace, r span) error) error {
	n, err := s.namespace()
	if err != nil {
		return err
	}
	r, err := s.span(n, 0)
	if err != nil {
		return err
	}
	if err := fn(n, r); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w.stdout, "%s: success\n", name)
	return err
}

func (w *world) writeZeroes(s *session) error {
	return w.ranged(s, "NVME Write Zeroes", func(n *initiator.Namespace, r span) error {
		return n.WriteZeroes(s.ctx, r.off, r.size, s.flags())
	})
}

func (w *world) verify(s *session) error {
	return w.ranged(s, "NVME Verify", func(n *initiator.Namespace, r span) error { return n.Verify(s.ctx, r.off, r.size) })
}

func (w *world) dsm(s *session) error {
	data, count, err := dsmRanges(s)
	if err != nil {
		return err
	}
	nsid, err := s.nsid()
	if err != nil {
		return err
	}
	var attr uint32
	for name, bit := range map[string]uint32{"ad": nvme.DSMDeallocate, "idw": nvme.DSMIntegralWrite, "idr": nvme.DSMIntegralRead} {
		if s.c.Bool(name) {
			attr |= bit
		}
	}
	if s.c.IsSet("cdw11") {
		if err := fits(s.c, map[string]uint64{"cdw11": math.MaxUint32}); err != nil {
			return err
		}
		attr = uint32(s.c.Uint("cdw11"))
	}
	cmd := make(nvme.Command, nvme.SQESize)
	cmd.DSM().Init(nsid, count, attr)
	if _, err := s.ctrl.IOCommand(s.ctx, cmd, data, attr&nvme.DSMDeallocate != 0); err != nil {
		return err
	}
	_, err = fmt.Fprintln(w.stdout, "NVMe DSM: success")
	return err
}

// dsmRanges are the ranges as the command carries them.
func dsmRanges(s *session) (data []byte, count int, err error) {
	var lists [3][]uint64
	for i, name := range []string{"slbs", "blocks", "ctx-attrs"} {
		if lists[i], err = numbers(name, s.c.String(name)); err != nil {
			return nil, 0, err
		}
	}
	slbs, blocks, attrs := lists[0], lists[1], lists[2]
	if len(slbs) == 0 || len(slbs) > nvme.DSMMaxRanges || len(slbs) != len(blocks) || len(attrs) > len(slbs) {
		return nil, 0, usagef("dsm: expected 1 to %d ranges: as many numbers in --slbs as in --blocks", nvme.DSMMaxRanges)
	}
	data = make([]byte, len(slbs)*nvme.DSMRangeSize)
	for i := range slbs {
		r := nvme.DSMRange{SLBA: slbs[i], Blocks: uint32(blocks[i])}
		if blocks[i] > math.MaxUint32 || i < len(attrs) && attrs[i] > math.MaxUint32 {
			return nil, 0, usagef("dsm: range %d: a number of more than 32 bits", i)
		}
		if i < len(attrs) {
			r.Attributes = uint32(attrs[i])
		}
		nvme.DSMRanges(data).Set(i, r)
	}
	return data, len(slbs), nil
}
