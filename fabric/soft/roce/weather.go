package roce

import (
	"math/rand/v2"
	"sync"
)

// weather loses, repeats, delays and damages packets as they are received:
// what tests put between two devices. Shares are from 0 to 1.
type weather struct {
	lose, twice, late, flip float64
	first                   bool // only the first packet of a datagram arrives

	mu    sync.Mutex
	rng   *rand.Rand
	later []latePacket
	count weatherCount
}

type weatherCount struct{ packets, lost, repeated, delayed, flipped int }

// latePacket comes when so many others have come to the same receiver.
type latePacket struct {
	to    any
	b     []byte
	index int
	wait  int
	use   func([]byte, int)
}

func newWeather(seed uint64) *weather { return &weather{rng: rand.New(rand.NewPCG(seed, 0))} }

// counts is what has happened so far.
func (w *weather) counts() weatherCount {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// pass hands a packet on that came to a receiver, or not, or later.
func (w *weather) pass(to any, b []byte, index int, use func(b []byte, index int)) {
	w.mu.Lock()
	n, due := w.fate(to, b, index, use)
	w.mu.Unlock()
	for range n {
		use(b, index)
	}
	for _, l := range due {
		l.use(l.b, l.index)
	}
}

// fate decides how often a packet arrives now, and which of the late ones do.
func (w *weather) fate(to any, b []byte, index int, use func([]byte, int)) (n int, due []latePacket) {
	w.count.packets++
	keep := w.later[:0]
	for _, l := range w.later {
		if l.to == to {
			l.wait--
		}
		if l.wait <= 0 {
			due = append(due, l)
		} else {
			keep = append(keep, l)
		}
	}
	w.later = keep
	switch r := w.rng.Float64(); {
	case w.first && index > 0, r < w.lose:
		w.count.lost++
		return 0, due
	case r < w.lose+w.twice:
		w.count.repeated++
		return 2, due
	case r < w.lose+w.twice+w.late:
		w.count.delayed++
		w.later = append(w.later, latePacket{to, append([]byte(nil), b...), index, 1 + w.rng.IntN(8), use})
		return 0, due
	case r < w.lose+w.twice+w.late+w.flip:
		w.count.flipped++
		b[w.rng.IntN(len(b))] ^= 1 << w.rng.IntN(8)
	}
	return 1, due
}
