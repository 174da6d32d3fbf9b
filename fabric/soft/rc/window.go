package rc

// window is how many packets may be under way: as in TCP it doubles each round
// trip up to a threshold, grows by one beyond it, and shrinks at a loss.
type window struct {
	size   int
	thresh int
	credit int // packets that arrived since size last grew by one
	least  int
	most   int
}

func newWindow(first, least, most int) window {
	return window{size: min(first, most), thresh: most, least: min(least, most), most: most}
}

// arrived opens the window for n packets.
func (w *window) arrived(n int) {
	if w.size < w.thresh {
		w.size = min(w.size+n, w.thresh)
		return
	}
	if w.credit += n; w.credit >= w.size {
		w.credit = 0
		w.size = min(w.size+1, w.most)
	}
}

// lost halves the window, counted from what was under way.
func (w *window) lost(flight int) {
	w.thresh = max(min(flight, w.size)/2, w.least)
	w.size, w.credit = w.thresh, 0
}

// collapse closes the window to the first of its packets.
func (w *window) collapse(flight int) {
	w.lost(flight)
	w.size = 1
}
