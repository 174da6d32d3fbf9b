package initiator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// Errors that callers test for with errors.Is. A status of the controller is a
// *nvme.StatusError, which matches the nvme.Status itself; what was closed
// matches net.ErrClosed.
var (
	// ErrPathLost: the association with the controller was lost, and no other
	// was there in time. A command that changes data may have been executed or
	// not.
	ErrPathLost = errors.New("the connection to the controller was lost")
	// ErrControllerLost: reconnecting was given up. It matches ErrPathLost too.
	ErrControllerLost = fmt.Errorf("the controller is lost for good: %w", ErrPathLost)
	// ErrUnaligned: a write does not begin and end on blocks. It is not rounded,
	// for reading, changing and writing back a block is not atomic.
	ErrUnaligned = errors.New("not on block boundaries")
	// ErrOutOfRange: the range is not within the namespace.
	ErrOutOfRange = errors.New("beyond the end of the namespace")
	// ErrTooLarge: one command cannot move so much.
	ErrTooLarge = errors.New("more than one command can move")
	// ErrMiscompare: Compare found other data.
	ErrMiscompare = errors.New("the data differs")
	// ErrNotSupported: the controller does not have the operation.
	ErrNotSupported = errors.New("not supported by the controller")
	// ErrNoNamespace: there is no namespace with that ID.
	ErrNoNamespace = errors.New("no such namespace")
	// ErrNamespaceChanged: the namespace is gone, or another has taken its
	// place; what was opened cannot be used any more.
	ErrNamespaceChanged = errors.New("the namespace is gone or is another one now")
	// ErrNoQueue: all I/O queues are taken by Queues.
	ErrNoQueue = errors.New("no I/O queue is free")
	// ErrTimeout: a command was not answered in time.
	ErrTimeout = errors.New("not answered in time")
	// ErrProtocol: the peer's answer makes no sense.
	ErrProtocol = errors.New("protocol violation by the target")
	// ErrKeepAlive: a keep alive was not answered.
	ErrKeepAlive = errors.New("keep alive was not answered")
	// ErrReset: the controller was reset by Controller.Reset.
	ErrReset = errors.New("the controller was reset")
)

// errClosed is what commands of a closed controller end with.
var errClosed = fmt.Errorf("controller closed: %w", net.ErrClosed)

// Stage is how far a connection attempt came.
type Stage uint8

// Stages, in their order.
const (
	StageDevice   Stage = iota // finding the RDMA device, and memory for the queue
	StageCM                    // the RDMA connection
	StageFabrics               // the Connect command
	StageEnable                // CC.EN, CSTS.RDY
	StageIdentify              // Identify Controller, and what it says
	StageQueues                // number of I/O queues, events
	StageNamespaces
)

func (s Stage) String() string {
	switch s {
	case StageDevice:
		return "RDMA device"
	case StageCM:
		return "RDMA connection"
	case StageFabrics:
		return "Connect command"
	case StageEnable:
		return "enabling the controller"
	case StageIdentify:
		return "Identify Controller"
	case StageQueues:
		return "setting up queues"
	case StageNamespaces:
		return "reading the namespaces"
	}
	return fmt.Sprintf("Stage(%d)", uint8(s))
}

// ConnectError says why a controller could not be connected, in words.
type ConnectError struct {
	Stage     Stage
	Addr      netip.AddrPort
	Subsystem nvme.NQN
	QID       uint16
	// CM is the status in the private data of a rejection, 0 when there is
	// none.
	CM nvme.CMStatus
	// Status is that of the command that failed, Success when none did.
	Status nvme.Status
	// Parameter names what a Connect was refused for, "" when the target does
	// not say.
	Parameter string
	Err       error
}

// newConnectError reads what err has to say.
func newConnectError(stage Stage, cfg *Config, qid uint16, err error) *ConnectError {
	var have *ConnectError
	if errors.As(err, &have) {
		return have
	}
	e := &ConnectError{Stage: stage, Addr: cfg.Addr, Subsystem: cfg.Subsystem, QID: qid, Err: err}
	var reject *fabric.RejectError
	if errors.As(err, &reject) && reject.Reason == fabric.RejectConsumer {
		var r nvme.CMReject
		if r.Unmarshal(reject.Private) == nil && r.RecFmt == 0 {
			e.CM = r.Status
		}
	}
	var status *nvme.StatusError
	if errors.As(err, &status) {
		e.Status = status.Status
		if stage == StageFabrics && status.Status.Code() == nvme.ConnectInvalidParameters {
			e.Parameter = nvme.ConnectParameter(status.Result)
		}
	}
	return e
}

func (e *ConnectError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "connect to %s at %v: %v", e.Subsystem, e.Addr, e.Stage)
	if e.QID != 0 {
		fmt.Fprintf(&b, " of queue %d", e.QID)
	}
	b.WriteString(": ")
	switch {
	case e.CM != 0:
		fmt.Fprintf(&b, "%v: %v", e.Err, e.CM)
	case e.Status.Code() == nvme.ConnectInvalidHost && e.Stage == StageFabrics:
		fmt.Fprintf(&b, "the target does not let this host in: %v", e.Err)
	default:
		fmt.Fprintf(&b, "%v", e.Err)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *ConnectError) Unwrap() error { return e.Err }

// Permanent says that trying again is of no use: the target has understood the
// request and refuses it for good. An unknown subsystem is not permanent, for
// so answers a target that is still starting.
func (e *ConnectError) Permanent() bool {
	if e.Stage != StageFabrics {
		return errors.Is(e.Err, errAuthentication)
	}
	switch e.Status.Code() {
	case nvme.ConnectInvalidHost, nvme.ConnectIncompatibleFormat, nvme.AuthenticationRequired:
		return e.Status.DNR()
	}
	return errors.Is(e.Err, errAuthentication)
}

// errAuthentication: this host has no secret to authenticate with.
var errAuthentication = errors.New("the target demands authentication, which this host does not have")

// statusError is a failed command at the API.
func statusError(cmd nvme.Command, qid uint16, st nvme.Status, result uint64) error {
	e := &nvme.StatusError{Status: st, Opcode: cmd.Opcode(), QID: qid, CID: cmd.CID(), Admin: qid == 0, Result: result}
	if e.Opcode == nvme.CmdFabrics {
		e.FCType = cmd.FCType()
	}
	return e
}

// ctxError is why a call ended early: the context, named by its cause.
func ctxError(ctx context.Context) error { return context.Cause(ctx) }
