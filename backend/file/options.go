package file

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/nvmf-go/nvmf/backend"
)

// Engine is the way I/O is done.
type Engine string

// Engines.
const (
	// EngineAuto is EngineURing where the system allows it, else EnginePool.
	EngineAuto Engine = "auto"
	// EngineURing is io_uring, without which Open fails.
	EngineURing Engine = "io_uring"
	// EnginePool is blocking system calls on worker threads.
	EnginePool Engine = "pool"
)

// Direct says whether I/O goes past the page cache (O_DIRECT).
type Direct string

// Settings of Direct.
const (
	// DirectAuto is direct I/O where the medium can do it in units of the
	// block size, else the page cache.
	DirectAuto Direct = "auto"
	// DirectOn makes Open fail where DirectAuto would take the page cache.
	DirectOn Direct = "on"
	// DirectOff uses the page cache: quick reads of what was read before, and
	// memory the daemon's limits do not count.
	DirectOff Direct = "off"
)

// Options of a device. Only Path is required.
type Options struct {
	// Path of a regular file or a block device.
	Path string
	// Size in bytes, a multiple of BlockSize: what an absent file is created
	// with (sparse), and the least an existing medium must have. 0 takes an
	// existing medium as it is.
	//
	// A smaller medium fails with backend.ErrSize, unless Grow is set and it
	// is a file. A larger one is exported in full: it was grown on purpose,
	// and is never cut. A tail shorter than a block is not exported.
	Size uint64
	// BlockSize is 512 or 4096 bytes, 0 means 4096.
	BlockSize uint32
	// ReadOnly opens for reading. Several read-only devices can share a
	// medium, even between processes.
	ReadOnly bool
	// Create makes a sparse file of Size when there is none.
	Create bool
	// Grow extends an existing file to Size.
	Grow bool
	// WriteThrough puts every write on stable media before it completes, as
	// if all were FUA, and Info.WriteCache is false. Slow; for hosts that do
	// not flush.
	WriteThrough bool
	// Engine, "" means EngineAuto.
	Engine Engine
	// Direct, "" means DirectAuto.
	Direct Direct
	// Workers bounds the threads for blocking calls: all I/O with EnginePool,
	// the rare call io_uring cannot make otherwise. They start when needed.
	// 0 means 16, the most is 1024.
	Workers int
	// LockedThread promises that the owner of every queue is locked to its OS
	// thread (runtime.LockOSThread) for the queue's life, Close included. With
	// io_uring this batches completions better at high depth. A queue called
	// from another thread fails its operations with InternalError.
	LockedThread bool
}

const (
	defaultWorkers = 16
	maxWorkers     = 1024
)

func (o Options) withDefaults() Options {
	if o.BlockSize == 0 {
		o.BlockSize = backend.DefaultBlockSize
	}
	if o.Engine == "" {
		o.Engine = EngineAuto
	}
	if o.Direct == "" {
		o.Direct = DirectAuto
	}
	if o.Workers == 0 {
		o.Workers = defaultWorkers
	}
	if abs, err := filepath.Abs(o.Path); err == nil && o.Path != "" {
		o.Path = abs
	}
	return o
}

// Validate says which fields cannot be used, all of them, as
// *backend.OptionError. It does not look at the medium.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	bad := func(wrong bool, field string, value any, want string) {
		if wrong {
			errs = append(errs, &backend.OptionError{Field: field, Value: value, Want: want})
		}
	}
	bad(o.Path == "", "Path", o.Path, "a regular file or block device")
	if o.Size != 0 {
		errs = append(errs, backend.CheckGeometry(o.Size, o.BlockSize))
	} else {
		errs = append(errs, backend.CheckBlockSize(o.BlockSize))
	}
	bad(o.Create && o.Size == 0, "Size", o.Size, "the size of the file to create")
	bad(o.Create && o.ReadOnly, "Create", o.Create, "false for a read-only device")
	bad(o.Grow && o.ReadOnly, "Grow", o.Grow, "false for a read-only device")
	bad(o.Engine != EngineAuto && o.Engine != EngineURing && o.Engine != EnginePool,
		"Engine", string(o.Engine), fmt.Sprintf("%s, %s or %s", EngineAuto, EngineURing, EnginePool))
	bad(o.Direct != DirectAuto && o.Direct != DirectOn && o.Direct != DirectOff,
		"Direct", string(o.Direct), fmt.Sprintf("%s, %s or %s", DirectAuto, DirectOn, DirectOff))
	bad(o.Workers < 1 || o.Workers > maxWorkers, "Workers", o.Workers, fmt.Sprintf("1 to %d", maxWorkers))
	return errors.Join(errs...)
}
