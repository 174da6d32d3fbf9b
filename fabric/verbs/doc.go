// Package verbs is the fabric provider over libibverbs and librdmacm
// (rdma-core): hardware RDMA devices, and the kernel's rxe and siw.
//
// The two libraries are loaded with dlopen when [New] is called, so the program
// starts without them and says which is missing. Building needs their headers
// and cgo; without cgo, or with the build tag nordma, New fails with an error
// that says so. This is the only package of the module that uses cgo.
//
// # How it stands to the libraries
//
// librdmacm opens one context of each device, and every object here is made on
// that context, under one protection domain of our own per device. All ids of
// the connection manager share one event channel, read by one goroutine parked
// in the runtime's poller; so are each device's asynchronous events and each
// completion channel whose owner does not wait for it itself (fabric.WakeArmer).
// Events are copied and acknowledged in one call into C: no destroy ever waits for
// a goroutine. A CQ asks its device for an event only when none is owed.
//
// Work requests cross into C in batches, without a pointer in them; the chains
// that the device takes are built on the C stack. Only numbers are kept in C:
// ids carry a token, not a Go pointer.
//
// # Queues are counted here
//
// A WR's place in its queue is taken from its post to the poll of its
// completion, whatever the device makes of it, so ErrQueueFull means the depth
// that was asked for, and CQs sized for the sum of the depths never overflow.
// The device's wr_id is the place, which knows the caller's id and operation: a
// failed completion of verbs tells neither what failed nor of which queue.
//
// # Unreliable services
//
// RoCE devices have UC and UD (fabric.UnreliableConnector, fabric.DatagramDevice),
// without the connection manager: the system resolves addresses when a QP is
// connected or an address handle is made, which can take seconds. On InfiniBand
// that would take a subnet manager; iWARP has no such services. What a QP dropped
// is known to the device's counters only.
package verbs

import "github.com/nvmf-go/nvmf/fabric"

// ProviderName is the provider's name in configuration files.
const ProviderName = "verbs"

// unavailable is why this program has no verbs. It matches
// fabric.ErrNotSupported.
type unavailable string

func (e unavailable) Error() string { return string(e) }

// Is makes it a kind of fabric.ErrNotSupported.
func (e unavailable) Is(target error) bool { return target == fabric.ErrNotSupported }
