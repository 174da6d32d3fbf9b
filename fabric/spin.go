package fabric

import (
	"runtime"
	"time"
)

const (
	leastSpin  = 20 * time.Microsecond // about what going to sleep and being woken costs
	spinProbe  = 64                    // one idle time in so many tries the longest spin
	spinMargin = 2                     // times what was needed last
	fixedSpin  = time.Millisecond      // from here on nothing is learned
)

// Spin decides how long the owner of completion queues that has nothing to do
// looks for work before it sleeps. Where work comes sooner than a sleep pays, it
// looks as long as that takes; where looking finds nothing, as when the peer needs
// the processor that we look with, it soon gives up. It starts from 20 us, which
// costs no more than the sleep would, and learns from what was found: now and then
// it tries the longest. One idle time is
//
//	for d := s.Window(); no work and less than d gone; { look }
//	s.Found(gone) or s.Vain()
//
// The zero Spin never spins. It belongs to one goroutine.
type Spin struct {
	most, window time.Duration
	idle         uint
	vain         bool // the last time was
}

// NewSpin is a Spin of at most that long; 0 or less is not at all. One of a
// millisecond or more always is that long: who asks for it has a processor to
// spare.
func NewSpin(most time.Duration) Spin {
	most = max(most, 0)
	return Spin{most: most, window: min(leastSpin, most)}
}

// Look is one idle time: it has turn, which looks once and says whether there was
// work, called between turns of other goroutines, and says whether it found some.
// The others have one turn at least, for the owner may have made them ready.
func (s *Spin) Look(turn func() bool) bool {
	window, start := s.Window(), time.Now()
	for {
		runtime.Gosched()
		busy := window > 0 && turn()
		looked := time.Since(start)
		if busy {
			s.Found(looked)
			return true
		}
		if looked >= window {
			s.Vain()
			return false
		}
	}
}

// Window begins an idle time and is how long to look.
func (s *Spin) Window() time.Duration {
	if s.idle++; s.idle%spinProbe == 0 || s.most >= fixedSpin {
		return s.most
	}
	return s.window
}

// Found ends an idle time in which there was work after d.
func (s *Spin) Found(d time.Duration) {
	s.vain = false
	s.window = min(max(spinMargin*d, s.window-s.window/8, leastSpin), s.most)
}

// Vain ends an idle time in which there was none. Once is no reason to look less:
// it may be a hiccup.
func (s *Spin) Vain() {
	if s.vain {
		s.window = min(max(s.window/2, leastSpin), s.most)
	}
	s.vain = true
}
