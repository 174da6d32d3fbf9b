package file

import "sync"

// pool runs blocking calls on a bounded number of goroutines, each of which
// occupies a thread while its call blocks. Any queue may give it calls.
type pool struct {
	max int // constant

	mu      sync.Mutex
	work    sync.Cond // on mu: jobs came, or closed
	jobs    jobs      // not begun
	workers int       // started
	idle    int       // of them, waiting for work
	closed  bool

	done sync.WaitGroup
}

// jobs is a FIFO of slots, linked through slot.link.
type jobs struct{ head, tail *slot }

func (l *jobs) push(s *slot) {
	s.link = nil
	if l.head == nil {
		l.head = s
	} else {
		l.tail.link = s
	}
	l.tail = s
}

func (l *jobs) pop() *slot {
	s := l.head
	l.head, s.link = s.link, nil
	return s
}

func newPool(workers int) *pool {
	p := &pool{max: workers}
	p.work.L = &p.mu
	return p
}

// give takes all of list, and empties it.
func (p *pool) give(list *jobs) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for list.head != nil {
		p.jobs.push(list.pop())
		switch {
		case p.idle > 0:
			p.idle-- // for the one that Signal wakes
			p.work.Signal()
		case p.workers < p.max:
			p.workers++
			p.done.Go(p.run)
		}
	}
}

// run is a worker.
func (p *pool) run() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for p.jobs.head == nil {
			if p.closed {
				return
			}
			p.idle++
			p.work.Wait()
		}
		s := p.jobs.pop()
		p.mu.Unlock()
		s.queue.deliver(s, s.call.perform())
		p.mu.Lock()
	}
}

// close ends the workers. No queue may be open.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.work.Broadcast()
	p.done.Wait()
}
