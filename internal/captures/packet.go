package captures

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// IP protocol numbers.
const (
	ProtoTCP = 6
	ProtoUDP = 17
)

// TCP flags.
const (
	FIN = 1 << 0
	SYN = 1 << 1
	RST = 1 << 2
	ACK = 1 << 4
)

// Packet is a UDP or TCP packet.
type Packet struct {
	Frame    int // its number in the capture, from 1, as tshark counts
	Time     time.Time
	Proto    int
	Src, Dst netip.AddrPort
	IP       []byte // from the IP header to the end of the payload, as on the wire
	Payload  []byte // of UDP or TCP

	// Of TCP alone.

	Seq, Ack uint32
	Flags    uint8
}

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86DD
	etherVLAN = 0x8100
)

// parse takes an Ethernet frame apart. It is false for what is neither UDP nor
// TCP, for fragments, and for packets that were not captured whole.
func parse(frame []byte) (p Packet, ok bool) {
	if len(frame) < 14 {
		return p, false
	}
	kind, ip := binary.BigEndian.Uint16(frame[12:]), frame[14:]
	if kind == etherVLAN && len(ip) >= 4 {
		kind, ip = binary.BigEndian.Uint16(ip[2:]), ip[4:]
	}
	switch kind {
	case etherIPv4:
		return parseIPv4(ip)
	case etherIPv6:
		return parseIPv6(ip)
	}
	return p, false
}

func parseIPv4(b []byte) (p Packet, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return p, false
	}
	head, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	const fragment = 0x3FFF // MF and the offset
	if head < 20 || total < head || total > len(b) || binary.BigEndian.Uint16(b[6:])&fragment != 0 {
		return p, false
	}
	p.IP, p.Proto = b[:total], int(b[9])
	src, dst := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	return p, p.parseTransport(b[head:total], src, dst)
}

func parseIPv6(b []byte) (p Packet, ok bool) {
	if len(b) < 40 || b[0]>>4 != 6 {
		return p, false
	}
	total := 40 + int(binary.BigEndian.Uint16(b[4:]))
	if total > len(b) {
		return p, false
	}
	p.IP, p.Proto = b[:total], int(b[6])
	src, dst := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	return p, p.parseTransport(b[40:total], src, dst)
}

func (p *Packet) parseTransport(b []byte, src, dst netip.Addr) bool {
	if len(b) < 8 {
		return false
	}
	p.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	p.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[2:]))
	switch p.Proto {
	case ProtoUDP:
		n := int(binary.BigEndian.Uint16(b[4:]))
		if n < 8 || n > len(b) {
			return false
		}
		p.Payload = b[8:n]
		return true
	case ProtoTCP:
		if len(b) < 20 {
			return false
		}
		head := int(b[12]>>4) * 4
		if head < 20 || head > len(b) {
			return false
		}
		p.Seq, p.Ack = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
		p.Flags, p.Payload = b[13], b[head:]
		return true
	}
	return false
}
