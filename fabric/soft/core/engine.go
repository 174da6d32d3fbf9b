package core

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
)

// Engine does a provider's work for the QPs of one completion queue, or of two
// for QPs that use two, inside the Polls of their owner.
type Engine interface {
	comparable
	// Progress is one pass, inside the guard of the CQ.
	Progress()
	// Sleep is called, inside the guard, when the owner arms a CQ: everything
	// that was posted is sent, and the owner will be woken for what comes. w is
	// where it sleeps, nil when that is not known (fabric.WakeArmer).
	Sleep(w *fabric.Waker)
	// Clients are the CQs that the engine works for.
	Clients() *Clients
	// Close ends the engine: no CQ is left, nobody polls any more.
	Close()
}

// Clients are the CQs of an engine. The zero value is none.
type Clients struct {
	list atomic.Pointer[[]*CQ]
}

func (c *Clients) all() []*CQ {
	if list := c.list.Load(); list != nil {
		return *list
	}
	return nil
}

// Wake asks for a Poll of each; any goroutine may call it.
func (c *Clients) Wake() {
	for _, q := range c.all() {
		q.Wake()
	}
}

// Quiet says whether the owner is given nothing to do. The owner calls it.
func (c *Clients) Quiet() bool {
	for _, q := range c.all() {
		if !q.Empty() {
			return false
		}
	}
	return true
}

// Armed says whether the owner may be about to sleep.
func (c *Clients) Armed() bool {
	for _, q := range c.all() {
		if q.Armed() {
			return true
		}
	}
	return false
}

// Disarm takes all Arms back: the owner is awake. The owner calls it.
func (c *Clients) Disarm() {
	for _, q := range c.all() {
		q.Disarm()
	}
}

// Engines are those of a device. The zero value with New set is ready.
type Engines[E Engine] struct {
	// New makes an engine.
	New func() (E, error)
	// Last, unless nil, is called when the last engine is gone after End.
	Last func()

	mu    sync.Mutex
	users map[E]int // CQs of each
	ended bool
}

// EngineCQ is a CQ and the engines that work for its QPs: none before the first
// QP, usually one, and more when QPs have their two CQs crosswise.
type EngineCQ[E Engine] struct {
	CQ
	set     *Engines[E]
	engines atomic.Pointer[[]E]
	once    sync.Once
}

// NewCQ makes a CQ of a device; see CQ.Init.
func (s *Engines[E]) NewCQ(d *Device, depth int, notify func()) (*EngineCQ[E], error) {
	q := &EngineCQ[E]{set: s}
	q.engines.Store(new([]E))
	if err := q.Init(d, depth, notify, q.progress); err != nil {
		return nil, err
	}
	return q, nil
}

// Of says whether the CQ is one of those of s.
func (q *EngineCQ[E]) Of(s *Engines[E]) bool { return q.set == s }

// Engines are those that work for the CQ now.
func (q *EngineCQ[E]) Engines() []E { return *q.engines.Load() }

func (q *EngineCQ[E]) progress() {
	for _, e := range q.Engines() {
		e.Progress()
	}
}

// Arm asks for one notify. Everything posted is sent before the owner sleeps.
func (q *EngineCQ[E]) Arm() error { return q.arm(nil) }

// ArmOn is Arm for an owner that sleeps in w (fabric.WakeArmer).
func (q *EngineCQ[E]) ArmOn(w *fabric.Waker) error { return q.arm(w) }

func (q *EngineCQ[E]) arm(w *fabric.Waker) error {
	if err := q.CQ.Arm(); err != nil {
		return err
	}
	q.Guard().Enter()
	for _, e := range q.Engines() {
		e.Sleep(w)
	}
	q.Guard().Leave()
	return nil
}

// Close ends the CQ and the engines that no other CQ uses.
func (q *EngineCQ[E]) Close() error {
	if err := q.CQ.Close(); err != nil {
		return err
	}
	q.once.Do(func() {
		if q.set.leave(q) && q.set.Last != nil {
			q.set.Last()
		}
	})
	return nil
}

// For is the engine for QPs with those CQs, made when there is none.
func (s *Engines[E]) For(send, recv *EngineCQ[E]) (e E, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if both := slices.Concat(send.Engines(), recv.Engines()); len(both) > 0 {
		e = both[0]
	} else if e, err = s.New(); err != nil {
		return e, err
	}
	s.join(e, send)
	s.join(e, recv)
	return e, nil
}

// join has the owner of q work for e; mu is held. The lists are replaced as a
// whole, for others read them.
func (s *Engines[E]) join(e E, q *EngineCQ[E]) {
	engines := q.Engines()
	if slices.Contains(engines, e) {
		return
	}
	if s.users == nil {
		s.users = make(map[E]int)
	}
	s.users[e]++
	c := e.Clients()
	clients := append(slices.Clone(c.all()), &q.CQ)
	engines = append(slices.Clone(engines), e)
	c.list.Store(&clients)
	q.engines.Store(&engines)
}

// leave ends the engines that only q used. It is true when the last of all has
// ended, after End.
func (s *Engines[E]) leave(q *EngineCQ[E]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	engines := q.Engines()
	for _, e := range engines {
		c := e.Clients()
		clients := slices.DeleteFunc(slices.Clone(c.all()), func(o *CQ) bool { return o == &q.CQ })
		c.list.Store(&clients)
		if s.users[e]--; s.users[e] == 0 {
			delete(s.users, e)
			e.Close()
		}
	}
	q.engines.Store(new([]E))
	return len(engines) > 0 && s.ended && len(s.users) == 0
}

// End says that the device is at its end, and whether no engine is left. Else
// Last will be called.
func (s *Engines[E]) End() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	return len(s.users) == 0
}
