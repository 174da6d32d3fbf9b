package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// changes counts the operations of ours that change the medium: those in
// flight, and above them how many have begun or ended. As in a version word.
type changes struct{ word atomic.Uint64 }

func (c *changes) begin() { c.word.Add(begun) }
func (c *changes) end()   { c.word.Add(ended) }

// quiet is the count, if nothing is in flight.
func (c *changes) quiet() (count uint64, ok bool) {
	w := c.word.Load()
	return w, w&writersMask == 0
}

// watch looks after what is not the data path's: whether others write to the
// file, and pages that are of no use any more. It has a goroutine.
type watch struct {
	// Constant.
	dev  *Device
	path string // "" when there is no file to look at
	file uint64 // its inode; another one of that name is none of ours
	wake chan struct{}
	stop chan struct{}
	end  sync.WaitGroup

	foreign atomic.Uint64
	litter  atomic.Bool // something was discarded

	mu   sync.Mutex
	last sight // mu
}

// sight is what the file looked like.
type sight struct {
	ok    bool   // a regular file, at a moment without changes of ours
	count uint64 // of changes then
	size  int64
	mtime unix.Timespec
}

// lookEvery is the time between looks, besides those of Refresh.
const lookEvery = 5 * time.Second

func newWatch(d *Device, path string) *watch {
	w := &watch{dev: d, path: path, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	if st, ok := statFile(path); ok {
		w.file = st.Ino
	}
	w.last = w.see()
	w.end.Go(w.run)
	return w
}

func (w *watch) run() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-w.wake:
			w.clean()
		case <-tick.C:
			w.look()
			if w.litter.Swap(false) {
				w.clean()
			}
		}
	}
}

// sweep has stale pages removed soon. It never blocks.
func (w *watch) sweep() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// clean removes stale pages from the index. Those of a page that is published
// meanwhile may go too, which costs a miss.
func (w *watch) clean() {
	s := w.dev.slots
	for slot := uint32(1); uint64(slot) <= s.count(); slot++ {
		if !s.ref(slot) {
			continue
		}
		d := &s.descs[slot]
		hash := mix(d.number)
		stale := !w.dev.versions.current(hash, d.number, d.stamp)
		s.unref(slot)
		if stale {
			w.dev.index.remove(hash)
		}
		if slot%1024 == 0 && w.stopping() {
			return
		}
	}
}

func (w *watch) stopping() bool {
	select {
	case <-w.stop:
		return true
	default:
		return false
	}
}

// statFile looks at a regular file.
func statFile(path string) (st unix.Stat_t, ok bool) {
	ok = path != "" && unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
	return st, ok
}

// see looks at the file.
func (w *watch) see() (s sight) {
	var quiet bool
	s.count, quiet = w.dev.changes.quiet()
	st, ok := statFile(w.path)
	s.size, s.mtime = st.Size, st.Mtim
	after, _ := w.dev.changes.quiet()
	s.ok = ok && st.Ino == w.file && quiet && after == s.count
	return s
}

// look compares the file with how it was. Its times change with writes of ours
// too, so it tells only when nothing of ours has begun since the last look;
// another size is a resize, which has its own way.
func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, now := w.last, w.see()
	w.last = now
	comparable := was.ok && now.ok && was.count == now.count && was.size == now.size
	if !comparable || was.mtime == now.mtime {
		return
	}
	w.foreign.Add(1)
	w.dev.versions.invalidate()
	w.sweep()
	w.dev.opts.Log.Warnf("backend %s: another program has written to the file: its cache of %d bytes is void, and data that was read meanwhile may have been stale", w.path, len(w.dev.opts.Memory))
}

func (w *watch) close() {
	close(w.stop)
	w.end.Wait()
}
