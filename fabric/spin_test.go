package fabric

import (
	"testing"
	"time"
)

// spent runs n idle times, each with work after gap, and returns how long was
// looked in all and how often it was found.
func spent(s *Spin, n int, gap time.Duration) (looked time.Duration, found int) {
	for range n {
		if d := s.begin(); d >= gap {
			looked += gap
			found++
			s.found(gap)
		} else {
			looked += d
			s.inVain()
		}
	}
	return looked, found
}

func TestSpinLearns(t *testing.T) {
	const us = time.Microsecond
	s := NewSpin(100 * us)
	for _, step := range []struct {
		gap         time.Duration
		least, most int           // of 1000 found
		looked      time.Duration // at most, in all
		what        string
	}{
		{10 * us, 1000, 1000, 10 * time.Millisecond, "work that is always near is always found"},
		{70 * us, 930, 1000, 72 * time.Millisecond, "work further off is found from the first long look on"},
		{time.Second, 0, 0, 22 * time.Millisecond, "idle looks for little more than the least"},
		{90 * us, 930, 1000, 92 * time.Millisecond, "and learns again"},
		{101 * us, 0, 0, 22 * time.Millisecond, "but never beyond the most"},
	} {
		looked, found := spent(&s, 1000, step.gap)
		if found < step.least || found > step.most || looked > step.looked {
			t.Errorf("%s: work after %v: found %d of 1000, looked for %v", step.what, step.gap, found, looked)
		}
	}
}

// Where looking keeps the work from coming, it is given up but for the odd try.
func TestSpinYields(t *testing.T) {
	s := NewSpin(100 * time.Microsecond)
	spent(&s, 100, 60*time.Microsecond)
	var looked time.Duration
	for range 640 {
		looked += s.begin()
		s.inVain()
	}
	if most := 640*20*time.Microsecond + 10*80*time.Microsecond + 300*time.Microsecond; looked > most {
		t.Errorf("looked for %v, want at most %v", looked, most)
	}
}

// Work that is further off than most is looked for where a sleep is dear, and only
// there; what looking costs when it does not pay is little.
func TestSpinWhereSleepsAreDear(t *testing.T) {
	const us = time.Microsecond
	s := NewSpin(100 * us)
	for _, step := range []struct {
		gap, sleep  time.Duration // until the work is there, and what a sleep adds
		least, most int           // of 2000 found
		looked      time.Duration // at most, on average
		what        string
	}{
		{300 * us, 30 * us, 0, 0, 25 * us, "a sleep costs little"},
		{300 * us, 300 * us, 1800, 1980, 300 * us, "a sleep doubles it"},
		{300 * us, 30 * us, 0, 800, 140 * us, "it does no more, and is found out in some hundred"},
		{10 * time.Millisecond, 300 * us, 0, 0, 25 * us, "too far off"},
		{700 * us, 600 * us, 1800, 1980, 700 * us, "far off and dear"},
		{2 * time.Millisecond, 5 * time.Millisecond, 0, 0, 40 * us, "beyond all bounds"},
		{10 * us, 300 * us, 1960, 2000, 12 * us, "near"},
	} {
		var looked time.Duration
		found := 0
		for range 2000 {
			if d := s.begin(); d >= step.gap {
				looked += step.gap
				found++
				s.found(step.gap)
			} else {
				looked += d
				s.inVain()
				s.woke(step.gap + step.sleep)
			}
		}
		if found < step.least || found > step.most || looked/2000 > step.looked {
			t.Errorf("%s: found %d of 2000, looked for %v on average", step.what, found, looked/2000)
		}
	}
}

// Two ends that answer each other at once are awake again soon after one of them
// was held up, though each sleep holds up the other.
func TestSpinOutlivesHiccups(t *testing.T) {
	const (
		us      = time.Microsecond
		answer  = 8 * us
		wakeUp  = 50 * us
		rounds  = 2000
		between = 100 // rounds from one hiccup to the next
	)
	ends := [2]Spin{NewSpin(100 * us), NewSpin(100 * us)}
	sleeps := 0
	late := time.Duration(0) // of the answer that is awaited
	for i := range rounds {
		s := &ends[i%2]
		gap := answer + late
		if i%between == 0 {
			gap += 300 * us
		}
		if late = 0; s.begin() >= gap {
			s.found(gap)
			continue
		}
		s.inVain()
		s.woke(gap + wakeUp)
		sleeps++
		late = wakeUp
	}
	if most := 4 * rounds / between; sleeps > most {
		t.Errorf("%d sleeps in %d rounds with %d hiccups, want at most %d", sleeps, rounds, rounds/between, most)
	}
}

func TestSpinBounds(t *testing.T) {
	for _, most := range []time.Duration{-1, 0, 5 * time.Microsecond, 20 * time.Microsecond, time.Second} {
		s := NewSpin(most)
		for i := range 1000 {
			if d := s.begin(); d < 0 || d > max(most, 0) {
				t.Fatalf("most %v: window %v", most, d)
			}
			if i%3 == 0 {
				s.found(most)
			} else {
				s.inVain()
			}
		}
	}
	fixed := NewSpin(time.Millisecond)
	for range 10 {
		if d := fixed.begin(); d != time.Millisecond {
			t.Errorf("a fixed spin of 1 ms spins for %v", d)
		}
		fixed.inVain()
	}
	var zero Spin
	zero.found(time.Millisecond)
	if d := zero.begin(); d != 0 {
		t.Errorf("the zero Spin spins for %v", d)
	}
}

func TestSpinLook(t *testing.T) {
	s := NewSpin(time.Second) // always that long
	turns := 0
	if !s.Look(func() bool { turns++; return turns == 5 }) || turns != 5 {
		t.Errorf("work of the fifth turn: %d turns", turns)
	}
	s = NewSpin(time.Millisecond)
	if s.Look(func() bool { return false }) {
		t.Error("found nothing, and says it did")
	}
	s = NewSpin(0)
	if s.Look(func() bool { t.Error("a turn of one that never spins"); return true }) {
		t.Error("one that never spins has found something")
	}
}
