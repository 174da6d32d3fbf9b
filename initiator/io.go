package initiator

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/nvmf-go/nvmf/nvme"
)

// Flags modify a write.
type Flags uint8

// Flags.
const (
	// FUA has the data on stable media before the write returns (force unit
	// access).
	FUA Flags = 1 << iota
	// Deallocate lets WriteZeroes free the blocks, as long as they read as
	// zeroes.
	Deallocate
)

// dword is the flags in command dword 12.
func (f Flags) dword() (v uint32) {
	if f&FUA != 0 {
		v |= nvme.IOFUA
	}
	if f&Deallocate != 0 {
		v |= nvme.IODeallocate
	}
	return v
}

// ReadAt reads len(p) bytes at off (io.ReaderAt). The range need not be on
// blocks.
func (n *Namespace) ReadAt(p []byte, off int64) (int, error) {
	return n.ReadAtContext(context.Background(), p, off)
}

// ReadAtContext is ReadAt with a limit to the caller's patience.
func (n *Namespace) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %d: %w", off, ErrOutOfRange)
	}
	size := n.Size()
	if off >= size {
		return 0, n.endOr(io.EOF)
	}
	short := int64(len(p)) > size-off
	if short {
		p = p[:size-off]
	}
	done, err := n.move(ctx, nvme.CmdRead, 0, p, off)
	if err == nil && short {
		err = io.EOF
	}
	return done, err
}

// endOr is err, unless the namespace is gone.
func (n *Namespace) endOr(err error) error {
	if gone := n.check(); gone != nil {
		return gone
	}
	return err
}

// WriteAt writes p at off (io.WriterAt). The range must be whole blocks, else
// nothing is written and the error matches ErrUnaligned.
func (n *Namespace) WriteAt(p []byte, off int64) (int, error) {
	return n.WriteAtContext(context.Background(), p, off, 0)
}

// WriteAtContext is WriteAt with flags, and a limit to the caller's patience:
// when ctx has ended, data may have been written or not, and may be until the
// controller is closed or reconnected.
func (n *Namespace) WriteAtContext(ctx context.Context, p []byte, off int64, f Flags) (int, error) {
	if err := n.inside("write", off, int64(len(p))); err != nil {
		return 0, err
	}
	return n.move(ctx, nvme.CmdWrite, f.dword()&nvme.IOFUA, p, off)
}

// Compare compares p with what is at off, whole blocks. The error matches
// ErrMiscompare when it differs, and ErrNotSupported when the controller cannot
// compare.
func (n *Namespace) Compare(ctx context.Context, p []byte, off int64) error {
	if !n.CanCompare() {
		return fmt.Errorf("compare: %w", ErrNotSupported)
	}
	if err := n.inside("compare", off, int64(len(p))); err != nil {
		return err
	}
	_, err := n.move(ctx, nvme.CmdCompare, 0, p, off)
	if errors.Is(err, nvme.CompareFailure) {
		return fmt.Errorf("%w: %w", ErrMiscompare, err)
	}
	return err
}

// Flush makes everything stable that was written before.
func (n *Namespace) Flush(ctx context.Context) error {
	if err := n.check(); err != nil {
		return err
	}
	return n.each(ctx, 0, 1, 1, func(r *request, _, _ uint64) {
		r.cmd().Init(nvme.CmdFlush, n.nsid)
		r.changes = false
	})
}

// Discard says that n bytes at off are not needed any more, whole blocks. What
// they read as then the namespace's DLFEAT says.
func (n *Namespace) Discard(ctx context.Context, off, size int64) error {
	if !n.CanDiscard() {
		return fmt.Errorf("discard: %w", ErrNotSupported)
	}
	if err := n.inside("discard", off, size); err != nil {
		return err
	}
	i := n.info.Load()
	return n.eachOf(ctx, n.bounce.small, uint64(off)/uint64(i.block), uint64(size)/uint64(i.block), i.discard, func(c *chunk, lba, count uint64) {
		nvme.DSMRanges(c.data(nvme.DSMRangeSize)).Set(0, nvme.DSMRange{SLBA: lba, Blocks: uint32(count)})
		c.cmd().DSM().Init(n.nsid, 1, nvme.DSMDeallocate)
		c.buf, c.off, c.n, c.changes = c.mem, c.base, nvme.DSMRangeSize, true
	})
}

// WriteZeroes makes n bytes at off zero, whole blocks, without sending them.
func (n *Namespace) WriteZeroes(ctx context.Context, off, size int64, f Flags) error {
	if !n.CanWriteZeroes() {
		return fmt.Errorf("write zeroes: %w", ErrNotSupported)
	}
	if err := n.inside("write zeroes", off, size); err != nil {
		return err
	}
	i := n.info.Load()
	return n.each(ctx, uint64(off)/uint64(i.block), uint64(size)/uint64(i.block), i.zeroes, func(r *request, lba, count uint64) {
		r.cmd().InitIO(nvme.CmdWriteZeroes, n.nsid, lba, uint32(count), f.dword())
		r.changes = true
	})
}

// Verify has the controller read size bytes at off, whole blocks, and check
// them, without sending them.
func (n *Namespace) Verify(ctx context.Context, off, size int64) error {
	if !n.CanVerify() {
		return fmt.Errorf("verify: %w", ErrNotSupported)
	}
	if err := n.inside("verify", off, size); err != nil {
		return err
	}
	i := n.info.Load()
	return n.each(ctx, uint64(off)/uint64(i.block), uint64(size)/uint64(i.block), i.verify, func(r *request, lba, count uint64) {
		r.cmd().InitIO(nvme.CmdVerify, n.nsid, lba, uint32(count), 0)
		r.changes = false
	})
}

// inside judges a range of whole blocks.
func (n *Namespace) inside(what string, off, size int64) error {
	if err := n.check(); err != nil {
		return err
	}
	i := n.info.Load()
	end := n.Size()
	switch {
	case off < 0 || size < 0 || off > end || size > end-off:
		return fmt.Errorf("%s %d bytes at %d: %w of %d bytes", what, size, off, ErrOutOfRange, end)
	case off%int64(i.block) != 0 || size%int64(i.block) != 0:
		return fmt.Errorf("%s %d bytes at %d: %w of %d bytes", what, size, off, ErrUnaligned, i.block)
	}
	return nil
}

// inFlight is how many commands one call has in flight.
const inFlight = 32

// call is what one call of the API has in flight, in the order it was sent.
type call struct {
	n          *Namespace
	ctx        context.Context
	pieces     [inFlight]piece
	head, tail int
	moved      int   // of the caller's bytes, from the first on without a gap
	err        error // of the first piece that failed
}

// piece is a command of a call.
type piece struct {
	c    *chunk
	p    []byte // the caller's bytes
	skip int    // bytes of the first block that the caller does not want
	read bool   // p is to be filled
}

// chunk is a chunk for the next command, nil when the call is to end. Only a
// call that has nothing in flight waits for others to give one back.
func (k *call) chunk(pool *chunkPool) (c *chunk) {
	for c == nil && k.err == nil {
		switch {
		case k.ctx.Err() != nil:
			k.err = ctxError(k.ctx)
		case k.tail == k.head:
			c, k.err = pool.get(k.ctx)
		case k.tail-k.head == inFlight:
			k.finish()
		default:
			if c, k.err = pool.tryGet(); c == nil && k.err == nil {
				k.finish()
			}
		}
	}
	return c
}

// send sends a command that is complete but for what is the same for all.
func (k *call) send(pc piece) {
	k.pieces[k.tail%inFlight] = pc
	k.tail++
	r, n := &pc.c.request, k.n
	r.prepare()
	r.nsid, r.ns, r.route = n.nsid, n, n.disp
	r.timeout = int64(n.c.cfg.IOTimeout)
	n.disp.submit(r)
}

// finish waits for the oldest command.
func (k *call) finish() {
	pc := &k.pieces[k.head%inFlight]
	k.head++
	c := pc.c
	err := c.wait(k.ctx)
	if !c.abandoned() {
		if err == nil && pc.read {
			copy(pc.p, c.data(c.size)[pc.skip:])
		}
		c.home.put(c)
	}
	if k.err == nil {
		if k.err = err; err == nil {
			k.moved += len(pc.p)
		}
	}
}

// end waits for all commands.
func (k *call) end() (moved int, err error) {
	for k.head < k.tail {
		k.finish()
	}
	return k.moved, k.err
}

// move moves p from or to off, in pieces through bounce memory. It returns how
// many bytes from the beginning are known to be moved.
func (n *Namespace) move(ctx context.Context, op nvme.Opcode, dword uint32, p []byte, off int64) (int, error) {
	if err := n.check(); err != nil {
		return 0, err
	}
	i := n.info.Load()
	block, most := i.block, min(i.transfer, uint64(largeChunk/i.block))
	k := call{n: n, ctx: ctx}
	for len(p) > 0 {
		lba, skip := uint64(off)>>i.shift(), int(off)&(block-1)
		count := min(uint64(skip+len(p)+block-1)>>i.shift(), most)
		size := int(count) * block
		c := k.chunk(n.bounce.pool(size))
		if c == nil {
			break
		}
		take := min(len(p), size-skip)
		if op != nvme.CmdRead {
			copy(c.data(take), p)
		}
		c.cmd().InitIO(op, n.nsid, lba, uint32(count), dword)
		c.buf, c.off, c.n, c.changes = c.mem, c.base, size, op == nvme.CmdWrite
		k.send(piece{c: c, p: p[:take], skip: skip, read: op == nvme.CmdRead})
		p, off = p[take:], off+int64(take)
	}
	return k.end()
}

// each runs commands without data over count blocks from lba, at most most in
// each.
func (n *Namespace) each(ctx context.Context, lba, count, most uint64, fill func(r *request, lba, count uint64)) error {
	return n.eachOf(ctx, n.bounce.bare, lba, count, most, func(c *chunk, lba, count uint64) {
		c.buf, c.off, c.n = nil, 0, 0
		fill(&c.request, lba, count)
	})
}

// eachOf is each with a chunk of a pool for each command.
func (n *Namespace) eachOf(ctx context.Context, pool *chunkPool, lba, count, most uint64, fill func(c *chunk, lba, count uint64)) error {
	k := call{n: n, ctx: ctx}
	for count > 0 {
		c := k.chunk(pool)
		if c == nil {
			break
		}
		some := min(count, most)
		fill(c, lba, some)
		k.send(piece{c: c})
		lba, count = lba+some, count-some
	}
	_, err := k.end()
	return err
}

// ReadBuffer reads size bytes at off into b at bufOff, whole blocks, without a
// copy. ctx is looked at before each command only: the device owns the memory
// until a command has ended, which takes its time limits at most.
func (n *Namespace) ReadBuffer(ctx context.Context, b *Buffer, bufOff, size int, off int64) error {
	return n.moveBuffer(ctx, nvme.CmdRead, "read", b, bufOff, size, off, 0)
}

// WriteBuffer writes size bytes of b from bufOff at off, as ReadBuffer reads.
func (n *Namespace) WriteBuffer(ctx context.Context, b *Buffer, bufOff, size int, off int64, f Flags) error {
	return n.moveBuffer(ctx, nvme.CmdWrite, "write", b, bufOff, size, off, f.dword()&nvme.IOFUA)
}

func (n *Namespace) moveBuffer(ctx context.Context, op nvme.Opcode, what string, b *Buffer, bufOff, size int, off int64, dword uint32) error {
	if err := n.inside(what, off, int64(size)); err != nil {
		return err
	}
	if have := b.Len(); bufOff < 0 || bufOff > have || size > have-bufOff {
		return fmt.Errorf("%s: %d bytes at %d of a buffer of %d", what, size, bufOff, have)
	}
	i := n.info.Load()
	first := uint64(off) / uint64(i.block)
	return n.each(uninterrupted{ctx}, first, uint64(size)/uint64(i.block), i.transfer, func(r *request, lba, count uint64) {
		r.cmd().InitIO(op, n.nsid, lba, uint32(count), dword)
		r.buf, r.off, r.n, r.changes = b, bufOff+int(lba-first)*i.block, int(count)*i.block, op == nvme.CmdWrite
	})
}

// uninterrupted is a context that ends nothing that has begun.
type uninterrupted struct{ context.Context }

// Done never comes.
func (u uninterrupted) Done() <-chan struct{} { return nil }
