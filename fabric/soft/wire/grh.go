package wire

import (
	"encoding/binary"
	"net/netip"
)

// GRHLen is the length of what is in front of a received datagram (IBTA vol 1,
// 8.3 and annex A17).
const GRHLen = 40

// IPInfo is what of a packet's IP header the receiver was told.
type IPInfo struct {
	Src, Dst netip.Addr
	Len      int    // bytes behind the IP header: UDP header to ICRC
	Class    uint8  // TOS, traffic class
	HopLimit uint8  // TTL
	ID       uint16 // IPv4 identification
}

// PutGRH writes what verbs consumers find in front of a datagram into the first
// GRHLen bytes of b: the IPv6 header, its flow label 0, or 20 zero bytes and
// the IPv4 header.
func PutGRH(b []byte, i *IPInfo) {
	const udp = 17
	b = b[:GRHLen]
	clear(b)
	if i.Src.Is4() {
		h := b[20:]
		h[0], h[1], h[6], h[8], h[9] = 0x45, i.Class, 0x40, i.HopLimit, udp // no options; don't fragment
		binary.BigEndian.PutUint16(h[2:], uint16(len(h)+i.Len))
		binary.BigEndian.PutUint16(h[4:], i.ID)
		src, dst := i.Src.As4(), i.Dst.As4()
		copy(h[12:], src[:])
		copy(h[16:], dst[:])
		binary.BigEndian.PutUint16(h[10:], ^headerSum(h))
		return
	}
	binary.BigEndian.PutUint32(b, 6<<28|uint32(i.Class)<<20)
	binary.BigEndian.PutUint16(b[4:], uint16(i.Len))
	b[6], b[7] = udp, i.HopLimit
	src, dst := i.Src.As16(), i.Dst.As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
}

// headerSum is the one's complement sum of an IPv4 header of 20 bytes (RFC 791,
// 3.1): 0xffff when its checksum is right.
func headerSum(h []byte) uint16 {
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return uint16(sum>>16 + sum)
}
