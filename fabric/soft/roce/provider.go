// Package roce is the software RNIC for RoCEv2: reliable connections over UDP
// port 4791, in userspace and unprivileged, on the wire the same as the kernel's
// rxe and hardware.
//
// Devices also have the unreliable services (fabric.UnreliableConnector and
// fabric.DatagramDevice). Their QPs are connected, or find each other, by what
// the program tells: the connection manager refuses requests for another service
// than RC (reason 9) and does not speak SIDR. There is no multicast. Of the header
// in front of a datagram the IPv4 identification and the IPv6 flow label are 0: a
// UDP socket does not show them.
//
// A device is a local IP address. Each completion queue with connections has
// an engine with sockets of its own and makes its progress inside the owner's
// Poll: a packet goes from the socket to the completion without crossing a
// goroutine. Packets find the socket of their QP by the low bits of its number.
//
//	goroutines  of the provider: one follows the interfaces (routineWatch)
//	            of each device: one reads the connection manager's socket, one
//	            wakes owners that sleep (in host.Waiter)
//	            on the data path: none
package roce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
)

// Name is the provider's name in configuration files.
const Name = "roce"

// Provider is the software RNIC. It implements fabric.Provider.
type Provider struct {
	opts   Options
	guid   uint64 // of this process, the low byte counts devices
	guards core.Guards
	// weather, set by tests before anything is opened, is what happens to
	// received packets.
	weather *weather

	mu        sync.Mutex
	devices   map[netip.Addr]*device
	listeners map[*listener]struct{}
	watch     *watcher // while there are devices
	closed    bool
}

// New makes a provider. It opens nothing.
func New(o Options) (*Provider, error) {
	if err := o.setDefaults(); err != nil {
		return nil, opError("configure "+Name, "", err)
	}
	return &Provider{
		opts: o, guid: random(),
		devices: make(map[netip.Addr]*device), listeners: make(map[*listener]struct{}),
	}, nil
}

// Name is "roce".
func (p *Provider) Name() string { return Name }

// Devices lists the local addresses.
func (p *Provider) Devices() ([]fabric.DeviceInfo, error) {
	list, err := interfaces()
	if err != nil {
		return nil, opError("list devices", "", err)
	}
	var infos []fabric.DeviceInfo
	for _, i := range list {
		infos = append(infos, p.describe(i))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.devices { // loopback addresses that no interface lists
		if !slices.ContainsFunc(infos, func(i fabric.DeviceInfo) bool { return i.Name == d.info.Name }) {
			infos = append(infos, d.info)
		}
	}
	return infos, nil
}

// Open opens a device by its name.
func (p *Provider) Open(name string) (fabric.Device, error) {
	list, err := interfaces()
	if err != nil {
		return nil, opError("open", name, err)
	}
	for _, i := range list {
		if i.name() == name {
			return p.openFor(i)
		}
	}
	if i, ok := loopbackNamed(list, name); ok {
		return p.openFor(i)
	}
	return nil, opError("open", name, fabric.ErrNoDevice)
}

// open opens the device of an address, or adds a reference.
func (p *Provider) open(i iface) (*device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, opError("open", i.name(), net.ErrClosed)
	}
	addr := i.addr.WithZone("")
	for d := p.devices[addr]; d != nil; d = p.devices[addr] {
		if d.Acquire() {
			return d, nil
		}
		p.mu.Unlock()
		<-d.gone // it is being closed
		p.mu.Lock()
	}
	d, err := openDevice(p, i)
	if err != nil {
		return nil, err
	}
	p.devices[addr] = d
	if p.watch == nil {
		p.watch, _ = newWatcher(p) // without it devices emit no events
	}
	return d, nil
}

// forget is called when a device has lost its last reference.
func (p *Provider) forget(d *device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.devices[d.addr] == d {
		delete(p.devices, d.addr)
	}
	if len(p.devices) == 0 && p.watch != nil {
		go p.watch.close() // it may be waiting for mu
		p.watch = nil
	}
}

// DeviceFor opens the device that reaches remote.
func (p *Provider) DeviceFor(_ context.Context, local, remote netip.Addr) (fabric.Device, error) {
	const op = "find device"
	list, err := interfaces()
	if err != nil {
		return nil, opError(op, "", err)
	}
	local, remote = local.Unmap(), remote.Unmap()
	if local.IsValid() && !local.IsUnspecified() {
		i, ok := lookup(list, local)
		if !ok || remote.IsValid() && remote.Is4() != local.Is4() {
			return nil, opError(op, "", fmt.Errorf("%w: %v is not an address of this host that reaches %v", fabric.ErrNoDevice, local, remote))
		}
		return p.openFor(i)
	}
	source, err := routeTo(remote)
	if err != nil {
		return nil, opError(op, "", fmt.Errorf("%w: no route to %v: %w", fabric.ErrNoDevice, remote, err))
	}
	i, ok := lookup(list, source)
	if !ok {
		return nil, opError(op, "", fmt.Errorf("%w: %v", fabric.ErrNoDevice, source))
	}
	d, err := p.openFor(i)
	if errors.Is(err, fabric.ErrAddrInUse) && isLocal(list, remote) {
		// Another program of this host speaks RoCEv2 on the address: probably
		// the very one to talk to.
		for _, other := range besides(list, remote) {
			if d, err := p.openFor(other); err == nil {
				return d, nil
			}
		}
	}
	return d, err
}

// openFor is open with an untyped nil when it fails.
func (p *Provider) openFor(i iface) (fabric.Device, error) {
	d, err := p.open(i)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Listen takes connection requests.
func (p *Provider) Listen(ctx context.Context, addr netip.AddrPort, cfg fabric.ListenConfig) (fabric.Listener, error) {
	if cfg.Backlog <= 0 {
		cfg.Backlog = 128
	}
	l := &listener{
		p: p, addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()),
		backlog: make(chan *request, cfg.Backlog), done: make(chan struct{}),
	}
	err := ctx.Err()
	if err == nil {
		err = p.openListener(l)
	}
	if err == nil {
		err = p.register(l)
	}
	if err != nil {
		for _, d := range l.devices {
			d.Release()
		}
		return nil, opError("listen", "", err)
	}
	return l, nil
}

// openListener opens the devices of the listener's addresses.
func (p *Provider) openListener(l *listener) error {
	list, err := interfaces()
	if err != nil {
		return err
	}
	want := list
	if own := l.addr.Addr(); !own.IsUnspecified() {
		i, ok := lookup(list, own)
		if !ok {
			return fmt.Errorf("%w: %v", fabric.ErrAddrNotAvailable, own)
		}
		l.addr = netip.AddrPortFrom(own.WithZone(""), l.addr.Port())
		want = []iface{i}
	}
	for _, i := range want {
		if !l.covers(i.addr.WithZone("")) {
			continue
		}
		d, err := p.open(i)
		if err != nil {
			return err
		}
		l.devices = append(l.devices, d)
	}
	if len(l.devices) == 0 {
		return fmt.Errorf("%w: %v", fabric.ErrAddrNotAvailable, l.addr.Addr())
	}
	return nil
}

// register makes the listener known, unless another has its address.
func (p *Provider) register(l *listener) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	taken := func() *listener {
		for o := range p.listeners {
			if o.addr.Port() == l.addr.Port() && (o.covers(l.addr.Addr()) || l.covers(o.addr.Addr())) {
				return o
			}
		}
		return nil
	}
	if l.addr.Port() != 0 {
		if o := taken(); o != nil {
			return fmt.Errorf("%w: %v", fabric.ErrAddrInUse, o.addr)
		}
	}
	for l.addr.Port() == 0 || taken() != nil {
		l.addr = netip.AddrPortFrom(l.addr.Addr(), ephemeral())
	}
	p.listeners[l] = struct{}{}
	return nil
}

func (p *Provider) unlisten(l *listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.listeners, l)
}

// listener is who takes requests for an address, or nil.
func (p *Provider) listener(a netip.AddrPort) *listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.listeners {
		if l.addr.Port() == a.Port() && l.covers(a.Addr()) {
			return l
		}
	}
	return nil
}

// Close ends the provider; devices and listeners are to be closed before.
func (p *Provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}
