// Package inline is the queue of backends that finish an operation inside
// Submit: those whose medium is memory, or nothing.
package inline

import (
	"fmt"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/internal/users"
	"github.com/nvmf-go/nvmf/nvme"
)

// MaxDepth bounds a queue's depth: more than any fabrics queue can hold.
const MaxDepth = 1 << 16

// Queue implements backend.Queue over a function that runs one operation.
type Queue struct {
	// Constant.
	run    func(*backend.Op) nvme.Status
	notify func()
	dev    *users.Count

	// Owner.
	done   []backend.Completion // a ring, depth long
	head   int                  // the oldest completion
	n      int                  // completions waiting for Reap
	armed  bool
	closed bool
}

// NewQueue makes a queue of the device that dev counts for.
func NewQueue(dev *users.Count, depth int, notify func(), run func(*backend.Op) nvme.Status) (*Queue, error) {
	if depth < 1 || depth > MaxDepth {
		return nil, &backend.OptionError{Field: "depth", Value: depth, Want: fmt.Sprintf("1 to %d", MaxDepth)}
	}
	if err := dev.Add(); err != nil {
		return nil, err
	}
	return &Queue{run: run, notify: notify, dev: dev, done: make([]backend.Completion, depth)}, nil
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
		q.dev.Done()
	}
	return nil
}
