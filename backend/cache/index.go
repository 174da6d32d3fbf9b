package cache

import (
	"sync/atomic"

	"github.com/dgraph-io/ristretto/v2"
)

// index finds slots by the hash of their page's number, and decides which pages
// stay. It is ristretto, of which nothing is expected but these: Get gives an
// entry that was Set for the hash at some time, or nothing; and an entry whose
// Set returned true goes through OnExit exactly once. What it gives may have
// left it, may reappear after a Del and may be older than the last Set. So each
// slot carries the number of its page and the stamp of its content, and who
// gets one checks them.
//
// Ristretto holds entries and not slots, so that a page which changes stays in
// it: Set allocates, and its goroutine, which decides, must keep up.
type index struct {
	rc       *ristretto.Cache[uint64, uint32]
	slots    *slots
	entries  []entry // by number; 0 is none
	stack    stack   // of free ones
	evicted  atomic.Uint64
	rejected atomic.Uint64
}

// entry leads from a page to a slot. page is written by who took the entry
// from the free ones, before ref leaves 0, and read under a reference.
type entry struct {
	ref  atomic.Int32  // ristretto, and who replaces the slot
	slot atomic.Uint32 // under a reference of this entry
	page uint64
}

// maxSlack is how many slots are left for pages that wait to enter or leave
// ristretto, whose goroutine a polling owner can hold up for 10 ms, and for
// pages that are lent or read ahead.
const maxSlack = 1024

// capacity is how many of n slots the index holds.
func capacity(n uint64) uint64 { return n - max(1, min(n/8, maxSlack)) }

func newIndex(s *slots) (*index, error) {
	n := s.count()
	x := &index{slots: s, entries: make([]entry, n+1), stack: newStack(int(n))}
	var err error
	x.rc, err = ristretto.NewCache(&ristretto.Config[uint64, uint32]{
		NumCounters: int64(counters(n)),
		MaxCost:     int64(capacity(n)),
		BufferItems: 64, // fewer count worse
		// A hash is a bijection of a page number: there are no conflicts.
		KeyToHash:          func(hash uint64) (uint64, uint64) { return hash, 0 },
		IgnoreInternalCost: true,
		OnEvict:            func(*ristretto.Item[uint32]) { x.evicted.Add(1) },
		OnReject:           func(*ristretto.Item[uint32]) { x.rejected.Add(1) },
		// Runs on any goroutine, also under ristretto's locks, and for
		// deletions of nothing with entry 0. It must not call ristretto.
		OnExit: func(e uint32) {
			if e != 0 {
				x.unref(e)
			}
		},
	})
	return x, err
}

// get finds an entry, 0 if none, and counts the access for TinyLFU.
func (x *index) get(hash uint64) uint32 {
	e, _ := x.rc.Get(hash)
	return e
}

// slot is where an entry leads by now, 0 if nowhere.
func (x *index) slot(e uint32) uint32 { return x.entries[e].slot.Load() }

// replace has an entry, if it is still that of a page, lead to another slot,
// whose reference it takes over.
func (x *index) replace(e uint32, page uint64, slot uint32) bool {
	n := &x.entries[e]
	if e == 0 || !refer(&n.ref) {
		return false
	}
	if n.page != page {
		x.unref(e)
		return false
	}
	if old := n.slot.Swap(slot); old != 0 {
		x.slots.unref(old)
	}
	x.unref(e)
	return true
}

// add hands a new entry to ristretto, and with it the reference of a slot. It
// reports whether it took it; if not the reference is gone.
func (x *index) add(page uint64, slot uint32) bool {
	e := x.stack.pop()
	if e == 0 {
		x.slots.unref(slot)
		return false
	}
	n := &x.entries[e]
	n.page = page
	n.slot.Store(slot)
	n.ref.Store(1) // before it can be found
	if x.rc.Set(mix(page), e, 1) {
		return true
	}
	x.unref(e) // no callback comes for what Set refused
	return false
}

// unref gives back a reference of an entry, and the entry and its slot with the
// last one.
func (x *index) unref(e uint32) {
	n := &x.entries[e]
	if n.ref.Add(-1) > 0 {
		return
	}
	if slot := n.slot.Swap(0); slot != 0 {
		x.slots.unref(slot)
	}
	x.stack.push(e)
}

// remove gives memory back early. It may block: not for the data path.
func (x *index) remove(hash uint64) { x.rc.Del(hash) }

// close ends ristretto; nobody uses it any more. All its references are gone
// then.
func (x *index) close() {
	x.rc.Wait()
	x.rc.Close()
}
