package core

import (
	"fmt"
	"net"

	"github.com/nvmf-go/nvmf/fabric"
)

// What is wrong with a WR at once. They are values, so that a caller who
// probes for room pays no allocation.
var (
	errSGECount  = fmt.Errorf("%w: more SGEs than the queue pair was made for", fabric.ErrInvalid)
	errSGEIndex  = fmt.Errorf("%w: the WR's SGEs are not inside the SGE slice", fabric.ErrInvalid)
	errOpcode    = fmt.Errorf("%w: not an operation of the send queue", fabric.ErrInvalid)
	errInline    = fmt.Errorf("%w: inline data larger than MaxInline, or of an operation that sends none", fabric.ErrInvalid)
	errLength    = fmt.Errorf("%w: the message is longer than the device allows", fabric.ErrInvalid)
	errNoORD     = fmt.Errorf("%w: the connection allows no RDMA READ or atomic (ORD is 0)", fabric.ErrInvalid)
	errAtomicSGE = fmt.Errorf("%w: an atomic needs one SGE of 8 bytes", fabric.ErrInvalid)
	errState     = fmt.Errorf("%w: the queue pair is not connected", fabric.ErrInvalid)
	errSRQ       = fmt.Errorf("%w: the queue pair receives from an SRQ", fabric.ErrInvalid)
	errWindow    = fmt.Errorf("%w: the bind is empty or outside of the region", fabric.ErrInvalid)
	errForeign   = fmt.Errorf("%w: made by another device", fabric.ErrInvalid)
)

func (q *QP) postError(op string, cause error) error {
	return &fabric.OpError{Op: op, Device: q.dev.name, QPN: q.num, Err: cause}
}

// sendError is the error of a post to the send queue.
func (q *QP) sendError(op string, cause error) error {
	if cause == fabric.ErrQueueFull { //nolint:errorlint // the very value, on the data path
		return q.sendFull
	}
	return q.postError(op, cause)
}

// checkState says whether WRs may be posted to the send queue. In the error
// state they may, to be flushed.
func (q *QP) checkState() error {
	if q.closed.Load() {
		return net.ErrClosed
	}
	switch q.state.Load() {
	case fabric.QPReadyToSend, fabric.QPSendQueueDrain, fabric.QPSendQueueError, fabric.QPError:
		return nil
	}
	return errState
}

// check says what is wrong with a send WR, given its SGEs and length.
func (q *QP) check(wr *fabric.SendWR, length uint64) error {
	switch wr.Op {
	case fabric.OpSend, fabric.OpSendImm, fabric.OpWrite, fabric.OpWriteImm, fabric.OpLocalInv:
	case fabric.OpSendInv:
		if !q.limits.SendInvalidate {
			return fabric.ErrNotSupported
		}
	case fabric.OpRead:
		if q.ord == 0 && q.state.Load() != fabric.QPError {
			return errNoORD
		}
		if q.limits.MaxReadSGE > 0 && int(wr.NumSGE) > q.limits.MaxReadSGE {
			return errSGECount
		}
	default:
		return errOpcode
	}
	if limit := q.limits.MaxMessage; limit > 0 && length > uint64(limit) || length > 1<<31 {
		return errLength
	}
	if wr.Flags&fabric.FlagInline != 0 && (length > uint64(q.sq.maxInline) || wr.Op == fabric.OpRead || wr.Op == fabric.OpLocalInv) {
		return errInline
	}
	return nil
}

// EnqueueSend checks wrs and copies them into the send queue, as
// fabric.QueuePair.PostSend says, without sending anything: the provider's
// PostSend calls it and then starts on what is new.
func (q *QP) EnqueueSend(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	if err := q.checkState(); err != nil {
		return 0, q.sendError("post send", err)
	}
	for n := range wrs {
		if err := q.enqueue(&wrs[n], sges); err != nil {
			return n, q.sendError("post send", err)
		}
	}
	return len(wrs), nil
}

func (q *QP) enqueue(wr *fabric.SendWR, sges []fabric.SGE) error {
	list, err := listOf(wr.FirstSGE, wr.NumSGE, sges, q.sq.maxSGE)
	if err != nil {
		return err
	}
	length := Total(list)
	if err := q.check(wr, length); err != nil {
		return err
	}
	if q.sq.Full() {
		return fabric.ErrQueueFull
	}
	q.sq.add(wr, list, uint32(length))
	return nil
}

// EnqueueAtomic is EnqueueSend for atomics (fabric.Atomics).
func (q *QP) EnqueueAtomic(wrs []fabric.AtomicWR, sges []fabric.SGE) (int, error) {
	if err := q.checkState(); err != nil {
		return 0, q.sendError("post atomic", err)
	}
	for n := range wrs {
		if err := q.enqueueAtomic(&wrs[n], sges); err != nil {
			return n, q.sendError("post atomic", err)
		}
	}
	return len(wrs), nil
}

func (q *QP) enqueueAtomic(wr *fabric.AtomicWR, sges []fabric.SGE) error {
	list, err := listOf(wr.FirstSGE, 1, sges, q.sq.maxSGE)
	switch {
	case !q.limits.Atomics:
		return fabric.ErrNotSupported
	case wr.Op != fabric.OpCompareSwap && wr.Op != fabric.OpFetchAdd || wr.Flags&fabric.FlagInline != 0:
		return errOpcode
	case err != nil || list[0].Length != AtomicSize:
		return errAtomicSGE
	case q.ord == 0 && q.state.Load() != fabric.QPError:
		return errNoORD
	case q.sq.Full():
		return fabric.ErrQueueFull
	}
	s := q.sq.add(&fabric.SendWR{ID: wr.ID, RemoteAddr: wr.RemoteAddr, RKey: wr.RKey, NumSGE: 1, Op: wr.Op, Flags: wr.Flags}, list, AtomicSize)
	s.Compare, s.SwapAdd = wr.Compare, wr.SwapAdd
	return nil
}

// EnqueueBind is EnqueueSend for a bind (fabric.WindowBinder). The provider
// runs it with RunLocal when its turn comes.
func (q *QP) EnqueueBind(w fabric.MemoryWindow, mr fabric.MemoryRegion, off, n int, a fabric.Access, id uint64, f fabric.SendFlags) (uint32, error) {
	win, ok := w.(*Window)
	reg, ok2 := mr.(*Region)
	err := q.checkState()
	switch {
	case err != nil:
	case !q.limits.MemoryWindows:
		err = fabric.ErrNotSupported
	case !ok || !ok2 || win.t != q.table || reg.t != q.table:
		err = errForeign
	case off < 0 || n <= 0 || off > len(reg.r.mem) || n > len(reg.r.mem)-off || f&fabric.FlagInline != 0:
		err = errWindow
	case q.sq.Full():
		err = fabric.ErrQueueFull
	}
	if err != nil {
		return 0, q.sendError("post bind", err)
	}
	key := win.NextKey()
	s := q.sq.add(&fabric.SendWR{ID: id, RemoteAddr: reg.r.addr + uint64(off), RKey: key, Imm: reg.key, Op: fabric.OpBind, Flags: f}, nil, 0)
	s.Compare, s.SwapAdd = uint64(n), uint64(a)
	return key, nil
}

// PostRecv posts receives to the QP's own queue (fabric.QueuePair). In the
// error state they are taken, to be flushed.
func (q *QP) PostRecv(wrs []fabric.RecvWR, sges []fabric.SGE) (int, error) {
	const op = "post receive"
	switch {
	case q.closed.Load():
		return 0, q.postError(op, net.ErrClosed)
	case q.srq != nil:
		return 0, q.postError(op, errSRQ)
	}
	n, err := q.rq.post(wrs, sges)
	switch {
	case err == nil:
		return n, nil
	case err == fabric.ErrQueueFull: //nolint:errorlint // the very value, on the data path
		return n, q.recvFull
	}
	return n, q.postError(op, err)
}
