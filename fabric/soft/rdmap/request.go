package rdmap

import (
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// next makes the next message, of the send queue or an answer, in turn when
// there are both. It is false when there is none.
func (q *QP) next() bool {
	t := &q.tx
	switch {
	case t.messages.Len() > maxMessages-3 || q.cfg.Passive && !q.rx.opened: // two of a WR, and a Terminate
		return false
	case q.rsp.refused:
		return q.nextAnswer()
	case t.turn:
		return q.nextRequest() || q.nextAnswer()
	}
	return q.nextAnswer() || q.nextRequest()
}

// nextRequest makes messages of the next WR, running local operations on the
// way.
func (q *QP) nextRequest() bool {
	t, sq := &q.tx, q.Sends()
	for t.pos != sq.Tail() && !t.stopped && q.State() == fabric.QPReadyToSend {
		s := sq.At(t.pos)
		s.Aux = 0
		switch {
		case s.Flags&fabric.FlagFence != 0 && q.reads.count > 0:
			return false
		case s.Op == fabric.OpLocalInv || s.Op == fabric.OpBind:
			if !q.runLocal(s) {
				return false
			}
		case isRead(s.Op):
			return q.reads.room(q.ORD()) && q.begin(s)
		default:
			return q.begin(s)
		}
	}
	q.reap()
	return false
}

// isRead says whether a WR counts towards ORD.
func isRead(op fabric.Opcode) bool {
	return op == fabric.OpRead || op == fabric.OpCompareSwap || op == fabric.OpFetchAdd
}

// runLocal executes a bind, or a LOCAL_INV when everything before it has
// completed. It is false when it has to wait or has failed.
func (q *QP) runLocal(s *core.Send) bool {
	t, sq := &q.tx, q.Sends()
	if s.Op == fabric.OpLocalInv {
		if q.reap(); sq.Next() != t.pos {
			return false
		}
	}
	if status := q.RunLocal(s); status != fabric.StatusSuccess {
		q.stop(t.pos, status)
		q.reap()
		return false
	}
	s.Aux = auxDone
	t.pos++
	q.reap()
	return true
}

// begin makes the messages of the WR at pos, unless its own memory is out of
// reach.
func (q *QP) begin(s *core.Send) bool {
	t, sq := &q.tx, q.Sends()
	m := message{pos: t.pos, source: sourceSGEs, end: endWR, length: s.Length}
	need := fabric.Access(0)
	if isRead(s.Op) {
		need = fabric.AccessLocalWrite // its SGEs are the sink
	}
	if s.Flags&fabric.FlagInline != 0 {
		m.source = sourceInline
	} else if q.table.Check(sq.SGEs(t.pos), uint64(s.Length), need) != core.FaultNone {
		q.stop(t.pos, fabric.StatusLocalProtection)
		q.reap()
		return false
	}
	t.turn = false
	t.pos++
	switch s.Op {
	case fabric.OpSend, fabric.OpSendInv:
		m.op = sendOpcode(s)
		if s.Op == fabric.OpSendInv {
			m.stag = s.RKey
		}
	case fabric.OpWrite, fabric.OpWriteImm:
		m.op, m.stag, m.to = mpa.OpWrite, s.RKey, s.RemoteAddr
	case fabric.OpRead:
		q.reads.count++
		m.op, m.source, m.end, m.length = mpa.OpReadRequest, sourceControl, endAsked, mpa.ReadRequestLen
	case fabric.OpCompareSwap, fabric.OpFetchAdd:
		q.reads.count++
		m.op, m.source, m.end, m.length = mpa.OpAtomicRequest, sourceControl, endAsked, mpa.AtomicRequestLen
	}
	if s.Op == fabric.OpWriteImm {
		m.end = endNothing
		t.push(q, m)
	}
	if s.Op == fabric.OpWriteImm || s.Op == fabric.OpSendImm {
		m = message{op: mpa.OpImmediate, pos: m.pos, source: sourceControl, end: endWR, length: mpa.ImmediateLen}
		if s.Flags&fabric.FlagSolicited != 0 {
			m.op = mpa.OpImmediateSE
		}
	}
	t.push(q, m)
	return true
}

func sendOpcode(s *core.Send) mpa.Opcode {
	switch inv, se := s.Op == fabric.OpSendInv, s.Flags&fabric.FlagSolicited != 0; {
	case inv && se:
		return mpa.OpSendSEInv
	case inv:
		return mpa.OpSendInv
	case se:
		return mpa.OpSendSE
	}
	return mpa.OpSend
}

// control writes the payload of a message that RDMAP itself reads.
func (q *QP) control(dst []byte, m *message) {
	switch m.op {
	case mpa.OpReadRequest:
		var r mpa.ReadRequest // of no bytes when it is the RTR frame
		if m.end == endAsked {
			s := q.Sends().At(m.pos)
			r = mpa.ReadRequest{Size: s.Length, SourceSTag: s.RKey, SourceTO: s.RemoteAddr}
			r.SinkSTag, r.SinkTO = q.sink(m.pos)
		}
		r.Put(dst)
	case mpa.OpAtomicRequest:
		const all = 1<<64 - 1
		s := q.Sends().At(m.pos)
		r := mpa.AtomicRequest{Op: mpa.FetchAdd, ID: m.pos, STag: s.RKey, TO: s.RemoteAddr, Data: s.SwapAdd}
		if s.Op == fabric.OpCompareSwap {
			r.Op, r.Mask, r.Compare, r.CompareMask = mpa.CmpSwap, all, s.Compare, all
		}
		r.Put(dst)
	case mpa.OpAtomicResponse:
		e := q.rsp.at(m.pos)
		mpa.PutAtomicResponse(dst, e.atomic.ID, e.original)
	default:
		s := q.Sends().At(m.pos)
		mpa.PutImmediate(dst, s.Imm, s.Op == fabric.OpSendImm)
	}
}

// sink is the STag and TO that the peer's Read Response will carry. They are
// only repeated by it: what it brings goes to the WR's SGEs, of which they name
// the beginning.
func (q *QP) sink(pos uint32) (stag uint32, to uint64) {
	if sges := q.Sends().SGEs(pos); len(sges) > 0 {
		return sges[0].LKey, sges[0].Addr
	}
	return 0, 0
}
