package mpa

import (
	"encoding/binary"
	"fmt"
)

// Opcode is the operation of an RDMAP message (RFC 5040, 4.3; RFC 7306, 5).
type Opcode uint8

// Opcodes.
const (
	OpWrite          Opcode = 0x0
	OpReadRequest    Opcode = 0x1
	OpReadResponse   Opcode = 0x2
	OpSend           Opcode = 0x3
	OpSendInv        Opcode = 0x4 // Send with Invalidate
	OpSendSE         Opcode = 0x5 // with Solicited Event
	OpSendSEInv      Opcode = 0x6
	OpTerminate      Opcode = 0x7
	OpImmediate      Opcode = 0x8
	OpImmediateSE    Opcode = 0x9
	OpAtomicRequest  Opcode = 0xa
	OpAtomicResponse Opcode = 0xb
	numOpcodes              = 0xc
)

// Queue numbers of untagged messages.
const (
	QueueSend = iota
	QueueRequest
	QueueTerminate
	QueueAtomicResponse
)

const tagged = -1

var opcodes = [numOpcodes]struct {
	name  string
	queue int // or tagged
}{
	{"RDMA Write", tagged}, {"Read Request", QueueRequest}, {"Read Response", tagged},
	{"Send", QueueSend}, {"Send with Invalidate", QueueSend}, {"Send with SE", QueueSend}, {"Send with SE and Invalidate", QueueSend},
	{"Terminate", QueueTerminate}, {"Immediate Data", QueueSend}, {"Immediate Data with SE", QueueSend},
	{"Atomic Request", QueueRequest}, {"Atomic Response", QueueAtomicResponse},
}

func (o Opcode) String() string {
	if o < numOpcodes {
		return opcodes[o].name
	}
	return fmt.Sprintf("Opcode(%#x)", uint8(o))
}

// Tagged says whether messages of the opcode name their buffer.
func (o Opcode) Tagged() bool { return o < numOpcodes && opcodes[o].queue == tagged }

// Queue is the queue of an untagged opcode.
func (o Opcode) Queue() uint32 { return uint32(opcodes[o].queue) }

// Invalidates says whether the opcode ends an STag of the receiver.
func (o Opcode) Invalidates() bool { return o == OpSendInv || o == OpSendSEInv }

const (
	// TaggedLen is the length of the DDP header of a tagged message.
	TaggedLen = 14
	// UntaggedLen is that of an untagged one.
	UntaggedLen = 18
	// MaxHeader is the longest beginning of an FPDU that is not payload.
	MaxHeader  = LengthLen + UntaggedLen
	controlLen = 2

	ddpTagged   = 0x80
	ddpLast     = 0x40
	versionMask = 0x03
	ddpVersion  = 0x01
	rdmapShift  = 6
	rdmapOne    = 0x01 << rdmapShift
	opcodeMask  = 0x0f
)

// Header is the DDP header of a segment and the RDMAP control field in it.
type Header struct {
	Op   Opcode
	Last bool // the last segment of its message

	// STag is the buffer of a tagged segment; of an untagged one what a Send
	// with Invalidate ends.
	STag uint32
	TO   uint64 // tagged: where the payload goes
	// Untagged: queue, message and offset of the payload in the message.
	QN, MSN, MO uint32
}

// Len is the length of the header.
func (h *Header) Len() int {
	if h.Op.Tagged() {
		return TaggedLen
	}
	return UntaggedLen
}

// Put writes the header of an opcode that there is to b, and returns its
// length. QN is that of the opcode.
func (h *Header) Put(b []byte) int {
	control := byte(ddpVersion)
	if h.Last {
		control |= ddpLast
	}
	if h.Op.Tagged() {
		_ = b[TaggedLen-1]
		b[0], b[1] = control|ddpTagged, rdmapOne|byte(h.Op)
		binary.BigEndian.PutUint32(b[2:], h.STag)
		binary.BigEndian.PutUint64(b[6:], h.TO)
		return TaggedLen
	}
	_ = b[UntaggedLen-1]
	b[0], b[1] = control, rdmapOne|byte(h.Op)
	binary.BigEndian.PutUint32(b[2:], h.STag)
	binary.BigEndian.PutUint32(b[6:], h.Op.Queue())
	binary.BigEndian.PutUint32(b[10:], h.MSN)
	binary.BigEndian.PutUint32(b[14:], h.MO)
	return UntaggedLen
}

// HeaderLen is the length of the DDP header that a ULPDU of n bytes begins
// with, from its first byte. The cause is BadFrame when it does not fit.
func HeaderLen(first byte, n int) (int, Cause) {
	want := UntaggedLen
	if first&ddpTagged != 0 {
		want = TaggedLen
	}
	if n < want {
		return 0, BadFrame
	}
	return want, 0
}

// Parse reads the header at the beginning of b, which has as many bytes as
// HeaderLen says. The cause, when there is one, is what to terminate the stream
// with (RFC 5040, 7.1 and 7.2).
func (h *Header) Parse(b []byte) Cause {
	isTagged := b[0]&ddpTagged != 0
	op := Opcode(b[1] & opcodeMask)
	*h = Header{Op: op, Last: b[0]&ddpLast != 0, STag: binary.BigEndian.Uint32(b[2:])}
	switch {
	case isTagged && b[0]&versionMask != ddpVersion:
		return TaggedVersion
	case b[0]&versionMask != ddpVersion:
		return UntaggedVersion
	case b[1]>>rdmapShift != rdmapOne>>rdmapShift:
		return RDMAPVersion
	case op >= numOpcodes || op.Tagged() != isTagged:
		return UnexpectedOpcode
	case isTagged:
		h.TO = binary.BigEndian.Uint64(b[6:])
		return 0
	}
	h.QN, h.MSN, h.MO = binary.BigEndian.Uint32(b[6:]), binary.BigEndian.Uint32(b[10:]), binary.BigEndian.Uint32(b[14:])
	if h.QN != op.Queue() {
		return BadQueue
	}
	return 0
}
