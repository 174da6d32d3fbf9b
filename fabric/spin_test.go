package fabric_test

import (
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// spent runs n idle times, each with work after gap, and returns how long was
// looked in all and how often it was found.
func spent(s *fabric.Spin, n int, gap time.Duration) (looked time.Duration, found int) {
	for range n {
		if d := s.Window(); d >= gap {
			looked += gap
			found++
			s.Found(gap)
		} else {
			looked += d
			s.Vain()
		}
	}
	return looked, found
}

func TestSpinLearns(t *testing.T) {
	const us = time.Microsecond
	s := fabric.NewSpin(100 * us)
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
	s := fabric.NewSpin(100 * time.Microsecond)
	spent(&s, 100, 60*time.Microsecond)
	var looked time.Duration
	for range 640 {
		looked += s.Window()
		s.Vain()
	}
	if most := 640*20*time.Microsecond + 10*80*time.Microsecond + 300*time.Microsecond; looked > most {
		t.Errorf("looked for %v, want at most %v", looked, most)
	}
}

func TestSpinBounds(t *testing.T) {
	for _, most := range []time.Duration{-1, 0, 5 * time.Microsecond, 20 * time.Microsecond, time.Second} {
		s := fabric.NewSpin(most)
		for i := range 1000 {
			if d := s.Window(); d < 0 || d > max(most, 0) {
				t.Fatalf("most %v: window %v", most, d)
			}
			if i%3 == 0 {
				s.Found(most)
			} else {
				s.Vain()
			}
		}
	}
	fixed := fabric.NewSpin(time.Millisecond)
	for range 10 {
		if d := fixed.Window(); d != time.Millisecond {
			t.Errorf("a fixed spin of 1 ms spins for %v", d)
		}
		fixed.Vain()
	}
	var zero fabric.Spin
	zero.Found(time.Millisecond)
	if d := zero.Window(); d != 0 {
		t.Errorf("the zero Spin spins for %v", d)
	}
}

func TestSpinLook(t *testing.T) {
	s := fabric.NewSpin(time.Second) // always that long
	turns := 0
	if !s.Look(func() bool { turns++; return turns == 5 }) || turns != 5 {
		t.Errorf("work of the fifth turn: %d turns", turns)
	}
	s = fabric.NewSpin(time.Millisecond)
	if s.Look(func() bool { return false }) {
		t.Error("found nothing, and says it did")
	}
	s = fabric.NewSpin(0)
	if s.Look(func() bool { t.Error("a turn of one that never spins"); return true }) {
		t.Error("one that never spins has found something")
	}
}
