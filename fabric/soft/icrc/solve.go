package icrc

// Polynomials over GF(2) modulo the CRC's, in its reflected form: the highest
// bit is the coefficient of 1, the lowest that of x^31.
const (
	poly = 0xedb88320
	one  = 1 << 31
	x8   = one >> 8
	// order is that of x: the polynomial is primitive.
	order = 1<<32 - 1
)

// mul is the product a*b.
func mul(a, b uint32) uint32 {
	var p uint32
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			p ^= b
		}
		b = b>>1 ^ poly&-(b&1)
	}
	return p
}

// pow is x^n.
func pow(n uint32) uint32 {
	p, sq := uint32(one), uint32(one>>1)
	for ; n != 0; n >>= 1 {
		if n&1 != 0 {
			p = mul(p, sq)
		}
		sq = mul(sq, sq)
	}
	return p
}

// solver finds the IPv4 identification from what an unknown one did to the
// CRC. A CRC is linear, and two bytes followed by k others change it by their
// bits times x^(8(k+2)); so the change, divided by that, is the two bytes, and
// anything that leaves more than 16 bits was no identification. A quotient
// depends on the length of the packet alone; the last few are kept.
type solver struct {
	cache [16]struct {
		n       int32
		inverse uint32
	}
}

// id is the identification whose effect on a packet of n bytes, BTH to ICRC,
// is d, and whether there is one.
func (s *solver) id(n int, d uint32) (uint16, bool) {
	c := &s.cache[uint(n)/4%uint(len(s.cache))]
	if c.n != int32(n) {
		behind := v4Total - v4ID + n - Len // the bytes from the id on
		c.n, c.inverse = int32(n), pow(order-uint32(8*behind))
	}
	v := mul(c.inverse, d)
	return uint16(v)<<8 | uint16(v)>>8, v>>16 == 0
}
