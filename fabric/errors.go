package fabric

import (
	"errors"
	"fmt"
)

// Errors that callers test for with errors.Is. Whatever was closed matches
// net.ErrClosed instead.
var (
	ErrNotSupported     = errors.New("not supported by this device")
	ErrNoDevice         = errors.New("no RDMA device")
	ErrAddrNotAvailable = errors.New("address is not on any RDMA device")
	ErrAddrInUse        = errors.New("address already in use")
	ErrQueueFull        = errors.New("queue full")
	ErrBusy             = errors.New("still in use")
	ErrTimeout          = errors.New("timed out")
	ErrUnreachable      = errors.New("peer unreachable")
	ErrInvalid          = errors.New("invalid argument")
	ErrQPError          = errors.New("queue pair is in the error state")
)

// OpError says which operation failed where. QPN is 0 when no QP is meant.
type OpError struct {
	Op     string // "listen", "post send", ...
	Device string
	QPN    uint32
	Err    error
}

func (e *OpError) Error() string {
	s := e.Op
	if e.Device != "" {
		s += " on " + e.Device
	}
	if e.QPN != 0 {
		s += fmt.Sprintf(" qp %d", e.QPN)
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// RejectReason is why a peer's CM refused (IBTA vol 1, 12.6.7.2; iWARP has
// RejectConsumer only).
type RejectReason uint16

// Reject reasons that a peer is met with.
const (
	RejectNoQP          RejectReason = 1
	RejectNoResources   RejectReason = 3
	RejectTimeout       RejectReason = 4
	RejectUnsupported   RejectReason = 5
	RejectInvalidCommID RejectReason = 6
	RejectBadServiceID  RejectReason = 8
	RejectTransport     RejectReason = 9
	RejectStale         RejectReason = 10
	RejectBadGID        RejectReason = 12
	RejectMTU           RejectReason = 26
	RejectResponderRes  RejectReason = 27
	RejectConsumer      RejectReason = 28
)

var rejectNames = map[RejectReason]string{
	RejectNoQP:          "no QP available",
	RejectNoResources:   "no resources available",
	RejectTimeout:       "timeout",
	RejectUnsupported:   "unsupported request",
	RejectInvalidCommID: "invalid communication ID",
	RejectBadServiceID:  "nobody listens on that port",
	RejectTransport:     "invalid transport",
	RejectStale:         "stale connection",
	RejectBadGID:        "invalid primary remote GID",
	RejectMTU:           "path MTU not acceptable",
	RejectResponderRes:  "insufficient responder resources",
	RejectConsumer:      "refused by the listening program",
}

func (r RejectReason) String() string {
	if s, ok := rejectNames[r]; ok {
		return s
	}
	return fmt.Sprintf("reason %d", uint16(r))
}

// RejectError is the peer's refusal of a connection request.
type RejectError struct {
	Reason  RejectReason
	Private []byte // the consumer's private data, as padded by the transport
}

func (e *RejectError) Error() string {
	return fmt.Sprintf("connection rejected: %v (%d)", e.Reason, uint16(e.Reason))
}
