package target

import (
	"net/netip"

	"github.com/nvmf-go/nvmf/nvme"
)

// This file is the seam between the core and a transport. The core knows
// commands, controllers and namespaces; a transport (target/rdma) knows
// connections, capsules and how data moves.
//
// A transport has poll groups. Each owns a [Group] of the core and the queues
// in it; every method of Group and Queue is called by that owner alone.
//
//	capsule received   -> fill Request.Cmd and SGLLength
//	Queue.Prepare(r)   -> checks; says what data moves (or a final status:
//	                      then the transport responds with r.Result and r.Status)
//	transport          -> finds buffers for Transfer.Length and Transfer.Scratch,
//	                      and fetches the data when Dir is HostToController;
//	                      none of it when Transfer.Lent
//	Queue.Execute(r)   -> runs it; ends, now or later, in Link.Complete(r)
//	Link.Complete(r)   -> the transport moves r.DataLength bytes to the host
//	                      when Dir is ControllerToHost and the status is success,
//	                      and sends the CQE (Queue.SQHD gives its SQHD)
//	Queue.Release(r)   -> when it was Lent: the data has been sent, or never will be

// Link is a transport's end of a queue.
type Link interface {
	// Complete ends r, with r.Result, r.Status and r.DataLength set. It is
	// called by the queue's owner, exactly once for each Execute, possibly
	// from inside Execute.
	Complete(r *Request)
	// Disconnect ends the connection for the given reason, from any goroutine
	// and at any time. The transport then calls Queue.Close as the owner, but
	// never from inside Disconnect: the core may hold locks.
	Disconnect(reason error)
	// Run runs fn on the owner's goroutine, soon, in order. It may be called
	// from any goroutine. It is false when the owner has ended: fn will not run.
	Run(fn func()) bool
	// Abort looks for a request with that cid that the transport has accepted
	// but not given to Execute yet (it waits for a buffer or for its data and
	// nothing of it is moving), ends it with Abort Requested, and says whether
	// it found one. Called by the owner.
	Abort(cid uint16) bool
	// Peer describes the host's end for logs and status.
	Peer() netip.AddrPort
	// Local is the address the host connected to, for discovery entries of
	// listeners whose own address is unspecified. It is constant.
	Local() netip.AddrPort
}

// Direction is the direction of a command's data.
type Direction uint8

// Directions.
const (
	NoData Direction = iota
	HostToController
	ControllerToHost
)

// Transfer is what Prepare found a command to need.
type Transfer struct {
	Dir Direction
	// Length is the number of data bytes. HostToController: to be in
	// Request.Bufs at Execute. ControllerToHost: the most the command will
	// return; Request.Bufs must have room for it.
	Length uint32
	// Scratch is the size in bytes of working memory the command wants beside
	// its data (Compare, Verify). Request.Scratch must have that size at
	// Execute.
	Scratch uint32
	// Lent says that the data is there already, in memory of the backend that
	// Request.Loan names: the command wants no buffers. The transport calls
	// Queue.Release when nothing reads that memory any more.
	Lent bool
}

// Request is one command from its capsule to its response. Transports embed it
// in their slots; it is reused and never allocated per I/O.
type Request struct {
	// Set by the transport before Prepare.

	// Cmd is the SQE. It must not change until Complete.
	Cmd nvme.Command
	// SGLLength is how many bytes the command's SGL describes in all.
	SGLLength uint64
	// Loan is room for pieces of the backend's own memory that a read may be
	// answered from (backend.Lender): its capacity is the most pieces that the
	// transport can send from. nil is none. After a Prepare with Transfer.Lent
	// it holds the pieces, until Release.
	Loan [][]byte

	// Set by the transport before Execute; their lengths add up to
	// Transfer.Length and Transfer.Scratch. Every element is a multiple of 512
	// bytes but the last. The owner of the memory is the transport; it stays
	// until Complete (with data for the host: until it has been sent).
	Bufs    [][]byte
	Scratch [][]byte

	// Set by the core before Complete.

	Result     uint64      // CQE dwords 0 and 1
	Status     nvme.Status // 0 is success
	DataLength uint32      // bytes of Bufs, or of Loan, for the host

	// Opaque to the transport.
	core requestState
}

// QueueConfig is what a transport knows of a new connection before any
// capsule.
type QueueConfig struct {
	Link Link
	Port *Port
	// QID is the queue the transport's connection request asked for, -1 when
	// the transport has no such thing. Connect must agree.
	QID int
	// Depth is the number of capsules the host may have outstanding (hsqsize+1
	// of the RDMA private data). Connect's SQSIZE+1 must not exceed it.
	Depth int
}

// Port is a listener as hosts and discovery see it. Fields are constant once
// the port was given to Target.AddPort.
type Port struct {
	ID   uint16
	Name string // of the configuration
	Type nvme.TransportType
	// Addr is the address for discovery entries. An unspecified address means
	// that entries carry the address the asking host connected to.
	Addr netip.AddrPort

	// Provider is the fabric provider's name ("verbs", "roce", "iwarp"), for
	// status and discovery TSAS.
	Provider string
	Caps     TransportCaps
}

// TransportCaps are the transport's limits, from which Identify is derived.
type TransportCaps struct {
	MaxQueueDepth int    // CAP.MQES + 1
	InCapsule     int    // bytes of data in a command capsule; IOCCSZ
	MaxSGL        int    // descriptors of one command; MSDBD
	MaxTransfer   uint32 // bytes of one command: MDTS, a power of two
	KeyedSGL      bool   // RDMA
	Invalidate    bool   // keyed descriptors with invalidate are honoured
}
