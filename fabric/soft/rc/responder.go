package rc

import (
	"fmt"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// responder executes the peer's requests and owes it answers.
type responder struct {
	q *QP

	epsn psn.Value // of the request that is next in order
	msn  psn.Value // messages completed

	// The message being received, KindNone between messages.
	kind wire.Kind
	got  uint64 // bytes of it
	va   uint64 // WRITE: where its first byte goes
	left uint32 // WRITE: bytes to come
	rkey uint32

	// Answers owed. READ responses and atomic results are in log.
	ack     bool          // an ACK of everything before epsn
	held    int           // request packets that ACK stands for
	nak     wire.Syndrome // 0 is none
	nakPSN  psn.Value
	waiting bool // a NAK was made for epsn: drop what is behind until it comes
	missed  bool // something was dropped, and the NAK that says so is still here
	refused bool // the NAK owed is the QP's last word

	log log
}

func (r *responder) init(q *QP) {
	*r = responder{q: q, epsn: q.cfg.RecvPSN}
	r.log.init(q.cfg.IRD)
}

// receive takes a request.
func (r *responder) receive(p *wire.Packet) {
	switch d := p.BTH.PSN().Diff(r.epsn); {
	case d < 0:
		r.q.stats.Duplicates++
		r.duplicate(p)
	case d > 0:
		r.ahead()
	default:
		r.inOrder(p)
	}
}

// ahead drops a request that others are missing before. They are asked for
// once.
func (r *responder) ahead() {
	if !r.waiting {
		r.owe(wire.NakSequence, r.epsn)
		r.waiting = true
	}
	r.missed = r.nak != 0
}

// inOrder executes the request that is next. A NAK for it that has not left yet
// need not leave; but if that stood for others that were dropped, the first of
// them is asked for.
func (r *responder) inOrder(p *wire.Packet) {
	missed := r.missed
	r.waiting, r.missed, r.nak = false, false, 0
	r.execute(p)
	if missed && r.nak == 0 {
		r.ahead()
	}
}

// owe makes a NAK the next answer behind READ responses.
func (r *responder) owe(s wire.Syndrome, seq psn.Value) { r.nak, r.nakPSN = s, seq }

// refuse answers the request in order with a NAK that ends the QP.
func (r *responder) refuse(s wire.Syndrome, format string, args ...any) {
	r.owe(s, r.epsn)
	r.refused = true
	r.q.fail(fmt.Errorf("%w: refused the peer's request with %v: %s", fabric.ErrQPError, s, fmt.Sprintf(format, args...)))
}

// notReady answers the request in order with an RNR NAK.
func (r *responder) notReady() {
	r.owe(wire.RNRNak|wire.Syndrome(r.q.cfg.RNRTimer&31), r.epsn)
	r.waiting = true
}

// duplicate answers a request that was executed before: the answer was lost,
// or the network has repeated the request (9.7.5.2.4 and 9.7.5.2.5).
func (r *responder) duplicate(p *wire.Packet) {
	switch p.Info.Kind {
	case wire.KindRead:
		h := p.RETH()
		if r.log.replayRead(p.BTH.PSN(), h.VA(), h.RKey(), h.Length(), r.q.cfg.MTU) {
			return
		}
	case wire.KindAtomic:
		if r.log.replayAtomic(p.BTH.PSN()) {
			return
		}
	default:
		r.ack, r.held = true, r.held+1
		return
	}
	r.q.stats.Dropped++
}

// execute runs the request in order.
func (r *responder) execute(p *wire.Packet) {
	if !r.wellFormed(p) {
		return
	}
	switch p.Info.Kind {
	case wire.KindSend:
		r.send(p)
	case wire.KindWrite:
		r.write(p)
	case wire.KindRead:
		r.read(p)
	case wire.KindAtomic:
		r.atomic(p)
	}
}

// wellFormed checks the place of the packet in its message (9.7.4.1.2) and its
// length, which is the path MTU for all but the last (9.7.4.1.6).
func (r *responder) wellFormed(p *wire.Packet) bool {
	i, n, mtu := p.Info, len(p.Payload), r.q.cfg.MTU
	switch {
	case i.Has(wire.Start) != (r.kind == wire.KindNone):
		r.refuse(wire.NakInvalid, "%v out of place", p.Op)
	case !i.Has(wire.Start) && i.Kind != r.kind:
		r.refuse(wire.NakInvalid, "%v inside another message", p.Op)
	case !i.Has(wire.End) && n != mtu || n > mtu || !i.Has(wire.Start) && n == 0:
		r.refuse(wire.NakInvalid, "%v of %d bytes on a path of %d", p.Op, n, mtu)
	default:
		return true
	}
	return false
}

// accept moves on over a packet that was executed.
func (r *responder) accept(p *wire.Packet) {
	r.epsn = r.epsn.Next()
	if r.kind = p.Info.Kind; p.Info.Has(wire.End) {
		r.kind = wire.KindNone
		r.msn = r.msn.Next()
	}
	r.held++
	r.ack = r.ack || p.BTH.AckReq()
}

// send executes a packet of a SEND.
func (r *responder) send(p *wire.Packet) {
	if p.Info.Has(wire.Start) {
		if !r.q.TakeRecv() {
			r.notReady()
			return
		}
		r.got = 0
	}
	recv := r.q.Recv()
	if room := recv.Room(); uint64(len(p.Payload)) > room-r.got {
		r.failRecv(fabric.StatusLocalLength)
		r.refuse(wire.NakInvalid, "a SEND does not fit the receive of %d bytes", room)
		return
	}
	if n, f := r.q.Device().Table().Scatter(recv.SGEs, r.got, p.Payload); f != core.FaultNone || n != len(p.Payload) {
		r.failRecv(fabric.StatusLocalProtection)
		r.refuse(wire.NakRemoteOp, "the receive's memory is not accessible: %v", f)
		return
	}
	r.got += uint64(len(p.Payload))
	if p.Info.Has(wire.End) && !r.deliver(p, fabric.OpRecv) {
		return
	}
	r.accept(p)
}

// deliver completes the receive of a message, and ends the key it names.
func (r *responder) deliver(p *wire.Packet, op fabric.Opcode) bool {
	c := fabric.Completion{Op: op, ByteLen: uint32(r.got)}
	switch {
	case p.Info.Has(wire.HasImm):
		c.Imm, c.Flags = p.Imm(), fabric.CompletionImm
	case p.Info.Has(wire.HasIETH):
		c.Imm, c.Flags = p.InvalidateKey(), fabric.CompletionInvalidated
		if !r.q.Device().Table().Invalidate(r.q.Num(), c.Imm) {
			r.failRecv(fabric.StatusRemoteInvalidReq)
			r.refuse(wire.NakRemoteAccess, "a SEND invalidates the key 0x%x, which is not the peer's", c.Imm)
			return false
		}
	}
	r.q.CompleteRecv(c)
	return true
}

func (r *responder) failRecv(s fabric.Status) {
	r.q.CompleteRecv(fabric.Completion{Status: s, Op: fabric.OpRecv})
}

// write executes a packet of an RDMA WRITE.
func (r *responder) write(p *wire.Packet) {
	n := uint32(len(p.Payload))
	var b []byte // where the payload goes
	if p.Info.Has(wire.Start) {
		var ok bool
		if b, ok = r.beginWrite(p); !ok {
			return
		}
	}
	if n > r.left || p.Info.Has(wire.End) && n != r.left {
		r.refuse(wire.NakInvalid, "a WRITE carries other than the %d bytes it announced", r.got+uint64(r.left))
		return
	}
	imm := p.Info.Has(wire.HasImm)
	if imm && !r.q.TakeRecv() {
		r.notReady()
		return
	}
	if n > 0 && b == nil {
		// Looked up for each packet: the key may have died between them.
		var f core.Fault
		if b, f = r.q.CheckRemote(r.rkey, r.va+r.got, n, fabric.AccessRemoteWrite); f != core.FaultNone {
			r.refuse(wire.NakRemoteAccess, "WRITE: %v", f)
			return
		}
	}
	copy(b, p.Payload)
	r.got, r.left = r.got+uint64(n), r.left-n
	if imm && !r.deliver(p, fabric.OpRecvWriteImm) {
		return
	}
	r.accept(p)
}

// beginWrite checks and returns the whole range of a WRITE at its first packet.
func (r *responder) beginWrite(p *wire.Packet) (b []byte, ok bool) {
	h := p.RETH()
	if n := h.Length(); n > 0 {
		var f core.Fault
		if b, f = r.q.CheckRemote(h.RKey(), h.VA(), n, fabric.AccessRemoteWrite); f != core.FaultNone {
			r.refuse(wire.NakRemoteAccess, "WRITE of %d bytes: %v", n, f)
			return nil, false
		}
	}
	r.va, r.rkey, r.left, r.got = h.VA(), h.RKey(), h.Length(), 0
	return b, true
}

// maxRead is the longest message of the standard (9.4.4).
const maxRead = 1 << 31

// read accepts an RDMA READ: its responses are owed from here on.
func (r *responder) read(p *wire.Packet) {
	h := p.RETH()
	n := h.Length()
	if n > maxRead {
		r.refuse(wire.NakInvalid, "READ of %d bytes", n)
		return
	}
	if n > 0 {
		if _, f := r.q.CheckRemote(h.RKey(), h.VA(), n, fabric.AccessRemoteRead); f != core.FaultNone {
			r.refuse(wire.NakRemoteAccess, "READ of %d bytes: %v", n, f)
			return
		}
	}
	r.answer(entry{count: wire.Segments(n, r.q.cfg.MTU), va: h.VA(), rkey: h.RKey(), length: n})
}

// answer accepts a READ or an atomic, whose response acknowledges all that is
// before it.
func (r *responder) answer(e entry) {
	e.first, e.msn = r.epsn, r.msn.Next()
	if !r.log.add(e) {
		r.refuse(wire.NakInvalid, "more than %d READs and atomics at a time", r.q.cfg.IRD)
		return
	}
	r.epsn, r.msn = r.epsn.Add(e.count), e.msn
	r.ack, r.held = false, 0
}

// atomic executes an atomic and logs the result.
func (r *responder) atomic(p *wire.Packet) {
	h := p.AtomicETH()
	b, f := r.q.CheckRemote(h.RKey(), h.VA(), core.AtomicSize, fabric.AccessRemoteAtomic)
	if f != core.FaultNone {
		r.refuse(wire.NakRemoteAccess, "atomic: %v", f)
		return
	}
	if r.log.full() {
		r.refuse(wire.NakInvalid, "more than %d READs and atomics at a time", r.q.cfg.IRD)
		return
	}
	op := fabric.OpFetchAdd
	if p.Op == wire.OpCmpSwap {
		op = fabric.OpCompareSwap
	}
	old, ok := core.Atomic(op, b, h.Compare(), h.SwapAdd())
	if !ok {
		r.refuse(wire.NakInvalid, "atomic at 0x%x, which is not aligned", h.VA())
		return
	}
	r.answer(entry{count: 1, atomic: true, original: old})
}
