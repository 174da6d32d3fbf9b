package nbd

import (
	"errors"
	"net"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

// errnoOf is the error of a reply for a command of a request of type typ that
// has failed, in the protocol's terms ("Error values").
func errnoOf(typ uint16, r *initiator.Result) uint32 {
	if r.Err != nil {
		if errors.Is(r.Err, net.ErrClosed) && !errors.Is(r.Err, initiator.ErrPathLost) {
			return errnoShutdown
		}
		return errnoIO
	}
	switch r.Status.Code() {
	case nvme.CapacityExceeded:
		return errnoNoSpace
	case nvme.LBAOutOfRange: // the namespace has shrunk
		if typ == cmdWrite || typ == cmdWriteZeroes {
			return errnoNoSpace
		}
		return errnoInval
	case nvme.NamespaceWriteProtected, nvme.AccessDenied, nvme.ReservationConflict, nvme.OperationDenied, nvme.ProhibitedByLockdown:
		return errnoPerm
	case nvme.InvalidOpcode:
		return errnoInval
	case nvme.WriteToReadOnlyRange: // of a Read the code means another thing
		if typ != cmdRead {
			return errnoPerm
		}
	}
	return errnoIO
}

// messageOf is the same for people.
func messageOf(op nvme.Opcode, r *initiator.Result) string {
	if r.Err != nil {
		return r.Err.Error()
	}
	return (&nvme.StatusError{Status: r.Status, Opcode: op}).Error()
}

// transient says whether a command that has failed is worth another attempt: the
// controller was not ready for it, or was about to end, and executed nothing.
func transient(r *initiator.Result) bool {
	if r.Err != nil || r.Status.DNR() {
		return false
	}
	switch r.Status.Code() {
	case nvme.NamespaceNotReady, nvme.CommandInterrupted, nvme.TransientTransport, nvme.AbortedSQDeletion,
		nvme.ANAInaccessible, nvme.ANATransition,
		nvme.InternalPathError, nvme.ControllerPathError, nvme.HostPathError:
		return true
	}
	return false
}
