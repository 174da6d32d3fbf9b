package fabrictest

import (
	"fmt"
	"net"
	"runtime"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
)

// link is what is between the two ends of a connection.
type link struct {
	net    *Network
	pair   addrPair
	faults atomic.Pointer[Faults] // nil: perfect
	ends   [2]*conn
	open   atomic.Int32 // ends not closed
}

// wake has both ends look at the link's faults.
func (l *link) wake() {
	for _, c := range l.ends {
		c.qp.schedule()
	}
}

// isCut says whether nothing passes.
func (l *link) isCut() bool {
	f := l.faults.Load()
	return f != nil && f.Cut
}

// conn is one end of a connection; it implements fabric.Conn.
type conn struct {
	core.Conn
	dev  *device
	qp   *queuePair
	side int // index in link.ends
	ref  bool
	link atomic.Pointer[link] // nil before the connection is established

	closing atomic.Bool
}

// newConn makes an end with its QP and has it set up.
func newConn(d *device, cfg *fabric.ConnConfig) (*conn, error) {
	c := &conn{dev: d}
	c.Init(cfg.Closed)
	qp, err := newQP(d, c, cfg)
	if err != nil {
		return nil, err
	}
	c.qp = qp
	if cfg.Setup != nil {
		if err := cfg.Setup(qp); err != nil {
			qp.Abandon()
			return nil, opError("set up connection", d.Name(), err)
		}
	}
	return c, nil
}

// abandon ends a conn whose handshake failed after Setup.
func (c *conn) abandon(err error) {
	c.qp.Abandon()
	c.Finish(err)
}

// connect makes two ends a connection. It is false when one has failed already.
func connect(dialled, accepted *conn) bool {
	l := &link{net: dialled.dev.net, ends: [2]*conn{dialled, accepted}}
	l.pair = pairOf(dialled.Local.Addr(), dialled.Remote.Addr())
	l.open.Store(2)
	for i, c := range l.ends {
		other := l.ends[1-i]
		c.side, c.qp.peer, c.qp.link = i, other.qp, l
		c.qp.ird = c.Inbound
		c.qp.SetORD(c.Outbound)
		c.link.Store(l)
	}
	l.net.addLink(l)
	ok := accepted.qp.States().Connect()
	return dialled.qp.States().Connect() && ok
}

// Device is the device.
func (c *conn) Device() fabric.Device { return c.dev }

// QueuePair is the QP.
func (c *conn) QueuePair() fabric.QueuePair { return c.qp }

// errDisconnected is how a connection ends in order.
func (c *conn) errDisconnected(by string) error {
	return &fabric.OpError{Op: "connection", Device: c.dev.Name(), QPN: c.qp.Num(),
		Err: fmt.Errorf("disconnected by %s: %w", by, net.ErrClosed)}
}

// Disconnect ends the connection in order.
func (c *conn) Disconnect() error {
	c.end(c.errDisconnected("this end"), true)
	return nil
}

// end takes the QP to the error state and ends the connection with err; the
// owner flushes in its next Poll. tell lets the peer know, if the link is not
// cut. Any goroutine may call it; only the first call for an end counts.
func (c *conn) end(err error, tell bool) {
	c.qp.States().Set(fabric.QPError)
	first := c.Finish(err)
	c.qp.schedule()
	if l := c.link.Load(); first && tell && l != nil && !l.isCut() {
		other := l.ends[1-c.side]
		other.end(other.errDisconnected("the peer"), false)
	}
}

// Close destroys the QP.
func (c *conn) Close() error {
	if c.closing.Swap(true) {
		return nil
	}
	c.end(c.errDisconnected("this end"), true)
	for !c.qp.closeStream() {
		runtime.Gosched() // the peer is inside one Poll
	}
	c.qp.stopTimers()
	c.qp.Destroy()
	if l := c.link.Load(); l.open.Add(-1) == 0 {
		l.net.removeLink(l)
	}
	if c.ref {
		c.dev.Release()
	}
	return nil
}
