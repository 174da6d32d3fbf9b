package ud

import (
	"fmt"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// QP is a QP for datagrams. Everything but what core.QP lets any goroutine do
// belongs to the owner; Receive and Next touch registered memory and are called
// inside its guard.
type QP struct {
	core.QP
	handles *core.Handles
	mtu     int
	qkey    uint32
	nxt     psn.Value // counts datagrams; no receiver looks at it
	drops   fabric.Drops
}

// Start prepares a QP made by Init and takes it to RTS. mtu is the path MTU of
// the port in bytes.
func (q *QP) Start(handles *core.Handles, mtu int, qkey uint32) error {
	q.handles, q.mtu, q.qkey = handles, mtu, qkey
	if !q.States().Connect() {
		return fmt.Errorf("%w: the queue pair is in state %v", fabric.ErrInvalid, q.State())
	}
	return nil
}

// CheckQKey says whether a program may have a QP with that Q_Key.
func CheckQKey(qkey uint32) error {
	if qkey&core.PrivilegedQKey != 0 {
		return fmt.Errorf("%w: the Q_Key 0x%08x is for privileged users", fabric.ErrInvalid, qkey)
	}
	return nil
}

// MaxDatagram is the longest message in bytes.
func (q *QP) MaxDatagram() int { return q.mtu }

// Drops says what was received and not delivered.
func (q *QP) Drops() fabric.Drops { return q.drops }

// PostSend fails: a datagram says where it goes.
func (q *QP) PostSend([]fabric.SendWR, []fabric.SGE) (int, error) { return 0, q.RefuseSend() }

// Enqueue checks WRs and copies them into the send queue.
func (q *QP) Enqueue(wrs []fabric.DatagramWR, sges []fabric.SGE) (int, error) {
	return q.EnqueueDatagrams(wrs, sges, q.handles, q.mtu)
}

// Next makes the next datagram and says where it goes; nil when there is none.
// WRs that cannot be sent end in here.
func (q *QP) Next(p *rc.Packet) *core.Handle {
	p.Data, p.Size = p.Data[:0], 0
	switch q.State() {
	case fabric.QPReadyToSend:
	case fabric.QPSendQueueError:
		q.FlushSends()
		return nil
	default:
		return nil
	}
	sq := q.Sends()
	if sq.Pending() == 0 {
		return nil
	}
	wr := sq.At(sq.Next())
	to := q.handles.Get(wr.Aux)
	switch {
	case to == nil: // closed too early
		q.FailSend(fabric.StatusLocalQPOp)
		return nil
	case !p.Gather(&q.QP, sq.Next(), 0, int(wr.Length)):
		q.FailSend(fabric.StatusLocalProtection)
		return nil
	}
	q.put(p, wr)
	return to
}

func (q *QP) put(p *rc.Packet, wr *core.Send) {
	op, f, qkey := wire.OpUDSendOnly, wire.BTHFlags(0), wr.RKey
	if wr.Op == fabric.OpSendImm {
		op = wire.OpUDSendOnlyImm
	}
	if wr.Flags&fabric.FlagSolicited != 0 {
		f = wire.Solicited
	}
	if qkey&core.PrivilegedQKey != 0 {
		qkey = q.qkey
	}
	p.Header = p.Header[:op.Len()]
	wire.BTH(p.Header).Put(op, f, wire.PadLen(p.Size), uint32(wr.RemoteAddr), q.nxt)
	wire.DETH(p.Header[wire.BTHLen:]).Put(qkey, q.Num())
	if op == wire.OpUDSendOnlyImm {
		wire.PutImm(p.Header[op.Info().ExtAt:], wr.Imm)
	}
	q.nxt = q.nxt.Next()
	q.CompleteSend(fabric.StatusSuccess, 0)
}

// Receive takes a packet for this QP, whose ICRC was right, and the header that
// goes in front of it, wire.GRHLen bytes. Nothing of either is referred to
// afterwards.
func (q *QP) Receive(p *wire.Packet, grh []byte) {
	switch {
	case !q.Receives() || !p.Info.Has(wire.HasDETH) || len(p.Payload) > wire.MTU4096.Bytes():
		q.drops.Malformed++
	case p.DETH().QKey() != q.qkey:
		q.drops.QKey++
	case !q.TakeRecv():
		q.drops.NoReceive++
	case uint64(wire.GRHLen+len(p.Payload)) > q.Recv().Room():
		q.tooLong()
	default:
		q.deliver(p, grh)
	}
}

// tooLong drops a message for which the receive has no room. The receive serves
// the next; one from an SRQ ends in an error (IBTA vol 1, 9.9.3, classes D and E).
func (q *QP) tooLong() {
	q.drops.TooLong++
	if q.Shares() {
		q.CompleteRecv(fabric.Completion{Status: fabric.StatusRemoteInvalidReq, Op: fabric.OpRecv})
	}
}

func (q *QP) deliver(p *wire.Packet, grh []byte) {
	t, sges := q.Device().Table(), q.Recv().SGEs
	_, f := t.Scatter(sges, 0, grh[:wire.GRHLen])
	if f == core.FaultNone {
		_, f = t.Scatter(sges, wire.GRHLen, p.Payload)
	}
	if f != core.FaultNone {
		q.CompleteRecv(fabric.Completion{Status: fabric.StatusLocalProtection, Op: fabric.OpRecv})
		q.States().Set(fabric.QPError)
		return
	}
	c := fabric.Completion{Op: fabric.OpRecv, ByteLen: uint32(wire.GRHLen + len(p.Payload)), SrcQPN: p.DETH().SrcQP(), Flags: fabric.CompletionGRH}
	if p.Info.Has(wire.HasImm) {
		c.Imm, c.Flags = p.Imm(), c.Flags|fabric.CompletionImm
	}
	q.CompleteRecv(c)
}
