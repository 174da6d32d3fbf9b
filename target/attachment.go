package target

import (
	"fmt"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// attachment is a group's access to a namespace: a backend queue, and the
// requests on it. It is opened by the group's first command on the namespace.
// The group's owner owns it.
//
//	Execute -> fifo -(Submit)-> in flight -(Poll)-> resume or done
type attachment struct {
	ns     *Namespace
	queue  backend.Queue
	armer  backend.Armer  // of queue
	lender backend.Lender // the queue, when it lends its memory; else nil

	waiting fifo   // requests whose operation is to be submitted
	slots   []slot // requests whose operation is in flight
	free    []uint32

	dirty bool // in Group.dirty: waiting is not empty
	busy  bool // in Group.busy: operations are in flight
	loans int  // requests that hold memory of lender
	warm  int  // in Group.warm when above 0: Arms that are left

	onIdle func(backend.Queue) // set by detach: takes the queue when idle

	stats attachmentStats
}

// slot is an operation in flight. Its ID is gen<<32 | index, so that a
// completion that comes twice is recognised.
type slot struct {
	r   *Request
	gen uint32
}

// inflight is the number of operations in the backend.
func (a *attachment) inflight() int { return len(a.slots) - len(a.free) }

// take puts r into a slot and returns the ID of its operation. There is a free
// one.
func (a *attachment) take(r *Request) uint64 {
	i := a.free[len(a.free)-1]
	a.free = a.free[:len(a.free)-1]
	s := &a.slots[i]
	s.r = r
	return uint64(s.gen)<<32 | uint64(i)
}

// release empties the slot of an ID and returns its request, nil when the ID
// is not of an operation in flight.
func (a *attachment) release(id uint64) *Request {
	i := uint32(id)
	if uint64(i) >= uint64(len(a.slots)) || a.slots[i].r == nil || a.slots[i].gen != uint32(id>>32) {
		return nil
	}
	s := &a.slots[i]
	r := s.r
	s.r = nil
	s.gen++
	a.free = append(a.free, i)
	return r
}

// attachment is the group's attachment to n, opened when there is none.
func (g *Group) attachment(n *Namespace) (*attachment, error) {
	if n.slot < len(g.atts) {
		if a := g.atts[n.slot]; a != nil && a.ns == n {
			return a, nil
		}
	}
	return g.attach(n)
}

func (g *Group) attach(n *Namespace) (*attachment, error) {
	if g.closed {
		return nil, ErrClosed
	}
	q, err := n.dev.NewQueue(g.cfg.BackendDepth, g.cfg.Wake)
	if err != nil {
		return nil, fmt.Errorf("%v: opening a backend queue of depth %d: %w", n, g.cfg.BackendDepth, err)
	}
	g.register(q)
	a := &attachment{ns: n, queue: q, armer: backend.NewArmer(q), slots: make([]slot, g.cfg.BackendDepth), free: make([]uint32, g.cfg.BackendDepth)}
	a.lender, _ = q.(backend.Lender)
	for i := range a.free {
		a.free[i] = uint32(len(a.free) - 1 - i)
	}
	for len(g.atts) <= n.slot {
		g.atts = append(g.atts, nil)
	}
	g.atts[n.slot] = a
	g.open = append(g.open, a)
	// Room for all of them, so that marking one allocates nothing.
	g.dirty = append(make([]*attachment, 0, 2*len(g.open)), g.dirty...)
	g.busy = append(make([]*attachment, 0, 2*len(g.open)), g.busy...)
	g.warm = append(make([]*attachment, 0, 2*len(g.open)), g.warm...)
	return a, nil
}

// RegisterMemory names the memory that requests' buffers lie in to backend
// queues that gain from knowing it, those open and those to come. The regions
// must stay until Close.
func (g *Group) RegisterMemory(mem ...[]byte) {
	g.memory = append(g.memory, mem...)
	for _, a := range g.open {
		g.register(a.queue)
	}
}

// register tells q of the group's memory. Failing costs speed, nothing else.
func (g *Group) register(q backend.Queue) {
	if reg, ok := q.(backend.Registrar); ok && len(g.memory) > 0 {
		if err := reg.RegisterBuffers(g.memory); err != nil {
			g.target.log.out.Debugf("backend queue goes on without registered buffers: %v", err)
		}
	}
}

// detach ends the attachment to n: idle gets the backend queue once nothing
// is in flight or on loan, or nil when there is none. idle must not block.
func (g *Group) detach(n *Namespace, idle func(backend.Queue)) {
	if g.cfg.Removed != nil {
		g.cfg.Removed(n.number())
	}
	g.foldNamespace(n)
	if n.slot >= len(g.atts) || g.atts[n.slot] == nil || g.atts[n.slot].ns != n {
		idle(nil)
		return
	}
	a := g.atts[n.slot]
	g.atts[n.slot] = nil
	a.onIdle = idle
	g.checkIdle(a)
}

// checkIdle hands a detached attachment's queue over when its last request has
// ended and its last loan has come back.
func (g *Group) checkIdle(a *attachment) {
	if a.onIdle == nil || a.inflight() > 0 || a.loans > 0 || !a.waiting.empty() {
		return
	}
	idle := a.onIdle
	a.onIdle = nil
	g.cool(a)
	for i, o := range g.open {
		if o == a {
			g.open[i] = g.open[len(g.open)-1]
			g.open = g.open[:len(g.open)-1]
			break
		}
	}
	g.foldNamespace(a.ns) // what ended since detach
	idle(a.queue)
}

// enqueue makes r.core.op the next operation of r, on a.
func (g *Group) enqueue(a *attachment, r *Request) {
	r.core.att = a
	a.waiting.push(r)
	if !a.dirty {
		a.dirty = true
		g.dirty = append(g.dirty, a)
	}
}

// Submit gives the backends what Execute has gathered: one backend Submit for
// each backend queue that has something. What does not fit the backend's depth
// stays, in order, for the Submit after the next Poll that made room. It may
// call Link.Complete (when a backend cannot take a request at all).
func (g *Group) Submit() {
	for i := 0; i < len(g.dirty); {
		a := g.dirty[i]
		g.submit(a)
		if !a.waiting.empty() {
			a.stats.waits++
			i++
			continue
		}
		a.dirty = false
		last := len(g.dirty) - 1
		g.dirty[i] = g.dirty[last]
		g.dirty = g.dirty[:last]
		g.checkIdle(a)
	}
}

// submit submits until the FIFO is empty or the backend full.
func (g *Group) submit(a *attachment) {
	for !a.waiting.empty() && len(a.free) > 0 {
		n := 0
		for r := a.waiting.head; r != nil && n < len(g.ops) && len(a.free) > 0; r = r.core.next {
			r.core.op.ID = a.take(r)
			g.ops[n] = r.core.op
			n++
		}
		took := a.queue.Submit(g.ops[:n])
		for range took {
			a.waiting.pop()
		}
		for i := n - 1; i >= took; i-- {
			a.release(g.ops[i].ID)
		}
		clear(g.ops[:n])
		g.markBusy(a)
		if took < n {
			if a.inflight() == 0 {
				g.refused(a)
			}
			return
		}
	}
}

// refused ends the first request in line: the backend took nothing with
// nothing in flight, so that no completion would ever make room.
func (g *Group) refused(a *attachment) {
	r := a.waiting.pop()
	g.target.log.limited("%v: the backend refuses an operation (%v)", a.ns, r.core.op.Kind)
	r.core.q.finish(r, nvme.InternalError)
}

func (g *Group) markBusy(a *attachment) {
	if !a.busy && a.inflight() > 0 {
		a.busy = true
		a.stats.busySince = g.now
		g.busy = append(g.busy, a)
	}
}

// Poll reaps every backend queue of the group and goes on with the requests:
// it may call Link.Complete many times. It returns the number of operations
// reaped and never blocks.
func (g *Group) Poll() int {
	if len(g.busy) > 0 {
		g.now = g.target.now() // latencies end here, not at the top of the turn
	}
	reaped := g.reapWarm()
	for i := 0; i < len(g.busy); {
		a := g.busy[i]
		reaped += g.reap(a)
		if a.inflight() > 0 {
			i++
			continue
		}
		a.busy = false
		a.stats.busy += g.now - a.stats.busySince
		last := len(g.busy) - 1
		g.busy[i] = g.busy[last]
		g.busy = g.busy[:last]
		g.checkIdle(a)
	}
	return reaped
}

func (g *Group) reap(a *attachment) (reaped int) {
	for a.inflight() > 0 {
		n := a.queue.Reap(g.done[:])
		for i := range g.done[:n] {
			g.complete(a, g.done[i])
		}
		reaped += n
		if n < len(g.done) {
			break
		}
	}
	return reaped
}

// complete goes on with the request whose operation has ended.
func (g *Group) complete(a *attachment, c backend.Completion) {
	r := a.release(c.ID)
	if r == nil {
		g.target.log.limited("%v: the backend completed an unknown operation %#x", a.ns, c.ID)
		return
	}
	st := c.Status
	if !st.OK() {
		st = a.failed(r, st)
	}
	if resume := r.core.cmd.resume; resume != nil {
		resume(r.core.q, r, st)
		return
	}
	r.core.q.finish(r, st)
}

// failed reports a backend's error, and says which are not worth a retry.
func (a *attachment) failed(r *Request, st nvme.Status) nvme.Status {
	op := &r.core.op
	a.ns.sub.target.log.limited("%v: %v of %d bytes at %d failed: %v", a.ns, op.Kind, op.Length, op.Offset, st)
	switch st.Code() {
	case nvme.LBAOutOfRange:
		// The medium is smaller than we believed.
		a.ns.suspect.Store(true)
		a.ns.sub.target.nudgeTimer()
		return r.bad(st, locCDW10, 0)
	case nvme.CapacityExceeded, nvme.NamespaceWriteProtected:
		return st | nvme.StatusDNR
	}
	return st
}

// Arm asks every backend queue with operations in flight, or that has lent of
// late, for one Wake. Poll once more after it and before sleeping. An owner that
// sleeps in the kernel says where: some queues end that sleep instead of Wake. For
// any other sleep w is nil.
func (g *Group) Arm(w backend.Waker) {
	for _, a := range g.busy {
		a.armer.Arm(w)
	}
	g.armWarm(w)
}
