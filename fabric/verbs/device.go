//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"sync"

	"github.com/nvmf-go/nvmf/fabric"
)

// device implements fabric.Device, fabric.MemoryWindower,
// fabric.UnreliableConnector and fabric.DatagramDevice.
type device struct {
	// Constant.
	p      *provider
	name   string
	ctx    *C.struct_ibv_context // librdmacm's
	hold   **C.struct_ibv_context
	pd     *C.struct_ibv_pd
	info   fabric.DeviceInfo // as at open
	async  *parked
	events chan fabric.Event

	handles handles

	// Guarded by p.mu.
	refs    int
	counts  fabric.ObjectCounts
	windows int
	ahs     int                       // address handles
	vectors int                       // completion vectors handed out, round robin
	lost    map[fabric.EventKind]bool // how it was said to fail or go
	gone    bool                      // destroyed

	// mu guards what the event routines look up.
	mu       sync.Mutex
	conns    map[uint32]*conn // by QP number
	cqs      map[uintptr]*completionQueue
	eventsUp bool // events is not closed
}

// newDevice takes hold over on success. The caller has p.mu.
func newDevice(p *provider, name string, ctx *C.struct_ibv_context, hold **C.struct_ibv_context) (*device, error) {
	info, err := query(name, ctx, uint32(C.vb_probe_inline(ctx, inlineProbe)))
	if err != nil {
		return nil, err
	}
	d := &device{
		p: p, name: name, ctx: ctx, hold: hold, info: info, refs: 1,
		events: make(chan fabric.Event, 64), eventsUp: true,
		conns: map[uint32]*conn{}, cqs: map[uintptr]*completionQueue{}, lost: map[fabric.EventKind]bool{},
	}
	if d.async, err = park(int(ctx.async_fd), name+" events"); err != nil {
		return nil, err
	}
	pd, err := C.vb_alloc_pd(ctx)
	if pd == nil {
		d.async.file.Close()
		return nil, fmt.Errorf("allocate a protection domain: %w", lastErrno(err))
	}
	d.pd = pd
	if d.handles.table = C.vb_new_handles(); d.handles.table == nil {
		C.vb_dealloc_pd(pd)
		d.async.file.Close()
		return nil, errno(int(C.ENOMEM))
	}
	go d.async.routine(d.drainAsync)
	return d, nil
}

func (d *device) Name() string { return d.name }

// Info is queried anew: addresses and the port's state change.
func (d *device) Info() fabric.DeviceInfo {
	info, err := query(d.name, d.ctx, uint32(d.info.Limits.MaxInline))
	if err != nil {
		info = d.info
		info.PortUp = false
		info.Note = "cannot be queried: " + err.Error()
	}
	return info
}

func (d *device) Limits() fabric.Limits { return d.info.Limits }

func (d *device) Counts() fabric.ObjectCounts {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	return d.counts
}

func (d *device) Close() error {
	d.p.mu.Lock()
	if d.refs == 0 {
		d.p.mu.Unlock()
		return d.opError("close", errClosed)
	}
	if d.refs == 1 && d.busyLocked() {
		defer d.p.mu.Unlock()
		return d.opError("close", fmt.Errorf("%w: %+v, %d windows and %d address handles are open", fabric.ErrBusy, d.counts, d.windows, d.ahs))
	}
	d.p.mu.Unlock()
	d.release()
	return nil
}

func (d *device) busyLocked() bool {
	return d.counts != (fabric.ObjectCounts{}) || d.windows > 0 || d.ahs > 0
}

// release gives back a reference. The device goes with the last one, or with
// its last object when that outlives it: a listener's reference does not wait
// for what somebody made on the device of a request.
func (d *device) release() { d.change(&d.refs, -1) }

// end books an object out of its counter.
func (d *device) end(counter *int) { d.change(counter, -1) }

func (d *device) change(counter *int, n int) {
	d.p.mu.Lock()
	*counter += n
	last := d.refs <= 0 && !d.busyLocked() && !d.gone
	if last {
		d.gone = true
		if d.p.devices[d.name] == d {
			delete(d.p.devices, d.name)
		}
	}
	d.p.mu.Unlock()
	if last {
		d.destroy()
	}
}

// destroy runs without p.mu: the event routine it waits for may want that.
func (d *device) destroy() {
	d.async.close()
	d.mu.Lock()
	d.eventsUp = false
	close(d.events)
	d.mu.Unlock()
	C.vb_dealloc_pd(d.pd)
	C.vb_free_handles(d.handles.table)
	C.vb_release(d.hold)
}

// begin books an object that is about to be made, unless the device is closed.
func (d *device) begin(counter *int) error {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	if d.refs <= 0 {
		return errClosed
	}
	*counter++
	return nil
}

func (d *device) opError(op string, err error) error {
	return &fabric.OpError{Op: op, Device: d.name, Err: err}
}

// nextVector spreads the CQs over the device's interrupt vectors.
func (d *device) nextVector() C.int {
	d.p.mu.Lock()
	defer d.p.mu.Unlock()
	v := d.vectors
	d.vectors++
	return C.int(v % max(1, int(d.ctx.num_comp_vectors)))
}
