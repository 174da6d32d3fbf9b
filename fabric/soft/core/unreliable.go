package core

import (
	"fmt"
	"net"

	"github.com/nvmf-go/nvmf/fabric"
)

// What is wrong with a WR of an unreliable service at once.
var (
	errService     = fmt.Errorf("%w: not an operation of the QP's transport service", fabric.ErrInvalid)
	errDatagram    = fmt.Errorf("%w: the datagram is longer than the path MTU", fabric.ErrInvalid)
	errHandle      = fmt.Errorf("%w: the address handle is not open", fabric.ErrInvalid)
	errDestination = fmt.Errorf("%w: not the number of a QP for datagrams", fabric.ErrInvalid)
)

// PrivilegedQKey is the bit of a Q_Key that belongs to privileged users (IBTA
// vol 1, 10.2.5).
const PrivilegedQKey = 1 << 31

// ConnConfig is what Init takes for a QP of an unreliable service.
func ConnConfig(c *fabric.UnreliableConfig) *fabric.ConnConfig {
	return &fabric.ConnConfig{
		SendCQ: c.SendCQ, RecvCQ: c.RecvCQ, SRQ: c.SRQ, SendDepth: c.SendDepth, RecvDepth: c.RecvDepth,
		MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE, MaxInline: c.MaxInline, TrafficClass: c.TrafficClass,
	}
}

// EnqueueUnreliable is EnqueueSend for unreliable connections: SEND and WRITE,
// with immediate or without.
func (q *QP) EnqueueUnreliable(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	for i := range wrs {
		switch wrs[i].Op {
		case fabric.OpSend, fabric.OpSendImm, fabric.OpWrite, fabric.OpWriteImm:
			continue
		}
		n, err := q.EnqueueSend(wrs[:i], sges)
		if err == nil {
			err = q.postError("post send", errService)
		}
		return n, err
	}
	return q.EnqueueSend(wrs, sges)
}

// RefuseSend is PostSend of a QP whose WRs are datagrams.
func (q *QP) RefuseSend() error { return q.postError("post send", errService) }

// EnqueueDatagrams is EnqueueSend for datagrams of up to limit bytes. The WR is
// found in the queue with the handle as Aux, QPN as RemoteAddr and QKey as RKey.
func (q *QP) EnqueueDatagrams(wrs []fabric.DatagramWR, sges []fabric.SGE, handles *Handles, limit int) (int, error) {
	const op = "post datagram"
	if err := q.checkState(); err != nil {
		return 0, q.sendError(op, err)
	}
	for n := range wrs {
		if err := q.enqueueDatagram(&wrs[n], sges, handles, limit); err != nil {
			return n, q.sendError(op, err)
		}
	}
	return len(wrs), nil
}

func (q *QP) enqueueDatagram(wr *fabric.DatagramWR, sges []fabric.SGE, handles *Handles, limit int) error {
	list, err := listOf(wr.FirstSGE, wr.NumSGE, sges, q.sq.maxSGE)
	if err != nil {
		return err
	}
	length := Total(list)
	switch {
	case wr.Op != fabric.OpSend && wr.Op != fabric.OpSendImm:
		return errService
	case length > uint64(limit):
		return errDatagram
	case wr.Flags&fabric.FlagInline != 0 && length > uint64(q.sq.maxInline):
		return errInline
	case wr.QPN < firstQPN || wr.QPN > lastQPN:
		return errDestination
	case handles.Get(wr.Handle) == nil:
		return errHandle
	case q.sq.Full():
		return fabric.ErrQueueFull
	}
	s := q.sq.add(&fabric.SendWR{
		ID: wr.ID, RemoteAddr: uint64(wr.QPN), RKey: wr.QKey, Imm: wr.Imm, NumSGE: wr.NumSGE, Op: wr.Op, Flags: wr.Flags,
	}, list, uint32(length))
	s.Aux = wr.Handle
	return nil
}

// Receives says whether the QP takes messages (IBTA vol 1, 10.3.1).
func (q *QP) Receives() bool {
	switch q.state.Load() {
	case fabric.QPReadyToReceive, fabric.QPReadyToSend, fabric.QPSendQueueDrain, fabric.QPSendQueueError:
		return true
	}
	return false
}

// Shares says whether receives come from an SRQ.
func (q *QP) Shares() bool { return q.srq != nil }

// FailSend ends the oldest WR with s and takes an unreliable QP to the state
// SQE: the WRs behind it are flushed.
func (q *QP) FailSend(s fabric.Status) {
	if q.sq.Pending() > 0 {
		q.CompleteSend(s, 0)
	}
	q.state.Set(fabric.QPSendQueueError)
	q.FlushSends()
}

// FlushSends ends the WRs of the send queue with StatusFlushed, in order.
func (q *QP) FlushSends() {
	for q.sq.Pending() > 0 {
		q.CompleteSend(fabric.StatusFlushed, 0)
	}
}

// Recover takes the QP from SQE to RTS (fabric.Stopper).
func (q *QP) Recover() error {
	const op = "recover"
	if q.closed.Load() {
		return q.postError(op, net.ErrClosed)
	}
	if q.state.Load() == fabric.QPSendQueueError {
		q.FlushSends()
		if q.state.Set(fabric.QPReadyToSend) {
			return nil
		}
	}
	return q.postError(op, fmt.Errorf("%w: the queue pair is in state %v", fabric.ErrInvalid, q.state.Load()))
}
