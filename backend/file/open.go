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
	if err := m.identify(); err != nil {
		return err
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
	var st unix.Stat_t
	err = unix.Stat(o.Path, &st)
	if errors.Is(err, unix.ENOENT) && o.Create {
		m, err = openFile(o, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
		return m, err == nil, err
	}
	if err != nil {
		return nil, false, err
	}
	flags := unix.O_RDWR
	if o.ReadOnly {
		flags = unix.O_RDONLY
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFBLK:
		if !o.ReadOnly {
			flags |= unix.O_EXCL
		}
	default:
		return nil, false, errors.New("is neither a regular file nor a block device")
	}
	m, err = openFile(o, flags)
	if errors.Is(err, unix.EBUSY) {
		err = claimed(st.Rdev)
	}
	return m, false, err
}

func openFile(o *Options, flags int) (*medium, error) {
	var fd int
	err := retryEINTR(func() (err error) {
		fd, err = unix.Open(o.Path, flags|unix.O_CLOEXEC, 0o600)
		return err
	})
	if !o.ReadOnly && status(backend.Write, errnoOf(err)) == nvme.NamespaceWriteProtected {
		return nil, fmt.Errorf("cannot be opened for writing, and ReadOnly is not set: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return &medium{path: o.Path, fd: fd}, nil
}

// identify remembers which file was opened.
func (m *medium) identify() error {
	var st unix.Stat_t
	if err := unix.Fstat(m.fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	m.dev, m.ino, m.logical = st.Dev, st.Ino, 1
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil
	}
	size, err := unix.IoctlGetInt(m.fd, unix.BLKSSZGET)
	if err != nil {
		return os.NewSyscallError("BLKSSZGET", err)
	}
	m.block, m.rdev, m.logical = true, st.Rdev, uint32(size)
	return nil
}

func retryEINTR(call func() error) error {
	for {
		if err := call(); errnoOf(err) != unix.EINTR {
			return err
		}
	}
}
