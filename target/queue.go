package target

import (
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/nvme"
)

// queueState is where a queue is in its life.
//
//	new -(Connect qid 0)-> admin -(Close)-> closed
//	new -(Connect qid n)-> io    -(Close)-> closed
//	                       io    -(Disconnect)-> deleted -(Close)-> closed
//	new -(Close)-> closed
type queueState uint8

const (
	queueNew queueState = iota
	queueAdmin
	queueIO
	queueDeleted
	queueClosed
)

// Queue is a submission queue and its completion queue, which are one thing on
// fabrics. Its methods are called by the owner of its group alone.
type Queue struct {
	// Constant.

	group *Group
	cfg   QueueConfig

	// Constant once Connect has succeeded.

	ctrl   *Controller
	id     uint16
	size   uint16 // SQSIZE, 0-based
	noFlow bool   // the host has disabled SQ flow control

	// The owner's.

	state     queueState
	head      uint16 // SQHD of the latest response
	executing int    // between Execute and Link.Complete
	lastTurn  uint64 // of the group, when a command came last
	deletion  *Request
	stats     queueStats

	// Atomic.

	seen atomic.Int64 // Target.now when a command came last
}

// Prepare checks a command that was received and says what data it moves.
// Cmd must have nvme.SQESize bytes, of which nothing has been checked, and
// SGLLength is set. A status other than success is final: nothing is to be
// moved, Execute is not to be called, and the transport responds with
// r.Result and that status (SQHD counts for it as for any response).
func (q *Queue) Prepare(r *Request) (Transfer, nvme.Status) {
	q.begin(r)
	c, st := q.lookup(r)
	var t Transfer
	if st.OK() {
		r.core.cmd = c
		t, st = c.prepare(q, r)
	}
	if !st.OK() {
		return Transfer{}, q.refused(r, st)
	}
	return t, nvme.Success
}

// begin forgets what r was used for before, and notes that the host is alive.
func (q *Queue) begin(r *Request) {
	g := q.group
	r.core = requestState{q: q, start: g.now, loc: nvme.ErrorLocationNone}
	r.Result, r.Status, r.DataLength = 0, nvme.Success, 0
	if q.lastTurn != g.turn {
		q.lastTurn = g.turn
		q.seen.Store(g.now)
	}
}

// lookup finds the command that the SQE's opcode means in this queue's state.
func (q *Queue) lookup(r *Request) (*command, nvme.Status) {
	if st := checkFlags(r); !st.OK() {
		return nil, st
	}
	op := r.Cmd.Opcode()
	if op == nvme.CmdFabrics {
		return q.lookupFabrics(r)
	}
	switch q.state {
	case queueIO:
		if !q.ctrl.ready.Load() {
			return nil, q.notReady()
		}
		if c := &ioCommands[op]; c.prepare != nil {
			return c, nvme.Success
		}
	case queueAdmin:
		if !q.ctrl.ready.Load() {
			return nil, q.notReady()
		}
		if c := &adminCommands[op]; c.prepare != nil && (c.discovery || !q.ctrl.discovery) {
			return c, nvme.Success
		}
	case queueNew:
		return nil, nvme.CommandSequenceError | nvme.StatusDNR
	default:
		return nil, nvme.AbortedSQDeletion
	}
	return nil, r.bad(nvme.InvalidOpcode, locOpcode, 0)
}

// checkFlags demands PSDT 01b, which is all that fabrics allow, and no fused
// operation.
func checkFlags(r *Request) nvme.Status {
	const fuse, psdt = 0x03, 0xC0
	switch f := r.Cmd.Flags(); {
	case f&fuse != 0:
		return r.bad(nvme.InvalidField, locFlags, 0)
	case f&psdt != nvme.FlagsSGL:
		return r.bad(nvme.InvalidField, locFlags, 6)
	}
	return nvme.Success
}

// notReady is the status of commands while CSTS.RDY is 0. A controller that is
// being torn down has no use for the host's correction.
func (q *Queue) notReady() nvme.Status {
	if q.ctrl.ending.Load() {
		return nvme.AbortedSQDeletion
	}
	return nvme.CommandSequenceError | nvme.StatusDNR
}

// refused accounts for a request that fails before it is executed.
func (q *Queue) refused(r *Request, st nvme.Status) nvme.Status {
	st = q.logError(r, st)
	q.count(r, st)
	return st
}

// Execute runs a request that Prepare has let pass, with r.Bufs and r.Scratch
// as Transfer wanted them. It ends in exactly one Link.Complete(r), now or
// later. Everything may have changed since Prepare; Execute checks again what
// that can hurt. Requests may be executed in any order.
func (q *Queue) Execute(r *Request) {
	q.executing++
	if q.state >= queueDeleted {
		q.finish(r, nvme.AbortedSQDeletion)
		return
	}
	r.core.cmd.execute(q, r)
}

// finish ends a request that is executing. r is the transport's afterwards.
func (q *Queue) finish(r *Request, st nvme.Status) {
	if !st.OK() {
		st = q.logError(r, st)
		r.DataLength = 0
	}
	r.Status = st
	q.count(r, st)
	q.executing--
	r.core.q = nil
	q.cfg.Link.Complete(r)
	switch {
	case q.deletion != nil && q.executing == 1:
		q.completeDeletion()
	case q.state == queueClosed && q.executing == 0:
		q.leave()
	}
}

// Refuse takes the place of Prepare for a command that the transport cannot
// take at all (an SGL that it cannot use); otherwise it is Reject.
func (q *Queue) Refuse(r *Request, st nvme.Status, loc int) nvme.Status {
	q.begin(r)
	return q.Reject(r, st, loc)
}

// Reject tells the core that the transport ends r, which Prepare has let pass
// and Execute has not seen, for a reason of its own (an SGL that does not fit
// the command, data that did not arrive). It enters the error log and the
// counters; the transport responds with r.Result and the status returned,
// which is st with the bits that belong to it. loc is the byte of the SQE that
// is at fault, or -1.
func (q *Queue) Reject(r *Request, st nvme.Status, loc int) nvme.Status {
	r.core.loc = nvme.ErrorLocationNone
	if loc >= 0 && loc < nvme.SQESize {
		r.core.loc = nvme.ErrorLocation(uint8(loc), 0)
	}
	r.Result, r.DataLength = 0, 0
	return q.refused(r, st)
}

// SQHD is the SQ head pointer for the next response: it advances by one for
// each call. It is FFFFh when the host has disabled SQ flow control. Call it
// once for each response, Connect's included, in the order they are sent.
func (q *Queue) SQHD() uint16 {
	if q.noFlow {
		return 0xFFFF
	}
	if q.head >= q.size {
		q.head = 0
	} else {
		q.head++
	}
	return q.head
}

// ID is the queue identifier for the CQE: 0 is the admin queue, and a queue
// that is not connected yet.
func (q *Queue) ID() uint16 { return q.id }

// Controller is the queue's controller, nil before Connect.
func (q *Queue) Controller() *Controller { return q.ctrl }

// Close ends the queue for the given reason. Asynchronous Event Requests that
// are parked and requests that wait for a backend come back through
// Link.Complete with Aborted SQ Deletion, from inside Close; those in backends
// follow later in the normal way, and Link must stay usable until then.
// Execute may still be called for requests that were prepared: they come back
// with Aborted SQ Deletion too. Closing the admin queue ends the controller:
// its I/O queues get Link.Disconnect. Closing twice does nothing.
func (q *Queue) Close(reason error) {
	if q.state == queueClosed {
		return
	}
	was := q.state
	q.state = queueClosed
	switch was {
	case queueNew, queueDeleted:
		q.group.target.forget(q)
	case queueAdmin:
		q.ctrl.end(reason)
		q.ctrl.abortEvents(nvme.AbortedSQDeletion)
	case queueIO:
		q.ctrl.dropQueue(q)
	}
	q.abortWaiting()
	if r := q.deletion; r != nil {
		q.deletion = nil
		q.finish(r, nvme.AbortedSQDeletion)
	}
	q.leave()
}

// leave ends a closed queue once its last request is home.
func (q *Queue) leave() {
	if _, in := q.group.queues[q]; in && q.state == queueClosed && q.executing == 0 {
		q.group.foldQueue(q)
		if q.ctrl != nil && q != q.ctrl.admin {
			q.ctrl.queueHome()
		}
	}
}

// abortWaiting ends the requests that wait for their turn in a backend.
func (q *Queue) abortWaiting() {
	for _, a := range q.group.dirty {
		for {
			r := a.waiting.remove(func(r *Request) bool { return r.core.q == q })
			if r == nil {
				break
			}
			q.finish(r, nvme.AbortedSQDeletion)
		}
	}
}

// who are the fields of a log line about this queue.
func (q *Queue) who() logrus.Fields {
	f := logrus.Fields{"peer": q.cfg.Link.Peer().String(), "port": q.cfg.Port.Name}
	if c := q.ctrl; c != nil {
		f["host"], f["subsystem"], f["cntlid"], f["qid"] = string(c.hostNQN), string(c.sub.nqn), c.id, q.id
	}
	return f
}
