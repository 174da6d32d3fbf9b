package rdma

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
)

// Errors that end a connection.
var (
	errFlushed    = fmt.Errorf("connection lost: %w", net.ErrClosed)
	errDrained    = fmt.Errorf("the target is shutting down: %w", net.ErrClosed)
	errDeviceGone = errors.New("the RDMA device is gone")
)

// conn is the connection of one queue, and the core's Link to it.
//
//	attached --> established --> closing --> down --> released
//	    \____________________________^
//
// Attached: the QP is there and has its receives; capsules may come before the
// handshake's end is known. Closing: the QP is (or will be, once the handshake
// has ended) in the error state, work requests flush, requests that wait are
// dropped. Down: the QP is closed; only the core may still have requests.
// Released: nothing is left, the memory goes back.
type conn struct {
	// Constant since the group has attached it.

	group     *group
	dev       *groupDevice
	cq        *cq
	listener  *Listener
	peer      netip.AddrPort
	local     netip.AddrPort
	index     uint32 // in group.conns
	gen       uint32 // of the IDs of its receives
	qid       uint16
	depth     int  // capsules the host may have outstanding
	hostRecvs int  // receives the host posts: responses that may be in flight
	sqDepth   int  // WRs that requests may have on the send queue; a mark has one more
	shared    bool // receives come from dev.srq
	recvs     recvArea
	cqes      []byte // a CQE for each slot
	cqeAddr   uint64
	lkey      uint32
	mem       *fabric.Memory
	region    fabric.MemoryRegion
	held      int64 // taken from the budget
	since     time.Time

	// Owned by the poll group.

	qp          fabric.QueuePair
	fc          fabric.Conn // nil until the handshake has ended well
	queue       *target.Queue
	inline      fabric.SendFlags // FlagInline when the device takes a CQE inline
	ord         int              // RDMA READs that may be in flight; 0 until established
	slots       []slot
	free        *slot
	busy        int           // slots in use
	outstanding int           // capsules received and not answered
	waiting     ring[capsule] // capsules that wait for a slot
	posted      []bool        // own receives: which are posted
	nPosted     int
	readq       fifo         // requests in wantRead, the first perhaps in reading
	sendq       fifo         // requests in wantSend
	sq          ring[uint64] // IDs of the WRs on the send queue
	reads       int          // READs in flight
	sends       int          // responses in flight
	unsignaled  int          // responses since the last that is signaled
	progress    uint64       // completions of the send queue
	seen        uint64       // progress when group.stall was armed
	moving      bool         // READs or responses were in flight then
	dirty       bool         // in group.dirty
	settling    bool         // in group.settling
	attached    bool         // the group has it; from now on it ends there
	closing     bool
	failed      bool // the handshake failed: the QP is gone, there will be no fc
	down        bool
	released    bool
	quiet       int // polls that emptied the CQ since the last WR has flushed
	drainTimer  *time.Timer
	stats       ConnStats
}

// memory is where the slot's data is, for the device: on loan, or in a buffer.
func (c *conn) memory(s *slot) (pieces [][]byte, lkey uint32) {
	if s.transfer.Lent {
		return s.Loan, s.loanKey
	}
	return s.Bufs, c.dev.keys[s.pool]
}

// attach makes the connection the group's: it gets its place, its queue and
// its receives. It runs in ConnConfig.Setup, as a message.
func (g *group) attach(c *conn, qp fabric.QueuePair) error {
	if g.t.draining.Load() {
		return errDrained
	}
	if c.dev.gone.Load() {
		return errDeviceGone
	}
	queue, err := g.core.NewQueue(target.QueueConfig{Link: c, Port: c.listener.port, QID: int(c.qid), Depth: c.depth})
	if err != nil {
		return err
	}
	c.attached = true
	c.queue, c.qp = queue, qp
	if qp.MaxInline() >= nvme.CQESize {
		c.inline = fabric.FlagInline
	}
	c.index = g.place(c)
	c.gen = g.nextGen
	c.sq = newRing[uint64](c.sqDepth+1, g.nextGen)
	g.nextGen += genStep
	if !c.cq.attached {
		c.cq.attached = true
		g.cqs = append(g.cqs, c.cq)
	}
	if c.shared {
		c.dev.share(c, qp.Num())
		return nil
	}
	return c.postAll()
}

// genStep is how far apart the generations of one connection index begin.
const genStep = 0x9E3779B1

// place gives the connection an index.
func (g *group) place(c *conn) uint32 {
	if n := len(g.freeConns); n > 0 {
		i := g.freeConns[n-1]
		g.freeConns = g.freeConns[:n-1]
		g.conns[i] = c
		return i
	}
	g.conns = append(g.conns, c)
	return uint32(len(g.conns) - 1)
}

// postAll posts all receives.
func (c *conn) postAll() error {
	b := &c.group.batch
	b.reset()
	for i := range int32(c.recvs.n) {
		c.recvs.append(b, c.recvID(i), i)
	}
	n, err := c.qp.PostRecv(b.recvs, b.recvSGEs)
	for i := range n {
		c.posted[i] = true
	}
	c.nPosted = n
	return err
}

// established ends the handshake well.
func (c *conn) established(fc fabric.Conn) {
	c.fc = fc
	c.ord = min(fc.ORD(), c.group.cfg.MaxReads)
	if c.closing { // it was ended meanwhile
		c.startFlush()
		c.settle()
		return
	}
	c.group.cfg.Log.Debugf("rdma: %v: queue %d: connected, depth %d, %d READs, group %d", c.peer, c.qid, c.depth, c.ord, c.group.index)
	if c.readq.head != nil {
		c.markDirty()
	}
}

// handshakeFailed ends a connection that was attached and never established:
// the provider has taken the QP back, and with it every WR.
func (c *conn) handshakeFailed(err error) {
	c.failed = true
	c.end(fmt.Errorf("handshake: %w", err))
	c.force()
}

// closedByFabric is ConnConfig.Closed, as a message.
func (c *conn) closedByFabric(err error) {
	switch {
	case !c.attached:
	case err == nil:
		c.end(errFlushed)
	default:
		c.end(err)
	}
}

// end begins the end of the connection; the first reason counts. errFlushed
// gives way to what the fabric knows.
func (c *conn) end(reason error) {
	if c.closing {
		return
	}
	c.closing = true
	if c.fc != nil && errors.Is(reason, errFlushed) {
		if err := c.fc.Err(); err != nil {
			reason = err
		}
	}
	c.logEnd(reason) // before the host can notice
	if c.fc != nil {
		c.startFlush()
	}
	if c.shared {
		c.group.draining = append(c.group.draining, c)
	}
	c.queue.Close(reason)
	c.sweep()
	c.settle()
}

// logEnd says who went and why: loudly when it was not in order, and when
// nobody has said so.
func (c *conn) logEnd(reason error) {
	var core *coreError
	if errors.Is(reason, net.ErrClosed) || errors.As(reason, &core) {
		c.group.cfg.Log.Debugf("rdma: %v: queue %d: disconnected: %v", c.peer, c.qid, reason)
		return
	}
	c.group.t.limit.warn("rdma: %v: queue %d: disconnected: %v", c.peer, c.qid, reason)
}

// startFlush puts the QP into the error state and watches over its flush.
func (c *conn) startFlush() {
	_ = c.fc.Disconnect() // an error means that it is disconnected
	c.drainTimer = time.AfterFunc(c.group.cfg.DrainTimeout, func() { c.group.post(c.drainExpired) })
}

// drainExpired destroys a QP that does not flush.
func (c *conn) drainExpired() {
	if c.down {
		return
	}
	c.group.t.limit.warn("rdma: %v: queue %d: %d work requests did not flush within %v: the QP is destroyed",
		c.peer, c.qid, c.sq.len()+c.nPosted, c.group.cfg.DrainTimeout)
	c.force()
}

// sweep brings the requests home of which nothing is moving. The rest follows
// with its work requests, or with the core.
func (c *conn) sweep() {
	c.group.unqueue(func(s *slot) bool {
		if s.conn == c {
			c.home(s)
		}
		return s.conn == c
	})
	for c.readq.head != nil {
		if s := c.readq.pop(); s.wrs == 0 {
			c.home(s)
		}
	}
	for c.sendq.head != nil {
		c.home(c.sendq.pop())
	}
	for i := range c.slots { // WRs that could not be posted
		if s := &c.slots[i]; s.wrs == 0 && (s.state == slotReading || s.state == slotSending) {
			c.home(s)
		}
	}
	for c.waiting.len() > 0 {
		c.dropRecv(c.waiting.pop().recv)
	}
}

// force takes every WR as flushed. The QP is gone or is destroyed, lest it read
// what the requests give back here.
func (c *conn) force() {
	if c.fc != nil && !c.down {
		c.takeDown()
	}
	for c.sq.len() > 0 {
		c.retire(c.sq.pop())
	}
	clear(c.posted)
	c.nPosted = 0
	c.quiet = quietPolls
	c.sweep()
	c.settle()
}

// settle looks at the connection's end at the end of the turn.
func (c *conn) settle() {
	if !c.settling {
		c.settling = true
		c.group.settling = append(c.group.settling, c)
	}
}

// quietPolls is how often a CQ has to be found empty after the last flush of a
// QP with shared receives: those have no flush of their own to wait for.
const quietPolls = 2

// flushed says whether no WR of the connection is left.
func (c *conn) flushed() bool {
	return c.sq.len() == 0 && c.nPosted == 0 && (!c.shared || c.quiet >= quietPolls)
}

// drain counts the quiet polls of connections with shared receives. It says
// whether it wants more of them.
func (g *group) drain() (busy bool) {
	kept := g.draining[:0]
	for _, c := range g.draining {
		if c.down {
			continue
		}
		kept = append(kept, c)
		if c.sq.len() == 0 && c.cq.emptied && c.quiet < quietPolls {
			c.quiet++
			c.settle()
			busy = true
		}
	}
	clear(g.draining[len(kept):])
	g.draining = kept
	return busy
}

// settleNow takes a closing connection further, when it can go.
func (c *conn) settleNow() {
	if !c.closing || c.released {
		return
	}
	if !c.down && (c.fc != nil || c.failed) && c.flushed() {
		c.takeDown()
	}
	if c.down && c.busy == 0 {
		c.release()
	}
}

// takeDown closes the QP: nothing moves any more.
func (c *conn) takeDown() {
	c.down = true
	if c.drainTimer != nil {
		c.drainTimer.Stop()
	}
	if c.shared {
		delete(c.dev.qpns, c.qp.Num())
	}
	if c.fc != nil {
		if err := c.fc.Close(); err != nil {
			c.group.t.limit.warn("rdma: %v: queue %d: close: %v", c.peer, c.qid, err)
		}
	}
}

// release gives the connection's place and memory back.
func (c *conn) release() {
	c.released = true
	g := c.group
	g.conns[c.index] = nil
	g.freeConns = append(g.freeConns, c.index)
	g.stats.closed(&c.stats)
	go g.t.release(c) // unregistering and unmapping take their time
}
