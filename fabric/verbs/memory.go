//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"

	"github.com/nvmf-go/nvmf/fabric"
)

const allAccess = fabric.AccessLocalWrite | fabric.AccessRemoteRead | fabric.AccessRemoteWrite |
	fabric.AccessRemoteAtomic | fabric.AccessWindowBind

// accessFlags are the rights as libibverbs numbers them.
func accessFlags(a fabric.Access) (f C.int) {
	for _, bit := range []struct {
		ours   fabric.Access
		theirs C.int
	}{
		{fabric.AccessLocalWrite, C.IBV_ACCESS_LOCAL_WRITE},
		{fabric.AccessRemoteRead, C.IBV_ACCESS_REMOTE_READ},
		{fabric.AccessRemoteWrite, C.IBV_ACCESS_REMOTE_WRITE},
		{fabric.AccessRemoteAtomic, C.IBV_ACCESS_REMOTE_ATOMIC},
		{fabric.AccessWindowBind, C.IBV_ACCESS_MW_BIND},
	} {
		if a&bit.ours != 0 {
			f |= bit.theirs
		}
	}
	return f
}

func checkAccess(a fabric.Access) error {
	if a&^allAccess != 0 {
		return fmt.Errorf("%w: access rights %#x", fabric.ErrInvalid, uint8(a))
	}
	if a&(fabric.AccessRemoteWrite|fabric.AccessRemoteAtomic) != 0 && a&fabric.AccessLocalWrite == 0 {
		return fmt.Errorf("%w: remote writes and atomics need AccessLocalWrite too", fabric.ErrInvalid)
	}
	return nil
}

// memoryRegion implements fabric.MemoryRegion.
type memoryRegion struct {
	d    *device
	mr   *C.struct_ibv_mr // nil when closed
	mem  *fabric.Memory
	lkey uint32
	rkey uint32
}

func (d *device) Register(m *fabric.Memory, a fabric.Access) (fabric.MemoryRegion, error) {
	if m == nil || m.Len() == 0 {
		return nil, d.opError("register memory", fmt.Errorf("%w: no memory", fabric.ErrInvalid))
	}
	if err := checkAccess(a); err != nil {
		return nil, d.opError("register memory", err)
	}
	if err := d.begin(&d.counts.MRs); err != nil {
		return nil, d.opError("register memory", err)
	}
	mr, err := C.vb_reg_mr(d.pd, C.uint64_t(m.Addr()), C.size_t(m.Len()), accessFlags(a))
	if mr == nil {
		d.end(&d.counts.MRs)
		return nil, d.opError("register memory", registerError(lastErrno(err), m.Len()))
	}
	return &memoryRegion{d: d, mr: mr, mem: m, lkey: uint32(mr.lkey), rkey: uint32(mr.rkey)}, nil
}

func (r *memoryRegion) LKey() uint32           { return r.lkey }
func (r *memoryRegion) RKey() uint32           { return r.rkey }
func (r *memoryRegion) Memory() *fabric.Memory { return r.mem }

// Close fails with ErrBusy while a window is bound to the region.
func (r *memoryRegion) Close() error {
	if r.mr == nil {
		return nil
	}
	if e := C.vb_dereg_mr(r.mr); e != 0 {
		return r.d.opError("deregister memory", errno(int(e)))
	}
	r.mr = nil
	r.d.end(&r.d.counts.MRs)
	return nil
}

// memoryWindow implements fabric.MemoryWindow. It belongs to the owner of the
// QPs it is bound through, and outlives them: its device object is freed with
// the QP and made anew for the next bind.
type memoryWindow struct {
	d      *device
	mw     *C.struct_ibv_mw // nil when freed with its QP, or closed
	rkey   uint32           // of the latest bind
	qp     *queuePair       // of the latest bind
	closed bool
}

// NewMemoryWindow fails with ErrNotSupported on a device without type 2
// windows.
func (d *device) NewMemoryWindow() (fabric.MemoryWindow, error) {
	if !d.info.Limits.MemoryWindows {
		return nil, d.opError("make a memory window", fabric.ErrNotSupported)
	}
	if err := d.begin(&d.windows); err != nil {
		return nil, d.opError("make a memory window", err)
	}
	w := &memoryWindow{d: d}
	if err := w.make(); err != nil {
		d.end(&d.windows)
		return nil, d.opError("make a memory window", err)
	}
	return w, nil
}

// make makes the device's object if there is none.
func (w *memoryWindow) make() error {
	if w.mw != nil {
		return nil
	}
	mw, err := C.vb_alloc_mw(w.d.pd)
	if mw == nil {
		return lastErrno(err)
	}
	w.mw, w.rkey = mw, uint32(mw.rkey)
	return nil
}

// free frees the device's object, which ends the key.
func (w *memoryWindow) free() error {
	if w.mw == nil {
		return nil
	}
	if e := C.vb_dealloc_mw(w.mw); e != 0 {
		return errno(int(e))
	}
	w.mw = nil
	if w.qp != nil {
		delete(w.qp.windows, w)
		w.qp = nil
	}
	return nil
}

func (w *memoryWindow) RKey() uint32 { return w.rkey }

func (w *memoryWindow) Close() error {
	if w.closed {
		return nil
	}
	if err := w.free(); err != nil {
		return w.d.opError("free a memory window", err)
	}
	w.closed = true
	w.d.end(&w.d.windows)
	return nil
}

// nextKey is the key of a window's next bind: its low byte is the consumer's
// to choose and must change.
func (w *memoryWindow) nextKey() uint32 { return w.rkey&^0xff | (w.rkey+1)&0xff }
