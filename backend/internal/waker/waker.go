// Package waker turns events from any goroutine into one notify for each Arm.
package waker

import "sync/atomic"

// Waker is the Arm and notify of a queue. Wake is safe for concurrent use, the
// other methods are the owner's.
type Waker struct {
	notify func()
	woken  chan struct{} // instead of notify, once taken over

	armed atomic.Bool
	taken atomic.Bool
}

// New makes a Waker that is not armed.
func New(notify func()) *Waker {
	return &Waker{notify: notify, woken: make(chan struct{}, 1)}
}

// Arm makes the next Wake notify. The owner then looks whether what it waits
// for is there already, and calls Wake itself if so.
func (w *Waker) Arm() { w.armed.Store(true) }

// Disarm takes Arm back.
func (w *Waker) Disarm() { w.armed.Store(false) }

// Armed says whether the next Wake notifies.
func (w *Waker) Armed() bool { return w.armed.Load() }

// Wake notifies if that was asked for.
func (w *Waker) Wake() {
	if !w.armed.CompareAndSwap(true, false) {
		return
	}
	if !w.taken.Load() {
		w.notify()
		return
	}
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// TakeOver has Wake end Wait from now on, and no longer call notify: for a
// queue that closes.
func (w *Waker) TakeOver() { w.taken.Store(true) }

// Wait waits for the Wake that follows an Arm, after TakeOver.
func (w *Waker) Wait() { <-w.woken }
