package file

import (
	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// zeroWay is a way of making a range read as zeroes. They are tried in order.
type zeroWay uint8

const (
	byPunching zeroWay = iota // frees the space
	byMarking                 // keeps it
	byWriting
)

// beginZero starts a WriteZeroes, or a Discard that is as good.
func (q *queue) beginZero(s *slot) {
	s.dsync = false // one sync at the end serves all parts
	if s.op.Kind == backend.Discard || s.op.Dealloc {
		q.zero(s, byPunching)
		return
	}
	q.zero(s, byMarking)
}

// zero takes the first way from the given one on that the medium has.
func (q *queue) zero(s *slot, way zeroWay) {
	if way == byPunching && q.dev.lacks[lacksPunchHole].Load() {
		way = byMarking
	}
	if way == byMarking && q.dev.lacks[lacksZeroRange].Load() {
		way = byWriting
	}
	s.way = way
	mode := uint32(punchHole)
	switch {
	case s.op.Length == 0:
		q.settle(s)
		return
	case way == byWriting:
		s.op.Kind = backend.WriteZeroes // of a Discard as well, from here on
		q.move(s)
		return
	case way == byMarking:
		mode = zeroRange
	}
	s.call = call{op: callFallocate, flags: mode, off: s.op.Offset, n: s.op.Length}
	q.start(s, (*queue).wasZeroed)
}

func (q *queue) wasZeroed(s *slot, res int32) {
	e := unix.Errno(-res)
	switch {
	case e == 0:
		q.settle(s)
	case passing(e) && s.again():
		q.zero(s, s.way)
	case unsupported(e):
		lack := lacksPunchHole
		if s.way == byMarking {
			lack = lacksZeroRange
		}
		q.dev.lacks[lack].Store(true)
		q.zero(s, s.way+1)
	case e == unix.EINVAL: // this range: not whole blocks of the medium
		q.zero(s, s.way+1)
	default:
		q.finish(s, status(s.op.Kind, e))
	}
}

// discard starts a Discard.
func (q *queue) discard(s *slot) {
	m := q.dev.medium
	switch {
	case !m.discards:
		q.finish(s, nvme.Success)
	case !m.block:
		q.beginZero(s)
	default:
		q.discardBlocks(s)
	}
}

// discardBlocks gives up the whole blocks of the device that lie in the range;
// the others may stay as they are.
func (q *queue) discardBlocks(s *slot) {
	unit := uint64(q.dev.medium.logical)
	first := (s.op.Offset + unit - 1) / unit * unit
	end := (s.op.Offset + s.op.Length) / unit * unit
	if first >= end {
		q.finish(s, nvme.Success)
		return
	}
	s.call = call{op: callDiscard, off: first, n: end - first}
	q.start(s, (*queue).wasDiscarded)
}

// wasDiscarded takes the result of a discard, of which io_uring or the ioctl
// may turn out to be unsupported.
func (q *queue) wasDiscarded(s *slot, res int32) {
	e := unix.Errno(-res)
	cmd := &q.dev.lacks[lacksDiscardCmd]
	switch {
	case e == 0:
		q.settle(s)
	case passing(e) && s.again():
		q.discardBlocks(s)
	case (unsupported(e) || e == unix.EINVAL) && q.ring != nil && !cmd.Load():
		cmd.Store(true)
		q.discardBlocks(s)
	case unsupported(e):
		q.finish(s, nvme.Success)
	default:
		q.finish(s, status(s.op.Kind, e))
	}
}
