package initiator

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// State is where a controller is in its life.
//
//	connecting -> live <-> reconnecting -> lost
//	     \__________\______\____________\-> closed
type State uint8

// States.
const (
	StateConnecting   State = iota // Connect has not returned yet
	StateLive                      // commands run
	StateReconnecting              // the association was lost; I/O is held
	StateLost                      // reconnecting was given up
	StateClosed                    // Close was called
)

var stateNames = [...]string{"connecting", "live", "reconnecting", "lost", "closed"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Controller is a controller of a subsystem that this host is connected to. Its
// methods are safe for concurrent use.
type Controller struct {
	// Constant.

	cfg      Config
	provider fabric.Provider
	devices  *domains
	bounce   *bounce
	disp     *dispatcher // of this controller alone
	group    *shared     // of a Multipath; nil: devices and bounce are the controller's
	scratch  *Buffer
	admin    *engine
	queues   []*queue // I/O queues, by qid-1
	notices  *notices
	ctx      context.Context // ends with Close: connection attempts
	cancel   context.CancelCauseFunc
	managed  chan struct{} // closed when the manager has ended

	// Any goroutine.

	state    atomic.Uint32
	assoc    atomic.Pointer[association]  // the latest that was installed
	building atomic.Pointer[association]  // the one that is being built, if any
	absent   atomic.Pointer[[]*Namespace] // open ones that it does not have
	engines  atomic.Pointer[[]*engine]    // of the I/O queues that are connected and not taken
	ana      atomic.Pointer[anaTable]     // nil: the controller does not report ANA
	anaAsked atomic.Int64                 // monotonic, when askANA last had it read
	keysWork atomic.Bool                  // a command with a key of its own was answered

	mu         sync.Mutex
	ioEngines  []*engine             // by qid-1; nil while a Queue has the queue
	taken      []*Queue              // by qid-1
	namespaces map[uint32]*Namespace // opened here
	attached   map[uint32]*Namespace // opened on the Multipath
	attempt    attemptStatus
	suspicions int           // associations that ended without ever ending a key
	plainKeys  bool          // no windows any more
	turned     chan struct{} // closed, and made anew, when the state changes
	closed     bool
}

// attemptStatus is what is known of reconnecting.
type attemptStatus struct {
	since      time.Time // the state has been what it is
	lastError  error
	attempts   int // since the association was lost
	next       time.Time
	reconnects int // that succeeded, ever
}

// Connect connects to the controller that cfg describes, through a device of p.
// The error is a *ConnectError when the target, or the way to it, is at fault.
// ctx bounds the connecting alone.
func Connect(ctx context.Context, p fabric.Provider, cfg Config) (*Controller, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return connect(ctx, p, cfg, nil)
}

// shared is what the controllers of a Multipath have in common.
type shared struct {
	devices *domains
	bounce  *bounce
	disp    *dispatcher
}

// connect makes a controller and connects it for the first time. One that is
// part of a Multipath is tried again when that fails, unless there is no use:
// then it is returned with the error.
func connect(ctx context.Context, p fabric.Provider, cfg Config, group *shared) (*Controller, error) {
	c := &Controller{
		cfg: cfg, provider: p, group: group, disp: newDispatcher(cfg.FastIOFail, Failover),
		managed: make(chan struct{}), namespaces: make(map[uint32]*Namespace), attached: make(map[uint32]*Namespace),
	}
	if group != nil {
		c.devices, c.bounce = group.devices, group.bounce
	} else {
		c.devices, c.bounce = new(domains), newBounce(cfg.BounceMemory)
	}
	c.disp.add(c)
	var err error
	if c.scratch, err = newPlainBuffer(scratchSize); err != nil {
		return nil, err
	}
	c.turned = make(chan struct{})
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.attempt.since = time.Now()
	c.notices = newNotices()
	c.engines.Store(new([]*engine))
	c.admin = newEngine(c, newQueue(c, 0, adminDepth))
	for i := range cfg.IOQueues {
		q := newQueue(c, uint16(i+1), cfg.QueueDepth)
		c.queues = append(c.queues, q)
		c.ioEngines = append(c.ioEngines, newEngine(c, q))
	}
	c.taken = make([]*Queue, cfg.IOQueues)
	a, err := c.build(ctx)
	if err != nil && (group == nil || permanent(err)) {
		c.end()
		return nil, err
	}
	if group != nil {
		group.disp.add(c)
	}
	go c.manage(a, err)
	return c, err
}

func (c *Controller) log() *logrus.Logger { return c.cfg.Log }

// String names the controller for people.
func (c *Controller) String() string {
	return fmt.Sprintf("%s at %v", c.cfg.Subsystem, c.cfg.Addr)
}

// State is the controller's state.
func (c *Controller) State() State { return State(c.state.Load()) }

// setState moves to s, unless the controller is closed or lost, and tells
// everybody.
func (c *Controller) setState(s State) {
	c.mu.Lock()
	now := c.State()
	if now == StateClosed || now == StateLost && s != StateClosed {
		c.mu.Unlock()
		return
	}
	c.state.Store(uint32(s))
	c.attempt.since = time.Now()
	close(c.turned)
	c.turned = make(chan struct{})
	c.mu.Unlock()
	if fn := c.cfg.Handler.State; fn != nil {
		c.notices.add(func() { fn(c, s) })
	}
	c.changed()
}

// changed has requests that are held looked at anew.
func (c *Controller) changed() {
	c.disp.changed()
	if c.group != nil {
		c.group.disp.changed()
	}
}

// usable says whether commands can be sent now.
func (c *Controller) usable() bool {
	a := c.assoc.Load()
	return a != nil && !a.gone.Load() && c.State() == StateLive
}

// lostError is why there is no association.
func (c *Controller) lostError() error {
	switch s := c.State(); s {
	case StateClosed:
		return errClosed
	case StateLost:
		return c.lostForGood()
	}
	if a := c.assoc.Load(); a != nil {
		if err := a.reason(); err != nil {
			return fmt.Errorf("%w: %w", ErrPathLost, err)
		}
	}
	return ErrPathLost
}

func (c *Controller) lostForGood() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("%w: %w", ErrControllerLost, c.attempt.lastError)
}

// installed makes a the association in use.
func (c *Controller) installed(a *association) {
	c.assoc.Store(a)
	c.mu.Lock()
	if c.State() == StateReconnecting {
		c.attempt.reconnects++
	}
	c.attempt.attempts, c.attempt.next = 0, time.Time{}
	c.publishLocked()
	c.mu.Unlock()
	for _, p := range c.takenQueues() {
		if int(p.q.qid) > a.ioQueues {
			p.fail(fmt.Errorf("queue %d: %w: the controller has granted fewer than before", p.q.qid, ErrNoQueue))
		}
	}
	c.setState(StateLive)
}

// publishLocked makes the list of the engines that take I/O. mu is held.
func (c *Controller) publishLocked() {
	list := make([]*engine, 0, len(c.ioEngines))
	a := c.assoc.Load()
	for i, e := range c.ioEngines {
		if e != nil && a != nil && i < a.ioQueues {
			list = append(list, e)
		}
	}
	c.engines.Store(&list)
}

// push gives an I/O request to the engine with the least to do.
func (c *Controller) push(r *request) error {
	for range 3 {
		var best *engine
		least := int32(0)
		for _, e := range *c.engines.Load() {
			if l := e.load.Load(); best == nil || l < least {
				best, least = e, l
			}
			if least == 0 {
				break
			}
		}
		if best == nil {
			return ErrNoQueue
		}
		if best.push(r) {
			return nil
		}
	}
	return ErrNoQueue
}

// load is the number of I/O requests given to the controller's engines.
func (c *Controller) load() (n int) {
	for _, e := range *c.engines.Load() {
		n += int(e.load.Load())
	}
	return n
}

// completions is the number of commands ever answered, on all queues.
func (c *Controller) completions() uint64 {
	n := c.admin.q.completions.Load()
	for _, q := range c.queues {
		n += q.completions.Load()
	}
	return n
}

// Close ends the controller: commands in flight fail with an error matching
// net.ErrClosed, the controller is told in order when it can be reached
// (CC.SHN, waiting at most Config.ShutdownTimeout), and everything is
// disconnected. Queues of the controller end too; close them nevertheless.
// Closing twice is nil.
func (c *Controller) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.mu.Unlock()
	if first {
		c.cancel(errClosed)
	}
	<-c.managed
	return nil
}

// end takes the controller apart, after its last association has gone.
func (c *Controller) end() {
	c.cancel(errClosed)
	c.setState(StateClosed)
	if c.group != nil {
		c.group.disp.remove(c)
	}
	c.disp.refuse(errClosed)
	c.admin.stop()
	c.mu.Lock()
	engines := c.ioEngines
	c.ioEngines = make([]*engine, len(engines))
	c.publishLocked()
	c.mu.Unlock()
	for _, e := range engines {
		if e != nil {
			e.stop()
		}
	}
	for _, p := range c.takenQueues() {
		p.shut(c.lostError())
	}
	<-c.admin.ended
	c.admin.q.w.Close()
	for _, e := range engines {
		if e != nil {
			<-e.ended
			e.q.w.Close()
		}
	}
	c.notices.close()
	c.disp.close(errClosed)
	_ = c.scratch.Close() // its registrations went with the last device
	if c.group == nil {
		c.bounce.close()
	}
}

// Status is a snapshot of a controller, with the settings that are in effect.
type Status struct {
	Addr      netip.AddrPort
	Local     netip.AddrPort // zero while not connected
	Device    string
	Subsystem nvme.NQN
	HostNQN   nvme.NQN
	HostID    nvme.HostID
	State     State
	Since     time.Time
	CNTLID    uint16
	IOQueues  int // connected
	Depth     int // commands in flight on each
	InCapsule int // bytes of data that go in a capsule
	Transfer  int // bytes that one command moves at most
	Windows   bool

	KeepAlive       time.Duration // 0: none
	ReconnectDelay  time.Duration
	CtrlLossTimeout time.Duration // negative: for ever
	FastIOFail      time.Duration // negative: CtrlLossTimeout
	ReplayDelay     time.Duration

	Reconnects int       // since Connect
	Attempts   int       // since the association was lost
	Next       time.Time // the next attempt; zero when none is planned
	LastError  error     // why the association was lost, or the last attempt failed
}

// Status is a snapshot of the controller.
func (c *Controller) Status() Status {
	c.mu.Lock()
	s := Status{
		Addr: c.cfg.Addr, Subsystem: c.cfg.Subsystem, HostNQN: c.cfg.HostNQN, HostID: c.cfg.HostID,
		State: c.State(), Since: c.attempt.since,
		KeepAlive: c.cfg.KeepAlive, ReconnectDelay: c.cfg.ReconnectDelay,
		CtrlLossTimeout: c.cfg.CtrlLossTimeout, FastIOFail: c.cfg.FastIOFail,
		Reconnects: c.attempt.reconnects, Attempts: c.attempt.attempts, Next: c.attempt.next, LastError: c.attempt.lastError,
	}
	c.mu.Unlock()
	if a := c.assoc.Load(); a != nil {
		s.CNTLID, s.IOQueues, s.Depth, s.Transfer = a.cntlid, a.ioQueues, a.ioDepth, a.transfer
		s.InCapsule, s.Windows, s.Device = max(a.inCapsule, 0), a.dom.windows, a.dom.dev.Name()
		s.Local = a.local()
		s.ReplayDelay = c.cfg.replayDelay(a.tbkas)
	}
	return s
}

// local is the local address of the admin queue, zero when it is not connected.
func (a *association) local() netip.AddrPort {
	a.mu.Lock()
	defer a.mu.Unlock()
	for qc := range a.conns {
		return qc.conn.LocalAddr()
	}
	return netip.AddrPort{}
}

// ID is the controller ID.
func (c *Controller) ID() uint16 {
	return c.latest().cntlid
}

// latest is the latest association; an empty one when there was none yet, on a
// path that was never connected.
func (c *Controller) latest() *association {
	if a := c.assoc.Load(); a != nil {
		return a
	}
	return new(association)
}

// Identity is Identify Controller as it was read when the controller was
// connected last.
func (c *Controller) Identity() *nvme.IdentifyController {
	id := c.latest().id
	return &id
}

// Capabilities is CAP, and Version VS, as read when the controller was connected
// last.
func (c *Controller) Capabilities() nvme.Capabilities { return c.latest().cap }

// Version is the version of the specification that the controller follows.
func (c *Controller) Version() nvme.Version { return c.latest().version }

// MaxTransfer is the number of bytes that one command may move.
func (c *Controller) MaxTransfer() int { return c.latest().transfer }

// invalidate is whether to use memory windows: what the configuration says,
// until a target seems to die of it.
func (c *Controller) invalidate() Choice {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plainKeys {
		return Off
	}
	return c.cfg.Invalidate
}

// errNotLive: the command was not sent, for the controller was not connected in
// time.
var errNotLive = fmt.Errorf("the controller is not connected: %w", ErrPathLost)
