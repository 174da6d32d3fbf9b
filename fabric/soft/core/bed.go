package core

import "github.com/nvmf-go/nvmf/fabric"

// Bed is where the owner of an engine sleeps: the Waker that watches the
// engine's descriptor, none at first. It is the owner's.
type Bed struct{ w *fabric.Waker }

// LieDown has w watch fd, in place of the Waker before. It is false when w cannot:
// then nobody does.
func (b *Bed) LieDown(w *fabric.Waker, fd int) bool {
	if b.w == w {
		return true
	}
	b.Leave(fd)
	if w.Watch(fd) != nil {
		return false
	}
	b.w = w
	return true
}

// Leave ends the watch, if there is one, before fd is closed.
func (b *Bed) Leave(fd int) {
	if b.w != nil {
		b.w.Unwatch(fd)
		b.w = nil
	}
}

// Waker is what watches; nil when nothing does.
func (b *Bed) Waker() *fabric.Waker { return b.w }
