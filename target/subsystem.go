package target

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/nvme"
)

// Reasons for which the core disconnects a queue.
var (
	ErrRemoved       = errors.New("the subsystem was removed")
	ErrPortRemoved   = errors.New("the port was removed")
	ErrHostForbidden = errors.New("the host is no longer allowed")
	ErrKeepAlive     = errors.New("keep alive timeout")
	ErrAdminClosed   = errors.New("the admin queue was closed")
	ErrReset         = errors.New("the controller was reset")
	ErrShutdown      = errors.New("the host has shut the controller down")
	ErrNoConnect     = errors.New("no Connect command arrived in time")
	ErrClosed        = errors.New("the target is closing")

	errNoPort = errors.New("the port is not one of the target's")
)

// Subsystem is an NVM subsystem, or the discovery subsystem.
type Subsystem struct {
	// Constant.

	target    *Target
	nqn       nvme.NQN
	serial    string
	model     string
	discovery bool

	// Atomic: the I/O path loads it, Target.mu guards replacing it.

	table atomic.Pointer[nsTable]

	// Guarded by Target.mu.

	hosts   HostPolicy
	ports   []string // nil: all
	ctrls   map[*Controller]struct{}
	removed bool
}

// NQN is the subsystem's name.
func (s *Subsystem) NQN() nvme.NQN { return s.nqn }

// Serial is the subsystem's serial number, configured or derived.
func (s *Subsystem) Serial() string { return s.serial }

func (t *Target) newSubsystem(cfg SubsystemConfig) *Subsystem {
	s := &Subsystem{
		target: t, nqn: cfg.NQN, serial: cfg.Serial, model: cfg.Model,
		hosts: cfg.Hosts.compiled(), ports: slices.Clone(cfg.Ports),
		ctrls: map[*Controller]struct{}{},
	}
	s.table.Store(&nsTable{byID: make([]*Namespace, MaxNSID+1)})
	return s
}

// AddSubsystem makes a subsystem without namespaces. It fails when the NQN or
// the serial number is in use.
func (t *Target) AddSubsystem(cfg SubsystemConfig) (*Subsystem, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	if t.findSubsystemLocked(cfg.NQN) != nil {
		return nil, refuse("subsystem %s exists already", cfg.NQN)
	}
	if err := t.ids.claim("subsystem "+string(cfg.NQN), serialKey(cfg.Serial)); err != nil {
		return nil, err
	}
	s := t.newSubsystem(cfg)
	t.subs[s.nqn] = s
	t.log.infof("subsystem %s added, serial number %s", s.nqn, s.serial)
	t.discoveryChangedLocked()
	return s, nil
}

// findSubsystemLocked is the subsystem that a Connect to that name means.
func (t *Target) findSubsystemLocked(nqn nvme.NQN) *Subsystem {
	if nqn.IsDiscovery() || nqn == t.discovery.nqn {
		return t.discovery
	}
	return t.subs[nqn]
}

// Subsystem finds a subsystem by its NQN; nil when there is none.
func (t *Target) Subsystem(nqn nvme.NQN) *Subsystem {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.subs[nqn]
}

// Namespace finds a namespace; nil when there is none.
func (s *Subsystem) Namespace(nsid uint32) *Namespace { return s.table.Load().get(nsid) }

// RemoveSubsystem disconnects a subsystem's hosts and removes its namespaces,
// and waits until controllers and namespaces are gone. When ctx ends before,
// that goes on in the background and an error says so.
func (t *Target) RemoveSubsystem(ctx context.Context, nqn nvme.NQN) error {
	t.mu.Lock()
	s := t.subs[nqn]
	if s == nil {
		t.mu.Unlock()
		return refuse("subsystem %s does not exist", nqn)
	}
	delete(t.subs, nqn)
	s.removed = true
	t.ids.release(serialKey(s.serial))
	s.disconnectLocked(ErrRemoved, nil)
	drains := map[*Namespace]<-chan struct{}{}
	for _, id := range s.table.Load().active {
		n := s.table.Load().get(id)
		drains[n] = s.removeLocked(n)
	}
	t.discoveryChangedLocked()
	groups := slices.Collect(maps.Keys(t.groups))
	t.mu.Unlock()
	t.log.infof("subsystem %s removed", nqn)
	var errs []error
	for n, done := range drains {
		errs = append(errs, awaitDrain(ctx, n, done))
	}
	if err := t.await(ctx, func() bool { return len(s.ctrls) == 0 }); err != nil {
		errs = append(errs, fmt.Errorf("subsystem %s: waiting for its controllers: %w", nqn, err))
	}
	eachGroup(groups, func(g *Group) { g.forgetSubsystem(s) }, func() {})
	return errors.Join(errs...)
}

// SetHosts changes who may connect. Hosts that no longer may are disconnected.
func (s *Subsystem) SetHosts(p HostPolicy) error {
	if err := p.check(); err != nil {
		return err
	}
	p = p.compiled()
	t := s.target
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.discovery || s.hosts.equal(p) {
		return nil
	}
	s.hosts = p
	s.disconnectLocked(ErrHostForbidden, func(c *Controller) bool { return !p.allows(c.hostNQN) })
	t.discoveryChangedLocked()
	return nil
}

// SetPorts changes the names of the ports that the subsystem is behind; nil
// means all. Controllers on other ports are disconnected.
func (s *Subsystem) SetPorts(names []string) {
	t := s.target
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.discovery || (s.ports == nil) == (names == nil) && slices.Equal(s.ports, names) {
		return
	}
	s.ports = slices.Clone(names)
	s.disconnectLocked(ErrPortRemoved, func(c *Controller) bool { return !s.behindLocked(c.port) })
	t.discoveryChangedLocked()
}

// behindLocked says whether s can be reached through p.
func (s *Subsystem) behindLocked(p *Port) bool {
	return s.ports == nil || slices.Contains(s.ports, p.Name)
}

// disconnectLocked ends the controllers that match; nil matches all.
func (s *Subsystem) disconnectLocked(reason error, match func(*Controller) bool) {
	for c := range s.ctrls {
		if match == nil || match(c) {
			c.fail(reason)
		}
	}
}

// namespaceChangedLocked tells every controller that a namespace came, went or
// changed.
func (s *Subsystem) namespaceChangedLocked(nsid uint32) {
	for c := range s.ctrls {
		c.namespaceChanged(nsid)
	}
}
