package nvme

import "fmt"

var sglTypeNames = map[SGLType]string{
	SGLDataBlock: "data block", SGLBitBucket: "bit bucket", SGLSegment: "segment",
	SGLLastSegment: "last segment", SGLKeyedDataBlock: "keyed data block", SGLTransportData: "transport data block",
}

func (t SGLType) String() string { return nameOf(sglTypeNames, t, "SGL type") }

// InCapsule says that the descriptor names data in the capsule: a data block
// with an offset.
func (s SGL) InCapsule() bool { return s[15] == byte(SGLDataBlock)<<4|SGLOffset }

// Keyed says that the descriptor is a keyed data block of either sub type.
func (s SGL) Keyed() bool { return s.Type() == SGLKeyedDataBlock }

// Invalidate says that the response to this command shall invalidate Key.
func (s SGL) Invalidate() bool { return s[15] == byte(SGLKeyedDataBlock)<<4|SGLInvalidate }

// Size is the number of bytes that the descriptor describes: of a segment the
// bytes of its descriptors, of a keyed block 24 bits, else 32.
func (s SGL) Size() uint32 {
	if s.Keyed() {
		return s.KeyedLength()
	}
	return s.Length()
}

// IsNull says that the descriptor names no data: all zero apart from its type,
// or a keyed or in-capsule block of length 0. Linux sends a keyed one with every
// command that has no data.
func (s SGL) IsNull() bool {
	switch s.Type() {
	case SGLDataBlock, SGLKeyedDataBlock, SGLTransportData:
		return s.Size() == 0
	}
	return false
}

// Validate checks type and sub type against the specification (Base 4.1.2) and
// says nothing of what a transport supports. It is Success, SGLTypeInvalid for a
// type or sub type that does not exist, or InvalidSGLSegment for a segment that
// holds no whole number of descriptors.
func (s SGL) Validate() Status {
	switch s.Type() {
	case SGLDataBlock:
		return subTypeIn(s, SGLOffset)
	case SGLBitBucket:
		return subTypeIn(s, SGLAddress)
	case SGLSegment, SGLLastSegment:
		if st := subTypeIn(s, SGLOffset); !st.OK() {
			return st
		}
		if n := s.Length(); n == 0 || n%SGLSize != 0 {
			return InvalidSGLSegment
		}
		return Success
	case SGLKeyedDataBlock:
		return subTypeIn(s, SGLInvalidate)
	case SGLTransportData:
		if s.SubType() < 0xA {
			return SGLTypeInvalid
		}
		return Success
	}
	return SGLTypeInvalid
}

// subTypeIn takes sub type 0 and one other.
func subTypeIn(s SGL, other uint8) Status {
	if t := s.SubType(); t != SGLAddress && t != other {
		return SGLTypeInvalid
	}
	return Success
}

// SetDataBlock makes the descriptor a data block of n bytes at addr.
func (s SGL) SetDataBlock(addr uint64, n uint32) { s.put(addr, n, SGLDataBlock, SGLAddress) }

// SetBitBucket makes the descriptor a bit bucket that discards n bytes.
func (s SGL) SetBitBucket(n uint32) { s.put(0, n, SGLBitBucket, SGLAddress) }

// SetSegment makes the descriptor name n bytes of descriptors at addr; t is
// SGLSegment or SGLLastSegment. With sub type SGLOffset addr is an offset into
// the capsule's data.
func (s SGL) SetSegment(t SGLType, addr uint64, n uint32, sub uint8) { s.put(addr, n, t, sub) }

// SetTransportData makes the descriptor a transport data block of n bytes
// (NVMe/TCP: the data follows in PDUs).
func (s SGL) SetTransportData(n uint32) { s.put(0, n, SGLTransportData, 0xA) }

// SetNull makes the descriptor the keyed one of length 0.
func (s SGL) SetNull() { s.SetKeyed(0, 0, 0, SGLAddress) }

func (s SGL) put(addr uint64, n uint32, t SGLType, sub uint8) {
	le.PutUint64(s, addr)
	le.PutUint32(s[8:], n)
	s[12], s[13], s[14] = 0, 0, 0
	s[15] = byte(t)<<4 | sub
}

// String is the descriptor in words, for traces.
func (s SGL) String() string {
	if s.Keyed() {
		inv := ""
		if s.Invalidate() {
			inv = " invalidate"
		}
		return fmt.Sprintf("keyed %#x+%d key %#x%s", s.Address(), s.KeyedLength(), s.Key(), inv)
	}
	if s.InCapsule() {
		return fmt.Sprintf("in capsule %d+%d", s.Address(), s.Length())
	}
	return fmt.Sprintf("%v/%#x %#x+%d", s.Type(), s.SubType(), s.Address(), s.Length())
}
