package rc

import (
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// The opcodes of a message by the place of the packet in it: first, middle,
// last, only.
var dataOpcodes = [...][4]wire.Opcode{
	fabric.OpSend:     {wire.OpSendFirst, wire.OpSendMiddle, wire.OpSendLast, wire.OpSendOnly},
	fabric.OpSendImm:  {wire.OpSendFirst, wire.OpSendMiddle, wire.OpSendLastImm, wire.OpSendOnlyImm},
	fabric.OpSendInv:  {wire.OpSendFirst, wire.OpSendMiddle, wire.OpSendLastInv, wire.OpSendOnlyInv},
	fabric.OpWrite:    {wire.OpWriteFirst, wire.OpWriteMiddle, wire.OpWriteLast, wire.OpWriteOnly},
	fabric.OpWriteImm: {wire.OpWriteFirst, wire.OpWriteMiddle, wire.OpWriteLastImm, wire.OpWriteOnlyImm},
}

// place is the index into a row of opcodes of packet i, when that is the first
// or the last of its message.
func place(first, last bool) int {
	switch {
	case first && last:
		return 3
	case last:
		return 2
	case first:
		return 0
	}
	return 1
}

// DataOpcode is the opcode of a packet of a SEND or WRITE, by whether it is the
// first and whether it is the last of its message (IBTA vol 1, table 38). Those of
// UC differ in wire.UC.
func DataOpcode(op fabric.Opcode, first, last bool) wire.Opcode {
	return dataOpcodes[op][place(first, last)]
}

// putData makes the packet at the cursor of a SEND or WRITE and returns the
// number of sequence numbers it takes, 0 when the memory is not accessible.
func (r *requester) putData(p *Packet, wr *core.Send) int {
	mtu := r.q.cfg.MTU
	off := uint64(r.idx) * uint64(mtu)
	size := int(min(uint64(wr.Length)-off, uint64(mtu)))
	last := off+uint64(size) == uint64(wr.Length)
	if !p.Gather(&r.q.QP, r.pos, off, size) {
		r.failLater(fabric.StatusLocalProtection)
		return 0
	}
	op := DataOpcode(wr.Op, r.idx == 0, last)
	info := op.Info()
	r.sent++
	var f wire.BTHFlags
	if last && wr.Flags&fabric.FlagSolicited != 0 {
		f = wire.Solicited
	}
	r.putBTH(p, op, f, size, last && !r.followed() || r.unacked() >= r.pace.data.size)
	if info.Has(wire.HasRETH) {
		wire.RETH(p.Header[wire.BTHLen:]).Put(wr.RemoteAddr, wr.RKey, wr.Length)
	}
	switch {
	case info.Has(wire.HasImm):
		wire.PutImm(p.Header[info.ExtAt:], wr.Imm)
	case info.Has(wire.HasIETH):
		wire.PutImm(p.Header[info.ExtAt:], wr.RKey)
	}
	return 1
}

// followed says that a message leaves right behind that of the cursor, and will
// be acknowledged with it: what is posted together asks for one answer. What is
// sent again asks for itself.
func (r *requester) followed() bool {
	sq, next := r.q.Sends(), r.pos+1
	if next == sq.Tail() || r.stopped && next == r.stop || r.nxt.Less(r.max) {
		return false
	}
	wr := sq.At(next)
	return !isLocal(wr.Op) && !isRead(wr.Op) && wr.Flags&fabric.FlagFence == 0 // those may have to wait
}

// putBTH begins the packet. An acknowledgement is asked for where ask says so
// and every so often.
func (r *requester) putBTH(p *Packet, op wire.Opcode, f wire.BTHFlags, size int, ask bool) {
	if r.unasked++; ask || r.unasked >= ackEvery {
		f |= wire.AckReq
		r.unasked = 0
	}
	p.Header = p.Header[:op.Len()]
	wire.BTH(p.Header).Put(op, f, wire.PadLen(size), r.q.cfg.DestQPN, r.nxt)
}

// putRead makes a READ request for the responses from the cursor to the end of
// its chunk.
func (r *requester) putRead(p *Packet, wr *core.Send) int {
	if r.q.Device().Table().Check(r.q.Sends().SGEs(r.pos), uint64(wr.Length), fabric.AccessLocalWrite) != core.FaultNone {
		r.failLater(fabric.StatusLocalProtection)
		return 0
	}
	n, mtu := r.chunkLeft(wr), r.q.cfg.MTU
	off := uint64(r.idx) * uint64(mtu)
	size := min(uint64(n)*uint64(mtu), uint64(wr.Length)-off)
	r.reads++
	r.asked += n
	r.putBTH(p, wire.OpReadRequest, 0, 0, true)
	wire.RETH(p.Header[wire.BTHLen:]).Put(wr.RemoteAddr+off, wr.RKey, uint32(size))
	return n
}

// putAtomic makes an atomic request.
func (r *requester) putAtomic(p *Packet, wr *core.Send) int {
	if r.q.Device().Table().Check(r.q.Sends().SGEs(r.pos), core.AtomicSize, fabric.AccessLocalWrite) != core.FaultNone {
		r.failLater(fabric.StatusLocalProtection)
		return 0
	}
	op := wire.OpFetchAdd
	if wr.Op == fabric.OpCompareSwap {
		op = wire.OpCmpSwap
	}
	r.reads++
	r.putBTH(p, op, 0, 0, true)
	wire.AtomicETH(p.Header[wire.BTHLen:]).Put(wr.RemoteAddr, wr.RKey, wr.SwapAdd, wr.Compare)
	return 1
}
