package rdma

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// offer is what a host's connection request says.
type offer struct {
	private []byte
	padded  bool // private may be longer than it was sent: zeroes behind it
	peerIRD int  // RDMA READs the host can answer at a time
	maxORD  int  // RDMA READs our device can have in flight
	maxQP   int  // WRs of one of its queues; 0: unknown
}

// check decides on a connection request (RDMA 3.1). The status is 0 when the
// request is fine as far as it can be told without reserving anything.
func (o *offer) check(cfg *Config, known func(cntlid uint16) bool) (r nvme.CMRequest, st nvme.CMStatus) {
	if n := len(o.private); n != nvme.CMRequestSize && !(o.padded && n > nvme.CMRequestSize) {
		return r, nvme.CMInvalidLength
	}
	if err := r.Unmarshal(o.private); err != nil {
		return r, nvme.CMInvalidLength
	}
	depth := cfg.MaxQueueDepth
	if r.QID == 0 {
		depth = cfg.AdminDepth
	}
	if o.maxQP > 0 {
		depth = min(depth, o.maxQP-1) // a queue posts one receive more
	}
	switch {
	case r.RecFmt != 0:
		return r, nvme.CMInvalidRecFmt
	case int(r.QID) > cfg.MaxQueues:
		return r, nvme.CMInvalidQID
	case r.HSQSize == 0 || int(r.HSQSize)+1 > depth:
		return r, nvme.CMInvalidHSQSize
	case r.HRQSize == 0:
		return r, nvme.CMInvalidHRQSize
	case o.peerIRD == 0:
		return r, nvme.CMInvalidIRD
	case o.maxORD == 0:
		return r, nvme.CMInvalidORD
	case r.QID != 0 && r.CNTLID != 0 && !known(r.CNTLID):
		return r, nvme.CMInvalidCNTLID
	}
	return r, 0
}

// handshake answers one connection request. It blocks until the connection is
// established, refused or has failed.
func (l *Listener) handshake(ctx context.Context, req fabric.Request) {
	t := l.t
	info := req.Device().Info()
	o := offer{
		private: req.PrivateData(), padded: info.Transport != fabric.TransportIWARP,
		peerIRD: req.PeerIRD(), maxORD: info.Limits.MaxORD, maxQP: info.Limits.MaxQPDepth,
	}
	r, st := o.check(&t.cfg, t.target.HasController)
	if st != 0 {
		l.reject(req, r.QID, st, nil)
		return
	}
	c, err := t.admit(l, req, r)
	if err != nil {
		l.reject(req, r.QID, nvme.CMNoResources, err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.HandshakeTimeout)
	defer cancel()
	l.connect(ctx, req, c)
}

// connect accepts the request for c. Whatever happens, c finds its end in its
// group, or here when it never got there.
func (l *Listener) connect(ctx context.Context, req fabric.Request, c *conn) {
	g := c.group
	accept := make([]byte, nvme.CMAcceptSize)
	(&nvme.CMAccept{CRQSize: uint16(c.depth)}).MarshalTo(accept)
	cfg := fabric.ConnConfig{
		SendCQ: c.cq.cq, RecvCQ: c.cq.cq,
		SendDepth: c.sqDepth + 1, RecvDepth: c.recvs.n,
		MaxSendSGE: max(c.dev.writeSGE, c.dev.readSGE), MaxRecvSGE: max(c.recvs.sges, 1),
		MaxInline:  nvme.CQESize,
		ORD:        l.t.cfg.MaxReads,
		RetryCount: 7, RNRRetry: 7,
		PrivateData: accept,
		Setup: func(qp fabric.QueuePair) (err error) {
			if !g.call(func() { err = g.attach(c, qp) }) {
				return errDrained
			}
			return err
		},
		Closed: func(err error) { g.post(func() { c.closedByFabric(err) }) },
	}
	if c.shared {
		cfg.SRQ = c.dev.srq.q
	}
	fc, err := req.Accept(ctx, cfg)
	switch {
	case err == nil:
		g.post(func() { c.established(fc) })
	case c.attached: // set in Setup, if at all
		g.post(func() { c.handshakeFailed(err) })
	default:
		l.t.limit.warn("rdma: %v: queue %d: handshake failed: %v", c.peer, c.qid, err)
		l.t.release(c)
	}
}

// reject refuses a request, with one line that says why.
func (l *Listener) reject(req fabric.Request, qid uint16, st nvme.CMStatus, cause error) {
	l.t.rejected.Add(1)
	private := make([]byte, nvme.CMRejectSize)
	(&nvme.CMReject{Status: st}).MarshalTo(private)
	peer := req.RemoteAddr()
	if cause != nil {
		l.t.limit.warn("rdma: %v: queue %d: connection rejected: %v: %v", peer, qid, st, cause)
	} else {
		l.t.limit.warn("rdma: %v: queue %d: connection rejected: %v", peer, qid, st)
	}
	if err := req.Reject(private); err != nil {
		l.t.cfg.Log.Debugf("rdma: %v: reject: %v", peer, err)
	}
}

// Reasons for No Resources.
var (
	errMemory      = errors.New("the memory limit is reached")
	errConnections = errors.New("the connection limit is reached")
)

// admit reserves what a connection needs, and makes all of it but the QP.
func (t *Transport) admit(l *Listener, req fabric.Request, r nvme.CMRequest) (*conn, error) {
	c := &conn{
		listener: l, peer: req.RemoteAddr(), local: req.LocalAddr(), since: time.Now(),
		qid: r.QID, depth: int(r.HSQSize) + 1, hostRecvs: int(r.HRQSize),
	}
	if err := t.reserve(c, l.provider, req.Device()); err != nil {
		return nil, err
	}
	if err := c.allocate(); err != nil {
		t.release(c)
		return nil, err
	}
	return c, nil
}

// sendDepth is the size of the connection's send queue: data and response of
// each capsule, the READs, and room for the request with the most pieces.
func (c *conn) sendDepth() int {
	cfg, lim := &c.dev.t.cfg, &c.dev.limits
	most := cfg.MaxSGL + maxPieces + int(uint32(cfg.MaxTransfer)/c.dev.maxMessage) + 1
	want := max(2*c.depth+min(cfg.MaxReads, lim.MaxORD), 2*most)
	if lim.MaxQPDepth > 0 {
		want = min(want, lim.MaxQPDepth-1) // one is for a mark
	}
	return max(want, most)
}

// allocate makes the memory and the slots of the connection.
func (c *conn) allocate() (err error) {
	cfg := &c.dev.t.cfg
	nslots := c.depth + min(max(c.depth/4, 4), 64)
	nrecvs := c.depth + 1
	if c.shared {
		nrecvs = 0
	}
	inArea := recvSize(nrecvs, cfg.InCapsule)
	c.mem, c.region, c.held, err = c.dev.allocate(inArea+nslots*nvme.CQESize, fabric.AccessLocalWrite)
	if err != nil {
		return err
	}
	c.lkey = c.region.LKey()
	c.recvs = newRecvArea(c.mem.Bytes()[:inArea], c.mem.Addr(), c.lkey, nrecvs, cfg.InCapsule, c.dev.limits.MaxSGE)
	c.cqes, c.cqeAddr = c.mem.Bytes()[inArea:], c.mem.Addr()+uint64(inArea)
	c.posted = make([]bool, nrecvs)
	c.waiting = newRing[capsule](c.depth, 0)
	c.slots = make([]slot, nslots)
	for i := nslots - 1; i >= 0; i-- {
		s := &c.slots[i]
		s.conn, s.index, s.recv = c, uint32(i), noRecv
		s.next, c.free = c.free, s
	}
	return nil
}

// allocate maps and registers memory within the budget.
func (gd *groupDevice) allocate(size int, a fabric.Access) (_ *fabric.Memory, _ fabric.MemoryRegion, held int64, err error) {
	held = int64(size+pageSize-1) &^ (pageSize - 1)
	if !gd.t.memory.take(held) {
		return nil, nil, 0, fmt.Errorf("%w: %d bytes more than the %d allowed", errMemory,
			gd.t.memory.used.Load()+held-gd.t.memory.limit, gd.t.memory.limit)
	}
	mem, err := fabric.AllocMemory(size)
	if err != nil {
		return nil, nil, 0, errors.Join(err, gd.free(nil, nil, held))
	}
	mr, err := gd.fdev.Register(mem, a)
	if err != nil {
		return nil, nil, 0, errors.Join(err, gd.free(mem, nil, held))
	}
	return mem, mr, held, nil
}

// free gives memory back.
func (gd *groupDevice) free(mem *fabric.Memory, mr fabric.MemoryRegion, held int64) (err error) {
	if mr != nil {
		err = mr.Close()
	}
	if mem != nil {
		err = errors.Join(err, mem.Close())
	}
	gd.t.memory.give(held)
	return err
}
