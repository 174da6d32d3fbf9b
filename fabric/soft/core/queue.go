package core

import (
	"github.com/nvmf-go/nvmf/fabric"
)

// Send is a posted send WR. The first half is the WR; the rest is for its way
// through the provider. A bind is an OpBind whose RKey is the new key, Imm the
// region's key and RemoteAddr the address.
type Send struct {
	fabric.SendWR
	Compare uint64 // atomics; the length of a bind
	SwapAdd uint64 // atomics; the rights of a bind
	Length  uint32 // bytes of the message

	// For the provider: what its wire knows the WR by.
	First, Last uint32
	Aux         uint32
}

// SendQueue is the ring of posted sends. Positions are free-running numbers:
// the WRs in it are those from Head (the oldest whose slot is not free) to
// Tail, and Next is the oldest not completed. Between Head and Next are
// unsignaled WRs: their slots come free when a later WR completes with a
// completion. The owner calls every method.
type SendQueue struct {
	slots     []Send // a power of two
	sges      []fabric.SGE
	inline    []byte
	depth     uint32
	maxSGE    int
	maxInline int

	head, next, tail uint32
}

func (q *SendQueue) init(depth, maxSGE, maxInline int) {
	n := ringSize(depth)
	q.depth, q.maxSGE, q.maxInline = uint32(depth), maxSGE, maxInline
	q.slots = make([]Send, n)
	q.sges = make([]fabric.SGE, n*maxSGE)
	q.inline = make([]byte, n*maxInline)
}

// Next is the position of the oldest WR that is not completed; it is Tail when
// there is none.
func (q *SendQueue) Next() uint32 { return q.next }

// Tail is the position the next posted WR will get.
func (q *SendQueue) Tail() uint32 { return q.tail }

// Pending is the number of WRs that are not completed.
func (q *SendQueue) Pending() int { return int(q.tail - q.next) }

// Full says whether the next post will fail.
func (q *SendQueue) Full() bool { return q.tail-q.head == q.depth }

func (q *SendQueue) slot(pos uint32) int { return int(pos) & (len(q.slots) - 1) }

// At is the WR at a position. Its memory is reused once its slot is free.
func (q *SendQueue) At(pos uint32) *Send { return &q.slots[q.slot(pos)] }

// SGEs is the gather list of the WR at a position, or the sink of a READ or an
// atomic. It is void for an inline WR.
func (q *SendQueue) SGEs(pos uint32) []fabric.SGE {
	i := q.slot(pos)
	return q.sges[i*q.maxSGE:][:q.slots[i].NumSGE]
}

// Inline is the payload of an inline WR.
func (q *SendQueue) Inline(pos uint32) []byte {
	i := q.slot(pos)
	return q.inline[i*q.maxInline:][:q.slots[i].Length]
}

// add takes the next slot for wr, whose SGEs are given. There must be room.
func (q *SendQueue) add(wr *fabric.SendWR, sges []fabric.SGE, length uint32) *Send {
	i := q.slot(q.tail)
	s := &q.slots[i]
	s.SendWR, s.Length = *wr, length
	if wr.Flags&fabric.FlagInline != 0 {
		copyInline(q.inline[i*q.maxInline:][:q.maxInline], sges)
	} else {
		copy(q.sges[i*q.maxSGE:], sges)
	}
	q.tail++
	return s
}

// Recv is a receive taken from its queue.
type Recv struct {
	ID   uint64
	SGEs []fabric.SGE
	Held bool // false: there is none
}

// Room is the number of bytes that fit.
func (r *Recv) Room() uint64 { return Total(r.SGEs) }

// RecvQueue is a ring of posted receives, of a QP or shared by many. The owner
// calls every method.
type RecvQueue struct {
	slots  []recvSlot // a power of two
	sges   []fabric.SGE
	depth  uint32
	maxSGE int

	head, tail uint32
}

type recvSlot struct {
	id  uint64
	num uint8
}

func (q *RecvQueue) init(depth, maxSGE int) {
	n := ringSize(depth)
	q.depth, q.maxSGE = uint32(depth), maxSGE
	q.slots = make([]recvSlot, n)
	q.sges = make([]fabric.SGE, n*maxSGE)
}

// Len is the number of receives posted and not taken.
func (q *RecvQueue) Len() int { return int(q.tail - q.head) }

// post adds wrs until one does not fit or is wrong.
func (q *RecvQueue) post(wrs []fabric.RecvWR, sges []fabric.SGE) (int, error) {
	for n := range wrs {
		wr := &wrs[n]
		list, err := listOf(wr.FirstSGE, wr.NumSGE, sges, q.maxSGE)
		switch {
		case err != nil:
			return n, err
		case q.tail-q.head == q.depth:
			return n, fabric.ErrQueueFull
		}
		i := int(q.tail) & (len(q.slots) - 1)
		q.slots[i] = recvSlot{id: wr.ID, num: wr.NumSGE}
		copy(q.sges[i*q.maxSGE:], list)
		q.tail++
	}
	return len(wrs), nil
}

// take moves the oldest receive into r, whose SGEs have room for it.
func (q *RecvQueue) take(r *Recv) bool {
	if q.head == q.tail {
		return false
	}
	i := int(q.head) & (len(q.slots) - 1)
	s := q.slots[i]
	r.ID, r.Held = s.id, true
	r.SGEs = append(r.SGEs[:0], q.sges[i*q.maxSGE:][:s.num]...)
	q.head++
	return true
}

// listOf is the SGE list of a WR.
func listOf(first uint32, num uint8, sges []fabric.SGE, limit int) ([]fabric.SGE, error) {
	switch {
	case int(num) > limit:
		return nil, errSGECount
	case uint64(first) > uint64(len(sges)) || uint64(num) > uint64(len(sges))-uint64(first):
		return nil, errSGEIndex
	}
	return sges[first:][:num], nil
}
