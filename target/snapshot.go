package target

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// Snapshot is the state of a target, for people and metrics. Its counters
// count from when the target was made, and what is counted by one poll group
// is of one moment.
type Snapshot struct {
	Uptime      time.Duration
	Refusals    uint64 // Connect commands refused
	Unconnected int    // queues without Connect
	Generation  uint64 // of the discovery log
	Ports       []PortStatus
	Subsystems  []SubsystemStatus  // by NQN
	Controllers []ControllerStatus // by ID
	Hosts       []HostStatus       // by name and subsystem
}

// PortStatus is a listener.
type PortStatus struct {
	ID          uint16
	Name        string
	Type        nvme.TransportType
	Provider    string
	Addr        netip.AddrPort
	Controllers int
}

// SubsystemStatus is a subsystem.
type SubsystemStatus struct {
	NQN         nvme.NQN
	Serial      string
	Model       string
	Hosts       HostPolicy
	Controllers int
	Namespaces  []NamespaceStatus // by NSID
}

// NamespaceStatus is a namespace.
type NamespaceStatus struct {
	NSID      uint32
	Name      string
	Type      string // of the backend
	Path      string
	Engine    string
	UUID      nvme.UUID
	NGUID     nvme.NGUID
	BlockSize uint32 // bytes
	Blocks    uint64
	ReadOnly  bool

	Counters    Counters
	Read, Write Histogram // from Prepare to the end of the backend's work
	Lent        Histogram // of the reads among them that were answered from the backend's own memory
	Busy        time.Duration
	Inflight    int    // operations in the backend
	Waiting     int    // requests that wait for depth
	Waits       uint64 // turns in which requests had to wait
}

// ControllerStatus is a controller.
type ControllerStatus struct {
	ID        uint16
	Subsystem nvme.NQN
	Discovery bool
	Host      nvme.NQN
	HostID    nvme.HostID
	Port      string
	Peer      netip.AddrPort
	Age       time.Duration
	KeepAlive time.Duration // 0: none
	Ready     bool
	Errors    uint64        // entries ever made in its error log
	Queues    []QueueStatus // by ID
}

// QueueStatus is a queue.
type QueueStatus struct {
	ID          uint16
	Depth       int
	Executing   int // commands between Execute and their end
	Peer        string
	Counters    Counters
	Read, Write Histogram
}

// HostStatus is what a host did at a subsystem with all its controllers, those
// that have ended included. Hosts beyond a limit are counted under an empty
// name.
type HostStatus struct {
	NQN         nvme.NQN
	Subsystem   nvme.NQN
	Controllers int
	Counters    Counters
	Namespaces  []HostNamespaceStatus // those it has used, by NSID
}

// HostNamespaceStatus is what a host did to a namespace.
type HostNamespaceStatus struct {
	NSID        uint32
	Name        string
	Counters    Counters
	Read, Write Histogram // as in NamespaceStatus
}

// Snapshot collects the state. It fails when ctx ends before every group has
// answered.
func (t *Target) Snapshot(ctx context.Context) (*Snapshot, error) {
	done := make(chan *groupReport, 1)
	t.gather(everything, func(sum *groupReport) { done <- sum })
	select {
	case sum := <-done:
		return t.snapshot(sum), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// gather sums the groups' counters up and calls done with them, here or on the
// owner of a group.
func (t *Target) gather(d detail, done func(*groupReport)) {
	var mu sync.Mutex
	sum := newGroupReport()
	t.mu.Lock()
	groups := slices.Collect(maps.Keys(t.groups))
	sum.add(t.past)
	t.mu.Unlock()
	eachGroup(groups, func(g *Group) {
		r := g.report(d)
		mu.Lock()
		defer mu.Unlock()
		sum.add(r)
	}, func() { done(sum) })
}

func (t *Target) snapshot(sum *groupReport) *Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &Snapshot{
		Uptime: time.Since(t.epoch), Refusals: t.refusals.Load(), Unconnected: len(t.waiting), Generation: t.genctr,
	}
	for _, p := range t.ports {
		s.Ports = append(s.Ports, t.portStatusLocked(p))
	}
	for _, nqn := range slices.Sorted(maps.Keys(t.subs)) {
		s.Subsystems = append(s.Subsystems, t.subs[nqn].statusLocked(sum))
	}
	for _, id := range slices.Sorted(maps.Keys(t.ctrls)) {
		s.Controllers = append(s.Controllers, t.ctrls[id].status(sum))
	}
	s.Hosts = t.hostStatusLocked(sum)
	return s
}

func (t *Target) portStatusLocked(p *Port) PortStatus {
	s := PortStatus{ID: p.ID, Name: p.Name, Type: p.Type, Provider: p.Provider, Addr: p.Addr}
	for _, c := range t.ctrls {
		if c.port == p {
			s.Controllers++
		}
	}
	return s
}

func (s *Subsystem) statusLocked(sum *groupReport) SubsystemStatus {
	st := SubsystemStatus{NQN: s.nqn, Serial: s.serial, Model: s.model, Hosts: s.hosts, Controllers: len(s.ctrls)}
	table := s.table.Load()
	for _, id := range table.active {
		st.Namespaces = append(st.Namespaces, table.byID[id].status(sum))
	}
	return st
}

func (n *Namespace) status(sum *groupReport) NamespaceStatus {
	st := NamespaceStatus{
		NSID: n.nsid, Name: n.name, Type: n.info.Type, Path: n.info.Path, Engine: n.info.Engine,
		UUID: n.id.uuid, NGUID: n.id.nguid, BlockSize: n.info.BlockSize, Blocks: n.blocks.Load(), ReadOnly: n.ro,
	}
	if r := sum.namespaces[n]; r != nil {
		st.Counters, st.Read, st.Write, st.Lent = r.Counters, r.read, r.write, r.lent
		st.Busy, st.Inflight, st.Waiting, st.Waits = time.Duration(r.busy), r.inflight, r.waiting, r.waits
	}
	return st
}

func (c *Controller) status(sum *groupReport) ControllerStatus {
	st := ControllerStatus{
		ID: c.id, Subsystem: c.sub.nqn, Discovery: c.discovery, Host: c.hostNQN, HostID: c.hostID,
		Port: c.port.Name, Peer: c.admin.cfg.Link.Peer(), Age: time.Since(c.created), Ready: c.ready.Load(),
	}
	c.mu.Lock()
	st.KeepAlive, st.Errors = c.kato, c.errors.count
	c.mu.Unlock()
	for i := range sum.queues {
		if q := &sum.queues[i]; q.ctrl == c {
			st.Queues = append(st.Queues, QueueStatus{
				ID: q.id, Depth: int(q.size) + 1, Executing: q.executing, Peer: q.peer,
				Counters: q.total, Read: q.read, Write: q.write,
			})
		}
	}
	slices.SortFunc(st.Queues, func(a, b QueueStatus) int { return cmp.Compare(a.ID, b.ID) })
	return st
}

// hostStatusLocked leaves out what is still ending of subsystems and namespaces
// that were removed: others may have their names.
func (t *Target) hostStatusLocked(sum *groupReport) []HostStatus {
	hosts := map[hostKey]*HostStatus{}
	host := func(k hostKey) *HostStatus {
		h := entry(hosts, k)
		h.NQN, h.Subsystem = k.host, k.sub.nqn
		return h
	}
	for k, c := range sum.hosts {
		if t.findSubsystemLocked(k.sub.nqn) == k.sub {
			host(k).Counters = *c
		}
	}
	for k, p := range sum.pairs {
		if k.ns.sub.removed || k.ns.sub.Namespace(k.ns.nsid) != k.ns {
			continue
		}
		h := host(hostKey{k.host, k.ns.sub})
		h.Namespaces = append(h.Namespaces, HostNamespaceStatus{
			NSID: k.ns.nsid, Name: k.ns.name, Counters: p.Counters, Read: p.read, Write: p.write,
		})
	}
	for _, c := range t.ctrls {
		if h := hosts[hostKey{c.hostNQN, c.sub}]; h != nil {
			h.Controllers++
		}
	}
	return sortedHosts(hosts)
}

func sortedHosts(hosts map[hostKey]*HostStatus) []HostStatus {
	var list []HostStatus
	for _, h := range hosts {
		slices.SortFunc(h.Namespaces, func(a, b HostNamespaceStatus) int { return cmp.Compare(a.NSID, b.NSID) })
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b HostStatus) int {
		return cmp.Or(cmp.Compare(a.NQN, b.NQN), cmp.Compare(a.Subsystem, b.Subsystem))
	})
	return list
}
