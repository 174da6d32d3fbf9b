package host

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Silent says whether a connected socket is open at the other end and has
// nothing to read.
func Silent(c syscall.Conn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	silent := false
	_ = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		silent = err == unix.EAGAIN
	})
	return silent
}
