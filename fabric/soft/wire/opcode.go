package wire

import "fmt"

// Opcode is the first byte of the BTH: the transport service in the upper
// three bits, the operation in the lower five (IBTA vol 1, table 38).
type Opcode uint8

// Reliable connection opcodes.
const (
	OpSendFirst     Opcode = 0x00
	OpSendMiddle    Opcode = 0x01
	OpSendLast      Opcode = 0x02
	OpSendLastImm   Opcode = 0x03
	OpSendOnly      Opcode = 0x04
	OpSendOnlyImm   Opcode = 0x05
	OpWriteFirst    Opcode = 0x06
	OpWriteMiddle   Opcode = 0x07
	OpWriteLast     Opcode = 0x08
	OpWriteLastImm  Opcode = 0x09
	OpWriteOnly     Opcode = 0x0a
	OpWriteOnlyImm  Opcode = 0x0b
	OpReadRequest   Opcode = 0x0c
	OpReadRespFirst Opcode = 0x0d
	OpReadRespMid   Opcode = 0x0e
	OpReadRespLast  Opcode = 0x0f
	OpReadRespOnly  Opcode = 0x10
	OpAck           Opcode = 0x11
	OpAtomicAck     Opcode = 0x12
	OpCmpSwap       Opcode = 0x13
	OpFetchAdd      Opcode = 0x14
	OpSendLastInv   Opcode = 0x16
	OpSendOnlyInv   Opcode = 0x17
)

// Opcodes of the other services.
const (
	UC              Opcode = 0x20 // unreliable connection: or-ed with 0x00 to 0x0b
	OpUDSendOnly    Opcode = 0x64
	OpUDSendOnlyImm Opcode = 0x65
	OpCNP           Opcode = 0x81 // congestion notification packet, RoCEv2 annex A17
)

// Service is the upper three bits of an opcode.
func (o Opcode) Service() Opcode { return o & 0xe0 }

// Kind is what an opcode asks for or answers, whatever its place in the
// message.
type Kind uint8

// Kinds. KindNone is an opcode that nobody defines.
const (
	KindNone Kind = iota
	KindSend
	KindWrite
	KindRead
	KindAtomic
	KindReadResponse
	KindAck
	KindAtomicAck
	KindCNP
)

// Attr are properties of an opcode.
type Attr uint16

// Attributes. An Only has both Start and End.
const (
	Start   Attr = 1 << iota // begins a message
	End                      // ends a message
	Payload                  // may carry payload
	HasRETH                  // has the header of that name, and so on
	HasAETH
	HasAtomicETH
	HasAtomicAck
	HasImm
	HasIETH
	HasDETH
	Request // goes to a responder
)

// Lengths in bytes.
const (
	BTHLen       = 12
	RETHLen      = 16
	AETHLen      = 4
	AtomicETHLen = 28
	AtomicAckLen = 8
	ImmLen       = 4
	IETHLen      = 4
	DETHLen      = 8
	ICRCLen      = 4
	// MaxHeader is the longest run of headers, BTH included (atomics).
	MaxHeader = BTHLen + AtomicETHLen
)

// Info describes an opcode.
type Info struct {
	Kind  Kind
	Attr  Attr
	ExtAt uint8 // offset of the second extended header: ImmDt, IETH, AtomicAckETH
	Len   uint8 // of all headers, BTH included
	name  string
}

// Has says whether all of a are attributes of the opcode.
func (i *Info) Has(a Attr) bool { return i.Attr&a == a }

// Info is the description of the opcode; its Kind is KindNone when the opcode
// is not defined.
func (o Opcode) Info() *Info { return &opcodes[o] }

// Len is the length of all headers of a packet with the opcode, in bytes.
func (o Opcode) Len() int { return int(opcodes[o].Len) }

func (o Opcode) String() string {
	if n := opcodes[o].name; n != "" {
		return n
	}
	return fmt.Sprintf("opcode 0x%02x", uint8(o))
}

var opcodes = func() (t [256]Info) {
	only := Start | End
	set := func(o Opcode, k Kind, a Attr, name string) {
		first, second := extLengths(a)
		t[o] = Info{k, a, uint8(BTHLen + first), uint8(BTHLen + first + second), name}
	}
	for _, s := range []struct {
		base Opcode
		name string
	}{{0, "RC "}, {UC, "UC "}} {
		set(s.base|OpSendFirst, KindSend, Request|Payload|Start, s.name+"SEND First")
		set(s.base|OpSendMiddle, KindSend, Request|Payload, s.name+"SEND Middle")
		set(s.base|OpSendLast, KindSend, Request|Payload|End, s.name+"SEND Last")
		set(s.base|OpSendLastImm, KindSend, Request|Payload|End|HasImm, s.name+"SEND Last with Immediate")
		set(s.base|OpSendOnly, KindSend, Request|Payload|only, s.name+"SEND Only")
		set(s.base|OpSendOnlyImm, KindSend, Request|Payload|only|HasImm, s.name+"SEND Only with Immediate")
		set(s.base|OpWriteFirst, KindWrite, Request|Payload|Start|HasRETH, s.name+"WRITE First")
		set(s.base|OpWriteMiddle, KindWrite, Request|Payload, s.name+"WRITE Middle")
		set(s.base|OpWriteLast, KindWrite, Request|Payload|End, s.name+"WRITE Last")
		set(s.base|OpWriteLastImm, KindWrite, Request|Payload|End|HasImm, s.name+"WRITE Last with Immediate")
		set(s.base|OpWriteOnly, KindWrite, Request|Payload|only|HasRETH, s.name+"WRITE Only")
		set(s.base|OpWriteOnlyImm, KindWrite, Request|Payload|only|HasRETH|HasImm, s.name+"WRITE Only with Immediate")
	}
	set(OpReadRequest, KindRead, Request|only|HasRETH, "RC READ Request")
	set(OpReadRespFirst, KindReadResponse, Payload|Start|HasAETH, "RC READ Response First")
	set(OpReadRespMid, KindReadResponse, Payload, "RC READ Response Middle")
	set(OpReadRespLast, KindReadResponse, Payload|End|HasAETH, "RC READ Response Last")
	set(OpReadRespOnly, KindReadResponse, Payload|only|HasAETH, "RC READ Response Only")
	set(OpAck, KindAck, only|HasAETH, "RC Acknowledge")
	set(OpAtomicAck, KindAtomicAck, only|HasAETH|HasAtomicAck, "RC ATOMIC Acknowledge")
	set(OpCmpSwap, KindAtomic, Request|only|HasAtomicETH, "RC CmpSwap")
	set(OpFetchAdd, KindAtomic, Request|only|HasAtomicETH, "RC FetchAdd")
	set(OpSendLastInv, KindSend, Request|Payload|End|HasIETH, "RC SEND Last with Invalidate")
	set(OpSendOnlyInv, KindSend, Request|Payload|only|HasIETH, "RC SEND Only with Invalidate")
	set(OpUDSendOnly, KindSend, Request|Payload|only|HasDETH, "UD SEND Only")
	set(OpUDSendOnlyImm, KindSend, Request|Payload|only|HasDETH|HasImm, "UD SEND Only with Immediate")
	set(OpCNP, KindCNP, Payload|only, "CNP")
	return t
}()

// extLengths are the lengths of the first and the second extended header. No
// opcode has three.
func extLengths(a Attr) (first, second int) {
	for _, h := range []struct {
		a Attr
		n int
	}{{HasRETH, RETHLen}, {HasAETH, AETHLen}, {HasAtomicETH, AtomicETHLen}, {HasDETH, DETHLen}} {
		if a&h.a != 0 {
			first = h.n
		}
	}
	switch {
	case a&HasImm != 0:
		second = ImmLen
	case a&HasIETH != 0:
		second = IETHLen
	case a&HasAtomicAck != 0:
		second = AtomicAckLen
	}
	return first, second
}
