package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// listen listens on b, on a port of the system's choice.
func (s *suite) listen(cfg fabric.ListenConfig) fabric.Listener {
	s.Helper()
	l, err := s.b.p.Listen(s.ctx(), netip.AddrPortFrom(s.b.addr, 0), cfg)
	s.must(err)
	s.Cleanup(func() { s.closed("listener", l.Close()) })
	return l
}

// dial dials from a to l in the background. A connection that comes of it is
// closed with the test.
func (s *suite) dial(ctx context.Context, l fabric.Listener, mod func(*fabric.ConnConfig)) (*side, <-chan error) {
	sd := &side{end: s.a}
	cfg := sd.config()
	if mod != nil {
		mod(&cfg)
	}
	result := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		sd.conn, err = s.a.dev.Dial(ctx, netip.AddrPortFrom(s.a.addr, 0), l.Addr(), cfg)
		result <- err
	})
	s.Cleanup(func() {
		wg.Wait()
		if sd.conn != nil {
			s.closed("dialled connection", sd.conn.Close())
		}
	})
	return sd, result
}

// next takes the next request of l.
func (s *suite) next(l fabric.Listener) fabric.Request {
	s.Helper()
	r, err := l.Accept(s.ctx())
	s.must(err)
	return r
}

// accept accepts r at b; the connection is closed with the test.
func (s *suite) accept(r fabric.Request, mod func(*fabric.ConnConfig)) (*side, error) {
	sd := &side{end: s.b}
	cfg := sd.config()
	if mod != nil {
		mod(&cfg)
	}
	var err error
	if sd.conn, err = r.Accept(s.ctx(), cfg); err != nil {
		return nil, err
	}
	s.Cleanup(func() { s.closed("accepted connection", sd.conn.Close()) })
	return sd, nil
}

// mustAccept is accept that has to succeed.
func (s *suite) mustAccept(r fabric.Request) *side {
	s.Helper()
	sd, err := s.accept(r, nil)
	s.must(err)
	return sd
}

// begins says whether got is want with at most zeros behind it, as transports
// pad private data.
func begins(got, want []byte) bool {
	return bytes.HasPrefix(got, want) && len(bytes.Trim(got[len(want):], "\x00")) == 0
}

// testPrivateData carries private data both ways.
func testPrivateData(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	for _, c := range [][2]int{{0, 0}, {1, 1}, {32, 32}, {56, 148}, {0, 32}, {32, 0}} {
		request, reply := make([]byte, c[0]), make([]byte, c[1])
		fill(request, 1)
		fill(reply, 2)
		dialled, done := s.dial(s.ctx(), l, func(cfg *fabric.ConnConfig) { cfg.PrivateData = request })
		r := s.next(l)
		if got := r.PrivateData(); !begins(got, request) {
			s.Errorf("request of %d bytes: got % x, want % x", len(request), got, request)
		}
		accepted, err := s.accept(r, func(cfg *fabric.ConnConfig) { cfg.PrivateData = reply })
		s.must(err)
		s.must(<-done)
		if got := dialled.conn.PrivateData(); !begins(got, reply) {
			s.Errorf("reply of %d bytes: got % x, want % x", len(reply), got, reply)
		}
		if got := accepted.conn.PrivateData(); got != nil {
			s.Errorf("the accepting side has private data: % x", got)
		}
	}
	dialled := &side{end: s.a}
	cfg := dialled.config()
	cfg.PrivateData = make([]byte, 5000)
	if _, err := s.a.dev.Dial(s.ctx(), netip.AddrPort{}, l.Addr(), cfg); err == nil {
		s.Error("5000 bytes of private data were sent")
	}
}

// testRequest: what a request and both ends of a connection say.
func testRequest(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	dialled, done := s.dial(s.ctx(), l, func(cfg *fabric.ConnConfig) { cfg.ORD, cfg.IRD = 1, 2 })
	r := s.next(l)
	if l.Addr().Port() == 0 || l.Addr().Addr() != s.b.addr {
		s.Errorf("the listener is at %v", l.Addr())
	}
	if r.Device().Name() != s.b.dev.Name() {
		s.Errorf("the request came to device %q, want %q", r.Device().Name(), s.b.dev.Name())
	}
	if r.LocalAddr() != l.Addr() || r.RemoteAddr().Addr() != s.a.addr {
		s.Errorf("request from %v to %v, want from %v to %v", r.RemoteAddr(), r.LocalAddr(), s.a.addr, l.Addr())
	}
	if ord, ird := min(1, s.a.dev.Limits().MaxORD), min(2, s.a.dev.Limits().MaxIRD); r.PeerORD() != ord || r.PeerIRD() != ird {
		s.Errorf("PeerORD %d, PeerIRD %d, want %d and %d", r.PeerORD(), r.PeerIRD(), ord, ird)
	}
	accepted := s.mustAccept(r)
	s.must(<-done)
	a, b := dialled.conn, accepted.conn
	if a.RemoteAddr() != l.Addr() || b.LocalAddr() != l.Addr() || a.LocalAddr().Addr() != s.a.addr || b.RemoteAddr() != a.LocalAddr() {
		s.Errorf("addresses: a %v to %v, b %v to %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
	}
	if a.ORD() > b.IRD() || b.ORD() > a.IRD() || a.ORD() != 1 || b.ORD() != min(2, s.b.dev.Limits().MaxORD) {
		s.Errorf("a: ORD %d IRD %d, b: ORD %d IRD %d", a.ORD(), a.IRD(), b.ORD(), b.IRD())
	}
	for _, sd := range []*side{dialled, accepted} {
		if n := sd.setups.Load(); n != 1 {
			s.Errorf("Setup of %s was called %d times", sd.name, n)
		}
		if sd.qp == nil || sd.conn.QueuePair().Num() != sd.qp.Num() || sd.qp.State() != fabric.QPReadyToSend {
			s.Errorf("%s: the queue pair of Setup and of the connection differ, or it is in state %v", sd.name, sd.conn.QueuePair().State())
		}
		if sd.conn.Err() != nil || sd.isDone() || sd.closes.Load() != 0 {
			s.Errorf("%s: a new connection has ended: %v", sd.name, sd.conn.Err())
		}
	}
	if dialled.conn.Device().Name() != s.a.dev.Name() || accepted.conn.Device().Name() != s.b.dev.Name() {
		s.Error("a connection names another device")
	}
}

// rejection is the RejectError in err, or nil.
func rejection(err error) *fabric.RejectError {
	var r *fabric.RejectError
	if errors.As(err, &r) {
		return r
	}
	return nil
}

// testReject refuses with private data.
func testReject(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	for _, n := range []int{0, 4, 148} {
		private := make([]byte, n)
		fill(private, 3)
		dialled, done := s.dial(s.ctx(), l, nil)
		s.must(s.next(l).Reject(private))
		err := <-done
		if r := rejection(err); r == nil || r.Reason != fabric.RejectConsumer || !begins(r.Private, private) {
			s.Errorf("rejected with %d bytes: %#v", n, err)
		}
		s.until("Closed after a reject", func() bool { return dialled.closes.Load() == 1 })
	}
	if n := s.a.dev.Counts().QPs; n != 0 {
		s.Errorf("%d queue pairs are left of rejected connections", n)
	}
}

// testNobodyListens dials a port without a listener.
func testNobodyListens(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	s.must(l.Close())
	_, done := s.dial(s.ctx(), l, nil)
	if err := <-done; rejection(err) == nil && !errors.Is(err, fabric.ErrUnreachable) {
		s.Errorf("dial of a port without listener: %v", err)
	}
}

// testListenErrors: addresses that are taken, foreign, or taken by a wildcard.
func testListenErrors(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	again, err := s.b.p.Listen(s.ctx(), l.Addr(), fabric.ListenConfig{})
	if !errors.Is(err, fabric.ErrAddrInUse) {
		s.Errorf("second listener on %v: %v, %v", l.Addr(), again, err)
	}
	foreign := netip.AddrPortFrom(netip.MustParseAddr("203.0.113.77"), 0)
	if f, err := s.b.p.Listen(s.ctx(), foreign, fabric.ListenConfig{}); !errors.Is(err, fabric.ErrAddrNotAvailable) {
		s.Errorf("listener on a foreign address: %v, %v", f, err)
	}
	s.must(l.Close())
	l, err = s.b.p.Listen(s.ctx(), l.Addr(), fabric.ListenConfig{})
	if err != nil {
		s.Fatalf("listen again after close: %v", err)
	}
	s.must(l.Close())
	any := netip.IPv4Unspecified()
	if s.b.addr.Is6() {
		any = netip.IPv6Unspecified()
	}
	w, err := s.b.p.Listen(s.ctx(), netip.AddrPortFrom(any, 0), fabric.ListenConfig{})
	if err != nil {
		s.Fatalf("listen on %v: %v", any, err)
	}
	defer w.Close()
	_, done := s.dial(s.ctx(), addrListener{w, netip.AddrPortFrom(s.b.addr, w.Addr().Port())}, nil)
	r := s.next(w)
	if r.LocalAddr() != netip.AddrPortFrom(s.b.addr, w.Addr().Port()) {
		s.Errorf("a request to %v through a wildcard has the local address %v", s.b.addr, r.LocalAddr())
	}
	s.mustAccept(r)
	s.must(<-done)
}

// addrListener is a listener as dialled through one of its addresses.
type addrListener struct {
	fabric.Listener
	addr netip.AddrPort
}

func (l addrListener) Addr() netip.AddrPort { return l.addr }

// testListenerClosed: Close rejects who waits, leaves who is connected, wakes
// Accept.
func testListenerClosed(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	dialled, done := s.dial(s.ctx(), l, nil)
	ch := &channel{a: dialled, b: s.mustAccept(s.next(l))}
	s.must(<-done)

	_, waiting := s.dial(s.ctx(), l, nil)
	time.Sleep(50 * time.Millisecond) // let it arrive
	s.must(l.Close())
	s.must(l.Close())
	if err := <-waiting; rejection(err) == nil {
		s.Errorf("a request that waited when the listener was closed ended with %v", err)
	}
	if _, err := l.Accept(s.ctx()); !errors.Is(err, net.ErrClosed) {
		s.Errorf("Accept after Close: %v", err)
	}
	ch.alive("after its listener was closed")
}

// testAcceptEnds: a waiting Accept ends with its context and with the listener.
func testAcceptEnds(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	ctx, cancel := context.WithCancel(s.ctx())
	result := make(chan error, 1)
	wait := func() {
		_, err := l.Accept(ctx)
		result <- err
	}
	go wait()
	time.Sleep(5 * time.Millisecond)
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		s.Errorf("Accept with a cancelled context: %v", err)
	}
	ctx = s.ctx()
	go wait()
	time.Sleep(5 * time.Millisecond)
	s.must(l.Close())
	if err := <-result; !errors.Is(err, net.ErrClosed) {
		s.Errorf("Accept when the listener was closed: %v", err)
	}
}

// testBacklog: as many requests as the backlog holds wait; what is beyond it is
// rejected, or waits in the network.
func testBacklog(s *suite) {
	const backlog, dials = 3, 8
	l := s.listen(fabric.ListenConfig{Backlog: backlog})
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	results := make(chan error, dials)
	for range dials {
		_, done := s.dial(ctx, l, nil)
		go func() { results <- <-done }()
	}
	time.Sleep(100 * time.Millisecond) // all requests arrive
	connected, refused := 0, 0
	for connected+refused < dials {
		acceptCtx, stop := context.WithTimeout(ctx, 100*time.Millisecond)
		r, err := l.Accept(acceptCtx)
		stop()
		if err == nil {
			if _, err := s.accept(r, nil); err != nil {
				s.Logf("accept: %v", err)
			}
		}
		for more := true; more; {
			select {
			case err := <-results:
				if err == nil {
					connected++
				} else if refused++; rejection(err) == nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, fabric.ErrTimeout) {
					s.Errorf("a request beyond the backlog ended with %v", err)
				}
			default:
				more = false
			}
		}
	}
	if connected < backlog {
		s.Errorf("%d of %d requests were connected with a backlog of %d", connected, dials, backlog)
	}
}

// testSimultaneous connects in both directions at once, many times.
func testSimultaneous(s *suite) {
	const each = 12
	var mu sync.Mutex
	var conns []fabric.Conn
	var wg sync.WaitGroup
	keep := func(what string, c fabric.Conn, err error) {
		if err != nil {
			s.Errorf("%s: %v", what, err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
	}
	ends := []*end{s.a, s.b}
	for i, to := range ends {
		from := ends[1-i]
		l, err := to.p.Listen(s.ctx(), netip.AddrPortFrom(to.addr, 0), fabric.ListenConfig{})
		s.must(err)
		s.Cleanup(func() { s.closed("listener", l.Close()) })
		ctx := s.ctx()
		wg.Go(func() {
			for range each {
				r, err := l.Accept(ctx)
				if err != nil {
					s.Errorf("accept: %v", err)
					return
				}
				wg.Go(func() {
					c, err := r.Accept(ctx, (&side{end: to}).config())
					keep("accept at "+to.name, c, err)
				})
			}
		})
		for range each {
			wg.Go(func() {
				c, err := from.dev.Dial(ctx, netip.AddrPortFrom(from.addr, 0), l.Addr(), (&side{end: from}).config())
				keep("dial from "+from.name, c, err)
			})
		}
	}
	wg.Wait()
	numbers := make(map[string]bool)
	for _, c := range conns {
		key := fmt.Sprint(c.Device().Name(), c.QueuePair().Num())
		if numbers[key] && (s.sameDevice() || s.a.dev.Name() != s.b.dev.Name()) {
			s.Errorf("two queue pairs have the number %s", key)
		}
		numbers[key] = true
		c.Disconnect()
	}
	for _, c := range conns {
		s.closed("connection", c.Close())
	}
	if len(conns) != 4*each {
		s.Errorf("%d ends, want %d", len(conns), 4*each)
	}
}

// testSlowAcceptor lets the dialler wait for the acceptor's program.
func testSlowAcceptor(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	dialled, done := s.dial(s.ctx(), l, nil)
	r := s.next(l)
	select {
	case err := <-done:
		s.Fatalf("Dial returned before Accept: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	ch := &channel{a: dialled, b: s.mustAccept(r)}
	s.must(<-done)
	ch.alive("after a slow accept")
}

// testDialCancelled: a dialler that gives up returns at once and leaves
// nothing; who accepts it nevertheless fails or sees the connection end.
func testDialCancelled(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, done := s.dial(cancelled, l, nil)
	if err := <-done; !errors.Is(err, context.Canceled) {
		s.Errorf("dial with a context that has ended: %v", err)
	}
	ctx, cancel := context.WithCancel(s.ctx())
	dialled, done := s.dial(ctx, l, nil)
	r := s.next(l)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		s.Errorf("cancelled dial: %v", err)
	}
	s.until("Closed of the cancelled dial", func() bool { return dialled.closes.Load() == 1 })
	if n := s.a.dev.Counts().QPs; n != 0 {
		s.Errorf("%d queue pairs are left of cancelled dials", n)
	}
	if sd, err := s.accept(r, nil); err == nil {
		s.until("the end of a connection whose dialler is gone", sd.isDone)
	}
	deadline, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	_, done = s.dial(deadline, l, nil)
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		s.Errorf("dial without an answer: %v", err)
	}
}

// testSetupFails: an error of Setup fails the attempt at either end.
func testSetupFails(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	mine := errors.New("no receives today")
	fail := func(cfg *fabric.ConnConfig) { cfg.Setup = func(fabric.QueuePair) error { return mine } }
	_, done := s.dial(s.ctx(), l, fail)
	if err := <-done; !errors.Is(err, mine) {
		s.Errorf("dial: %v", err)
	}
	_, done = s.dial(s.ctx(), l, nil)
	if _, err := s.accept(s.next(l), fail); !errors.Is(err, mine) {
		s.Errorf("accept: %v", err)
	}
	if err := <-done; rejection(err) == nil {
		s.Errorf("the dialler's end of a failed accept: %v", err)
	}
	if a, b := s.a.dev.Counts().QPs, s.b.dev.Counts().QPs; a+b != 0 {
		s.Errorf("%d and %d queue pairs are left", a, b)
	}
	s.connect().alive("after failed attempts")
}

// testConnConfig: what does not fit the limits is refused before anything is
// sent.
func testConnConfig(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	limits := s.a.dev.Limits()
	for name, change := range map[string]func(*fabric.ConnConfig){
		"no send CQ":          func(c *fabric.ConnConfig) { c.SendCQ = nil },
		"no receive CQ":       func(c *fabric.ConnConfig) { c.RecvCQ = nil },
		"send depth":          func(c *fabric.ConnConfig) { c.SendDepth = limits.MaxQPDepth + 1 },
		"receive depth":       func(c *fabric.ConnConfig) { c.RecvDepth = limits.MaxQPDepth + 1 },
		"SGEs":                func(c *fabric.ConnConfig) { c.MaxSendSGE = limits.MaxSGE + 1 },
		"negative send depth": func(c *fabric.ConnConfig) { c.SendDepth = -1 },
	} {
		_, done := s.dial(s.ctx(), l, change)
		if err := <-done; err == nil || rejection(err) != nil {
			s.Errorf("%s: %v", name, err)
		}
	}
	if n := s.a.dev.Counts().QPs; n != 0 {
		s.Errorf("%d queue pairs are left", n)
	}
	// ORD and IRD are clipped, not refused.
	ch := s.connect(func(a, b *fabric.ConnConfig) { a.ORD, b.IRD = limits.MaxORD+1000, s.b.dev.Limits().MaxIRD+1000 })
	if got := ch.a.conn.ORD(); got > limits.MaxORD || got > s.b.dev.Limits().MaxIRD || got == 0 {
		s.Errorf("ORD %d of a device that can do %d", got, limits.MaxORD)
	}
}
