//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// completionQueue implements fabric.CompletionQueue.
type completionQueue struct {
	// Constant.
	d       *device
	notify  func()
	channel *C.struct_ibv_comp_channel // nil without notify
	parked  *parked                    // nil without notify

	cq      *C.struct_ibv_cq // the owner's; nil when closed
	users   int              // QPs; guarded by d.p.mu
	unacked C.uint           // the routine's, then Close's
	overrun atomic.Bool      // completions were lost
}

// ackBatch is the number of events acknowledged at once: it takes a mutex.
const ackBatch = 128

func (d *device) NewCompletionQueue(depth int, notify func()) (fabric.CompletionQueue, error) {
	const op = "make a CQ"
	if depth <= 0 || depth > d.info.Limits.MaxCQDepth {
		return nil, d.opError(op, fmt.Errorf("%w: depth %d (1 to %d)", fabric.ErrInvalid, depth, d.info.Limits.MaxCQDepth))
	}
	if err := d.begin(&d.counts.CQs); err != nil {
		return nil, d.opError(op, err)
	}
	q := &completionQueue{d: d, notify: notify}
	if err := q.create(depth); err != nil {
		d.end(&d.counts.CQs)
		return nil, d.opError(op, err)
	}
	d.mu.Lock()
	d.cqs[uintptr(unsafe.Pointer(q.cq))] = q
	d.mu.Unlock()
	return q, nil
}

func (q *completionQueue) create(depth int) (err error) {
	if q.notify != nil {
		if err := q.openChannel(); err != nil {
			return err
		}
	}
	q.cq, err = C.vb_create_cq(q.d.ctx, C.int(depth), q.channel, q.d.nextVector())
	if q.cq == nil {
		err = lastErrno(err)
		if q.channel != nil {
			q.parked.file.Close()
			C.vb_destroy_comp_channel(q.channel)
		}
		return err
	}
	if q.channel != nil {
		go q.parked.routine(q.drainEvents)
	}
	return nil
}

func (q *completionQueue) openChannel() error {
	ch, err := C.vb_comp_channel(q.d.ctx)
	if ch == nil {
		return fmt.Errorf("completion channel: %w", lastErrno(err))
	}
	p, err := park(int(ch.fd), "completion channel")
	if err != nil {
		C.vb_destroy_comp_channel(ch)
		return err
	}
	q.channel, q.parked = ch, p
	return nil
}

// drainEvents runs in the CQ's routine.
func (q *completionQueue) drainEvents() {
	n := C.uint(C.vb_cq_events(q.channel))
	q.unacked += n
	if q.unacked >= ackBatch {
		C.vb_ack_cq_events(q.cq, q.unacked)
		q.unacked = 0
	}
	for range n {
		q.notify()
	}
}

func (q *completionQueue) wake() {
	if q.notify != nil {
		q.notify()
	}
}

var errOverrun = errors.New("completions were lost: the CQ is too small for what was posted")

// Poll tells a connection of its own failure: the CM does not learn of errors
// of the QP.
func (q *completionQueue) Poll(wc []fabric.Completion) (int, error) {
	if q.cq == nil {
		return 0, q.d.opError("poll", errClosed)
	}
	if len(wc) == 0 {
		return 0, nil
	}
	r := int64(C.vb_poll(q.cq, (*C.struct_vb_wc)(unsafe.Pointer(&wc[0])), C.uint32_t(len(wc))))
	if r < 0 {
		return 0, q.d.opError("poll", errors.New("the device refused"))
	}
	n := int(uint32(r))
	if r>>32 != 0 {
		q.d.failConns(wc[:n])
	}
	if n == 0 && q.overrun.Load() {
		return 0, q.d.opError("poll", errOverrun)
	}
	return n, nil
}

// failConns ends the connections of failed completions that are not ending
// already. A flush has its cause elsewhere, so it is looked at last.
func (d *device) failConns(wc []fabric.Completion) {
	for _, flushes := range []bool{false, true} {
		last := uint32(0)
		for i := range wc {
			c := &wc[i]
			if c.Status == fabric.StatusSuccess || (c.Status == fabric.StatusFlushed) != flushes || c.QPN == last {
				continue
			}
			last = c.QPN
			if conn := d.connOf(c.QPN); conn != nil {
				conn.failed(c.Status)
			}
		}
	}
}

func (q *completionQueue) Arm() error {
	if q.cq == nil {
		return q.d.opError("arm", errClosed)
	}
	if e := C.vb_arm(q.cq); e != 0 {
		return q.d.opError("arm", errno(int(e)))
	}
	return nil
}

// Close waits for a notify that is running.
func (q *completionQueue) Close() error {
	if q.cq == nil {
		return nil
	}
	q.d.p.mu.Lock()
	users := q.users
	q.d.p.mu.Unlock()
	if users > 0 {
		return q.d.opError("close a CQ", fmt.Errorf("%w: %d QPs use it", fabric.ErrBusy, users))
	}
	q.d.mu.Lock()
	delete(q.d.cqs, uintptr(unsafe.Pointer(q.cq)))
	q.d.mu.Unlock()
	if q.channel != nil {
		q.parked.close()
		C.vb_ack_cq_events(q.cq, q.unacked)
	}
	if e := C.vb_destroy_cq(q.cq); e != 0 {
		return q.d.opError("close a CQ", errno(int(e)))
	}
	if q.channel != nil {
		C.vb_destroy_comp_channel(q.channel)
	}
	q.cq = nil
	q.d.end(&q.d.counts.CQs)
	return nil
}
