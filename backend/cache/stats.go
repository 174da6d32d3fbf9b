package cache

import (
	"time"
)

// Stats are counts since the cache was made, and what it holds now. Each read
// is one of Hits, Misses and Bypasses. Counts of queues may lag behind by what
// they did since they last slept.
type Stats struct {
	Hits     uint64 // reads answered from memory, lent or copied
	Misses   uint64 // reads that were not in memory, wholly, and went to the medium
	Bypasses uint64 // reads that went to the medium without a look: FUA, long ones, cold scans
	HitBytes uint64 // bytes of Hits
	Lent     uint64 // Hits without a copy

	Fills    uint64 // pages that were handed to ristretto, by reads and writes
	Rejected uint64 // Fills that it found not worth keeping
	Evicted  uint64 // pages that it has given up for others
	NoPage   uint64 // reads that would have filled, had there been a free page
	// Stale is the pages that a look met and that were no longer the medium's
	// content. Pages nobody looks for again are not in it.
	Stale uint64
	// Invalidations are the writes, discards and write zeroes that made pages
	// stale; Resizes and Foreign those of all pages, because the medium
	// changed its size or was changed by others.
	Invalidations, Resizes, Foreign uint64

	ReadAheadIssued uint64 // pages read ahead
	ReadAheadUsed   uint64 // those of them that a read found

	Pages     uint64 // pages there are
	Used      uint64 // pages that are not free
	UsedBytes uint64 // Used in bytes
	Memory    Memory // of all kinds

	// Of hits (the look, and the copy if there was one) and of misses (from
	// Submit to Reap), a sample: about one of 256 and of 16.
	HitLatency, MissLatency Latency
}

// Latency is a sum of durations and how many they are.
type Latency struct {
	Count uint64
	Sum   time.Duration
}

// Mean is 0 when nothing was measured.
func (l Latency) Mean() time.Duration {
	if l.Count == 0 {
		return 0
	}
	return l.Sum / time.Duration(l.Count)
}
