package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Socket options and control messages that x/sys has no name for everywhere.
const (
	solUDP       = 17
	udpSegment   = 103 // setsockopt, and control message with a uint16
	udpGRO       = 104 // setsockopt, and control message with an int32
	udpNoCheck6  = 102 // receive checksum 0 over IPv6
	pmtuProbe    = 3   // set DF, ignore the path MTU cache
	attachFilter = 51  // SO_ATTACH_REUSEPORT_CBPF
)

// rawAddr is a struct sockaddr_in or sockaddr_in6.
type rawAddr struct {
	b [unix.SizeofSockaddrInet6]byte
	n uint32
}

// newRawAddr makes a socket address; zone is the interface of a link-local
// one.
func newRawAddr(a netip.AddrPort, zone int) (r rawAddr) {
	put := func(off int, v uint16) { *(*uint16)(unsafe.Pointer(&r.b[off])) = v }
	r.b[2], r.b[3] = byte(a.Port()>>8), byte(a.Port())
	if ip := a.Addr().Unmap(); ip.Is4() {
		put(0, unix.AF_INET)
		v4 := ip.As4()
		copy(r.b[4:], v4[:])
		r.n = unix.SizeofSockaddrInet4
		return r
	}
	put(0, unix.AF_INET6)
	v6 := a.Addr().As16()
	copy(r.b[8:], v6[:])
	if a.Addr().IsLinkLocalUnicast() {
		*(*uint32)(unsafe.Pointer(&r.b[24])) = uint32(zone)
	}
	r.n = unix.SizeofSockaddrInet6
	return r
}

// addrPort is the address that the kernel wrote.
func (r *rawAddr) addrPort() netip.AddrPort {
	port := uint16(r.b[2])<<8 | uint16(r.b[3])
	if r.n == unix.SizeofSockaddrInet4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(r.b[4:8])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(r.b[8:24])).Unmap(), port)
}

// sockaddr is the form of x/sys.
func sockaddr(a netip.AddrPort, zone int) unix.Sockaddr {
	if ip := a.Addr().Unmap(); ip.Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: ip.As4()}
	}
	sa := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if a.Addr().IsLinkLocalUnicast() {
		sa.ZoneId = uint32(zone)
	}
	return sa
}

// message is a struct mmsghdr.
type message struct {
	hdr unix.Msghdr
	n   uint32
	_   uint32
}

// sendMessages hands messages to the kernel and returns how many it took. It
// does not block, so the scheduler need not hear of it.
func sendMessages(fd int, ms []message) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&ms[0])), uintptr(len(ms)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// receiveMessages takes what is there, at most len(ms), without blocking.
func receiveMessages(fd int, ms []message) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&ms[0])), uintptr(len(ms)), unix.MSG_DONTWAIT, 0, 0)
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// putCmsg writes a control message with a value of size bytes, at most 8, and
// returns the room it takes.
func putCmsg(b []byte, level, kind int32, v uint64, size int) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(size))
	*(*uint64)(unsafe.Pointer(&b[unix.CmsgLen(0)])) = v
	return unix.CmsgSpace(size)
}

// nextCmsg takes the first control message of b apart. What is left is nil at
// the end.
func nextCmsg(b []byte) (level, kind int32, data, left []byte) {
	if len(b) < unix.SizeofCmsghdr {
		return 0, 0, nil, nil
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	n, head := int(h.Len), unix.CmsgLen(0)
	if n < head || n > len(b) {
		return 0, 0, nil, nil
	}
	return h.Level, h.Type, b[head:n], b[min(len(b), unix.CmsgSpace(n-head)):]
}

// segmentSize is the value of the UDP_GRO control message in b, 0 when there is
// none: the datagram is one packet.
func segmentSize(b []byte) int {
	for b != nil {
		level, kind, data, left := nextCmsg(b)
		if level == solUDP && kind == udpGRO && len(data) >= 4 {
			return int(*(*int32)(unsafe.Pointer(&data[0])))
		}
		b = left
	}
	return 0
}

// ipHeader is what the control messages in b say of the IP header: TOS or
// traffic class, and TTL or hop limit.
func ipHeader(b []byte) (class, hopLimit uint8) {
	for b != nil {
		level, kind, data, left := nextCmsg(b)
		b = left
		if len(data) == 0 {
			continue
		}
		v := data[0]
		if len(data) >= 4 {
			v = uint8(binary.NativeEndian.Uint32(data))
		}
		switch {
		case level == unix.IPPROTO_IP && kind == unix.IP_TOS, level == unix.IPPROTO_IPV6 && kind == unix.IPV6_TCLASS:
			class = v
		case level == unix.IPPROTO_IP && kind == unix.IP_TTL, level == unix.IPPROTO_IPV6 && kind == unix.IPV6_HOPLIMIT:
			hopLimit = v
		}
	}
	return class, hopLimit
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

// setBuffer asks for a buffer of n bytes, with the privilege to exceed the
// system's limit when there is one.
func setBuffer(fd, force, plain, n int) {
	if n > 0 && unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, n) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, n) // the limit applies
	}
}

// steer attaches the program that chooses among the sockets on one address: by
// the low bits of the destination QP number, and the first for QP 1.
func steer(fd int) error {
	prog := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4},                // BTH byte 4 and the number
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xffffff},        //
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 2, Jf: 0, K: 1}, // QP 1?
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: groupMask},       //
		{Code: unix.BPF_RET | unix.BPF_A},                                    //
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},                              //
	}
	p := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	return os.NewSyscallError("setsockopt", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, attachFilter, &p))
}

// errno is the error number in err, 0 when there is none.
func errno(err error) unix.Errno {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return 0
}
