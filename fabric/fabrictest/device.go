package fabrictest

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
)

// Device is a device of the in-memory network as a test holds it: the hardware,
// there whether a program has it open or not.
type Device struct {
	net      *Network
	provider *Provider
	opts     DeviceOptions
	info     fabric.DeviceInfo

	removed   atomic.Bool
	gone      chan struct{} // closed by Remove
	postFault atomic.Pointer[postFault]
	stats     stats

	mu     sync.Mutex
	opened *device // while it has references
}

// Stats count what a device did, for tests.
type Stats struct {
	Executed   uint64 // WRs of peers
	RNRs       uint64 // messages that met no receive
	Retries    uint64 // messages sent again after a loss
	Duplicates uint64 // messages that came twice
	Refused    uint64 // WRs of peers refused for their key, range, rights or form
}

type stats struct {
	executed, rnrs, retries, duplicates, refused atomic.Uint64
}

type postFault struct {
	left atomic.Int64
	err  error
}

// Info describes the device.
func (d *Device) Info() fabric.DeviceInfo { return d.info }

// Stats are the counters since the device was made.
func (d *Device) Stats() Stats {
	return Stats{
		Executed: d.stats.executed.Load(), RNRs: d.stats.rnrs.Load(), Retries: d.stats.retries.Load(),
		Duplicates: d.stats.duplicates.Load(), Refused: d.stats.refused.Load(),
	}
}

// FailPost makes the nth WR (1 is the next) posted to a send or receive queue of
// the device, of any service, fail with err, which the caller gets in a
// *fabric.OpError. The ones behind it work again. What is posted to a shared
// receive queue does not count.
func (d *Device) FailPost(n int, err error) {
	f := &postFault{err: err}
	f.left.Store(int64(n))
	d.postFault.Store(f)
}

// failsIn says how many of the next n posts succeed, and the error of the one
// behind them if one is to fail.
func (d *Device) failsIn(n int) (int, error) {
	f := d.postFault.Load()
	if f == nil {
		return n, nil
	}
	left := f.left.Add(-int64(n))
	if left > 0 {
		return n, nil
	}
	if ok := left + int64(n) - 1; ok >= 0 && d.postFault.CompareAndSwap(f, nil) {
		return int(ok), f.err
	}
	return n, nil
}

// postError is the outcome of a post: fault is of the WR that was to fail, nil for
// none, err of those before it.
func (d *device) postError(op string, qpn uint32, err, fault error) error {
	if err != nil || fault == nil {
		return err
	}
	return &fabric.OpError{Op: op, Device: d.Name(), QPN: qpn, Err: fault}
}

// Emit makes the device send an asynchronous event.
func (d *Device) Emit(kind fabric.EventKind) {
	if h := d.current(); h != nil {
		h.Emit(fabric.Event{Kind: kind, Port: 1, Time: time.Now()})
	}
}

// Remove pulls the card: EventDeviceRemoved is sent, every connection of the
// device ends (peers learn nothing), and nothing new can be made. What is open
// can still be polled and closed.
func (d *Device) Remove() {
	if d.removed.Swap(true) {
		return
	}
	close(d.gone)
	d.Emit(fabric.EventDeviceRemoved)
	if h := d.current(); h != nil {
		h.Break(errRemoved)
	}
	for _, c := range d.net.linksOf(d) {
		l := c.link.Load()
		l.faults.Store(&Faults{Cut: true})
		c.end(opError("connection", d.info.Name, errRemoved), false)
		l.wake()
	}
	for _, l := range d.net.looseOf(d) {
		_ = l.Stop()
	}
}

func (d *Device) current() *device {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened
}

// open adds a reference, making the device when there is none.
func (d *Device) open() *device {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opened != nil && d.opened.Acquire() {
		return d.opened
	}
	h := &device{hw: d, net: d.net}
	h.Device = core.NewDevice(d.info.Name, d.info.Limits, &d.net.guards, func() { d.forget(h) })
	d.opened = h
	return h
}

func (d *Device) forget(h *device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opened == h {
		d.opened = nil
	}
}

// sourceFor is the address to reach remote from, not valid when there is none.
func (d *Device) sourceFor(remote netip.Addr) netip.Addr {
	for _, a := range d.info.Addrs {
		if a.Is4() == remote.Unmap().Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func (d *Device) has(a netip.Addr) bool {
	for _, own := range d.info.Addrs {
		if own == a {
			return true
		}
	}
	return false
}

// device is a Device while a program has it open; it implements
// fabric.Device, fabric.MemoryWindower, fabric.UnreliableConnector and
// fabric.DatagramDevice.
type device struct {
	*core.Device
	hw      *Device
	net     *Network
	handles core.Handles
}

// Info describes the device.
func (d *device) Info() fabric.DeviceInfo {
	info := d.hw.info
	info.PortUp = !d.hw.removed.Load()
	return info
}

// NewCompletionQueue makes a CQ.
func (d *device) NewCompletionQueue(depth int, notify func()) (fabric.CompletionQueue, error) {
	q := new(completionQueue)
	if err := q.Init(d.Device, depth, notify, q.progress); err != nil {
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

// completionQueue is a CQ and the QPs of it that have something to do.
type completionQueue struct {
	core.CQ
	ready atomic.Pointer[node]
}

// node is a QP's place in the list of one of its CQs.
type node struct {
	q      interface{ run() } // inside the owner's Poll
	cq     *completionQueue
	next   *node
	queued atomic.Bool
}

// schedule has the owner of the CQ run the QP in its next Poll; any goroutine
// may call it, after it has published what there is to do.
func (n *node) schedule() {
	if n.queued.Load() || !n.queued.CompareAndSwap(false, true) {
		return
	}
	for {
		n.next = n.cq.ready.Load()
		if n.cq.ready.CompareAndSwap(n.next, n) {
			break
		}
	}
	n.cq.Wake()
}

// progress runs the QPs that were scheduled, and once more those that these
// scheduled.
func (q *completionQueue) progress() {
	for range 2 {
		if q.ready.Load() == nil {
			return
		}
		for n := q.ready.Swap(nil); n != nil; {
			next := n.next
			n.next = nil
			n.queued.Store(false)
			n.q.run()
			n = next
		}
	}
}
