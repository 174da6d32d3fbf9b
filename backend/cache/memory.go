package cache

import (
	"fmt"
	"math/bits"

	"github.com/nvmf-go/nvmf/backend"
)

// Memory is what a cache takes, in bytes by purpose. All of it is taken for as
// long as the cache is open, or bounds what it can grow to (Entries). The
// slots of a queue's operations are not in it, as with any backend.
type Memory struct {
	Pages    uint64 // Options.Memory
	Slots    uint64 // a descriptor and an entry for each page
	Versions uint64 // the words that say whether a page is the medium's content
	Door     uint64 // which pages were read once of late
	Counters uint64 // ristretto: how often pages are read (TinyLFU)
	Entries  uint64 // ristretto: its two maps and what waits to enter them
	Fixed    uint64 // ristretto and ours, whatever the size
}

// Total is the sum.
func (m Memory) Total() uint64 {
	return m.Pages + m.Slots + m.Versions + m.Door + m.Counters + m.Entries + m.Fixed
}

const (
	maxPages = 1 << 30

	slotBytes = 32 + 4 + 16 + 4 // a desc, an entry, and their links in free lists
	// An entry lies in a map of 56-byte and in one of 16-byte pairs. A map is
	// between 7/16 and 7/8 full once it has grown, and an entry that waits to
	// be set is an item of 80 bytes.
	entryBytes = 256
	// The channel of ristretto has room for 32768 pointers; 256 shards; stripes
	// of Get; the table of regions.
	fixedBytes = 384<<10 + 2*numRegions*8
)

// slotsOf is how many pages of a size fit in memory of so many bytes.
func slotsOf(bytes uint64, page int) uint64 { return bytes / uint64(page) }

// versionWords is how many version words n pages have: 2 to 4 for each, so
// that a write seldom makes another page stale.
func versionWords(n uint64) uint64 { return ceilPow2(2*n + 1) }

// doorWords is how many recent misses are remembered for n pages: 4 to 8 for
// each.
func doorWords(n uint64) uint64 { return ceilPow2(4 * n) }

// counters is ristretto's NumCounters for n pages: 8 to 16 for each, of which
// it makes the same power of two.
func counters(n uint64) uint64 { return ceilPow2(8 * n) }

func ceilPow2(n uint64) uint64 { return 1 << bits.Len64(n-1) }

// memoryOf is what a cache of n pages takes.
func memoryOf(n uint64, page int) Memory {
	c := counters(n)
	return Memory{
		Pages:    n * uint64(page),
		Slots:    n * slotBytes,
		Versions: versionWords(n) * 8,
		Door:     doorWords(n) * 4,
		Counters: c/2*4 + ceilPow2(c*10)/8, // four rows of half bytes, a Bloom filter of 9.6 bits rounded up
		Entries:  n * entryBytes,
		Fixed:    fixedBytes,
	}
}

// MemoryNeeded divides size bytes among the parts of a cache with pages of so
// many bytes. The sum is never above size, and as near below it as whole pages
// allow; Pages is how long Options.Memory is to be. It fails with
// *backend.OptionError when page is no page size or size does not hold
// MinPages pages.
func MemoryNeeded(size uint64, page int) (Memory, error) {
	if page == 0 {
		page = DefaultPage
	}
	if err := checkPage(page); err != nil {
		return Memory{}, err
	}
	lo, hi := uint64(0), min(slotsOf(size, page), maxPages) // lo fits, hi+1 does not
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if memoryOf(mid, page).Total() <= size {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	if lo < MinPages {
		least := memoryOf(MinPages, page).Total()
		return Memory{}, &backend.OptionError{Field: "Size", Value: size, Want: fmt.Sprintf("at least %d bytes for %d pages of %d", least, MinPages, page)}
	}
	return memoryOf(lo, page), nil
}
