package target

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// Namespace is a device under an NSID of a subsystem.
type Namespace struct {
	// Constant.

	sub   *Subsystem
	nsid  uint32
	slot  int // index of the groups' attachments
	name  string
	dev   backend.Device
	id    identity
	shift uint8 // log2 of the block size
	ro    bool
	info  backend.Info // when it was added; Blocks is out of date

	// Atomic.

	blocks  atomic.Uint64 // size; only the namespace's Refresh stores it
	suspect atomic.Bool   // I/O has met another size: look again

	refresh sync.Mutex // held by Refresh, never on the I/O path
}

// NSID is the namespace identifier.
func (n *Namespace) NSID() uint32 { return n.nsid }

// Name is the device's name in the configuration.
func (n *Namespace) Name() string { return n.name }

// UUID is the namespace's UUID, configured or derived.
func (n *Namespace) UUID() nvme.UUID { return n.id.uuid }

// NGUID is the namespace's NGUID, configured or derived.
func (n *Namespace) NGUID() nvme.NGUID { return n.id.nguid }

// EUI64 is the namespace's EUI-64, configured or derived.
func (n *Namespace) EUI64() nvme.EUI64 { return n.id.eui64 }

// Size is the size in bytes as hosts see it now.
func (n *Namespace) Size() uint64 { return n.blocks.Load() << n.shift }

// number is what transports know the namespace by (Request.Namespace).
func (n *Namespace) number() uint32 { return uint32(n.slot) + 1 }

func (n *Namespace) String() string {
	return fmt.Sprintf("%s namespace %d (%s)", n.sub.nqn, n.nsid, n.name)
}

// has says whether the device has an operation.
func (n *Namespace) has(k backend.Kind) bool { return n.info.Kinds.Has(k) }

// Refresh looks at the medium again and tells hosts when its size has changed.
// It may block on the medium.
func (n *Namespace) Refresh() (changed bool, err error) {
	if _, err := n.dev.Refresh(); err != nil {
		return false, fmt.Errorf("%v: %w", n, err)
	}
	return n.adoptSize(), nil
}

// adoptSize makes the device's size that of the namespace.
func (n *Namespace) adoptSize() (changed bool) {
	n.refresh.Lock()
	defer n.refresh.Unlock()
	n.suspect.Store(false)
	was, is := n.blocks.Load(), n.dev.Info().Blocks
	if was == is {
		return false
	}
	n.blocks.Store(is)
	t := n.sub.target
	t.log.infof("%v: size changed from %d to %d blocks of %d bytes", n, was, is, 1<<n.shift)
	t.mu.Lock()
	defer t.mu.Unlock()
	n.sub.namespaceChangedLocked(n.nsid)
	return true
}

// nsTable are the namespaces of a subsystem at one moment. It is immutable.
type nsTable struct {
	version uint64       // counts the tables of the subsystem
	byID    []*Namespace // index is the NSID; nil is inactive
	active  []uint32     // ascending
}

// get is the namespace of an NSID, nil when there is none.
func (t *nsTable) get(nsid uint32) *Namespace {
	if nsid < uint32(len(t.byID)) {
		return t.byID[nsid]
	}
	return nil
}

// with is t with n at its NSID.
func (t *nsTable) with(n *Namespace) *nsTable {
	u := &nsTable{version: t.version + 1, byID: make([]*Namespace, MaxNSID+1)}
	copy(u.byID, t.byID)
	u.byID[n.nsid] = n
	u.list()
	return u
}

// without is t without an NSID.
func (t *nsTable) without(nsid uint32) *nsTable {
	u := &nsTable{version: t.version + 1, byID: slices.Clone(t.byID)}
	u.byID[nsid] = nil
	u.list()
	return u
}

func (t *nsTable) list() {
	for id, n := range t.byID {
		if n != nil {
			t.active = append(t.active, uint32(id))
		}
	}
}

// any says whether a namespace satisfies f.
func (t *nsTable) any(f func(*Namespace) bool) bool {
	return slices.ContainsFunc(t.active, func(id uint32) bool { return f(t.byID[id]) })
}

// AddNamespace puts a device under an NSID and tells the hosts. It fails when
// the NSID is in use or an identifier is that of another namespace of the
// target.
func (s *Subsystem) AddNamespace(cfg NamespaceConfig) (*Namespace, error) {
	n, err := s.newNamespace(cfg)
	if err != nil {
		return nil, err
	}
	t := s.target
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.removed {
		return nil, refuse("%v: the subsystem was removed", n)
	}
	if old := s.table.Load().get(cfg.NSID); old != nil {
		return nil, refuse("%v: the NSID is already that of %s", n, old.name)
	}
	if err := t.ids.claim(n.String(), n.id.keys()...); err != nil {
		return nil, err
	}
	n.slot = t.slots.take()
	s.table.Store(s.table.Load().with(n))
	s.namespaceChangedLocked(n.nsid)
	t.log.infof("%v added: %d blocks of %d bytes, UUID %v", n, n.blocks.Load(), 1<<n.shift, n.id.uuid)
	return n, nil
}

func (s *Subsystem) newNamespace(cfg NamespaceConfig) (*Namespace, error) {
	if s.discovery {
		return nil, refuse("a discovery subsystem has no namespaces")
	}
	if cfg.NSID == 0 || cfg.NSID > MaxNSID {
		return nil, refuse("%s namespace %d: expected an NSID of 1 to %d", s.nqn, cfg.NSID, MaxNSID)
	}
	if cfg.Device == nil {
		return nil, refuse("%s namespace %d: no device", s.nqn, cfg.NSID)
	}
	info := cfg.Device.Info()
	if info.BlockSize < 512 || bits.OnesCount32(info.BlockSize) != 1 {
		return nil, refuse("%s namespace %d: block size %d: expected a power of two of at least 512", s.nqn, cfg.NSID, info.BlockSize)
	}
	n := &Namespace{
		sub: s, nsid: cfg.NSID, name: cfg.Name, dev: cfg.Device, info: info,
		id:    deriveIdentity(s.nqn, &cfg, info.Identity),
		shift: uint8(bits.TrailingZeros32(info.BlockSize)),
		ro:    cfg.ReadOnly || info.ReadOnly,
	}
	n.blocks.Store(info.Blocks)
	return n, nil
}

// RemoveNamespace takes a namespace away: new commands find it inactive at
// once, hosts are told, and commands in flight go on. It waits until those have
// ended and the backend queues are closed: then the device may be closed. When
// ctx ends before, that goes on in the background and an error says so.
func (s *Subsystem) RemoveNamespace(ctx context.Context, nsid uint32) error {
	t := s.target
	t.mu.Lock()
	n := s.table.Load().get(nsid)
	if n == nil {
		t.mu.Unlock()
		return refuse("%s namespace %d does not exist", s.nqn, nsid)
	}
	done := s.removeLocked(n)
	t.mu.Unlock()
	t.log.infof("%v removed", n)
	return awaitDrain(ctx, n, done)
}

// removeLocked takes n out of the table and starts its drain; done is closed
// with it.
func (s *Subsystem) removeLocked(n *Namespace) (done <-chan struct{}) {
	s.table.Store(s.table.Load().without(n.nsid))
	s.target.ids.release(n.id.keys()...)
	s.namespaceChangedLocked(n.nsid)
	return s.target.drainLocked(n)
}

func awaitDrain(ctx context.Context, n *Namespace, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%v: waiting for its commands in flight: %w", n, context.Cause(ctx))
	}
}

// AwaitListing waits until every host that is told of namespaces that come and
// go has listed the active ones since the last did, or until ctx ends. An NSID
// that is removed and soon given to another namespace needs it in between: to a
// host that has missed its absence a namespace has changed its identity, which
// must not be.
func (s *Subsystem) AwaitListing(ctx context.Context) error {
	version := s.table.Load().version
	err := s.target.await(ctx, func() bool {
		for c := range s.ctrls {
			if c.wantsListing(version) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("subsystem %s: waiting for its hosts to see the change of namespaces: %w", s.nqn, err)
	}
	return nil
}

// wantsListing says whether the host has been told of a change that has led to
// that version of the table, and has not looked at it yet.
func (c *Controller) wantsListing(version uint64) bool {
	if c.listed.Load() >= version || !c.ready.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.features.asyncEvents&nvme.EventNSAttribute != 0
}

// drainLocked makes every group give its attachment to n back when the last
// command on it has ended, and closes the backend queues. Nobody is blocked
// but the goroutines that wait for a slow medium.
func (t *Target) drainLocked(n *Namespace) <-chan struct{} {
	var attached sync.WaitGroup
	for g := range t.groups {
		attached.Add(1)
		idle := func(q backend.Queue) {
			if q == nil {
				attached.Done()
				return
			}
			go func() {
				defer attached.Done()
				if err := q.Close(); err != nil {
					t.log.warnf("%v: closing a backend queue: %v", n, err)
				}
			}()
		}
		if !g.cfg.Run(func() { g.detach(n, idle) }) {
			attached.Done()
		}
	}
	done := make(chan struct{})
	go func() {
		attached.Wait()
		t.mu.Lock()
		t.slots.give(n.slot)
		t.mu.Unlock()
		close(done)
	}()
	return done
}

// slotAllocator numbers namespaces with small integers.
type slotAllocator struct {
	used int
	free []int
}

func (s *slotAllocator) take() int {
	if k := len(s.free); k > 0 {
		n := s.free[k-1]
		s.free = s.free[:k-1]
		return n
	}
	s.used++
	return s.used - 1
}

func (s *slotAllocator) give(n int) { s.free = append(s.free, n) }
