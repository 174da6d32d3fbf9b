// Package icrc computes the invariant CRC of RoCEv2 packets (IBTA vol 1,
// annex A17.3.3): the Ethernet CRC-32 over eight bytes of ones, the IP and UDP
// headers with their variable fields masked to ones, and everything from the
// BTH to the pad.
//
// The headers below the BTH are not at hand in a UDP socket, but all they add
// is known: a [Flow] holds it for one pair of endpoints, and the lengths and
// the IPv4 identification are added by linearity. A CRC here is in the form of
// package hash/crc32 at every step.
package icrc

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
)

// Len is the length of the ICRC in bytes.
const Len = 4

// resv8a is the offset of the BTH byte with the congestion marks, which count
// as ones.
const resv8a = 4

// Flow is what the addresses and ports of a packet add to its ICRC.
type Flow struct {
	seed uint32 // over the headers with both lengths and the IPv4 id 0
	v6   bool
}

// Offsets of the variable fields behind the 8 bytes of ones.
const (
	prefix  = 8
	v4Len   = prefix + 2
	v4ID    = prefix + 4
	v4UDP   = prefix + 20
	v4Total = v4UDP + 8
	v6Len   = prefix + 4
	v6UDP   = prefix + 40
	v6Total = v6UDP + 8
	udpLen  = 4 // offset in the UDP header

	dontFragment = 0x40 // of the byte behind the id
)

// NewFlow is the flow from src to dst, addresses of one family. IPv4 packets
// are taken to have the don't-fragment bit and no options.
func NewFlow(src, dst netip.AddrPort) Flow {
	b := make([]byte, 0, v6Total)
	b = binary.BigEndian.AppendUint64(b, 1<<64-1)
	v6 := !src.Addr().Unmap().Is4()
	if v6 {
		b = appendV6(b, src.Addr(), dst.Addr())
	} else {
		b = appendV4(b, src.Addr().Unmap(), dst.Addr().Unmap())
	}
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = append(b, 0, 0, 0xff, 0xff) // length, checksum
	return Flow{crc32.ChecksumIEEE(b), v6}
}

func appendV4(b []byte, src, dst netip.Addr) []byte {
	b = append(b,
		0x45, 0xff, 0, 0, // version and header length, TOS, total length
		0, 0, dontFragment, 0, // id, flags and offset
		0xff, 17, 0xff, 0xff) // TTL, protocol UDP, checksum
	b = append(b, src.AsSlice()...)
	return append(b, dst.AsSlice()...)
}

func appendV6(b []byte, src, dst netip.Addr) []byte {
	b = append(b,
		0x6f, 0xff, 0xff, 0xff, // version, traffic class, flow label
		0, 0, 17, 0xff) // payload length, next header UDP, hop limit
	s, d := src.As16(), dst.As16()
	b = append(b, s[:]...)
	return append(b, d[:]...)
}

// V6 says whether the flow is of IPv6.
func (f Flow) V6() bool { return f.v6 }

// Seed is the CRC up to the BTH of a packet of n bytes, counted from the BTH
// to the end of the ICRC. id is the IPv4 identification; IPv6 has none and
// ignores it.
func (f Flow) Seed(n int, id uint16) uint32 {
	if f.v6 {
		l := uint16(n + 8)
		return f.seed ^ field(&v6LenEffect, l) ^ field(&v6UDPEffect, l)
	}
	return f.seed ^ field(&v4LenEffect, uint16(n+28)) ^ field(&v4UDPEffect, uint16(n+8)) ^ field(&v4IDEffect, id)
}

// Header continues the CRC over the headers h of a packet, BTH first.
func Header(crc uint32, h []byte) uint32 {
	marks := h[resv8a]
	h[resv8a] = 0xff
	crc = update(crc, h)
	h[resv8a] = marks
	return crc
}

// update continues a CRC over p.
func update(crc uint32, p []byte) uint32 {
	if len(p) >= foldLeast {
		crc, p = updateLong(crc, p)
	}
	if n := len(p) &^ 15; n >= 64 { // the standard library's way for that
		crc, p = crc32.Update(crc, crc32.IEEETable, p[:n]), p[n:]
	}
	return updateShort(crc, p)
}

// Payload continues the CRC over payload and pad.
func Payload(crc uint32, p []byte) uint32 { return update(crc, p) }

// Put writes a finished CRC into the Len bytes of b, least significant byte
// first.
func Put(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }

// Get reads what Put wrote.
func Get(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// Seal writes the ICRC into the last Len bytes of the packet b, BTH to ICRC.
func (f Flow) Seal(b []byte, id uint16) {
	body := b[:len(b)-Len]
	Put(b[len(body):], Header(f.Seed(len(b), id), body))
}

// residue is the difference between the ICRC computed with that id and the
// one in the packet b: 0 when they agree.
func (f Flow) residue(b []byte, id uint16) uint32 {
	body := b[:len(b)-Len]
	return Header(f.Seed(len(b), id), body) ^ Get(b[len(body):])
}

// effect is what each value of a 16-bit field, high byte first, changes in the
// CRC behind the headers.
type effect [2][256]uint32

var (
	v4LenEffect = newEffect(v4Total - v4Len)
	v4UDPEffect = newEffect(v4Total - v4UDP - udpLen)
	v4IDEffect  = newEffect(v4Total - v4ID)
	v6LenEffect = newEffect(v6Total - v6Len)
	v6UDPEffect = newEffect(v6Total - v6UDP - udpLen)
)

// newEffect is the effect of the field that begins n bytes before the end.
func newEffect(n int) (e effect) {
	b := make([]byte, n)
	for i := range e {
		for v := range e[i] {
			b[i] = byte(v)
			e[i][v] = linear(b)
		}
		b[i] = 0
	}
	return e
}

func field(e *effect, v uint16) uint32 { return e[0][v>>8] ^ e[1][v&0xff] }

// linear is the CRC of b without its initial and final ones: linear(a^b) is
// linear(a)^linear(b).
func linear(b []byte) uint32 { return ^crc32.Update(^uint32(0), crc32.IEEETable, b) }
