package mpa

import "encoding/binary"

// Lengths of the payloads that RDMAP itself reads.
const (
	ReadRequestLen    = 28
	AtomicRequestLen  = 52
	AtomicResponseLen = 12
	ImmediateLen      = 8
)

// ReadRequest is the payload of a Read Request (RFC 5040, 4.4).
type ReadRequest struct {
	SinkSTag   uint32
	SinkTO     uint64
	Size       uint32
	SourceSTag uint32
	SourceTO   uint64
}

// Put writes the request to the first ReadRequestLen bytes of b.
func (r *ReadRequest) Put(b []byte) {
	_ = b[ReadRequestLen-1]
	binary.BigEndian.PutUint32(b, r.SinkSTag)
	binary.BigEndian.PutUint64(b[4:], r.SinkTO)
	binary.BigEndian.PutUint32(b[12:], r.Size)
	binary.BigEndian.PutUint32(b[16:], r.SourceSTag)
	binary.BigEndian.PutUint64(b[20:], r.SourceTO)
}

// Parse reads it.
func (r *ReadRequest) Parse(b []byte) {
	_ = b[ReadRequestLen-1]
	*r = ReadRequest{
		SinkSTag: binary.BigEndian.Uint32(b), SinkTO: binary.BigEndian.Uint64(b[4:]), Size: binary.BigEndian.Uint32(b[12:]),
		SourceSTag: binary.BigEndian.Uint32(b[16:]), SourceTO: binary.BigEndian.Uint64(b[20:]),
	}
}

// AtomicOp is the operation of an Atomic Request (RFC 7306, 5.2).
type AtomicOp uint8

// Atomic operations.
const (
	FetchAdd AtomicOp = 0
	CmpSwap  AtomicOp = 2
)

// AtomicRequest is the payload of an Atomic Request (RFC 7306, 5.2.1). Masks
// choose bits: a CmpSwap compares and replaces those that are set, a FetchAdd
// does not carry out of them.
type AtomicRequest struct {
	Op          AtomicOp
	ID          uint32 // repeated in the response
	STag        uint32
	TO          uint64
	Data, Mask  uint64 // to add or to swap in
	Compare     uint64
	CompareMask uint64
}

// Put writes the request to the first AtomicRequestLen bytes of b.
func (r *AtomicRequest) Put(b []byte) {
	_ = b[AtomicRequestLen-1]
	binary.BigEndian.PutUint32(b, uint32(r.Op))
	binary.BigEndian.PutUint32(b[4:], r.ID)
	binary.BigEndian.PutUint32(b[8:], r.STag)
	binary.BigEndian.PutUint64(b[12:], r.TO)
	binary.BigEndian.PutUint64(b[20:], r.Data)
	binary.BigEndian.PutUint64(b[28:], r.Mask)
	binary.BigEndian.PutUint64(b[36:], r.Compare)
	binary.BigEndian.PutUint64(b[44:], r.CompareMask)
}

// Parse reads it.
func (r *AtomicRequest) Parse(b []byte) {
	_ = b[AtomicRequestLen-1]
	*r = AtomicRequest{
		Op: AtomicOp(b[3] & 0x0f), ID: binary.BigEndian.Uint32(b[4:]),
		STag: binary.BigEndian.Uint32(b[8:]), TO: binary.BigEndian.Uint64(b[12:]),
		Data: binary.BigEndian.Uint64(b[20:]), Mask: binary.BigEndian.Uint64(b[28:]),
		Compare: binary.BigEndian.Uint64(b[36:]), CompareMask: binary.BigEndian.Uint64(b[44:]),
	}
}

// Apply is what the operation makes of a value. It is false for an operation
// that there is not.
func (r *AtomicRequest) Apply(old uint64) (uint64, bool) {
	switch r.Op {
	case FetchAdd:
		return maskedAdd(old, r.Data, r.Mask), true
	case CmpSwap:
		if (old^r.Compare)&r.CompareMask != 0 {
			return old, true
		}
		return old&^r.Mask | r.Data&r.Mask, true
	}
	return 0, false
}

// maskedAdd adds without carrying out of the bits that mask has set: these are
// the upper ends of fields.
func maskedAdd(a, b, mask uint64) uint64 {
	// Without its top bit no field can overflow; that bit is then the sum of
	// the two and of what was carried into it.
	return (a&^mask + b&^mask) ^ (a^b)&mask
}

// PutAtomicResponse writes the payload of an Atomic Response to the first
// AtomicResponseLen bytes of b.
func PutAtomicResponse(b []byte, id uint32, original uint64) {
	_ = b[AtomicResponseLen-1]
	binary.BigEndian.PutUint32(b, id)
	binary.BigEndian.PutUint64(b[4:], original)
}

// ParseAtomicResponse reads it.
func ParseAtomicResponse(b []byte) (id uint32, original uint64) {
	_ = b[AtomicResponseLen-1]
	return binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])
}

// Immediate data are 8 bytes of the consumer's (RFC 7306, 6). As hardware does,
// the first 4 are the immediate of the verbs. The rest is 0 for a WRITE with
// immediate, so that a SEND with immediate can be told from it.
const sendMark = 1

// PutImmediate writes the payload of an Immediate Data message to the first
// ImmediateLen bytes of b. ofSend is for an immediate that belongs to no WRITE.
func PutImmediate(b []byte, imm uint32, ofSend bool) {
	_ = b[ImmediateLen-1]
	binary.BigEndian.PutUint32(b, imm)
	var mark uint32
	if ofSend {
		mark = sendMark
	}
	binary.BigEndian.PutUint32(b[4:], mark)
}

// ParseImmediate reads it.
func ParseImmediate(b []byte) (imm uint32, ofSend bool) {
	_ = b[ImmediateLen-1]
	return binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]) == sendMark
}
