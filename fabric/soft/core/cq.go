package core

import (
	"fmt"
	"math/bits"
	"net"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
)

// User is what is attached to a CQ: a QP.
type User interface {
	// CQError is called by the CQ's owner when the CQ has overflowed: the QP
	// must go to the error state. Its flush completions will not fit either.
	CQError(err error)
}

// CQ is a completion queue: a ring that its owner fills and drains, and the
// wake-ups that other goroutines may ask for. It implements
// fabric.CompletionQueue.
type CQ struct {
	// Constant after Init.
	dev      *Device
	depth    uint32
	notify   func()
	progress func()
	guard    *Guard
	gone     func() // called once at Close

	// Owner.
	ring       []fabric.Completion // a power of two
	head, tail uint32              // free-running
	err        error               // the overflow, told by Poll when the ring is empty

	// Any goroutine.
	armed   atomic.Bool // notify is owed
	pending atomic.Bool // a Poll was asked for since the last one began
	mail    Mailbox

	mu     sync.Mutex
	users  map[User]struct{}
	closed bool
}

// Init makes q a queue for depth completions of a device. notify is
// fabric.Device.NewCompletionQueue's; progress is called in each Poll, inside
// the guard, to do the provider's work; either may be nil.
func (q *CQ) Init(d *Device, depth int, notify, progress func()) error {
	if limit := d.Limits().MaxCQDepth; depth <= 0 || limit > 0 && depth > limit {
		return d.opError("create CQ", fmt.Errorf("%w: depth %d, the limit is %d", fabric.ErrInvalid, depth, limit))
	}
	gone, err := d.count("create CQ", &d.cqs, d.Limits().MaxCQ)
	if err != nil {
		return err
	}
	q.dev, q.depth, q.notify, q.progress, q.gone = d, uint32(depth), notify, progress, gone
	q.guard = d.guards.New()
	q.ring = make([]fabric.Completion, ringSize(depth))
	q.users = make(map[User]struct{})
	return nil
}

// ringSize is the smallest power of two that holds n.
func ringSize(n int) int {
	if n <= 1 {
		return n
	}
	return 1 << bits.Len(uint(n-1))
}

// Guard is the guard of the CQ's owner, for lookups outside of Poll (in
// PostSend).
func (q *CQ) Guard() *Guard { return q.guard }

// Poll does the provider's work and takes up to len(wc) completions. After an
// overflow it fails, wrapping fabric.ErrQueueFull, once what had fit is taken.
func (q *CQ) Poll(wc []fabric.Completion) (int, error) {
	n := q.take(wc)
	if n > 0 && n == len(wc) {
		return n, nil
	}
	q.advance()
	if n += q.take(wc[n:]); n == 0 && q.err != nil {
		return 0, q.err
	}
	return n, nil
}

func (q *CQ) advance() {
	if q.pending.Load() {
		q.pending.Store(false)
	}
	q.mail.Run()
	if q.progress != nil && q.ring != nil {
		q.guard.Enter()
		q.progress()
		q.guard.Leave()
	}
}

func (q *CQ) take(wc []fabric.Completion) int {
	n := min(len(wc), int(q.tail-q.head))
	if n == 0 {
		return 0
	}
	from := int(q.head) & (len(q.ring) - 1)
	k := copy(wc[:n], q.ring[from:])
	copy(wc[k:n], q.ring)
	q.head += uint32(n)
	return n
}

// Empty says whether there is no completion to take. The owner calls it.
func (q *CQ) Empty() bool { return q.tail == q.head }

// Armed says whether a notify is owed: the owner may be about to sleep.
func (q *CQ) Armed() bool { return q.armed.Load() }

// Disarm takes Arm back: the owner is awake. The owner calls it.
func (q *CQ) Disarm() { q.armed.Store(false) }

// Push adds a completion; the owner calls it. With no room the CQ has
// overflowed: that completion and all later ones are lost, each QP of the CQ
// is told with CQError, and Poll will fail.
func (q *CQ) Push(c fabric.Completion) {
	if q.err != nil || q.ring == nil {
		return
	}
	if q.tail-q.head == q.depth {
		q.overflow()
		return
	}
	q.ring[int(q.tail)&(len(q.ring)-1)] = c
	q.tail++
	if q.armed.Load() {
		q.fire()
	}
}

func (q *CQ) overflow() {
	q.err = q.dev.opError("poll", fmt.Errorf("%w: the completion queue of %d overflowed", fabric.ErrQueueFull, q.depth))
	for _, u := range q.attached() {
		u.CQError(q.err)
	}
	q.Wake()
}

func (q *CQ) attached() []User {
	q.mu.Lock()
	defer q.mu.Unlock()
	users := make([]User, 0, len(q.users))
	for u := range q.users {
		users = append(users, u)
	}
	return users
}

// Arm asks for one notify at the next completion or request for a Poll. When
// there is one already, notify is called before Arm returns.
func (q *CQ) Arm() error {
	if q.ring == nil {
		return q.dev.opError("arm", net.ErrClosed)
	}
	q.armed.Store(true)
	if q.tail != q.head || q.err != nil || q.pending.Load() {
		q.fire()
	}
	return nil
}

// Wake asks for a Poll, from any goroutine: whoever makes work for the owner
// publishes it first and then calls Wake.
func (q *CQ) Wake() {
	if !q.pending.Load() {
		q.pending.Store(true)
	}
	if q.armed.Load() {
		q.fire()
	}
}

// fire calls notify if it is owed.
func (q *CQ) fire() {
	if q.armed.CompareAndSwap(true, false) && q.notify != nil {
		q.notify()
	}
}

// Do has the owner run fn in its next Poll, outside of the guard. Any
// goroutine may call it.
func (q *CQ) Do(fn func()) {
	q.mail.Send(fn)
	q.Wake()
}

// Attach registers a QP as user of the CQ; once for each of its two queues is
// once. It fails when the CQ is closed. Any goroutine may call it.
func (q *CQ) Attach(u User) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return q.dev.opError("create QP", fmt.Errorf("completion queue: %w", net.ErrClosed))
	}
	q.users[u] = struct{}{}
	return nil
}

// Detach ends an Attach. Any goroutine may call it.
func (q *CQ) Detach(u User) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.users, u)
}

// Purge drops the completions of a QP that is destroyed. The owner calls it.
func (q *CQ) Purge(qpn uint32) {
	mask, keep := len(q.ring)-1, q.head
	for i := q.head; i != q.tail; i++ {
		if c := q.ring[int(i)&mask]; c.QPN != qpn {
			q.ring[int(keep)&mask] = c
			keep++
		}
	}
	q.tail = keep
}

// Close ends the CQ. It fails with fabric.ErrBusy while a QP uses it; closing
// twice is nil. The owner calls it.
func (q *CQ) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return nil
	case len(q.users) > 0:
		return q.dev.opError("close CQ", fmt.Errorf("%w by %d queue pairs", fabric.ErrBusy, len(q.users)))
	}
	q.closed = true
	q.dev.guards.Remove(q.guard)
	q.ring, q.head, q.tail = nil, 0, 0
	q.err = q.dev.opError("poll", net.ErrClosed)
	q.gone()
	return nil
}
