//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
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

	// The owner's.
	cq      *C.struct_vb_cq // nil when closed
	stash   fabric.Completion
	stashed bool // stash is the oldest completion: Arm found it

	users   int            // QPs; guarded by d.p.mu
	unacked C.uint         // the routine's, then Close's
	armed   atomic.Bool    // an Arm has had no notify yet
	firing  sync.WaitGroup // notifies that Arm started
	overrun atomic.Bool    // completions were lost
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
	d.cqs[uintptr(unsafe.Pointer(q.cq.cq))] = q
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
	if n > 0 {
		q.fire()
	}
}

// fire calls notify if an Arm waits for it.
func (q *completionQueue) fire() {
	if q.notify != nil && q.armed.CompareAndSwap(true, false) {
		q.notify()
	}
}

var errOverrun = fmt.Errorf("%w: completions were lost, the CQ is too small for what was posted", fabric.ErrQueueFull)

// Poll tells a connection of its own failure: the CM does not learn of errors
// of the QP.
func (q *completionQueue) Poll(wc []fabric.Completion) (int, error) {
	if q.cq == nil {
		return 0, q.d.opError("poll", errClosed)
	}
	if len(wc) == 0 {
		return 0, nil
	}
	n := 0
	if q.stashed {
		wc[0], q.stashed, n = q.stash, false, 1
	}
	n, err := q.pollDevice(wc, n)
	if n == 0 && err == nil && q.overrun.Load() {
		err = q.d.opError("poll", errOverrun)
	}
	return n, err
}

// pollDevice fills wc from n on.
func (q *completionQueue) pollDevice(wc []fabric.Completion, n int) (int, error) {
	if n == len(wc) {
		return n, nil
	}
	r := int64(C.vb_poll(q.cq, (*C.struct_vb_wc)(unsafe.Pointer(&wc[n])), C.uint32_t(len(wc)-n)))
	if r < 0 {
		return n, q.d.opError("poll", errors.New("the device refused"))
	}
	got := int(uint32(r))
	if r>>32 != 0 {
		q.d.failConns(wc[n : n+got])
	}
	return n + got, nil
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

// Arm takes a completion that is there already aside, and notifies of it: a
// device would not.
func (q *completionQueue) Arm() error {
	if q.cq == nil {
		return q.d.opError("arm", errClosed)
	}
	if q.notify == nil {
		return nil
	}
	q.armed.Store(true)
	if !q.stashed {
		r := C.vb_arm(q.cq, (*C.struct_vb_wc)(unsafe.Pointer(&q.stash)))
		if r < 0 {
			return q.d.opError("arm", errno(int(r)))
		}
		q.stashed = r == 1
		if q.stashed && q.stash.Status != fabric.StatusSuccess {
			q.d.failConns([]fabric.Completion{q.stash})
		}
	}
	if q.stashed {
		q.firing.Go(q.fire)
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
	delete(q.d.cqs, uintptr(unsafe.Pointer(q.cq.cq)))
	q.d.mu.Unlock()
	q.firing.Wait()
	if q.channel != nil {
		q.parked.close()
		C.vb_ack_cq_events(q.cq, q.unacked)
		q.unacked = 0
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
