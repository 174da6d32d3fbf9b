package file

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// callOp is a system call an operation needs.
type callOp uint8

const (
	callRead callOp = iota
	callWrite
	callSync      // fdatasync
	callFallocate // zeroing or punching
	callDiscard   // of a block device
)

const (
	punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	zeroRange = unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE
)

// call is one system call. Its result is an int32: bytes, or a negative errno.
type call struct {
	op    callOp
	fd    int
	flags uint32       // RWF_* of callRead and callWrite, mode of callFallocate
	off   uint64       // bytes
	n     uint64       // bytes
	iov   []unix.Iovec // the data of callRead and callWrite: n bytes
}

// injection is what a test makes of a call: it fails with errno, or moves
// short bytes at most.
type injection struct {
	errno unix.Errno
	short uint64
}

// perform makes the call and waits for it.
func (c *call) perform() int32 {
	for {
		n, errno := c.once(c.fd)
		switch errno {
		case 0:
			return int32(n)
		case unix.EINTR:
		default:
			return -int32(errno)
		}
	}
}

func (c *call) once(fd int) (n uintptr, errno unix.Errno) {
	switch c.op {
	case callRead:
		return c.transfer(unix.SYS_PREADV2, fd)
	case callWrite:
		return c.transfer(unix.SYS_PWRITEV2, fd)
	case callSync:
		return 0, errnoOf(unix.Fdatasync(fd))
	case callFallocate:
		return 0, errnoOf(unix.Fallocate(fd, c.flags, int64(c.off), int64(c.n)))
	case callDiscard:
		span := [2]uint64{c.off, c.n}
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKDISCARD, uintptr(unsafe.Pointer(&span)))
		return 0, errno
	}
	return 0, unix.ENOSYS
}

// transfer is preadv2 or pwritev2. The offset goes in two halves, of which a
// 64-bit kernel reads the first alone.
func (c *call) transfer(trap uintptr, fd int) (n uintptr, errno unix.Errno) {
	n, _, errno = unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(c.iov))), uintptr(len(c.iov)),
		uintptr(c.off), uintptr(c.off>>32), uintptr(c.flags))
	runtime.KeepAlive(c.iov)
	return n, errno
}

func errnoOf(err error) unix.Errno {
	switch e := err.(type) { //nolint:errorlint // x/sys wraps nothing, and errors.As allocates
	case nil:
		return 0
	case unix.Errno:
		return e
	}
	return unix.EIO
}

// addr is the address the call's only buffer starts at.
func (c *call) addr() uint64 { return uint64(uintptr(unsafe.Pointer(c.iov[0].Base))) }

// limit shortens the data to n bytes.
func (c *call) limit(n uint64) {
	c.n = min(c.n, n)
	for i := range c.iov {
		size := uint64(c.iov[i].Len)
		if n <= size {
			c.iov[i].SetLen(int(n))
			c.iov = c.iov[:i+1]
			return
		}
		n -= size
	}
}
