package roce

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
)

// completionQueue is a CQ and the engines that work for its QPs: none before
// the first QP, usually one, and more when QPs have their two CQs crosswise.
type completionQueue struct {
	core.CQ
	dev     *device
	engines atomic.Pointer[[]*engine]
	once    sync.Once
}

func (q *completionQueue) init(d *device, depth int, notify func()) error {
	q.dev = d
	q.engines.Store(new([]*engine))
	return q.Init(d.Device, depth, notify, q.progress)
}

func (q *completionQueue) progress() {
	for _, e := range *q.engines.Load() {
		e.progress()
	}
}

// Arm asks for one notify. Everything posted is sent before the owner sleeps.
func (q *completionQueue) Arm() error { return q.arm(nil) }

// ArmOn is Arm for an owner that sleeps in w (fabric.WakeArmer).
func (q *completionQueue) ArmOn(w *fabric.Waker) error { return q.arm(w) }

func (q *completionQueue) arm(w *fabric.Waker) error {
	if err := q.CQ.Arm(); err != nil {
		return err
	}
	q.Guard().Enter()
	for _, e := range *q.engines.Load() {
		e.sleep(w)
	}
	q.Guard().Leave()
	return nil
}

// Close ends the CQ and the engines that no other CQ uses.
func (q *completionQueue) Close() error {
	if err := q.CQ.Close(); err != nil {
		return err
	}
	q.once.Do(func() { q.dev.leave(q) })
	return nil
}

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
	if !ok || !ok2 || cfg.SRQ != nil && !ok3 || send.dev != d || recv.dev != d {
		return nil, d.opError("create QP", fmt.Errorf("%w: completion queues of this device are needed", fabric.ErrInvalid))
	}
	e, err := d.engineFor(send, recv)
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
