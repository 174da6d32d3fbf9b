package rdma

import (
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
)

// Bytes of the SQE that a refusal points at.
const (
	nsidOffset    = 4
	sglOffset     = 24
	sglTypeOffset = 39
)

// take gets a free slot.
func (c *conn) take() *slot {
	s := c.free
	c.free, s.next = s.next, nil
	c.busy++
	return s
}

// start is state new: the capsule p is in slot s.
func (c *conn) start(s *slot, p capsule) {
	s.state = slotNew
	s.recv = p.recv
	s.sgl, s.transfer = dataSGL{}, target.Transfer{}
	s.Result, s.Status, s.DataLength, s.SGLLength = 0, 0, 0, 0
	s.Loan = c.loanRoom(s)
	area := &c.recvs
	if c.shared {
		area = &c.dev.srq.recvs
	}
	s.Cmd = area.sqe(p.recv)
	if c.shared {
		copy(s.sqe[:], s.Cmd)
		s.Cmd = s.sqe[:]
	}
	data := area.capsuleData(p.recv, p.n)
	ok := c.prepare(s, data)
	if c.shared && (!ok || !s.needsCapsule() || c.dev.srq.low() && (c.copyOut(s) || c.spill(s, data))) {
		c.dropRecv(s.recv)
		s.recv = noRecv
	}
	if !ok {
		c.respond(s)
		return
	}
	s.viewCapsule()
	if s.dataBytes() > 0 || s.transfer.Scratch > 0 {
		c.wantBuffers(s)
	} else {
		c.proceed(s)
	}
}

// prepare finds out what data the command moves. It is false when the command
// has ended, with its status.
func (c *conn) prepare(s *slot, data []byte) bool {
	if s.Cmd.PSDT() == 1 && mayMoveData(s.Cmd) {
		var st nvme.Status
		if s.sgl, st = parseSGL(s.Cmd, data, c.group.cfg.MaxSGL); !st.OK() {
			return s.fail(c.queue.Refuse(&s.Request, st, sglOffset))
		}
		s.SGLLength = s.sgl.total
	}
	tr, st := c.queue.Prepare(&s.Request)
	s.transfer.Lent = tr.Lent // home gives it back, whatever comes
	switch {
	case !st.OK():
		return s.fail(st)
	case tr.Dir == target.ControllerToHost && s.sgl.capsule != nil:
		return s.fail(c.queue.Reject(&s.Request, nvme.InvalidField|nvme.StatusDNR, sglTypeOffset))
	case tr.Dir != target.NoData && uint64(tr.Length) > s.sgl.total:
		return s.fail(c.queue.Reject(&s.Request, nvme.DataSGLLengthInvalid|nvme.StatusDNR, sglOffset))
	}
	s.transfer = tr
	s.pool = c.poolFor(s.Cmd)
	if tr.Lent {
		c.takeLoan(s)
	}
	return true
}

// mayMoveData says whether the opcode, or the type of a fabrics command, is of
// those that move data (Base figure 87). The SGL of others is not looked at.
func mayMoveData(cmd nvme.Command) bool {
	op := uint8(cmd.Opcode())
	if cmd.Opcode() == nvme.CmdFabrics {
		op = uint8(cmd.FCType())
	}
	return op&3 != 0
}

// poolFor is the index of the pool that the command's buffers come from.
func (c *conn) poolFor(cmd nvme.Command) uint8 {
	if c.qid == 0 || cmd.Opcode() == nvme.CmdFabrics {
		return adminPool
	}
	return dataPool
}

// fail sets the final status and returns false.
func (s *slot) fail(st nvme.Status) bool {
	s.Status, s.DataLength = st, 0
	return false
}

// refuse ends a request that was prepared and not executed, with an error status.
func (c *conn) refuse(s *slot, st nvme.Status, loc int) {
	s.fail(c.queue.Reject(&s.Request, st, loc))
	c.respond(s)
}

// viewCapsule lets Bufs name the data in the capsule, when it is there and
// has not been copied out of it.
func (s *slot) viewCapsule() {
	if s.Bufs == nil && s.sgl.capsule != nil && s.transfer.Length > 0 {
		s.vecs[0] = s.sgl.capsule[:s.transfer.Length]
		s.Bufs = s.vecs[:1]
	}
}

// needsCapsule says whether something behind the SQE is still wanted. The SQE
// itself has been copied out of a shared receive, which goes back at once when
// nothing is.
func (s *slot) needsCapsule() bool { return s.sgl.capsule != nil || s.sgl.list }

// copyOut moves the data in the capsule to a buffer, if one is free: when shared
// receives are short, a slow backend must not hold them.
func (c *conn) copyOut(s *slot) bool {
	n := s.transfer.Length
	if s.sgl.list || n == 0 || s.transfer.Scratch > 0 {
		return false
	}
	s.share = c.group.shareOf(s)
	if s.share.n > 0 || !c.group.allot(s, n) {
		return false
	}
	data := s.sgl.capsule
	for _, b := range s.Bufs {
		data = data[copy(b, data):]
	}
	return true
}

// spill moves what came behind the SQE to memory of its own, where copyOut could
// not: else the commands of a namespace that has used up its share, as when its
// backend hangs, would keep all receives from everybody. It is not registered, but
// counts as what is does, so that hosts cannot make it grow; what it holds is read
// by the backend and ourselves alone. It is false when there is no memory left.
func (c *conn) spill(s *slot, data []byte) bool {
	size := len(data) + pageSize
	if !c.group.t.memory.take(int64(size)) {
		return false
	}
	b := make([]byte, size) // not on the data path: receives are short
	s.spilled = b
	b = b[-addressOf(b)&(pageSize-1):][:len(data)] // as a receive would have it
	copy(b, data)
	move := func(p []byte) []byte { return b[addressOf(p)-addressOf(data):][:len(p)] }
	if s.sgl.capsule != nil {
		s.sgl.capsule = move(s.sgl.capsule)
	}
	if s.sgl.list {
		s.sgl.keyed = move(s.sgl.keyed)
	}
	return true
}

// dropSpilled gives back what spill took.
func (c *conn) dropSpilled(s *slot) {
	if s.spilled != nil {
		c.group.t.memory.give(int64(len(s.spilled)))
		s.spilled = nil
	}
}

// wantBuffers gives the request its buffers, or a place in its share's line.
func (c *conn) wantBuffers(s *slot) {
	g := c.group
	s.share = g.shareOf(s)
	if s.share.n == 0 && g.acquire(s) {
		c.proceed(s)
		return
	}
	if pagesOf(s.dataBytes())+pagesOf(s.transfer.Scratch) > g.pools[s.pool].buddies {
		c.refuse(s, nvme.InternalError, -1) // more than MaxTransfer: waiting would be for ever
		return
	}
	s.state = slotWantBuffer
	c.stats.BufferWaits++
	g.wait(s)
}

// proceed goes on with a request that has its buffers.
func (c *conn) proceed(s *slot) {
	if s.transfer.Dir == target.HostToController && s.dataBytes() > 0 {
		c.wantRead(s)
		return
	}
	c.execute(s)
}

// wantRead lets the data be fetched at the end of the turn, or when earlier
// READs have ended.
func (c *conn) wantRead(s *slot) {
	s.state = slotWantRead
	s.cur = cursor{left: s.transfer.Length}
	c.readq.push(s)
	c.markDirty()
}

// execute gives the request to the core, which ends it in Complete.
func (c *conn) execute(s *slot) {
	s.state = slotExecuting
	c.queue.Execute(&s.Request)
}

// respond lets data and response be posted at the end of the turn, or when
// there is room for them.
func (c *conn) respond(s *slot) {
	s.state = slotWantSend
	c.sendq.push(s)
	c.markDirty()
}

// home ends the request: what it held is free, and so is its slot.
func (c *conn) home(s *slot) {
	c.group.releaseBuffers(s)
	c.dropSpilled(s)
	if s.recv != noRecv {
		c.dropRecv(s.recv)
		s.recv = noRecv
	}
	s.Cmd, s.sgl = nil, dataSGL{}
	s.state = slotFree
	s.next, c.free = c.free, s
	c.busy--
	if c.waiting.len() > 0 && !c.closing {
		c.start(c.take(), c.waiting.pop())
	}
}
