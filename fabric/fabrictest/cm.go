package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// The room for private data in InfiniBand's CM messages beside what rdma_cm
// uses itself.
const (
	requestPrivate = 56
	replyPrivate   = 196
	rejectPrivate  = 148
)

// private is the private data b as it arrives from device d, whose message has
// room for so many bytes.
func (d *Device) private(b []byte, room int) ([]byte, error) {
	if len(b) > room {
		return nil, fmt.Errorf("%w: %d bytes of private data, %d fit", fabric.ErrInvalid, len(b), room)
	}
	if d.opts.PadPrivateData {
		return append(make([]byte, 0, room), b...)[:room], nil
	}
	return append([]byte(nil), b...), nil
}

// How a request ended.
const (
	requestPending = iota
	requestAnswered
	requestAbandoned // by the dialler
)

// request is a connection request; it implements fabric.Request.
type request struct {
	dialler *conn
	l       *listener
	hw      *Device // ours
	local   netip.AddrPort
	private []byte
	rnr     uint8 // what the dialler wants our QP to do
	state   atomic.Int32
	reply   chan error // nil: established
}

// listener implements fabric.Listener.
type listener struct {
	p       *Provider
	addr    netip.AddrPort
	backlog chan *request
	devices map[*Device]*device // a reference each
	done    chan struct{}
	once    sync.Once
}

// Listen takes connection requests.
func (p *Provider) Listen(ctx context.Context, addr netip.AddrPort, cfg fabric.ListenConfig) (fabric.Listener, error) {
	if err := errors.Join(ctx.Err(), p.alive()); err != nil {
		return nil, opError("listen", "", err)
	}
	if cfg.Backlog <= 0 {
		cfg.Backlog = 128
	}
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	if addr.Port() == 0 {
		addr = netip.AddrPortFrom(addr.Addr(), p.net.ephemeral())
	}
	l := &listener{p: p, addr: addr, backlog: make(chan *request, cfg.Backlog), done: make(chan struct{}), devices: make(map[*Device]*device)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.register(l); err != nil {
		return nil, opError("listen", "", err)
	}
	return l, nil
}

// register adds l and opens its devices; mu is held.
func (p *Provider) register(l *listener) error {
	for other := range p.listeners {
		if other.addr.Port() == l.addr.Port() && (other.covers(l.addr.Addr()) || l.covers(other.addr.Addr())) {
			return fmt.Errorf("%w: %v", fabric.ErrAddrInUse, other.addr)
		}
	}
	for _, d := range p.devices {
		for _, a := range d.info.Addrs {
			if l.devices[d] == nil && !d.removed.Load() && l.covers(a) {
				l.devices[d] = d.open()
			}
		}
	}
	if len(l.devices) == 0 {
		return fmt.Errorf("%w: %v", fabric.ErrAddrNotAvailable, l.addr.Addr())
	}
	p.listeners[l] = struct{}{}
	return nil
}

// covers says whether requests for a are the listener's.
func (l *listener) covers(a netip.Addr) bool {
	own := l.addr.Addr()
	return own == a || own.IsUnspecified() && (own.Is6() || a.Is4())
}

// Accept returns the next request whose dialler still waits.
func (l *listener) Accept(ctx context.Context) (fabric.Request, error) {
	for {
		select {
		case <-l.done:
			return nil, opError("accept", "", net.ErrClosed)
		case <-ctx.Done():
			return nil, opError("accept", "", ctx.Err())
		case r := <-l.backlog:
			if r.state.Load() == requestPending {
				return r, nil
			}
		}
	}
}

// Addr is the address listened on.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// Close stops listening and rejects what waits.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.p.mu.Lock()
		delete(l.p.listeners, l) // nobody adds to the backlog from here on
		l.p.mu.Unlock()
		for len(l.backlog) > 0 {
			r := <-l.backlog
			r.refuse(&fabric.RejectError{Reason: fabric.RejectBadServiceID})
		}
		for _, d := range l.devices {
			d.Release()
		}
	})
	return nil
}

// offer puts a request into the backlog of who listens on addr, or says why
// not.
func (p *Provider) offer(r *request, addr netip.AddrPort) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.listeners {
		if l.addr.Port() != addr.Port() || !l.covers(addr.Addr()) {
			continue
		}
		r.l = l
		select {
		case l.backlog <- r:
			return nil
		default:
			return &fabric.RejectError{Reason: fabric.RejectNoResources}
		}
	}
	return &fabric.RejectError{Reason: fabric.RejectBadServiceID}
}

// Dial connects to remote.
func (d *device) Dial(ctx context.Context, local, remote netip.AddrPort, cfg fabric.ConnConfig) (fabric.Conn, error) {
	c, err := d.dial(ctx, local, remote, &cfg)
	if err != nil {
		return nil, wrap("dial", d.Name(), err)
	}
	return c, nil
}

// wrap makes an error an OpError unless it is one, or a rejection, already.
func wrap(op, device string, err error) error {
	var o *fabric.OpError
	var reject *fabric.RejectError
	if errors.As(err, &o) || errors.As(err, &reject) {
		return err
	}
	return opError(op, device, err)
}

func (d *device) dial(ctx context.Context, local, remote netip.AddrPort, cfg *fabric.ConnConfig) (*conn, error) {
	local, remote, err := d.endpoints(local, remote)
	if err := errors.Join(ctx.Err(), err, d.Fault()); err != nil {
		return nil, err
	}
	private, err := d.hw.private(cfg.PrivateData, requestPrivate)
	if err != nil {
		return nil, err
	}
	c, err := newConn(d, cfg)
	if err != nil {
		return nil, err
	}
	c.Local, c.Remote = local, remote
	limits := d.Limits()
	c.Outbound, c.Inbound = min(cfg.ORD, limits.MaxORD), min(cfg.IRD, limits.MaxIRD)
	r := &request{dialler: c, local: remote, private: private, rnr: cfg.RNRRetry, reply: make(chan error, 1)}
	if err := d.handshake(ctx, r); err != nil {
		c.abandon(wrap("dial", d.Name(), err))
		return nil, err
	}
	return c, nil
}

// endpoints fills in the local address and checks both.
func (d *device) endpoints(local, remote netip.AddrPort) (netip.AddrPort, netip.AddrPort, error) {
	remote = netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port())
	src := local.Addr().Unmap().WithZone("")
	if !local.Addr().IsValid() || src.IsUnspecified() {
		src = d.hw.sourceFor(remote.Addr())
	}
	if !d.hw.has(src) {
		return local, remote, fmt.Errorf("%w: %v", fabric.ErrAddrNotAvailable, local)
	}
	port := local.Port()
	if port == 0 {
		port = d.net.ephemeral()
	}
	return netip.AddrPortFrom(src, port), remote, nil
}

// handshake sends the request and waits for the answer.
func (d *device) handshake(ctx context.Context, r *request) error {
	local, remote := r.dialler.Local.Addr(), r.dialler.Remote
	r.hw = d.net.deviceAt(remote.Addr())
	if r.hw == nil || r.hw.removed.Load() {
		return fmt.Errorf("%w: %v", fabric.ErrUnreachable, remote)
	}
	if d.net.isCut(local, remote.Addr()) {
		return d.timeout(ctx)
	}
	if err := r.hw.provider.offer(r, remote); err != nil {
		return err
	}
	var err error
	select {
	case err = <-r.reply:
		return err
	case <-ctx.Done():
		err = ctx.Err()
	case <-d.hw.gone:
		err = errRemoved
	case <-r.hw.gone:
		err = fabric.ErrUnreachable
	}
	if r.state.CompareAndSwap(requestPending, requestAbandoned) {
		return err
	}
	return <-r.reply // it was answered at the same time
}

// timeout is a dial that nobody answers.
func (d *device) timeout(ctx context.Context) error {
	t := time.NewTimer(d.net.opts.CMTimeout)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-d.hw.gone:
		return errRemoved
	case <-t.C:
		return fmt.Errorf("%w: no answer to the connection request", fabric.ErrTimeout)
	}
}

// Device is the device the request came in on.
func (r *request) Device() fabric.Device { return r.l.devices[r.hw] }

// PrivateData is the dialler's.
func (r *request) PrivateData() []byte { return r.private }

// LocalAddr is the address dialled.
func (r *request) LocalAddr() netip.AddrPort { return r.local }

// RemoteAddr is the dialler's.
func (r *request) RemoteAddr() netip.AddrPort { return r.dialler.Local }

// PeerORD is how many READs the dialler wants to have outstanding.
func (r *request) PeerORD() int { return r.dialler.Outbound }

// PeerIRD is how many of ours it answers.
func (r *request) PeerIRD() int { return r.dialler.Inbound }

// refuse answers the dialler with err, unless it has been answered or has
// given up.
func (r *request) refuse(err error) bool {
	if !r.state.CompareAndSwap(requestPending, requestAnswered) {
		return false
	}
	r.reply <- err
	return true
}

// Reject refuses the request.
func (r *request) Reject(private []byte) error {
	b, err := r.hw.private(private, rejectPrivate)
	if err != nil {
		return opError("reject", r.hw.info.Name, err)
	}
	r.refuse(&fabric.RejectError{Reason: fabric.RejectConsumer, Private: b})
	return nil
}

// Accept makes a QP and completes the handshake. When it fails the dialler is
// rejected.
func (r *request) Accept(ctx context.Context, cfg fabric.ConnConfig) (fabric.Conn, error) {
	c, err := r.accept(ctx, &cfg)
	if err != nil {
		r.refuse(&fabric.RejectError{Reason: fabric.RejectNoResources})
		return nil, wrap("accept", r.hw.info.Name, err)
	}
	return c, nil
}

func (r *request) accept(ctx context.Context, cfg *fabric.ConnConfig) (*conn, error) {
	d := r.l.devices[r.hw]
	if err := errors.Join(ctx.Err(), d.Fault()); err != nil {
		return nil, err
	}
	private, err := r.hw.private(cfg.PrivateData, replyPrivate)
	if err != nil {
		return nil, err
	}
	c, err := newConn(d, cfg)
	if err != nil {
		return nil, err
	}
	if err := r.establish(c, cfg, private); err != nil {
		c.abandon(opError("accept", d.Name(), err))
		return nil, err
	}
	return c, nil
}

// establish answers the dialler and connects the two ends.
func (r *request) establish(c *conn, cfg *fabric.ConnConfig, private []byte) error {
	peer := r.dialler
	c.Local, c.Remote = r.local, peer.Local
	if c.dev.net.isCut(c.Local.Addr(), c.Remote.Addr()) {
		if r.state.CompareAndSwap(requestPending, requestAnswered) {
			time.AfterFunc(c.dev.net.opts.CMTimeout, func() { r.reply <- fabric.ErrTimeout })
		}
		return fabric.ErrUnreachable
	}
	if !c.dev.Acquire() {
		return net.ErrClosed
	}
	if !r.state.CompareAndSwap(requestPending, requestAnswered) {
		c.dev.Release()
		return fmt.Errorf("%w: the peer has given up", fabric.ErrUnreachable)
	}
	c.ref = true
	limits := c.dev.Limits()
	c.Outbound = min(cfg.ORD, limits.MaxORD, peer.Inbound)
	c.Inbound = min(cfg.IRD, limits.MaxIRD, peer.Outbound)
	peer.Outbound, peer.Inbound, peer.Private = c.Inbound, c.Outbound, private
	peer.qp.rnrRetry, c.qp.rnrRetry = cfg.RNRRetry, r.rnr
	if !connect(peer, c) {
		c.end(c.errDisconnected("the peer"), true)
	}
	r.reply <- nil
	return nil
}
