package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/internal/show"
	"github.com/nvmf-go/nvmf/nvme"
)

// Exit codes; the program's help has their meanings.
const (
	exitOK          = 0
	exitFail        = 1
	exitUsage       = 2
	exitConnect     = 3
	exitStatus      = 4
	exitData        = 5
	exitLost        = 6
	exitInterrupted = 130
)

// usageError is a mistake of the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// errData is matched by errors of data that is not what it should be.
var errData = errors.New("the data is not what it should be")

// exitCode is the exit code of an error.
func exitCode(err error) int {
	var usage usageError
	var connect *initiator.ConnectError
	var status *nvme.StatusError
	var dns *net.DNSError
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case errors.As(err, &usage), is(show.ErrFormat), is(initiator.ErrIdentity):
		return exitUsage
	case is(errData), is(initiator.ErrMiscompare):
		return exitData
	case errors.As(err, &connect), errors.As(err, &dns), is(initiator.ErrDiscovery), is(fabric.ErrNoDevice):
		return exitConnect
	case is(initiator.ErrPathLost), is(initiator.ErrTimeout), is(initiator.ErrKeepAlive):
		return exitLost
	case errors.As(err, &status), is(initiator.ErrNoNamespace):
		return exitStatus
	}
	return exitFail
}

// report says what went wrong, and what to try.
func report(w io.Writer, err error) {
	fmt.Fprintln(w, "nvmf:", strings.ReplaceAll(err.Error(), "\n", "\nnvmf: "))
	for _, line := range advise(err) {
		fmt.Fprintln(w, "  try:", line)
	}
}

// advise are the next steps for an error, none when there is nothing to say
// that the error does not.
func advise(err error) []string {
	var connect *initiator.ConnectError
	if errors.As(err, &connect) {
		return adviseConnect(connect)
	}
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case is(fabric.ErrNoDevice), is(fabric.ErrNotSupported) && !is(initiator.ErrNotSupported):
		return []string{"--provider roce or --provider iwarp: the software RNIC needs no device; `nvmf-target rdma list` shows what there is"}
	case is(initiator.ErrNoNamespace):
		return []string{"`nvmf list-ns` with the same options shows the namespaces there are; -N chooses one"}
	case is(initiator.ErrIdentity):
		return []string{"-q and -I together: a host NQN that is not made of a UUID needs an ID beside it"}
	case is(initiator.ErrUnaligned):
		return []string{"whole blocks: `nvmf id-ns` shows the block size (lbaf … in use)"}
	case is(initiator.ErrOutOfRange):
		return []string{"`nvmf list` shows the size of the namespace"}
	case is(initiator.ErrNotSupported), is(nvme.InvalidOpcode):
		return []string{"`nvmf effects-log` shows which commands the controller has"}
	case is(nvme.InvalidLogPage):
		return []string{"`nvmf supported-log-pages` shows which log pages the controller has"}
	case is(nvme.NamespaceWriteProtected):
		return []string{"the namespace is read-only: see read_only in the target's configuration"}
	case is(nvme.ReservationConflict):
		return []string{"another host has reserved the namespace"}
	case is(initiator.ErrPathLost), is(initiator.ErrTimeout), is(initiator.ErrKeepAlive):
		return []string{"`nvmf ping` shows whether the target answers; --ctrl-loss-tmo waits longer for it to come back"}
	}
	return nil
}

// adviseConnect are the next steps when there is no connection.
func adviseConnect(e *initiator.ConnectError) []string {
	is := func(target error) bool { return errors.Is(e, target) }
	var reject *fabric.RejectError
	switch {
	case e.Status.Code() == nvme.ConnectInvalidHost:
		return []string{"let this host in: `nvmf show-hostnqn` prints its name, for hosts: of the subsystem in the target's configuration; or -q NQN -I ID"}
	case e.Stage == initiator.StageFabrics && e.Status.Code() == nvme.ConnectInvalidParameters:
		return []string{fmt.Sprintf("`nvmf discover -a %v -s %d` shows the subsystems that are there", e.Addr.Addr(), e.Addr.Port())}
	case errors.As(e, &reject) && reject.Reason == fabric.RejectBadServiceID:
		return []string{fmt.Sprintf("the host is there, but no target listens on port %d: check -s, and `nvmf-target status` over there", e.Addr.Port())}
	case errors.As(e, &reject) && e.CM == nvme.CMNoResources:
		return []string{"fewer or shorter queues (-i, -Q), or more rdma.memory_limit and rdma.max_connections at the target"}
	case is(fabric.ErrAddrInUse):
		return []string{"-w ADDRESS: connect from another address of this machine"}
	case is(fabric.ErrNoDevice), is(fabric.ErrAddrNotAvailable):
		return []string{"--provider roce or --provider iwarp, and -w with an address of this machine; `nvmf-target rdma list` shows the devices"}
	case e.Stage == initiator.StageCM || e.Stage == initiator.StageFabrics && e.Status.OK():
		return []string{
			fmt.Sprintf("is %v the target's address? does it answer ping, and is UDP 4791 (RoCE) or TCP %d (iWARP) open?", e.Addr.Addr(), e.Addr.Port()),
			"the other --provider: a target that speaks iWARP does not hear RoCE, and the other way round",
		}
	}
	return nil
}
