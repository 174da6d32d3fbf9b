package roce

import (
	"container/heap"
	"time"

	"github.com/nvmf-go/nvmf/fabric/soft/rc"
)

// ring is a queue of QPs that grows as needed and is reused.
type ring struct {
	q    []*queuePair
	head int
	n    int
}

func (r *ring) len() int { return r.n }

func (r *ring) push(q *queuePair) {
	if r.n == len(r.q) {
		bigger := make([]*queuePair, max(16, 2*len(r.q)))
		for i := range r.n {
			bigger[i] = r.q[(r.head+i)%len(r.q)]
		}
		r.q, r.head = bigger, 0
	}
	r.q[(r.head+r.n)%len(r.q)] = q
	r.n++
}

func (r *ring) pop() *queuePair {
	q := r.q[r.head]
	r.q[r.head] = nil
	r.head = (r.head + 1) % len(r.q)
	r.n--
	return q
}

// remove takes q out, wherever it is.
func (r *ring) remove(q *queuePair) {
	for range r.n {
		if o := r.pop(); o != q {
			r.push(o)
		}
	}
}

// timers is a heap of the QPs that wait for something. A QP whose deadline has
// moved on, as it does with each answer, stays where it is until it comes up:
// then it is put back.
type timers struct{ h timerHeap }

type timerHeap []*queuePair

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push is for package heap.
func (h *timerHeap) Push(x any) {
	q := x.(*queuePair)
	q.place = len(*h)
	*h = append(*h, q)
}

// Pop is for package heap.
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	q := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	q.place = -1
	return q
}

// next is when the first may be due.
func (t *timers) next() time.Duration {
	if len(t.h) == 0 {
		return rc.Never
	}
	return t.h[0].due
}

func (t *timers) remove(q *queuePair) {
	if q.place >= 0 {
		heap.Remove(&t.h, q.place)
	}
}

// schedule puts the QP's deadline into the heap, if it is earlier than what is
// there.
func (e *engine) schedule(q *queuePair) {
	switch d := q.Deadline(); {
	case d == rc.Never || q.place >= 0 && q.due <= d:
	case q.place >= 0:
		q.due = d
		heap.Fix(&e.timers.h, q.place)
	default:
		q.due = d
		heap.Push(&e.timers.h, q)
	}
}

// expire runs the timers that are due.
func (e *engine) expire(now time.Duration) {
	for e.timers.next() <= now {
		q := heap.Pop(&e.timers.h).(*queuePair)
		if q.Deadline() <= now {
			q.Expire(now)
			e.activate(q)
		}
		e.schedule(q)
	}
}
