package cache

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// late is a device whose operations take effect, and complete, some Reaps
// after their Submit, in any order, and fail now and then.
type late struct {
	backend.Device
	faults int // one of so many operations fails; 0: none
	seed   atomic.Uint64
}

func (d *late) NewQueue(depth int, notify func()) (backend.Queue, error) {
	q, err := d.Device.NewQueue(1, func() {})
	if err != nil {
		return nil, err
	}
	return &lateQueue{Queue: q, dev: d, depth: depth, notify: notify, rng: rand.New(rand.NewPCG(d.seed.Add(1), 7)),
		waiting: make([]backend.Op, 0, depth), ended: make([]backend.Completion, 0, depth)}, nil
}

type lateQueue struct {
	backend.Queue
	dev     *late
	depth   int
	notify  func()
	rng     *rand.Rand
	waiting []backend.Op
	ended   []backend.Completion
	one     [1]backend.Op
	done    [1]backend.Completion
}

func (q *lateQueue) Submit(ops []backend.Op) int {
	n := min(len(ops), q.depth-len(q.waiting)-len(q.ended))
	q.waiting = append(q.waiting, ops[:n]...)
	return n
}

func (q *lateQueue) Reap(done []backend.Completion) int {
	for range len(q.waiting) {
		if q.rng.IntN(3) == 0 {
			q.end(q.rng.IntN(len(q.waiting)))
		}
	}
	n := 0
	for n < len(done) && len(q.ended) > 0 && q.rng.IntN(4) > 0 {
		i, last := q.rng.IntN(len(q.ended)), len(q.ended)-1
		done[n] = q.ended[i]
		q.ended[i] = q.ended[last]
		q.ended = q.ended[:last]
		n++
	}
	return n
}

// end runs one operation. One that fails may have taken effect, and a read may
// have left anything in its buffers.
func (q *lateQueue) end(i int) {
	op, last := q.waiting[i], len(q.waiting)-1
	q.waiting[i] = q.waiting[last]
	q.waiting = q.waiting[:last]
	fails := q.dev.faults > 0 && q.rng.IntN(q.dev.faults) == 0
	st := nvme.Success
	if !fails || q.rng.IntN(2) == 0 {
		q.one[0] = op
		q.Queue.Submit(q.one[:])
		q.Queue.Reap(q.done[:])
		st = q.done[0].Status
	}
	if fails && st == nvme.Success {
		st = map[bool]nvme.Status{true: nvme.UnrecoveredReadError, false: nvme.WriteFault}[op.Kind == backend.Read]
	}
	if st != nvme.Success && op.Kind == backend.Read {
		for _, b := range op.Bufs {
			for i := range b {
				b[i] = 0xEE
			}
		}
	}
	q.ended = append(q.ended, backend.Completion{ID: op.ID, Status: st})
}

// Arm notifies at once: each Reap moves things on.
func (q *lateQueue) Arm() { q.notify() }
