//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/nvmf-go/nvmf/fabric"
)

// handles are the address handles of a device. A number is a slot and how many
// handles have had the slot, so that one that was closed names nothing.
type handles struct {
	table *C.struct_vb_handles // read when datagrams are posted

	mu   sync.Mutex
	uses [C.VB_HANDLES]uint32
	open [C.VB_HANDLES]bool
	next uint32 // slot to try first
}

// take finds a free slot and the number of its next handle.
func (h *handles) take() (slot, num uint32, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for range uint32(len(h.open)) {
		slot = h.next
		h.next = (h.next + 1) % C.VB_HANDLES
		if !h.open[slot] {
			h.open[slot] = true
			h.uses[slot] = h.uses[slot]%(1<<20-1) + 1 // 0 is never used: no number is 0
			return slot, h.uses[slot]*C.VB_HANDLES + slot, true
		}
	}
	return 0, 0, false
}

func (h *handles) give(slot uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open[slot] = false
}

// addressHandle implements fabric.AddressHandle.
type addressHandle struct {
	d    *device
	num  uint32
	addr netip.Addr

	mu sync.Mutex
	ah *C.struct_ibv_ah // nil when closed
}

// NewAddressHandle makes the way to a device (fabric.DatagramDevice). The system
// resolves the address.
func (d *device) NewAddressHandle(to netip.Addr, trafficClass uint8) (fabric.AddressHandle, error) {
	const op = "make an address handle"
	err := has(d.info.Limits.Datagrams)
	if err == nil {
		err = d.begin(&d.ahs)
	}
	if err != nil {
		return nil, d.opError(op, err)
	}
	h, err := d.newHandle(to, trafficClass)
	if err != nil {
		d.end(&d.ahs)
		return nil, d.opError(op, err)
	}
	return h, nil
}

func (d *device) newHandle(to netip.Addr, class uint8) (*addressHandle, error) {
	path, err := d.path(to, class)
	if err != nil {
		return nil, err
	}
	slot, num, ok := d.handles.take()
	if !ok {
		return nil, fmt.Errorf("%w: %d address handles are open", fabric.ErrQueueFull, C.VB_HANDLES)
	}
	ah, err := C.vb_create_ah(d.pd, &path)
	if ah == nil {
		d.handles.give(slot)
		return nil, lastErrno(err)
	}
	C.vb_set_handle(d.handles.table, C.uint32_t(slot), C.uint32_t(num), ah)
	return &addressHandle{d: d, num: num, addr: to, ah: ah}, nil
}

func (h *addressHandle) Num() uint32      { return h.num }
func (h *addressHandle) Addr() netip.Addr { return h.addr }

// Close ends it.
func (h *addressHandle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ah == nil {
		return nil
	}
	slot := h.num % C.VB_HANDLES
	C.vb_set_handle(h.d.handles.table, C.uint32_t(slot), 0, nil)
	e := C.vb_destroy_ah(h.ah)
	h.ah = nil
	h.d.handles.give(slot)
	h.d.end(&h.d.ahs)
	return errno(int(e))
}
