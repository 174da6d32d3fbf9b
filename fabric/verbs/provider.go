//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// provider implements fabric.Provider.
type provider struct {
	// mu guards the following, the channel's creation, and the reference and
	// object counts of every device.
	mu        sync.Mutex
	devices   map[string]*device // open, by name
	listeners map[*listener]bool
	cm        *cmChannel // nil until the first id
	closed    bool
}

// New loads the libraries. Without them the error wraps fabric.ErrNotSupported
// and names the missing one; without a device New succeeds and Devices is
// empty.
func New() (fabric.Provider, error) {
	if err := load(); err != nil {
		return nil, &fabric.OpError{Op: "load " + ProviderName, Err: err}
	}
	return &provider{devices: map[string]*device{}, listeners: map[*listener]bool{}}, nil
}

func (p *provider) Name() string { return ProviderName }

// Diagnose says why Devices is empty, and what would give a device.
func (p *provider) Diagnose() string { return diagnose(sysfsRoot) }

// Devices lists the devices, those that cannot be opened with a Note that says
// why.
func (p *provider) Devices() ([]fabric.DeviceInfo, error) {
	entries, err := list()
	if err != nil {
		return nil, &fabric.OpError{Op: "list devices", Err: err}
	}
	var infos []fabric.DeviceInfo
	for _, e := range entries {
		name := C.GoString(&e.name[0])
		if e.ctx == nil {
			why := openError(deviceFolder+C.GoString(&e.file[0]), errno(int(e.err)))
			infos = append(infos, fabric.DeviceInfo{Name: name, Provider: ProviderName, Note: "cannot be opened: " + why.Error()})
			continue
		}
		info, err := p.describe(name, e.ctx)
		if err != nil {
			info = fabric.DeviceInfo{Name: name, Provider: ProviderName, Note: "cannot be queried: " + err.Error()}
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// describe spares an open device the probe of its inline size.
func (p *provider) describe(name string, ctx *C.struct_ibv_context) (fabric.DeviceInfo, error) {
	p.mu.Lock()
	d := p.devices[name]
	p.mu.Unlock()
	if d != nil && d.ctx == ctx {
		return d.Info(), nil
	}
	return query(name, ctx, uint32(C.vb_probe_inline(ctx, inlineProbe)))
}

func list() ([]C.struct_vb_entry, error) {
	entries := make([]C.struct_vb_entry, 64)
	for {
		n := int(C.vb_list(&entries[0], C.int(len(entries))))
		if n < 0 {
			return nil, errno(n)
		}
		if n <= len(entries) {
			return entries[:n], nil
		}
		entries = make([]C.struct_vb_entry, n)
	}
}

func (p *provider) Open(name string) (fabric.Device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, err := p.openLocked(name)
	if err != nil {
		return nil, &fabric.OpError{Op: "open", Device: name, Err: err}
	}
	return d, nil
}

// openLocked gives one reference of the device of that name.
func (p *provider) openLocked(name string) (*device, error) {
	if p.closed {
		return nil, errClosed
	}
	if d := p.devices[name]; d != nil {
		d.refs++
		return d, nil
	}
	cname := append([]byte(name), 0)
	var hold **C.struct_ibv_context
	ctx, err := C.vb_open((*C.char)(unsafe.Pointer(&cname[0])), &hold)
	if ctx == nil {
		return nil, p.noSuchDevice(err)
	}
	d, err := newDevice(p, name, ctx, hold)
	if err != nil {
		C.vb_release(hold)
		return nil, err
	}
	p.devices[name] = d
	return d, nil
}

func (p *provider) noSuchDevice(err error) error {
	entries, listErr := list()
	if listErr != nil {
		return lastErrno(err)
	}
	if len(entries) == 0 {
		return fmt.Errorf("%w: %s", fabric.ErrNoDevice, diagnose(sysfsRoot))
	}
	var names []string
	for _, e := range entries {
		names = append(names, C.GoString(&e.name[0]))
	}
	return fmt.Errorf("%w of that name (devices: %s)", fabric.ErrNoDevice, strings.Join(names, ", "))
}

// deviceOf gives one reference of the device whose context an id has.
func (p *provider) deviceOf(ctx *C.struct_ibv_context) (*device, error) {
	p.mu.Lock()
	for _, d := range p.devices {
		if d.ctx == ctx {
			d.refs++
			p.mu.Unlock()
			return d, nil
		}
	}
	d, err := p.openLocked(C.GoString(&ctx.device.name[0]))
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if d.ctx != ctx {
		d.release()
		return nil, errDeviceRemoved
	}
	return d, nil
}

// DeviceFor chooses by the address: local, or the one that routing would use
// towards remote.
func (p *provider) DeviceFor(ctx context.Context, local, remote netip.Addr) (fabric.Device, error) {
	from := local
	var err error
	if !from.IsValid() || from.IsUnspecified() {
		from, err = sourceOf(remote)
	}
	if err == nil {
		var d fabric.Device
		if d, err = p.deviceWith(from); err == nil {
			return d, nil
		}
	}
	if errors.Is(err, fabric.ErrNoDevice) {
		return nil, &fabric.OpError{Op: fmt.Sprintf("find a device for %v", remote), Err: err}
	}
	return nil, &fabric.OpError{Op: fmt.Sprintf("find a device for %v", remote), Err: fmt.Errorf("%w: %w", fabric.ErrNoDevice, err)}
}

func (p *provider) deviceWith(addr netip.Addr) (fabric.Device, error) {
	infos, err := p.Devices()
	if err != nil {
		return nil, err
	}
	for _, info := range infos {
		if hasAddr(info.Addrs, addr) {
			return p.Open(info.Name)
		}
	}
	return nil, fmt.Errorf("%w has address %v (%s)", fabric.ErrNoDevice, addr, describeAll(infos))
}

// Close ends the connection manager's goroutine.
func (p *provider) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if d, l := len(p.devices), len(p.listeners); d > 0 || l > 0 {
		return &fabric.OpError{Op: "close provider " + ProviderName,
			Err: fmt.Errorf("%w: %d devices and %d listeners are open", fabric.ErrBusy, d, l)}
	}
	p.closed = true
	if p.cm != nil {
		p.cm.close()
	}
	return nil
}

// channel gives the event channel, made at the first use: without a
// device there is none to be had.
func (p *provider) channel() (*cmChannel, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if p.cm == nil {
		ch, err := newChannel()
		if err != nil {
			return nil, err
		}
		p.cm = ch
	}
	return p.cm, nil
}
