// Package null is a backend without a medium: writes vanish, reads give
// zeroes. It measures everything that is above a backend.
package null

import (
	"sync/atomic"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/internal/inline"
	"github.com/nvmf-go/nvmf/backend/internal/users"
	"github.com/nvmf-go/nvmf/nvme"
)

// Options say what to pretend.
type Options struct {
	// Size in bytes, a multiple of BlockSize. Required.
	Size uint64
	// BlockSize is 512 or 4096 bytes, 0 means 4096.
	BlockSize uint32
	// ReadOnly refuses writes.
	ReadOnly bool
	// SkipReads leaves the buffers of reads as they are, which saves the
	// clearing. Then a host sees what was in the buffer before, possibly
	// another host's data: for benchmarks only.
	SkipReads bool
}

// Validate says which fields cannot be used, all of them, as
// *backend.OptionError.
func (o Options) Validate() error {
	o = o.withDefaults()
	return backend.CheckGeometry(o.Size, o.BlockSize)
}

func (o Options) withDefaults() Options {
	if o.BlockSize == 0 {
		o.BlockSize = backend.DefaultBlockSize
	}
	return o
}

// Device is a device that keeps nothing. It implements backend.Device.
type Device struct {
	opts  Options       // constant
	size  atomic.Uint64 // bytes
	users users.Count
}

// Open makes a device.
func Open(o Options) (*Device, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	d := &Device{opts: o.withDefaults()}
	d.size.Store(o.Size)
	return d, nil
}

// Info describes the device. ZeroAfterDiscard holds unless reads are skipped.
func (d *Device) Info() backend.Info {
	return backend.Info{
		Type:             "null",
		BlockSize:        d.opts.BlockSize,
		Blocks:           d.size.Load() / uint64(d.opts.BlockSize),
		Kinds:            backend.Kinds(backend.Read, backend.Write, backend.Flush, backend.Discard, backend.WriteZeroes),
		ReadOnly:         d.opts.ReadOnly,
		ZeroAfterDiscard: !d.opts.SkipReads,
		BufferAlign:      1,
		Engine:           "none",
	}
}

// Refresh has no medium to look at.
func (d *Device) Refresh() (changed bool, err error) { return false, nil }

// Resize changes the size to so many bytes.
func (d *Device) Resize(size uint64) error {
	if err := backend.CheckSize(size, d.opts.BlockSize); err != nil {
		return err
	}
	d.size.Store(size)
	return nil
}

// NewQueue makes a queue whose operations end in Submit.
func (d *Device) NewQueue(depth int, notify func()) (backend.Queue, error) {
	return inline.NewQueue(&d.users, depth, notify, d.run)
}

func (d *Device) run(op *backend.Op) nvme.Status {
	st := op.Check(d.size.Load(), d.opts.ReadOnly)
	if st == nvme.Success && op.Kind == backend.Read && !d.opts.SkipReads {
		for _, b := range op.Bufs {
			clear(b)
		}
	}
	return st
}

// Close ends the device.
func (d *Device) Close() error { return d.users.Close(func() error { return nil }) }
