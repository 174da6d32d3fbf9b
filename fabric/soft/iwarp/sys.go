package iwarp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
)

// sendVec hands bytes to a socket and returns how many it took. It does not
// block, so the scheduler need not hear of it.
func sendVec(fd int, h *unix.Msghdr, iovs []unix.Iovec) (int, unix.Errno) {
	h.Iov, h.Iovlen = &iovs[0], uint64(len(iovs))
	for {
		n, _, e := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(h)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// recvVec reads what a socket has, without blocking.
func recvVec(fd int, iovs []unix.Iovec) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&iovs[0])), uintptr(len(iovs)))
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// epollWait is what is ready now.
func epollWait(fd int, events []unix.EpollEvent) int {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// option is a socket option to set and what it is for.
type option struct {
	level, name, value int
	what               string
}

// setOptions sets options, each of which has to work.
func setOptions(fd int, opts ...option) error {
	for _, o := range opts {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("%s: %w", o.what, os.NewSyscallError("setsockopt", err))
		}
	}
	return nil
}

// early sets what has to be set before a socket connects or listens; what a listener
// accepts has it, too.
func (o *Options) early(c syscall.RawConn) error {
	var err error
	ctlErr := c.Control(func(fd uintptr) {
		if o.SendBuffer > 0 {
			err = setOptions(int(fd), option{unix.SOL_SOCKET, unix.SO_SNDBUF, o.SendBuffer, "send buffer"})
		}
		if o.RecvBuffer > 0 && err == nil {
			err = setOptions(int(fd), option{unix.SOL_SOCKET, unix.SO_RCVBUF, o.RecvBuffer, "receive buffer"})
		}
		if err == nil {
			err = o.chooseCongestion(int(fd))
		}
	})
	return errors.Join(ctlErr, err)
}

// chooseCongestion sets the congestion control of a socket.
func (o *Options) chooseCongestion(fd int) error {
	switch o.Congestion {
	case CongestionSystem:
		return nil
	case CongestionAuto:
		now, _ := congestion(fd) // no name: not BBR
		if strings.HasPrefix(now, "bbr") && setCongestion(fd, "cubic") != nil {
			_ = setCongestion(fd, "reno") // else BBR works, too
		}
		return nil
	}
	err := setCongestion(fd, o.Congestion)
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: TCP congestion control %q: the kernel has none of that name (see sysctl net.ipv4.tcp_available_congestion_control)", fabric.ErrInvalid, o.Congestion)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("TCP congestion control %q: not allowed without CAP_NET_ADMIN (see sysctl net.ipv4.tcp_allowed_congestion_control): %w", o.Congestion, err)
	case err != nil:
		return fmt.Errorf("TCP congestion control %q: %w", o.Congestion, err)
	}
	return nil
}

// congestion is the name of a socket's congestion control.
func congestion(fd int) (string, error) {
	return unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
}

func setCongestion(fd int, name string) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name))
}

// tune sets a connected socket up.
func (o *Options) tune(fd int, v6 bool, class uint8) error {
	opts := []option{{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1, "no delay"}}
	if o.KeepAlive > 0 {
		s := seconds(o.KeepAlive)
		opts = append(opts,
			option{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1, "keep-alive"},
			option{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, s, "keep-alive time"},
			option{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, s, "keep-alive interval"},
			option{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3, "keep-alive count"})
	}
	if o.SendTimeout > 0 {
		opts = append(opts, option{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(o.SendTimeout.Milliseconds()), "send timeout"})
	}
	switch {
	case class == 0:
	case v6:
		opts = append(opts, option{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int(class), "traffic class"})
	default:
		opts = append(opts, option{unix.IPPROTO_IP, unix.IP_TOS, int(class), "traffic class"})
	}
	return setOptions(fd, opts...)
}

func seconds(d time.Duration) int { return max(1, int((d+time.Second-1)/time.Second)) }

// detach takes the socket out of the runtime's hands.
func detach(c *net.TCPConn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var dupErr error
	err = raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, os.NewSyscallError("fcntl", dupErr)); err != nil {
		return -1, err
	}
	c.Close() // the duplicate stays
	return fd, nil
}

// segmentSize is the length of a TCP segment's payload.
func segmentSize(fd int) int {
	n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil {
		return 0
	}
	return n
}
