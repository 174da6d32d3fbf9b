package uc

import (
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// Receive takes a packet for this QP, whose ICRC was right. Nothing of it is
// referred to afterwards.
func (q *QP) Receive(p *wire.Packet) {
	if !q.Receives() || p.Op.Service() != wire.UC {
		q.drops.Malformed++
		return
	}
	switch start := p.Info.Has(wire.Start); {
	case !start && (q.kind == wire.KindNone || p.BTH.PSN() != q.epsn || p.Info.Kind != q.kind):
		q.abort(&q.drops.Lost)
		return
	case start && q.kind != wire.KindNone:
		q.abort(&q.drops.Lost) // its last packet is missing
	}
	q.epsn = p.BTH.PSN().Next()
	if n := len(p.Payload); n > q.cfg.MTU || !p.Info.Has(wire.End) && n != q.cfg.MTU || !p.Info.Has(wire.Start) && n == 0 {
		q.abort(&q.drops.Malformed)
		return
	}
	if p.Info.Kind == wire.KindSend {
		q.send(p)
	} else {
		q.write(p)
	}
}

// abort drops the message being received, or the packet of one that was dropped
// before, and says why. Its receive serves the next message; one from an SRQ
// ends in an error (IBTA vol 1, 9.9.3, classes D and E).
func (q *QP) abort(why *uint64) {
	*why++
	q.kind = wire.KindNone
	if q.Recv().Held && q.Shares() {
		q.CompleteRecv(fabric.Completion{Status: fabric.StatusRemoteInvalidReq, Op: fabric.OpRecv})
	}
}

// accept moves on over a packet that was executed.
func (q *QP) accept(p *wire.Packet) {
	if q.kind = p.Info.Kind; p.Info.Has(wire.End) {
		q.kind = wire.KindNone
	}
}

// send executes a packet of a SEND.
func (q *QP) send(p *wire.Packet) {
	if p.Info.Has(wire.Start) {
		if !q.TakeRecv() {
			q.abort(&q.drops.NoReceive)
			return
		}
		q.got = 0
	}
	recv := q.Recv()
	if uint64(len(p.Payload)) > recv.Room()-q.got {
		q.abort(&q.drops.TooLong)
		return
	}
	if n, f := q.Device().Table().Scatter(recv.SGEs, q.got, p.Payload); f != core.FaultNone || n != len(p.Payload) {
		q.CompleteRecv(fabric.Completion{Status: fabric.StatusLocalProtection, Op: fabric.OpRecv})
		q.kind = wire.KindNone
		q.States().Set(fabric.QPError)
		return
	}
	q.got += uint64(len(p.Payload))
	if p.Info.Has(wire.End) {
		q.deliver(p, fabric.OpRecv)
	}
	q.accept(p)
}

// deliver completes the receive of a message.
func (q *QP) deliver(p *wire.Packet, op fabric.Opcode) {
	c := fabric.Completion{Op: op, ByteLen: uint32(q.got)}
	if p.Info.Has(wire.HasImm) {
		c.Imm, c.Flags = p.Imm(), fabric.CompletionImm
	}
	q.CompleteRecv(c)
}

// write executes a packet of an RDMA WRITE. The key is looked up for each, as it
// may have died between them.
func (q *QP) write(p *wire.Packet) {
	n := uint32(len(p.Payload))
	if p.Info.Has(wire.Start) && !q.beginWrite(p) {
		q.abort(&q.drops.Access)
		return
	}
	if n > q.left || p.Info.Has(wire.End) && n != q.left {
		q.abort(&q.drops.Malformed)
		return
	}
	imm := p.Info.Has(wire.HasImm)
	if imm && !q.TakeRecv() {
		q.abort(&q.drops.NoReceive)
		return
	}
	if n > 0 {
		b, f := q.CheckRemote(q.rkey, q.va+q.got, n, fabric.AccessRemoteWrite)
		if f != core.FaultNone {
			q.abort(&q.drops.Access)
			return
		}
		copy(b, p.Payload)
	}
	q.got, q.left = q.got+uint64(n), q.left-n
	if imm {
		q.deliver(p, fabric.OpRecvWriteImm)
	}
	q.accept(p)
}

// beginWrite checks the whole range of a WRITE at its first packet.
func (q *QP) beginWrite(p *wire.Packet) bool {
	h := p.RETH()
	q.got, q.va, q.rkey, q.left = 0, h.VA(), h.RKey(), h.Length()
	if q.left == 0 {
		return true
	}
	_, f := q.CheckRemote(q.rkey, q.va, q.left, fabric.AccessRemoteWrite)
	return f == core.FaultNone
}
