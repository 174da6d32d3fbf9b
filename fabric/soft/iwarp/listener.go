package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/host"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// maxGreeting is how many peers may have connected without having said what
// they want: beyond it the one that has waited longest is dropped.
const maxGreeting = 256

// listener implements fabric.Listener.
type listener struct {
	p       *Provider
	tcp     *net.TCPListener
	addr    netip.AddrPort
	backlog chan *request
	done    chan struct{}
	wg      sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	devices  map[netip.Addr]*device // a reference each; by address with zone
	greeting []*net.TCPConn         // in the order they came
}

// Listen takes connection requests.
func (p *Provider) Listen(ctx context.Context, addr netip.AddrPort, cfg fabric.ListenConfig) (fabric.Listener, error) {
	l, err := p.listen(ctx, addr, cfg)
	if err != nil {
		return nil, opError("listen", "", err)
	}
	return l, nil
}

func (p *Provider) listen(ctx context.Context, addr netip.AddrPort, cfg fabric.ListenConfig) (*listener, error) {
	if cfg.Backlog <= 0 {
		cfg.Backlog = 128
	}
	l := &listener{p: p, backlog: make(chan *request, cfg.Backlog), done: make(chan struct{}), devices: make(map[netip.Addr]*device)}
	ip := addr.Addr().Unmap()
	if !ip.IsUnspecified() {
		d, err := p.openAddr(ip) // also says what is no address of ours
		if err != nil {
			return nil, err
		}
		ip = ip.WithZone(d.zone)
		l.devices[ip] = d
	} else if err := p.alive(); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) error { return p.opts.early(raw) }}
	lc.SetMultipathTCP(false)
	tcp, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(ip, addr.Port()).String())
	if err != nil {
		l.releaseDevices()
		return nil, errors.Join(ctx.Err(), setupError(err))
	}
	l.tcp = tcp.(*net.TCPListener)
	l.addr = netip.AddrPortFrom(ip.WithZone(""), addrPort(tcp.Addr()).Port())
	l.wg.Go(l.routineAccept)
	return l, nil
}

func (p *Provider) alive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	return nil
}

// routineAccept takes TCP connections until the listener is closed.
func (l *listener) routineAccept() {
	for {
		tcp, err := l.tcp.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many open files, or the peer is gone already
			select {
			case <-l.done:
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		if l.greet(tcp) {
			l.wg.Go(func() { l.routineGreet(tcp) })
		}
	}
}

// greet notes a peer that has connected. It is false when the listener is
// closed, and with it the connection.
func (l *listener) greet(tcp *net.TCPConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		tcp.Close()
		return false
	}
	if len(l.greeting) == maxGreeting {
		l.greeting[0].Close() // its routine forgets it
		l.greeting = l.greeting[1:]
	}
	l.greeting = append(l.greeting, tcp)
	return true
}

// greeted forgets it again.
func (l *listener) greeted(tcp *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range l.greeting {
		if c == tcp {
			l.greeting = append(l.greeting[:i], l.greeting[i+1:]...)
			return
		}
	}
}

// routineGreet reads a peer's Request and queues it.
func (l *listener) routineGreet(tcp *net.TCPConn) {
	r := &request{l: l, tcp: tcp, local: addrPort(tcp.LocalAddr()), remote: addrPort(tcp.RemoteAddr())}
	err := bounded(context.Background(), tcp, l.p.opts.RequestTimeout, func() error { return readFrame(tcp, &r.frame, false) })
	l.greeted(tcp)
	if err != nil {
		tcp.Close()
		return
	}
	if l.p.opts.acceptable(&r.frame) != nil || !l.offer(r) {
		r.refuse(nil)
	}
}

// offer queues a request. It is false when the backlog is full.
func (l *listener) offer(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	var err error
	if r.dev, err = l.device(r.tcp.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()); err != nil {
		return false
	}
	select {
	case l.backlog <- r:
		return true
	default:
		return false
	}
}

// device is the open device of a local address; mu is held.
func (l *listener) device(ip netip.Addr) (*device, error) {
	if d := l.devices[ip]; d != nil {
		return d, nil
	}
	d, err := l.p.openAddr(ip)
	if err != nil {
		return nil, err
	}
	l.devices[ip] = d
	return d, nil
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
			if r.waits() {
				return r, nil
			}
			r.refuse(nil)
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
	for _, tcp := range l.greeting {
		tcp.Close()
	}
	l.mu.Unlock()
	close(l.done)
	l.tcp.Close()
	l.wg.Wait()
	for len(l.backlog) > 0 {
		(<-l.backlog).refuse(nil)
	}
	l.releaseDevices()
	return nil
}

func (l *listener) releaseDevices() {
	for _, d := range l.devices {
		d.Release()
	}
}

// request is a peer's MPA Request; it implements fabric.Request.
type request struct {
	l             *listener
	dev           *device
	tcp           *net.TCPConn
	local, remote netip.AddrPort
	frame         mpa.Frame
	answered      atomic.Bool
}

// waits says whether the peer is still there, and silent as it has to be.
func (r *request) waits() bool { return host.Silent(r.tcp) }

// Device is the device the request came in on.
func (r *request) Device() fabric.Device { return r.dev }

// PrivateData is the peer's, as long as it was sent.
func (r *request) PrivateData() []byte { return r.frame.Private }

// LocalAddr is the address the peer connects to.
func (r *request) LocalAddr() netip.AddrPort { return r.local }

// RemoteAddr is the peer's address.
func (r *request) RemoteAddr() netip.AddrPort { return r.remote }

// PeerORD is how many READs the peer wants to have outstanding.
func (r *request) PeerORD() int { return r.l.p.opts.peerReads(&r.frame, r.frame.ORD) }

// PeerIRD is how many of ours it answers.
func (r *request) PeerIRD() int { return r.l.p.opts.peerReads(&r.frame, r.frame.IRD) }

// Reject refuses the request.
func (r *request) Reject(private []byte) error {
	if n := len(private); n > maxPrivate {
		return r.dev.opError("reject", fmt.Errorf("%w: %d bytes of private data, %d fit", fabric.ErrInvalid, n, maxPrivate))
	}
	r.refuse(private)
	return nil
}

// refuse sends a rejection, if the request is not answered already.
func (r *request) refuse(private []byte) {
	if r.answered.Swap(true) {
		return
	}
	f := rejection(&r.frame, private)
	_ = r.write(context.Background(), &f) // a peer that is gone needs none
	r.tcp.Close()
}

func (r *request) write(ctx context.Context, f *mpa.Frame) error {
	return bounded(ctx, r.tcp, r.l.p.opts.ReplyTimeout, func() error {
		_, err := r.tcp.Write(f.Append(nil, true))
		return err
	})
}

// Accept makes a QP and completes the set-up.
func (r *request) Accept(ctx context.Context, cfg fabric.ConnConfig) (fabric.Conn, error) {
	c, err := r.accept(ctx, &cfg)
	if err != nil {
		r.refuse(nil)
		return nil, r.dev.opError("accept", err)
	}
	return c, nil
}

func (r *request) accept(ctx context.Context, cfg *fabric.ConnConfig) (*conn, error) {
	switch err := errors.Join(ctx.Err(), r.dev.Fault()); {
	case err != nil:
		return nil, err
	case r.answered.Load():
		return nil, fmt.Errorf("%w: the request is answered", fabric.ErrInvalid)
	case !r.waits():
		return nil, fmt.Errorf("%w: the peer has given up", fabric.ErrUnreachable)
	}
	c, err := newConn(r.dev, cfg)
	if err != nil {
		return nil, err
	}
	c.Local, c.Remote = r.local, r.remote
	if c.ref = r.dev.Acquire(); !c.ref {
		err = net.ErrClosed
	} else {
		err = r.reply(ctx, c, cfg)
	}
	if err != nil {
		c.abandon(r.dev.opError("accept", err))
		return nil, err
	}
	return c, nil
}

// reply sends the Reply and starts the QP.
func (r *request) reply(ctx context.Context, c *conn, cfg *fabric.ConnConfig) error {
	f, n := r.l.p.opts.acceptance(&r.frame, cfg)
	if r.answered.Swap(true) {
		return fmt.Errorf("%w: the request is answered", fabric.ErrInvalid)
	}
	if err := r.write(ctx, &f); err != nil {
		r.tcp.Close()
		return err
	}
	if err := c.start(r.tcp, n, cfg.TrafficClass); err != nil {
		r.tcp.Close()
		return err
	}
	return nil
}
