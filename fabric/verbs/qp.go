//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"cmp"
	"fmt"
	"sync/atomic"
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
	iwarp     bool
	sendFull  error // errors made once, for they may come often
	recvFull  error
	inError   error

	// The owner's.
	qp      *C.struct_ibv_qp // nil when closed
	sq      *C.struct_vb_queue
	rq      *C.struct_vb_queue     // the SRQ's, when there is one
	windows map[*memoryWindow]bool // bound through this QP

	mode    atomic.Uint32
	noReads atomic.Bool // ORD is 0: they would wait for ever
}

// Modes of a QP: what may be posted. They only move forward.
const (
	modeSetup   = iota // receives
	modeOpen           // all
	modeChecked        // sends that pass impossible
	modeLeft           // nothing: the connection has left the connected state
	modeClosed         // nothing: the QP is destroyed
)

// open allows sends. They are checked one by one only where some operation is
// impossible.
func (q *queuePair) open() {
	if q.iwarp {
		q.advance(modeSetup, modeChecked)
	} else {
		q.advance(modeSetup, modeOpen)
	}
}

// forbidReads is for a connection with ORD 0.
func (q *queuePair) forbidReads() {
	q.noReads.Store(true)
	q.advance(modeOpen, modeChecked)
}

// advance moves from one mode to the next, unless the connection has left.
func (q *queuePair) advance(from, to uint32) { q.mode.CompareAndSwap(from, to) }

// queueFull is what a driver answers when a queue has no room.
const queueFull = int(unix.ENOMEM)

// newQueuePair makes what the QP needs besides the device's object.
func newQueuePair(c *conn) (*queuePair, error) {
	q := &queuePair{c: c, srq: c.cfg.SRQ != nil, iwarp: c.d.info.Transport == fabric.TransportIWARP}
	var err error
	if q.sq, err = C.vb_new_queue(C.uint32_t(c.cfg.SendDepth), C.uint32_t(c.cfg.MaxSendSGE), 0); q.sq == nil {
		return nil, lastErrno(err)
	}
	if q.srq {
		q.rq = c.cfg.SRQ.(*sharedReceiveQueue).queue
		C.vb_ref(q.rq)
		return q, nil
	}
	if q.rq, err = C.vb_new_queue(C.uint32_t(c.cfg.RecvDepth), C.uint32_t(c.cfg.MaxRecvSGE), 0); q.rq == nil {
		C.vb_unref(q.sq)
		return nil, lastErrno(err)
	}
	return q, nil
}

// made takes the device's object.
func (q *queuePair) made(qp *C.struct_ibv_qp, maxInline int) {
	q.qp, q.num, q.maxInline = qp, uint32(qp.qp_num), maxInline
	q.sq.max_inline = C.uint32_t(maxInline)
	q.sendFull = q.opError("post send", fabric.ErrQueueFull)
	q.recvFull = q.opError("post receive", fabric.ErrQueueFull)
	q.inError = q.opError("post", fabric.ErrQPError)
}

// freeQueues is for a QP whose device object could not be made.
func (q *queuePair) freeQueues() {
	C.vb_unref(q.sq)
	C.vb_unref(q.rq)
}

func (q *queuePair) opError(op string, err error) error {
	return &fabric.OpError{Op: op, Device: q.c.d.name, QPN: q.num, Err: err}
}

func (q *queuePair) Num() uint32    { return q.num }
func (q *queuePair) MaxInline() int { return q.maxInline }

// State asks the device, with a system call, unless it is known. A closed QP is
// in RESET. iWARP drivers do not all tell (siw).
func (q *queuePair) State() fabric.QPState {
	m := q.mode.Load()
	switch {
	case m == modeClosed:
		return fabric.QPReset
	case m == modeLeft:
		return fabric.QPError
	case q.iwarp && m == modeSetup:
		return fabric.QPInit
	case q.iwarp:
		return fabric.QPReadyToSend
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

// PostSend fails with ErrQPError once the connection has left the connected
// state, and with ErrInvalid for an RDMA READ when ORD is 0.
func (q *queuePair) PostSend(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	if q.mode.Load() == modeOpen {
		return q.postSend(wrs, sges)
	}
	if err := q.sendable(); err != nil {
		return 0, err
	}
	for i := range wrs {
		if err := q.impossible(&wrs[i]); err != nil {
			n, postErr := q.postSend(wrs[:i], sges)
			return n, cmp.Or(postErr, err)
		}
	}
	return q.postSend(wrs, sges)
}

// impossible is why a QP in modeChecked cannot do the WR, or nil.
func (q *queuePair) impossible(w *fabric.SendWR) error {
	switch w.Op {
	case fabric.OpRead:
		if q.noReads.Load() {
			return q.opError("post", errNoReads)
		}
	case fabric.OpSendImm, fabric.OpWriteImm:
		if q.iwarp {
			return q.opError("post", fmt.Errorf("%w: iWARP carries no immediates here", fabric.ErrNotSupported))
		}
	}
	return nil
}

var errNoReads = fmt.Errorf("%w: the peer answers no RDMA READs or atomics (ORD 0)", fabric.ErrInvalid)

func (q *queuePair) postSend(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	return q.posted(int64(C.vb_post_send(q.qp, q.sq, (*C.struct_vb_send_wr)(unsafe.Pointer(&wrs[0])), C.uint32_t(len(wrs)), sgePointer(sges), C.uint32_t(len(sges)))), q.sendFull)
}

// PostAtomic fails as PostSend does, and with ErrNotSupported on a device
// without atomics.
func (q *queuePair) PostAtomic(wrs []fabric.AtomicWR, sges []fabric.SGE) (int, error) {
	if !q.c.d.info.Limits.Atomics {
		return 0, q.opError("post atomic", fabric.ErrNotSupported)
	}
	if err := q.sendable(); err != nil {
		return 0, err
	}
	if q.noReads.Load() {
		return 0, q.opError("post", errNoReads)
	}
	if len(wrs) == 0 {
		return 0, nil
	}
	return q.posted(int64(C.vb_post_atomic(q.qp, q.sq, (*C.struct_vb_atomic_wr)(unsafe.Pointer(&wrs[0])), C.uint32_t(len(wrs)), sgePointer(sges), C.uint32_t(len(sges)))), q.sendFull)
}

// PostRecv fails with ErrInvalid on a QP with an SRQ.
func (q *queuePair) PostRecv(wrs []fabric.RecvWR, sges []fabric.SGE) (int, error) {
	if q.srq {
		return 0, q.opError("post receive", fmt.Errorf("%w: the QP has an SRQ", fabric.ErrInvalid))
	}
	if err := q.ended(); err != nil || len(wrs) == 0 {
		return 0, err
	}
	return q.posted(int64(C.vb_post_recv(q.qp, q.rq, (*C.struct_vb_recv_wr)(unsafe.Pointer(&wrs[0])), C.uint32_t(len(wrs)), sgePointer(sges), C.uint32_t(len(sges)))), q.recvFull)
}

// PostBind gives the window a new key. It fails with ErrInvalid when the range
// is empty or not in the region.
func (q *queuePair) PostBind(w fabric.MemoryWindow, mr fabric.MemoryRegion, off, n int, a fabric.Access, id uint64, f fabric.SendFlags) (uint32, error) {
	mw, ok := w.(*memoryWindow)
	r, ok2 := mr.(*memoryRegion)
	if !ok || !ok2 || mw.closed || r.mr == nil {
		return 0, q.opError("bind", fmt.Errorf("%w: not an open window and region of this provider", fabric.ErrInvalid))
	}
	if size := r.mem.Len(); off < 0 || n <= 0 || off > size || n > size-off {
		return 0, q.opError("bind", fmt.Errorf("%w: [%d, +%d) of %d bytes", fabric.ErrInvalid, off, n, size))
	}
	if err := q.sendable(); err != nil {
		return 0, err
	}
	if err := mw.make(); err != nil {
		return 0, q.opError("bind", err)
	}
	key := mw.nextKey()
	e := C.vb_post_bind(q.qp, q.sq, mw.mw, C.uint32_t(key), r.mr, C.uint64_t(r.mem.Addr()+uint64(off)), C.uint64_t(n), accessFlags(a), C.uint64_t(id), C.uint8_t(f))
	if _, err := q.posted(-int64(e)<<32, q.sendFull); err != nil {
		return 0, err
	}
	mw.rkey = key
	q.holdWindow(mw)
	return key, nil
}

func (q *queuePair) holdWindow(w *memoryWindow) {
	if w.qp != nil {
		delete(w.qp.windows, w)
	}
	if q.windows == nil {
		q.windows = map[*memoryWindow]bool{}
	}
	w.qp, q.windows[w] = q, true
}

// ended is why nothing can be posted any more, or nil.
func (q *queuePair) ended() error {
	switch q.mode.Load() {
	case modeLeft:
		return q.inError
	case modeClosed:
		return q.opError("post", errClosed)
	}
	return nil
}

// sendable is why nothing can be sent, or nil.
func (q *queuePair) sendable() error {
	if q.mode.Load() == modeSetup {
		return q.opError("post", fmt.Errorf("%w: not connected yet", fabric.ErrInvalid))
	}
	return q.ended()
}

// posted takes a result of the shim apart. A WR posted while the QP went to the
// error state may have missed the flush (rxe): pushing the QP once more makes
// it complete.
func (q *queuePair) posted(r int64, full error) (int, error) {
	n, e := int(uint32(r)), int(r>>32)
	if q.mode.Load() == modeLeft {
		C.vb_qp_error(q.qp)
	}
	switch e {
	case 0:
		return n, nil
	case queueFull:
		return n, full
	}
	return n, q.opError("post", errno(e))
}

// close destroys the QP. Windows bound through it are freed before: rxe would
// wait for them, and then free the QP under them. The queues are kept until the
// CQs hold nothing of them.
func (q *queuePair) close() error {
	for w := range q.windows {
		_ = w.free() // its Close will say
	}
	q.mode.Store(modeClosed)
	C.vb_kill(q.sq)
	if !q.srq {
		C.vb_kill(q.rq)
	}
	e := C.vb_destroy_qp(q.qp)
	q.qp = nil
	C.vb_bury(q.c.cfg.SendCQ.(*completionQueue).cq, q.sq)
	C.vb_bury(q.c.cfg.RecvCQ.(*completionQueue).cq, q.rq)
	if e != 0 {
		return q.opError("close", errno(int(e)))
	}
	return nil
}
