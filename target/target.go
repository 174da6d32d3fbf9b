package target

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// Target is a set of subsystems behind a set of ports. Its methods, and those
// of Subsystem and Namespace, may be called from any goroutine at any time.
type Target struct {
	// Constant.

	cfg       Config
	log       logger
	epoch     time.Time
	discovery *Subsystem
	stop      chan struct{} // closed by Close
	stopped   chan struct{} // closed when routineTimer has ended
	rearm     chan struct{} // capacity 1: a deadline came nearer

	// Atomic.

	refusals atomic.Uint64 // Connects refused

	mu        sync.Mutex // guards what follows; held for short, never while blocking
	closed    bool
	ports     []*Port
	subs      map[nvme.NQN]*Subsystem
	groups    map[*Group]struct{}
	ctrls     map[uint16]*Controller
	lastID    uint16 // cntlid given out last
	waiting   map[*Queue]int64
	ids       identities
	slots     slotAllocator
	genctr    uint64
	referrals []Referral
	change    chan struct{} // closed and replaced by changedLocked
	past      *groupReport  // what ended groups had counted
}

// NewTarget makes a target without ports and subsystems, but with its
// discovery subsystem.
func NewTarget(cfg Config) (*Target, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	t := &Target{
		cfg: cfg, log: newLogger(cfg.Log), epoch: time.Now(),
		stop: make(chan struct{}), stopped: make(chan struct{}), rearm: make(chan struct{}, 1),
		subs: map[nvme.NQN]*Subsystem{}, groups: map[*Group]struct{}{}, ctrls: map[uint16]*Controller{},
		lastID: cfg.CntlidMax, waiting: map[*Queue]int64{}, ids: identities{},
		referrals: slices.Clone(cfg.Referrals), change: make(chan struct{}), past: newGroupReport(),
	}
	nqn := cfg.DiscoveryNQN
	def(&nqn, nvme.DiscoveryNQN)
	t.discovery = t.newSubsystem(SubsystemConfig{
		NQN: nqn, Serial: deriveSerial(nqn), Model: DefaultModel, Hosts: AnyHost(),
	})
	t.discovery.discovery = true
	go t.routineTimer()
	return t, nil
}

// now is the time of the target's clock in nanoseconds since it was made.
func (t *Target) now() int64 { return int64(time.Since(t.epoch)) }

// AddPort makes a listener known: to discovery, and as a way to the
// subsystems. IDs and names are unique.
func (t *Target) AddPort(p *Port) error {
	if err := p.check(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	for _, o := range t.ports {
		if o.ID == p.ID {
			return refuse("port %q: ID %d is already that of port %q", p.Name, p.ID, o.Name)
		}
		if o.Name == p.Name {
			return refuse("port %q exists already", p.Name)
		}
	}
	t.ports = append(t.ports, p)
	slices.SortFunc(t.ports, func(a, b *Port) int { return int(a.ID) - int(b.ID) })
	t.discoveryChangedLocked()
	return nil
}

// RemovePort disconnects the hosts that came through p and forgets it. The
// transport stops listening before.
func (t *Target) RemovePort(p *Port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.ports, p)
	if i < 0 {
		return
	}
	t.ports = slices.Delete(t.ports, i, i+1)
	for _, c := range t.ctrls {
		if c.port == p {
			c.fail(ErrPortRemoved)
		}
	}
	for q := range t.waiting {
		if q.cfg.Port == p {
			q.cfg.Link.Disconnect(ErrPortRemoved)
		}
	}
	t.discoveryChangedLocked()
}

// SetReferrals changes the entries for other discovery services.
func (t *Target) SetReferrals(list []Referral) error {
	for _, r := range list {
		if err := r.check(); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Equal(t.referrals, list) {
		t.referrals = slices.Clone(list)
		t.discoveryChangedLocked()
	}
	return nil
}

// Close lets nobody in any more, disconnects every host, and waits until the
// controllers have ended or ctx has. Groups and devices are closed by those who
// made them. Closing twice is nil.
func (t *Target) Close(ctx context.Context) error {
	t.mu.Lock()
	first := !t.closed
	t.closed = true
	for _, c := range t.ctrls {
		c.fail(ErrClosed)
	}
	for q := range t.waiting {
		q.cfg.Link.Disconnect(ErrClosed)
	}
	t.mu.Unlock()
	err := t.await(ctx, func() bool { return len(t.ctrls) == 0 })
	if first {
		close(t.stop)
	}
	<-t.stopped
	return err
}

// changedLocked makes those look again who await something.
func (t *Target) changedLocked() {
	close(t.change)
	t.change = make(chan struct{})
}

// await waits until cond, which is called with Target.mu held and can change
// only before a changedLocked: when a controller ends, or lists namespaces.
func (t *Target) await(ctx context.Context, cond func() bool) error {
	for {
		t.mu.Lock()
		ok, change := cond(), t.change
		t.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// eachGroup runs fn on the owner of every group that has not ended, and then
// done, on one of them or here.
func eachGroup(groups []*Group, fn func(*Group), done func()) {
	left := newCountdown(len(groups)+1, done)
	for _, g := range groups {
		if !g.cfg.Run(func() { fn(g); left.down() }) {
			left.down()
		}
	}
	left.down()
}
