package initiator

import "sync"

// notices runs functions one after another on a goroutine of its own: what a
// user's Handler does must not keep anything else waiting.
type notices struct {
	mu     sync.Mutex
	cond   sync.Cond
	list   []func()
	closed bool
	ended  chan struct{}
}

func newNotices() *notices {
	n := &notices{ended: make(chan struct{})}
	n.cond.L = &n.mu
	go n.run()
	return n
}

// add has fn run, unless the notices are closed.
func (n *notices) add(fn func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.list = append(n.list, fn)
		n.cond.Signal()
	}
}

func (n *notices) run() {
	defer close(n.ended)
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		for len(n.list) == 0 && !n.closed {
			n.cond.Wait()
		}
		if len(n.list) == 0 {
			return
		}
		fn := n.list[0]
		n.list = n.list[1:]
		n.mu.Unlock()
		fn()
		n.mu.Lock()
	}
}

// close runs what was added and ends the goroutine.
func (n *notices) close() {
	n.mu.Lock()
	n.closed = true
	n.cond.Signal()
	n.mu.Unlock()
	<-n.ended
}
