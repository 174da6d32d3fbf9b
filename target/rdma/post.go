package rdma

import (
	"fmt"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
)

// maxUnsignaled bounds the responses posted behind one another without a
// completion, so that what they hold comes back in good time.
const maxUnsignaled = 32

// batch is a group's scratch memory for the work requests of one connection's
// turn.
type batch struct {
	wrs      []fabric.SendWR
	sges     []fabric.SGE
	recvs    []fabric.RecvWR
	recvSGEs []fabric.SGE
}

func (b *batch) reset() {
	b.wrs, b.sges, b.recvs, b.recvSGEs = b.wrs[:0], b.sges[:0], b.recvs[:0], b.recvSGEs[:0]
}

// add appends a send WR with the SGEs behind firstSGE.
func (b *batch) add(wr fabric.SendWR, firstSGE int) {
	wr.FirstSGE, wr.NumSGE = uint32(firstSGE), uint8(len(b.sges)-firstSGE)
	b.wrs = append(b.wrs, wr)
}

func (b *batch) signalLast() { b.wrs[len(b.wrs)-1].Flags |= fabric.FlagSignaled }

// markDirty puts the connection on the list of those that flush at the end of
// the turn.
func (c *conn) markDirty() {
	if !c.dirty {
		c.dirty = true
		c.group.dirty = append(c.group.dirty, c)
	}
}

// room is how many WRs the send queue can take.
func (c *conn) room() int { return c.sqDepth - c.sq.len() }

// flush posts what the turn has gathered: the receives first, for with the
// responses the host may send again; then READs, the WRITEs of all responses,
// and the responses.
func (c *conn) flush() {
	c.dirty = false
	if c.closing || c.queue.Ending() { // what is left is swept at the end, which is near
		return
	}
	b := &c.group.batch
	b.reset()
	c.gatherReads(b)
	c.gatherResponses(b)
	if len(b.recvs) > 0 {
		c.postRecvs(b)
	}
	if len(b.wrs) > 0 {
		c.postSends(b)
	}
}

// nextID takes a place in the send queue for a WR of slot s.
func (c *conn) nextID(s *slot, k wrKind) uint64 {
	id := makeID(c.sq.tail, c.index, s.index) | uint64(k)
	c.sq.push(id)
	s.wrs++
	return id
}

// gatherReads adds RDMA READs for the requests at the head of readq, as far as
// the peer can answer them.
func (c *conn) gatherReads(b *batch) {
	for c.readq.head != nil && c.reads < c.ord && c.room() > 0 {
		s := c.readq.head
		s.state = slotReading
		c.appendRead(s, b)
		if s.cur.left == 0 {
			c.readq.pop()
		}
	}
	if len(b.wrs) > 0 {
		b.signalLast()
	}
	if c.readq.head != nil {
		c.stats.ReadWaits++
	}
}

func (c *conn) appendRead(s *slot, b *batch) {
	first := len(b.sges)
	pieces, lkey := c.memory(s)
	addr, rkey, n, sges := s.segment(&s.cur, pieces, lkey, c.dev.readSGE, c.dev.maxMessage, b.sges)
	b.sges = sges
	wr := fabric.SendWR{RemoteAddr: addr, RKey: rkey, Op: fabric.OpRead}
	if s.cur.left == 0 {
		wr.ID, wr.Flags = c.nextID(s, wrReadLast), fabric.FlagSignaled
	} else {
		wr.ID = c.nextID(s, wrRead)
	}
	b.add(wr, first)
	c.reads++
	c.stats.ReadBytes += uint64(n)
}

// gatherResponses adds the WRITEs and then the SENDs of the requests at the
// head of sendq, as far as both queues have room.
func (c *conn) gatherResponses(b *batch) {
	n := 0
	for s := c.sendq.head; s != nil && c.sends+n < c.hostRecvs; s = s.next {
		wrs, sges, tail := len(b.wrs), len(b.sges), c.sq.tail
		fits := c.appendWrites(s, b)
		if !fits || c.room() < n+1 {
			s.wrs -= uint16(len(b.wrs) - wrs)
			b.wrs, b.sges, c.sq.tail = b.wrs[:wrs], b.sges[:sges], tail
			break
		}
		n++
	}
	for range n {
		c.appendSend(c.sendq.pop(), b)
	}
	if n > 0 {
		b.signalLast()
		c.unsignaled = 0
	}
	if c.sendq.head != nil {
		c.stats.SendWaits++
	}
}

// appendWrites adds the RDMA WRITEs of a response. It is false when the send
// queue has no room for all of them.
func (c *conn) appendWrites(s *slot, b *batch) bool {
	if s.transfer.Dir != target.ControllerToHost || !s.Status.OK() || s.DataLength == 0 {
		return true
	}
	cur := cursor{left: min(s.DataLength, s.transfer.Length)}
	pieces, lkey := c.memory(s)
	for cur.left > 0 {
		if c.room() == 0 {
			return false
		}
		first := len(b.sges)
		addr, rkey, _, sges := s.segment(&cur, pieces, lkey, c.dev.writeSGE, c.dev.maxMessage, b.sges)
		b.sges = sges
		b.add(fabric.SendWR{ID: c.nextID(s, wrWrite), RemoteAddr: addr, RKey: rkey, Op: fabric.OpWrite}, first)
	}
	return true
}

// appendSend adds the response capsule, and the receive that lets the host use
// its place again.
func (c *conn) appendSend(s *slot, b *batch) {
	s.state = slotSending
	c.sends++
	c.stats.count(s)
	cqe := c.cqes[s.index*nvme.CQESize:][:nvme.CQESize]
	nvme.Completion(cqe).Put(s.Result, c.queue.SQHD(), c.queue.ID(), s.Cmd.CID(), s.Status)
	c.answered(s, b)

	wr := fabric.SendWR{Op: fabric.OpSend, Flags: c.inline}
	kind := wrSend
	if s.sgl.inv && c.dev.canInvalidate() {
		wr.Op, wr.RKey, kind = fabric.OpSendInv, s.sgl.key, wrSendInv
	}
	if c.unsignaled++; c.unsignaled == maxUnsignaled {
		wr.Flags |= fabric.FlagSignaled
		c.unsignaled = 0
	}
	wr.ID = c.nextID(s, kind)
	first := len(b.sges)
	b.sges = append(b.sges, fabric.SGE{Addr: c.cqeAddr + uint64(s.index)*nvme.CQESize, Length: nvme.CQESize, LKey: c.lkey})
	b.add(wr, first)
}

// answered ends the capsule's time: its receive goes back.
func (c *conn) answered(s *slot, b *batch) {
	c.outstanding--
	if s.recv == noRecv {
		return
	}
	if c.shared {
		c.dropRecv(s.recv)
	} else {
		c.recvs.append(b, c.recvID(s.recv), s.recv)
	}
	s.recv = noRecv
}

func (c *conn) recvID(i int32) uint64 {
	return makeID(c.gen, c.index, uint32(i)) | uint64(wrRecv)
}

// postRecvs posts the receives of b.
func (c *conn) postRecvs(b *batch) {
	n, err := c.qp.PostRecv(b.recvs, b.recvSGEs)
	for _, wr := range b.recvs[:n] {
		c.posted[idSlot(wr.ID)] = true
	}
	c.nPosted += n
	if err != nil {
		c.end(fmt.Errorf("post receive: %w", err))
	}
}

// postSends posts the send WRs of b. What could not be posted is taken back,
// and the connection ends.
func (c *conn) postSends(b *batch) {
	n, err := c.qp.PostSend(b.wrs, b.sges)
	if err == nil {
		return
	}
	for _, wr := range b.wrs[n:] {
		c.sq.tail--
		c.unpost(wr.ID)
	}
	c.end(fmt.Errorf("post send: %w", err))
	c.sweep()
	if n > 0 {
		c.mark()
	}
}

// mark posts a WRITE of nothing that will flush. Without it unsignaled WRs that
// were posted last could have ended well, and nothing would tell.
func (c *conn) mark() {
	id := makeID(c.sq.tail, c.index, 0) | uint64(wrMark)
	b := &c.group.batch
	b.reset()
	b.add(fabric.SendWR{ID: id, Op: fabric.OpWrite, Flags: fabric.FlagSignaled}, 0)
	if n, _ := c.qp.PostSend(b.wrs, nil); n == 1 { // else the drain timer has to do
		c.sq.push(id)
	}
}

// unpost takes the WR with that ID out of the counts. A mark has no slot.
func (c *conn) unpost(id uint64) *slot {
	s := &c.slots[idSlot(id)]
	switch idKind(id) {
	case wrMark:
		return nil
	case wrRead, wrReadLast:
		c.reads--
	case wrSend, wrSendInv:
		c.sends--
	}
	s.wrs--
	return s
}

// sendDone takes a completion of the send queue. It stands for all WRs before
// its own, too: those on one queue end in order.
func (c *conn) sendDone(wc *fabric.Completion) {
	if ahead := idGen(wc.ID) - c.sq.head; ahead >= uint32(c.sq.len()) || c.sq.at(c.sq.head+ahead) != wc.ID {
		c.group.stats.Stale++
		return
	}
	c.progress++
	if wc.Status != fabric.StatusSuccess {
		c.brokenSend(wc)
	}
	for {
		id := c.sq.pop()
		c.retire(id)
		if id == wc.ID {
			break
		}
	}
	if c.closing {
		c.settle()
	} else if c.sendq.head != nil || c.readq.head != nil {
		c.markDirty()
	}
}

// retire ends one WR and moves its slot on.
func (c *conn) retire(id uint64) {
	s := c.unpost(id)
	if s == nil || s.wrs > 0 {
		return
	}
	switch kind := idKind(id); {
	case c.closing:
		c.home(s)
	case kind == wrReadLast:
		c.execute(s)
	case kind == wrSend || kind == wrSendInv:
		c.home(s)
	}
}

var sendNames = [...]string{
	wrRead: "RDMA READ of the command's data", wrReadLast: "RDMA READ of the command's data",
	wrWrite: "RDMA WRITE of the command's data", wrSend: "SEND of a response", wrSendInv: "SEND_WITH_INV of a response",
	wrMark: "RDMA WRITE of nothing",
}

// brokenSend ends the connection with the cause that a completion gives.
func (c *conn) brokenSend(wc *fabric.Completion) {
	kind := idKind(wc.ID)
	switch {
	case wc.Status == fabric.StatusFlushed:
		c.end(errFlushed)
		return
	case wc.Status == fabric.StatusLocalQPOp && kind == wrSendInv:
		c.dev.stopInvalidating()
	}
	c.end(fmt.Errorf("%s failed: %v (vendor error %#x)", sendNames[kind], wc.Status, wc.Vendor))
}
