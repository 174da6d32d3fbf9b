// Package imagecopy copies raw images between files and namespaces, several
// pieces at a time. Zeroes do not cross the network where that can be helped:
// holes of a file and pieces that are zero become Write Zeroes on the way to a
// namespace, and holes on the way to a file.
package imagecopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/initiator"
)

// Namespace is what copying wants of an initiator.Namespace.
type Namespace interface {
	BlockSize() int
	MaxTransfer() int
	Size() int64
	CanWriteZeroes() bool
	ReadBuffer(ctx context.Context, b *initiator.Buffer, bufOff, size int, off int64) error
	WriteBuffer(ctx context.Context, b *initiator.Buffer, bufOff, size int, off int64, f initiator.Flags) error
	WriteZeroes(ctx context.Context, off, size int64, f initiator.Flags) error
	Flush(ctx context.Context) error
}

// Options are how to copy. The zero value is usable.
type Options struct {
	// Offset is where in the namespace the copy begins, bytes, whole blocks.
	Offset int64
	// Size is how many bytes to copy; 0 is all of the source.
	Size int64
	// Workers is how many pieces are on their way at a time. Default 8.
	Workers int
	// SkipZeroes leaves what is zero in the file as it is in the namespace: for
	// one that is known to be zero.
	SkipZeroes bool
	// Done, when not nil, is added the bytes that are copied or compared.
	Done *atomic.Int64
}

// Stats are what was done.
type Stats struct {
	Bytes int64 // of the source that were copied or compared
	Data  int64 // bytes that crossed the network
	Zero  int64 // bytes of zeroes that did not, or did not become data of the file
}

// Errors.
var (
	// ErrTooSmall: the source is larger than where it is to go.
	ErrTooSmall = errors.New("there is not enough room")
	// ErrUnaligned: an offset is not on a block of the namespace.
	ErrUnaligned = errors.New("not on a block of the namespace")
)

// DifferError says where a copy differs from its source.
type DifferError struct {
	Offset int64 // in the copy, bytes
}

func (e *DifferError) Error() string {
	return fmt.Sprintf("the copy differs from its source at byte %d", e.Offset)
}

const (
	defaultWorkers = 8
	mostPiece      = 1 << 20
	zeroPiece      = 64 << 20 // of a hole that is handled at once
	// granule is what a file's file system allocates: shorter runs of zeroes
	// are not worth a hole.
	granule = 4096
)

// piece is a part of the source.
type piece struct {
	off  int64 // in the source, bytes
	n    int
	zero bool // without looking
}

// source gives pieces in order. It is called by one goroutine at a time.
type source interface {
	// next is the next piece, io.EOF when there is none.
	next(buf []byte) (piece, error)
	// load fills buf with a piece; it is called by many at a time.
	load(p piece, buf []byte) error
}

// copier is a copy under way.
type copier struct {
	ns   Namespace
	o    Options
	src  source
	file io.WriterAt // of an export

	mu     sync.Mutex // guards src.next and failed
	failed bool

	bytes, data, zero atomic.Int64
}

// pieceSize is what one worker holds.
func pieceSize(ns Namespace) int {
	n := min(ns.MaxTransfer(), mostPiece)
	return n - n%ns.BlockSize()
}

// each has workers take pieces and do fn with each, until there are no more or
// one fails.
func (c *copier) each(ctx context.Context, fn func(ctx context.Context, b *initiator.Buffer, p piece) error) (Stats, error) {
	if c.o.Workers <= 0 {
		c.o.Workers = defaultWorkers
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, c.o.Workers)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			if errs[i] = c.work(ctx, fn); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	wg.Wait()
	err := context.Cause(ctx) // the first
	if err == nil {
		err = errors.Join(errs...)
	}
	return Stats{Bytes: c.bytes.Load(), Data: c.data.Load(), Zero: c.zero.Load()}, err
}

func (c *copier) work(ctx context.Context, fn func(ctx context.Context, b *initiator.Buffer, p piece) error) (err error) {
	b, err := initiator.NewBuffer(pieceSize(c.ns))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	for ctx.Err() == nil {
		p, err := c.next(b.Bytes()[:pieceSize(c.ns)])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(ctx, b, p); err != nil {
			return err
		}
		c.bytes.Add(int64(p.n))
		if c.o.Done != nil {
			c.o.Done.Add(int64(p.n))
		}
	}
	return context.Cause(ctx)
}

func (c *copier) next(buf []byte) (piece, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed {
		return piece{}, io.EOF // another has the error
	}
	p, err := c.src.next(buf)
	c.failed = err != nil
	return p, err
}

func (c *copier) roundUp(n int) int {
	b := c.ns.BlockSize()
	return (n + b - 1) / b * b
}

// isZero says whether b is all zero.
func isZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeroes))
		if !bytes.Equal(b[:n], zeroes[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

var zeroes [64 << 10]byte

// Import copies a file, or what comes through a pipe, to a namespace and flushes
// it. The last block is filled up with zeroes.
func Import(ctx context.Context, f *os.File, ns Namespace, o Options) (Stats, error) {
	src, size, err := sourceOf(f, o.Size, pieceSize(ns))
	if err != nil {
		return Stats{}, err
	}
	room := ns.Size() - o.Offset
	switch {
	case o.Offset < 0 || o.Offset%int64(ns.BlockSize()) != 0:
		return Stats{}, fmt.Errorf("offset %d: %w, which has %d bytes", o.Offset, ErrUnaligned, ns.BlockSize())
	case size > room || room < 0:
		return Stats{}, fmt.Errorf("%w: %d bytes at %d of a namespace of %d", ErrTooSmall, size, o.Offset, ns.Size())
	}
	c := &copier{ns: ns, o: o, src: src}
	st, err := c.each(ctx, func(ctx context.Context, b *initiator.Buffer, p piece) error {
		if int64(p.n) > room || p.off > room-int64(p.n) { // only a pipe comes here
			return fmt.Errorf("%w: the input is longer than the %d bytes there are", ErrTooSmall, room)
		}
		return c.importPiece(ctx, b, p)
	})
	if err != nil {
		return st, err
	}
	return st, ns.Flush(ctx)
}

func (c *copier) importPiece(ctx context.Context, b *initiator.Buffer, p piece) error {
	off := c.o.Offset + p.off
	if !p.zero {
		data := b.Bytes()[:c.roundUp(p.n)]
		if err := c.src.load(p, data[:p.n]); err != nil {
			return err
		}
		clear(data[p.n:])
		if !isZero(data) {
			c.data.Add(int64(p.n))
			return c.ns.WriteBuffer(ctx, b, 0, len(data), off, 0)
		}
	}
	if c.o.SkipZeroes {
		c.zero.Add(int64(p.n))
		return nil
	}
	n := int64(c.roundUp(p.n))
	if c.ns.CanWriteZeroes() {
		c.zero.Add(int64(p.n))
		return c.ns.WriteZeroes(ctx, off, n, initiator.Deallocate)
	}
	return c.writeZeroes(ctx, b, off, n)
}

// writeZeroes sends zeroes to a namespace that cannot make them itself.
func (c *copier) writeZeroes(ctx context.Context, b *initiator.Buffer, off, n int64) error {
	data := b.Bytes()[:pieceSize(c.ns)]
	clear(data)
	c.data.Add(n)
	for n > 0 {
		k := min(n, int64(len(data)))
		if err := c.ns.WriteBuffer(ctx, b, 0, int(k), off, 0); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}

// span is a part of a namespace as a source.
type span struct {
	at, end int64 // from the beginning of the copy
	piece   int
}

func (s *span) next([]byte) (piece, error) {
	if s.at == s.end {
		return piece{}, io.EOF
	}
	p := piece{off: s.at, n: int(min(int64(s.piece), s.end-s.at))}
	s.at += int64(p.n)
	return p, nil
}

func (s *span) load(piece, []byte) error { return nil }

// part is the part of the namespace that options say.
func part(ns Namespace, o Options) (*span, error) {
	size := o.Size
	switch {
	case o.Offset < 0 || o.Offset%int64(ns.BlockSize()) != 0:
		return nil, fmt.Errorf("offset %d: %w, which has %d bytes", o.Offset, ErrUnaligned, ns.BlockSize())
	case o.Offset > ns.Size() || size < 0 || size > ns.Size()-o.Offset:
		return nil, fmt.Errorf("%w: %d bytes at %d of a namespace of %d", ErrTooSmall, size, o.Offset, ns.Size())
	case size == 0:
		size = ns.Size() - o.Offset
	}
	return &span{end: size, piece: pieceSize(ns)}, nil
}

// Export copies a namespace to a file. A regular file gets the size of the copy
// and holes for zeroes; a device is written in full; a pipe in order.
func Export(ctx context.Context, ns Namespace, f *os.File, o Options) (Stats, error) {
	src, err := part(ns, o)
	if err != nil {
		return Stats{}, err
	}
	info, err := f.Stat()
	if err != nil {
		return Stats{}, err
	}
	c := &copier{ns: ns, o: o, src: src, file: f}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		// Away with what is there, so that the holes are holes.
		if err := errors.Join(f.Truncate(0), f.Truncate(src.end)); err != nil {
			return Stats{}, err
		}
		st, err := c.each(ctx, c.exportSparse)
		return st, errors.Join(err, f.Sync())
	case mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0:
		if size, err := f.Seek(0, io.SeekEnd); err != nil || size < src.end {
			return Stats{}, errors.Join(err, fmt.Errorf("%w: %s has %d bytes for %d", ErrTooSmall, f.Name(), size, src.end))
		}
		st, err := c.each(ctx, c.exportAll)
		return st, errors.Join(err, f.Sync())
	}
	c.o.Workers, c.file = 1, inOrder{f}
	return c.each(ctx, c.exportAll)
}

// inOrder writes to a pipe, to which one worker writes one piece after another.
type inOrder struct{ io.Writer }

func (w inOrder) WriteAt(p []byte, _ int64) (int, error) { return w.Write(p) }

// read reads a piece of the namespace.
func (c *copier) read(ctx context.Context, b *initiator.Buffer, p piece) ([]byte, error) {
	c.data.Add(int64(p.n))
	err := c.ns.ReadBuffer(ctx, b, 0, c.roundUp(p.n), c.o.Offset+p.off)
	return b.Bytes()[:p.n], err
}

func (c *copier) exportAll(ctx context.Context, b *initiator.Buffer, p piece) error {
	data, err := c.read(ctx, b, p)
	if err == nil {
		_, err = c.file.WriteAt(data, p.off)
	}
	return err
}

// exportSparse writes what is not zero, in runs of granules.
func (c *copier) exportSparse(ctx context.Context, b *initiator.Buffer, p piece) error {
	data, err := c.read(ctx, b, p)
	if err != nil {
		return err
	}
	for at := 0; at < len(data); {
		n, zero := run(data[at:])
		if zero {
			c.zero.Add(int64(n))
		} else if _, err := c.file.WriteAt(data[at:at+n], p.off+int64(at)); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// run is how many bytes from the beginning of b are alike: granules that are
// zero, or that are not.
func run(b []byte) (n int, zero bool) {
	zero = isZero(b[:min(granule, len(b))])
	for n < len(b) && isZero(b[n:min(n+granule, len(b))]) == zero {
		n += granule
	}
	return min(n, len(b)), zero
}

// Compare reads o.Size bytes of a file and of a namespace and compares them. The
// error is a *DifferError when they differ.
func Compare(ctx context.Context, f io.ReaderAt, ns Namespace, o Options) (Stats, error) {
	if o.Size == 0 {
		return Stats{}, nil
	}
	src, err := part(ns, o)
	if err != nil {
		return Stats{}, err
	}
	c := &copier{ns: ns, o: o, src: src}
	return c.each(ctx, func(ctx context.Context, b *initiator.Buffer, p piece) error {
		data, err := c.read(ctx, b, p)
		if err != nil {
			return err
		}
		return compareFile(f, p.off, data)
	})
}

// compareFile compares data with what is at off of a file.
func compareFile(f io.ReaderAt, off int64, data []byte) error {
	buf := make([]byte, min(len(data), 128<<10))
	for len(data) > 0 {
		n := min(len(data), len(buf))
		if k, err := f.ReadAt(buf[:n], off); err != nil && (k < n || !errors.Is(err, io.EOF)) {
			return err
		}
		for i := range n {
			if buf[i] != data[i] {
				return &DifferError{off + int64(i)}
			}
		}
		data, off = data[n:], off+int64(n)
	}
	return nil
}
