package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
)

// medium is an open regular file or block device, and what it can do. All of
// it is constant after openMedium.
type medium struct {
	path    string
	fd      int  // holds the lock and, of a block device, the claim
	block   bool // a block device
	dev     uint64
	ino     uint64
	rdev    uint64 // a block device's number, else 0
	logical uint32 // a block device's logical block size in bytes, else 1

	direct   bool   // fd and its copies have O_DIRECT
	memAlign uint32 // of memory for direct I/O, in bytes
	offAlign uint32 // of offsets and lengths for direct I/O, in bytes

	discards    bool // space can be given back
	cached      bool // a completed write may be volatile
	granularity uint32
	identity    string
}

// size asks the medium for its size in bytes.
func (m *medium) size() (uint64, error) {
	if m.block {
		var n uint64
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m.fd), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&n)))
		if errno != 0 {
			return 0, os.NewSyscallError("BLKGETSIZE64", errno)
		}
		return n, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return uint64(st.Size), nil
}

// fit compares the medium's size with the options, and grows a file to them
// where it should.
func (m *medium) fit(o *Options, created bool) error {
	have, err := m.size()
	if err != nil {
		return err
	}
	switch {
	case have < o.Size && (created || o.Grow && !m.block):
		return m.grow(o.Size, created)
	case have < o.Size:
		return fmt.Errorf("%w: it has %d bytes, less than the configured %d", backend.ErrSize, have, o.Size)
	case have < uint64(o.BlockSize):
		return fmt.Errorf("%w: it has %d bytes, less than one block of %d", backend.ErrSize, have, o.BlockSize)
	}
	return nil
}

// grow extends a file, sparsely, and makes that survive a power loss.
func (m *medium) grow(size uint64, created bool) error {
	err := retryEINTR(func() error { return unix.Ftruncate(m.fd, int64(size)) })
	if err != nil {
		return fmt.Errorf("%w: extending it to %d bytes: %w", backend.ErrSize, size, err)
	}
	if err := unix.Fsync(m.fd); err != nil {
		return os.NewSyscallError("fsync", err)
	}
	if !created {
		return nil
	}
	dir, err := os.Open(filepath.Dir(m.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// replaced says whether the path leads to something else by now.
func (m *medium) replaced() bool {
	var st unix.Stat_t
	if unix.Stat(m.path, &st) != nil {
		return true
	}
	if m.block {
		return st.Rdev != m.rdev
	}
	return st.Dev != m.dev || st.Ino != m.ino
}

// reopen makes another open file description of the medium: the kernel
// reports an error of writing back once to each. Where that is not possible
// (no /proc, dropped privileges) it is a duplicate, which shares the reports.
func (m *medium) reopen(readOnly bool) (int, error) {
	flags := unix.O_RDWR
	if readOnly {
		flags = unix.O_RDONLY
	}
	if m.direct {
		flags |= unix.O_DIRECT
	}
	if fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", m.fd), flags|unix.O_CLOEXEC, 0); err == nil {
		return fd, nil
	}
	return unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 0)
}

// close unlocks before it closes: the kernel may hold on to the file for a
// moment longer than we do.
func (m *medium) close() error {
	_ = unix.Flock(m.fd, unix.LOCK_UN) // an error shows in Close
	return unix.Close(m.fd)
}
