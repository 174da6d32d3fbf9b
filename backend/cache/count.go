package cache

import (
	"sync/atomic"
	"time"
)

// What a queue counts.
const (
	hits = iota
	misses
	bypasses
	hitBytes
	lent
	fills
	noPage
	stale
	invalidations
	aheadIssued
	aheadUsed
	hitTimes // measured hits
	hitTime  // nanoseconds of them
	missTimes
	missTime
	numCounts
)

// counts are a queue's: the owner adds without atomics and shows the sums when
// it sleeps, or has added many times.
type counts struct {
	own   [numCounts]uint64 // owner
	shown [numCounts]atomic.Uint64
	adds  uint64 // owner: since they were shown
}

const showEvery = 256 // adds

func (c *counts) add(what int, n uint64) {
	c.own[what] += n
	if c.adds++; c.adds >= showEvery {
		c.show()
	}
}

func (c *counts) show() {
	if c.adds == 0 {
		return
	}
	c.adds = 0
	for i := range c.own {
		c.shown[i].Store(c.own[i])
	}
}

// sums are counts of several queues.
type sums [numCounts]uint64

func (s *sums) add(c *counts) {
	for i := range s {
		s[i] += c.shown[i].Load()
	}
}

func latency(times, nanoseconds uint64) Latency {
	return Latency{Count: times, Sum: time.Duration(nanoseconds)}
}
