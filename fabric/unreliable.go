package fabric

import (
	"encoding/binary"
	"net/netip"
)

// The unreliable services of InfiniBand and RoCE (IBTA vol 1, 9.8) are optional:
// a device that has one says so in its Limits and implements the interface of
// that name. iWARP has neither, for RDMAP knows connected streams only.
//
// Nothing is acknowledged. A send WR completes when the device has taken its
// message, whether it arrives or not, and what a receiver cannot use is dropped
// without a word to the sender: it is counted where the QP is a [DropCounter].
//
// No connection manager has a part in this. The ends learn each other's
// addresses, QP numbers and Q_Keys by means of their own, as verbs programs do,
// and close their QPs when they want.
//
//	NewUnreliableQP -> INIT -- Connect --> RTS        NewDatagramQP -> RTS
//	RTS -- a send WR fails --> SQE -- Recover --> RTS
//	any of them -- Stop, or a receive WR fails --> ERR -> Close
//
// In SQE (IBTA vol 1, 10.3.1) the WRs of the send queue behind the one that
// failed are flushed, and so are those that are posted; receiving goes on.

// UnreliableConnector is implemented by devices with
// Limits.UnreliableConnections. They carry SEND and RDMA WRITE, each with
// immediate or without, of up to Limits.MaxMessage. A message that has lost a
// packet is dropped as a whole, though what was written by an RDMA WRITE before
// the loss stays (IBTA vol 1, 9.8.2).
type UnreliableConnector interface {
	// NewUnreliableQP makes a QP in the INIT state: receives may be posted. It
	// fails with ErrNotSupported, or as the making of a QP for a connection
	// does.
	NewUnreliableQP(cfg UnreliableConfig) (UnreliableQP, error)
}

// DatagramDevice is implemented by devices with Limits.Datagrams. A datagram is
// one packet: a SEND, with immediate or without, to any QP of the service whose
// Q_Key the sender knows.
type DatagramDevice interface {
	// NewDatagramQP makes a QP in the RTS state. Only messages with that Q_Key
	// are received. One with the upper bit set is refused with ErrInvalid:
	// those belong to privileged users (IBTA vol 1, 10.2.5).
	NewDatagramQP(cfg UnreliableConfig, qkey uint32) (DatagramQP, error)
	// NewAddressHandle makes the way to a device, by its address; trafficClass
	// is as in ConnConfig. It must not be closed before the WRs that name it
	// have completed. The error wraps ErrUnreachable for an address of another
	// family, ErrQueueFull when there are too many.
	NewAddressHandle(to netip.Addr, trafficClass uint8) (AddressHandle, error)
}

// UnreliableConfig configures a QP of an unreliable service; the fields mean
// what they mean in ConnConfig.
type UnreliableConfig struct {
	SendCQ, RecvCQ         CompletionQueue
	SRQ                    SharedReceiveQueue
	SendDepth, RecvDepth   int
	MaxSendSGE, MaxRecvSGE int
	MaxInline              int
	TrafficClass           uint8 // of a connection; datagrams have that of the address handle
}

// Stopper is what QPs without a connection manager have in its place.
type Stopper interface {
	// Recover takes the QP from SQE to RTS, once the send queue was flushed.
	// In any other state it fails with ErrInvalid. The owner calls it.
	Recover() error
	// Stop takes the QP to the error state: every posted WR completes with
	// StatusFlushed. Any goroutine may call it, and more than once.
	Stop() error
	// Close destroys the QP; completions not polled by then are lost. The
	// owner calls it; closing twice is nil.
	Close() error
}

// UnreliableQP is a QP of the unreliable connection service (UC). PostSend
// refuses other operations than SEND, WRITE and these with immediate with
// ErrInvalid.
type UnreliableQP interface {
	QueuePair
	Stopper
	// Connect takes the QP from INIT through RTR to RTS. What the peer sends
	// before is dropped. It fails with ErrInvalid for attributes out of range
	// or in another state than INIT, with ErrUnreachable for an address that
	// the device does not reach. The owner calls it.
	Connect(UnreliablePeer) error
}

// UnreliablePeer is what a UC QP has to know of its peer.
type UnreliablePeer struct {
	Addr netip.Addr // of the peer's device
	QPN  uint32
	// SendPSN is the sequence number of our first packet, RecvPSN that of the
	// peer's: 24 bits, each the other one's at the peer.
	SendPSN, RecvPSN uint32
	// MTU is the path MTU in bytes: 256, 512, 1024, 2048 or 4096, the same at
	// both ends. 0 is the largest of the device.
	MTU int
}

// DatagramQP is a QP of the unreliable datagram service (UD). PostSend fails
// with ErrInvalid: a datagram says where it goes.
//
// A receive holds GRHLen bytes in front of the message, its completion has
// CompletionGRH, a ByteLen that counts them, and SrcQPN. A message for which the
// receive has no room is dropped.
type DatagramQP interface {
	QueuePair
	Stopper
	// PostDatagrams posts sends, as PostSend does. A message longer than
	// MaxDatagram and a handle that is not open are refused with ErrInvalid.
	PostDatagrams(wrs []DatagramWR, sges []SGE) (int, error)
	// MaxDatagram is the longest message in bytes: the path MTU of the port
	// when the QP was made.
	MaxDatagram() int
}

// AddressHandle is the way to a device for datagrams.
type AddressHandle interface {
	// Num is what DatagramWR.Handle names it by; never 0.
	Num() uint32
	Addr() netip.Addr
	// Close ends it. Closing twice is nil.
	Close() error
}

// DatagramWR is a send of a datagram: 32 bytes without a pointer.
type DatagramWR struct {
	ID     uint64
	Handle uint32 // AddressHandle.Num
	QPN    uint32 // of the receiver
	// QKey is the receiver's. With the upper bit set the sender's own goes
	// instead (IBTA vol 1, 10.2.5).
	QKey     uint32
	Imm      uint32 // host order; OpSendImm
	FirstSGE uint32
	NumSGE   uint8
	Op       Opcode // OpSend or OpSendImm
	Flags    SendFlags
	_        uint8
}

// Drops are the messages and packets that a QP received and did not deliver.
type Drops struct {
	QKey      uint64 // datagrams with another Q_Key
	NoReceive uint64 // messages that met no receive
	TooLong   uint64 // messages that did not fit their receive
	Lost      uint64 // messages with a packet missing, or packets of them
	Access    uint64 // RDMA WRITEs that their key, range or rights did not allow
	Malformed uint64 // packets that cannot be: of other services, sizes, states
}

// DropCounter is implemented by QPs of unreliable services that know what they
// dropped. The owner calls it.
type DropCounter interface{ Drops() Drops }

// GRHLen is the room in front of a received datagram: a global route header
// (IBTA vol 1, 8.3), which on RoCEv2 is the IPv6 header of the packet, or 20
// bytes of no meaning and its IPv4 header (annex A17).
const GRHLen = 40

// ParseGRH reads the addresses in the first GRHLen bytes of a receive with
// CompletionGRH. It is false when they have neither form. The bytes do not say
// which they have: those without meaning may look like an IPv6 header, and then
// it is an IPv4 header if the checksum of that is right.
func ParseGRH(b []byte) (src, dst netip.Addr, ok bool) {
	if len(b) < GRHLen {
		return src, dst, false
	}
	v4, v6 := b[20:GRHLen], b[0]>>4 == 6
	switch {
	case v4[0] == 0x45 && (!v6 || headerSum(v4) == 0xffff): // rxe computes no checksum for a packet to itself
		return netip.AddrFrom4([4]byte(v4[12:])), netip.AddrFrom4([4]byte(v4[16:])), true
	case v6:
		return netip.AddrFrom16([16]byte(b[8:])).Unmap(), netip.AddrFrom16([16]byte(b[24:])).Unmap(), true
	}
	return src, dst, false
}

// headerSum is the one's complement sum of an IPv4 header of 20 bytes, 0xffff
// when its checksum is right (RFC 791, 3.1).
func headerSum(b []byte) uint32 {
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	return sum>>16 + sum&0xffff
}
