package fabrictest

import (
	"fmt"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
)

// core.Send.Aux, set by publish: for a READ or an atomic how many are then
// outstanding; for a WR that the responder must skip its status and this bit.
const auxLocal = 1 << 31

// isRead says whether a WR counts towards ORD.
func isRead(op fabric.Opcode) bool {
	return op == fabric.OpRead || op == fabric.OpCompareSwap || op == fabric.OpFetchAdd
}

// publish hands posted WRs to the peer, as far as ORD and fences allow.
func (q *queuePair) publish() {
	sq := q.Sends()
	from := q.out.published.Load()
	pos, local := from, false
	for pos != sq.Tail() && !q.halted {
		s := sq.At(pos)
		if !q.prepare(s, pos) {
			break
		}
		local = local || s.Aux&auxLocal != 0
		pos++
	}
	if pos == from {
		return
	}
	q.out.published.Store(pos)
	q.peer.schedule()
	if local || q.link.faults.Load() != nil {
		q.schedule() // completes without the peer, or has to watch the time
	}
}

// prepare says whether the WR at pos can go now, and sets its Aux.
func (q *queuePair) prepare(s *core.Send, pos uint32) bool {
	s.Aux = 0
	switch {
	case s.Flags&fabric.FlagFence != 0 && q.outstanding > 0:
		return false
	case s.Op == fabric.OpLocalInv:
		if q.Sends().Next() != pos {
			return false // waits for everything before it
		}
		q.runLocal(s)
	case s.Op == fabric.OpBind:
		q.runLocal(s)
	case s.Op == fabric.OpSendInv && q.dev.hw.opts.BrokenSendInvalidate:
		s.Aux = auxLocal | uint32(fabric.StatusLocalQPOp)
		q.halted = true
	case isRead(s.Op):
		if q.outstanding >= q.ORD() && !q.dev.hw.opts.IgnoreORD {
			return false
		}
		q.outstanding++
		s.Aux = uint32(q.outstanding)
	}
	return true
}

func (q *queuePair) runLocal(s *core.Send) {
	status := q.RunLocal(s)
	s.Aux = auxLocal | uint32(status)
	q.halted = status != fabric.StatusSuccess
}

// reap completes what the peer has executed, and the local operations whose
// turn it is.
func (q *queuePair) reap() {
	sq := q.Sends()
	for {
		// Once the queue was flushed, Next is beyond executed for good.
		for done := q.out.executed.Load(); int32(done-sq.Next()) > 0; {
			if !q.complete(sq.Next()) {
				return
			}
		}
		if !q.passLocal() {
			return
		}
	}
}

// complete ends the oldest WR. It is false when that was the end of the QP.
func (q *queuePair) complete(pos uint32) bool {
	s, status := q.Sends().At(pos), fabric.StatusSuccess
	switch {
	case s.Aux&auxLocal != 0:
		status = fabric.Status(s.Aux &^ auxLocal)
	case isRead(s.Op):
		q.outstanding--
	}
	if f := q.out.failed.Load(); f != 0 && uint32(f>>8) == pos {
		status = fabric.Status(f)
	}
	q.CompleteSend(status, 0)
	if status == fabric.StatusSuccess {
		return true
	}
	q.fail(fmt.Errorf("%w: %v: %v", fabric.ErrQPError, s.Op, status), true)
	return false
}

// passLocal moves executed over a local operation that is next, unless the peer
// is at work and will do so itself.
func (q *queuePair) passLocal() bool {
	pos := q.Sends().Next()
	if pos == q.out.published.Load() || q.Sends().At(pos).Aux&auxLocal == 0 || q.State() == fabric.QPError {
		return false
	}
	if !q.out.lock.CompareAndSwap(streamFree, streamBusy) {
		q.schedule()
		return false
	}
	if q.out.executed.Load() == pos {
		q.out.executed.Store(pos + 1)
	}
	q.out.lock.Store(streamFree)
	q.peer.schedule() // it may have come meanwhile and gone
	return true
}

// watch keeps the time while the link is cut: when the retries are used up,
// the oldest WR has failed.
func (q *queuePair) watch() {
	if !q.link.isCut() || q.out.published.Load() == q.out.executed.Load() {
		q.giveUp = time.Time{}
		return
	}
	if q.giveUp.IsZero() {
		d := time.Duration(q.retryCount+1) * q.dev.net.opts.AckTimeout
		q.giveUp = time.Now().Add(d)
		q.outTimer = rearm(q.outTimer, d, q.schedule)
		return
	}
	if time.Now().Before(q.giveUp) {
		return
	}
	if !q.closeStream() {
		q.schedule()
		return
	}
	pos := q.out.executed.Load()
	q.out.failed.Store(uint64(pos)<<8 | uint64(fabric.StatusRetryExceeded))
	q.out.executed.Store(pos + 1)
	q.reap()
}

// rearm starts t, or makes it with fn.
func rearm(t *time.Timer, d time.Duration, fn func()) *time.Timer {
	if t == nil {
		return time.AfterFunc(d, fn)
	}
	t.Reset(d)
	return t
}
