package roce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/cm"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// listener implements fabric.Listener.
type listener struct {
	p       *Provider
	addr    netip.AddrPort
	backlog chan *request
	done    chan struct{}

	mu      sync.Mutex
	devices []*device // a reference each
	closed  bool
}

// has says whether the listener has the device of an address.
func (l *listener) has(a netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.devices, func(d *device) bool { return d.addr == a })
}

// add takes over a reference to a device. It is false when the listener is
// closed or has the device already.
func (l *listener) add(d *device) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || slices.Contains(l.devices, d) {
		return false
	}
	l.devices = append(l.devices, d)
	return true
}

// covers says whether requests for a are the listener's.
func (l *listener) covers(a netip.Addr) bool {
	own := l.addr.Addr()
	return own == a || own.IsUnspecified() && (own.Is6() || a.Is4())
}

// offer queues a request. It is false when the backlog is full.
func (l *listener) offer(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	r.cm.User = r
	select {
	case l.backlog <- r:
		return true
	default:
		r.cm.User = nil
		return false
	}
}

// Accept returns the next request whose peer still waits.
func (l *listener) Accept(ctx context.Context) (fabric.Request, error) {
	for {
		select {
		case <-l.done:
			return nil, opError("accept", "", net.ErrClosed)
		case <-ctx.Done():
			return nil, opError("accept", "", ctx.Err())
		case r := <-l.backlog:
			if !r.abandoned.Load() {
				return r, nil
			}
		}
	}
}

// Addr is the address listened on.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// Close stops listening and rejects what waits.
func (l *listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	devices := l.devices
	l.mu.Unlock()
	close(l.done)
	l.p.unlisten(l)
	for len(l.backlog) > 0 {
		r := <-l.backlog
		r.reject(fabric.RejectBadServiceID, nil)
	}
	for _, d := range devices {
		d.Release()
	}
	return nil
}

// request is a peer's REQ; it implements fabric.Request.
type request struct {
	l         *listener
	dev       *device
	cm        *cm.Conn
	abandoned atomic.Bool
}

// gone is called when the peer has given up; control.mu is held.
func (r *request) gone() { r.abandoned.Store(true) }

// Device is the device the request came in on.
func (r *request) Device() fabric.Device { return r.dev }

// PrivateData is the peer's, padded to 56 bytes by the wire format.
func (r *request) PrivateData() []byte { return r.cm.Request.Private }

// LocalAddr is the address the peer connects to.
func (r *request) LocalAddr() netip.AddrPort { return netip.AddrPortFrom(r.dev.addr, r.cm.Port) }

// RemoteAddr is the peer's address, with the port it said.
func (r *request) RemoteAddr() netip.AddrPort {
	return netip.AddrPortFrom(r.cm.Peer, r.cm.Source.Port())
}

// PeerORD is how many READs the peer wants to have outstanding.
func (r *request) PeerORD() int { return int(r.cm.Request.InitiatorDepth) }

// PeerIRD is how many of ours it can answer.
func (r *request) PeerIRD() int { return int(r.cm.Request.ResponderRes) }

// Reject refuses the request.
func (r *request) Reject(private []byte) error {
	if n := len(private); n > wire.REJPrivateLen {
		return r.dev.opError("reject", fmt.Errorf("%w: %d bytes of private data, %d fit", fabric.ErrInvalid, n, wire.REJPrivateLen))
	}
	r.reject(fabric.RejectConsumer, private)
	return nil
}

func (r *request) reject(reason fabric.RejectReason, private []byte) {
	ctl := r.dev.control
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	if r.cm.State() == cm.ReqReceived {
		r.cm.User = nil
		r.cm.Reject(reason, private)
		ctl.drain()
	}
}

// Accept makes a QP and completes the handshake.
func (r *request) Accept(ctx context.Context, cfg fabric.ConnConfig) (fabric.Conn, error) {
	c, err := r.accept(ctx, &cfg)
	if err != nil {
		r.reject(fabric.RejectNoResources, nil)
		return nil, r.dev.opError("accept", err)
	}
	return c, nil
}

func (r *request) accept(ctx context.Context, cfg *fabric.ConnConfig) (*conn, error) {
	if err := errors.Join(ctx.Err(), r.dev.Fault()); err != nil {
		return nil, err
	}
	if n := len(cfg.PrivateData); n > wire.REPPrivateLen {
		return nil, fmt.Errorf("%w: %d bytes of private data, %d fit", fabric.ErrInvalid, n, wire.REPPrivateLen)
	}
	c, err := newConn(r.dev, cfg)
	if err != nil {
		return nil, err
	}
	c.Local, c.Remote = r.LocalAddr(), r.RemoteAddr()
	if c.ref = r.dev.Acquire(); !c.ref {
		err = net.ErrClosed
	} else if err = r.reply(c, cfg.PrivateData); err == nil {
		err = c.wait(ctx, fabric.RejectTimeout)
	}
	if err != nil {
		c.abandon(r.dev.opError("accept", err))
		return nil, err
	}
	return c, nil
}

// reply makes the QP ready and sends the REP.
func (r *request) reply(c *conn, private []byte) error {
	req := &r.cm.Request
	ack := req.AckTimeout
	if ack == 0 {
		ack = r.dev.opts().AckTimeout
	}
	c.cfg.ORD, c.cfg.IRD = min(c.cfg.ORD, int(req.ResponderRes)), min(c.cfg.IRD, int(req.InitiatorDepth))
	if c.cfg.TrafficClass == 0 {
		c.cfg.TrafficClass = req.TrafficClass
	}
	ctl := r.dev.control
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	if r.cm.State() != cm.ReqReceived {
		return fmt.Errorf("%w: the peer has given up", fabric.ErrUnreachable)
	}
	err := c.start(rc.Config{
		MTU: req.PathMTU.Bytes(), DestQPN: req.QPN, SendPSN: req.StartPSN, ORD: c.cfg.ORD, IRD: c.cfg.IRD,
		RetryCount: req.RetryCount, RNRRetry: req.RNRRetry, AckTimeout: wire.AckTimeout(ack),
	})
	if err != nil {
		return err
	}
	c.cm, c.waiting = r.cm, true
	c.cm.User = c
	c.cm.Accept(c.local(private), clock())
	ctl.drain()
	return nil
}
