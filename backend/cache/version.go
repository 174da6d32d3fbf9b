package cache

import "sync/atomic"

// A version word counts what changes the medium in a part of it: in the low
// bits how many operations that do are in flight, above them how many have
// begun or ended. A page is the medium's content while the words it was read
// under are what they were.
const (
	writer      = 1              // in flight
	event       = 1 << 20        // a begin or an end
	writersMask = event - writer // more than all queues can have in flight
	begun       = event + writer // added when an operation begins
	ended       = event - writer // and when it ends, with whatever result
	numRegions  = 1024           // words for long ranges
	longRange   = 1024           // pages; longer ranges count in regions, in small caches shorter ones too
	minRegion   = 10             // log2 of the pages of the smallest region
	regionMask  = numRegions - 1 // regions share words when a device grows
)

// stamp is the two words a page lies under: one that few pages share, which
// short ranges change, and its region's, which long ones change.
type stamp struct{ word, region uint64 }

// versions is the version words of a device. All of it is atomic or constant.
type versions struct {
	words   []atomic.Uint64 // a power of two of them, by hash
	regions [numRegions]atomic.Uint64
	shift   uint   // page number to region
	long    uint64 // pages; longer ranges count in regions
}

func newVersions(pages, devicePages uint64) *versions {
	n := versionWords(pages)
	v := &versions{words: make([]atomic.Uint64, n), shift: minRegion}
	v.long = max(maxFill, min(longRange, n/8)) // not to mark many of others
	for devicePages>>v.shift > numRegions {
		v.shift++
	}
	return v
}

// mix is a bijection that spreads page numbers over all bits: ristretto takes
// its shards and counters from the low ones. (The finalizer of MurmurHash3.)
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

func (v *versions) word(hash uint64) *atomic.Uint64 {
	return &v.words[hash>>32&uint64(len(v.words)-1)]
}

func (v *versions) region(page uint64) *atomic.Uint64 {
	return &v.regions[page>>v.shift&regionMask]
}

// stamp is what a page lies under now. ok is false while something changes it:
// what is read then may be old or new, and not worth keeping.
func (v *versions) stamp(hash, page uint64) (s stamp, ok bool) {
	s = stamp{v.word(hash).Load(), v.region(page).Load()}
	return s, (s.word|s.region)&writersMask == 0
}

// current says whether nothing has changed a page since its stamp.
func (v *versions) current(hash, page uint64, s stamp) bool {
	return v.word(hash).Load() == s.word && v.region(page).Load() == s.region
}

// begin marks n pages before an operation that changes them is given to the
// medium.
func (v *versions) begin(first, n uint64) { v.mark(first, n, begun) }

// end marks them once more when it has ended, however it has.
func (v *versions) end(first, n uint64) { v.mark(first, n, ended) }

func (v *versions) mark(first, n, what uint64) {
	if n > v.long {
		v.markRegions(first, n, what)
		return
	}
	for p := first; p < first+n; p++ {
		v.word(mix(p)).Add(what)
	}
}

// markRegions marks the regions that n pages meet, at most each one once: a
// range of any length costs no more than that.
func (v *versions) markRegions(first, n, what uint64) {
	from, to := first>>v.shift, (first+n-1)>>v.shift
	for r := from; r <= to && r < from+numRegions; r++ {
		v.regions[r&regionMask].Add(what)
	}
}

// invalidate makes all pages stale, now.
func (v *versions) invalidate() {
	for i := range v.regions {
		v.regions[i].Add(event)
	}
}
