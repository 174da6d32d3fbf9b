package fabric

import (
	"runtime"
	"time"
)

const (
	leastSpin  = 20 * time.Microsecond // about what going to sleep and being woken costs
	spinProbe  = 64                    // one idle time in so many tries the other way
	spinMargin = 2                     // times what was needed last
	spinFar    = 10                    // times most, for as long as a sleep is dear
	sleepLearn = 4                     // a sleep weighs one in so many
	fixedSpin  = time.Millisecond      // from here on nothing is learned
)

// Spin decides how long the owner of completion queues that has nothing to do
// looks for work before it sleeps. Where work comes sooner than a sleep pays, it
// looks as long as that takes; where looking finds nothing, as when the peer needs
// the processor that we look with, it soon gives up: down to 20 us, which costs no
// more than the sleep would. It learns from what was found: now and then it tries a
// long look. Once something was found it looks for as long as a sleep adds at
// least: a hiccup of one end then does not have both ends sleep for each other's
// sleeps.
//
// Work that takes longer than most is looked for where that brings it in seven
// eighths of the time that it takes with a sleep: where sleeps are dear (processors
// that are virtual), and either end waits for those of the other. Now and then it
// sleeps there, to see whether that is still so.
//
// The zero Spin never spins. It belongs to one goroutine.
type Spin struct {
	most, window time.Duration
	slept        time.Duration // what an idle time with a sleep takes; 0 is unknown
	start        time.Time     // of the idle time of Look
	idle         uint
	vain         bool // the last time was
}

// NewSpin is a Spin of at most that long, and ten times that where sleeps are
// dear; 0 or less is not at all. One of a millisecond or more always is that long:
// who asks for it has a processor to spare.
func NewSpin(most time.Duration) Spin {
	most = max(most, 0)
	return Spin{most: most, window: most}
}

// Look is one idle time: it has turn, which looks once and says whether there was
// work, called between turns of other goroutines, and says whether it found some.
// The others have one turn at least, for the owner may have made them ready. An
// owner that sleeps then calls Awake after it.
func (s *Spin) Look(turn func() bool) bool {
	window := s.begin()
	s.start = time.Now()
	for {
		runtime.Gosched()
		busy := window > 0 && turn()
		looked := time.Since(s.start)
		if busy {
			s.found(looked)
			return true
		}
		if looked >= window {
			s.inVain()
			return false
		}
	}
}

// Awake ends an idle time that Look began and a sleep went on with.
func (s *Spin) Awake() { s.woke(time.Since(s.start)) }

// begin starts an idle time and is how long to look in it. It ends with
//
//	s.found(gone), or s.inVain(), then a sleep and s.woke(gone)
func (s *Spin) begin() time.Duration {
	s.idle++
	switch probe := s.idle%spinProbe == 0; {
	case s.most >= fixedSpin:
		return s.most
	case probe && s.window > s.most:
		return min(leastSpin, s.most)
	case probe:
		return s.far()
	}
	return s.window
}

// far is until when it pays to have looked.
func (s *Spin) far() time.Duration {
	return max(s.most, min(spinFar*s.most, s.slept*7/8))
}

// found ends an idle time in which there was work after d.
func (s *Spin) found(d time.Duration) {
	if d > s.far() {
		s.inVain() // a sleep would have taken little longer
		return
	}
	most := s.most
	if d > most {
		most = min(spinFar*s.most, s.slept*5/4) // as long as a sleep of the other end takes
	}
	s.vain = false
	dear := (s.slept - d) * 5 / 4
	s.window = max(min(max(spinMargin*d, dear), most), s.window-s.window/8, min(leastSpin, s.most))
}

// inVain ends an idle time in which there was none. Once is no reason to look less:
// it may be a hiccup.
func (s *Spin) inVain() {
	if s.vain {
		s.window = max(s.window/2, min(leastSpin, s.most))
	}
	s.vain = true
}

// woke says that work came after d, with a sleep. Long times say nothing: nobody
// looks so far.
func (s *Spin) woke(d time.Duration) {
	if d > spinMargin*spinFar*s.most {
		return
	}
	if s.slept == 0 {
		s.slept = d
	}
	s.slept += (min(d, 2*s.slept) - s.slept) / sleepLearn // one that is far out counts little
}
