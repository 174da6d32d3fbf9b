// Package inline is the queue of backends that finish an operation inside
// Submit: those whose medium is memory, or nothing.
package inline

import (
	"fmt"
	"net"
	"sync"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// MaxDepth bounds a queue's depth: more than any fabrics queue can hold.
const MaxDepth = 1 << 16

// Queue implements backend.Queue over a function that runs one operation.
type Queue struct {
	// Constant.
	run    func(*backend.Op) nvme.Status
	notify func()
	open   *Opens

	// Owner.
	done   []backend.Completion // a ring, depth long
	head   int                  // the oldest completion
	n      int                  // completions waiting for Reap
	armed  bool
	closed bool
}

// NewQueue makes a queue of the device that open counts for.
func NewQueue(open *Opens, depth int, notify func(), run func(*backend.Op) nvme.Status) (*Queue, error) {
	if depth < 1 || depth > MaxDepth {
		return nil, &backend.OptionError{Field: "depth", Value: depth, Want: fmt.Sprintf("1 to %d", MaxDepth)}
	}
	if err := open.Add(); err != nil {
		return nil, err
	}
	return &Queue{run: run, notify: notify, open: open, done: make([]backend.Completion, depth)}, nil
}

// Submit runs operations while there is room for their completions.
func (q *Queue) Submit(ops []backend.Op) int {
	if q.closed {
		return 0
	}
	took := min(len(ops), len(q.done)-q.n)
	for i := range ops[:took] {
		q.push(backend.Completion{ID: ops[i].ID, Status: q.run(&ops[i])})
	}
	if took > 0 {
		q.wake()
	}
	return took
}

func (q *Queue) push(c backend.Completion) {
	at := q.head + q.n
	if at >= len(q.done) {
		at -= len(q.done)
	}
	q.done[at] = c
	q.n++
}

// Reap hands out completions in the order of submission.
func (q *Queue) Reap(done []backend.Completion) int {
	n := min(len(done), q.n)
	for i := range done[:n] {
		done[i] = q.done[q.head]
		if q.head++; q.head == len(q.done) {
			q.head = 0
		}
	}
	q.n -= n
	return n
}

// Arm calls notify at once when completions wait, else at the next Submit:
// nothing completes in between.
func (q *Queue) Arm() {
	q.armed = true
	if q.n > 0 {
		q.wake()
	}
}

func (q *Queue) wake() {
	if q.armed {
		q.armed = false
		q.notify()
	}
}

// Close drops the completions that were not reaped.
func (q *Queue) Close() error {
	if !q.closed {
		q.closed, q.n = true, 0
		q.open.Done()
	}
	return nil
}

// Opens counts the open queues of a device, and whether it is closed. The
// zero value is an open device without queues. It is safe for concurrent use.
type Opens struct {
	mu     sync.Mutex
	queues int
	closed bool
}

// Add counts a queue; it fails with net.ErrClosed after Close.
func (o *Opens) Add() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return fmt.Errorf("backend: %w", net.ErrClosed)
	}
	o.queues++
	return nil
}

// Done takes back one Add.
func (o *Opens) Done() {
	o.mu.Lock()
	o.queues--
	o.mu.Unlock()
}

// Close marks the device closed and runs release, once. It fails with ErrBusy
// while queues are open.
func (o *Opens) Close(release func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if o.queues > 0 {
		return fmt.Errorf("%w: %d queues open", backend.ErrBusy, o.queues)
	}
	o.closed = true
	return release()
}
