//go:build linux && cgo && !nordma

package verbs

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
)

// sockaddr is a struct sockaddr_in or sockaddr_in6, in the larger one's 28
// bytes.
type sockaddr [unix.SizeofSockaddrInet6]byte

// encodeAddr fills a sockaddr. A scoped address (fe80::1%eth0) names its
// interface by name or index.
func encodeAddr(ap netip.AddrPort) (sa sockaddr, err error) {
	addr := ap.Addr().Unmap()
	if !addr.IsValid() {
		return sa, fmt.Errorf("%w: no address", fabric.ErrInvalid)
	}
	binary.BigEndian.PutUint16(sa[2:], ap.Port())
	if addr.Is4() {
		binary.NativeEndian.PutUint16(sa[0:], unix.AF_INET)
		a := addr.As4()
		copy(sa[4:], a[:])
		return sa, nil
	}
	binary.NativeEndian.PutUint16(sa[0:], unix.AF_INET6)
	a := addr.As16()
	copy(sa[8:], a[:])
	scope, err := scopeOf(addr)
	if err != nil {
		return sa, err
	}
	binary.NativeEndian.PutUint32(sa[24:], scope)
	return sa, nil
}

func scopeOf(addr netip.Addr) (uint32, error) {
	zone := addr.Zone()
	if zone == "" {
		if addr.IsLinkLocalUnicast() {
			return 0, fmt.Errorf("%w: the link-local address %v needs its interface, as in %v%%eth0", fabric.ErrInvalid, addr, addr)
		}
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("%w: %v: there is no interface %q", fabric.ErrInvalid, addr, zone)
	}
	return uint32(ifi.Index), nil
}

// decodeAddr is the inverse; an address of another family is the zero AddrPort.
func decodeAddr(sa sockaddr) netip.AddrPort {
	port := binary.BigEndian.Uint16(sa[2:])
	switch binary.NativeEndian.Uint16(sa[0:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(sa[4:8])), port)
	case unix.AF_INET6:
		addr := netip.AddrFrom16([16]byte(sa[8:24])).Unmap()
		if scope := binary.NativeEndian.Uint32(sa[24:]); scope != 0 && addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(zoneName(scope))
		}
		return netip.AddrPortFrom(addr, port)
	}
	return netip.AddrPort{}
}

func zoneName(scope uint32) string {
	if ifi, err := net.InterfaceByIndex(int(scope)); err == nil {
		return ifi.Name
	}
	return strconv.FormatUint(uint64(scope), 10)
}

// sourceOf asks the kernel's routing from which address it would reach remote.
// No packet is sent.
func sourceOf(remote netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, 9)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
