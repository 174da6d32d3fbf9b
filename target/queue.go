package target

import "github.com/nvmf-go/nvmf/nvme"

// Queue is a submission queue and its completion queue, which are one thing on
// fabrics. Its methods are called by the owner of its group alone.
type Queue struct {
	group *Group
	cfg   QueueConfig
}

// Prepare checks a command that was received and says what data it moves.
// Cmd must have nvme.SQESize bytes, of which nothing has been checked, and
// SGLLength is set. A status other than success is final: nothing is to be
// moved, Execute is not to be called, and the transport responds with
// r.Result and that status (SQHD counts for it as for any response).
func (q *Queue) Prepare(r *Request) (Transfer, nvme.Status) {
	return Transfer{}, nvme.InvalidOpcode | nvme.StatusDNR
}

// Execute runs a request that Prepare has let pass, with r.Bufs and r.Scratch
// as Transfer wanted them. It ends in exactly one Link.Complete(r), now or
// later. Everything may have changed since Prepare; Execute checks again what
// that can hurt. Requests may be executed in any order.
func (q *Queue) Execute(r *Request) {}

// Reject tells the core that the transport refuses r, before or after Prepare,
// for a reason of its own (an SGL it cannot use, data that did not arrive). It
// enters the error log and the counters; the transport responds with
// r.Result and the status returned, which is st with the bits that belong to
// it. loc is the byte of the SQE that is at fault, or -1.
func (q *Queue) Reject(r *Request, st nvme.Status, loc int) nvme.Status { return st }

// SQHD is the SQ head pointer for the next response: it advances by one for
// each call. It is FFFFh when the host has disabled SQ flow control. Call it
// once for each response, Connect's included, in the order they are sent.
func (q *Queue) SQHD() uint16 { return 0xFFFF }

// ID is the queue identifier for the CQE: 0 is the admin queue, and a queue
// that is not connected yet.
func (q *Queue) ID() uint16 { return 0 }

// Close ends the queue for the given reason. Asynchronous Event Requests that
// are parked and requests that wait for a backend come back through
// Link.Complete with Aborted SQ Deletion, from inside Close; those in backends
// follow later in the normal way, and Link must stay usable until then.
// Execute may still be called for requests that were prepared: they come back
// with Aborted SQ Deletion too. Closing the admin queue ends the controller:
// its I/O queues get Link.Disconnect. Closing twice does nothing.
func (q *Queue) Close(reason error) {}
