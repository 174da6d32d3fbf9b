package initiator

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// engine is a goroutine that owns a queue and runs the requests of many
// callers on it.
type engine struct {
	// Constant.

	q    *queue
	c    *Controller
	spin fabric.Spin

	// Any goroutine.

	load atomic.Int32 // requests given to it and not ended

	mu       sync.Mutex
	incoming [numClasses]requestList
	pending  atomic.Bool // incoming is not empty, or stop was called
	stopped  bool        // takes no more requests
	ended    chan struct{}

	// The goroutine's.

	backlog [numClasses]requestList
	timer   *time.Timer
}

// Classes of requests. Keep alive and event requests (those with then) pass the
// others by, and adminReserve slots of the admin queue are theirs, so that they
// never wait behind a host that is busy.
const (
	classUrgent = iota
	classNormal
	numClasses

	adminReserve = 2
)

func (r *request) class() int {
	if r.then != nil {
		return classUrgent
	}
	return classNormal
}

func newEngine(c *Controller, q *queue) *engine {
	e := &engine{q: q, c: c, spin: fabric.NewSpin(c.cfg.Spin), ended: make(chan struct{})}
	q.orphan = e.orphan
	go e.run()
	return e
}

// push gives r to the engine. It is false when the engine has stopped: then r is
// still the caller's.
func (e *engine) push(r *request) bool {
	e.mu.Lock()
	if e.stopped {
		e.mu.Unlock()
		return false
	}
	e.incoming[r.class()].push(r)
	e.pending.Store(true)
	e.load.Add(1)
	e.mu.Unlock()
	e.q.w.Wake()
	return true
}

// stop has the engine end once what it was given has ended. It does not wait.
func (e *engine) stop() {
	e.mu.Lock()
	e.stopped = true
	e.pending.Store(true)
	e.mu.Unlock()
	e.q.w.Wake()
}

// run is the engine's goroutine.
func (e *engine) run() {
	defer close(e.ended)
	e.timer = time.NewTimer(math.MaxInt64)
	defer e.timer.Stop()
	for {
		busy := e.turn(monotonic())
		if !busy && e.finished() {
			return
		}
		if !busy {
			e.idle()
		}
	}
}

// finished says whether the engine was stopped and has nothing left to do.
func (e *engine) finished() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stopped && e.incoming == [numClasses]requestList{} && e.backlog == [numClasses]requestList{} && e.q.idle()
}

// turn is one pass of the loop. It is false when there was nothing to do.
func (e *engine) turn(now int64) bool {
	q := e.q
	q.check()
	for q.qc == nil && q.pending.len() > 0 { // waited for room, and was not sent
		i := q.pending.pop()
		r := q.slots[i].req
		q.release(i)
		e.strand(r, 0, e.c.lostError())
	}
	busy := e.take()
	for class := range e.backlog {
		for b := &e.backlog[class]; b.head != nil && e.canStart(class); {
			e.start(b.pop())
		}
	}
	busy = q.flush(now) || busy
	busy = q.poll() > 0 || busy
	q.expire(now)
	for q.finished.len() > 0 {
		busy = true
		e.end(q.finished.pop())
	}
	return busy
}

// take moves what was pushed to the backlog.
func (e *engine) take() bool {
	if !e.pending.Load() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending.Store(false)
	busy := false
	for class := range e.incoming {
		busy = e.incoming[class].head != nil || busy
		e.backlog[class].join(&e.incoming[class])
	}
	return busy
}

// canStart says whether a request of that class need not wait for a slot.
func (e *engine) canStart(class int) bool {
	q, keep := e.q, 0
	if q.qid == 0 && class == classNormal {
		keep = adminReserve
	}
	return q.qc == nil || len(q.free) > keep
}

// start puts r into a slot, or sends it back when there is no association.
func (e *engine) start(r *request) {
	q := e.q
	if q.qc == nil {
		e.strand(r, 0, e.c.lostError())
		return
	}
	if r.abandoned() {
		e.settle(r)
		return
	}
	s, i := q.alloc()
	copy(s.sqe[:], r.sqe[:])
	s.req, s.buf, s.off, s.n, s.timeout, s.changes = r, r.buf, r.off, r.n, r.timeout, r.changes
	q.enqueue(i)
}

// end hands over the outcome of a slot.
func (e *engine) end(i uint16) {
	s := &e.q.slots[i]
	r := s.req
	r.status, r.result, r.qid, r.err = s.status, s.result, e.q.qid, s.err
	e.q.release(i)
	e.settle(r)
}

// settle ends a request.
func (e *engine) settle(r *request) {
	e.load.Add(-1)
	if r.route != nil && r.err == nil && !r.status.OK() && r.route.again(r, e.c) {
		return
	}
	r.finish()
}

// orphan takes back the request of a slot that association a took with it.
func (e *engine) orphan(i uint16, a *association) {
	r := e.q.slots[i].req
	e.q.release(i)
	until := int64(0)
	if r.changes {
		until = a.quietAt()
	}
	e.strand(r, until, fmt.Errorf("%w: %w", ErrPathLost, a.reason()))
}

// strand passes on a request that has no association, for the reason err; it
// must not be sent again before until.
func (e *engine) strand(r *request, until int64, err error) {
	e.load.Add(-1)
	if r.route == nil {
		r.fail(err)
		return
	}
	r.route.requeue(r, until)
}

// idle waits for something to do: for a bounded time awake when answers are
// awaited, then asleep.
func (e *engine) idle() {
	q := e.q
	awaits := q.inflight > 0
	if awaits && e.spin.Look(e.look) {
		return
	}
	q.w.Prepare()
	armed := q.qc
	q.arm(false) // engines are many, and sleep for long: not in the kernel
	now := monotonic()
	if e.turn(now) || e.pending.Load() || q.needsCheck() || q.qc != armed || e.finished() {
		q.w.Cancel()
		return
	}
	wait := time.Duration(math.MaxInt64)
	if q.earliest != math.MaxInt64 {
		wait = time.Duration(max(q.earliest-now, 0))
	}
	e.timer.Reset(wait)
	select {
	case <-q.w.C:
	case <-e.timer.C:
	}
	q.w.Cancel()
	if awaits {
		e.spin.Awake()
	}
}

// arm asks the connection there is for a wake-up; from another there will be
// none. With kernel the owner may sleep in the kernel.
func (q *queue) arm(kernel bool) {
	if q.qc == nil {
		return
	}
	var err error
	if kernel {
		err = q.w.Arm(q.qc.cq)
	} else {
		err = q.qc.cq.Arm()
	}
	if err != nil {
		q.qc.assoc.fail(err)
	}
}

// needsCheck says whether check has something to do.
func (q *queue) needsCheck() bool {
	if q.qc != nil {
		return q.qc.ended()
	}
	return q.next.Load() != nil
}

// look is a turn now.
func (e *engine) look() bool { return e.turn(monotonic()) }

// fill makes r a command without data.
func (r *request) fill(cmd nvme.Command, timeout time.Duration) {
	copy(r.sqe[:], cmd)
	r.timeout = int64(timeout)
	r.buf, r.off, r.n = nil, 0, 0
}
