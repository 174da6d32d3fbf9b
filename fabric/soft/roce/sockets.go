package roce

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
)

// The low bits of a QP number say which engine, and so which socket, it is of.
// Index 0 is the connection manager's.
const (
	groupBits  = 9
	groupMask  = 1<<groupBits - 1
	maxEngines = groupMask
)

// pair is the two sockets of an engine: one of the group bound to the RoCE
// port, and one to send from. Its own source port keeps the packets of engines
// apart in the receive offload of the peer, which knows nothing of QPs.
type pair struct {
	rx, tx int
	source netip.AddrPort // of tx
}

// sockets are all sockets on one address. The kernel numbers the members of
// the group in the order they were bound, and renumbers them when one is
// closed: so none is closed before all are.
type sockets struct {
	addr netip.Addr
	zone int // interface of a link-local address
	opts *Options

	// Those of the connection manager. rx has group index 0. tx has a port of
	// its own: of an ICMP error for a port that several sockets share the
	// kernel tells any of them.
	cm pair

	mu    sync.Mutex
	pairs []pair // index 1 on
	idle  []uint32
}

// openSockets binds the RoCE port on addr for this process alone.
func openSockets(addr netip.Addr, zone int, opts *Options) (*sockets, error) {
	s := &sockets{addr: addr, zone: zone, opts: opts}
	var err error
	if s.cm.tx, s.cm.source, err = s.newTX(); err != nil {
		return nil, err
	}
	if err = s.reportErrors(s.cm.tx); err == nil {
		s.cm.rx, err = s.socket()
	}
	if err != nil {
		unix.Close(s.cm.tx)
		return nil, err
	}
	if err := s.bindAlone(s.cm.rx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// reportErrors has ICMP errors reported, as those of peers that do not listen.
func (s *sockets) reportErrors(fd int) error {
	o := option{unix.IPPROTO_IP, unix.IP_RECVERR, 1, "errors of unreachable peers"}
	if s.v6() {
		o.level, o.name = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	return setOptions(fd, o)
}

func (s *sockets) v6() bool { return s.addr.Is6() }

func (s *sockets) local(port uint16) unix.Sockaddr {
	return sockaddr(netip.AddrPortFrom(s.addr, port), s.zone)
}

// socket makes a UDP socket with what all have in common.
func (s *sockets) socket() (int, error) {
	family, opts := unix.AF_INET, []option{
		// DF set and, on a socket that is not connected, identification 0: the
		// ICRC covers both. PROBE also ignores ICMP about the path MTU.
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, pmtuProbe, "path MTU discovery"},
		{unix.IPPROTO_IP, unix.IP_TOS, int(s.opts.DSCP) << 2, "DSCP"},
	}
	if s.v6() {
		family, opts = unix.AF_INET6, []option{
			{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, "IPv6 only"},
			{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, pmtuProbe, "path MTU discovery"},
			{unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int(s.opts.DSCP) << 2, "DSCP"},
			{solUDP, udpNoCheck6, 1, "receive UDP checksum 0"}, // rxe and hardware send it
		}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := setOptions(fd, opts...); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// bindAlone binds the first socket of the group: alone, which fails when anybody
// else has the port. Only then others of ours may join.
func (s *sockets) bindAlone(fd int) error {
	if err := unix.Bind(fd, s.local(s.opts.Port)); err != nil {
		return s.bindError(err)
	}
	return setOptions(fd, option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, "share the port among completion queues"})
}

// bindError says why the port cannot be had, and what to do.
func (s *sockets) bindError(err error) error {
	at := netip.AddrPortFrom(s.addr, s.opts.Port)
	switch errno(err) {
	case unix.EADDRINUSE:
		if _, e := os.Stat("/sys/module/rdma_rxe"); e == nil {
			return fmt.Errorf("%w: UDP %v: the kernel's rdma_rxe module holds UDP port %d: rmmod rdma_rxe, or run in another network namespace, or use provider: verbs",
				fabric.ErrAddrInUse, at, s.opts.Port)
		}
		return fmt.Errorf("%w: another process holds UDP %v (see ss -ulpn): only one process can speak RoCEv2 on an address; give this one an address of its own",
			fabric.ErrAddrInUse, at)
	case unix.EADDRNOTAVAIL:
		return fmt.Errorf("%w: %v", fabric.ErrAddrNotAvailable, s.addr)
	}
	return fmt.Errorf("UDP %v: %w", at, os.NewSyscallError("bind", err))
}

// take gives an engine its sockets and its index.
func (s *sockets) take() (uint32, pair, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		i := s.idle[n-1]
		p := s.pairs[i-1]
		drain(p.rx)
		if err := unix.SetsockoptInt(p.rx, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil {
			return 0, pair{}, os.NewSyscallError("setsockopt", err)
		}
		s.idle = s.idle[:n-1]
		return i, p, nil
	}
	if len(s.pairs) == maxEngines {
		return 0, pair{}, fmt.Errorf("%w: a device has sockets for %d completion queues", fabric.ErrQueueFull, maxEngines)
	}
	p, err := s.newPair()
	if err != nil {
		return 0, pair{}, err
	}
	s.pairs = append(s.pairs, p)
	return uint32(len(s.pairs)), p, nil
}

// newPair makes the sockets of one more engine.
func (s *sockets) newPair() (pair, error) {
	tx, source, err := s.newTX()
	if err != nil {
		return pair{}, err
	}
	rx, err := s.newRX()
	if err != nil {
		unix.Close(tx)
		return pair{}, err
	}
	return pair{rx, tx, source}, nil
}

func (s *sockets) newRX() (int, error) {
	fd, err := s.socket()
	if err != nil {
		return -1, err
	}
	setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, s.opts.RecvBuffer)
	if !s.opts.NoGRO {
		_ = unix.SetsockoptInt(fd, solUDP, udpGRO, 1) // without it packets come one by one
	}
	err = setOptions(fd, option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, "share the port among completion queues"})
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, s.local(s.opts.Port)))
	}
	if err == nil && len(s.pairs) == 0 {
		err = steer(fd) // for the whole group
	}
	if err != nil {
		unix.Close(fd) // the last of the group: no renumbering
		return -1, err
	}
	return fd, nil
}

// newTX makes a socket to send from, on a port of the range that RoCEv2 uses
// for the entropy of flows when one is free.
func (s *sockets) newTX() (int, netip.AddrPort, error) {
	fd, err := s.socket()
	if err != nil {
		return -1, netip.AddrPort{}, err
	}
	setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, s.opts.SendBuffer)
	for try := range 9 {
		port := uint16(0xc000 | rand.Uint32N(0x4000))
		if try == 8 {
			port = 0
		}
		if err = unix.Bind(fd, s.local(port)); err == nil {
			break
		}
	}
	var sa unix.Sockaddr
	if err == nil {
		sa, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, netip.AddrPort{}, fmt.Errorf("send socket on %v: %w", s.addr, os.NewSyscallError("bind", err))
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return fd, netip.AddrPortFrom(s.addr, uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return fd, netip.AddrPortFrom(s.addr, uint16(sa.Port)), nil
	}
	return fd, netip.AddrPort{}, nil
}

// give takes the sockets of an engine back. What still comes for them is
// dropped by the kernel.
func (s *sockets) give(i uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	filter := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	prog := unix.SockFprog{Len: 1, Filter: &filter}
	fd := s.pairs[i-1].rx
	_ = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog) // else the buffer fills up
	drain(fd)
	s.idle = append(s.idle, i)
}

// drain drops what a socket has received.
func drain(fd int) {
	var b [1]byte
	for range 1 << 16 {
		if _, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC); err != nil {
			return
		}
	}
}

// close closes all of them. Nobody uses them any more.
func (s *sockets) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pairs {
		unix.Close(p.rx)
		unix.Close(p.tx)
	}
	s.pairs, s.idle = nil, nil
	unix.Close(s.cm.rx)
	unix.Close(s.cm.tx)
}
