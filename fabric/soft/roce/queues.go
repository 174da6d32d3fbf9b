package roce

import (
	"container/heap"
	"time"

	"github.com/nvmf-go/nvmf/fabric/soft/rc"
)

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
