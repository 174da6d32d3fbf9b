package uc

import (
	"fmt"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// Config is what the two ends agreed on.
type Config struct {
	MTU     int // path MTU in bytes: 256, 512, 1024, 2048 or 4096
	DestQPN uint32
	SendPSN psn.Value // of our first packet
	RecvPSN psn.Value // of the peer's
}

// ConfigOf checks the attributes that a program gave. limit is the device's
// path MTU. The error wraps fabric.ErrInvalid.
func ConfigOf(p *fabric.UnreliablePeer, limit int) (Config, error) {
	mtu := p.MTU
	if mtu == 0 {
		mtu = limit
	}
	switch {
	case wire.MTUOf(mtu).Bytes() != mtu || mtu > limit:
		return Config{}, fmt.Errorf("%w: a path MTU of %d bytes, the device's is %d", fabric.ErrInvalid, mtu, limit)
	case p.QPN <= wire.GSIQP || p.QPN > psn.Mask:
		return Config{}, fmt.Errorf("%w: the peer's QP number %d", fabric.ErrInvalid, p.QPN)
	case p.SendPSN > psn.Mask || p.RecvPSN > psn.Mask:
		return Config{}, fmt.Errorf("%w: sequence numbers have 24 bits", fabric.ErrInvalid)
	}
	return Config{MTU: mtu, DestQPN: p.QPN, SendPSN: psn.Value(p.SendPSN), RecvPSN: psn.Value(p.RecvPSN)}, nil
}

// QP is an unreliable connected QP. Everything but what core.QP lets any
// goroutine do belongs to the owner; Receive and Next touch registered memory
// and are called inside its guard.
type QP struct {
	core.QP
	cfg   Config
	drops fabric.Drops

	// Requester. The WR under way is the oldest that has not completed.
	nxt psn.Value
	off uint64 // bytes of it that were sent
	mid bool   // some of its packets were

	// Responder.
	epsn psn.Value
	kind wire.Kind // of the message being received, KindNone between messages
	got  uint64    // bytes of it
	va   uint64    // WRITE: where its first byte goes
	left uint32    // WRITE: bytes to come
	rkey uint32
}

// Start prepares a QP made by Init, before its state becomes RTR.
func (q *QP) Start(cfg Config) {
	q.cfg, q.nxt, q.epsn = cfg, cfg.SendPSN, cfg.RecvPSN
}

// Config is what Start was given.
func (q *QP) Config() *Config { return &q.cfg }

// Drops says what was received and not delivered.
func (q *QP) Drops() fabric.Drops { return q.drops }

// Next makes the next packet. It is false when there is none; WRs that cannot be
// sent end in here.
func (q *QP) Next(p *rc.Packet) bool {
	p.Data, p.Size = p.Data[:0], 0
	sq := q.Sends()
	switch q.State() {
	case fabric.QPReadyToSend:
	case fabric.QPSendQueueError:
		q.FlushSends()
		return false
	default:
		return false
	}
	if sq.Pending() == 0 {
		return false
	}
	wr := sq.At(sq.Next())
	size := int(min(uint64(wr.Length)-q.off, uint64(q.cfg.MTU)))
	if !p.Gather(&q.QP, sq.Next(), q.off, size) {
		q.mid, q.off = false, 0
		q.FailSend(fabric.StatusLocalProtection)
		return false
	}
	q.put(p, wr, size)
	return true
}

// put makes the packet of size bytes at the cursor and moves on.
func (q *QP) put(p *rc.Packet, wr *core.Send, size int) {
	first, last := !q.mid, q.off+uint64(size) == uint64(wr.Length)
	op := wire.UC | rc.DataOpcode(wr.Op, first, last)
	info := op.Info()
	var f wire.BTHFlags
	if last && wr.Flags&fabric.FlagSolicited != 0 {
		f = wire.Solicited
	}
	p.Header = p.Header[:op.Len()]
	wire.BTH(p.Header).Put(op, f, wire.PadLen(size), q.cfg.DestQPN, q.nxt)
	if info.Has(wire.HasRETH) {
		wire.RETH(p.Header[wire.BTHLen:]).Put(wr.RemoteAddr, wr.RKey, wr.Length)
	}
	if info.Has(wire.HasImm) {
		wire.PutImm(p.Header[info.ExtAt:], wr.Imm)
	}
	q.nxt = q.nxt.Next()
	q.off, q.mid = q.off+uint64(size), true
	if last {
		q.off, q.mid = 0, false
		q.CompleteSend(fabric.StatusSuccess, 0)
	}
}
