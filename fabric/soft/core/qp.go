package core

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
)

// QP is what queue pairs of every wire have in common: two queues, a state and
// the way WRs end. A provider embeds it and adds PostSend and what happens on
// the wire. Everything but Num, State, States, Closed and Abandon belongs to the
// owner.
type QP struct {
	// Constant after Init.
	dev            *Device
	table          *Table
	num            uint32
	limits         fabric.Limits
	SendCQ, RecvCQ *CQ
	srq            *SRQ
	user           User
	gone           func()
	// Posts that find no room fail with these: no allocation to probe for it.
	sendFull, recvFull error

	// Set by the connection manager before the state becomes RTS.
	ord int

	// Owner.
	sq  SendQueue
	rq  RecvQueue
	cur Recv // the receive being filled

	// Any goroutine.
	state  State
	closed atomic.Bool
}

// QPConfig is what Init needs.
type QPConfig struct {
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ
	// Conn holds depths, SGE counts and the wish for inline; its queues are
	// not read.
	Conn *fabric.ConnConfig
	// Group and GroupMask choose the low bits of the QP number.
	Group, GroupMask uint32
}

// Init makes q a QP of d in the INIT state, attached to its queues as user
// (the provider's QP, in which q is embedded). The errors wrap
// fabric.ErrInvalid for what exceeds the limits and fabric.ErrQueueFull when
// there are too many QPs.
func (q *QP) Init(d *Device, user User, cfg QPConfig) error {
	sendSGE, recvSGE := max(cfg.Conn.MaxSendSGE, 1), max(cfg.Conn.MaxRecvSGE, 1)
	if err := d.checkQP(cfg, sendSGE, recvSGE); err != nil {
		return d.opError("create QP", err)
	}
	gone, err := d.count("create QP", &d.qps, d.limits.MaxQP)
	if err != nil {
		return err
	}
	num, err := d.numbers.Take(cfg.Group, cfg.GroupMask)
	if err != nil {
		gone()
		return d.opError("create QP", err)
	}
	q.dev, q.table, q.num, q.limits, q.user = d, d.table, num, d.limits, user
	q.SendCQ, q.RecvCQ, q.srq = cfg.SendCQ, cfg.RecvCQ, cfg.SRQ
	q.gone = func() { d.numbers.Give(num); gone() }
	q.sendFull = q.postError("post send", fabric.ErrQueueFull)
	q.recvFull = q.postError("post receive", fabric.ErrQueueFull)
	q.sq.init(cfg.Conn.SendDepth, sendSGE, min(max(cfg.Conn.MaxInline, 0), d.limits.MaxInline))
	if q.srq == nil {
		q.rq.init(cfg.Conn.RecvDepth, recvSGE)
	} else {
		recvSGE = q.srq.q.maxSGE
	}
	q.cur.SGEs = make([]fabric.SGE, 0, recvSGE)
	if err := q.attach(); err != nil {
		q.gone()
		return err
	}
	q.state.Set(fabric.QPInit)
	return nil
}

// checkQP holds a wish against the limits.
func (d *Device) checkQP(cfg QPConfig, sendSGE, recvSGE int) error {
	over := func(n, limit int) bool { return n < 0 || limit > 0 && n > limit }
	c, l := cfg.Conn, &d.limits
	switch {
	case cfg.SendCQ == nil || cfg.RecvCQ == nil:
		return fmt.Errorf("%w: a queue pair needs completion queues", fabric.ErrInvalid)
	case cfg.SendCQ.dev != d || cfg.RecvCQ.dev != d || cfg.SRQ != nil && cfg.SRQ.dev != d:
		return errForeign
	case over(c.SendDepth, l.MaxQPDepth) || cfg.SRQ == nil && over(c.RecvDepth, l.MaxQPDepth):
		return fmt.Errorf("%w: depths %d and %d, the limit is %d", fabric.ErrInvalid, c.SendDepth, c.RecvDepth, l.MaxQPDepth)
	case over(sendSGE, l.MaxSGE) || over(recvSGE, l.MaxSGE) || max(sendSGE, recvSGE) > math.MaxUint8:
		return fmt.Errorf("%w: %d and %d SGEs, the limit is %d", fabric.ErrInvalid, sendSGE, recvSGE, l.MaxSGE)
	case c.RetryCount > 7 || c.RNRRetry > 7:
		return fmt.Errorf("%w: retry counts are 0 to 7", fabric.ErrInvalid)
	case c.ORD < 0 || c.IRD < 0:
		return fmt.Errorf("%w: negative ORD or IRD", fabric.ErrInvalid)
	}
	return nil
}

func (q *QP) attach() error {
	if err := q.SendCQ.Attach(q.user); err != nil {
		return err
	}
	if err := q.RecvCQ.Attach(q.user); err != nil {
		q.SendCQ.Detach(q.user)
		return err
	}
	if q.srq != nil {
		q.srq.users.Add(1)
	}
	return nil
}

// Num is the QP number.
func (q *QP) Num() uint32 { return q.num }

// State is the state, for any goroutine.
func (q *QP) State() fabric.QPState { return q.state.Load() }

// States gives the connection manager the state to move.
func (q *QP) States() *State { return &q.state }

// MaxInline is the largest inline payload.
func (q *QP) MaxInline() int { return q.sq.maxInline }

// Device is the QP's device.
func (q *QP) Device() *Device { return q.dev }

// Sends is the send queue.
func (q *QP) Sends() *SendQueue { return &q.sq }

// ORD is the number of RDMA READs and atomics that may be outstanding.
func (q *QP) ORD() int { return q.ord }

// SetORD is called by the connection manager before the QP becomes RTS.
func (q *QP) SetORD(n int) { q.ord = n }

// CompleteSend ends the oldest WR that has not completed. It makes a
// completion when the WR is signaled or failed, and frees the slots up to it.
func (q *QP) CompleteSend(s fabric.Status, vendor uint32) {
	wr := q.sq.At(q.sq.next)
	q.sq.next++
	if s == fabric.StatusSuccess && wr.Flags&fabric.FlagSignaled == 0 {
		return
	}
	c := fabric.Completion{ID: wr.ID, QPN: q.num, Vendor: vendor, Status: s, Op: wr.Op}
	if s == fabric.StatusSuccess && (wr.Op == fabric.OpRead || wr.Op == fabric.OpCompareSwap || wr.Op == fabric.OpFetchAdd) {
		c.ByteLen = wr.Length
	}
	q.sq.head = q.sq.next
	q.SendCQ.Push(c)
}

// TakeRecv makes the oldest posted receive the current one, unless there is
// one already. It is false when none is posted.
func (q *QP) TakeRecv() bool {
	switch {
	case q.cur.Held:
		return true
	case q.srq != nil:
		return q.srq.q.take(&q.cur)
	}
	return q.rq.take(&q.cur)
}

// Recv is the current receive; Held is false when there is none.
func (q *QP) Recv() *Recv { return &q.cur }

// CompleteRecv ends the current receive. c has what the message brought:
// Status, Op, Flags, Imm, ByteLen.
func (q *QP) CompleteRecv(c fabric.Completion) {
	c.ID, c.QPN = q.cur.ID, q.num
	q.cur.Held = false
	q.RecvCQ.Push(c)
}

// RunLocal executes a LOCAL_INV or a bind and says how it ended.
func (q *QP) RunLocal(s *Send) fabric.Status {
	switch {
	case s.Op == fabric.OpBind:
		if !q.table.Bind(q.num, s.RKey, s.Imm, s.RemoteAddr, s.Compare, fabric.Access(s.SwapAdd)) {
			return fabric.StatusWindowBind
		}
	case !q.table.Invalidate(q.num, s.RKey):
		return fabric.StatusLocalQPOp
	}
	return fabric.StatusSuccess
}

// CheckRemote looks up what the peer named; the bytes are valid in the guard.
func (q *QP) CheckRemote(key uint32, addr uint64, n uint32, need fabric.Access) ([]byte, Fault) {
	return q.table.Remote(q.num, key, addr, n, need)
}

// Flush ends every posted WR with StatusFlushed, in order. The QP must be in
// the error state and nothing of it may be under way any more.
func (q *QP) Flush() {
	q.FlushSends()
	for q.cur.Held || q.srq == nil && q.TakeRecv() {
		q.CompleteRecv(fabric.Completion{Status: fabric.StatusFlushed, Op: fabric.OpRecv})
	}
}

// Flushed says whether Flush has nothing to do.
func (q *QP) Flushed() bool {
	return q.sq.Pending() == 0 && !q.cur.Held && q.rq.Len() == 0
}

// Destroy detaches the QP from its queues and frees its number; completions
// not polled are dropped. Nothing of it may be under way any more. The owner
// calls it; a second call does nothing.
func (q *QP) Destroy() {
	q.SendCQ.Purge(q.num)
	q.RecvCQ.Purge(q.num)
	q.Abandon()
}

// Closed says whether the QP is destroyed, for any goroutine.
func (q *QP) Closed() bool { return q.closed.Load() }

// Abandon is Destroy for a QP that was never connected and so has no
// completions. Any goroutine may call it: the owner's posts fail from then on.
func (q *QP) Abandon() {
	if !q.closed.CompareAndSwap(false, true) {
		return
	}
	q.state.Set(fabric.QPError)
	q.SendCQ.Detach(q.user)
	q.RecvCQ.Detach(q.user)
	if q.srq != nil {
		q.srq.users.Add(-1)
	}
	q.gone()
}
