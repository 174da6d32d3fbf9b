package core

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Guards are the readers of one or more tables.
type Guards struct {
	mu  sync.Mutex
	all []*Guard
}

// Guard marks the time one owner may be using looked-up memory. Enter and
// Leave belong to the owner and nest.
type Guard struct {
	depth int           // owner
	count uint64        // owner: what seq holds
	seq   atomic.Uint64 // odd while inside
	_     [40]byte      // a cache line of its own
}

// New adds a guard.
func (s *Guards) New() *Guard {
	g := new(Guard)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, g)
	return g
}

// Remove takes g out again; nobody may be inside.
func (s *Guards) Remove(g *Guard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, o := range s.all {
		if o == g {
			last := len(s.all) - 1
			s.all[i], s.all[last] = s.all[last], nil
			s.all = s.all[:last]
			return
		}
	}
}

// Wait returns when every owner that was inside at the call has left once.
// It must not be called from inside a guard.
func (s *Guards) Wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.all {
		for seq := g.seq.Load(); seq&1 != 0 && g.seq.Load() == seq; {
			runtime.Gosched()
		}
	}
}

// Enter begins the use of looked-up memory.
func (g *Guard) Enter() {
	if g.depth++; g.depth == 1 {
		g.count++
		g.seq.Store(g.count)
	}
}

// Leave ends it: slices from lookups are void.
func (g *Guard) Leave() {
	if g.depth--; g.depth == 0 {
		g.count++
		g.seq.Store(g.count)
	}
}
