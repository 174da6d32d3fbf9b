package roce

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/cm"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// conn is one end of a connection; it implements fabric.Conn.
type conn struct {
	core.Conn
	dev     *device
	qp      *queuePair
	cfg     fabric.ConnConfig // without queues and hooks
	mtu     wire.MTU
	recvPSN psn.Value  // of the peer's first packet
	result  chan error // of the handshake
	ref     bool       // a reference to dev is held

	// control.mu.
	cm      *cm.Conn
	waiting bool        // somebody waits for result
	later   *time.Timer // ends the connection when the owner does not poll

	closing atomic.Bool
}

// newConn makes an end with its QP and has it set up.
func newConn(d *device, cfg *fabric.ConnConfig) (*conn, error) {
	c := &conn{dev: d, recvPSN: psn.New(uint32(random())), result: make(chan error, 1), cfg: fabric.ConnConfig{
		ORD: min(cfg.ORD, maxReads), IRD: min(cfg.IRD, maxReads),
		RetryCount: cfg.RetryCount, RNRRetry: cfg.RNRRetry, TrafficClass: cfg.TrafficClass,
	}}
	c.Init(cfg.Closed)
	qp, err := newQP(d, c, cfg)
	if err != nil {
		return nil, err
	}
	c.qp = qp
	if cfg.Setup != nil {
		if err := cfg.Setup(qp); err != nil {
			qp.Abandon()
			return nil, d.opError("set up connection", err)
		}
	}
	return c, nil
}

// Device is the device.
func (c *conn) Device() fabric.Device { return c.dev }

// QueuePair is the QP.
func (c *conn) QueuePair() fabric.QueuePair { return c.qp }

// local is what this end says of itself in REQ or REP.
func (c *conn) local(private []byte) cm.Local {
	return cm.Local{
		QPN: c.qp.Num(), StartPSN: c.recvPSN, ORD: uint8(c.cfg.ORD), IRD: uint8(c.cfg.IRD),
		RetryCount: c.cfg.RetryCount, RNRRetry: c.cfg.RNRRetry, AckTimeout: c.dev.opts().AckTimeout, Private: private,
	}
}

// Dial connects to remote.
func (d *device) Dial(ctx context.Context, local, remote netip.AddrPort, cfg fabric.ConnConfig) (fabric.Conn, error) {
	local, remote, err := d.endpoints(local, remote)
	if err := errors.Join(ctx.Err(), err, d.Fault()); err != nil {
		return nil, d.opError("dial", err)
	}
	if n := len(cfg.PrivateData); n > wire.REQConsumerLen {
		return nil, d.opError("dial", fmt.Errorf("%w: %d bytes of private data, %d fit", fabric.ErrInvalid, n, wire.REQConsumerLen))
	}
	c, err := newConn(d, &cfg)
	if err != nil {
		return nil, err
	}
	c.Local, c.Remote = local, remote
	if err := c.dial(ctx, cfg.PrivateData); err != nil {
		err = d.opError("dial", err)
		c.abandon(err)
		return nil, err
	}
	return c, nil
}

// endpoints fills in the local address and checks both.
func (d *device) endpoints(local, remote netip.AddrPort) (netip.AddrPort, netip.AddrPort, error) {
	remote = netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port())
	src := local.Addr().Unmap().WithZone("")
	if !local.Addr().IsValid() || src.IsUnspecified() {
		src = d.addr
	}
	switch {
	case src != d.addr:
		return local, remote, fmt.Errorf("%w: %v", fabric.ErrAddrNotAvailable, local.Addr())
	case !remote.Addr().IsValid() || remote.Addr().Is4() != src.Is4():
		return local, remote, fmt.Errorf("%w: %v from %v", fabric.ErrUnreachable, remote.Addr(), src)
	}
	port := local.Port()
	if port == 0 {
		port = ephemeral()
	}
	return netip.AddrPortFrom(src, port), remote, nil
}

// ephemeral is a port number for an end that does not care. Ports of the
// connection manager are numbers in its messages alone.
func ephemeral() uint16 { return uint16(32768 + rand.IntN(28232)) }

// dial runs the active side of the handshake. There is no negotiation of the
// path MTU: a peer on a narrower link rejects ours, and the next attempt is
// with one that it can have.
func (c *conn) dial(ctx context.Context, private []byte) error {
	for c.mtu = c.dev.mtu(); ; {
		err := c.request(ctx, private)
		var r *fabric.RejectError
		if !errors.As(err, &r) || r.Reason != fabric.RejectMTU || c.mtu <= wire.MTU256 {
			return err
		}
		if c.mtu--; c.cm.MaxMTU.Valid() {
			c.mtu = min(c.mtu, c.cm.MaxMTU)
		}
	}
}

// request sends a REQ and waits for what comes of it.
func (c *conn) request(ctx context.Context, private []byte) error {
	ctl := c.dev.control
	ctl.mu.Lock()
	c.cm = ctl.m.Connect(cm.Dial{
		Peer: c.Remote.Addr(), Source: c.Local, Port: c.Remote.Port(), MTU: c.mtu, TrafficClass: c.cfg.TrafficClass,
	}, c.local(private), clock())
	if c.cm == nil {
		ctl.mu.Unlock()
		return fmt.Errorf("%w: too many connections", fabric.ErrQueueFull)
	}
	c.cm.User, c.waiting = c, true
	ctl.dials[c] = struct{}{}
	ctl.drain()
	ctl.mu.Unlock()
	return c.wait(ctx, fabric.RejectTimeout)
}

// wait waits for the end of the handshake. When ctx ends before it, the peer is
// told so.
func (c *conn) wait(ctx context.Context, reason fabric.RejectReason) error {
	select {
	case err := <-c.result:
		return err
	case <-ctx.Done():
	}
	ctl := c.dev.control
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	if !c.waiting {
		return <-c.result // it was decided at the same time
	}
	c.cm.Reject(reason, nil)
	ctl.answer(c, ctx.Err())
	ctl.drain()
	return <-c.result
}

// replied makes the QP ready when the peer has accepted; control.mu is held.
func (c *conn) replied() error {
	r := &c.cm.Reply
	c.Private = r.Private
	return c.start(rc.Config{
		MTU: c.mtu.Bytes(), DestQPN: r.QPN, SendPSN: r.StartPSN,
		ORD: min(c.cfg.ORD, int(r.ResponderRes)), IRD: min(c.cfg.IRD, int(r.InitiatorDepth)),
		RetryCount: c.cfg.RetryCount, RNRRetry: r.RNRRetry, AckTimeout: wire.AckTimeout(c.dev.opts().AckTimeout),
	})
}

// start makes the QP ready to receive and to send, and gives it to its engine.
func (c *conn) start(cfg rc.Config) error {
	if cfg.DestQPN <= wire.GSIQP {
		return fmt.Errorf("%w: the peer's QP number is %d", fabric.ErrUnreachable, cfg.DestQPN)
	}
	o := c.dev.opts()
	cfg.RecvPSN, cfg.Window, cfg.MinTimeout, cfg.RNRTimer = c.recvPSN, o.Window, o.MinTimeout, wire.RNRCode(o.RNRDelay)
	cfg.Stats = &c.qp.e.stats
	c.Outbound, c.Inbound = cfg.ORD, cfg.IRD
	q := c.qp
	q.Start(cfg)
	q.peer = c.Remote.Addr()
	q.path = q.e.tx.newPath(netip.AddrPortFrom(q.peer, o.Port), c.dev.zone, cfg.DestQPN, tosOf(c.cfg.TrafficClass))
	if !q.States().Connect() {
		return fmt.Errorf("%w: it failed during the handshake", fabric.ErrQPError)
	}
	q.e.do(func() { q.e.adopt(q) })
	return nil
}

// abandon ends a conn whose handshake failed. If the QP has been given to its
// engine, the owner lets go of it in its next Poll.
func (c *conn) abandon(err error) {
	c.qp.Abandon()
	if c.qp.path != nil {
		c.qp.e.do(func() {
			c.qp.e.drop(c.qp)
			c.qp.Destroy()
		})
	}
	c.Finish(err)
	c.release()
}

func (c *conn) release() {
	if c.ref {
		c.dev.Release()
	}
}

// disconnectedBy is how a connection ends in order.
func (c *conn) disconnectedBy(who string) error {
	return &fabric.OpError{Op: "connection", Device: c.dev.Name(), QPN: c.qp.Num(),
		Err: fmt.Errorf("disconnected by %s: %w", who, net.ErrClosed)}
}

// Disconnect ends the connection in order.
func (c *conn) Disconnect() error {
	if c.end(c.disconnectedBy("this end")) {
		c.tell()
	}
	return nil
}

// brokenDelay is how long after a QP has failed the peer is told by a DREQ: the
// NAK that says why is on its way through another queue there, and should be
// first.
const brokenDelay = 20 * time.Millisecond

// broke is called by the owner, inside its guard, when the QP has failed.
func (c *conn) broke(err error) {
	if c.Err() == nil && c.end(err) {
		time.AfterFunc(brokenDelay, c.tell)
	}
}

// ended is called when the peer has disconnected; control.mu is held. What the
// peer sent before may still be in the socket, the NAK that says why among it:
// the owner reads that first, if it polls.
func (c *conn) ended() {
	e := c.qp.e
	e.do(func() { e.ending = append(e.ending, c) })
	c.later = time.AfterFunc(endedDelay, func() { c.end(c.disconnectedBy("the peer")) })
}

// endedDelay is how long an owner has to poll before a connection ends that
// its peer has ended.
const endedDelay = 100 * time.Millisecond

// end takes the QP to the error state and ends the connection with err; the
// owner flushes in its next Poll. Only the first call counts, and says so.
func (c *conn) end(err error) bool {
	c.qp.States().Set(fabric.QPError)
	if !c.Finish(err) {
		return false
	}
	c.qp.e.do(func() {
		if !c.qp.Closed() {
			c.qp.e.activate(c.qp)
		}
	})
	return true
}

// tell sends a DREQ, unless the connection has ended otherwise meanwhile.
func (c *conn) tell() {
	ctl := c.dev.control
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	if c.later != nil {
		c.later.Stop() // what it would do has been done
	}
	if c.cm != nil && c.cm.Disconnect(clock()) {
		ctl.drain()
	}
}

// Close destroys the QP.
func (c *conn) Close() error {
	if c.closing.Swap(true) {
		return nil
	}
	c.end(c.disconnectedBy("this end"))
	c.tell()
	c.qp.e.drop(c.qp)
	c.qp.Destroy()
	c.release()
	return nil
}
