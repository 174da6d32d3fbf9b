package fabrictest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
)

// Options configure a Network. The zero value is usable.
type Options struct {
	// RNRDelay is how long a requester waits after its message met no receive;
	// 0 means 1 ms.
	RNRDelay time.Duration
	// AckTimeout is how long a requester waits for an answer before each
	// retry; 0 means 20 ms.
	AckTimeout time.Duration
	// CMTimeout is how long Dial tries to reach an address that is cut off; 0
	// means 5 s.
	CMTimeout time.Duration
	// Seed of the random faults.
	Seed uint64
}

// Network is a set of devices that reach each other.
type Network struct {
	opts   Options
	guards core.Guards

	mu      sync.Mutex
	rng     *rand.Rand
	owners  map[netip.Addr]*Device
	faults  map[addrPair]*Faults
	links   map[*link]struct{}
	loose   map[looseKey]*loose
	port    uint16
	devices int
}

// addrPair is two addresses, the smaller first.
type addrPair [2]netip.Addr

func pairOf(a, b netip.Addr) addrPair {
	if b.Less(a) {
		a, b = b, a
	}
	return addrPair{a, b}
}

// Faults is what happens to messages between two addresses, in both directions.
// The transport recovers from them until its retries are used up.
//
// The unreliable services do not recover. To each of their packets, not messages,
// happen Cut, Drop and Delay; what was delayed arrives in the order it was sent.
// DropAck and Duplicate do nothing to them, which have no answers and send nothing
// again: a link is of all services.
type Faults struct {
	// Cut stops everything, silently.
	Cut bool
	// Drop and DropAck are the shares (0 to 1) of requests that are lost
	// before they were executed, and of answers that are lost after it.
	Drop, DropAck float64
	// Duplicate is the share (0 to 1) of requests that arrive twice.
	Duplicate float64
	// Delay is added to each message.
	Delay time.Duration
}

// NewNetwork makes an empty network.
func NewNetwork(o Options) *Network {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.RNRDelay, time.Millisecond)
	def(&o.AckTimeout, 20*time.Millisecond)
	def(&o.CMTimeout, 5*time.Second)
	return &Network{
		opts: o, rng: rand.New(rand.NewPCG(o.Seed, 1)), port: 49151,
		owners: make(map[netip.Addr]*Device),
		faults: make(map[addrPair]*Faults),
		links:  make(map[*link]struct{}),
		loose:  make(map[looseKey]*loose),
	}
}

// DeviceOptions describe a device of a provider.
type DeviceOptions struct {
	// Name is "mem0", "mem1", ... when empty.
	Name  string
	Addrs []netip.Addr
	// Limits changes the limits from their defaults, which are generous; nil
	// leaves them.
	Limits func(*fabric.Limits)
	// PadPrivateData pads private data with zeros as InfiniBand's CM does: 56
	// bytes in a request, 196 in a reply, 148 in a reject.
	PadPrivateData bool
	// BrokenSendInvalidate makes SEND with invalidate fail with
	// StatusLocalQPOp, though the limits offer it.
	BrokenSendInvalidate bool
	// IgnoreORD makes the device send RDMA READs beyond what was agreed.
	IgnoreORD bool
}

func defaultLimits() fabric.Limits {
	return fabric.Limits{
		MaxQP: 1 << 16, MaxCQ: 1 << 12, MaxMR: 1 << 16, MaxSRQ: 1 << 10,
		MaxQPDepth: 1 << 15, MaxCQDepth: 1 << 22, MaxSRQDepth: 1 << 16,
		MaxSGE: 32, MaxReadSGE: 32, MaxInline: 512, MaxORD: 128, MaxIRD: 128,
		MaxMRSize: 1 << 40, MaxMessage: 1 << 31,
		Atomics: true, MemoryWindows: true, SendInvalidate: true, RNR: true,
		UnreliableConnections: true, Datagrams: true,
	}
}

// NewProvider adds a provider, called "memory", with the given devices. It
// panics when an address or a name is taken: that is a mistake of the test.
func (n *Network) NewProvider(devices ...DeviceOptions) *Provider {
	p := &Provider{net: n, devices: make(map[string]*Device), listeners: make(map[*listener]struct{})}
	for _, o := range devices {
		p.add(o)
	}
	return p
}

// check is what makes no sense about the faults, or nil.
func (f *Faults) check() error {
	for _, share := range []float64{f.Drop, f.DropAck, f.Duplicate} {
		if !(share >= 0 && share <= 1) { // nor NaN
			return fmt.Errorf("a share of %v: expected 0 to 1", share)
		}
	}
	if f.Delay < 0 {
		return fmt.Errorf("a delay of %v: expected 0 or more", f.Delay)
	}
	return nil
}

// SetFaults puts f between two addresses; the zero Faults is a perfect link.
// It works on connections that exist too, but not on what is on its way. It panics
// when f makes no sense: that is a mistake of the test.
func (n *Network) SetFaults(a, b netip.Addr, f Faults) {
	if err := f.check(); err != nil {
		panic(fmt.Sprintf("fabrictest: %v", err))
	}
	for _, l := range n.setFaults(pairOf(a, b), f) {
		l.wake() // calls into users: without mu
	}
}

// setFaults returns the connections that f is for.
func (n *Network) setFaults(pair addrPair, f Faults) (links []*link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var set *Faults
	if f != (Faults{}) {
		set = &f
		n.faults[pair] = set
	} else {
		delete(n.faults, pair)
	}
	for l := range n.links {
		if l.pair == pair {
			l.faults.Store(set)
			links = append(links, l)
		}
	}
	return links
}

// Cut stops all traffic between two addresses, without a word to anybody: what
// is posted runs into its retries, no disconnect arrives, dialling times out.
func (n *Network) Cut(a, b netip.Addr) { n.SetFaults(a, b, Faults{Cut: true}) }

// Heal makes the link between two addresses perfect again.
func (n *Network) Heal(a, b netip.Addr) { n.SetFaults(a, b, Faults{}) }

// isCut says whether nothing passes between two addresses.
func (n *Network) isCut(a, b netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.faults[pairOf(a, b)]
	return f != nil && f.Cut
}

// chance says yes with probability p.
func (n *Network) chance(p float64) bool {
	if p <= 0 {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rng.Float64() < p
}

// ephemeral is a port for a dialler or a listener without one.
func (n *Network) ephemeral() uint16 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.port++; n.port < 49152 {
		n.port = 49152
	}
	return n.port
}

// addLink makes a connection known to SetFaults and gives it the faults that
// are set now.
func (n *Network) addLink(l *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links[l] = struct{}{}
	l.faults.Store(n.faults[l.pair])
}

func (n *Network) removeLink(l *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.links, l)
}

// linksOf are the connections with an end on d.
func (n *Network) linksOf(d *Device) (ends []*conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l := range n.links {
		for _, c := range l.ends {
			if c.dev.hw == d {
				ends = append(ends, c)
			}
		}
	}
	return ends
}

// deviceAt is the device with that address, or nil.
func (n *Network) deviceAt(a netip.Addr) *Device {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.owners[a.Unmap().WithZone("")]
}

func (n *Network) own(d *Device) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range d.info.Addrs {
		if n.owners[a] != nil {
			panic(fmt.Sprintf("fabrictest: %v is on two devices", a))
		}
		n.owners[a] = d
	}
}
