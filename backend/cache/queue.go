package cache

import (
	"errors"
	"time"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/internal/fifo"
	"github.com/nvmf-go/nvmf/backend/internal/waker"
	"github.com/nvmf-go/nvmf/nvme"
)

// Operations of ours have IDs of this bit in the queue below; the caller's
// pass with their own. A caller's ID that has the bit is replaced.
const (
	ours     = 1 << 63
	oursUnit = 1 << 62 // of those, a unit of read-ahead; else a request
)

// queue implements backend.Lender and backend.Registrar over a queue of the
// device below.
type queue struct {
	// Constant.
	dev   *Device
	below backend.Queue
	armer backend.Armer // of below
	waker *waker.Waker

	// Owner.
	depth    int
	used     int              // operations taken and not reaped
	requests []request        // depth of them
	free     *request         // a stack, through request.next
	out      []backend.Op     // to be submitted below, in this call
	done     fifo.Completions // completions that wait for Reap
	streams  streams
	ahead    ahead
	looked   looked
	found    [maxLook]uint32 // slots under a reference, for a moment
	turn     uint64          // Reaps
	looks    uint64
	misses   uint64
	timing   bool // a miss is being measured
	closing  bool // nobody waits for data any more, and buffers may be gone
	closed   bool

	counts counts
}

// request is an operation of the caller that the queue does not merely pass
// on.
type request struct {
	op    backend.Op // as the caller gave it
	index uint32
	step  step
	next  *request // on the free list, or waiting for the same read-ahead
	start time.Time

	first, n uint64 // pages that a fill reads, or a write marks
	slots    [maxFill]uint32
	entries  [maxFill]uint32 // that lead to the pages, 0 if none did
	bufs     [maxFill][]byte
}

// step is what a request waits for.
type step uint8

const (
	relay step = iota // the operation itself, below
	fill              // a read of whole pages into slots
	write             // an operation that changes n pages, which are marked
	wait              // a unit of read-ahead
)

// Limits of one operation in pages.
const (
	maxLook = 256 // longer reads are not looked for
	maxFill = 16  // nor do longer ones fill, or longer writes refill
)

func newQueue(d *Device, depth int, notify func()) (*queue, error) {
	if depth < 1 {
		return nil, &backend.OptionError{Field: "depth", Value: depth, Want: "1 or more"}
	}
	q := &queue{dev: d, depth: depth, waker: waker.New(notify), streams: newStreams()}
	units := d.units
	below, err := d.dev.NewQueue(depth+units.count, q.waker.Wake)
	if err != nil && units.count > 0 {
		units = unitSize{}
		below, err = d.dev.NewQueue(depth, q.waker.Wake)
	}
	if err != nil {
		return nil, err
	}
	q.below, q.armer = below, backend.NewArmer(below)
	q.requests = make([]request, depth)
	for i := range q.requests {
		r := &q.requests[i]
		r.index = uint32(i)
		q.release(r)
	}
	q.ahead.make(units)
	q.out = make([]backend.Op, 0, depth+units.count)
	q.done = fifo.New(depth)
	_ = q.RegisterBuffers(nil) // it gains, it need not
	return q, nil
}

func (q *queue) request(op *backend.Op, s step) *request {
	r := q.free
	q.free = r.next
	r.op, r.step, r.n, r.start = *op, s, 0, time.Time{}
	return r
}

func (q *queue) release(r *request) {
	r.op.Bufs = nil
	r.next, q.free = q.free, r
}

// Submit answers reads that are in memory, and gives the rest to the queue
// below: as they are, in one go, when the cache has no part in them.
func (q *queue) Submit(ops []backend.Op) int {
	if q.closed {
		return 0
	}
	took := min(len(ops), q.depth-q.used)
	q.used += took
	passed, scanned := 0, uint64(0) // ops[passed:i] pass as they are
	for i := range ops[:took] {
		op := &ops[i]
		if op.Kind == backend.Read && op.ID&ours == 0 && q.streams.lane.submit.passes(op.Offset, op.Length) {
			scanned++
			continue
		}
		if q.takes(op) {
			q.out = append(q.out, ops[passed:i]...)
			passed = i + 1
		}
	}
	if passed == 0 && len(q.out) == 0 {
		passed = q.below.Submit(ops[:took])
	}
	q.out = append(q.out, ops[passed:took]...)
	q.flush()
	if scanned > 0 {
		q.counts.add(bypasses, scanned)
	}
	if q.done.Len() > 0 {
		q.waker.Wake()
	}
	return took
}

// flush submits what is due below, where there is room for all that is in
// flight.
func (q *queue) flush() {
	if len(q.out) == 0 {
		return
	}
	n := q.below.Submit(q.out)
	rest := copy(q.out, q.out[n:])
	clear(q.out[rest:])
	q.out = q.out[:rest]
}

// takes begins an operation, or says that it is to pass as it is.
func (q *queue) takes(op *backend.Op) bool {
	switch op.Kind {
	case backend.Read:
		if q.takesRead(op) {
			return true
		}
	case backend.Write, backend.Discard, backend.WriteZeroes:
		if q.takesWrite(op) {
			return true
		}
	}
	if op.ID&ours == 0 {
		return false
	}
	q.pass(q.request(op, relay))
	return true
}

// pass gives a request's operation to the queue below.
func (q *queue) pass(r *request) {
	q.out = append(q.out, r.op)
	q.out[len(q.out)-1].ID = ours | uint64(r.index)
}

// finish ends an operation that the queue below has no part in any more.
func (q *queue) finish(id uint64, st nvme.Status) {
	q.done.Push(backend.Completion{ID: id, Status: st})
}

// Reap hands out completions, after it has done what is left to do for them.
func (q *queue) Reap(done []backend.Completion) int {
	if q.closed {
		return 0
	}
	q.turn++
	n := q.done.Pop(done)
	if n < len(done) {
		n += q.reapBelow(done[n:])
	}
	if q.done.Len() > 0 && n < len(done) {
		n += q.done.Pop(done[n:])
	}
	q.flush()
	q.used -= n
	return n
}

// reapBelow takes completions of the queue below into done and leaves those
// there that are the caller's.
func (q *queue) reapBelow(done []backend.Completion) int {
	got, n := q.below.Reap(done), 0
	for i := range done[:got] {
		c := &done[i]
		if c.Status != nvme.Success && c.Status.Code() == nvme.LBAOutOfRange {
			q.dev.observe(q.dev.dev.Info())
		}
		if c.ID&ours != 0 && !q.resume(c) {
			continue
		}
		if n != i {
			done[n] = *c
		}
		n++
	}
	return n
}

// resume goes on with what is ours. It says whether c, changed, is an
// operation's end.
func (q *queue) resume(c *backend.Completion) bool {
	if c.ID&oursUnit != 0 {
		q.aheadDone(&q.ahead.units[uint32(c.ID)], c.Status)
		return false
	}
	r := &q.requests[uint32(c.ID)]
	switch r.step {
	case fill:
		if !q.filled(r, c.Status) {
			return false
		}
	case write:
		q.written(r, c.Status)
	}
	if !r.start.IsZero() {
		q.timing = false
		q.counts.add(missTimes, 1)
		q.counts.add(missTime, uint64(time.Since(r.start)))
	}
	c.ID = r.op.ID
	q.release(r)
	return true
}

// Arm calls notify at once when completions wait.
func (q *queue) Arm() { q.ArmOn(nil) }

// ArmOn arms the queue below on w.
func (q *queue) ArmOn(w backend.Waker) {
	if q.closed {
		return
	}
	q.counts.show()
	q.waker.Arm()
	if q.done.Len() > 0 {
		q.waker.Wake()
		return
	}
	q.armer.Arm(w)
}

// RegisterBuffers has the queue below know the memory, and that of the pages.
func (q *queue) RegisterBuffers(mem [][]byte) error {
	r, ok := q.below.(backend.Registrar)
	if !ok || q.closed {
		return nil
	}
	all := append([][]byte{q.dev.Lendable()}, mem...)
	err := r.RegisterBuffers(all)
	if err != nil { // the caller's at least
		err = errors.Join(err, r.RegisterBuffers(mem))
	}
	return err
}

// Close waits for what is in flight, for a write that ends is to be marked.
// Completions that were not reaped are dropped.
func (q *queue) Close() error {
	if q.closed {
		return nil
	}
	q.closing = true
	q.waker.TakeOver()
	for scratch := make([]backend.Completion, q.depth); q.used > 0 || q.ahead.reading > 0; {
		q.Arm()
		if q.Reap(scratch) == 0 {
			q.waker.Wait()
		}
	}
	q.waker.Disarm()
	q.dropAhead()
	q.closed = true
	err := q.below.Close()
	q.dev.gone(q)
	return err
}
