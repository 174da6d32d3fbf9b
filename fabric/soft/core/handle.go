package core

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
)

// MaxHandles is how many address handles a device can have.
const MaxHandles = 1 << handleBits

// A handle's number is its slot and how many handles have had the slot, so that
// one that was closed names nothing for long.
const (
	handleBits = 12
	handleUses = 1 << (32 - handleBits)
)

// Handle is an address handle; it implements fabric.AddressHandle.
type Handle struct {
	table *Handles
	num   uint32
	addr  netip.Addr
	class uint8
	once  sync.Once
}

// Num names it in WRs.
func (h *Handle) Num() uint32 { return h.num }

// Addr is the device's address.
func (h *Handle) Addr() netip.Addr { return h.addr }

// TrafficClass is that of datagrams sent by it; 0 is the device's usual.
func (h *Handle) TrafficClass() uint8 { return h.class }

// Close ends it.
func (h *Handle) Close() error {
	h.once.Do(func() { h.table.remove(h) })
	return nil
}

// Handles is the address handles of a device. Get takes no lock; every method
// is safe for any goroutine.
type Handles struct {
	slots [MaxHandles]atomic.Pointer[Handle]

	mu   sync.Mutex
	uses map[uint32]uint32 // of each slot
	free []uint32          // FIFO
	made uint32            // slots used so far
}

// New makes a handle. The error wraps fabric.ErrQueueFull when there are
// MaxHandles.
func (t *Handles) New(to netip.Addr, class uint8) (*Handle, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var slot uint32
	switch {
	case t.made < MaxHandles:
		slot = t.made
		t.made++
	case len(t.free) > 0:
		slot, t.free = t.free[0], t.free[1:]
	default:
		return nil, fmt.Errorf("%w: %d address handles are open", fabric.ErrQueueFull, MaxHandles)
	}
	if t.uses == nil {
		t.uses = make(map[uint32]uint32)
	}
	t.uses[slot] = t.uses[slot]%(handleUses-1) + 1 // 0 is never used: no number is 0
	h := &Handle{table: t, num: t.uses[slot]<<handleBits | slot, addr: to, class: class}
	t.slots[slot].Store(h)
	return h, nil
}

// Get is the open handle of that number, or nil.
func (t *Handles) Get(num uint32) *Handle {
	h := t.slots[num%MaxHandles].Load()
	if h == nil || h.num != num {
		return nil
	}
	return h
}

func (t *Handles) remove(h *Handle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := h.num % MaxHandles
	t.slots[slot].Store(nil)
	t.free = append(t.free, slot)
}
