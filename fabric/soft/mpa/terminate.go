package mpa

import (
	"encoding/binary"
	"fmt"
)

// Layer is who found the error that a Terminate tells of.
type Layer uint8

// Layers.
const (
	LayerRDMAP Layer = iota
	LayerDDP
	LayerLLP
)

// Cause is why a stream is terminated: layer, type and code of a Terminate
// message (RFC 5040, 4.8). 0 is no cause.
type Cause uint16

const causeSet = 1 << 15

// NewCause makes a cause of its parts, of which layer and type have 4 bits on
// the wire and 3 here.
func NewCause(l Layer, kind, code uint8) Cause {
	return causeSet | Cause(l&7)<<12 | Cause(kind&15)<<8 | Cause(code)
}

// Causes, by layer and type.
const (
	RDMAPCatastrophic Cause = causeSet

	RemoteInvalidSTag   Cause = causeSet | 0x0100
	RemoteBounds        Cause = causeSet | 0x0101
	RemoteAccess        Cause = causeSet | 0x0102
	RemoteForeignSTag   Cause = causeSet | 0x0103
	RemoteWrap          Cause = causeSet | 0x0104
	RemoteNoInvalidate  Cause = causeSet | 0x0109
	RemoteUnspecified   Cause = causeSet | 0x01ff
	RDMAPVersion        Cause = causeSet | 0x0205
	UnexpectedOpcode    Cause = causeSet | 0x0206
	StreamCatastrophic  Cause = causeSet | 0x0207
	GlobalCatastrophic  Cause = causeSet | 0x0208
	CannotInvalidate    Cause = causeSet | 0x0209
	OperationUnspecific Cause = causeSet | 0x02ff

	DDPCatastrophic   Cause = causeSet | 0x1000
	TaggedInvalidSTag Cause = causeSet | 0x1100
	TaggedBounds      Cause = causeSet | 0x1101
	TaggedForeignSTag Cause = causeSet | 0x1102
	TaggedWrap        Cause = causeSet | 0x1103
	TaggedVersion     Cause = causeSet | 0x1104
	BadQueue          Cause = causeSet | 0x1201
	NoBuffer          Cause = causeSet | 0x1202
	BadMSN            Cause = causeSet | 0x1203
	BadMO             Cause = causeSet | 0x1204
	MessageTooLong    Cause = causeSet | 0x1205
	UntaggedVersion   Cause = causeSet | 0x1206

	ConnectionLost  Cause = causeSet | 0x2001
	BadCRC          Cause = causeSet | 0x2002
	BadFrame        Cause = causeSet | 0x2003
	BadMPA          Cause = causeSet | 0x2004
	MPACatastrophic Cause = causeSet | 0x2005
	InsufficientIRD Cause = causeSet | 0x2006
	NoRTR           Cause = causeSet | 0x2007
)

var causeNames = map[Cause]string{
	RDMAPCatastrophic: "RDMAP: local catastrophic error",
	RemoteInvalidSTag: "remote protection: invalid STag", RemoteBounds: "remote protection: base or bounds violation",
	RemoteAccess: "remote protection: access rights violation", RemoteForeignSTag: "remote protection: STag of another stream",
	RemoteWrap: "remote protection: TO wraps", RemoteNoInvalidate: "remote protection: STag cannot be invalidated",
	RemoteUnspecified: "remote protection: unspecified",
	RDMAPVersion:      "remote operation: RDMAP version", UnexpectedOpcode: "remote operation: unexpected opcode",
	StreamCatastrophic: "remote operation: catastrophic for the stream", GlobalCatastrophic: "remote operation: catastrophic",
	CannotInvalidate: "remote operation: STag cannot be invalidated", OperationUnspecific: "remote operation: unspecified",
	DDPCatastrophic: "DDP: local catastrophic error", TaggedInvalidSTag: "DDP tagged: invalid STag",
	TaggedBounds: "DDP tagged: base or bounds violation", TaggedForeignSTag: "DDP tagged: STag of another stream",
	TaggedWrap: "DDP tagged: TO wraps", TaggedVersion: "DDP tagged: DDP version",
	BadQueue: "DDP untagged: invalid queue", NoBuffer: "DDP untagged: no buffer is posted", BadMSN: "DDP untagged: invalid MSN",
	BadMO: "DDP untagged: invalid MO", MessageTooLong: "DDP untagged: the message is longer than its buffer",
	UntaggedVersion: "DDP untagged: DDP version",
	ConnectionLost:  "MPA: TCP connection lost", BadCRC: "MPA: CRC error", BadFrame: "MPA: FPDU length",
	BadMPA: "MPA: invalid Request or Reply", MPACatastrophic: "MPA: local catastrophic error",
	InsufficientIRD: "MPA: insufficient IRD", NoRTR: "MPA: no matching RTR frame",
}

// Known says whether a standard has the cause.
func (c Cause) Known() bool { return causeNames[c] != "" }

// Layer is the layer.
func (c Cause) Layer() Layer { return Layer(c >> 12 & 7) }

// Type is the error type.
func (c Cause) Type() uint8 { return uint8(c >> 8 & 15) }

// Code is the error code.
func (c Cause) Code() uint8 { return uint8(c) }

func (c Cause) String() string {
	if s := causeNames[c]; s != "" {
		return s
	}
	if c == 0 {
		return "none"
	}
	return fmt.Sprintf("layer %d, type %d, code %#x", c.Layer(), c.Type(), c.Code())
}

const (
	termM = 0x80 // the segment's length follows
	termD = 0x40 // its DDP header follows
	termR = 0x20 // the Read Request in it follows
	// siw puts the bits and the nibbles of layer and type the other way round.
	siwM, siwD, siwR = 0x01, 0x02, 0x04

	termControlLen = 4
	// MaxTerminate is the longest payload of a Terminate.
	MaxTerminate = termControlLen + LengthLen + UntaggedLen + ReadRequestLen
)

// Terminate is the payload of a Terminate message (RFC 5040, 4.8).
type Terminate struct {
	Cause Cause
	// Other is the cause when the sender has swapped layer and type, as siw
	// does, where the message does not tell; else 0.
	Other Cause
	// Length is that of the offending segment; Header its DDP header, Request
	// the payload of the Read Request it was. Nil when not told.
	Length  uint16
	Header  []byte
	Request []byte
}

func (t *Terminate) String() string {
	if t.Other != 0 {
		return fmt.Sprintf("%v, or %v", t.Cause, t.Other)
	}
	return t.Cause.String()
}

// Append appends the message's payload to b.
func (t *Terminate) Append(b []byte) []byte {
	var flags byte
	if t.Header != nil {
		flags |= termM | termD
	}
	if t.Request != nil {
		flags |= termR
	}
	b = append(b, byte(t.Cause.Layer())<<4|t.Cause.Type(), t.Cause.Code(), flags, 0)
	if t.Header != nil {
		b = binary.BigEndian.AppendUint16(b, t.Length)
		b = append(b, t.Header...)
	}
	return append(b, t.Request...)
}

// Parse reads the message's payload, in the layout of the standard and in that
// of siw. It is false when there is not even a cause. Header and Request are
// parts of b.
func (t *Terminate) Parse(b []byte) bool {
	*t = Terminate{}
	if len(b) < termControlLen {
		return false
	}
	straight := NewCause(Layer(b[0]>>4), b[0]&15, b[1])
	swapped := NewCause(Layer(b[0]&15), b[0]>>4, b[1])
	flags := b[2]
	switch {
	case flags&(termM|termD|termR) != 0:
		t.Cause = straight
	case flags&(siwM|siwD|siwR) != 0:
		t.Cause, flags = swapped, siwFlags(flags)
	case straight.Known() && swapped.Known() && straight != swapped:
		t.Cause, t.Other = straight, swapped
	case swapped.Known():
		t.Cause = swapped
	default:
		t.Cause = straight
	}
	t.parseHeaders(b[termControlLen:], flags)
	return true
}

// siwFlags are siw's flag bits where the standard has them.
func siwFlags(f byte) (flags byte) {
	for siw, std := range map[byte]byte{siwM: termM, siwD: termD, siwR: termR} {
		if f&siw != 0 {
			flags |= std
		}
	}
	return flags
}

// parseHeaders reads what the flags promise, as far as it is there.
func (t *Terminate) parseHeaders(b []byte, flags byte) {
	if flags&termM != 0 && len(b) >= LengthLen {
		t.Length = binary.BigEndian.Uint16(b)
		b = b[LengthLen:]
	}
	if flags&termD != 0 && len(b) > 0 {
		n, cause := HeaderLen(b[0], len(b))
		if cause != 0 {
			return
		}
		t.Header, b = b[:n:n], b[n:]
	}
	if flags&termR != 0 && len(b) >= ReadRequestLen {
		t.Request = b[:ReadRequestLen:ReadRequestLen]
	}
}

// OfRequest says whether the message complains of a Read or Atomic Request, as
// far as it tells.
func (t *Terminate) OfRequest() bool {
	if t.Request != nil {
		return true
	}
	if t.Header == nil {
		c := t.Cause
		return c.Layer() == LayerRDMAP && c.Type() != RDMAPCatastrophic.Type() && c != RemoteNoInvalidate && c != CannotInvalidate
	}
	op := Opcode(t.Header[1] & opcodeMask)
	return op == OpReadRequest || op == OpAtomicRequest
}
