// Package iwarp is the software RNIC for iWARP: MPA, DDP and RDMAP over TCP, in
// userspace and unprivileged, on the wire the same as the kernel's siw and
// hardware. It has connections only: RDMAP knows no unreliable service (UC, UD).
//
// A device is a local IP address. Each completion queue with connections has
// an engine, which works inside the owner's Poll: bytes go from the socket to
// the registered memory and to the completion without crossing a goroutine.
//
//	goroutines       of each device: one wakes owners that sleep (in host.Waiter)
//	                 of each listener: one accepts (routineAccept)
//	                 of each connection: one while its request is read (routineGreet),
//	                 one for a moment after it has ended (routineLinger)
//	on the data path none
package iwarp

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/host"
)

// Name is the provider's name in configuration files.
const Name = "iwarp"

// Provider is the software RNIC. It implements fabric.Provider.
type Provider struct {
	opts   Options
	guid   uint64 // of this process
	guards core.Guards
	linger lingerers

	mu      sync.Mutex
	devices map[netip.Addr]*device // by address with zone
	closed  bool
}

// New makes a provider. It opens nothing.
func New(o Options) (*Provider, error) {
	if err := o.setDefaults(); err != nil {
		return nil, opError("configure "+Name, "", err)
	}
	return &Provider{opts: o, guid: rand.Uint64(), devices: make(map[netip.Addr]*device)}, nil
}

// opError makes an error an OpError, unless it is one or a rejection already.
func opError(op, device string, err error) error {
	var o *fabric.OpError
	var r *fabric.RejectError
	if errors.As(err, &o) || errors.As(err, &r) {
		return err
	}
	return &fabric.OpError{Op: op, Device: device, Err: err}
}

// Name is "iwarp".
func (p *Provider) Name() string { return Name }

// Devices lists the local addresses.
func (p *Provider) Devices() ([]fabric.DeviceInfo, error) {
	list, err := host.Addrs()
	if err != nil {
		return nil, opError("list devices", "", err)
	}
	var infos []fabric.DeviceInfo
	for _, a := range list {
		infos = append(infos, p.describe(a))
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

// describe is the device of an address.
func (p *Provider) describe(a host.Addr) fabric.DeviceInfo {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %v", p.guid, a.IP)
	return fabric.DeviceInfo{
		Name: a.Name(Name), Provider: Name, Transport: fabric.TransportIWARP, GUID: h.Sum64(), NetDev: a.Iface,
		Addrs: []netip.Addr{a.Plain()}, PortUp: a.Up, MTU: a.MTU, Limits: limits(), Note: p.opts.note(),
	}
}

// Open opens a device by its name.
func (p *Provider) Open(name string) (fabric.Device, error) {
	list, err := host.Addrs()
	if err != nil {
		return nil, opError("open", name, err)
	}
	a, ok := host.FindName(list, Name, name)
	if !ok {
		return nil, opError("open", name, fabric.ErrNoDevice)
	}
	d, err := p.open(a)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// open opens the device of an address, or adds a reference.
func (p *Provider) open(a host.Addr) (*device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, opError("open", a.Name(Name), net.ErrClosed)
	}
	if d := p.devices[a.IP]; d != nil && d.Acquire() {
		return d, nil
	}
	d, err := openDevice(p, a)
	if err != nil {
		return nil, err
	}
	p.devices[a.IP] = d
	return d, nil
}

// openAddr opens the device of a local address.
func (p *Provider) openAddr(ip netip.Addr) (*device, error) {
	list, err := host.Addrs()
	if err != nil {
		return nil, err
	}
	a, ok := host.Find(list, ip)
	if !ok {
		return nil, fmt.Errorf("%w: %v", fabric.ErrAddrNotAvailable, ip)
	}
	return p.open(a)
}

// forget is called when a device has lost its last reference.
func (p *Provider) forget(d *device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := d.addr.WithZone(d.zone); p.devices[at] == d {
		delete(p.devices, at)
	}
}

// DeviceFor opens the device that reaches remote.
func (p *Provider) DeviceFor(_ context.Context, local, remote netip.Addr) (fabric.Device, error) {
	d, err := p.deviceFor(local.Unmap(), remote.Unmap())
	if err != nil {
		return nil, opError("find device", "", err)
	}
	return d, nil
}

func (p *Provider) deviceFor(local, remote netip.Addr) (*device, error) {
	if !local.IsValid() || local.IsUnspecified() {
		var err error
		if local, err = host.Source(remote); err != nil {
			return nil, fmt.Errorf("%w: no route to %v: %w", fabric.ErrNoDevice, remote, err)
		}
	} else if remote.IsValid() && remote.Is4() != local.Is4() {
		return nil, fmt.Errorf("%w: %v does not reach %v", fabric.ErrNoDevice, local, remote)
	}
	d, err := p.openAddr(local)
	if errors.Is(err, fabric.ErrAddrNotAvailable) {
		err = fmt.Errorf("%w: %v is not an address of this host", fabric.ErrNoDevice, local)
	}
	return d, err
}

// Close ends the provider; devices and listeners are to be closed before. It
// cuts short what still waits for peers to close their end.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.linger.close()
	return nil
}
