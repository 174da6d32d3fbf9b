package wire

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// CMAHeaderLen is the length of the IP addressing header that begins the
// private data of a REQ (IBTA vol 1, annex A11); REQConsumerLen is what is
// left for the consumer behind it.
const (
	CMAHeaderLen   = 36
	REQConsumerLen = REQPrivateLen - CMAHeaderLen
)

// servicePrefixTCP is the upper part of the service ids of the RDMA port
// space "TCP"; the port is the lowest 16 bits.
const servicePrefixTCP = 0x0000000001060000

// Errors of ParseCMA; a Linux peer answers both with reject reason 28.
var (
	ErrCMAVersion = errors.New("IP addressing header of an unknown version")
	ErrCMAFamily  = errors.New("IP addressing header of an unknown IP version")
)

// ServiceID is the service id of an RDMA port.
func ServiceID(port uint16) uint64 { return servicePrefixTCP | uint64(port) }

// ServicePort is the port of a service id, and whether it is one of the RDMA
// port space "TCP".
func ServicePort(id uint64) (uint16, bool) {
	return uint16(id), id&^0xffff == servicePrefixTCP
}

// CMAHeader tells a listener the IP addresses and the source port of the
// connection.
type CMAHeader struct {
	Src     netip.AddrPort
	DstAddr netip.Addr
}

// ParseCMA reads the header in the private data of a REQ. The addresses are
// valid for any bytes: whether they are the right ones the caller decides.
func ParseCMA(private []byte) (CMAHeader, error) {
	_ = private[CMAHeaderLen-1]
	if private[0] != 0 {
		return CMAHeader{}, ErrCMAVersion
	}
	port := binary.BigEndian.Uint16(private[2:])
	switch private[1] >> 4 {
	case 4:
		src, dst := netip.AddrFrom4([4]byte(private[16:20])), netip.AddrFrom4([4]byte(private[32:36]))
		return CMAHeader{netip.AddrPortFrom(src, port), dst}, nil
	case 6:
		src, dst := netip.AddrFrom16([16]byte(private[4:20])), netip.AddrFrom16([16]byte(private[20:36]))
		return CMAHeader{netip.AddrPortFrom(src, port), dst}, nil
	}
	return CMAHeader{}, ErrCMAFamily
}

// Put writes the header into the first CMAHeaderLen bytes of b.
func (h *CMAHeader) Put(b []byte) {
	clear(b[:CMAHeaderLen])
	binary.BigEndian.PutUint16(b[2:], h.Src.Port())
	if h.DstAddr.Is4() {
		b[1] = 4 << 4
		src, dst := h.Src.Addr().As4(), h.DstAddr.As4()
		copy(b[16:], src[:])
		copy(b[32:], dst[:])
		return
	}
	b[1] = 6 << 4
	src, dst := h.Src.Addr().As16(), h.DstAddr.As16()
	copy(b[4:], src[:])
	copy(b[20:], dst[:])
}
