package rc

import (
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// urgentAcks is how many request packets may wait for one acknowledgement, a
// quarter of our own window.
const urgentAcks = 64

// urgent says whether an answer is owed that must not wait.
func (r *responder) urgent() bool {
	return r.log.owed > 0 || r.nak != 0 || r.ack && r.held >= urgentAcks
}

// next makes the next answer. Answers leave in the order of their requests: an
// ACK or NAK would acknowledge READs and atomics before it, so those go first.
func (r *responder) next(p *Packet) bool {
	if e := r.log.next(); e != nil {
		return r.putResponse(p, e)
	}
	switch {
	case r.nak != 0:
		r.q.stats.NAKSent++
		r.putAck(p, r.nak, r.nakPSN)
		r.nak, r.missed, r.refused = 0, false, false
	case r.ack:
		r.putAck(p, wire.AckNoCredits, r.epsn.Prev())
	default:
		return false
	}
	r.ack, r.held = false, 0
	return true
}

// begin writes the BTH of an answer.
func (r *responder) begin(p *Packet, op wire.Opcode, seq psn.Value) {
	p.Header = p.Header[:op.Len()]
	wire.BTH(p.Header).Put(op, 0, wire.PadLen(p.Size), r.q.cfg.DestQPN, seq)
}

func (r *responder) putAck(p *Packet, s wire.Syndrome, seq psn.Value) {
	r.begin(p, wire.OpAck, seq)
	wire.AETH(p.Header[wire.BTHLen:]).Put(s, r.msn)
}

// putResponse makes the next packet of the answer to e.
func (r *responder) putResponse(p *Packet, e *entry) bool {
	if e.atomic {
		r.begin(p, wire.OpAtomicAck, e.first)
		wire.AETH(p.Header[wire.BTHLen:]).Put(wire.AckNoCredits, e.msn)
		wire.PutAtomicAck(p.Header[wire.OpAtomicAck.Info().ExtAt:], e.original)
		r.log.advance(e)
		return true
	}
	off := uint64(e.at) * uint64(r.q.cfg.MTU)
	if p.Size = int(min(uint64(e.length)-off, uint64(r.q.cfg.MTU))); p.Size > 0 {
		// Looked up for each packet: the key may have died meanwhile.
		b, f := r.q.CheckRemote(e.rkey, e.va+off, uint32(p.Size), fabric.AccessRemoteRead)
		switch {
		case f != core.FaultNone && e.answered:
			r.log.drop(e)
			return r.next(p)
		case f != core.FaultNone:
			return r.breakOff(p, e, f)
		}
		p.Data = append(p.Data, b)
	}
	op := readOpcodes[place(e.at == e.from, e.at == e.to-1)]
	r.begin(p, op, e.first.Add(e.at))
	if op.Info().Has(wire.HasAETH) {
		wire.AETH(p.Header[wire.BTHLen:]).Put(wire.AckNoCredits, e.msn)
	}
	r.log.advance(e)
	return true
}

var readOpcodes = [4]wire.Opcode{wire.OpReadRespFirst, wire.OpReadRespMid, wire.OpReadRespLast, wire.OpReadRespOnly}

// breakOff ends the answer to a READ whose memory is gone, and the QP.
func (r *responder) breakOff(p *Packet, e *entry, f core.Fault) bool {
	seq := e.first.Add(e.at)
	r.log.clear()
	if !r.refused { // else the NAK of a later request has failed the QP already
		r.refuse(wire.NakRemoteAccess, "READ: %v", f)
	}
	r.owe(wire.NakRemoteAccess, seq)
	p.Size = 0
	return r.next(p)
}
