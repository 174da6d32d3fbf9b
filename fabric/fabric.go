// Package fabric says in Go terms what an RDMA device does: the verbs a
// storage transport needs and the connection manager that pairs two queue
// pairs. It knows neither NVMe nor C; providers (verbs, the software RNIC, the
// in-memory twin of package fabrictest) implement it and all pass
// fabrictest.Conformance.
//
// # Ownership
//
// A [QueuePair], a [CompletionQueue] and a [SharedReceiveQueue] belong to one
// goroutine at a time (the owner, in a target its poll group) and take no lock
// of their own that the owner could contend on. A queue pair, its queues and its
// SRQ have the same owner. [Conn.Disconnect],
// [Listener.Close], [Provider] and [Device] methods may be called from any
// goroutine.
//
// # Life of a connection
//
//	Dial, or Request.Accept
//	  -> the provider makes the QP and calls ConnConfig.Setup(qp), from which
//	     on the QP belongs to the owner: post the first receives there
//	  -> the handshake runs; the call returns with the Conn established
//	  -> PostSend, PostRecv, Poll by the owner
//	  -> Disconnect, or the peer's, or an error: the QP goes to the error state,
//	     every posted WR completes with StatusFlushed, ConnConfig.Closed is
//	     called once, Done is closed
//	  -> the owner has polled the last flush, then calls Close
package fabric

import (
	"context"
	"net/netip"
	"time"
)

// Provider is one way to reach RDMA devices: "verbs", "roce", "iwarp",
// "memory". Its methods are safe for concurrent use.
type Provider interface {
	// Name is the provider's name as configuration files spell it.
	Name() string
	// Devices lists the devices the provider can open, without opening them.
	// No device at all is an empty list, not an error.
	Devices() ([]DeviceInfo, error)
	// Open opens the device of that name. Opening the same name twice gives
	// the same Device with one more reference; each wants a Close.
	Open(name string) (Device, error)
	// DeviceFor opens the device that reaches remote, from the local address
	// when that is valid (an invalid one lets routing choose). The error wraps
	// ErrNoDevice when no device of the provider does.
	DeviceFor(ctx context.Context, local, remote netip.Addr) (Device, error)
	// Listen takes connection requests for addr. An unspecified address
	// (0.0.0.0, ::) takes them on every device. The error wraps
	// ErrAddrNotAvailable while the address is not on any device, and
	// ErrAddrInUse when another listener has it.
	Listen(ctx context.Context, addr netip.AddrPort, cfg ListenConfig) (Listener, error)
	// Close releases what the provider holds. Devices and listeners are to be
	// closed before.
	Close() error
}

// ListenConfig configures a Listener.
type ListenConfig struct {
	// Backlog is the number of requests that may wait for Accept; 0 means 128.
	// Requests beyond it are rejected or left to the peer's retry.
	Backlog int
}

// Listener takes connection requests.
type Listener interface {
	// Accept returns the next request. It blocks until there is one, ctx ends,
	// or the listener is closed (an error matching net.ErrClosed).
	Accept(ctx context.Context) (Request, error)
	// Addr is the address listened on, its port filled in when 0 was asked.
	Addr() netip.AddrPort
	// Close stops listening and rejects what waits. Established connections
	// stay. Closing twice is nil.
	Close() error
}

// Request is a peer's wish to connect: the CM REQ of InfiniBand, the MPA
// Request of iWARP. It must end in Accept or Reject.
type Request interface {
	// Device is the device the request came in on. It is open as long as the
	// listener and every connection accepted from it; take a reference of
	// your own with Provider.Open to hold it longer.
	Device() Device
	// PrivateData is the peer's private data without any CM header. A
	// provider whose wire format pads it (IBTA CM: 56 bytes) returns the
	// padded form. Valid until Accept or Reject returns.
	PrivateData() []byte
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	// PeerORD is how many RDMA READs the peer wants to have outstanding
	// towards us (REQ's initiator depth), PeerIRD how many of ours it can
	// answer at a time (REQ's responder resources).
	PeerORD() int
	PeerIRD() int
	// Accept makes a QP and completes the handshake, as the package comment
	// draws it. Private data is what the peer's Conn.PrivateData begins with.
	// When it fails the peer is rejected.
	Accept(ctx context.Context, cfg ConnConfig) (Conn, error)
	// Reject refuses with private data for the consumer (at most 148 bytes).
	Reject(private []byte) error
}

// ConnConfig configures one end of a connection. Depths count WRs.
type ConnConfig struct {
	SendCQ, RecvCQ CompletionQueue // may be the same; required
	// SRQ replaces the QP's own receive queue when not nil; RecvDepth is then
	// ignored and PostRecv of the QP fails.
	SRQ                  SharedReceiveQueue
	SendDepth, RecvDepth int
	// MaxSendSGE and MaxRecvSGE bound the SGEs of one WR; 0 means 1.
	MaxSendSGE, MaxRecvSGE int
	// MaxInline asks for inline sends up to so many bytes. The QP's MaxInline
	// says what was granted.
	MaxInline int
	// ORD is the number of RDMA READs and atomics this end wants outstanding
	// as requester, IRD those it will answer as responder. Both are clipped to
	// the device's limits and to what the peer offered; Conn.ORD and Conn.IRD
	// say the result.
	ORD, IRD int
	// RetryCount and RNRRetry as of IBTA vol 1, 9.7.5.1: 0 to 7, where an
	// RNRRetry of 7 means for ever. RNRRetry is what the peer's QP will do
	// when this end has no receive posted, as far as the CM carries it.
	RetryCount, RNRRetry uint8
	// PrivateData goes to the peer with the request or the reply.
	PrivateData []byte
	// Setup is called once, after the QP exists and before the peer may send
	// on it. From then on the QP belongs to the owner. An error fails the
	// connection attempt. May be nil only when no receive is ever posted by
	// the QP's owner before traffic.
	Setup func(QueuePair) error
	// Closed is called once, from a goroutine of the provider that must not be
	// blocked, when a connection that was set up leaves the connected state;
	// err is what Conn.Err returns. It is also called when the handshake fails
	// after Setup: the provider then destroys the QP, and whether its WRs are
	// flushed before is not said. May be nil.
	Closed func(err error)
	// TrafficClass is the DSCP/TOS byte of the connection's packets, where the
	// provider can set it.
	TrafficClass uint8
}

// Conn is an established, reliable connection of two queue pairs.
type Conn interface {
	Device() Device
	QueuePair() QueuePair
	// PrivateData is what the peer's accept carried (for the side that
	// dialled; nil at the accepting side, which saw it in Request).
	PrivateData() []byte
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
	// ORD is the number of RDMA READs and atomics this end may have
	// outstanding; IRD the number the peer may.
	ORD() int
	IRD() int
	// Done is closed when the connection has left the connected state.
	Done() <-chan struct{}
	// Err is nil while connected, then the cause: an error matching
	// net.ErrClosed after an orderly disconnect of either side.
	Err() error
	// Disconnect starts an orderly end: the QP goes to the error state, each
	// posted WR completes (flushed), the peer is told. It does not wait and
	// may be called from any goroutine and more than once.
	Disconnect() error
	// Close destroys the QP. The owner calls it after the last flush
	// completion was polled; completions not polled by then are lost.
	// Closing twice is nil.
	Close() error
}

// Device is an opened RDMA device. It has one implicit protection domain:
// every region, queue and QP made from it belong together.
type Device interface {
	Name() string
	Info() DeviceInfo
	Limits() Limits
	// Register makes m available to the device with the rights of a. Local
	// reads are always allowed. The region must be closed before m.
	Register(m *Memory, a Access) (MemoryRegion, error)
	// NewCompletionQueue makes a CQ for depth completions. notify, when not
	// nil, is called once for each Arm, when a completion is added after it
	// (or was there already). It is called from any goroutine, the owner's
	// inside Arm, Poll and the posts among them; it must not block and must
	// not call the CQ.
	NewCompletionQueue(depth int, notify func()) (CompletionQueue, error)
	// NewSharedReceiveQueue makes an SRQ, or fails with ErrNotSupported.
	NewSharedReceiveQueue(depth, maxSGE int) (SharedReceiveQueue, error)
	// Dial connects to remote, from local when that is valid. A refusal is a
	// *RejectError; ctx bounds the whole attempt.
	Dial(ctx context.Context, local, remote netip.AddrPort, cfg ConnConfig) (Conn, error)
	// Events delivers asynchronous events of the device. The channel is
	// closed with the device; when nobody reads, the newest are dropped.
	Events() <-chan Event
	// Counts says how many objects of the device are open, for leak tests and
	// metrics.
	Counts() ObjectCounts
	// Close gives back one reference; the last fails with ErrBusy while
	// regions, queues or connections are open.
	Close() error
}

// ObjectCounts are the open objects of a device.
type ObjectCounts struct {
	QPs, CQs, SRQs, MRs int
}

// MemoryRegion is registered memory. Keys are numbers of the wire: an SGE
// names the LKey, the peer names the RKey.
type MemoryRegion interface {
	LKey() uint32
	RKey() uint32
	Memory() *Memory
	// Close ends the keys' validity before it returns.
	Close() error
}

// QueuePair is one end of a connection. One goroutine owns it.
type QueuePair interface {
	// Num is the QP number, unique on the device while the QP lives.
	Num() uint32
	State() QPState
	// MaxInline is the largest payload FlagInline is allowed for; 0 is none.
	MaxInline() int
	// PostSend posts wrs in order. A WR's SGEs are
	// sges[FirstSGE:FirstSGE+NumSGE]. It returns how many were posted; with
	// fewer than len(wrs) the error says why the next was not (ErrQueueFull
	// among others). Both slices may be reused on return; the memory the SGEs
	// name may not until the WR's completion, or the completion of a later WR
	// when this one is unsignaled. RDMA READs beyond Conn.ORD wait in the
	// queue; with an ORD of 0 posting one fails. In the error state WRs are
	// either taken, to be flushed, or refused with ErrQPError.
	PostSend(wrs []SendWR, sges []SGE) (int, error)
	// PostRecv posts receives, as PostSend does sends.
	PostRecv(wrs []RecvWR, sges []SGE) (int, error)
}

// SharedReceiveQueue serves the receives of many QPs. One goroutine owns it.
type SharedReceiveQueue interface {
	PostRecv(wrs []RecvWR, sges []SGE) (int, error)
	// Close fails with ErrBusy while a QP uses the SRQ.
	Close() error
}

// CompletionQueue collects completions. One goroutine owns it.
type CompletionQueue interface {
	// Poll takes up to len(wc) completions and never blocks. A provider in
	// software makes its progress in here: sockets are read, timers run and
	// acknowledgements leave, so the owner has to poll while it has anything
	// outstanding, or Arm and wait.
	Poll(wc []Completion) (int, error)
	// Arm asks for one call of notify at the next completion. Poll once more
	// after Arm and before sleeping. A software provider also calls notify
	// when it needs a Poll to make progress (a packet came, a timer is due).
	Arm() error
	// Close fails with ErrBusy while a QP uses the CQ.
	Close() error
}

// MemoryWindower is implemented by devices with type 2 memory windows (IBTA
// vol 1, 10.6.7.2.2): keys that a WR binds and a remote SEND with invalidate
// or a local invalidate ends. Devices without it fail conformance's
// invalidation part with a skip that says so.
type MemoryWindower interface {
	NewMemoryWindow() (MemoryWindow, error)
}

// MemoryWindow is a type 2 memory window, or a fast-registered region where
// that is what the device has.
type MemoryWindow interface {
	// RKey is the key of the latest bind.
	RKey() uint32
	Close() error
}

// WindowBinder is implemented by QPs of a MemoryWindower.
type WindowBinder interface {
	// PostBind posts a bind of w to [off, off+n) of mr with the remote rights
	// of a, as a send WR with that id; the new key is valid for the peer once
	// the bind has completed, and is returned at once so that a SEND posted
	// behind it can carry it.
	PostBind(w MemoryWindow, mr MemoryRegion, off, n int, a Access, id uint64, f SendFlags) (rkey uint32, err error)
}

// Atomics is implemented by QPs of devices that have Limits.Atomics.
type Atomics interface {
	// PostAtomic posts 8-byte atomics in order, as PostSend posts sends. The
	// original value lands in the one SGE, in host byte order.
	PostAtomic(wrs []AtomicWR, sges []SGE) (int, error)
}

// AtomicWR is an atomic operation on 8 bytes, naturally aligned, of the
// peer's memory (IBTA vol 1, 9.4.5).
type AtomicWR struct {
	ID         uint64
	RemoteAddr uint64
	Compare    uint64 // OpCompareSwap only
	SwapAdd    uint64 // the new value, or the addend
	RKey       uint32
	FirstSGE   uint32
	Op         Opcode // OpCompareSwap or OpFetchAdd
	Flags      SendFlags
	_          [6]byte
}

// SGE names registered memory, in the layout of struct ibv_sge (16 bytes).
type SGE struct {
	Addr   uint64 // Memory.Addr() plus an offset
	Length uint32 // bytes
	LKey   uint32
}

// SendWR is a work request of the send queue: 32 bytes without a pointer, so
// that a batch crosses into C unscanned.
type SendWR struct {
	ID         uint64
	RemoteAddr uint64 // RDMA READ and WRITE
	RKey       uint32 // RDMA READ and WRITE; the key to end for the invalidates
	Imm        uint32 // host order; the WithImm operations
	FirstSGE   uint32 // index into the SGE slice given with it
	NumSGE     uint8
	Op         Opcode
	Flags      SendFlags
	_          uint8
}

// RecvWR is a work request of a receive queue (16 bytes).
type RecvWR struct {
	ID       uint64
	FirstSGE uint32
	NumSGE   uint8
	_        [3]uint8
}

// Completion is a work completion (32 bytes). When Status is not success only
// ID, QPN, Status and Vendor mean anything, as with ibv_wc.
type Completion struct {
	ID      uint64
	QPN     uint32
	ByteLen uint32 // received bytes, or bytes read
	// Imm is the immediate (host order) with CompletionImm, the invalidated
	// key with CompletionInvalidated.
	Imm    uint32
	Vendor uint32 // the provider's own error number
	Status Status
	Op     Opcode // of the WR; OpRecv, or OpRecvWriteImm, for receives
	Flags  CompletionFlags
	_      uint8
	SrcQPN uint32 // the sender, with CompletionGRH
}

// Limits are a device's limits. Zero means "not offered".
type Limits struct {
	MaxQP, MaxCQ, MaxMR, MaxSRQ int
	MaxQPDepth                  int // WRs of one queue
	MaxCQDepth                  int
	MaxSRQDepth                 int
	MaxSGE                      int // per send or receive WR
	MaxReadSGE                  int // per RDMA READ
	MaxInline                   int
	MaxORD, MaxIRD              int // RDMA READs per QP as requester, as responder
	MaxMRSize                   uint64
	MaxMessage                  uint32 // bytes
	Atomics                     bool
	MemoryWindows               bool
	// UnreliableConnections and Datagrams say that the device is an
	// UnreliableConnector, a DatagramDevice.
	UnreliableConnections, Datagrams bool
	// SendInvalidate says that SEND with invalidate works as requester.
	SendInvalidate bool
	// InvalidateUntold says that a receive does not tell of a SEND with
	// invalidate (CompletionInvalidated): who hands out keys for others to end
	// cannot know which are still alive.
	InvalidateUntold bool
	// RNR says that a SEND that meets no receive is retried rather than fatal
	// (InfiniBand and RoCE; not iWARP).
	RNR bool
	// SendsInPoll says that what is posted leaves in the owner's next Poll or
	// Arm, all at once (RNICs in software). Who has much to post can post a part,
	// poll, and post the rest: the peer begins with the part meanwhile.
	SendsInPoll bool
	// ReadNeedsRemoteWrite says that the sink of an RDMA READ must be
	// registered with AccessRemoteWrite (iWARP, RFC 5040 section 5.2.1).
	ReadNeedsRemoteWrite bool
}

// Transport is what a device speaks on the wire.
type Transport uint8

// Transports.
const (
	TransportUnknown Transport = iota
	TransportInfiniBand
	TransportRoCE
	TransportIWARP
	TransportMemory
)

// DeviceInfo describes a device to a person.
type DeviceInfo struct {
	Name      string
	Provider  string
	Transport Transport
	GUID      uint64
	Firmware  string
	Vendor    uint32
	NetDev    string // network interface, when there is one
	Addrs     []netip.Addr
	PortUp    bool
	MTU       int // path MTU limit in bytes, 0 when unknown
	Limits    Limits
	// Note says what a user should know of the device: why it cannot be
	// opened, or which options are at work.
	Note string
}

// EventKind is the kind of an asynchronous event.
type EventKind uint8

// Event kinds (IBTA vol 1, 11.6.3; rdma_cm for the last two).
const (
	EventUnknown EventKind = iota
	EventPortUp
	EventPortDown
	EventDeviceFatal
	EventDeviceRemoved
	EventGIDChange
	EventAddrChange
)

// Event is an asynchronous event of a device.
type Event struct {
	Kind   EventKind
	Device string
	Port   uint8
	Time   time.Time
}
