package roce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/host"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// limits of a device.
func limits() fabric.Limits {
	return fabric.Limits{
		MaxQP: 1 << 16, MaxCQ: maxEngines, MaxMR: core.MaxKeys, MaxSRQ: 1 << 12,
		MaxQPDepth: 1 << 14, MaxCQDepth: 1 << 20, MaxSRQDepth: 1 << 16,
		MaxSGE: 32, MaxReadSGE: 32, MaxInline: 512, MaxORD: maxReads, MaxIRD: maxReads,
		MaxMRSize: 1 << 46, MaxMessage: 1 << 30,
		Atomics: true, MemoryWindows: true, SendInvalidate: true, RNR: true, SendsInPoll: true,
		UnreliableConnections: true, Datagrams: true,
	}
}

// maxReads is the number of READs and atomics of a QP, each way.
const maxReads = 128

// device is one local address while it is open: its sockets, its connection
// manager, and the engines of its completion queues. It implements
// fabric.Device, fabric.MemoryWindower, fabric.UnreliableConnector and
// fabric.DatagramDevice.
type device struct {
	*core.Device
	p       *Provider
	addr    netip.Addr // without zone
	zone    int
	info    fabric.DeviceInfo
	socks   *sockets
	waiter  *host.Waiter
	control *control
	byIndex [maxEngines + 1]atomic.Pointer[engine]
	gone    chan struct{} // closed when the address is free again
	handles core.Handles
	engines core.Engines[*engine]

	mu      sync.Mutex
	present bool // the interface has the address
	up      bool
}

// openDevice binds the sockets of an interface's address.
func openDevice(p *Provider, i iface) (*device, error) {
	d := &device{
		p: p, addr: i.addr.WithZone(""), zone: i.index, info: p.describe(i), gone: make(chan struct{}),
		present: true, up: i.up,
	}
	d.engines.New, d.engines.Last = func() (*engine, error) { return newEngine(d) }, d.shut
	if d.info.MTU == 0 {
		return nil, opError("open", d.info.Name, fmt.Errorf("%w: an interface MTU of %d is too small for RoCE", fabric.ErrNotSupported, i.mtu))
	}
	d.Device = core.NewDevice(d.info.Name, d.info.Limits, &p.guards, d.finish)
	var err error
	if d.socks, err = openSockets(d.addr, d.zone, &p.opts); err != nil {
		return nil, d.opError("open", err)
	}
	if d.waiter, err = host.NewWaiter(); err == nil {
		d.control, err = newControl(d)
	}
	if err != nil {
		d.shut()
		return nil, d.opError("open", err)
	}
	return d, nil
}

func (d *device) opts() *Options { return &d.p.opts }

func (d *device) opError(op string, err error) error { return opError(op, d.info.Name, err) }

// opError makes an error an OpError, unless it is one or a rejection already.
func opError(op, device string, err error) error {
	var o *fabric.OpError
	var r *fabric.RejectError
	if errors.As(err, &o) || errors.As(err, &r) {
		return err
	}
	return &fabric.OpError{Op: op, Device: device, Err: err}
}

// finish is called when the last reference is gone. Engines of CQs that the user
// has left open keep the sockets until they are closed.
func (d *device) finish() {
	if d.engines.End() {
		d.shut()
	}
	d.p.forget(d)
	close(d.gone)
}

func (d *device) shut() {
	if d.control != nil {
		d.control.close()
	}
	if d.waiter != nil {
		d.waiter.Close()
	}
	d.socks.close()
}

// Info describes the device. What can change of an interface is as it is now.
func (d *device) Info() fabric.DeviceInfo {
	info := d.info
	if n, err := net.InterfaceByIndex(d.zone); err == nil {
		info.PortUp = n.Flags&net.FlagUp != 0
		info.MTU = d.p.pathMTU(n.MTU, d.addr.Is6())
	}
	return info
}

// mtu is the largest path MTU that the interface allows now.
func (d *device) mtu() wire.MTU { return wire.MTUOf(d.Info().MTU) }

// NewCompletionQueue makes a CQ.
func (d *device) NewCompletionQueue(depth int, notify func()) (fabric.CompletionQueue, error) {
	q, err := d.engines.NewCQ(d.Device, depth, notify)
	if err != nil {
		return nil, err
	}
	return q, nil
}

// NewSharedReceiveQueue makes an SRQ.
func (d *device) NewSharedReceiveQueue(depth, maxSGE int) (fabric.SharedReceiveQueue, error) {
	s, err := d.NewSRQ(depth, maxSGE)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// forward hands a packet that came to the wrong socket to the right engine, or
// to the connection manager. Its ICRC has been checked.
func (d *device) forward(from netip.Addr, qpn uint32, b []byte) {
	if qpn == wire.GSIQP {
		d.control.packet(from, b)
		return
	}
	if e := d.byIndex[qpn&groupMask].Load(); e != nil {
		e.addStray(from, b)
	}
}
