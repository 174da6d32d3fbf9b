package rdmap

import (
	"fmt"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// asked is a READ or an atomic whose request the socket has taken.
type asked struct {
	pos   uint32 // of the WR
	ready bool   // the RTR frame: there is no WR
}

// requester has our READs and atomics until they are answered, in order.
type requester struct {
	ring       []asked
	head, tail uint32
	count      int    // of those that were begun: it is held against ORD
	full       bool   // it was ORD, and has not fallen to half of that since
	got        uint32 // bytes of the answer to the oldest
}

func (r *requester) init(ord int) { *r = requester{ring: make([]asked, max(ord, 1))} }

func (r *requester) push(a asked) {
	r.ring[r.tail%uint32(len(r.ring))] = a
	r.tail++
}

// room says whether one more may begin. Once there was none, it takes half of
// ORD to be answered: a few requests travel in one packet rather than each in
// one of its own, and the peer still has the other half to work on.
func (r *requester) room(ord int) bool {
	if r.count >= ord {
		r.full = true
	} else if r.count <= ord/2 {
		r.full = false
	}
	return !r.full
}

// oldest is the one that is to be answered next. It is false when there is
// none.
func (r *requester) oldest() (asked, bool) {
	if r.head == r.tail {
		return asked{}, false
	}
	return r.ring[r.head%uint32(len(r.ring))], true
}

// answered ends the oldest.
func (q *QP) answered() {
	r := &q.reads
	a, _ := r.oldest()
	r.head++
	r.count--
	r.got = 0
	if !a.ready {
		q.Sends().At(a.pos).Aux = auxDone
		q.reap()
	}
}

// readOf is the WR of the oldest when that is a READ, or the RTR frame (nil).
func (r *requester) readOf(q *QP) (s *core.Send, pos uint32, ok bool) {
	a, ok := r.oldest()
	if !ok || a.ready {
		return nil, 0, ok
	}
	s = q.Sends().At(a.pos)
	return s, a.pos, s.Op == fabric.OpRead
}

// beginResponse holds the header of a Read Response against the READ that it
// must be for.
func (q *QP) beginResponse() {
	x, r := &q.rx, &q.reads
	s, pos, ok := r.readOf(q)
	switch {
	case !ok:
		q.badResponse(mpa.TaggedInvalidSTag, "a Read Response without a READ")
		return
	case s == nil:
		if x.left > 0 || !x.h.Last {
			q.badResponse(mpa.TaggedBounds, "payload for a READ of nothing")
		}
		return
	}
	stag, to := q.sink(pos)
	switch left := s.Length - r.got; {
	case x.h.STag != stag:
		q.badResponse(mpa.TaggedInvalidSTag, "a Read Response for another STag")
	case x.h.TO != to+uint64(r.got):
		q.badResponse(mpa.TaggedBounds, "a Read Response that does not continue the one before")
	case uint32(x.left) > left || x.h.Last != (uint32(x.left) == left):
		q.badResponse(mpa.TaggedBounds, fmt.Sprintf("a Read Response of the wrong length: %d bytes of %d are missing", left, s.Length))
	}
}

// endResponse is called when a segment of a Read Response is placed.
func (q *QP) endResponse() {
	q.reads.got += uint32(q.rx.placed)
	if q.rx.h.Last {
		q.answered()
	}
}

// endAtomic takes an Atomic Response.
func (q *QP) endAtomic() {
	a, ok := q.reads.oldest()
	id, original := mpa.ParseAtomicResponse(q.rx.control[:])
	if !ok || a.ready || q.Sends().At(a.pos).Op == fabric.OpRead || id != a.pos {
		q.badResponse(mpa.OperationUnspecific, "an Atomic Response without its atomic")
		return
	}
	if _, f := q.table.Scatter(q.Sends().SGEs(a.pos), 0, core.HostBytes(&original)); f != core.FaultNone {
		q.failWR(a.pos, fabric.StatusLocalProtection)
		return
	}
	q.answered()
}

// badResponse ends the QP for an answer that is none, which fails the READ it
// should have been for.
func (q *QP) badResponse(c mpa.Cause, why string) {
	q.failOldest(fabric.StatusBadResponse)
	q.terminate(c, why)
}

// failOldest completes the READ or atomic that would have been answered next.
// It has to be the next WR to complete: what was sent before it is done.
func (q *QP) failOldest(s fabric.Status) {
	if a, ok := q.reads.oldest(); ok && !a.ready && q.Sends().Next() == a.pos {
		q.CompleteSend(s, 0)
	}
}

// terminated ends the QP because the peer says so. What it complains of is the
// oldest READ or atomic, if it is one at all.
func (q *QP) terminated() {
	var t mpa.Terminate
	q.stats.Terminated++
	if !t.Parse(q.rx.control[:q.rx.placed]) {
		q.terminate(mpa.BadFrame, "a Terminate of no use")
		return
	}
	if t.OfRequest() || t.Other != 0 && t.Other.Layer() == mpa.LayerRDMAP {
		q.failOldest(refusedStatus(&t))
	}
	q.fail(fmt.Errorf("%w: the peer terminated: %v", fabric.ErrQPError, &t))
}

// refusedStatus is how a READ or an atomic ends that the peer has refused.
func refusedStatus(t *mpa.Terminate) fabric.Status {
	switch c := t.Cause; {
	case c == mpa.OperationUnspecific || c == mpa.GlobalCatastrophic:
		return fabric.StatusRemoteOp
	case c.Layer() == mpa.LayerRDMAP && c.Type() == mpa.RemoteInvalidSTag.Type():
		return fabric.StatusRemoteAccess
	}
	return fabric.StatusRemoteInvalidReq
}
