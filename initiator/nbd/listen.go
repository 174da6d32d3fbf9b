package nbd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of ListenUnix and ListenTCP, for errors.Is.
var (
	// ErrInUse: somebody answers at the socket.
	ErrInUse = errors.New("somebody answers there already")
	// ErrForeign: what is at the path is not ours to replace.
	ErrForeign = errors.New("is there already and is not a socket of ours")
	// ErrNotLoopback: NBD knows no authentication; everybody who reaches the
	// address could read and write the namespace.
	ErrNotLoopback = errors.New("not an address of this machine alone")
)

// ListenUnix listens on a unix socket that only its owner may connect to. A
// socket that a dead server has left is replaced. Closing the listener removes
// it.
func ListenUnix(path string) (net.Listener, error) {
	if path == "" || path[0] == '@' || strings.IndexByte(path, 0) >= 0 {
		return nil, fmt.Errorf("socket %q: expected a path: an abstract socket is everybody's", path)
	}
	if err := replaceable(path); err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	// The mode of a socket that is not bound yet is that of the file it becomes.
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		cerr := raw.Control(func(fd uintptr) { err = os.NewSyscallError("fchmod", unix.Fchmod(int(fd), 0o600)) })
		return errors.Join(cerr, err)
	}}
	return lc.Listen(context.Background(), "unix", path)
}

// replaceable removes a socket that nobody serves any more. It is nil when
// nothing is at path then.
func replaceable(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if st.Mode().Type() != os.ModeSocket || !ok || int(sys.Uid) != os.Geteuid() {
		return ErrForeign
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return ErrInUse
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w, or so it seems: %w", ErrInUse, err)
	}
	return os.Remove(path)
}

// ListenTCP listens at an address with a port, DefaultPort when it has none. An
// address that is not of the loopback interface needs anywhere, for whoever
// reaches it has the namespace.
func ListenTCP(address string, anywhere bool) (net.Listener, error) {
	at, err := parseListen(address)
	if err != nil {
		return nil, err
	}
	if !anywhere && !at.Addr().IsLoopback() {
		return nil, fmt.Errorf("listen at %v: %w", at, ErrNotLoopback)
	}
	return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
}

// parseListen reads an address to listen at, with or without a port.
func parseListen(s string) (netip.AddrPort, error) {
	host, port := s, strconv.Itoa(DefaultPort)
	if h, p, err := net.SplitHostPort(s); err == nil {
		host, port = h, p
	}
	host = strings.Trim(host, "[]")
	if host == "localhost" {
		host = "127.0.0.1"
	}
	a, err := netip.ParseAddr(host)
	p, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil {
		return netip.AddrPort{}, fmt.Errorf("listen address %q: expected ADDRESS[:PORT], like 127.0.0.1:%d", s, DefaultPort)
	}
	return netip.AddrPortFrom(a, uint16(p)), nil
}
