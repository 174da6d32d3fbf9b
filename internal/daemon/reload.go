package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
)

// Result is what a reload did.
type Result struct {
	Changes []string // one line each
	Errors  []error
	// Restart are the keys whose change waits for a restart.
	Restart []string
}

func (r *Result) did(format string, a ...any) {
	r.Changes = append(r.Changes, fmt.Sprintf(format, a...))
}
func (r *Result) fail(err error) {
	if err != nil {
		r.Errors = append(r.Errors, err)
	}
}

// subsystemState is a subsystem and what it was made from.
type subsystemState struct {
	cfg config.Subsystem
	sub *target.Subsystem
	ns  map[uint32]config.Namespace
}

// errClosed is what a reload of a closing daemon gives.
var errClosed = errors.New("the daemon is ending")

// Reload brings the daemon to the state of f and touches nothing that did not
// change. What is removed goes first, so that names and media may change
// hands. Everything that failed before is tried again. When ctx ends it waits
// no more for what is stuck, and that is in the result.
func (d *Daemon) Reload(ctx context.Context, f *config.File) *Result {
	d.apply.Lock()
	defer d.apply.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(d.life, func() { cancel(errClosed) })()
	r := &Result{}
	if d.life.Err() != nil {
		r.fail(errClosed)
		return r
	}
	if old := d.config(); old != nil {
		r.Restart = needRestart(old, f)
	}
	d.setLog(f)
	r.fail(d.target.SetReferrals(referrals(f)))
	d.removeListeners(f, r)
	d.removeSubsystems(ctx, f, r)
	d.closeBackends(f, r)
	d.openBackends(f, r)
	for _, s := range f.Subsystems {
		d.applySubsystem(s, r)
	}
	d.refreshSizes(r)
	d.addListeners(f, r)
	d.mu.Lock()
	d.cfg = f
	d.mu.Unlock()
	d.report(r)
	return r
}

func (d *Daemon) report(r *Result) {
	for _, c := range r.Changes {
		d.log.Debug(c) // the target has a line for most of them
	}
	for _, e := range r.Errors {
		d.log.Error(e)
	}
	for _, k := range r.Restart {
		d.log.Warnf("%s has changed: a restart will take it up", k)
	}
}

func (d *Daemon) setLog(f *config.File) {
	if lvl, err := logrus.ParseLevel(f.Log.Level); err == nil {
		d.log.SetLevel(lvl)
	}
	if f.Log.Format == "json" {
		d.log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	} else {
		d.log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, TimestampFormat: "2006-01-02T15:04:05.000Z07:00"})
	}
}

// needRestart names the keys of the top level that only a start looks at.
func needRestart(old, f *config.File) (keys []string) {
	for _, c := range []struct {
		key     string
		changed bool
	}{
		{"poll", old.Poll != f.Poll},
		{"poll_groups", old.PollGroups != f.PollGroups},
		{"rdma", old.RDMA != f.RDMA},
		{"cntlid", old.CNTLID != f.CNTLID},
		{"discovery.nqn", old.Discovery.NQN != f.Discovery.NQN},
		{"admin", old.Admin != f.Admin},
	} {
		if c.changed {
			keys = append(keys, c.key)
		}
	}
	return keys
}

func referrals(f *config.File) (list []target.Referral) {
	for _, r := range f.Discovery.Referrals {
		t := nvme.TransportRDMA
		if r.Transport == "tcp" {
			t = nvme.TransportTCP
		}
		list = append(list, target.Referral{Type: t, Addr: netip.AddrPortFrom(r.Address, r.Port), NQN: nvme.NQN(r.NQN)})
	}
	return list
}

// task is something that Reload waits for.
type task struct {
	what string
	run  func(context.Context) error
}

// removeSubsystems removes subsystems and namespaces that f does not have in
// the same form, and namespaces on backends that are about to be reopened.
func (d *Daemon) removeSubsystems(ctx context.Context, f *config.File, r *Result) {
	var gone, successors []task
	for _, nqn := range slices.Sorted(maps.Keys(d.subs)) {
		s := d.subs[nqn]
		i := slices.IndexFunc(f.Subsystems, func(c config.Subsystem) bool { return nvme.NQN(c.NQN) == nqn })
		if i < 0 || f.Subsystems[i].Serial != s.cfg.Serial || f.Subsystems[i].Model != s.cfg.Model {
			delete(d.subs, nqn)
			gone = append(gone, task{
				fmt.Sprintf("subsystem %s: removed", nqn),
				func(ctx context.Context) error { return d.target.RemoveSubsystem(ctx, nqn) },
			})
			continue
		}
		removals, remapped := d.removeNamespaces(f, f.Subsystems[i], s)
		gone = append(gone, removals...)
		if remapped {
			successors = append(successors, task{run: s.sub.AwaitListing})
		}
	}
	for i, err := range together(ctx, removeTimeout, gone) {
		r.fail(err)
		r.did("%s", gone[i].what)
	}
	for _, err := range together(ctx, listingTimeout, successors) {
		if err != nil {
			d.log.Warn(err)
		}
	}
}

// removeNamespaces takes namespaces of s that do not stay out, and says whether
// one of their NSIDs will be another's.
func (d *Daemon) removeNamespaces(f *config.File, c config.Subsystem, s *subsystemState) (gone []task, remapped bool) {
	for _, nsid := range slices.Sorted(maps.Keys(s.ns)) {
		if d.stays(f, c, s.ns[nsid]) {
			continue
		}
		delete(s.ns, nsid)
		gone = append(gone, task{
			fmt.Sprintf("subsystem %s: namespace %d removed", c.NQN, nsid),
			func(ctx context.Context) error { return s.sub.RemoveNamespace(ctx, nsid) },
		})
		remapped = remapped || slices.ContainsFunc(c.Namespaces, func(n config.Namespace) bool { return n.NSID == nsid })
	}
	return gone, remapped
}

// together runs tasks at the same time, for at most limit, and has their errors.
func together(ctx context.Context, limit time.Duration, tasks []task) []error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	errs := make([]error, len(tasks))
	var wg sync.WaitGroup
	for i := range tasks {
		wg.Go(func() { errs[i] = tasks[i].run(ctx) })
	}
	wg.Wait()
	return errs
}

// stays says whether a namespace is in the new subsystem as it is now.
func (d *Daemon) stays(f *config.File, s config.Subsystem, n config.Namespace) bool {
	b, want := d.backends[n.Backend], f.Backend(n.Backend)
	return slices.Contains(s.Namespaces, n) && b != nil && want != nil && sameMedium(b.cfg, *want)
}

func (d *Daemon) applySubsystem(c config.Subsystem, r *Result) {
	nqn := nvme.NQN(c.NQN)
	s := d.subs[nqn]
	if s == nil {
		sub, err := d.target.AddSubsystem(target.SubsystemConfig{
			NQN: nqn, Serial: c.Serial, Model: c.Model, Hosts: hostPolicy(c.Hosts), Ports: c.Listeners,
		})
		if err != nil {
			r.fail(err)
			return
		}
		s = &subsystemState{sub: sub, ns: map[uint32]config.Namespace{}}
		d.subs[nqn] = s
		r.did("subsystem %s: added", nqn)
	} else {
		r.fail(s.sub.SetHosts(hostPolicy(c.Hosts)))
		s.sub.SetPorts(c.Listeners)
	}
	s.cfg = c
	for _, n := range c.Namespaces {
		if _, there := s.ns[n.NSID]; !there {
			d.addNamespace(s, n, r)
		}
	}
}

func hostPolicy(h config.Hosts) target.HostPolicy {
	if h.Any {
		return target.AnyHost()
	}
	list := make([]nvme.NQN, len(h.NQNs))
	for i, n := range h.NQNs {
		list[i] = nvme.NQN(n)
	}
	return target.OnlyHosts(list...)
}

func (d *Daemon) addNamespace(s *subsystemState, n config.Namespace, r *Result) {
	fail := func(err error) { r.fail(fmt.Errorf("subsystem %s namespace %d: %w", s.cfg.NQN, n.NSID, err)) }
	b := d.backends[n.Backend]
	if b == nil {
		return // could not be opened, and the error says so
	}
	cfg := target.NamespaceConfig{NSID: n.NSID, Device: b.dev, Name: n.Backend, ReadOnly: n.ReadOnly}
	var err error
	if n.UUID != "" {
		if cfg.UUID, err = nvme.ParseUUID(n.UUID); err != nil {
			fail(err)
			return
		}
	}
	if n.NGUID != "" {
		if cfg.NGUID, err = nvme.ParseNGUID(n.NGUID); err != nil {
			fail(err)
			return
		}
	}
	if _, err := s.sub.AddNamespace(cfg); err != nil {
		fail(err)
		return
	}
	s.ns[n.NSID] = n
	r.did("subsystem %s: namespace %d added, backend %s", s.cfg.NQN, n.NSID, n.Backend)
}

// refreshSizes looks at every medium again: files may have been grown by hand.
func (d *Daemon) refreshSizes(r *Result) {
	for nqn, s := range d.subs {
		for nsid := range s.ns {
			n := s.sub.Namespace(nsid)
			if n == nil {
				continue
			}
			changed, err := n.Refresh()
			r.fail(err)
			if changed {
				r.did("subsystem %s: namespace %d has %d bytes now", nqn, nsid, n.Size())
			}
		}
	}
}
