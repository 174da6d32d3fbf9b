package file

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// maxMove is the most bytes one call moves.
const maxMove = 1 << 30

// beginMove starts a Read or Write.
func (q *queue) beginMove(s *slot) {
	if s.op.Length == 0 {
		q.finish(s, nvme.Success)
		return
	}
	s.dsync = s.op.Kind == backend.Write && !s.synced && !q.dev.lacks[lacksDsync].Load()
	s.bounce = q.dev.medium.direct && !q.dev.medium.aligned(s.op.Bufs)
	q.move(s)
}

// aligned says whether direct I/O takes the buffers as they are.
func (m *medium) aligned(bufs [][]byte) bool {
	var addrs, lens uintptr
	for _, b := range bufs {
		addrs |= uintptr(unsafe.Pointer(unsafe.SliceData(b)))
		lens |= uintptr(len(b))
	}
	return addrs&uintptr(m.memAlign-1) == 0 && lens&uintptr(m.offAlign-1) == 0
}

// move calls for what is left of s's data, or waits for bounce memory.
func (q *queue) move(s *slot) {
	s.call = call{op: callRead, off: s.op.Offset + s.moved}
	if s.op.Kind != backend.Read {
		s.call.op = callWrite
	}
	if s.dsync {
		s.call.flags = unix.RWF_DSYNC
	}
	switch {
	case s.op.Kind == backend.WriteZeroes:
		s.call.gather(s.vec, q.dev.zeroes, s.op.Length-s.moved)
	case s.bounce:
		if !q.fillChunk(s) {
			return
		}
	case len(s.op.Bufs) == 1:
		s.call.single(&s.one, s.op.Bufs[0][s.moved:])
	default:
		s.call.vector(s.vec, s.op.Bufs, s.moved)
	}
	q.start(s, (*queue).wasMoved)
}

// single makes b the data of c.
func (c *call) single(one *[1]unix.Iovec, b []byte) {
	b = b[:min(len(b), maxMove)]
	one[0].Base = unsafe.SliceData(b)
	one[0].SetLen(len(b))
	c.iov, c.n = one[:], uint64(len(b))
}

// vector makes bufs without their first skip bytes the data of c, as far as
// vec has room.
func (c *call) vector(vec []unix.Iovec, bufs [][]byte, skip uint64) {
	used := 0
	for _, b := range bufs {
		if uint64(len(b)) <= skip {
			skip -= uint64(len(b))
			continue
		}
		b, skip = b[skip:], 0
		if used == len(vec) || c.n+uint64(len(b)) > maxMove {
			break
		}
		vec[used].Base = unsafe.SliceData(b)
		vec[used].SetLen(len(b))
		c.n += uint64(len(b))
		used++
	}
	c.iov = vec[:used]
}

// gather makes b, again and again, the data of c: n bytes as far as vec has
// room.
func (c *call) gather(vec []unix.Iovec, b []byte, n uint64) {
	used := 0
	for ; used < len(vec) && c.n < n; used++ {
		part := min(uint64(len(b)), n-c.n)
		vec[used].Base = unsafe.SliceData(b)
		vec[used].SetLen(int(part))
		c.n += part
	}
	c.iov = vec[:used]
}

// wasMoved takes the result of a read or write.
func (q *queue) wasMoved(s *slot, res int32) {
	switch {
	case res < 0:
		q.moveFailed(s, unix.Errno(-res))
	case res == 0:
		q.metEnd(s)
	default:
		if s.bounce && s.op.Kind == backend.Read {
			q.emptyChunk(s, int(res))
		}
		q.advance(s, uint64(res))
	}
}

// advance counts n bytes as done and goes on with the rest.
func (q *queue) advance(s *slot, n uint64) {
	s.moved, s.tries = s.moved+n, 0
	if s.moved < s.op.Length {
		q.move(s)
		return
	}
	s.synced = s.synced || s.dsync
	q.settle(s)
}

// moveAgain repeats the call, or gives up with e.
func (q *queue) moveAgain(s *slot, e unix.Errno) {
	if s.again() {
		q.move(s)
		return
	}
	q.finish(s, status(s.op.Kind, e))
}

// metEnd follows a call that moved nothing: the medium may have shrunk.
func (q *queue) metEnd(s *slot) {
	if q.outside(s) {
		q.finish(s, nvme.LBAOutOfRange)
		return
	}
	q.moveAgain(s, unix.EIO)
}

// outside looks at the medium's size again and says whether s is beyond it.
func (q *queue) outside(s *slot) bool {
	return q.dev.look() == nil && s.op.Check(q.dev.size.Load(), false) == nvme.LBAOutOfRange
}

func (q *queue) moveFailed(s *slot, e unix.Errno) {
	m := q.dev.medium
	switch {
	case passing(e):
		q.moveAgain(s, e)
	case unsupported(e) && s.dsync:
		q.dev.lacks[lacksDsync].Store(true)
		s.dsync = false
		q.move(s)
	case e == unix.EINVAL && m.direct && !s.bounce && s.op.Kind != backend.WriteZeroes:
		s.bounce = true // stricter about memory than it said
		q.move(s)
	case e == unix.ENOSPC && m.block && q.outside(s):
		q.finish(s, nvme.LBAOutOfRange)
	default:
		st := status(s.op.Kind, e)
		if st == nvme.WriteFault && s.dsync && !m.direct {
			q.dev.failSync(e) // it may have been an earlier write's error
		}
		q.finish(s, st)
	}
}
