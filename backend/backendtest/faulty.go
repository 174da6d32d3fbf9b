package backendtest

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/internal/waker"
	"github.com/nvmf-go/nvmf/nvme"
)

// Verdict is what becomes of an operation given to a Faulty device. The zero
// value lets it pass.
type Verdict struct {
	// Status, if not success, ends the operation; the device never sees it.
	Status nvme.Status
	// Hold keeps the operation back until Release. One that is never released
	// is a stuck one.
	Hold bool
	// After, with Hold, has the device run it at once and keeps back its
	// completion.
	After bool
}

// Faulty is a device over another that fails and holds back operations. All
// methods but those of its queues are safe for concurrent use.
type Faulty struct {
	backend.Device

	judge atomic.Pointer[func(*backend.Op) Verdict]
	info  atomic.Pointer[func(*backend.Info)]
	seen  [backend.NumKinds]atomic.Uint64

	mu   sync.Mutex
	held []*heldOp // oldest first
}

// heldOp is an operation that waits for Release.
type heldOp struct {
	queue  *faultyQueue
	op     backend.Op
	status nvme.Status
	ended  bool // with status: only the completion is held
}

// NewFaulty wraps a device, which it closes.
func NewFaulty(d backend.Device) *Faulty { return &Faulty{Device: d} }

// Judge sets what happens to operations submitted from now on. It is called by
// the owners of the queues, several at a time; nil lets all pass.
func (f *Faulty) Judge(judge func(*backend.Op) Verdict) {
	if judge == nil {
		f.judge.Store(nil)
		return
	}
	f.judge.Store(&judge)
}

// Fail is a judge for operations of some kinds that overlap n bytes at off.
func Fail(st nvme.Status, kinds backend.KindSet, off, n uint64) func(*backend.Op) Verdict {
	return func(op *backend.Op) Verdict {
		meets := op.Kind == backend.Flush || op.Offset < off+n && off < op.Offset+op.Length
		if kinds.Has(op.Kind) && meets {
			return Verdict{Status: st}
		}
		return Verdict{}
	}
}

// Hold is a judge that keeps back operations of some kinds.
func Hold(kinds backend.KindSet) func(*backend.Op) Verdict {
	return func(op *backend.Op) Verdict { return Verdict{Hold: kinds.Has(op.Kind)} }
}

// ChangeInfo has every Info changed by change; nil leaves it.
func (f *Faulty) ChangeInfo(change func(*backend.Info)) {
	if change == nil {
		f.info.Store(nil)
		return
	}
	f.info.Store(&change)
}

// Info is that of the device, changed by ChangeInfo.
func (f *Faulty) Info() backend.Info {
	i := f.Device.Info()
	if change := f.info.Load(); change != nil {
		(*change)(&i)
	}
	return i
}

// Seen is the number of operations of a kind that queues took.
func (f *Faulty) Seen(k backend.Kind) uint64 { return f.seen[k].Load() }

// Held is the number of operations kept back.
func (f *Faulty) Held() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.held)
}

// Release lets the n oldest held operations go on, all when n is negative, and
// says how many that were. Their owners are notified if they armed.
func (f *Faulty) Release(n int) int {
	f.mu.Lock()
	if n < 0 || n > len(f.held) {
		n = len(f.held)
	}
	free := f.held[:n]
	f.held = f.held[n:]
	for _, h := range free {
		h.queue.released = append(h.queue.released, h)
	}
	f.mu.Unlock()
	for _, h := range free {
		h.queue.waker.Wake()
	}
	return n
}

// hold keeps h back.
func (f *Faulty) hold(h *heldOp) {
	f.mu.Lock()
	f.held = append(f.held, h)
	f.mu.Unlock()
}

// NewQueue makes a queue over one of the device.
func (f *Faulty) NewQueue(depth int, notify func()) (backend.Queue, error) {
	q := &faultyQueue{dev: f, depth: depth, waker: waker.New(notify), late: map[uint64]bool{}}
	inner, err := f.Device.NewQueue(depth, q.waker.Wake)
	if err != nil {
		return nil, err
	}
	q.Queue = inner
	return q, nil
}

// faultyQueue holds operations in three places: the device's queue, the
// device's list of held ones, and done. depth counts all of them.
type faultyQueue struct {
	backend.Queue // of the device

	// Constant.
	dev   *Faulty
	depth int
	waker *waker.Waker

	// Owner.
	used   int
	done   []backend.Completion
	late   map[uint64]bool // in the device, by ID: hold the completion
	closed bool

	released []*heldOp // dev.mu
}

func (q *faultyQueue) Submit(ops []backend.Op) int {
	if q.closed {
		return 0
	}
	took := min(len(ops), q.depth-q.used)
	for i := range ops[:took] {
		q.take(&ops[i])
	}
	q.used += took
	if len(q.done) > 0 {
		q.waker.Wake()
	}
	return took
}

func (q *faultyQueue) take(op *backend.Op) {
	q.dev.seen[min(op.Kind, backend.NumKinds-1)].Add(1)
	var v Verdict
	if judge := q.dev.judge.Load(); judge != nil {
		v = (*judge)(op)
	}
	failed := v.Status != nvme.Success
	switch {
	case v.Hold && (failed || !v.After):
		q.dev.hold(&heldOp{queue: q, op: *op, status: v.Status, ended: failed})
	case failed:
		q.done = append(q.done, backend.Completion{ID: op.ID, Status: v.Status})
	default:
		if v.Hold {
			q.late[op.ID] = true
		}
		q.pass(op)
	}
}

// pass gives op to the device's queue, which has as much room as this one.
func (q *faultyQueue) pass(op *backend.Op) {
	if q.Queue.Submit([]backend.Op{*op}) != 1 {
		panic("backendtest: a queue refused an operation it has room for")
	}
}

func (q *faultyQueue) Reap(done []backend.Completion) int {
	if q.closed {
		return 0
	}
	q.resume()
	n := q.Queue.Reap(done)
	for _, c := range done[:n] {
		if q.late[c.ID] {
			delete(q.late, c.ID)
			q.dev.hold(&heldOp{queue: q, op: backend.Op{ID: c.ID}, status: c.Status, ended: true})
			continue
		}
		q.done = append(q.done, c)
	}
	n = copy(done, q.done)
	q.done = slices.Delete(q.done, 0, n)
	q.used -= n
	return n
}

// resume goes on with what was released.
func (q *faultyQueue) resume() {
	q.dev.mu.Lock()
	released := q.released
	q.released = nil
	q.dev.mu.Unlock()
	for _, h := range released {
		if h.ended {
			q.done = append(q.done, backend.Completion{ID: h.op.ID, Status: h.status})
		} else {
			q.pass(&h.op)
		}
	}
}

func (q *faultyQueue) Arm() { q.ArmOn(nil) }

// ArmOn passes on to a queue that is a backend.WakeArmer.
func (q *faultyQueue) ArmOn(w backend.Waker) {
	if q.closed {
		return
	}
	q.waker.Arm()
	q.dev.mu.Lock()
	released := len(q.released) > 0
	q.dev.mu.Unlock()
	if released || len(q.done) > 0 {
		q.waker.Wake()
		return
	}
	backend.NewArmer(q.Queue).Arm(w)
}

// RegisterBuffers passes on to a queue that is a backend.Registrar.
func (q *faultyQueue) RegisterBuffers(mem [][]byte) error {
	if r, ok := q.Queue.(backend.Registrar); ok {
		return r.RegisterBuffers(mem)
	}
	return nil
}

// Close waits for what is in flight: held operations too, until their Release.
func (q *faultyQueue) Close() error {
	if q.closed {
		return nil
	}
	q.waker.TakeOver()
	for scratch := make([]backend.Completion, q.depth); q.used > 0; {
		q.Arm()
		if q.Reap(scratch) == 0 {
			q.waker.Wait()
		}
	}
	q.waker.Disarm()
	q.closed = true
	return q.Queue.Close()
}
