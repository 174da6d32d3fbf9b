//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
)

// queuePair implements fabric.QueuePair, fabric.Atomics and
// fabric.WindowBinder.
type queuePair struct {
	// Constant.
	c         *conn
	num       uint32
	maxInline int
	srq       bool
	sendFull  error // errors made once, for they may come often
	recvFull  error

	qp *C.struct_ibv_qp // the owner's; nil when closed
}

// queueFull is what a driver answers when a queue has no room.
const queueFull = int(unix.ENOMEM)

func newQueuePair(c *conn, qp *C.struct_ibv_qp, maxInline int) *queuePair {
	q := &queuePair{c: c, qp: qp, num: uint32(qp.qp_num), maxInline: maxInline, srq: c.cfg.SRQ != nil}
	q.sendFull = q.opError("post send", fabric.ErrQueueFull)
	q.recvFull = q.opError("post receive", fabric.ErrQueueFull)
	return q
}

func (q *queuePair) opError(op string, err error) error {
	return &fabric.OpError{Op: op, Device: q.c.d.name, QPN: q.num, Err: err}
}

func (q *queuePair) Num() uint32    { return q.num }
func (q *queuePair) MaxInline() int { return q.maxInline }

// State asks the device, with a system call. A closed QP is in RESET.
func (q *queuePair) State() fabric.QPState {
	if q.qp == nil {
		return fabric.QPReset
	}
	s := C.vb_qp_state(q.qp)
	if s < 0 {
		return fabric.QPError
	}
	return fabric.QPState(s)
}

func sgePointer(sges []fabric.SGE) *C.struct_ibv_sge {
	return (*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(sges)))
}

// PostSend works in the error state too: what is posted then is flushed.
func (q *queuePair) PostSend(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	if err := q.postable(); err != nil || len(wrs) == 0 {
		return 0, err
	}
	return q.posted(int64(C.vb_post_send(q.qp, (*C.struct_vb_send_wr)(unsafe.Pointer(&wrs[0])), C.uint32_t(len(wrs)), sgePointer(sges), C.uint32_t(len(sges)))), q.sendFull)
}

// PostAtomic fails as PostSend does, and with ErrNotSupported on a device
// without atomics.
func (q *queuePair) PostAtomic(wrs []fabric.AtomicWR, sges []fabric.SGE) (int, error) {
	if !q.c.d.info.Limits.Atomics {
		return 0, q.opError("post atomic", fabric.ErrNotSupported)
	}
	if err := q.postable(); err != nil || len(wrs) == 0 {
		return 0, err
	}
	return q.posted(int64(C.vb_post_atomic(q.qp, (*C.struct_vb_atomic_wr)(unsafe.Pointer(&wrs[0])), C.uint32_t(len(wrs)), sgePointer(sges), C.uint32_t(len(sges)))), q.sendFull)
}

// PostRecv fails with ErrInvalid on a QP with an SRQ.
func (q *queuePair) PostRecv(wrs []fabric.RecvWR, sges []fabric.SGE) (int, error) {
	if q.srq {
		return 0, q.opError("post receive", fmt.Errorf("%w: the QP has an SRQ", fabric.ErrInvalid))
	}
	if err := q.postable(); err != nil || len(wrs) == 0 {
		return 0, err
	}
	return q.posted(int64(C.vb_post_recv(q.qp, (*C.struct_vb_recv_wr)(unsafe.Pointer(&wrs[0])), C.uint32_t(len(wrs)), sgePointer(sges), C.uint32_t(len(sges)))), q.recvFull)
}

// PostBind gives the window a new key. It fails with ErrInvalid when the range
// is not in the region.
func (q *queuePair) PostBind(w fabric.MemoryWindow, mr fabric.MemoryRegion, off, n int, a fabric.Access, id uint64, f fabric.SendFlags) (uint32, error) {
	mw, ok := w.(*memoryWindow)
	r, ok2 := mr.(*memoryRegion)
	if !ok || !ok2 || mw.mw == nil || r.mr == nil {
		return 0, q.opError("bind", fmt.Errorf("%w: not an open window and region of this provider", fabric.ErrInvalid))
	}
	if size := r.mem.Len(); off < 0 || n < 0 || off > size || n > size-off {
		return 0, q.opError("bind", fmt.Errorf("%w: [%d, +%d) of %d bytes", fabric.ErrInvalid, off, n, size))
	}
	if err := q.postable(); err != nil {
		return 0, err
	}
	key := mw.nextKey()
	e := C.vb_post_bind(q.qp, mw.mw, C.uint32_t(key), r.mr, C.uint64_t(r.mem.Addr()+uint64(off)), C.uint64_t(n), accessFlags(a), C.uint64_t(id), C.uint8_t(f))
	if _, err := q.posted(-int64(e)<<32, q.sendFull); err != nil {
		return 0, err
	}
	mw.rkey = key
	return key, nil
}

func (q *queuePair) postable() error {
	if q.qp == nil {
		return q.opError("post", errClosed)
	}
	return nil
}

// posted takes a result of the shim apart. A WR posted in the error state, or
// while the QP went there, may have missed the flush (rxe): pushing the QP once
// more makes it complete.
func (q *queuePair) posted(r int64, full error) (int, error) {
	n, e := int(uint32(r)), int(r>>32)
	left := q.c.left.Load()
	if left {
		C.vb_qp_error(q.qp)
	}
	switch {
	case e == 0:
		return n, nil
	case e == queueFull:
		return n, full
	case left:
		return n, q.opError("post", fmt.Errorf("%w: %w", fabric.ErrQPError, errno(e)))
	}
	return n, q.opError("post", errno(e))
}
