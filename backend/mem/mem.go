// Package mem is a backend in memory: as big as it says, as large in use as
// was written, and gone at Close.
package mem

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/internal/inline"
	"github.com/nvmf-go/nvmf/backend/internal/users"
	"github.com/nvmf-go/nvmf/nvme"
)

// Options of a device.
type Options struct {
	// Size in bytes, a multiple of BlockSize. Required. Memory is taken as it
	// is written.
	Size uint64
	// BlockSize is 512 or 4096 bytes, 0 means 4096.
	BlockSize uint32
	// MaxSize is how far Resize may grow the device, in bytes: so much address
	// space is set aside, or only Size when the system grants no more
	// (vm.overcommit_memory 2). 0 means Size.
	MaxSize uint64
	// ReadOnly refuses writes: all is zeroes.
	ReadOnly bool
}

// Validate says which fields cannot be used, all of them, as
// *backend.OptionError.
func (o Options) Validate() error {
	o = o.withDefaults()
	err := backend.CheckGeometry(o.Size, o.BlockSize)
	if o.MaxSize < o.Size || o.MaxSize > math.MaxInt {
		err = errors.Join(err, &backend.OptionError{Field: "MaxSize", Value: o.MaxSize, Want: "at least Size, and addressable"})
	}
	return err
}

func (o Options) withDefaults() Options {
	if o.BlockSize == 0 {
		o.BlockSize = backend.DefaultBlockSize
	}
	if o.MaxSize == 0 {
		o.MaxSize = o.Size
	}
	return o
}

// Device is a device in memory. It implements backend.Device.
type Device struct {
	// Constant.
	opts Options
	mem  []byte // MaxSize and up to a page; zero where never written
	// Atomic.
	size atomic.Uint64 // bytes
	// Own locks.
	stripes stripes
	users   users.Count
}

// Open sets the address space aside.
func Open(o Options) (*Device, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	mem, err := reserve(o.MaxSize)
	if err != nil {
		o.MaxSize = o.Size
		mem, err = reserve(o.MaxSize)
	}
	if err != nil {
		return nil, fmt.Errorf("backend/mem: mapping %d bytes: %w", o.Size, err)
	}
	d := &Device{opts: o, mem: mem}
	d.size.Store(o.Size)
	return d, nil
}

// reserve maps size bytes of zeroes that take memory when they are written.
func reserve(size uint64) ([]byte, error) {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_ANON | unix.MAP_PRIVATE | unix.MAP_NORESERVE
	return unix.Mmap(-1, 0, int(size), prot, flags)
}

// Info describes the device. It has no write cache that a Flush could empty,
// and no identity: the medium does not survive.
func (d *Device) Info() backend.Info {
	return backend.Info{
		Type:             "mem",
		BlockSize:        d.opts.BlockSize,
		Blocks:           d.size.Load() / uint64(d.opts.BlockSize),
		Kinds:            backend.Kinds(backend.Read, backend.Write, backend.Flush, backend.Discard, backend.WriteZeroes),
		ReadOnly:         d.opts.ReadOnly,
		ZeroAfterDiscard: true,
		Granularity:      pageSize,
		BufferAlign:      1,
		Engine:           "memory",
	}
}

// Refresh has nothing to look at: only Resize changes the size.
func (d *Device) Refresh() (changed bool, err error) { return false, nil }

// Resize changes the size to so many bytes, at most Options.MaxSize. What is
// cut off reads as zeroes when the device grows again. One caller at a time.
func (d *Device) Resize(size uint64) error {
	if err := backend.CheckSize(size, d.opts.BlockSize); err != nil {
		return err
	}
	if size > d.opts.MaxSize {
		return fmt.Errorf("%w: %d bytes, the most is %d", backend.ErrSize, size, d.opts.MaxSize)
	}
	old := d.size.Swap(size)
	if size < old {
		d.zero(size, old-size, release)
	}
	return nil
}

// NewQueue makes a queue whose operations end in Submit.
func (d *Device) NewQueue(depth int, notify func()) (backend.Queue, error) {
	return inline.NewQueue(&d.users, depth, notify, d.run)
}

func (d *Device) run(op *backend.Op) nvme.Status {
	if st := op.Check(d.size.Load(), d.opts.ReadOnly); st != nvme.Success {
		return st
	}
	switch op.Kind {
	case backend.Read, backend.Write:
		d.move(op)
	case backend.Discard, backend.WriteZeroes:
		d.zero(op.Offset, op.Length, wiper(op))
	}
	return nvme.Success
}

// Close gives the memory back.
func (d *Device) Close() error {
	return d.users.Close(func() error { return unix.Munmap(d.mem) })
}
