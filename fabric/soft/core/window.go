package core

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
)

// Window is a type 2 memory window (IBTA vol 1, 10.6.7.2.2): a key that a bind
// makes valid for a part of a region and for the peer of one QP, and that an
// invalidate, local or of that peer, ends. It implements fabric.MemoryWindow.
type Window struct {
	t    *Table
	slot uint32
	key  atomic.Uint32 // of the latest bind posted
	r    *region
	once sync.Once
}

// NewWindow makes an unbound window. The error wraps fabric.ErrQueueFull when
// the table is full.
func (t *Table) NewWindow() (*Window, error) {
	r := &region{window: true}
	slot, key, err := t.allocate(r)
	if err != nil {
		return nil, err
	}
	w := &Window{t: t, slot: slot, r: r}
	w.key.Store(key)
	return w, nil
}

// RKey is the key of the latest bind.
func (w *Window) RKey() uint32 { return w.key.Load() }

// NextKey moves on to the key of the next bind, which is valid once Bind has
// run with it. The owner of the QP that will bind calls it. A key of a window
// does not come back before 273 binds.
func (w *Window) NextKey() uint32 {
	key := nextKey(w.key.Load(), rand.Uint32()%15)
	w.key.Store(key)
	return key
}

// Close ends the key. Closing twice is nil.
func (w *Window) Close() error {
	w.once.Do(func() { w.t.release(w.slot, w.r) })
	return nil
}

// Bind makes key, which Window.NextKey gave, valid for the peer of QP qpn on
// the n bytes at addr of the region mr, with the rights a. It is false when
// the window is bound already, the region does not allow windows, or the range
// is not inside it. The owner of the QP calls it.
func (t *Table) Bind(qpn, key, mr uint32, addr, n uint64, a fabric.Access) bool {
	const writes = fabric.AccessRemoteWrite | fabric.AccessRemoteAtomic
	parent, w := t.find(mr), t.unbound(key)
	if parent == nil || parent.window || w == nil {
		return false
	}
	need := fabric.AccessWindowBind
	if a&writes != 0 {
		need |= fabric.AccessLocalWrite
	}
	off, size := addr-parent.addr, uint64(len(parent.mem))
	if parent.access&need != need || n == 0 || off > size || n > size-off {
		return false
	}
	w.access, w.addr, w.mem, w.parent = a, addr, parent.mem[off:off+n:off+n], parent
	w.qpn.Store(qpn)
	w.key.Store(key)
	return true
}

// unbound is the window of key's slot when it is not bound.
func (t *Table) unbound(key uint32) *region {
	c := t.chunks[key>>(tagBits+slotBits)].Load()
	if c == nil {
		return nil
	}
	if r := c[key>>tagBits&(1<<slotBits-1)].Load(); r != nil && r.window && r.key.Load() == 0 {
		return r
	}
	return nil
}

// Invalidate ends the window key of QP qpn, for LOCAL_INV and for a SEND with
// invalidate of the peer. It is false for any other key: a registered region
// ends with its Close only. The owner of the QP calls it.
func (t *Table) Invalidate(qpn, key uint32) bool {
	r := t.find(key)
	if r == nil || !r.window || r.qpn.Load() != qpn {
		return false
	}
	r.key.Store(0)
	return true
}
