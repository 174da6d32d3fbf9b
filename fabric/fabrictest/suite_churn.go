package fabrictest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// How the churn test's connections work.
const (
	churnRecvs    = 8
	churnWindow   = 4  // messages under way
	churnMessages = 40 // of a connection's life
)

// testChurn is how a target and a host live: on each end one owner polls one CQ
// for all its connections, while other goroutines dial, accept and disconnect.
// Each WR comes back exactly once.
func testChurn(s *suite) {
	const workers, each = 6, 12
	l, err := s.b.p.Listen(s.ctx(), netip.AddrPortFrom(s.b.addr, 0), fabric.ListenConfig{})
	s.must(err)
	owners := []*churnOwner{newChurnOwner(s.a, true), newChurnOwner(s.b, false)}
	var running sync.WaitGroup
	for _, o := range owners {
		running.Go(o.run)
	}
	ctx := s.ctx()
	running.Go(func() {
		for range workers * each {
			r, err := l.Accept(ctx)
			if err != nil {
				s.Errorf("accept: %v", err)
				return
			}
			running.Go(func() {
				owners[1].open(func(cfg fabric.ConnConfig) (fabric.Conn, error) { return r.Accept(ctx, cfg) }, 0)
			})
		}
	})
	var dialling sync.WaitGroup
	for w := range workers {
		dialling.Go(func() {
			for i := range each {
				owners[0].open(func(cfg fabric.ConnConfig) (fabric.Conn, error) {
					return s.a.dev.Dial(ctx, netip.AddrPort{}, l.Addr(), cfg)
				}, w+i)
			}
		})
	}
	dialling.Wait()
	for _, o := range owners {
		o.expected.Store(workers * each)
	}
	running.Wait()
	s.closed("listener", l.Close())
	for _, o := range owners {
		if n := o.end.dev.Counts().QPs; n != 0 {
			s.Errorf("%s: %d queue pairs are left", o.end.name, n)
		}
	}
}

// churnOwner owns one end's CQ and the queue pairs on it.
type churnOwner struct {
	end     *end
	sends   bool
	adopted chan *churnConn

	conns    map[uint32]*churnConn // owner
	closed   int                   // owner
	expected atomic.Int32          // how many connections there will have been
	failed   atomic.Bool
}

// churnConn is one connection at one end.
type churnConn struct {
	qp          fabric.QueuePair
	conn        fabric.Conn
	established atomic.Bool
	ended       atomic.Bool

	posted, completed int // WRs; owner
	sending, sent     int // owner
	byOwner           bool
}

func newChurnOwner(e *end, sends bool) *churnOwner {
	return &churnOwner{end: e, sends: sends, adopted: make(chan *churnConn, 1024), conns: make(map[uint32]*churnConn)}
}

// open makes a connection: Setup posts its receives and hands the queue pair to
// the owner. how chooses who ends it.
func (o *churnOwner) open(connect func(fabric.ConnConfig) (fabric.Conn, error), how int) {
	sd := &side{end: o.end}
	cfg := sd.config()
	cfg.SendDepth, cfg.RecvDepth = churnWindow, churnRecvs
	c := &churnConn{byOwner: o.sends && how%2 == 0}
	cfg.Setup = func(qp fabric.QueuePair) error {
		c.qp = qp
		for range churnRecvs {
			if err := o.recv(c); err != nil {
				return err
			}
		}
		o.adopted <- c
		return nil
	}
	cfg.Closed = func(error) { c.ended.Store(true) }
	conn, err := connect(cfg)
	if err != nil {
		o.fail(fmt.Errorf("connect: %w", err))
		return
	}
	c.conn = conn
	c.established.Store(true)
	if o.sends && how%2 == 1 { // ended by a stranger, some time
		time.Sleep(time.Duration(how) * 100 * time.Microsecond)
		if err := conn.Disconnect(); err != nil {
			o.fail(err)
		}
	}
}

func (o *churnOwner) fail(err error) {
	o.failed.Store(true)
	o.end.s.Errorf("%s: %v", o.end.name, err)
}

func (o *churnOwner) recv(c *churnConn) error {
	n, err := c.qp.PostRecv([]fabric.RecvWR{{ID: recvID, NumSGE: 1}}, []fabric.SGE{o.end.sge(0, 64)})
	c.posted += n
	return err
}

// run is the owner's loop.
func (o *churnOwner) run() {
	limit := time.Now().Add(3 * o.end.s.cfg.Timeout)
	for idle := 0; !o.failed.Load(); idle++ {
		n, err := o.end.cq.Poll(o.end.wc)
		if err != nil {
			o.fail(err)
			return
		}
		for len(o.adopted) > 0 {
			c := <-o.adopted
			o.conns[c.qp.Num()] = c
		}
		for i := range o.end.wc[:n] {
			if err := o.complete(&o.end.wc[i]); err != nil {
				o.fail(err)
				return
			}
			idle = 0
		}
		for num, c := range o.conns {
			o.serve(num, c)
		}
		if want := o.expected.Load(); want > 0 && int(want) == o.closed {
			return
		}
		if time.Now().After(limit) {
			o.fail(fmt.Errorf("stuck with %d connections, %d closed", len(o.conns), o.closed))
		}
		relax(idle)
	}
}

func (o *churnOwner) complete(wc *fabric.Completion) error {
	c := o.conns[wc.QPN]
	if c == nil {
		return fmt.Errorf("completion of an unknown queue pair: %+v", *wc)
	}
	c.completed++
	if wc.ID == sendID {
		c.sending--
	}
	switch {
	case wc.Status == fabric.StatusFlushed || wc.Status != fabric.StatusSuccess && c.qp.State() == fabric.QPError:
		return nil
	case wc.Status != fabric.StatusSuccess:
		return fmt.Errorf("%+v", *wc)
	case wc.ID == recvID:
		return o.refill(c)
	}
	return nil
}

// refill posts a receive again, unless the connection has ended meanwhile.
func (o *churnOwner) refill(c *churnConn) error {
	err := o.recv(c)
	if errors.Is(err, fabric.ErrQPError) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// serve sends what a connection may, ends it when its time has come, and closes
// it when all has come back.
func (o *churnOwner) serve(num uint32, c *churnConn) {
	if !c.established.Load() {
		return
	}
	if c.ended.Load() {
		if c.completed == c.posted {
			o.end.s.closed("connection", c.conn.Close())
			delete(o.conns, num)
			o.closed++
		}
		return
	}
	limit := churnRecvs // without RNR, what is posted at first has to do
	if o.end.dev.Limits().RNR {
		limit = 1 << 30
	}
	for o.sends && c.sending < churnWindow && c.sent < limit && c.qp.State() == fabric.QPReadyToSend {
		wr := fabric.SendWR{ID: sendID, Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled}
		n, _ := c.qp.PostSend([]fabric.SendWR{wr}, []fabric.SGE{o.end.sge(64, 64)})
		if n == 0 {
			return
		}
		c.posted++
		c.sending++
		c.sent++
	}
	if c.byOwner && c.sent >= min(churnMessages, limit) {
		o.end.s.closed("disconnect", c.conn.Disconnect())
	}
}
