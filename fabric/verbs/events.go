//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

func (d *device) Events() <-chan fabric.Event { return d.events }

// emit drops the event when nobody reads.
func (d *device) emit(kind fabric.EventKind, port uint8) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.eventsUp {
		return
	}
	select {
	case d.events <- fabric.Event{Kind: kind, Device: d.name, Port: port, Time: time.Now()}:
	default:
	}
}

// drainAsync runs in the device's event routine.
func (d *device) drainAsync() {
	var ev C.struct_vb_async
	for C.vb_async_next(d.ctx, &ev) > 0 {
		d.handleAsync(int(ev._type), uint32(ev.qpn), uint8(ev.port), uintptr(ev.cq))
	}
}

func (d *device) handleAsync(kind int, qpn uint32, port uint8, cq uintptr) {
	switch kind {
	case C.IBV_EVENT_PORT_ACTIVE:
		d.emit(fabric.EventPortUp, port)
	case C.IBV_EVENT_PORT_ERR:
		d.emit(fabric.EventPortDown, port)
	case C.IBV_EVENT_GID_CHANGE:
		d.emit(fabric.EventGIDChange, port)
	case C.IBV_EVENT_DEVICE_FATAL:
		d.removed(fabric.EventDeviceFatal)
	case C.IBV_EVENT_CQ_ERR:
		d.cqFailed(cq)
	case C.IBV_EVENT_COMM_EST:
		if c := d.connOf(qpn); c != nil {
			c.communicationEstablished()
		}
	case C.IBV_EVENT_QP_FATAL, C.IBV_EVENT_QP_REQ_ERR, C.IBV_EVENT_QP_ACCESS_ERR, C.IBV_EVENT_QP_LAST_WQE_REACHED:
		if c := d.connOf(qpn); c != nil {
			c.leave(fmt.Errorf("%w: %s", fabric.ErrQPError, qpEvents[kind]))
		}
	}
}

// qpEvents says what the asynchronous events of a QP mean.
var qpEvents = map[int]string{
	C.IBV_EVENT_QP_FATAL:            "the device failed it",
	C.IBV_EVENT_QP_REQ_ERR:          "the peer sent an invalid request",
	C.IBV_EVENT_QP_ACCESS_ERR:       "the peer violated an access right",
	C.IBV_EVENT_QP_LAST_WQE_REACHED: "it takes no more receives of its SRQ",
}

func (d *device) connOf(qpn uint32) *conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conns[qpn]
}

// cqFailed ends the connections of a CQ that has lost completions.
func (d *device) cqFailed(cq uintptr) {
	d.mu.Lock()
	q := d.cqs[cq]
	var conns []*conn
	for _, c := range d.conns {
		if q != nil && (c.cfg.SendCQ == q || c.cfg.RecvCQ == q) {
			conns = append(conns, c)
		}
	}
	d.mu.Unlock()
	if q == nil {
		return
	}
	q.overrun.Store(true)
	for _, c := range conns {
		c.leave(errOverrun)
	}
	q.fire()
}

// removed handles the word that the device fails or goes away, which may come
// once for each id. The next Open finds the device anew, and listeners let go
// of this one: in a goroutine, for the last reference waits for the event
// routine.
func (d *device) removed(kind fabric.EventKind) {
	d.p.mu.Lock()
	known := d.lost[kind]
	d.lost[kind] = true
	if d.p.devices[d.name] == d {
		delete(d.p.devices, d.name)
	}
	listeners := slices.Collect(maps.Keys(d.p.listeners))
	d.p.mu.Unlock()
	if known {
		return
	}
	d.emit(kind, 0)
	go func() {
		for _, l := range listeners {
			l.drop(d)
		}
	}()
}
