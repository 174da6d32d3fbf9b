package core

import (
	"sync"
	"sync/atomic"
)

// Mailbox takes functions from any goroutine for an owner to run. An owner
// with nothing in it pays one atomic load.
type Mailbox struct {
	count atomic.Int32
	mu    sync.Mutex
	fns   []func()
}

// Send leaves fn for the owner.
func (m *Mailbox) Send(fn func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fns = append(m.fns, fn)
	m.count.Add(1)
}

// Run runs what was sent, in order. The owner calls it.
func (m *Mailbox) Run() {
	if m.count.Load() == 0 {
		return
	}
	m.mu.Lock()
	fns := m.fns
	m.fns = nil
	m.count.Store(0)
	m.mu.Unlock()
	for _, fn := range fns {
		fn()
	}
}
