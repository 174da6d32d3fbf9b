package file

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/internal/users"
	"github.com/nvmf-go/nvmf/backend/uring"
)

// Device is an open file or block device. It implements backend.Device.
type Device struct {
	// Constant.
	opts   Options
	medium *medium
	uring  bool                  // queues have rings
	inject func(*call) injection // tests make calls fail; nil
	zeroes []byte                // read-only memory for writing zeroes

	// Atomic.
	size     atomic.Uint64 // bytes, whole blocks
	told     atomic.Uint64 // size at the last Refresh
	partial  atomic.Bool   // a queue got no ring
	lacks    [numLacks]atomic.Bool
	syncFail atomic.Uint32 // errno of the fdatasync that failed

	// Own locks.
	users users.Count
	pool  *pool
}

// What a medium was found to lack when it was tried.
const (
	lacksDsync      = iota // RWF_DSYNC
	lacksZeroRange         // FALLOC_FL_ZERO_RANGE
	lacksPunchHole         // FALLOC_FL_PUNCH_HOLE
	lacksDiscardCmd        // discard through io_uring
	numLacks
)

// zeroesSize is the size of Device.zeroes in bytes.
const zeroesSize = 64 << 10

// ErrReplaced is in the error of Refresh when the path no longer leads to what
// was opened. The device goes on with that.
var ErrReplaced = errors.New("replaced or removed since it was opened")

// Open opens, and creates when it should, the medium. Errors name the path and
// match backend.ErrLocked, backend.ErrSize, backend.ErrBlockSize,
// uring.ErrUnavailable or the system's error (fs.ErrNotExist).
func Open(o Options) (*Device, error) { return open(o, nil) }

func open(o Options, inject func(*call) injection) (*Device, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	d := &Device{opts: o, inject: inject, pool: newPool(o.Workers)}
	var err error
	if d.uring, err = chooseEngine(o.Engine); err != nil {
		return nil, fmt.Errorf("backend/file: %s: %w", o.Path, err)
	}
	if d.zeroes, err = unix.Mmap(-1, 0, zeroesSize, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		return nil, fmt.Errorf("backend/file: memory: %w", err)
	}
	if d.medium, err = openMedium(&o); err == nil {
		if err = d.look(); err == nil {
			d.told.Store(d.size.Load())
			return d, nil
		}
		err = errors.Join(err, d.medium.close())
	}
	return nil, errors.Join(fmt.Errorf("backend/file: %s: %w", o.Path, err), unix.Munmap(d.zeroes))
}

// chooseEngine says whether to use io_uring, by making a ring.
func chooseEngine(e Engine) (bool, error) {
	if e == EnginePool {
		return false, nil
	}
	r, err := uring.New(1, uring.Shared)
	if err == nil {
		if !r.Supports(ringOpcodes...) {
			err = fmt.Errorf("%w: kernel before 5.6", uring.ErrUnavailable)
		}
		err = errors.Join(err, r.Close())
	}
	if errors.Is(err, uring.ErrUnavailable) && e == EngineAuto {
		return false, nil
	}
	return err == nil, err
}

// Info describes the device.
func (d *Device) Info() backend.Info {
	kinds := backend.Kinds(backend.Read, backend.Write, backend.Flush, backend.WriteZeroes)
	if d.medium.discards {
		kinds |= backend.Kinds(backend.Discard)
	}
	return backend.Info{
		Type:             "file",
		Path:             d.opts.Path,
		BlockSize:        d.opts.BlockSize,
		Blocks:           d.size.Load() / uint64(d.opts.BlockSize),
		Kinds:            kinds,
		ReadOnly:         d.opts.ReadOnly,
		WriteCache:       d.medium.cached,
		ZeroAfterDiscard: d.medium.discards && !d.medium.block,
		Identity:         d.medium.identity,
		Granularity:      d.medium.granularity,
		BufferAlign:      d.bufferAlign(),
		Engine:           d.engine(),
	}
}

func (d *Device) bufferAlign() uint32 {
	if d.medium.direct {
		return d.medium.memAlign
	}
	return 1
}

func (d *Device) engine() string {
	engine, path := "worker pool", "buffered"
	switch {
	case d.uring && d.partial.Load():
		engine = "io_uring, in part worker pool,"
	case d.uring:
		engine = "io_uring"
	}
	if d.medium.direct {
		path = "O_DIRECT"
	}
	return engine + " " + path
}

// Refresh looks at the size of the medium, and says whether it is another than
// at the last Refresh, also when I/O has found that since. The error matches ErrReplaced when
// the path leads elsewhere by now; the size is that of what is open.
func (d *Device) Refresh() (changed bool, err error) {
	err = d.look()
	now := d.size.Load()
	changed = d.told.Swap(now) != now
	if err == nil && d.medium.replaced() {
		err = ErrReplaced
	}
	if err != nil {
		err = fmt.Errorf("backend/file: %s: %w", d.opts.Path, err)
	}
	return changed, err
}

// look takes the medium's size over.
func (d *Device) look() error {
	n, err := d.medium.size()
	if err == nil {
		d.size.Store(n - n%uint64(d.opts.BlockSize))
	}
	return err
}

// Grow extends a file to size bytes, a multiple of the block size, sparsely.
// It does nothing when the medium has that size or more, and fails with
// backend.ErrSize for a block device that is smaller.
func (d *Device) Grow(size uint64) error {
	if err := backend.CheckSize(size, d.opts.BlockSize); err != nil {
		return err
	}
	o := d.opts
	o.Size, o.Grow = size, !o.ReadOnly
	err := d.medium.fit(&o, false)
	if err == nil {
		err = d.look()
	}
	if err != nil {
		return fmt.Errorf("backend/file: %s: %w", d.opts.Path, err)
	}
	return nil
}

// Failed is the error of the fdatasync after which every Flush fails, or nil.
func (d *Device) Failed() error {
	if e := unix.Errno(d.syncFail.Load()); e != 0 {
		return fmt.Errorf("backend/file: %s: data may be lost, fdatasync failed: %w", d.opts.Path, e)
	}
	return nil
}

// Close releases the medium and its lock.
func (d *Device) Close() error {
	return d.users.Close(func() error {
		d.pool.close()
		return errors.Join(d.medium.close(), unix.Munmap(d.zeroes))
	})
}
