package roce

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
)

// completionQueue is a CQ and the engines that work for its QPs.
type completionQueue = core.EngineCQ[*engine]

// where a QP is among its engine's queues.
const (
	inNone = iota
	inActive
	inHeld
)

// queuePair is a reliable connected QP on the wire.
type queuePair struct {
	rc.QP
	e    *engine
	conn *conn

	// Constant once the connection manager has connected the QP.
	peer netip.Addr
	path *path

	// Owner.
	where int
	due   time.Duration // in the engine's heap of timers
	place int           // there, or -1
}

// newQP makes the QP of an end of a connection.
func newQP(d *device, c *conn, cfg *fabric.ConnConfig) (*queuePair, error) {
	send, ok := cfg.SendCQ.(*completionQueue)
	recv, ok2 := cfg.RecvCQ.(*completionQueue)
	srq, ok3 := cfg.SRQ.(*core.SRQ)
	if !ok || !ok2 || cfg.SRQ != nil && !ok3 || !send.Of(&d.engines) || !recv.Of(&d.engines) {
		return nil, d.opError("create QP", fmt.Errorf("%w: completion queues of this device are needed", fabric.ErrInvalid))
	}
	e, err := d.engines.For(send, recv)
	if err != nil {
		return nil, d.opError("create QP", err)
	}
	q := &queuePair{e: e, conn: c, place: -1}
	err = q.Init(d.Device, q, core.QPConfig{
		SendCQ: &send.CQ, RecvCQ: &recv.CQ, SRQ: srq, Conn: cfg, Group: e.index, GroupMask: groupMask,
	})
	if err != nil {
		return nil, err
	}
	return q, nil
}

// CQError ends the connection when a CQ of it has overflowed.
func (q *queuePair) CQError(err error) { q.conn.broke(err) }

// PostSend posts sends; they leave in the next Poll or Arm.
func (q *queuePair) PostSend(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	n, err := q.EnqueueSend(wrs, sges)
	if n > 0 {
		q.e.activate(q)
	}
	return n, err
}

// PostAtomic posts atomics.
func (q *queuePair) PostAtomic(wrs []fabric.AtomicWR, sges []fabric.SGE) (int, error) {
	n, err := q.EnqueueAtomic(wrs, sges)
	if n > 0 {
		q.e.activate(q)
	}
	return n, err
}

// PostBind posts a bind.
func (q *queuePair) PostBind(w fabric.MemoryWindow, mr fabric.MemoryRegion, off, n int, a fabric.Access, id uint64, f fabric.SendFlags) (uint32, error) {
	key, err := q.EnqueueBind(w, mr, off, n, a, id, f)
	if err == nil {
		q.e.activate(q)
	}
	return key, err
}

// PostRecv posts receives.
func (q *queuePair) PostRecv(wrs []fabric.RecvWR, sges []fabric.SGE) (int, error) {
	n, err := q.QP.PostRecv(wrs, sges)
	if n > 0 && q.State() == fabric.QPError {
		q.e.activate(q) // to flush them
	}
	return n, err
}
