package target

import (
	"math/bits"
	"time"
)

// A histogram of latencies has buckets of 1/8 of a power of two: a percentile
// is at most 12.5 % too large. The first are 1 µs/4 wide, and the last one
// takes everything above 68 s.
const (
	histUnit    = 8 // log2 of the width in ns of the first buckets
	histSub     = 3 // log2 of the buckets for each power of two
	histBuckets = (36-histUnit-histSub)<<histSub + 1<<histSub
)

// Histogram counts latencies. The zero value is empty.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Max     time.Duration
	Buckets [histBuckets]uint64
}

// bucketOf is the index of the bucket for a latency of ns.
func bucketOf(ns int64) int {
	if ns < 0 {
		ns = 0
	}
	v := uint64(ns) >> histUnit
	if v < 1<<histSub {
		return int(v)
	}
	exp := bits.Len64(v) - 1 - histSub
	i := exp<<histSub + int(v>>exp)
	return min(i, histBuckets-1)
}

// BucketBound is the exclusive upper bound of bucket i.
func BucketBound(i int) time.Duration {
	if i < 1<<histSub {
		return time.Duration(i+1) << histUnit
	}
	exp := i>>histSub - 1
	return time.Duration(i&(1<<histSub-1)+1<<histSub+1) << exp << histUnit
}

// add counts one latency.
func (h *Histogram) add(ns int64) {
	h.Count++
	h.Sum += time.Duration(ns)
	h.Max = max(h.Max, time.Duration(ns))
	h.Buckets[bucketOf(ns)]++
}

// Merge adds the counts of o.
func (h *Histogram) Merge(o *Histogram) {
	h.Count += o.Count
	h.Sum += o.Sum
	h.Max = max(h.Max, o.Max)
	for i, n := range o.Buckets {
		h.Buckets[i] += n
	}
}

// Percentile is the least bound that at least p percent of the latencies do
// not exceed; 0 when the histogram is empty.
func (h *Histogram) Percentile(p float64) time.Duration {
	if h.Count == 0 {
		return 0
	}
	want := uint64(p / 100 * float64(h.Count))
	seen := uint64(0)
	for i, n := range h.Buckets {
		seen += n
		if n > 0 && seen >= want {
			return min(BucketBound(i), h.Max)
		}
	}
	return h.Max
}

// Mean is the mean latency, 0 when the histogram is empty.
func (h *Histogram) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return h.Sum / time.Duration(h.Count)
}
