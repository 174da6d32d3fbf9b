package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/internal/imagecopy"
)

const copyDescription = `One of SOURCE and DESTINATION is a file (- for a pipe), the other a namespace: a
DEVICE, or ns or ns:NSID of the controller that the options name.

   nvmf copy disk.img rdma://192.0.2.1/nqn.2026-11.io.nvmf:disk0/1
   nvmf copy -a 192.0.2.1 -n nqn.2026-11.io.nvmf:disk0 ns:1 backup.img --verify
   nvmf copy rdma://192.0.2.1/nqn.2026-11.io.nvmf:disk0/1 - | zstd > backup.zst

Images are raw. Zeroes do not cross the network on the way to a namespace, and
become holes of a file.`

func (w *world) copyCommand() *cli.Command {
	return &cli.Command{
		Name: "copy", Usage: "copy a raw image from a file to a namespace, or the other way", ArgsUsage: "SOURCE DESTINATION", Description: copyDescription,
		Flags: append([]cli.Flag{
			namespaceFlag(),
			sizeFlag("offset", "", 0, "where in the namespace to begin"),
			sizeFlag("size", "", 0, "bytes to copy; default all of the source"),
			&cli.IntFlag{Name: "workers", Value: 8, Usage: "pieces on their way at a time"},
			&cli.BoolFlag{Name: "verify", Usage: "read both afterwards and compare them"},
			&cli.BoolFlag{Name: "destination-is-zero", Usage: "leave zeroes out: the namespace is known to be zero"},
			&cli.BoolFlag{Name: "force", Usage: "copy an image that is not raw as it is"},
			&cli.BoolFlag{Name: "quiet", Usage: "no progress bar and no summary"},
		}, connectFlags()...),
		Action: w.copy,
	}
}

// isNamespace says whether an operand of copy means a namespace.
func isNamespace(s string) bool {
	return strings.HasPrefix(s, scheme) || s == "ns" || strings.HasPrefix(s, "ns:")
}

// copyJob is a copy that the command line asks for.
type copyJob struct {
	s        *session
	ns       *initiator.Namespace
	file     *os.File
	name     string // of the file
	toTarget bool
	o        imagecopy.Options
}

func (w *world) copy(c *cli.Context) (err error) {
	if c.NArg() != 2 {
		return usagef("copy: expected SOURCE and DESTINATION, got %d operands", c.NArg())
	}
	from, to := c.Args().Get(0), c.Args().Get(1)
	if isNamespace(from) == isNamespace(to) {
		return usagef("copy: one of %q and %q has to be a namespace: a DEVICE, or ns:NSID", from, to)
	}
	j := &copyJob{name: from, toTarget: isNamespace(to)}
	remote := to
	if !j.toTarget {
		j.name, remote = to, from
	}
	if j.o, err = copyOptions(c); err != nil {
		return err
	}
	if c.Bool("verify") && j.name == "-" {
		return usagef("copy: --verify reads the file again, which a pipe cannot be")
	}
	if err := j.open(c); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.file.Close()) }()
	if err := w.connectCopy(c, j, remote); err != nil {
		return err
	}
	defer j.s.close(&err)
	return w.runCopy(c, j)
}

func copyOptions(c *cli.Context) (o imagecopy.Options, err error) {
	o = imagecopy.Options{Workers: c.Int("workers"), SkipZeroes: c.Bool("destination-is-zero")}
	if o.Workers < 1 || o.Workers > 1024 {
		return o, usagef("--workers %d: expected 1 to 1024", o.Workers)
	}
	if o.Offset, err = size(c, "offset"); err != nil {
		return o, err
	}
	o.Size, err = size(c, "size")
	return o, err
}

// open opens the file.
func (j *copyJob) open(c *cli.Context) (err error) {
	switch {
	case j.name == "-" && j.toTarget:
		j.file = os.Stdin
	case j.name == "-":
		j.file = os.Stdout
	case j.toTarget:
		j.file, err = os.Open(j.name)
	default: // what is there may be all that is left of something: it is emptied when copying begins
		j.file, err = os.OpenFile(j.name, os.O_RDWR|os.O_CREATE, 0o644)
	}
	if err != nil {
		return err
	}
	if f := imagecopy.FormatOf(j.file); j.toTarget && f != "" && !c.Bool("force") {
		return errors.Join(usagef("%s is a %s image: the namespace would have its container, not its content; convert it (qemu-img convert -O raw), or --force",
			j.name, f), j.file.Close())
	}
	return nil
}

// connectCopy opens the namespace; remote is its operand.
func (w *world) connectCopy(c *cli.Context, j *copyJob, remote string) (err error) {
	name := remote
	if !strings.HasPrefix(remote, scheme) {
		name = ""
	}
	if j.s, err = w.open(c, name, needs{queues: 2, long: true}); err != nil {
		return err
	}
	if n, ok := strings.CutPrefix(remote, "ns:"); ok && name == "" {
		nsid, err := strconv.ParseUint(n, 10, 32)
		if err != nil || nsid == 0 {
			err = usagef("copy: namespace %q: expected a number from 1", n)
			j.s.close(&err)
			return err
		}
		j.s.dev.nsid = uint32(nsid)
	}
	if j.ns, err = j.s.namespace(); err != nil {
		j.s.close(&err)
	}
	return err
}

// runCopy copies, compares when asked to, and says what was done.
func (w *world) runCopy(c *cli.Context, j *copyJob) error {
	start := time.Now()
	st, err := w.withBar(c, j, "copy", j.expected(), func(ctx context.Context, done *atomic.Int64) (imagecopy.Stats, error) {
		o := j.o
		o.Done = done
		if j.toTarget {
			return imagecopy.Import(ctx, j.file, j.ns, o)
		}
		return imagecopy.Export(ctx, j.ns, j.file, o)
	})
	if err != nil {
		return copyError(err)
	}
	took, verified := time.Since(start), ""
	if c.Bool("verify") {
		_, err := w.withBar(c, j, "verify", st.Bytes, func(ctx context.Context, done *atomic.Int64) (imagecopy.Stats, error) {
			return imagecopy.Compare(ctx, j.file, j.ns, imagecopy.Options{Offset: j.o.Offset, Size: st.Bytes, Workers: j.o.Workers, Done: done})
		})
		if err != nil {
			return copyError(err)
		}
		verified = ", read again and the same"
	}
	if c.Bool("quiet") {
		return nil
	}
	_, err = fmt.Fprintf(w.stderr, "%s (%d bytes) copied in %.2f s, %s/s; %s of it zeroes that were not %s%s\n", humanize.IBytes(uint64(st.Bytes)), st.Bytes,
		took.Seconds(), humanize.IBytes(uint64(float64(st.Bytes)/max(took.Seconds(), 1e-6))), humanize.IBytes(uint64(st.Zero)), j.spared(), verified)
	return err
}

// spared is what zeroes were saved.
func (j *copyJob) spared() string {
	if j.toTarget {
		return "sent"
	}
	return "written"
}

// expected is how many bytes there will be, 0 when nobody knows.
func (j *copyJob) expected() int64 {
	switch {
	case j.o.Size > 0:
		return j.o.Size
	case !j.toTarget:
		return j.ns.Size() - j.o.Offset
	}
	info, err := j.file.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

func copyError(err error) error {
	var d *imagecopy.DifferError
	switch {
	case errors.As(err, &d):
		return fmt.Errorf("%w: %w", errData, err)
	case errors.Is(err, imagecopy.ErrUnaligned):
		return usageError{err}
	}
	return err
}

// withBar runs fn under a progress bar, where somebody can see it.
func (w *world) withBar(c *cli.Context, j *copyJob, what string, total int64, fn func(context.Context, *atomic.Int64) (imagecopy.Stats, error)) (imagecopy.Stats, error) {
	done := new(atomic.Int64)
	if !w.terminal || c.Bool("quiet") {
		return fn(j.s.ctx, done)
	}
	stop := drawBar(w.stderr, what, total, done)
	defer stop()
	return fn(j.s.ctx, done)
}

// drawBar draws a progress bar until stop is called. A total of 0 is unknown.
func drawBar(out io.Writer, what string, total int64, done *atomic.Int64) (stop func()) {
	p := mpb.New(mpb.WithOutput(out), mpb.WithAutoRefresh())
	bar := p.AddBar(total, mpb.PrependDecorators(decor.Name(what+" "), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.Percentage(), decor.Name(" "), decor.AverageSpeed(decor.SizeB1024(0), "% .1f"), decor.Name(" "), decor.AverageETA(decor.ET_STYLE_GO)))
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				bar.SetCurrent(done.Load())
				bar.Abort(false)
				p.Wait()
				return
			case <-tick.C:
				bar.SetCurrent(done.Load())
			}
		}
	}()
	return func() { close(quit); <-ended }
}
