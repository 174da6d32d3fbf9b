package rdma

import (
	"sync"

	"github.com/nvmf-go/nvmf/backend"
)

// gate is a device whose operations do not end before it is opened.
type gate struct {
	size uint64

	mu      sync.Mutex
	isOpen  bool
	waiting int // operations submitted and not reaped
	queues  map[*gateQueue]struct{}
}

type gateQueue struct {
	g      *gate
	notify func()
	armed  bool
	ids    []uint64
}

func newGate(size uint64) *gate { return &gate{size: size, queues: map[*gateQueue]struct{}{}} }

// open lets everything through, from now on.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isOpen = true
	for q := range g.queues {
		if q.armed {
			q.armed = false
			q.notify()
		}
	}
}

func (g *gate) inFlight() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

func (g *gate) Info() backend.Info {
	return backend.Info{
		Type: "gate", BlockSize: 4096, Blocks: g.size / 4096,
		Kinds: backend.Kinds(backend.Read, backend.Write, backend.Flush),
	}
}

func (g *gate) Refresh() (bool, error) { return false, nil }
func (g *gate) Close() error           { return nil }

func (g *gate) NewQueue(depth int, notify func()) (backend.Queue, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := &gateQueue{g: g, notify: notify}
	g.queues[q] = struct{}{}
	return q, nil
}

func (q *gateQueue) Submit(ops []backend.Op) int {
	q.g.mu.Lock()
	defer q.g.mu.Unlock()
	for _, op := range ops {
		q.ids = append(q.ids, op.ID)
	}
	q.g.waiting += len(ops)
	return len(ops)
}

func (q *gateQueue) Reap(done []backend.Completion) int {
	q.g.mu.Lock()
	defer q.g.mu.Unlock()
	if !q.g.isOpen {
		return 0
	}
	n := min(len(done), len(q.ids))
	for i, id := range q.ids[:n] {
		done[i] = backend.Completion{ID: id}
	}
	q.ids = q.ids[:copy(q.ids, q.ids[n:])]
	q.g.waiting -= n
	return n
}

func (q *gateQueue) Arm() {
	q.g.mu.Lock()
	defer q.g.mu.Unlock()
	q.armed = true
	if q.g.isOpen && len(q.ids) > 0 {
		q.armed = false
		q.notify()
	}
}

func (q *gateQueue) Close() error {
	q.g.mu.Lock()
	defer q.g.mu.Unlock()
	delete(q.g.queues, q)
	return nil
}
