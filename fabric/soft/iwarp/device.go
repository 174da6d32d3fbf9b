package iwarp

import (
	"net/netip"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/host"
)

// maxReads is the number of READs and atomics of a QP, each way.
const maxReads = 128

// limits of a device. The sink of a READ needs no remote right: what a Read
// Response brings goes where the READ's own WR says.
func limits() fabric.Limits {
	return fabric.Limits{
		MaxQP: 1 << 16, MaxCQ: 1 << 12, MaxMR: core.MaxKeys, MaxSRQ: 1 << 12,
		MaxQPDepth: 1 << 14, MaxCQDepth: 1 << 20, MaxSRQDepth: 1 << 16,
		MaxSGE: 32, MaxReadSGE: 32, MaxInline: 512, MaxORD: maxReads, MaxIRD: maxReads,
		MaxMRSize: 1 << 46, MaxMessage: 1 << 30,
		Atomics: true, MemoryWindows: true, SendInvalidate: true, RNR: false, ReadNeedsRemoteWrite: false, SendsInPoll: true,
	}
}

// device is one local address while it is open. It implements fabric.Device
// and fabric.MemoryWindower.
type device struct {
	*core.Device
	p       *Provider
	addr    netip.Addr // without zone
	zone    string     // of a link-local address
	info    fabric.DeviceInfo
	waiter  *host.Waiter
	engines core.Engines[*engine]
}

func openDevice(p *Provider, a host.Addr) (*device, error) {
	d := &device{p: p, addr: a.Plain(), zone: a.IP.Zone(), info: p.describe(a)}
	d.engines.New = func() (*engine, error) { return newEngine(d) }
	d.Device = core.NewDevice(d.info.Name, d.info.Limits, &p.guards, d.finish)
	var err error
	if d.waiter, err = host.NewWaiter(); err != nil {
		return nil, d.opError("open", err)
	}
	return d, nil
}

func (d *device) opts() *Options { return &d.p.opts }

func (d *device) opError(op string, err error) error { return opError(op, d.info.Name, err) }

// finish is called when the last reference is gone.
func (d *device) finish() {
	d.p.forget(d)
	d.waiter.Close()
}

// Info describes the device.
func (d *device) Info() fabric.DeviceInfo { return d.info }

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
