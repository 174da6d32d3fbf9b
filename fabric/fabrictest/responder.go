package fabrictest

import (
	"fmt"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
)

// runBytes is how many bytes a QP moves in one run before others have a turn.
const runBytes = 4 << 20

// statusWait is no status: the WR cannot be run yet.
const statusWait fabric.Status = 0xff

// stall is what happened to the peer's oldest WR on its way, while it is not
// done: everything between a requester and a responder when things go wrong.
type stall struct {
	on      bool
	until   time.Time     // not before
	tries   uint8         // used up of the requester's retries
	rnrs    uint8         // used up of its RNR retries
	delayed bool          // has had its delay
	passed  bool          // was executed: only the answer is missing
	status  fabric.Status // which is this
}

// respond runs WRs of the peer.
func (q *queuePair) respond() {
	in := &q.peer.out
	if in.executed.Load() == in.published.Load() || !in.lock.CompareAndSwap(streamFree, streamBusy) {
		return
	}
	from := in.executed.Load()
	end := in.published.Load()
	pos := q.serve(from, end)
	in.executed.Store(pos)
	in.lock.Store(streamFree)
	if pos != from {
		q.dev.hw.stats.executed.Add(uint64(pos - from))
		q.peer.schedule()
	}
}

// serve runs WRs of the peer from pos on and returns where it stopped.
func (q *queuePair) serve(pos, end uint32) uint32 {
	sends, faults := q.peer.Sends(), q.link.faults.Load()
	for budget := int64(runBytes); pos != end && q.State() == fabric.QPReadyToSend; pos++ {
		s := sends.At(pos)
		if s.Aux&auxLocal != 0 {
			continue
		}
		if budget < 0 {
			q.schedule()
			break
		}
		budget -= int64(s.Length)
		var status fabric.Status
		if faults == nil && !q.stall.on {
			status = q.execute(s, pos)
		} else {
			status = q.receive(s, pos, faults)
		}
		if status == statusWait {
			break
		}
		if status != fabric.StatusSuccess {
			q.peer.out.failed.Store(uint64(pos)<<8 | uint64(status))
			return pos + 1
		}
	}
	return pos
}

// receive is execute behind a link with faults, or after a delay.
func (q *queuePair) receive(s *core.Send, pos uint32, f *Faults) fabric.Status {
	st := &q.stall
	st.on = true
	if f == nil {
		f = new(Faults)
	}
	if f.Cut || time.Now().Before(st.until) {
		return statusWait
	}
	if f.Delay > 0 && !st.delayed {
		st.delayed = true
		return q.wait(f.Delay)
	}
	if !st.passed {
		if q.dev.net.chance(f.Drop) {
			return q.lose()
		}
		if st.status = q.execute(s, pos); st.status == statusWait {
			return statusWait
		}
		st.passed = true
		if q.dev.net.chance(f.Duplicate) {
			q.dev.hw.stats.duplicates.Add(1)
		}
	} else {
		q.dev.hw.stats.duplicates.Add(1) // sent again for want of an answer
	}
	if st.status == fabric.StatusSuccess && q.dev.net.chance(f.DropAck) {
		return q.lose()
	}
	status := st.status
	q.stall = stall{}
	return status
}

// wait has the WR come again after d.
func (q *queuePair) wait(d time.Duration) fabric.Status {
	q.stall.on = true
	q.stall.until = time.Now().Add(d)
	q.inTimer = rearm(q.inTimer, d, q.schedule)
	return statusWait
}

// lose has the requester send again after its timeout, if it has a retry left.
func (q *queuePair) lose() fabric.Status {
	if q.stall.tries == q.peer.retryCount {
		return fabric.StatusRetryExceeded
	}
	q.stall.tries++
	q.dev.hw.stats.retries.Add(1)
	return q.wait(q.dev.net.opts.AckTimeout)
}

// notReady is what a message meets when no receive is posted.
func (q *queuePair) notReady() fabric.Status {
	const forever = 7
	q.dev.hw.stats.rnrs.Add(1)
	if !q.dev.Limits().RNR {
		return q.refuse(fabric.StatusRemoteOp, "no receive is posted")
	}
	if n := q.peer.rnrRetry; n != forever {
		if q.stall.rnrs == n {
			return fabric.StatusRNRRetryExceeded
		}
		q.stall.rnrs++
	}
	return q.wait(q.dev.net.opts.RNRDelay)
}

// refuse ends this QP for what the peer asked for; status is what the peer's
// WR ends with.
func (q *queuePair) refuse(status fabric.Status, why string) fabric.Status {
	q.dev.hw.stats.refused.Add(1)
	q.fail(fmt.Errorf("%w: the peer's request was refused: %s", fabric.ErrQPError, why), false)
	return status
}

// refuseRecv is refuse for a message that has its receive, which ends with own.
func (q *queuePair) refuseRecv(own, status fabric.Status, why string) fabric.Status {
	q.CompleteRecv(fabric.Completion{Status: own, Op: fabric.OpRecv})
	return q.refuse(status, why)
}

// execute runs a WR of the peer and returns the peer's status for it, or
// statusWait.
func (q *queuePair) execute(s *core.Send, pos uint32) fabric.Status {
	switch s.Op {
	case fabric.OpSend, fabric.OpSendImm, fabric.OpSendInv:
		return q.executeSend(s, pos)
	case fabric.OpWrite, fabric.OpWriteImm:
		return q.executeWrite(s, pos)
	case fabric.OpRead:
		return q.executeRead(s, pos)
	}
	return q.executeAtomic(s, pos)
}

// fetch copies the payload of q's WR from off on into dst, for the responder.
func (q *queuePair) fetch(s *core.Send, pos uint32, off uint64, dst []byte) fabric.Status {
	if s.Flags&fabric.FlagInline != 0 {
		copy(dst, q.Sends().Inline(pos)[off:])
		return fabric.StatusSuccess
	}
	if _, f := q.dev.Table().Gather(dst, q.Sends().SGEs(pos), off); f != core.FaultNone {
		return fabric.StatusLocalProtection
	}
	return fabric.StatusSuccess
}

func (q *queuePair) executeSend(s *core.Send, pos uint32) fabric.Status {
	if !q.TakeRecv() {
		return q.notReady()
	}
	r := q.Recv()
	if uint64(s.Length) > r.Room() {
		return q.refuseRecv(fabric.StatusLocalLength, fabric.StatusRemoteInvalidReq, "the message is longer than the receive")
	}
	for off := uint32(0); off < s.Length; {
		dst, f := q.dev.Table().Slice(r.SGEs, uint64(off), s.Length-off, fabric.AccessLocalWrite)
		if f != core.FaultNone {
			return q.refuseRecv(fabric.StatusLocalProtection, fabric.StatusRemoteOp, "a receive buffer is not accessible")
		}
		if status := q.peer.fetch(s, pos, uint64(off), dst); status != fabric.StatusSuccess {
			return status
		}
		off += uint32(len(dst))
	}
	c := fabric.Completion{Op: fabric.OpRecv, ByteLen: s.Length}
	switch s.Op {
	case fabric.OpSendImm:
		c.Imm, c.Flags = s.Imm, fabric.CompletionImm
	case fabric.OpSendInv:
		if !q.dev.Table().Invalidate(q.Num(), s.RKey) {
			return q.refuseRecv(fabric.StatusRemoteInvalidReq, fabric.StatusRemoteAccess, "the key to invalidate is not one of this QP")
		}
		c.Imm, c.Flags = s.RKey, fabric.CompletionInvalidated
	}
	q.CompleteRecv(c)
	return fabric.StatusSuccess
}

func (q *queuePair) executeWrite(s *core.Send, pos uint32) fabric.Status {
	if s.Op == fabric.OpWriteImm && !q.TakeRecv() {
		return q.notReady()
	}
	if s.Length > 0 {
		dst, f := q.CheckRemote(s.RKey, s.RemoteAddr, s.Length, fabric.AccessRemoteWrite)
		if f != core.FaultNone {
			return q.refuse(fabric.StatusRemoteAccess, f.String())
		}
		if status := q.peer.fetch(s, pos, 0, dst); status != fabric.StatusSuccess {
			return status
		}
	}
	if s.Op == fabric.OpWriteImm {
		q.CompleteRecv(fabric.Completion{Op: fabric.OpRecvWriteImm, ByteLen: s.Length, Imm: s.Imm, Flags: fabric.CompletionImm})
	}
	return fabric.StatusSuccess
}

// mayRead holds a READ or an atomic against IRD.
func (q *queuePair) mayRead(s *core.Send) bool { return int64(s.Aux) <= int64(q.ird) }

func (q *queuePair) executeRead(s *core.Send, pos uint32) fabric.Status {
	if !q.mayRead(s) {
		return q.refuse(fabric.StatusRemoteInvalidReq, "more RDMA READs than IRD")
	}
	if s.Length == 0 {
		return fabric.StatusSuccess
	}
	src, f := q.CheckRemote(s.RKey, s.RemoteAddr, s.Length, fabric.AccessRemoteRead)
	if f != core.FaultNone {
		return q.refuse(fabric.StatusRemoteAccess, f.String())
	}
	return q.peer.deliver(pos, src)
}

// deliver puts the answer to q's READ or atomic into its SGEs, for the
// responder.
func (q *queuePair) deliver(pos uint32, src []byte) fabric.Status {
	if _, f := q.dev.Table().Scatter(q.Sends().SGEs(pos), 0, src); f != core.FaultNone {
		return fabric.StatusLocalProtection
	}
	return fabric.StatusSuccess
}

func (q *queuePair) executeAtomic(s *core.Send, pos uint32) fabric.Status {
	if !q.mayRead(s) {
		return q.refuse(fabric.StatusRemoteInvalidReq, "more atomics than IRD")
	}
	b, f := q.CheckRemote(s.RKey, s.RemoteAddr, core.AtomicSize, fabric.AccessRemoteAtomic)
	if f != core.FaultNone {
		return q.refuse(fabric.StatusRemoteAccess, f.String())
	}
	old, ok := core.Atomic(s.Op, b, s.Compare, s.SwapAdd)
	if !ok {
		return q.refuse(fabric.StatusRemoteInvalidReq, "the atomic is not aligned")
	}
	return q.peer.deliver(pos, core.HostBytes(&old))
}
