package core

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
)

// eventBacklog is how many unread events a device keeps.
const eventBacklog = 16

// Device is what devices of every wire have in common: keys, numbers, counts,
// events and references. A provider embeds it and adds the connections. Its
// methods are safe for any goroutine.
type Device struct {
	// Constant.
	name    string
	limits  fabric.Limits
	guards  *Guards
	table   *Table
	numbers *Numbers
	// finish is called once when the last reference is given back.
	finish func()

	qps, cqs, srqs, mrs atomic.Int32

	mu     sync.Mutex
	refs   int
	events chan fabric.Event
	fault  error // set when the device is gone: what new objects fail with
}

// NewDevice makes a device with one reference. guards may be nil for guards of
// its own. finish, when not nil, is called when the last reference was given
// back.
func NewDevice(name string, limits fabric.Limits, guards *Guards, finish func()) *Device {
	if guards == nil {
		guards = new(Guards)
	}
	return &Device{
		name: name, limits: limits, guards: guards, finish: finish,
		table: NewTable(guards, 0), numbers: NewNumbers(),
		refs: 1, events: make(chan fabric.Event, eventBacklog),
	}
}

// Name is the device's name.
func (d *Device) Name() string { return d.name }

// Limits are the device's limits.
func (d *Device) Limits() fabric.Limits { return d.limits }

// Table is the device's keys.
func (d *Device) Table() *Table { return d.table }

// Acquire adds a reference. It is false when the last one is gone: the device
// is closed and another must be made.
func (d *Device) Acquire() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs == 0 {
		return false
	}
	d.refs++
	return true
}

// Close gives one reference back (fabric.Device).
func (d *Device) Close() error {
	d.mu.Lock()
	if c := d.Counts(); d.refs == 1 && c != (fabric.ObjectCounts{}) {
		d.mu.Unlock()
		return d.opError("close", fmt.Errorf("%w: %d QPs, %d CQs, %d SRQs, %d MRs are open", fabric.ErrBusy, c.QPs, c.CQs, c.SRQs, c.MRs))
	}
	d.dropAndUnlock()
	return nil
}

// Release gives back a reference that the provider itself took with Acquire;
// unlike Close it cannot fail: with the last one the device is closed even when
// the user has left objects open.
func (d *Device) Release() {
	d.mu.Lock()
	d.dropAndUnlock()
}

// dropAndUnlock gives one reference back. finish runs without mu: it takes the
// provider's lock, under which Acquire is called.
func (d *Device) dropAndUnlock() {
	last := d.refs == 1
	d.refs = max(d.refs-1, 0)
	if last {
		close(d.events)
	}
	d.mu.Unlock()
	if last && d.finish != nil {
		d.finish()
	}
}

// Counts are the open objects.
func (d *Device) Counts() fabric.ObjectCounts {
	return fabric.ObjectCounts{
		QPs: int(d.qps.Load()), CQs: int(d.cqs.Load()), SRQs: int(d.srqs.Load()), MRs: int(d.mrs.Load()),
	}
}

// Events is the channel of the device's events.
func (d *Device) Events() <-chan fabric.Event { return d.events }

// Emit sends an event; when the channel is full, or closed with the device, it
// is dropped.
func (d *Device) Emit(e fabric.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs == 0 {
		return
	}
	e.Device = d.name
	select {
	case d.events <- e:
	default:
	}
}

// Break marks the device as gone: new objects fail with an error that wraps
// cause. Those that exist can still be closed.
func (d *Device) Break(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = cause
}

// Fault is what Break was given, or an error matching net.ErrClosed when the
// last reference is gone, or nil.
func (d *Device) Fault() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs == 0 {
		return net.ErrClosed
	}
	return d.fault
}

// count adds one object if the device is alive and limit (0: none) allows, and
// returns what takes it away again.
func (d *Device) count(op string, n *atomic.Int32, limit int) (gone func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err = d.fault
	switch {
	case d.refs == 0:
		err = net.ErrClosed
	case err == nil && limit > 0 && int(n.Load()) >= limit:
		err = fmt.Errorf("%w: the device has no more than %d", fabric.ErrQueueFull, limit)
	}
	if err != nil {
		return nil, d.opError(op, err)
	}
	n.Add(1)
	return func() { n.Add(-1) }, nil
}

// Register makes m available with the rights of a (fabric.Device).
func (d *Device) Register(m *fabric.Memory, a fabric.Access) (fabric.MemoryRegion, error) {
	const op = "register memory"
	if limit := d.limits.MaxMRSize; m != nil && limit > 0 && uint64(m.Len()) > limit {
		return nil, d.opError(op, fmt.Errorf("%w: %d bytes, the limit is %d", fabric.ErrInvalid, m.Len(), limit))
	}
	gone, err := d.count(op, &d.mrs, d.limits.MaxMR)
	if err != nil {
		return nil, err
	}
	r, err := d.table.Register(m, a)
	if err != nil {
		gone()
		return nil, d.opError(op, err)
	}
	r.gone = gone
	return r, nil
}

// NewMemoryWindow makes a type 2 window (fabric.MemoryWindower); windows are
// not in Counts.
func (d *Device) NewMemoryWindow() (fabric.MemoryWindow, error) {
	if !d.limits.MemoryWindows {
		return nil, d.opError("create window", fabric.ErrNotSupported)
	}
	w, err := d.table.NewWindow()
	if err != nil {
		return nil, d.opError("create window", err)
	}
	return w, nil
}

func (d *Device) opError(op string, err error) error {
	var e *fabric.OpError
	if errors.As(err, &e) {
		return err
	}
	return &fabric.OpError{Op: op, Device: d.name, Err: err}
}
