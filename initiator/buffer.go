package initiator

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
)

// Buffer is memory that devices can reach: what Queue, Namespace.ReadBuffer and
// Namespace.WriteBuffer move data from and to without a copy. It may be used
// with every controller of the process; it is registered with a device at its
// first use there, and again when the controller has moved to another device.
//
// While an I/O is in flight the device owns the bytes that the I/O names: a
// read's must not be touched, a write's must not be changed.
type Buffer struct {
	mem *fabric.Memory
	// plain buffers are registered for the peer as a whole, even on devices
	// with memory windows: those of admin commands.
	plain bool
	regs  atomic.Pointer[[]*region] // written with registrations held
}

// region is a registration of a Buffer with a device.
type region struct {
	dom        *domain
	mr         fabric.MemoryRegion
	lkey, rkey uint32
}

// registrations guards what is registered where, of all Buffers: the slow
// path.
var registrations sync.Mutex

// NewBuffer makes a buffer of at least size bytes, zeroed, a whole number of
// pages. It wants a Close.
func NewBuffer(size int) (*Buffer, error) {
	mem, err := fabric.AllocMemory(size)
	if err != nil {
		return nil, err
	}
	return &Buffer{mem: mem}, nil
}

func newPlainBuffer(size int) (*Buffer, error) {
	b, err := NewBuffer(size)
	if err == nil {
		b.plain = true
	}
	return b, err
}

// Bytes is the memory itself. It must not be used after Close.
func (b *Buffer) Bytes() []byte { return b.mem.Bytes() }

// Len is the size in bytes.
func (b *Buffer) Len() int { return b.mem.Len() }

// addr is the address of the first byte.
func (b *Buffer) addr() uint64 { return b.mem.Addr() }

// Close takes the buffer from all devices and frees it. No I/O may be in flight
// in it: one that is fails, and takes the connection with it. Closing twice is
// nil.
func (b *Buffer) Close() error {
	registrations.Lock()
	var errs []error
	for _, r := range b.regions() {
		delete(r.dom.buffers, b)
		errs = append(errs, r.mr.Close())
	}
	b.regs.Store(nil)
	registrations.Unlock()
	return errors.Join(append(errs, b.mem.Close())...)
}

func (b *Buffer) regions() []*region {
	if list := b.regs.Load(); list != nil {
		return *list
	}
	return nil
}

// region is the buffer's registration with d's device, nil when it has none.
func (b *Buffer) region(d *domain) *region {
	for _, r := range b.regions() {
		if r.dom == d {
			return r
		}
	}
	return nil
}

// register is region, made when there is none.
func (b *Buffer) register(d *domain) (*region, error) {
	if r := b.region(d); r != nil {
		return r, nil
	}
	registrations.Lock()
	defer registrations.Unlock()
	if r := b.region(d); r != nil {
		return r, nil
	}
	if d.closed || b.mem.Len() == 0 {
		return nil, errClosed
	}
	access := fabric.AccessLocalWrite | fabric.AccessRemoteRead | fabric.AccessRemoteWrite
	if d.windows && !b.plain {
		access = fabric.AccessLocalWrite | fabric.AccessWindowBind
	}
	mr, err := d.dev.Register(b.mem, access)
	if err != nil {
		return nil, err
	}
	r := &region{dom: d, mr: mr, lkey: mr.LKey(), rkey: mr.RKey()}
	list := append(slices.Clone(b.regions()), r)
	b.regs.Store(&list)
	d.buffers[b] = struct{}{}
	return r, nil
}

// drop ends the registration with d. registrations is held.
func (b *Buffer) drop(d *domain) error {
	r := b.region(d)
	list := slices.DeleteFunc(slices.Clone(b.regions()), func(r *region) bool { return r.dom == d })
	b.regs.Store(&list)
	return r.mr.Close()
}
