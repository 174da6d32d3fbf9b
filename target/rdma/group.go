package rdma

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/target"
)

// The pools of a group.
const (
	dataPool  = iota // I/O
	adminPool        // admin queues, and Connect
	numPools
)

// pollBatch is how many completions are taken from a CQ at a time.
const pollBatch = 128

// group is a poll group: one goroutine (run) and what it owns.
type group struct {
	// Constant.

	t     *Transport
	index int // in Transport.groups
	cfg   *Config
	core  *target.Group
	pools [numPools]*pool
	held  int64         // taken from the budget for them
	ended chan struct{} // closed when run returns, with err set
	err   error

	closed bool // owned by Transport.Close: the pools are gone

	// Owned by the goroutine.

	cqs       []*cq
	conns     []*conn // by index; nil when free
	freeConns []uint32
	nextGen   uint32
	waiting   [numPools]waiters
	shares    []*share // of namespaces, by Request.Namespace
	admin     share    // of the admin pool
	dirty     []*conn  // have something to post
	settling  []*conn  // may have come to their end
	draining  []*conn  // closing, with shared receives
	srqs      []*srq   // have receives to post
	stall     stall
	batch     batch
	patience  fabric.Spin
	wc        [pollBatch]fabric.Completion
	stats     GroupStats

	// Any goroutine.

	queues  atomic.Int32 // connections, those being set up included
	waker   *fabric.Waker
	pending atomic.Bool // msgs is not empty

	mu      sync.Mutex
	msgs    []func()
	spare   []func() // the other half of msgs
	stopped bool     // takes no more messages
}

func newGroup(t *Transport, index int) (_ *group, err error) {
	g := &group{
		t: t, index: index, cfg: &t.cfg, nextGen: rand.Uint32(),
		waker: fabric.NewWaker(), ended: make(chan struct{}),
	}
	if t.cfg.Poll == PollAdaptive {
		g.patience = fabric.NewSpin(t.cfg.Spin)
	}
	sizes := [numPools]int{dataPool: t.cfg.dataPool(), adminPool: t.cfg.adminPool()}
	reserves := [numPools]int{dataPool: t.cfg.reserve()}
	for i, size := range sizes {
		if g.pools[i], err = newPool(size, reserves[i], t.cfg.MaxTransfer); err != nil {
			return nil, errors.Join(fmt.Errorf("buffers of a poll group: %w", err), g.closePools())
		}
		g.held += int64(g.pools[i].mem.Len())
	}
	g.pools[dataPool].ratio = maxRatio
	if !t.memory.take(g.held) {
		return nil, errors.Join(fmt.Errorf("buffers of a poll group: %w", errMemory), g.closePools())
	}
	if g.core, err = t.target.NewGroup(target.GroupConfig{Run: g.post, Wake: g.wake, Removed: g.namespaceRemoved}); err != nil {
		t.memory.give(g.held)
		return nil, errors.Join(err, g.closePools())
	}
	return g, nil
}

func (g *group) closePools() (err error) {
	for _, p := range g.pools {
		if p != nil {
			err = errors.Join(err, p.mem.Close())
		}
	}
	return err
}

// post has fn run on the group's goroutine, in order. It is false when the
// group has ended.
func (g *group) post(fn func()) bool {
	g.mu.Lock()
	if g.stopped {
		g.mu.Unlock()
		return false
	}
	g.msgs = append(g.msgs, fn)
	g.pending.Store(true)
	g.mu.Unlock()
	g.wake()
	return true
}

// call runs fn on the group's goroutine and waits for it. It is false when the
// group has ended.
func (g *group) call(fn func()) bool {
	done := make(chan struct{})
	if !g.post(func() { fn(); close(done) }) {
		return false
	}
	<-done
	return true
}

// wake ends the group's sleep, if it sleeps.
func (g *group) wake() { g.waker.Wake() }

// run is the goroutine of the group. It returns when stop has been called.
func (g *group) run() {
	defer close(g.ended)
	g.core.RegisterMemory(g.pools[dataPool].bytes, g.pools[adminPool].bytes)
	for !g.stopped { // only the goroutine itself sets it
		if !g.turn() {
			g.idle()
		}
	}
	g.takeMessages() // those that were posted before it was set
	g.err = g.core.Close()
	g.waker.Close()
}

// stop ends run. It is called as a message, when no connection is left.
func (g *group) stop() {
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
}

// turn is one pass of the loop. It is false when there was nothing to do.
func (g *group) turn() bool {
	g.stats.Turns++
	g.core.Tick()
	busy := g.pollCQs()
	busy = g.takeMessages() || busy
	g.serve()
	g.core.Submit()
	busy = g.core.Poll() > 0 || busy
	g.flush()
	busy = g.drain() || busy
	g.settle()
	return busy || g.unserved()
}

// idle spins as configured, then sleeps until woken.
func (g *group) idle() {
	if g.cfg.Poll == PollBusy {
		runtime.Gosched()
		return
	}
	if g.patience.Look(g.turn) {
		return
	}
	g.waker.Prepare()
	g.arm()
	if !g.turn() && !g.stopped {
		g.stats.Sleeps++
		g.sleep()
		g.patience.Awake()
	}
	g.waker.Cancel()
}

func (g *group) sleep() {
	if g.waker.Kernel() {
		g.waker.Sleep(-1)
		return
	}
	<-g.waker.C
}

func (g *group) arm() {
	for i := 0; i < len(g.cqs); i++ {
		if err := g.waker.Arm(g.cqs[i].cq); err != nil {
			g.cqFailed(g.cqs[i], err)
		}
	}
	if g.waker.Kernel() {
		g.core.Arm(g.waker)
	} else {
		g.core.Arm(nil)
	}
}

func (g *group) takeMessages() bool {
	if !g.pending.Load() {
		return false
	}
	g.mu.Lock()
	msgs := g.msgs
	g.msgs, g.spare = g.spare[:0], msgs
	g.pending.Store(false)
	g.mu.Unlock()
	for i, fn := range msgs {
		fn()
		msgs[i] = nil
	}
	return true
}

// pollCQs takes the completions that are there.
func (g *group) pollCQs() (busy bool) {
	for i := 0; i < len(g.cqs); i++ { // one that fails is taken out
		q := g.cqs[i]
		n, err := q.cq.Poll(g.wc[:])
		for k := range g.wc[:n] {
			g.completed(q, &g.wc[k])
		}
		g.stats.Completions += uint64(n)
		busy = busy || n > 0
		q.emptied = n < len(g.wc)
		if err != nil {
			g.cqFailed(q, err)
		}
	}
	return busy
}

// completed gives a completion to its connection.
func (g *group) completed(q *cq, wc *fabric.Completion) {
	kind := idKind(wc.ID)
	if kind == wrSharedRecv {
		q.dev.sharedRecv(wc)
		return
	}
	i := idConn(wc.ID)
	if int(i) >= len(g.conns) || g.conns[i] == nil {
		g.stats.Stale++
		return
	}
	if kind == wrRecv {
		g.conns[i].receive(wc)
	} else {
		g.conns[i].sendDone(wc)
	}
}

// cqFailed ends the connections of a CQ that works no more. Their completions
// will not come.
func (g *group) cqFailed(q *cq, err error) {
	q.failed.Store(true)
	g.cqs = slices.DeleteFunc(g.cqs, func(o *cq) bool { return o == q })
	for _, c := range g.conns {
		if c != nil && c.cq == q {
			c.end(fmt.Errorf("completion queue failed: %w", err))
			c.force()
		}
	}
}

// flush posts what the turn has gathered.
func (g *group) flush() {
	for _, q := range g.srqs {
		q.flush()
	}
	g.srqs = g.srqs[:0]
	for _, c := range g.dirty {
		c.flush()
	}
	g.dirty = g.dirty[:0]
}

// settle looks after connections that may have come to their end.
func (g *group) settle() {
	for i := 0; i < len(g.settling); i++ { // it can grow
		c := g.settling[i]
		c.settling = false
		c.settleNow()
	}
	g.settling = g.settling[:0]
}
