package fabrictest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/nvmf-go/nvmf/fabric"
)

// Provider is a provider of the in-memory network: what one host has.
type Provider struct {
	net *Network

	mu        sync.Mutex
	devices   map[string]*Device
	listeners map[*listener]struct{}
	closed    bool
}

func (p *Provider) add(o DeviceOptions) {
	n := p.net
	n.mu.Lock()
	no := n.devices
	n.devices++
	n.mu.Unlock()
	if o.Name == "" {
		o.Name = fmt.Sprintf("mem%d", no)
	}
	if p.devices[o.Name] != nil {
		panic("fabrictest: two devices are called " + o.Name)
	}
	limits := defaultLimits()
	if o.Limits != nil {
		o.Limits(&limits)
	}
	d := &Device{
		net: n, provider: p, opts: o, gone: make(chan struct{}),
		info: fabric.DeviceInfo{
			Name: o.Name, Provider: p.Name(), Transport: fabric.TransportMemory, GUID: 0x02000000fe000000 | uint64(no),
			Addrs: slices.Clone(o.Addrs), PortUp: true, Limits: limits, Note: "in memory, for tests",
		},
	}
	n.own(d)
	p.devices[o.Name] = d
}

// Name is "memory".
func (p *Provider) Name() string { return "memory" }

// Devices lists the devices that are not removed.
func (p *Provider) Devices() ([]fabric.DeviceInfo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []fabric.DeviceInfo
	for _, d := range p.devices {
		if !d.removed.Load() {
			list = append(list, d.info)
		}
	}
	slices.SortFunc(list, func(a, b fabric.DeviceInfo) int { return int(int64(a.GUID) - int64(b.GUID)) })
	return list, nil
}

// Device is the device of that name for a test's hooks, opened or not; nil
// when there is none.
func (p *Provider) Device(name string) *Device {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.devices[name]
}

// Open opens a device.
func (p *Provider) Open(name string) (fabric.Device, error) {
	if err := p.alive(); err != nil {
		return nil, opError("open", name, err)
	}
	d := p.Device(name)
	if d == nil {
		return nil, opError("open", name, fabric.ErrNoDevice)
	}
	if d.removed.Load() {
		return nil, opError("open", name, errRemoved)
	}
	return d.open(), nil
}

// DeviceFor opens the device that reaches remote.
func (p *Provider) DeviceFor(_ context.Context, local, remote netip.Addr) (fabric.Device, error) {
	d := p.route(local, remote)
	if d == nil {
		return nil, opError("find device", "", fmt.Errorf("%w: none reaches %v", fabric.ErrNoDevice, remote))
	}
	return p.Open(d.info.Name)
}

// route is the device with the address local, or with one of the family of
// remote, when remote is on the network.
func (p *Provider) route(local, remote netip.Addr) *Device {
	if p.net.deviceAt(remote) == nil {
		return nil
	}
	if local.IsValid() && !local.IsUnspecified() {
		if d := p.net.deviceAt(local); d != nil && d.provider == p {
			return d
		}
		return nil
	}
	list, _ := p.Devices()
	for _, info := range list {
		if d := p.Device(info.Name); d.sourceFor(remote).IsValid() {
			return d
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

// alive fails after Close.
func (p *Provider) alive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	return nil
}

func opError(op, device string, err error) error {
	return &fabric.OpError{Op: op, Device: device, Err: err}
}

// errRemoved is why nothing works on a removed device.
var errRemoved = fmt.Errorf("%w: the device was removed", fabric.ErrNoDevice)
