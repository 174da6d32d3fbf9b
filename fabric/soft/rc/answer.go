package rc

import (
	"encoding/binary"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// receive takes an answer.
func (r *requester) receive(p *wire.Packet, now time.Duration) {
	seq := p.BTH.PSN()
	if !seq.InWindow(r.una, r.max.Diff(r.una)) {
		r.q.stats.Dropped++ // a duplicate, or nothing we asked for
		return
	}
	switch p.Info.Kind {
	case wire.KindAck:
		r.acknowledge(seq, p.AETH().Syndrome(), now)
	case wire.KindReadResponse, wire.KindAtomicAck:
		r.response(p, seq, now)
	default:
		r.q.stats.Dropped++
	}
}

// acknowledge takes an ACK or a NAK with that sequence number.
func (r *requester) acknowledge(seq psn.Value, s wire.Syndrome, now time.Duration) {
	switch {
	case s.IsAck():
		if !r.advance(seq.Next(), now) {
			r.missed(now)
		}
	case s.IsRNR():
		if r.advance(seq, now) {
			r.notReady(s, now)
		} else {
			r.missed(now)
		}
	case s == wire.NakSequence:
		r.q.stats.SequenceNAK++
		r.advance(seq, now)
		r.restart(now)
	case s.IsNak():
		r.advance(seq, now)
		r.refused(seq, s)
	default:
		r.q.stats.Dropped++
	}
}

// advance acknowledges all requests before to. A READ or atomic whose answer
// has not come is not acknowledged by an ACK behind it: una stops there and
// advance is false, for that answer was lost (9.7.5.1.2).
func (r *requester) advance(to psn.Value, now time.Duration) bool {
	sq, from := r.q.Sends(), r.una
	for r.una != to && sq.Next() != r.top {
		wr := sq.At(sq.Next())
		if isRead(wr.Op) {
			r.settle(from, now)
			return false
		}
		end := psn.Value(wr.Last).Next()
		if to.Less(end) {
			end = to
		}
		r.pace.data.arrived(end.Diff(r.una))
		r.una = end
		r.acked = wr.Aux + uint32(end.Diff(psn.Value(wr.First)))
		r.completeIf(wr)
	}
	r.settle(from, now)
	return true
}

// completeIf completes the oldest WR if all of it is acknowledged.
func (r *requester) completeIf(wr *core.Send) {
	if r.una.Diff(psn.Value(wr.Last)) > 0 {
		r.q.CompleteSend(fabric.StatusSuccess, 0)
		r.retire()
	}
}

// settle puts cursor and timer right after an answer, before which una was
// from.
func (r *requester) settle(from psn.Value, now time.Duration) {
	if r.nxt.Less(r.una) || int32(r.pos-r.q.Sends().Next()) < 0 {
		r.rewind()
	}
	if r.una != from {
		r.pace.progress(r.una, r.una != r.max, now)
	}
}

// notReady handles an RNR NAK of the packet at una.
func (r *requester) notReady(s wire.Syndrome, now time.Duration) {
	r.q.stats.RNRNAK++
	if !r.pace.hold(now, s.RNRTime()) {
		r.fail(fabric.StatusRNRRetryExceeded, uint32(s))
		return
	}
	r.rewind()
}

// refused handles a NAK that ends the QP. A READ before it whose answer was
// lost is flushed.
func (r *requester) refused(seq psn.Value, s wire.Syndrome) {
	status := fabric.StatusRemoteInvalidReq
	switch s {
	case wire.NakRemoteAccess:
		status = fabric.StatusRemoteAccess
	case wire.NakRemoteOp:
		status = fabric.StatusRemoteOp
	}
	for sq := r.q.Sends(); sq.Pending() > 1 && seq.Diff(psn.Value(sq.At(sq.Next()).Last)) > 0; {
		r.q.CompleteSend(fabric.StatusFlushed, 0)
	}
	r.fail(status, uint32(s))
}

// missed handles the loss of an answer that the requester itself has seen.
func (r *requester) missed(now time.Duration) {
	if r.restart(now) {
		r.q.stats.ReadGaps++
	}
}

// restart goes back to una, once until there is progress: if that is lost too
// the timer has to run out.
func (r *requester) restart(now time.Duration) bool {
	if r.q.State() != fabric.QPReadyToSend || !r.pace.lost(r.una, r.flight(), now) {
		return false
	}
	r.rewind()
	return true
}

// expire handles the end of a wait: for the peer's receives, or for an answer.
func (r *requester) expire(now time.Duration) {
	if r.pace.release(r.una != r.max, now) || r.una == r.max {
		return
	}
	r.q.stats.Timeouts++
	if !r.pace.timeout(r.una, r.flight(), now) {
		r.fail(fabric.StatusRetryExceeded, 0)
		return
	}
	r.rewind()
}

func (r *requester) deadline() time.Duration { return r.pace.deadline() }

func (r *requester) congested() { r.pace.congested(r.una, r.max, r.flight()) }

// response takes a READ response or an atomic acknowledgement.
func (r *requester) response(p *wire.Packet, seq psn.Value, now time.Duration) {
	wr := r.oldestRead()
	if wr == nil {
		r.q.stats.Dropped++
		return
	}
	want := psn.Value(wr.First)
	if want.Less(r.una) {
		want = r.una
	}
	switch d := seq.Diff(want); {
	case d < 0:
		r.q.stats.Dropped++
		return
	case d > 0:
		r.advance(psn.Value(wr.First), now)
		r.missed(now)
		return
	}
	r.advance(psn.Value(wr.First), now) // everything before it has arrived
	from := r.una
	if r.q.State() != fabric.QPReadyToSend {
		return
	}
	if s := r.place(p, wr, seq.Diff(psn.Value(wr.First))); s != fabric.StatusSuccess {
		r.fail(s, uint32(p.Op))
		return
	}
	r.una = seq.Next()
	r.answered(wr)
	r.completeIf(wr)
	r.settle(from, now)
}

// oldestRead is the first WR with sequence numbers that waits for an answer.
func (r *requester) oldestRead() *core.Send {
	sq := r.q.Sends()
	for pos := sq.Next(); pos != r.top; pos++ {
		if wr := sq.At(pos); isRead(wr.Op) {
			return wr
		}
	}
	return nil
}

// answered counts a packet of the answer to a READ or atomic, and the end of it.
func (r *requester) answered(wr *core.Send) {
	if wr.Op == fabric.OpRead {
		r.pace.reads.arrived(1)
		r.asked = max(r.asked-1, 0)
	}
	n := r.una.Diff(psn.Value(wr.First))
	if n%int(wr.Aux) == 0 || r.una.Diff(psn.Value(wr.Last)) > 0 {
		r.reads = max(r.reads-1, 0)
	}
}

// place writes the answer of packet i of the oldest WR to its memory.
func (r *requester) place(p *wire.Packet, wr *core.Send, i int) fabric.Status {
	t, sges := r.q.Device().Table(), r.q.Sends().SGEs(r.q.Sends().Next())
	if isAtomic(wr.Op) {
		if p.Info.Kind != wire.KindAtomicAck {
			return fabric.StatusBadResponse
		}
		b, fault := t.Slice(sges, 0, core.AtomicSize, fabric.AccessLocalWrite)
		if fault != core.FaultNone || len(b) != core.AtomicSize {
			return fabric.StatusLocalProtection
		}
		binary.NativeEndian.PutUint64(b, p.AtomicOriginal())
		return fabric.StatusSuccess
	}
	off := uint64(i) * uint64(r.q.cfg.MTU)
	size := min(uint64(wr.Length)-off, uint64(r.q.cfg.MTU))
	// The packet that ends a response to a request of ours ends the chunk.
	end := (i+1)%int(wr.Aux) == 0 || off+size == uint64(wr.Length)
	if p.Info.Kind != wire.KindReadResponse || uint64(len(p.Payload)) != size || p.Info.Has(wire.End) != end {
		return fabric.StatusBadResponse
	}
	if n, fault := t.Scatter(sges, off, p.Payload); fault != core.FaultNone || n != len(p.Payload) {
		return fabric.StatusLocalProtection
	}
	return fabric.StatusSuccess
}
