package file

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// openMedium opens or creates the medium, locks it, fits its size and finds
// out what it can do. A file it created is removed again when that fails.
func openMedium(o *Options) (m *medium, err error) {
	m, created, err := openPath(o)
	if err != nil {
		return nil, err
	}
	if err = m.prepare(o, created); err == nil {
		return m, nil
	}
	if created && !errors.Is(err, errNotLocked) { // or it is the lock holder's
		err = errors.Join(err, os.Remove(o.Path))
	}
	return nil, errors.Join(err, m.close())
}

// prepare is what follows the opening.
func (m *medium) prepare(o *Options, created bool) error {
	if err := m.identify(func(st *unix.Stat_t) error { return unix.Fstat(m.fd, st) }); err != nil {
		return err
	}
	m.logical = 1
	if m.block {
		size, err := unix.IoctlGetInt(m.fd, unix.BLKSSZGET)
		if err != nil {
			return os.NewSyscallError("BLKSSZGET", err)
		}
		m.logical = uint32(size)
	}
	if err := m.lock(!o.ReadOnly); err != nil {
		return err
	}
	if err := m.fit(o, created); err != nil {
		return err
	}
	return m.probe(o)
}

// openPath opens o.Path, or creates it when it may. It looks before it opens:
// opening a FIFO would block.
func openPath(o *Options) (m *medium, created bool, err error) {
	m = &medium{path: o.Path}
	err = m.identify(func(st *unix.Stat_t) error { return unix.Stat(o.Path, st) })
	if errors.Is(err, unix.ENOENT) && o.Create {
		err = m.open(unix.O_RDWR | unix.O_CREAT | unix.O_EXCL)
		return m, err == nil, err
	}
	if err != nil {
		return nil, false, err
	}
	flags := unix.O_RDWR
	switch {
	case o.ReadOnly:
		flags = unix.O_RDONLY
	case m.block:
		flags |= unix.O_EXCL
	}
	return m, false, m.open(flags)
}

// identify remembers which file it is, and of what type.
func (m *medium) identify(stat func(*unix.Stat_t) error) error {
	var st unix.Stat_t
	if err := stat(&st); err != nil {
		return err
	}
	m.dev, m.ino, m.rdev, m.block = st.Dev, st.Ino, 0, false
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFBLK:
		m.rdev, m.block = st.Rdev, true
	default:
		return errors.New("is neither a regular file nor a block device")
	}
	return nil
}

func (m *medium) open(flags int) error {
	err := m.patiently(unix.EBUSY, func() (err error) {
		m.fd, err = unix.Open(m.path, flags|unix.O_CLOEXEC, 0o600)
		return err
	})
	switch {
	case errors.Is(err, unix.EBUSY) && m.block:
		return m.claimed()
	case flags&unix.O_RDWR != 0 && status(backend.Write, errnoOf(err)) == nvme.NamespaceWriteProtected:
		return fmt.Errorf("cannot be opened for writing, and ReadOnly is not set: %w", err)
	}
	return err
}

func retryEINTR(call func() error) error {
	for {
		if err := call(); errnoOf(err) != unix.EINTR {
			return err
		}
	}
}
