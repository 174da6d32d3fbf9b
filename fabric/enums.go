package fabric

import "fmt"

// Opcode is the operation of a WR or of its completion.
type Opcode uint8

// Opcodes. The order is part of the layout shared with providers.
const (
	OpSend Opcode = iota
	OpSendImm
	OpSendInv // SEND with invalidate: RKey names the peer's key
	OpWrite
	OpWriteImm
	OpRead
	OpCompareSwap
	OpFetchAdd
	OpLocalInv // ends the local key RKey
	OpBind     // memory window bind, in completions only
	OpRecv
	OpRecvWriteImm // a receive consumed by the peer's WRITE with immediate
	numOpcodes
)

var opcodeNames = [numOpcodes]string{
	"SEND", "SEND_WITH_IMM", "SEND_WITH_INV", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "RDMA_READ",
	"COMPARE_SWAP", "FETCH_ADD", "LOCAL_INV", "BIND_MW", "RECV", "RECV_RDMA_WITH_IMM",
}

func (o Opcode) String() string {
	if o < numOpcodes {
		return opcodeNames[o]
	}
	return fmt.Sprintf("Opcode(%d)", uint8(o))
}

// SendFlags modify a send WR.
type SendFlags uint8

// Send flags.
const (
	FlagSignaled  SendFlags = 1 << iota // make a completion on success too
	FlagSolicited                       // mark the message solicited for the peer
	FlagInline                          // copy the payload at PostSend: LKeys are not used
	FlagFence                           // wait for earlier RDMA READs and atomics
)

// CompletionFlags tell what a completion carries.
type CompletionFlags uint8

// Completion flags.
const (
	CompletionImm         CompletionFlags = 1 << iota // Imm is an immediate
	CompletionInvalidated                             // Imm is the key the peer invalidated
	CompletionGRH                                     // a datagram: a GRH is in front of it, SrcQPN its sender
)

// Access is the rights of a memory region or window.
type Access uint8

// Access rights. Remote writes and atomics need AccessLocalWrite too.
const (
	AccessLocalWrite Access = 1 << iota
	AccessRemoteRead
	AccessRemoteWrite
	AccessRemoteAtomic
	AccessWindowBind
)

// Status is how a WR ended (IBTA vol 1, 11.6.2). 0 is success.
type Status uint8

// Statuses, in the numbering of enum ibv_wc_status.
const (
	StatusSuccess          Status = 0
	StatusLocalLength      Status = 1
	StatusLocalQPOp        Status = 2
	StatusLocalProtection  Status = 4
	StatusFlushed          Status = 5
	StatusWindowBind       Status = 6
	StatusBadResponse      Status = 7
	StatusLocalAccess      Status = 8
	StatusRemoteInvalidReq Status = 9
	StatusRemoteAccess     Status = 10
	StatusRemoteOp         Status = 11
	StatusRetryExceeded    Status = 12
	StatusRNRRetryExceeded Status = 13
	StatusRemoteAbort      Status = 16
	StatusFatal            Status = 19
	StatusResponseTimeout  Status = 20
	StatusGeneral          Status = 21
	statusNamed                   = 22
)

var statusNames = [statusNamed]string{
	0:  "success",
	1:  "local length error: the message does not fit the posted buffers",
	2:  "local QP operation error: the QP cannot do this operation",
	3:  "local end-to-end context error",
	4:  "local protection error: an SGE names memory that is not registered for it",
	5:  "flushed: the QP is in the error state",
	6:  "memory window bind error",
	7:  "bad response from the peer",
	8:  "local access error",
	9:  "remote invalid request: the peer refused the operation",
	10: "remote access error: the peer's key, range or rights do not allow it",
	11: "remote operation error: the peer could not complete it",
	12: "transport retry counter exceeded: the peer does not answer",
	13: "RNR retry counter exceeded: the peer posts no receives",
	16: "remote aborted",
	19: "fatal device error",
	20: "response timeout",
	21: "general error",
}

func (s Status) String() string {
	if s < statusNamed && statusNames[s] != "" {
		return statusNames[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// QPState is the state of a QP (IBTA vol 1, 10.3.1).
//
//	RESET -> INIT -> RTR -> RTS <-> SQD
//	  any of them -> ERR -> RESET
type QPState uint8

// QP states, in the numbering of enum ibv_qp_state.
const (
	QPReset QPState = iota
	QPInit
	QPReadyToReceive
	QPReadyToSend
	QPSendQueueDrain
	QPSendQueueError
	QPError
)

var qpStateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s QPState) String() string {
	if int(s) < len(qpStateNames) {
		return qpStateNames[s]
	}
	return fmt.Sprintf("QPState(%d)", uint8(s))
}

func (t Transport) String() string {
	switch t {
	case TransportInfiniBand:
		return "InfiniBand"
	case TransportRoCE:
		return "RoCEv2"
	case TransportIWARP:
		return "iWARP"
	case TransportMemory:
		return "memory"
	}
	return "unknown"
}

var eventNames = [...]string{"unknown", "port up", "port down", "device fatal error", "device removed", "GID change", "address change"}

func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}
