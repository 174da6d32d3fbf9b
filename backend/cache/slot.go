package cache

import "sync/atomic"

// desc describes a slot, which is memory for a page. number and stamp are
// written by who took the slot from the free ones, before ref leaves 0, and
// read under a reference.
type desc struct {
	// ref counts who may read the page: the entry that leads to it or a queue
	// that reads ahead, and each reader. At 0 the slot is free or its taker's
	// alone, and nobody else gets a reference. What is published does not
	// change.
	ref    atomic.Int32
	number uint64 // of the page on the device
	stamp
}

// slots is all slots. Slot 0 is none. Its methods are safe for concurrent use
// and take no lock.
type slots struct {
	// Constant.
	mem   []byte
	page  uint64 // bytes
	descs []desc // by slot
	freed func(slot uint32)
	// Atomic.
	stack stack
	used  atomic.Int64 // slots that are not free
}

// newSlots frees all whole pages of mem.
func newSlots(mem []byte, page int) *slots {
	n := len(mem) / page
	return &slots{mem: mem, page: uint64(page), descs: make([]desc, n+1), stack: newStack(n)}
}

func (s *slots) count() uint64 { return uint64(len(s.descs) - 1) }

// data is the memory of a slot.
func (s *slots) data(slot uint32) []byte {
	at := uint64(slot-1) * s.page
	return s.mem[at : at+s.page : at+s.page]
}

// take gives a free slot to the caller alone, 0 when there is none.
func (s *slots) take() uint32 {
	slot := s.stack.pop()
	if slot != 0 {
		s.used.Add(1)
	}
	return slot
}

// free gives back a slot that is the caller's alone.
func (s *slots) free(slot uint32) {
	if s.freed != nil {
		s.freed(slot)
	}
	s.used.Add(-1)
	s.stack.push(slot)
}

// ref takes a reference, unless nobody has one.
func (s *slots) ref(slot uint32) bool { return refer(&s.descs[slot].ref) }

// unref gives a reference back, and the slot with the last one.
func (s *slots) unref(slot uint32) {
	if s.descs[slot].ref.Add(-1) == 0 {
		s.free(slot)
	}
}

// refer adds to a count of references that is not 0.
func refer(r *atomic.Int32) bool {
	for {
		n := r.Load()
		if n <= 0 {
			return false
		}
		if r.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// stack is a stack of the numbers 1 to n that takes no lock.
type stack struct {
	top  *atomic.Uint64  // a count of changes, and a number
	next []atomic.Uint32 // of each
}

// newStack has all of 1 to n on it, the first on top.
func newStack(n int) stack {
	s := stack{new(atomic.Uint64), make([]atomic.Uint32, n+1)}
	for i := n; i > 0; i-- {
		s.push(uint32(i))
	}
	return s
}

// pop is 0 when there is none. A number that is popped and pushed meanwhile,
// with another next, has changed the count.
func (s *stack) pop() uint32 {
	for {
		top := s.top.Load()
		n := uint32(top)
		if n == 0 {
			return 0
		}
		if s.top.CompareAndSwap(top, changed(top)|uint64(s.next[n].Load())) {
			return n
		}
	}
}

func (s *stack) push(n uint32) {
	for {
		top := s.top.Load()
		s.next[n].Store(uint32(top))
		if s.top.CompareAndSwap(top, changed(top)|uint64(n)) {
			return
		}
	}
}

func changed(top uint64) uint64 { return (top>>32 + 1) << 32 }
