//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"math"
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
	stashed bool          // stash is the oldest completion: Arm found it
	bed     *fabric.Waker // watches the channel; nil: the routine does
	tries   int           // ArmOn since the last Arm, to settleAfter
	due     bool          // there may be an event: a completion came after it was asked for

	users   int            // QPs; guarded by d.p.mu
	unacked C.uint         // of who reads the events, then Close's
	asked   atomic.Bool    // the device owes an event, or there is one to be read
	armed   atomic.Bool    // an Arm has had no notify yet
	firing  sync.WaitGroup // notifies that Arm started
	overrun atomic.Bool    // completions were lost
}

// settleAfter is how many ArmOn without an Arm between them make the owner watch
// the channel: one that has a berth now and then would stop and start the
// routine each time.
const settleAfter = 16

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
	if q.takeEvents(math.MaxInt32) {
		q.fire()
	}
}

// takeEvents reads up to most events. When there was one, the next sleep has to
// ask for another.
func (q *completionQueue) takeEvents(most C.int) bool {
	n := C.uint(C.vb_cq_events(q.channel, most))
	if n == 0 {
		return false
	}
	q.asked.Store(false)
	q.unacked += n
	if q.unacked >= ackBatch {
		C.vb_ack_cq_events(q.cq, q.unacked)
		q.unacked = 0
	}
	return true
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
	q.due = q.due || got > 0
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
	q.tries = 0
	if err := q.rise(); err != nil {
		return q.d.opError("arm", err)
	}
	return q.arm()
}

func (q *completionQueue) arm() error {
	q.armed.Store(true) // before asked is looked at: the routine clears that first
	if err := q.ask(); err != nil {
		return err
	}
	if !q.stashed {
		var one [1]fabric.Completion
		n, err := q.pollDevice(one[:], 0)
		if err != nil {
			return err
		}
		q.stash, q.stashed = one[0], n == 1
	}
	if q.stashed {
		q.firing.Go(q.fire)
	}
	return nil
}

// ask has the device make an event of the next completion, unless it owes one:
// asking is a system call with some drivers (rxe, siw).
func (q *completionQueue) ask() error {
	if q.asked.Swap(true) {
		return nil
	}
	q.due = false
	if e := C.vb_arm(q.cq); e != 0 {
		q.asked.Store(false)
		return q.d.opError("arm", errno(int(e)))
	}
	return nil
}

// ArmOn is Arm for an owner that sleeps in w: its thread waits for the channel
// (fabric.WakeArmer). There is no notify for what is there already: the owner
// looks once more before it sleeps.
func (q *completionQueue) ArmOn(w *fabric.Waker) error {
	if q.cq == nil {
		return q.d.opError("arm", errClosed)
	}
	if q.notify == nil {
		return nil
	}
	if !q.lieDown(w) {
		return q.arm()
	}
	q.armed.Store(true) // for cqFailed
	if q.due || w.Woke(int(q.channel.fd)) {
		q.due = false
		q.takeEvents(1)
	}
	if err := q.ask(); err != nil {
		return err
	}
	w.Within(-1)
	return nil
}

// lieDown has w watch the channel in place of the routine. It is false when that
// is not worth while yet, or w cannot.
func (q *completionQueue) lieDown(w *fabric.Waker) bool {
	if q.bed == w {
		return true
	}
	if q.tries++; q.tries < settleAfter || w.Watch(int(q.channel.fd)) != nil {
		return false
	}
	if q.bed != nil {
		q.bed.Unwatch(int(q.channel.fd))
	} else {
		q.parked.close()
	}
	q.bed = w
	return true
}

// rise has the routine read the events again.
func (q *completionQueue) rise() error {
	if q.bed == nil {
		return nil
	}
	p, err := park(int(q.channel.fd), "completion channel")
	if err != nil {
		return err
	}
	q.bed.Unwatch(int(q.channel.fd))
	q.bed, q.parked = nil, p
	go p.routine(q.drainEvents)
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
		if q.bed != nil {
			q.bed.Unwatch(int(q.channel.fd))
		} else {
			q.parked.close()
		}
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
