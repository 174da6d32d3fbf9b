package fabrictest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
)

// Who may touch the WRs of a stream.
const (
	streamFree   = iota
	streamBusy   // the responder is executing some
	streamClosed // the requester is flushing, for good
)

// stream is one direction of a connection: the requester's send queue as its
// peer sees it. Positions are those of core.SendQueue.
//
//	next <= executed <= published <= tail
type stream struct {
	published atomic.Uint32 // requester: WRs before it are the responder's to run
	executed  atomic.Uint32 // responder: WRs before it are done
	failed    atomic.Uint64 // responder: the WR that failed, position<<8 | status
	lock      atomic.Uint32
}

// queuePair is one end. Its owner is requester of out and responder of the
// peer's out.
type queuePair struct {
	core.QP
	dev  *device
	conn *conn

	// Set before the state becomes RTS.
	peer       *queuePair
	link       *link
	retryCount uint8
	rnrRetry   uint8
	ird        int

	sendNode, recvNode node

	out stream

	// Owner, as requester.
	outstanding int       // READs and atomics published and not completed
	halted      bool      // a WR has failed before it was sent: nothing follows
	giveUp      time.Time // when the link is cut: the end of the retries
	outTimer    *time.Timer

	// Owner, as responder.
	stall   stall
	inTimer *time.Timer
}

// newQP makes a QP for an end of a connection.
func newQP(d *device, c *conn, cfg *fabric.ConnConfig) (*queuePair, error) {
	q := &queuePair{dev: d, conn: c, retryCount: cfg.RetryCount}
	send, ok := cfg.SendCQ.(*completionQueue)
	recv, ok2 := cfg.RecvCQ.(*completionQueue)
	srq, ok3 := cfg.SRQ.(*core.SRQ)
	if !ok || !ok2 || cfg.SRQ != nil && !ok3 {
		return nil, opError("create QP", d.Name(), fmt.Errorf("%w: queues of another provider, or none", fabric.ErrInvalid))
	}
	if err := q.Init(d.Device, q, core.QPConfig{SendCQ: &send.CQ, RecvCQ: &recv.CQ, SRQ: srq, Conn: cfg}); err != nil {
		return nil, err
	}
	q.sendNode = node{q: q, cq: send}
	q.recvNode = node{q: q, cq: recv}
	return q, nil
}

// schedule has the owner run the QP, whichever of its CQs it polls.
func (q *queuePair) schedule() {
	q.sendNode.schedule()
	if q.sendNode.cq != q.recvNode.cq {
		q.recvNode.schedule()
	}
}

// CQError ends the connection when a CQ of it has overflowed.
func (q *queuePair) CQError(err error) { q.conn.end(err, true) }

// PostSend posts sends.
func (q *queuePair) PostSend(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	limit, fault := q.dev.hw.failsIn(len(wrs))
	n, err := q.EnqueueSend(wrs[:limit], sges)
	q.posted()
	return n, q.dev.postError("post send", q.Num(), err, fault)
}

// PostAtomic posts atomics.
func (q *queuePair) PostAtomic(wrs []fabric.AtomicWR, sges []fabric.SGE) (int, error) {
	limit, fault := q.dev.hw.failsIn(len(wrs))
	n, err := q.EnqueueAtomic(wrs[:limit], sges)
	q.posted()
	return n, q.dev.postError("post atomic", q.Num(), err, fault)
}

// PostBind posts a bind.
func (q *queuePair) PostBind(w fabric.MemoryWindow, mr fabric.MemoryRegion, off, n int, a fabric.Access, id uint64, f fabric.SendFlags) (uint32, error) {
	if _, fault := q.dev.hw.failsIn(1); fault != nil {
		return 0, q.dev.postError("post bind", q.Num(), nil, fault)
	}
	key, err := q.EnqueueBind(w, mr, off, n, a, id, f)
	q.posted()
	return key, err
}

// PostRecv posts receives.
func (q *queuePair) PostRecv(wrs []fabric.RecvWR, sges []fabric.SGE) (int, error) {
	limit, fault := q.dev.hw.failsIn(len(wrs))
	n, err := q.QP.PostRecv(wrs[:limit], sges)
	if n > 0 && q.State() == fabric.QPError {
		q.schedule()
	}
	return n, q.dev.postError("post receive", q.Num(), err, fault)
}

// posted starts on what is new in the send queue.
func (q *queuePair) posted() {
	switch q.State() {
	case fabric.QPReadyToSend:
		q.publish()
	case fabric.QPError:
		q.schedule() // to flush it
	}
}

// run is the owner's turn for this QP, inside Poll.
func (q *queuePair) run() {
	if q.Closed() {
		return
	}
	if q.State() == fabric.QPReadyToSend {
		q.respond()
		q.reap()
		q.publish()
		if !q.giveUp.IsZero() || q.link.faults.Load() != nil {
			q.watch()
		}
	}
	if q.State() == fabric.QPError {
		q.flush()
	}
}

// fail ends the QP for a reason of its own. The peer is told unless it learns
// by the status of its WR.
func (q *queuePair) fail(why error, tell bool) {
	q.conn.end(&fabric.OpError{Op: "connection", Device: q.dev.Name(), QPN: q.Num(), Err: why}, tell)
}

// flush ends what is posted. The peer may be executing some of it: then the
// next Poll tries again.
func (q *queuePair) flush() {
	if q.Flushed() {
		return
	}
	if !q.closeStream() {
		q.schedule()
		return
	}
	q.reap()
	q.Flush()
}

func (q *queuePair) stopTimers() {
	for _, t := range []*time.Timer{q.inTimer, q.outTimer} {
		if t != nil {
			t.Stop()
		}
	}
}

// closeStream takes the send queue away from the peer, for good. It is false
// while the peer is executing.
func (q *queuePair) closeStream() bool {
	return q.out.lock.Load() == streamClosed || q.out.lock.CompareAndSwap(streamFree, streamClosed)
}
