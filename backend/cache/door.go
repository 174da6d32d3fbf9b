package cache

import "sync/atomic"

// door remembers which pages were read of late and not found. One word for
// several: they push each other out, which is how it forgets. It keeps pages
// that are read once away from ristretto, whose Set allocates and takes its
// goroutine's time even if it refuses.
type door struct{ words []atomic.Uint32 }

func newDoor(pages uint64) *door { return &door{make([]atomic.Uint32, doorWords(pages))} }

// seen says whether the page of a hash came by before, and remembers it.
func (d *door) seen(hash uint64) bool {
	w := &d.words[hash>>28&uint64(len(d.words)-1)]
	if w.Load() == uint32(hash) {
		return true
	}
	w.Store(uint32(hash))
	return false
}
