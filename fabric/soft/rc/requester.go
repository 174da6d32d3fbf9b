package rc

import (
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// ackEvery is after how many packets of a long message an acknowledgement is
// asked for.
const ackEvery = 32

// requester turns the send queue into packets.
//
//	        una           nxt            max         psn
//	---------+-------------+--------------+-----------+--> sequence numbers
//	  acked  | sent, again | sent before  | the WR at |
//	         | under way   | a rewind     | the cursor|
//
// Positions are those of core.SendQueue. The WR at Next is the one that una
// lies in, so going back is always going back to una.
type requester struct {
	q *QP

	una psn.Value // oldest that is not acknowledged
	nxt psn.Value // of the packet at the cursor
	max psn.Value // the first that was never sent

	// The cursor: the packet to be sent next.
	pos uint32 // its WR
	idx int    // its place in the WR; of a READ, the place of the response

	// WRs get their sequence numbers when the cursor reaches them.
	top uint32 // the first WR without
	psn psn.Value
	no  uint32 // data packets of all WRs before top

	// What is under way between una and the cursor.
	sent, acked uint32 // data packets, free-running
	reads       int    // READ requests and atomics
	asked       int    // READ responses
	unasked     int    // packets since the last that asked for an ACK

	ran uint32 // local operations before it were executed

	// A WR that failed before it was sent: it completes after those before it.
	stopped bool
	stop    uint32
	why     fabric.Status

	pace pace
}

func (r *requester) init(q *QP) {
	*r = requester{q: q}
	r.una, r.nxt, r.max, r.psn = q.cfg.SendPSN, q.cfg.SendPSN, q.cfg.SendPSN, q.cfg.SendPSN
	r.pace.init(&q.cfg)
}

func isLocal(op fabric.Opcode) bool { return op == fabric.OpLocalInv || op == fabric.OpBind }

func isAtomic(op fabric.Opcode) bool { return op == fabric.OpCompareSwap || op == fabric.OpFetchAdd }

// isRead says whether a WR counts towards ORD.
func isRead(op fabric.Opcode) bool { return op == fabric.OpRead || isAtomic(op) }

// packets is the number of sequence numbers of a WR.
func (r *requester) packets(wr *core.Send) int {
	switch {
	case isLocal(wr.Op):
		return 0
	case isAtomic(wr.Op):
		return 1
	}
	return wire.Segments(wr.Length, r.q.cfg.MTU)
}

// assign gives the WR at top its sequence numbers. Aux is the number of data
// packets before it; of a READ, the number of packets one request asks for.
func (r *requester) assign(wr *core.Send) {
	n := r.packets(wr)
	wr.First, wr.Last = uint32(r.psn), uint32(r.psn.Add(n-1))
	r.psn = r.psn.Add(n)
	if isRead(wr.Op) {
		wr.Aux = uint32(r.pace.chunk())
	} else {
		wr.Aux = r.no
		r.no += uint32(n)
	}
	r.top++
}

// waiting says whether there is something to send, now or later.
func (r *requester) waiting() bool { return r.q.Sends().Tail() != r.pos }

// next makes the packet at the cursor, if it may be sent now.
func (r *requester) next(p *Packet, now time.Duration) bool {
	sq := r.q.Sends()
	for r.pos != sq.Tail() && !(r.stopped && r.pos == r.stop) && !r.pace.held(now) {
		wr := sq.At(r.pos)
		if r.pos == r.top {
			r.assign(wr)
		}
		switch {
		case !r.mayStart(wr):
			return false
		case isLocal(wr.Op):
			if !r.runLocal(wr) {
				return false
			}
			continue
		}
		return r.send(p, wr, now)
	}
	return false
}

// mayStart says whether the packet at the cursor may be sent now: fences, ORD
// and the window.
func (r *requester) mayStart(wr *core.Send) bool {
	switch {
	case wr.Flags&fabric.FlagFence != 0 && r.idx == 0 && r.reads > 0:
		return false
	case isLocal(wr.Op):
		return true
	case isAtomic(wr.Op):
		return r.reads < r.q.cfg.ORD
	case isRead(wr.Op):
		return r.reads < r.q.cfg.ORD && (r.asked == 0 || r.asked+r.chunkLeft(wr) <= r.pace.reads.size)
	}
	// The window may have shrunk over packets that asked for nothing: one more
	// goes, which asks for all.
	return r.unacked() < r.pace.data.size || r.unacked() <= r.unasked
}

// unacked is the number of data packets under way.
func (r *requester) unacked() int { return int(int32(r.sent - r.acked)) }

func (r *requester) flight() flight { return flight{r.unacked(), r.asked} }

// chunkLeft is the number of packets from the cursor, in a READ, to the end of
// its chunk.
func (r *requester) chunkLeft(wr *core.Send) int {
	chunk := int(wr.Aux)
	return min((r.idx/chunk+1)*chunk, r.packets(wr)) - r.idx
}

// runLocal executes the LOCAL_INV or bind at the cursor and moves on. It is
// false when that has to wait, or failed.
func (r *requester) runLocal(wr *core.Send) bool {
	if int32(r.pos-r.ran) >= 0 { // not met before a rewind
		if wr.Op == fabric.OpLocalInv && r.q.Sends().Next() != r.pos {
			return false // waits for everything before it
		}
		if s := r.q.RunLocal(wr); s != fabric.StatusSuccess {
			r.failLater(s)
			return false
		}
		r.ran = r.pos + 1
	}
	r.pos++
	r.retire()
	return true
}

// send makes the packet at the cursor and moves on.
func (r *requester) send(p *Packet, wr *core.Send, now time.Duration) bool {
	idle := r.una == r.max
	var n int // sequence numbers used
	switch {
	case wr.Op == fabric.OpRead:
		n = r.putRead(p, wr)
	case isAtomic(wr.Op):
		n = r.putAtomic(p, wr)
	default:
		n = r.putData(p, wr)
	}
	if n == 0 {
		return false
	}
	if idle {
		r.pace.begin(now)
	}
	if r.nxt.Less(r.max) {
		r.q.stats.Resent++
	} else if r.unasked == 0 {
		r.pace.time(r.nxt, now)
	}
	r.nxt = r.nxt.Add(n)
	if r.max.Less(r.nxt) {
		r.max = r.nxt
	}
	if r.idx += n; r.nxt.Diff(psn.Value(wr.Last)) > 0 {
		r.pos, r.idx = r.pos+1, 0
	}
	return true
}

// failLater fails the WR at the cursor once all before it have completed.
// Nothing is sent from it on.
func (r *requester) failLater(s fabric.Status) {
	r.stopped, r.stop, r.why = true, r.pos, s
	r.retire()
}

// retire completes the WRs at the head of the queue that need no answer: local
// operations that were run, and the one that failed before it was sent.
func (r *requester) retire() {
	sq := r.q.Sends()
	for int32(sq.Next()-r.ran) < 0 && isLocal(sq.At(sq.Next()).Op) {
		r.q.CompleteSend(fabric.StatusSuccess, 0)
	}
	if r.stopped && sq.Next() == r.stop && sq.Pending() > 0 {
		r.fail(r.why, 0)
	}
}

// fail completes the oldest WR with s and ends the QP.
func (r *requester) fail(s fabric.Status, vendor uint32) {
	r.stopped = false
	if r.q.Sends().Pending() > 0 {
		r.q.CompleteSend(s, vendor)
	}
	r.q.failStatus(s)
}

// rewind puts the cursor back to the oldest packet not acknowledged.
func (r *requester) rewind() {
	sq := r.q.Sends()
	r.pos, r.idx, r.nxt = sq.Next(), 0, r.una
	if r.pos != r.top {
		r.idx = r.una.Diff(psn.Value(sq.At(r.pos).First))
	}
	r.sent, r.reads, r.asked, r.unasked = r.acked, 0, 0, 0
}
