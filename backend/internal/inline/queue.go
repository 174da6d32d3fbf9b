// Package inline is the queue of backends that finish an operation inside
// Submit: those whose medium is memory, or nothing.
package inline

import (
	"fmt"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/internal/fifo"
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
	done   fifo.Completions // waiting for Reap
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
	return &Queue{run: run, notify: notify, dev: dev, done: fifo.New(depth)}, nil
}

// Submit runs operations while there is room for their completions.
func (q *Queue) Submit(ops []backend.Op) int {
	if q.closed {
		return 0
	}
	took := min(len(ops), q.done.Room())
	for i := range ops[:took] {
		q.done.Push(backend.Completion{ID: ops[i].ID, Status: q.run(&ops[i])})
	}
	if took > 0 {
		q.wake()
	}
	return took
}

// Reap hands out completions in the order of submission.
func (q *Queue) Reap(done []backend.Completion) int { return q.done.Pop(done) }

// Arm calls notify at once when completions wait, else at the next Submit:
// nothing completes in between.
func (q *Queue) Arm() {
	q.armed = true
	if q.done.Len() > 0 {
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
		q.closed = true
		q.done.Clear()
		q.dev.Done()
	}
	return nil
}
