package cache

import (
	"github.com/dgraph-io/ristretto/v2"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// naive is a cache that relies on ristretto's order: what a page cache looks
// like before it is coherent. A write is followed by a Set of the new page or
// by a Del.
type naive struct {
	backend.Device
	rc       *ristretto.Cache[uint64, []byte]
	setAfter bool // else Del
}

func newNaive(dev backend.Device, pages int64, setAfter bool) *naive {
	rc, err := ristretto.NewCache(&ristretto.Config[uint64, []byte]{
		NumCounters: 10 * pages, MaxCost: pages, BufferItems: 64, IgnoreInternalCost: true,
		KeyToHash: func(p uint64) (uint64, uint64) { return mix(p), 0 },
	})
	if err != nil {
		panic(err)
	}
	return &naive{dev, rc, setAfter}
}

func (d *naive) Close() error {
	d.rc.Wait()
	d.rc.Close()
	return d.Device.Close()
}

func (d *naive) NewQueue(depth int, notify func()) (backend.Queue, error) {
	q, err := d.Device.NewQueue(depth, notify)
	if err != nil {
		return nil, err
	}
	return &naiveQueue{Queue: q, dev: d, ops: map[uint64]*naiveOp{}}, nil
}

type naiveQueue struct {
	backend.Queue
	dev  *naive
	ops  map[uint64]*naiveOp // in flight, by ID
	done []backend.Completion
}

// naiveOp is an operation in flight; page is what a read of a whole page
// fills, or a write of one holds.
type naiveOp struct {
	op   backend.Op
	page []byte
}

func (q *naiveQueue) Submit(ops []backend.Op) int {
	for i := range ops {
		q.submit(ops[i])
	}
	return len(ops)
}

func (q *naiveQueue) submit(op backend.Op) {
	n := &naiveOp{op: op}
	page, in := op.Offset/MinPage, op.Offset%MinPage
	if op.Kind == backend.Read && in+op.Length <= MinPage {
		if data, ok := q.dev.rc.Get(page); ok {
			scatterTo(op.Bufs, data[in:in+op.Length])
			q.done = append(q.done, backend.Completion{ID: op.ID})
			return
		}
		n.page = make([]byte, MinPage)
		op.Offset, op.Length, op.Bufs = page*MinPage, MinPage, [][]byte{n.page}
	}
	if op.Kind == backend.Write && in == 0 && op.Length == MinPage {
		for _, b := range op.Bufs {
			n.page = append(n.page, b...)
		}
	}
	q.ops[op.ID] = n
	if q.Queue.Submit([]backend.Op{op}) != 1 {
		panic("a queue that is full")
	}
}

func (q *naiveQueue) Reap(done []backend.Completion) int {
	n := copy(done, q.done)
	q.done = q.done[n:]
	got := q.Queue.Reap(done[n:])
	for _, c := range done[n : n+got] {
		q.end(q.ops[c.ID], c.Status)
		delete(q.ops, c.ID)
	}
	return n + got
}

func (q *naiveQueue) end(n *naiveOp, st nvme.Status) {
	first, last := n.op.Offset/MinPage, (n.op.Offset+max(n.op.Length, 1)-1)/MinPage
	switch {
	case n.op.Kind == backend.Read && n.page != nil && st == nvme.Success:
		in := n.op.Offset % MinPage
		scatterTo(n.op.Bufs, n.page[in:in+n.op.Length])
		q.dev.rc.Set(first, n.page, 1)
	case n.op.Kind == backend.Read || n.op.Kind == backend.Flush:
	case n.page != nil && st == nvme.Success && q.dev.setAfter:
		q.dev.rc.Set(first, n.page, 1)
	default:
		for p := first; p <= last; p++ {
			q.dev.rc.Del(p)
		}
	}
}

func scatterTo(bufs [][]byte, b []byte) {
	for _, to := range bufs {
		b = b[copy(to, b):]
	}
}
