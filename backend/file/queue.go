package file

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/internal/waker"
	"github.com/nvmf-go/nvmf/backend/uring"
	"github.com/nvmf-go/nvmf/nvme"
)

// maxDepth is the most operations in flight of one queue: what io_uring takes.
const maxDepth = 1 << 15

// queue implements backend.Queue and backend.Registrar. It has its own open
// file description.
type queue struct {
	// Constant.
	dev   *Device
	fd    int
	ring  *ring // nil: the pool makes all calls
	waker *waker.Waker
	vecs  []byte // off-heap memory of the slots' vec

	// Owner.
	slots   []slot
	free    *slot  // a stack, through slot.next
	ready   fifo   // done, for Reap
	flushes fifo   // wait for the next sync
	syncing fifo   // share the sync that runs
	calls   jobs   // for the pool, at the next kick
	bounce  bounce // memory for data that is not aligned
	busy    int    // calls that were started and have not returned
	closed  bool

	// Atomic.
	back atomic.Pointer[slot] // what the pool has done, latest first
}

// NewQueue makes a queue for depth operations, 1 to 32768, in flight.
func (d *Device) NewQueue(depth int, notify func()) (backend.Queue, error) {
	if depth < 1 || depth > maxDepth {
		return nil, &backend.OptionError{Field: "depth", Value: depth, Want: fmt.Sprintf("1 to %d", maxDepth)}
	}
	if err := d.users.Add(); err != nil {
		return nil, err
	}
	q, err := d.newQueue(depth, notify)
	if err != nil {
		d.users.Done()
		return nil, fmt.Errorf("backend/file: %s: new queue: %w", d.opts.Path, err)
	}
	return q, nil
}

func (d *Device) newQueue(depth int, notify func()) (*queue, error) {
	fd, err := d.medium.reopen(d.opts.ReadOnly)
	if err != nil {
		return nil, err
	}
	q := &queue{dev: d, fd: fd, waker: waker.New(notify)}
	q.bounce.chunks = min(depth, maxChunks)
	if err = q.makeSlots(depth); err == nil && d.uring {
		q.ring, err = newRing(q, depth)
	}
	if errors.Is(err, uring.ErrUnavailable) && d.opts.Engine == EngineAuto {
		d.partial.Store(true)
		err = nil
	}
	if err != nil {
		return nil, errors.Join(err, q.unmake())
	}
	return q, nil
}

func (q *queue) makeSlots(depth int) error {
	const vecSize = maxVec * int(unsafe.Sizeof(unix.Iovec{}))
	vecs, err := unix.Mmap(-1, 0, depth*vecSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	q.vecs = vecs
	q.slots = make([]slot, depth)
	for i := range q.slots {
		s := &q.slots[i]
		s.queue, s.index, s.chunk = q, uint32(i), none
		s.vec = unsafe.Slice((*unix.Iovec)(unsafe.Pointer(&vecs[i*vecSize])), maxVec)
		q.release(s)
	}
	return nil
}

func (q *queue) release(s *slot) {
	s.next, q.free = q.free, s
}

// kickEvery is how many operations one system call starts. The medium begins
// with the first when the call ends: at depth 32 on a virtio disk, calls for 8
// gave 10 to 15 % more than one call for all, and cost 7 % more CPU.
const kickEvery = 8

// Submit starts operations while slots are free. With io_uring it makes one
// system call for each 8.
func (q *queue) Submit(ops []backend.Op) int {
	if q.closed {
		return 0
	}
	took := 0
	for ; took < len(ops) && q.free != nil; took++ {
		s := q.free
		q.free = s.next
		q.begin(s, &ops[took])
		if took%kickEvery == kickEvery-1 {
			q.kick()
		}
	}
	q.kick()
	if q.ready.head != nil {
		q.waker.Wake()
	}
	return took
}

// begin starts an operation.
func (q *queue) begin(s *slot, op *backend.Op) {
	s.op, s.moved, s.tries, s.bounce = *op, 0, 0, false
	if st := op.Check(q.dev.size.Load(), q.dev.opts.ReadOnly); st != nvme.Success {
		q.finish(s, st)
		return
	}
	s.synced = q.dev.synced(op)
	switch op.Kind {
	case backend.Read, backend.Write:
		q.beginMove(s)
	case backend.Flush:
		q.beginFlush(s)
	case backend.Discard:
		q.discard(s)
	case backend.WriteZeroes:
		q.beginZero(s)
	}
}

// synced says that op needs no sync. A Read with FUA does: what it returns is
// to be on stable media (NVM 3.2.4).
func (d *Device) synced(op *backend.Op) bool {
	return d.opts.ReadOnly || !op.FUA && (op.Kind == backend.Read || !d.opts.WriteThrough)
}

// start makes s.call, whose result goes to then. Calls that change what the
// page cache of a block device covers fail unless the claim's holder makes
// them.
func (q *queue) start(s *slot, then func(*queue, *slot, int32)) {
	s.then, s.call.fd = then, q.fd
	if s.call.op >= callFallocate {
		s.call.fd = q.dev.medium.fd
	}
	q.busy++
	if q.dev.inject != nil {
		f := q.dev.inject(&s.call)
		if f.errno != 0 {
			q.deliver(s, -int32(f.errno))
			return
		}
		if f.short > 0 && s.call.iov != nil {
			s.call.limit(f.short)
		}
	}
	if q.ring == nil || !q.ring.push(s) {
		q.calls.push(s)
	}
}

// kick hands started calls to the kernel and the pool.
func (q *queue) kick() {
	if q.ring != nil {
		q.ring.submit()
	}
	if q.calls.head != nil {
		q.dev.pool.give(&q.calls)
	}
}

// settle follows when an operation's data is in place: it is done, or a sync
// is due.
func (q *queue) settle(s *slot) {
	if s.synced {
		q.finish(s, nvme.Success)
		return
	}
	q.sync(s)
}

// finish makes s ready for Reap.
func (q *queue) finish(s *slot, st nvme.Status) {
	s.status = st
	q.ready.push(s)
	if s.chunk != none {
		q.freeChunk(s)
	}
}

// Reap hands out what is done. With io_uring it makes no system call, unless
// an operation needs a further one or the ring is of Options.LockedThread.
func (q *queue) Reap(done []backend.Completion) int {
	n := q.hand(done)
	if n < len(done) && !q.closed {
		q.collect()
		n += q.hand(done[n:])
	}
	return n
}

func (q *queue) hand(done []backend.Completion) int {
	for i := range done {
		s := q.ready.pop()
		if s == nil {
			return i
		}
		done[i] = backend.Completion{ID: s.op.ID, Status: s.status}
		s.op.Bufs = nil
		q.release(s)
	}
	return len(done)
}

// collect takes the results of calls, and starts the calls that follow.
func (q *queue) collect() {
	if q.ring != nil {
		q.ring.reap()
	}
	q.collectPool()
	q.kick()
}

// collectPool takes what the pool has delivered.
func (q *queue) collectPool() {
	if q.back.Load() == nil {
		return
	}
	for s := q.back.Swap(nil); s != nil; {
		next := s.link // returned may start another call of s
		q.returned(s, s.res)
		s = next
	}
}

// returned is the end of a call.
func (q *queue) returned(s *slot, res int32) {
	q.busy--
	s.then(q, s, res)
}

// deliver gives a result to the owner, from any goroutine.
func (q *queue) deliver(s *slot, res int32) {
	s.res = res
	for {
		s.link = q.back.Load()
		if q.back.CompareAndSwap(s.link, s) {
			break
		}
	}
	q.waker.Wake()
}

// Arm calls notify at once when something is there.
func (q *queue) Arm() { q.ArmOn(nil) }

// ArmOn has w watch the events of io_uring. What the pool does is told by notify.
func (q *queue) ArmOn(w backend.Waker) {
	if q.closed {
		return
	}
	q.kick()
	q.waker.Arm()
	if q.ready.head != nil || q.back.Load() != nil || q.ring != nil && q.ring.arm(w) {
		q.waker.Wake()
	}
}

// RegisterBuffers pins memory in the kernel for the I/O of this queue, instead
// of what was registered before. Without io_uring it does nothing.
func (q *queue) RegisterBuffers(mem [][]byte) error {
	if q.ring == nil || q.closed {
		return nil
	}
	return q.ring.registerBuffers(mem)
}

// Close waits until every call has returned; completions that were not reaped
// are dropped.
func (q *queue) Close() error {
	if q.closed {
		return nil
	}
	q.waker.TakeOver()
	for q.collect(); q.busy > 0; q.collect() {
		q.Arm()
		q.waker.Wait()
	}
	q.waker.Disarm()
	q.closed = true
	q.ready = fifo{}
	err := q.unmake()
	q.dev.users.Done()
	return err
}

func (q *queue) unmake() error {
	var errs []error
	if q.ring != nil {
		errs = append(errs, q.ring.close())
	}
	if q.vecs != nil {
		errs = append(errs, unix.Munmap(q.vecs))
	}
	errs = append(errs, q.bounce.close(), unix.Close(q.fd))
	return errors.Join(errs...)
}
