//go:build linux && cgo && !nordma

package verbs

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

func TestDisconnectFlushesBothSides(t *testing.T) {
	p := newPair(t)
	p.connect(t, p.addr(t, false), 8)
	if err := p.a.conn.Disconnect(); err != nil {
		t.Fatal(err)
	}
	if err := p.a.conn.Disconnect(); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*end{p.a, p.b} {
		if err := e.wantClosed(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Closed(%v)", err)
		}
		<-e.conn.Done()
		if err := e.conn.Err(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Err() = %v", err)
		}
		e.flushed(8)
		if s := e.conn.QueuePair().State(); s != fabric.QPError {
			t.Errorf("state %v", s)
		}
	}
	if err := p.a.postRecvs(p.a.conn.QueuePair(), 3); !errors.Is(err, fabric.ErrQPError) {
		t.Errorf("post on a QP in error: %v", err)
	}
	for _, e := range []*end{p.a, p.b} {
		closing(t, e.conn)
		closing(t, e.conn)
		if _, err := e.conn.QueuePair().PostSend([]fabric.SendWR{{}}, nil); !errors.Is(err, net.ErrClosed) {
			t.Errorf("post on a closed QP: %v", err)
		}
		if n := len(e.closed); n != 0 {
			t.Errorf("Closed called %d times too many", n)
		}
	}
	if c := p.dev.Counts(); c.QPs != 0 {
		t.Errorf("%+v", c)
	}
}

// The CM learns nothing of an error of the QP; the provider ends the
// connection on both sides all the same.
func TestQPErrorEndsConnection(t *testing.T) {
	for name, c := range map[string]struct {
		wr     fabric.SendWR
		n      int
		status fabric.Status
	}{
		"unknown key": {fabric.SendWR{Op: fabric.OpWrite, RKey: 0x12345678}, 8, fabric.StatusRemoteAccess},
		"too long":    {fabric.SendWR{Op: fabric.OpSend}, 8192, 0}, // 0: rxe and hardware differ
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			if p.iwarp() {
				t.Skip("iWARP does not tell which WR the peer refused")
			}
			p.connect(t, p.addr(t, false), 2)
			c.wr.RemoteAddr = p.b.mem.Addr()
			p.a.send(c.wr, 0, c.n)
			got := p.a.next()
			if got.ID != sendID || got.Op != c.wr.Op || got.Status == success || c.status != 0 && got.Status != c.status {
				t.Errorf("%+v (%v)", got, got.Status)
			}
			if err := p.a.wantClosed(); !errors.Is(err, fabric.ErrQPError) {
				t.Errorf("a: %v", err)
			}
			p.a.flushed(2)
			for range 2 { // b's receives come home too: the first perhaps with the cause
				if c := p.b.next(); c.Status == success || c.Op != fabric.OpRecv {
					t.Errorf("%+v", c)
				}
			}
			p.b.wantClosed()
		})
	}
}

func TestPostLimits(t *testing.T) {
	p := newPair(t)
	p.connect(t, p.addr(t, false), 0)
	qp := p.a.conn.QueuePair()
	sges := []fabric.SGE{p.a.sge(0, 8)}
	// The device may round depths up; what was asked for counts.
	for _, n := range []int{65, 1} {
		if got, err := qp.PostRecv(slices.Repeat([]fabric.RecvWR{{NumSGE: 1}}, n), sges); got != n/65*64 || !errors.Is(err, fabric.ErrQueueFull) {
			t.Errorf("posted %d of %d receives: %v", got, n, err)
		}
	}
	for _, c := range []struct {
		name string
		wr   fabric.SendWR
	}{
		{"SGE beyond the slice", fabric.SendWR{Op: fabric.OpSend, FirstSGE: 1, NumSGE: 1}},
		{"SGE index that wraps", fabric.SendWR{Op: fabric.OpSend, FirstSGE: 0xffffffff, NumSGE: 2}},
		{"receive opcode", fabric.SendWR{Op: fabric.OpRecv}},
		{"atomic as a send", fabric.SendWR{Op: fabric.OpFetchAdd, NumSGE: 1}},
		{"inline too long", fabric.SendWR{Op: fabric.OpSend, Flags: fabric.FlagInline, NumSGE: 1}},
	} {
		sges[0].Length = 100000
		n, err := qp.PostSend([]fabric.SendWR{{Op: fabric.OpSend}, c.wr, {Op: fabric.OpSend}}, sges)
		if n != 1 || !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("%s: %d, %v", c.name, n, err)
		}
	}
}

// The places of sends are taken until they are polled, though the device has
// done them long before; the completion of a signaled one frees those before.
func TestSendQueueIsCounted(t *testing.T) {
	p := newPair(t)
	p.connect(t, p.addr(t, false), 0)
	write := fabric.SendWR{Op: fabric.OpWrite, RemoteAddr: p.b.mem.Addr(), RKey: p.b.mr.RKey(), NumSGE: 1}
	sges := []fabric.SGE{p.a.sge(0, 8)}
	batch := func(n int) []fabric.SendWR {
		wrs := slices.Repeat([]fabric.SendWR{write}, n)
		wrs[n-1].Flags, wrs[n-1].ID = signaled, uint64(n)
		return wrs
	}
	qp := p.a.conn.QueuePair()
	for round := range 5 {
		if n, err := qp.PostSend(batch(60), sges); n != 60 || err != nil {
			t.Fatal(round, n, err)
		}
		time.Sleep(20 * time.Millisecond)
		if n, err := qp.PostSend(batch(100), sges); n != 4 || !errors.Is(err, fabric.ErrQueueFull) {
			t.Fatalf("round %d: posted %d to the full queue: %v", round, n, err)
		}
		p.a.want(60, success, fabric.OpWrite)
		if n, err := qp.PostSend(batch(60), sges); n != 60 || err != nil {
			t.Fatal(round, n, err)
		}
		p.a.want(60, success, fabric.OpWrite)
	}
}

// Completions of a closed connection that nobody polled never come.
func TestStaleCompletions(t *testing.T) {
	p := newPair(t)
	for range 20 {
		p.connect(t, p.addr(t, false), 8)
		for range 3 {
			p.a.send(fabric.SendWR{Op: fabric.OpSend, Flags: signaled}, 65536, 8)
		}
		p.a.want(sendID, success, fabric.OpSend)
		p.b.want(0, success, fabric.OpRecv)
		old := p.a.conn.QueuePair().Num()
		closing(t, p.a.conn)
		closing(t, p.b.conn)
		for n := 1; n > 0; {
			var wc [4]fabric.Completion
			var err error
			if n, err = p.a.cq.Poll(wc[:]); n > 0 || err != nil {
				t.Errorf("%d completions of the closed QP %d: %+v, %v", n, old, wc[:n], err)
			}
		}
		p.b.got = nil
		p.a.got = nil
	}
	p.a.conn, p.b.conn = nil, nil
}

// More completions than the CQ holds end the connection; Poll gives those
// there are and then says so.
func TestOverflow(t *testing.T) {
	p := newPair(t)
	small, err := p.dev.NewCompletionQueue(4, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.dial = func(c *fabric.ConnConfig) { c.SendCQ = small }
	p.connect(t, p.addr(t, false), 0)
	wr := fabric.SendWR{Op: fabric.OpWrite, RemoteAddr: p.b.mem.Addr(), RKey: p.b.mr.RKey(), NumSGE: 1, Flags: signaled}
	qp := p.a.conn.QueuePair()
	if n, err := qp.PostSend(slices.Repeat([]fabric.SendWR{wr}, 64), []fabric.SGE{p.a.sge(0, 8)}); n != 64 || err != nil {
		t.Fatal(n, err)
	}
	if err := p.a.wantClosed(); !errors.Is(err, fabric.ErrQueueFull) {
		t.Errorf("Closed(%v)", err)
	}
	wc := make([]fabric.Completion, 64)
	if n, err := small.Poll(wc); n < 4 || n == 64 || err != nil {
		t.Errorf("first Poll: %d, %v", n, err)
	}
	if n, err := small.Poll(wc); n != 0 || !errors.Is(err, fabric.ErrQueueFull) {
		t.Errorf("second Poll: %d, %v", n, err)
	}
	closing(t, p.a.conn)
	p.a.conn = nil
	closing(t, small)
}

func TestArmNotifiesOfWhatIsThere(t *testing.T) {
	p := newPair(t)
	p.connect(t, p.addr(t, false), 8)
	for i := range 3 {
		p.a.send(fabric.SendWR{Op: fabric.OpSend}, 65536, 8)
		for len(p.b.got) == 0 { // without Arm
			var wc [1]fabric.Completion
			n, err := p.b.cq.Poll(wc[:])
			if err != nil {
				t.Fatal(err)
			}
			p.b.got = append(p.b.got, wc[:n]...)
		}
		if len(p.b.wake) != 0 {
			t.Fatal("a notify without Arm")
		}
		p.b.want(uint64(2*i), success, fabric.OpRecv)
		p.a.send(fabric.SendWR{Op: fabric.OpSend, Flags: signaled}, 65536, 8)
		p.a.want(sendID, success, fabric.OpSend) // so the receive is there too
		for range 2 {
			if err := p.b.cq.Arm(); err != nil {
				t.Fatal(err)
			}
			<-p.b.wake
		}
		p.b.want(uint64(2*i+1), success, fabric.OpRecv)
	}
}

func TestReject(t *testing.T) {
	p := newPair(t)
	ctx := deadline(t)
	l, err := p.p.Listen(ctx, p.addr(t, false), fabric.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		if !bytes.HasPrefix(r.PrivateData(), []byte("who")) || r.PeerORD() != 3 || r.PeerIRD() != 2 {
			t.Errorf("request %q, ORD %d, IRD %d", r.PrivateData(), r.PeerORD(), r.PeerIRD())
		}
		if err := r.Reject(make([]byte, 149)); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("reject with 149 bytes: %v", err)
		}
		if err := r.Reject([]byte("go away")); err != nil {
			t.Error(err)
		}
		if _, err := r.Accept(ctx, fabric.ConnConfig{}); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("accept after reject: %v", err)
		}
	}()
	cfg := p.a.config(2)
	cfg.PrivateData, cfg.ORD, cfg.IRD = []byte("who"), 3, 2
	_, err = p.dev.Dial(ctx, netip.AddrPort{}, l.Addr(), cfg)
	var rej *fabric.RejectError
	if !errors.As(err, &rej) || rej.Reason != fabric.RejectConsumer || !bytes.HasPrefix(rej.Private, []byte("go away")) {
		t.Errorf("dial: %v", err)
	}
	if err := p.a.wantClosed(); !errors.As(err, &rej) {
		t.Errorf("Closed(%v)", err)
	}
	closing(t, l)
	closing(t, l)
	if _, err := l.Accept(ctx); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept on a closed listener: %v", err)
	}
	_, err = p.dev.Dial(ctx, netip.AddrPort{}, l.Addr(), p.a.config(0))
	if !p.iwarp() && (!errors.As(err, &rej) || rej.Reason != fabric.RejectBadServiceID) || p.iwarp() && !errors.Is(err, fabric.ErrUnreachable) {
		t.Errorf("dial nobody: %v", err)
	}
}

func TestSetupFailureRejects(t *testing.T) {
	p := newPair(t)
	ctx := deadline(t)
	l, err := p.p.Listen(ctx, p.addr(t, false), fabric.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, l)
	oops := errors.New("oops")
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		cfg := p.b.config(0)
		cfg.Setup = func(fabric.QueuePair) error { return oops }
		if _, err = r.Accept(ctx, cfg); !errors.Is(err, oops) {
			t.Errorf("accept: %v", err)
		}
	}()
	var rej *fabric.RejectError
	if _, err = p.dev.Dial(ctx, netip.AddrPort{}, l.Addr(), p.a.config(0)); !errors.As(err, &rej) {
		t.Errorf("dial: %v", err)
	}
	<-done
	if len(p.b.closed) != 0 {
		t.Error("Closed was called without a Setup that succeeded")
	}
	if c := p.dev.Counts(); c.QPs != 0 {
		t.Errorf("%+v", c)
	}
}

func TestDialContext(t *testing.T) {
	p := newPair(t)
	l, err := p.p.Listen(deadline(t), p.addr(t, false), fabric.ListenConfig{Backlog: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	// Nobody accepts.
	if _, err = p.dev.Dial(ctx, netip.AddrPort{}, l.Addr(), p.a.config(2)); !errors.Is(err, fabric.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial: %v", err)
	}
	p.a.wantClosed()
	ctx2, cancel2 := context.WithCancel(context.Background())
	cancel2()
	if _, err = l.Accept(ctx2); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("accept: %v", err)
	}
	closing(t, l)
	// 10.255.255.1 or the like: on the network of the device, not there.
	far := p.addr(t, false).Addr().As4()
	far[3] ^= 0x55
	ctx3, cancel3 := context.WithTimeout(context.Background(), time.Second)
	defer cancel3()
	_, err = p.dev.Dial(ctx3, netip.AddrPort{}, netip.AddrPortFrom(netip.AddrFrom4(far), 4420), p.a.config(0))
	if !errors.Is(err, fabric.ErrTimeout) && !errors.Is(err, fabric.ErrUnreachable) {
		t.Errorf("dial an absent host: %v", err)
	}
	if c := p.dev.Counts(); c.QPs != 0 {
		t.Errorf("%+v", c)
	}
}

func TestListenErrors(t *testing.T) {
	p := newPair(t)
	ctx := deadline(t)
	l, err := p.p.Listen(ctx, p.addr(t, false), fabric.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, l)
	if _, err = p.p.Listen(ctx, l.Addr(), fabric.ListenConfig{}); !errors.Is(err, fabric.ErrAddrInUse) {
		t.Errorf("listen twice: %v", err)
	}
	_, err = p.p.Listen(ctx, netip.MustParseAddrPort("192.0.2.7:4420"), fabric.ListenConfig{})
	if !errors.Is(err, fabric.ErrAddrNotAvailable) || !containsAll(err.Error(), "no RDMA device has address 192.0.2.7", p.dev.Name(), p.addr(t, false).Addr().String()) {
		t.Errorf("listen on a foreign address: %v", err)
	}
	if err := p.p.Close(); !errors.Is(err, fabric.ErrBusy) {
		t.Errorf("close the provider of a listener: %v", err)
	}
}

// Backlog requests wait, one more is refused, and Close refuses those that
// wait.
func TestBacklog(t *testing.T) {
	p := newPair(t)
	ctx := deadline(t)
	l, err := p.p.Listen(ctx, p.addr(t, false), fabric.ListenConfig{Backlog: 2})
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 3)
	for range 3 {
		go func() {
			cfg := p.a.config(0)
			cfg.Closed = nil
			_, err := p.dev.Dial(ctx, netip.AddrPort{}, l.Addr(), cfg)
			errs <- err
		}()
	}
	var rej *fabric.RejectError
	if err := <-errs; !errors.As(err, &rej) {
		t.Errorf("the third: %v", err)
	}
	closing(t, l)
	for range 2 {
		if err := <-errs; !errors.As(err, &rej) {
			t.Errorf("waiting at close: %v", err)
		}
	}
}

func TestSharedReceiveQueue(t *testing.T) {
	p := newPair(t)
	srq, err := p.dev.NewSharedReceiveQueue(64, 1)
	if errors.Is(err, fabric.ErrNotSupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	p.b.srq = srq
	if err := p.b.postRecvs(srq, 4); err != nil {
		t.Fatal(err)
	}
	p.connect(t, p.addr(t, false), 0)
	for range 3 {
		p.a.send(fabric.SendWR{Op: fabric.OpSend, Flags: signaled}, 65536, 100)
		p.a.want(sendID, success, fabric.OpSend)
	}
	for i := range 3 {
		p.b.want(uint64(i), success, fabric.OpRecv)
	}
	if _, err := p.b.conn.QueuePair().PostRecv([]fabric.RecvWR{{}}, nil); !errors.Is(err, fabric.ErrInvalid) {
		t.Errorf("PostRecv on a QP with an SRQ: %v", err)
	}
	if err := srq.Close(); !errors.Is(err, fabric.ErrBusy) {
		t.Errorf("close an SRQ in use: %v", err)
	}
	if err := p.b.cq.Close(); !errors.Is(err, fabric.ErrBusy) {
		t.Errorf("close a CQ in use: %v", err)
	}
}

// A send that meets no receive waits and is repeated after the RNR timer, which
// the provider sets to less than the CM's 655 ms.
func TestReceiverNotReady(t *testing.T) {
	p := newPair(t)
	if !p.dev.Limits().RNR {
		t.Skip("no RNR")
	}
	p.connect(t, p.addr(t, false), 0)
	start := time.Now()
	for range 5 {
		p.a.send(fabric.SendWR{Op: fabric.OpSend, Flags: signaled}, 65536, 100)
		time.Sleep(20 * time.Millisecond)
		if err := p.b.postRecvs(p.b.conn.QueuePair(), 1); err != nil {
			t.Fatal(err)
		}
		p.a.want(sendID, success, fabric.OpSend)
		p.b.want(0, success, fabric.OpRecv)
	}
	t.Logf("5 late receives in %v", time.Since(start))
}

func TestReceiverNeverReady(t *testing.T) {
	p := newPair(t)
	if !p.dev.Limits().RNR {
		t.Skip("no RNR")
	}
	// The peer's CM carries how often a sender tries again.
	p.accept = func(c *fabric.ConnConfig) { c.RNRRetry = 2 }
	p.connect(t, p.addr(t, false), 0)
	p.a.send(fabric.SendWR{Op: fabric.OpSend}, 65536, 100)
	p.a.want(sendID, fabric.StatusRNRRetryExceeded, fabric.OpSend)
	p.a.wantClosed()
	p.b.wantClosed()
}

func TestReadDepth(t *testing.T) {
	if newPair(t).iwarp() {
		t.Skip("drivers of iWARP differ in what they say of the peer's depths")
	}
	for _, c := range []struct{ dialORD, dialIRD, acceptORD, acceptIRD, wantDialORD, wantDialIRD int }{
		{4, 8, 16, 2, 2, 8},
		{0, 8, 4, 4, 0, 4},
		{1, 0, 4, 4, 1, 0},
		{300, 300, 300, 300, -1, -1},
	} {
		p := newPair(t)
		p.dial = func(cfg *fabric.ConnConfig) { cfg.ORD, cfg.IRD = c.dialORD, c.dialIRD }
		p.accept = func(cfg *fabric.ConnConfig) { cfg.ORD, cfg.IRD = c.acceptORD, c.acceptIRD }
		p.connect(t, p.addr(t, false), 0)
		wantORD, wantIRD := c.wantDialORD, c.wantDialIRD
		if wantORD < 0 {
			lim := p.dev.Limits()
			wantORD, wantIRD = min(lim.MaxORD, lim.MaxIRD), min(lim.MaxORD, lim.MaxIRD)
		}
		a, b := p.a.conn, p.b.conn
		if a.ORD() != wantORD || a.IRD() != wantIRD || b.ORD() != wantIRD || b.IRD() != wantORD {
			t.Errorf("%+v: dialled %d/%d, accepted %d/%d", c, a.ORD(), a.IRD(), b.ORD(), b.IRD())
		}
	}
}

// Connections come and go, from both ends, with work in flight, without
// leaving anything.
func TestCyclesLeaveNothing(t *testing.T) {
	p := newPair(t)
	at := p.addr(t, false)
	cycle := func(i int) {
		p.connect(t, at, 8)
		p.a.send(fabric.SendWR{Op: fabric.OpSend}, 65536, 100)
		first, second := p.a, p.b
		if i%2 == 1 {
			first, second = p.b, p.a
		}
		var wg sync.WaitGroup
		wg.Go(func() { first.conn.Disconnect() })
		if i%3 == 0 {
			wg.Go(func() { second.conn.Disconnect() })
		}
		wg.Wait()
		p.a.wantClosed()
		p.b.wantClosed()
		for _, e := range []*end{p.a, p.b} {
			closing(t, e.conn)
			for n := 1; n > 0; { // what was not polled
				var wc [32]fabric.Completion
				n, _ = e.cq.Poll(wc[:])
			}
			e.got = nil
		}
	}
	for i := range 5 {
		cycle(i)
	}
	fds, goroutines := openFDs(t), runtime.NumGoroutine()
	for i := range 60 {
		cycle(i)
	}
	p.a.conn, p.b.conn = nil, nil
	if n := openFDs(t); n != fds {
		t.Errorf("%d descriptors, %d before", n, fds)
	}
	time.Sleep(100 * time.Millisecond)
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
	if c := p.dev.Counts(); c != (fabric.ObjectCounts{CQs: 2, MRs: 2}) {
		t.Errorf("%+v", c)
	}
}

func openFDs(t *testing.T) int {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func TestDataPathAllocatesNothing(t *testing.T) {
	p := newPair(t)
	p.connect(t, p.addr(t, false), 0)
	wrs, sges := make([]fabric.SendWR, 8), make([]fabric.SGE, 1)
	recvs := make([]fabric.RecvWR, 8)
	wc := make([]fabric.Completion, 16)
	var qp, peer fabric.QueuePair = p.a.conn.QueuePair(), p.b.conn.QueuePair()
	sges[0] = p.a.sge(0, 64)
	rsges := []fabric.SGE{p.b.sge(0, 64)}
	for i := range wrs {
		wrs[i] = fabric.SendWR{Op: fabric.OpSend, NumSGE: 1, Flags: signaled}
		recvs[i] = fabric.RecvWR{NumSGE: 1}
	}
	allocs := testing.AllocsPerRun(20, func() {
		if n, err := peer.PostRecv(recvs, rsges); n != 8 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := qp.PostSend(wrs, sges); n != 8 || err != nil {
			t.Fatal(n, err)
		}
		for _, e := range []*end{p.a, p.b} {
			for got := 0; got < 8; {
				n, err := e.cq.Poll(wc)
				if err != nil {
					t.Fatal(err)
				}
				got += n
			}
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for 8 messages", allocs)
	}
}
