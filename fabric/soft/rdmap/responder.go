package rdmap

import (
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// peerRequest is a Read or Atomic Request of the peer.
type peerRequest struct {
	isAtomic bool
	read     mpa.ReadRequest
	atomic   mpa.AtomicRequest
	original uint64    // what the atomic found
	cause    mpa.Cause // why it is refused, once its turn comes
	// With a cause that was found when it came: the segment.
	header  [mpa.UntaggedLen]byte
	payload [mpa.ReadRequestLen]byte
}

// responder has the peer's requests until their answers are sent, in order. It
// is a ring of IRD of them; positions are free-running.
//
//	tail: where the next goes    next: not begun    head: answer not written
type responder struct {
	ring             []peerRequest
	head, next, tail uint32
	refused          bool // the one at next: nothing but a Terminate comes any more
}

func (r *responder) init(ird int) { *r = responder{ring: make([]peerRequest, ird)} }

func (r *responder) at(pos uint32) *peerRequest { return &r.ring[pos%uint32(len(r.ring))] }

// add is the place of one more, or nil when the peer has as many as it may.
func (r *responder) add() *peerRequest {
	if int(r.tail-r.head) >= len(r.ring) {
		return nil
	}
	e := r.at(r.tail)
	e.cause, e.header[1] = 0, 0
	r.tail++
	return e
}

// pop ends the oldest: its answer is written.
func (r *responder) pop() { r.head++ }

// refuse has the request at pos, which was begun, refused instead.
func (r *responder) refuse(pos uint32, c mpa.Cause) {
	r.at(pos).cause = c
	r.next, r.refused = pos, true
}

// remoteCause is the cause for a key or range that the peer named in a request.
func remoteCause(f core.Fault) mpa.Cause {
	switch f {
	case core.FaultRange:
		return mpa.RemoteBounds
	case core.FaultRights:
		return mpa.RemoteAccess
	}
	return mpa.RemoteInvalidSTag
}

// checkRead says why a Read Request is refused.
func (q *QP) checkRead(r *mpa.ReadRequest) mpa.Cause {
	if r.Size == 0 {
		return 0
	}
	if _, f := q.CheckRemote(r.SourceSTag, r.SourceTO, r.Size, fabric.AccessRemoteRead); f != core.FaultNone {
		return remoteCause(f)
	}
	return 0
}

// checkAtomic says why an Atomic Request is refused.
func (q *QP) checkAtomic(r *mpa.AtomicRequest) mpa.Cause {
	_, f := q.CheckRemote(r.STag, r.TO, core.AtomicSize, fabric.AccessRemoteAtomic)
	switch _, ok := r.Apply(0); {
	case !ok:
		return mpa.UnexpectedOpcode
	case f != core.FaultNone:
		return remoteCause(f)
	case r.TO%core.AtomicSize != 0:
		return mpa.StreamCatastrophic
	}
	return 0
}

// takeRequest queues the request whose segment has come. One that is refused
// waits for its turn too, so that those before it are answered; what comes
// behind it is not looked at.
func (q *QP) takeRequest() {
	x := &q.rx
	e := q.rsp.add()
	if e == nil {
		q.terminate(mpa.NoBuffer, "more Read Requests than IRD")
		return
	}
	e.isAtomic = x.h.Op == mpa.OpAtomicRequest
	if e.isAtomic {
		e.atomic.Parse(x.control[:])
		e.cause = q.checkAtomic(&e.atomic)
	} else {
		e.read.Parse(x.control[:])
		e.cause = q.checkRead(&e.read)
	}
	if e.cause != 0 {
		copy(e.header[:], x.header[mpa.LengthLen:])
		copy(e.payload[:], x.control[:])
		x.dead = true
	}
}

// nextAnswer makes the message of the next answer.
func (q *QP) nextAnswer() bool {
	r := &q.rsp
	if r.next == r.tail {
		return false
	}
	e := r.at(r.next)
	switch {
	case e.cause != 0:
	case e.isAtomic:
		q.execute(e)
	default:
		e.cause = q.checkRead(&e.read)
	}
	if e.cause != 0 {
		r.refused = true
		q.refuseRequest(e)
		return false
	}
	m := message{op: mpa.OpReadResponse, source: sourceRegion, end: endResponse, pos: r.next,
		stag: e.read.SinkSTag, to: e.read.SinkTO, length: e.read.Size}
	if e.isAtomic {
		m = message{op: mpa.OpAtomicResponse, source: sourceControl, end: endResponse, pos: r.next, length: mpa.AtomicResponseLen}
	}
	r.next++
	q.tx.turn = true
	q.tx.push(q, m)
	return true
}

// refuseRequest terminates the stream for a request, when all that was begun
// before is written.
func (q *QP) refuseRequest(e *peerRequest) {
	if q.tx.messages.Len() > 0 {
		return
	}
	t := mpa.Terminate{Cause: e.cause}
	if e.header[1] != 0 { // else it was right when it came
		t.Header, t.Length = e.header[:], mpa.UntaggedLen+mpa.ReadRequestLen
		if !e.isAtomic {
			t.Request = e.payload[:]
		} else {
			t.Length = mpa.UntaggedLen + mpa.AtomicRequestLen
		}
	}
	q.refuse(&t, "its request")
}

// execute runs an atomic, unless the key has ended since it came.
func (q *QP) execute(e *peerRequest) {
	r := &e.atomic
	if e.cause = q.checkAtomic(r); e.cause != 0 {
		return
	}
	b, _ := q.CheckRemote(r.STag, r.TO, core.AtomicSize, fabric.AccessRemoteAtomic)
	e.original, _ = core.Atomic(fabric.OpFetchAdd, b, 0, 0)
	for {
		v, _ := r.Apply(e.original)
		old, _ := core.Atomic(fabric.OpCompareSwap, b, e.original, v)
		if old == e.original {
			return
		}
		e.original = old
	}
}
