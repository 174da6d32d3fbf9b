package target

import (
	"errors"

	"github.com/nvmf-go/nvmf/backend"
)

// GroupConfig says how a group meets its owner.
type GroupConfig struct {
	// Run runs fn on the owner's goroutine, soon and in order. It may be
	// called from any goroutine and does not block. It is false when the owner
	// has ended: then fn does not run. When it is true fn does run, be it
	// after Group.Close. Required.
	Run func(fn func()) bool
	// Wake is given to backend queues as their notify: it makes the owner call
	// Poll soon. It may be called from any goroutine and does not block.
	// Required.
	Wake func()
	// Removed is told the number of a namespace (Request.Namespace) that was
	// removed, by the owner: the requests on it that have not been executed are
	// not to wait for anything any more. Execute and Queue.Reject both may end
	// them. nil when the transport lets none wait.
	Removed func(namespace uint32)
	// BackendDepth is the number of operations in flight in each backend
	// queue, 1 to 65536; 0 means DefaultBackendDepth. Requests beyond it wait
	// in order.
	BackendDepth int
}

// DefaultBackendDepth is the default of GroupConfig.BackendDepth.
const DefaultBackendDepth = 256

const (
	maxBackendDepth = 1 << 16
	opBatch         = 64 // operations of one backend Submit or Reap
	scratchSize     = 4096
)

// Group is the core's half of a poll group. Its methods are called by the
// group's owner alone. One turn of the owner's loop is
//
//	Tick                             stamps the turn
//	Queue.Prepare, Queue.Execute ... for what the transport received
//	Poll                             completes what the backends did
//	Submit                           gives the backends what Execute gathered
//
// and before it sleeps: Arm, then Poll once more.
type Group struct {
	// Constant.

	target *Target
	cfg    GroupConfig

	// The owner's.

	now    int64 // time of this turn, Target.now
	turn   uint64
	queues map[*Queue]struct{}
	atts   []*attachment // by Namespace.slot
	open   []*attachment // all, those being detached included
	dirty  []*attachment // with requests to submit
	busy   []*attachment // with operations in flight
	warm   []*attachment // that have lent of late
	memory [][]byte      // of RegisterMemory
	stats  groupStats
	loans  loanClock
	closed bool

	// Scratch of the owner, in here so that it does not escape to the heap.

	ops  [opBatch]backend.Op
	done [opBatch]backend.Completion
	page [scratchSize]byte // of admin commands
}

// NewGroup makes a group. Its owner is whoever runs cfg.Run's functions.
// It may be called from any goroutine.
func (t *Target) NewGroup(cfg GroupConfig) (*Group, error) {
	def(&cfg.BackendDepth, DefaultBackendDepth)
	if cfg.BackendDepth < 1 || cfg.BackendDepth > maxBackendDepth {
		return nil, refuse("backend depth %d: expected 1 to %d", cfg.BackendDepth, maxBackendDepth)
	}
	if cfg.Run == nil || cfg.Wake == nil {
		return nil, refuse("a group needs Run and Wake")
	}
	g := &Group{target: t, cfg: cfg, now: t.now(), queues: map[*Queue]struct{}{}, stats: newGroupStats()}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	t.groups[g] = struct{}{}
	return g, nil
}

// Tick reads the clock for all requests of this turn (their latencies, the
// keep alive). Call it at the top of each turn of the loop, above all after
// having slept.
func (g *Group) Tick() {
	g.now = g.target.now()
	g.turn++
}

// NewQueue makes the queue of a connection that the transport has accepted.
// It is not connected in the sense of NVMe: its first command must be Connect.
// A queue that has not been connected after Config.ConnectTimeout gets
// Link.Disconnect.
func (g *Group) NewQueue(cfg QueueConfig) (*Queue, error) {
	if cfg.Link == nil || cfg.Port == nil || cfg.Depth < 2 {
		return nil, refuse("a queue needs a link, a port and a depth of at least 2")
	}
	if g.closed {
		return nil, ErrClosed
	}
	q := &Queue{group: g, cfg: cfg}
	if err := g.target.expectConnect(q); err != nil {
		return nil, err
	}
	g.queues[q] = struct{}{}
	return q, nil
}

// Close ends the group: it gives back its backend queues. Every queue must
// have been closed, every request must have come home through Link.Complete and
// every loan through Queue.Release; with operations still in backends it waits
// for them. Closing twice is nil.
func (g *Group) Close() error {
	if g.closed {
		return nil
	}
	for q := range g.queues {
		q.Close(ErrClosed)
	}
	g.closed = true
	report := g.report(everything)
	t := g.target
	t.mu.Lock()
	delete(t.groups, g)
	t.past.add(report)
	t.mu.Unlock()
	var errs []error
	for _, a := range g.open {
		if a.onIdle != nil {
			idle := a.onIdle
			a.onIdle = nil
			idle(a.queue)
			continue
		}
		errs = append(errs, a.queue.Close())
	}
	g.atts, g.open, g.dirty, g.busy, g.warm = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}
