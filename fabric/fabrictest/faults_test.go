package fabrictest

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// rig is a suite with its network at hand, in virtual time.
type rig struct {
	*suite
	n *Network
}

// inBubble runs fn with two ends on a network, in virtual time.
func inBubble(t *testing.T, o Options, change func(*DeviceOptions), fn func(r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(o)
		host := func(addr netip.Addr, name string) *Provider {
			d := DeviceOptions{Addrs: []netip.Addr{addr}, Name: name}
			if change != nil {
				change(&d)
			}
			return n.NewProvider(d)
		}
		pa, pb := host(addr1, "left"), host(addr2, "right")
		cfg := &Config{Timeout: time.Minute}
		cfg.setDefaults()
		s := newSuite(t, func(*testing.T) (a, b fabric.Provider, addrA, addrB netip.Addr) { return pa, pb, addr1, addr2 }, cfg)
		fn(&rig{suite: s, n: n})
	})
}

func (r *rig) hwA() *Device { return r.a.p.(*Provider).Device("left") }
func (r *rig) hwB() *Device { return r.b.p.(*Provider).Device("right") }

// A link cut without a word: what is posted runs into its retries, the other
// end hears nothing.
func TestCut(t *testing.T) {
	inBubble(t, Options{AckTimeout: 100 * time.Millisecond}, nil, func(r *rig) {
		ch := r.connect(func(a, _ *fabric.ConnConfig) { a.RetryCount = 3 })
		ch.a.recv(0, 1, 0, 64)
		ch.b.recv(0, 2, 0, 64)
		ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 8))
		ch.b.ok(fabric.Completion{ID: recvID, Op: fabric.OpRecv, ByteLen: 8})
		ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpSend})
		r.n.Cut(addr1, addr2)
		time.Sleep(time.Hour)
		r.pause()
		if ch.a.isDone() || ch.b.isDone() {
			t.Fatal("an idle connection noticed the cut")
		}
		start := time.Now()
		ch.a.send(fabric.SendWR{ID: sendID + 1, Op: fabric.OpSend}, ch.a.sge(0, 8))
		ch.a.send(fabric.SendWR{ID: sendID + 2, Op: fabric.OpSend}, ch.a.sge(0, 8))
		sends, recvs := split(ch.a.take(3))
		if d := time.Since(start); d < 400*time.Millisecond || d > 450*time.Millisecond {
			t.Errorf("gave up after %v, want 4 times 100 ms", d)
		}
		checkIDs(r.suite, "sends", sends[:1], fabric.StatusRetryExceeded, sendID+1)
		checkIDs(r.suite, "sends", sends[1:], fabric.StatusFlushed, sendID+2)
		checkIDs(r.suite, "receives", recvs, fabric.StatusFlushed, recvID)
		r.until("the end", ch.a.isDone)
		r.pause()
		if ch.b.isDone() || ch.b.qp.State() != fabric.QPReadyToSend {
			t.Error("the other end learned of it over a cut link")
		}
		ch.b.none("over a cut link")
	})
}

// A cut that heals in time is only a delay.
func TestHeal(t *testing.T) {
	inBubble(t, Options{AckTimeout: 100 * time.Millisecond}, nil, func(r *rig) {
		ch := r.connect()
		ch.b.recv(0, 1, 0, 64)
		r.n.Cut(addr2, addr1)
		ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 8))
		r.pause()
		ch.b.none("over a cut link")
		r.n.Heal(addr1, addr2)
		ch.b.ok(fabric.Completion{ID: recvID, Op: fabric.OpRecv, ByteLen: 8})
		ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpSend})
		ch.alive("after the cut healed")
	})
}

func TestDialOverCut(t *testing.T) {
	inBubble(t, Options{CMTimeout: 7 * time.Second}, nil, func(r *rig) {
		l := r.listen(fabric.ListenConfig{})
		r.n.Cut(addr1, addr2)
		start := time.Now()
		dialled, done := r.dial(context.Background(), l, nil)
		if err := <-done; !errors.Is(err, fabric.ErrTimeout) || time.Since(start) != 7*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		r.until("Closed", func() bool { return dialled.closes.Load() == 1 })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, done = r.dial(ctx, l, nil); !errors.Is(<-done, context.DeadlineExceeded) {
			t.Error("the context did not end it")
		}
		r.n.Heal(addr1, addr2)
		// Cut between the request and the answer.
		_, done = r.dial(context.Background(), l, nil)
		request := r.next(l)
		r.n.Cut(addr1, addr2)
		if _, err := r.accept(request, nil); !errors.Is(err, fabric.ErrUnreachable) {
			t.Errorf("accept: %v", err)
		}
		if err := <-done; !errors.Is(err, fabric.ErrTimeout) {
			t.Errorf("dial: %v", err)
		}
		if a, b := r.a.dev.Counts().QPs, r.b.dev.Counts().QPs; a+b != 0 {
			t.Errorf("%d and %d queue pairs are left", a, b)
		}
	})
}

// Pulling the card ends its connections; peers run into their retries.
func TestRemove(t *testing.T) {
	inBubble(t, Options{}, nil, func(r *rig) {
		l := r.listen(fabric.ListenConfig{})
		ch := r.connect()
		ch.b.recv(0, 2, 0, 64)
		_, waiting := r.dial(r.ctx(), l, nil)
		synctest.Wait()
		r.hwB().Remove()
		r.hwB().Remove()
		if e := <-r.b.dev.Events(); e.Kind != fabric.EventDeviceRemoved || e.Device != "right" {
			t.Errorf("event %+v", e)
		}
		checkIDs(r.suite, "flush", ch.b.take(2), fabric.StatusFlushed, recvID, recvID+1)
		r.until("the end at b", ch.b.isDone)
		if err := ch.b.conn.Err(); !errors.Is(err, fabric.ErrNoDevice) {
			t.Errorf("b ended with %v", err)
		}
		if err := <-waiting; !errors.Is(err, fabric.ErrUnreachable) {
			t.Errorf("a request that waited: %v", err)
		}
		r.pause()
		if ch.a.isDone() {
			t.Error("a was told")
		}
		ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 8))
		checkIDs(r.suite, "send", ch.a.take(1), fabric.StatusRetryExceeded, sendID)
		removedDevice(t, r)
	})
}

func removedDevice(t *testing.T, r *rig) {
	p := r.b.p
	if list, _ := p.Devices(); len(list) != 0 || r.b.dev.Info().PortUp {
		t.Errorf("devices %+v, info %+v", list, r.b.dev.Info())
	}
	m, err := fabric.AllocMemory(1)
	r.must(err)
	defer m.Close()
	for what, err := range map[string]error{
		"register": second(r.b.dev.Register(m, 0)),
		"CQ":       second(r.b.dev.NewCompletionQueue(1, nil)),
		"open":     second(p.Open("right")),
		"dial":     second(r.b.dev.Dial(r.ctx(), netip.AddrPort{}, netip.AddrPortFrom(addr1, 1), (&side{end: r.b}).config())),
		"device":   second(p.DeviceFor(r.ctx(), netip.Addr{}, addr1)),
	} {
		if !errors.Is(err, fabric.ErrNoDevice) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := p.Listen(r.ctx(), netip.AddrPortFrom(addr2, 0), fabric.ListenConfig{}); !errors.Is(err, fabric.ErrAddrNotAvailable) {
		t.Errorf("listen: %v", err)
	}
	if _, err := r.a.dev.Dial(r.ctx(), netip.AddrPort{}, netip.AddrPortFrom(addr2, 1), (&side{end: r.a}).config()); !errors.Is(err, fabric.ErrUnreachable) {
		t.Errorf("dial to it: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// Retries of RNR and of loss are counted as IBTA says, in virtual time.
func TestRetryCounts(t *testing.T) {
	for _, c := range []struct {
		name   string
		faults Faults
		recv   bool
		status fabric.Status
		took   time.Duration
		rnrs   uint64
	}{
		{"RNR", Faults{}, false, fabric.StatusRNRRetryExceeded, 3 * time.Second, 4},
		{"loss", Faults{Drop: 1}, true, fabric.StatusRetryExceeded, 500 * time.Millisecond, 0},
		{"lost answers", Faults{DropAck: 1}, true, fabric.StatusRetryExceeded, 500 * time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, Options{RNRDelay: time.Second, AckTimeout: 100 * time.Millisecond}, nil, func(r *rig) {
				ch := r.connect(func(a, b *fabric.ConnConfig) { a.RetryCount, b.RNRRetry = 5, 3 })
				r.n.SetFaults(addr1, addr2, c.faults)
				if c.recv {
					ch.b.recv(0, 1, 0, 64)
				}
				start := time.Now()
				ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 8))
				checkIDs(r.suite, c.name, ch.a.take(1), c.status, sendID)
				if d := time.Since(start); d < c.took || d > c.took+50*time.Millisecond {
					t.Errorf("took %v, want %v", d, c.took)
				}
				if st := r.hwB().Stats(); st.RNRs != c.rnrs || c.faults.Drop+c.faults.DropAck > 0 && st.Retries != 5 {
					t.Errorf("%+v", st)
				}
			})
		})
	}
}

// Nothing is executed twice, however often answers are lost.
func TestExecutedOnce(t *testing.T) {
	inBubble(t, Options{Seed: 3}, nil, func(r *rig) {
		r.n.SetFaults(addr1, addr2, Faults{DropAck: 0.4, Drop: 0.2, Duplicate: 0.3, Delay: 3 * time.Millisecond})
		ch, at := r.atomics()
		start := time.Now()
		const ops = 100
		for i := range ops {
			ch.atomic(at, sendID+uint64(i), fabric.OpFetchAdd, 64, 0, 1)
			ch.a.ok(fabric.Completion{ID: sendID + uint64(i), Op: fabric.OpFetchAdd, ByteLen: 8})
			if old := ch.a.word(0); old != uint64(i) {
				t.Fatalf("operation %d returned %d", i, old)
			}
		}
		if st := r.hwB().Stats(); st.Executed != ops || st.Retries == 0 || st.Duplicates == 0 {
			t.Errorf("%+v", st)
		}
		if d := time.Since(start); d < ops*3*time.Millisecond {
			t.Errorf("took %v with a delay of 3 ms", d)
		}
	})
}

// A post fails where it was asked to, of whichever service the QP is.
func TestFailPost(t *testing.T) {
	mine := errors.New("mine")
	wr := fabric.SendWR{ID: sendID, Op: fabric.OpSend, Flags: fabric.FlagSignaled}
	connected := func(ch *channel) (a, b *side, post func(n int) (int, error)) {
		return ch.a, ch.b, func(n int) (int, error) { return ch.a.qp.PostSend(slices.Repeat([]fabric.SendWR{wr}, n), nil) }
	}
	for name, open := range map[string]func(r *rig) (a, b *side, post func(n int) (int, error)){
		"RC": func(r *rig) (a, b *side, post func(n int) (int, error)) { return connected(r.connect()) },
		"UC": func(r *rig) (a, b *side, post func(n int) (int, error)) { return connected(r.unreliable()) },
		"UD": func(r *rig) (_, _ *side, post func(n int) (int, error)) {
			a, b := r.datagrams(r.a, suiteQKey), r.datagrams(r.b, suiteQKey)
			wr := a.to(b, r.a.handle(r.b.addr))
			wr.Flags = fabric.FlagSignaled
			return a.side, b.side, func(n int) (int, error) {
				return a.qp.PostDatagrams(slices.Repeat([]fabric.DatagramWR{wr}, n), nil)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, nil, func(r *rig) {
				a, b, post := open(r)
				b.recv(0, 8, 0, 64)
				r.hwA().FailPost(3, mine)
				if n, err := post(1); n != 1 || err != nil {
					t.Errorf("first: %d, %v", n, err)
				}
				var op *fabric.OpError
				if n, err := post(3); n != 1 || !errors.Is(err, mine) || !errors.As(err, &op) || op.QPN != a.qp.Num() {
					t.Errorf("second to fourth: %d, %v", n, err)
				}
				if n, err := post(2); n != 2 || err != nil {
					t.Errorf("behind: %d, %v", n, err)
				}
				r.hwA().FailPost(1, mine)
				if n, err := a.qp.PostRecv([]fabric.RecvWR{{}}, nil); n != 0 || !errors.Is(err, mine) {
					t.Errorf("receive: %d, %v", n, err)
				}
				checkIDs(r.suite, "sends", a.take(4), fabric.StatusSuccess, sendID, sendID, sendID, sendID)
				b.take(4)
			})
		})
	}
}

// Atomics and binds are posts too.
func TestFailPostOthers(t *testing.T) {
	inBubble(t, Options{}, nil, func(r *rig) {
		mine := errors.New("mine")
		ch, at := r.atomics()
		r.hwA().FailPost(2, mine)
		wr := fabric.AtomicWR{ID: sendID, Op: fabric.OpFetchAdd, RemoteAddr: ch.b.mem.Addr(), RKey: ch.b.mr.RKey(), Flags: fabric.FlagSignaled}
		if n, err := at.PostAtomic([]fabric.AtomicWR{wr, wr}, []fabric.SGE{ch.a.sge(0, 8)}); n != 1 || !errors.Is(err, mine) {
			t.Errorf("atomics: %d, %v", n, err)
		}
		ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpFetchAdd, ByteLen: 8})
		w := r.window(ch)
		r.hwB().FailPost(1, mine)
		if _, err := w.bind.PostBind(w.w, ch.b.mr, 0, 64, fabric.AccessRemoteWrite, sendID, 0); !errors.Is(err, mine) {
			t.Errorf("bind: %v", err)
		}
		w.to(0, 64, fabric.AccessRemoteWrite)
	})
}

// Faults that make no sense are mistakes.
func TestFaultsChecked(t *testing.T) {
	for _, f := range []Faults{{Drop: -0.1}, {Drop: 1.1}, {DropAck: 2}, {Duplicate: math.NaN()}, {Delay: -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is taken", f)
				}
			}()
			NewNetwork(Options{}).SetFaults(addr1, addr2, f)
		}()
	}
}

// A device that offers SEND with invalidate and cannot: the WR fails, and the
// QP with it; the peer sees a disconnect.
func TestBrokenSendInvalidate(t *testing.T) {
	inBubble(t, Options{}, func(d *DeviceOptions) { d.BrokenSendInvalidate = true }, func(r *rig) {
		ch := r.connect()
		w := r.window(ch)
		key := w.to(0, 64, fabric.AccessRemoteWrite)
		ch.b.recv(0, 2, 0, 64)
		ch.a.post(nil, fabric.SendWR{ID: sendID, Op: fabric.OpSend, Flags: fabric.FlagSignaled},
			fabric.SendWR{ID: sendID + 1, Op: fabric.OpSendInv, RKey: key}, fabric.SendWR{ID: sendID + 2, Op: fabric.OpSend})
		got := ch.a.take(3)
		checkIDs(r.suite, "before", got[:1], fabric.StatusSuccess, sendID)
		checkIDs(r.suite, "SEND_INV", got[1:2], fabric.StatusLocalQPOp, sendID+1)
		checkIDs(r.suite, "behind", got[2:], fabric.StatusFlushed, sendID+2)
		checkIDs(r.suite, "receives", ch.b.take(1), fabric.StatusSuccess, recvID)
		checkIDs(r.suite, "receives", ch.b.take(1), fabric.StatusFlushed, recvID+1)
		r.until("the end", func() bool { return ch.a.isDone() && ch.b.isDone() })
		if !errors.Is(ch.a.conn.Err(), fabric.ErrQPError) || !errors.Is(ch.b.conn.Err(), net.ErrClosed) {
			t.Errorf("ended with %v and %v", ch.a.conn.Err(), ch.b.conn.Err())
		}
	})
}

// A requester that sends more READs than were agreed is refused.
func TestIgnoreORD(t *testing.T) {
	inBubble(t, Options{}, func(d *DeviceOptions) { d.IgnoreORD = true }, func(r *rig) {
		for _, reads := range []int{2, 3} {
			ch := r.connect(func(_, b *fabric.ConnConfig) { b.IRD = 2 })
			var wrs []fabric.SendWR
			for i := range reads {
				wrs = append(wrs, fabric.SendWR{ID: sendID + uint64(i), Op: fabric.OpRead, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: ch.b.mem.Addr(), RKey: ch.b.mr.RKey()})
			}
			ch.a.post([]fabric.SGE{ch.a.sge(0, 8)}, wrs...)
			got := ch.a.take(reads)
			checkIDs(r.suite, "within", got[:2], fabric.StatusSuccess, sendID, sendID+1)
			if reads > 2 {
				checkIDs(r.suite, "beyond", got[2:], fabric.StatusRemoteInvalidReq, sendID+2)
				ch.dies("more READs than IRD")
			}
		}
	})
}

// Padded private data has the lengths of InfiniBand's CM.
func TestPadPrivateData(t *testing.T) {
	inBubble(t, Options{}, func(d *DeviceOptions) { d.PadPrivateData = true }, func(r *rig) {
		l := r.listen(fabric.ListenConfig{})
		dialled, done := r.dial(r.ctx(), l, func(c *fabric.ConnConfig) { c.PrivateData = []byte{1} })
		request := r.next(l)
		if n := len(request.PrivateData()); n != requestPrivate {
			t.Errorf("request: %d bytes", n)
		}
		r.mustAccept(request)
		r.must(<-done)
		if n := len(dialled.conn.PrivateData()); n != replyPrivate {
			t.Errorf("reply: %d bytes", n)
		}
		_, done = r.dial(r.ctx(), l, nil)
		request = r.next(l)
		if err := request.Reject(make([]byte, rejectPrivate+1)); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("a reject too long: %v", err)
		}
		r.must(request.Reject([]byte{2}))
		if rej := rejection(<-done); rej == nil || len(rej.Private) != rejectPrivate || rej.Private[0] != 2 {
			t.Errorf("reject: %+v", rej)
		}
	})
}

func TestBacklogIsExact(t *testing.T) {
	inBubble(t, Options{}, nil, func(r *rig) {
		l := r.listen(fabric.ListenConfig{Backlog: 2})
		var waiting []<-chan error
		for range 2 {
			_, done := r.dial(r.ctx(), l, nil)
			waiting = append(waiting, done)
		}
		synctest.Wait()
		_, done := r.dial(r.ctx(), l, nil)
		if rej := rejection(<-done); rej == nil || rej.Reason != fabric.RejectNoResources {
			t.Errorf("beyond the backlog: %+v", rej)
		}
		for range waiting {
			r.mustAccept(r.next(l))
		}
		for _, done := range waiting {
			r.must(<-done)
		}
	})
}

// Local operations need no peer: they complete while it does not poll.
func TestLocalOperations(t *testing.T) {
	inBubble(t, Options{}, nil, func(r *rig) {
		ch := r.connect()
		w := r.window(ch) // b's
		for range 3 {
			key := w.post(ch.b.mr, 0, 64, fabric.AccessRemoteRead)
			ch.b.send(fabric.SendWR{ID: sendID, Op: fabric.OpLocalInv, RKey: key})
			got := 0
			for range 10 {
				got += r.b.poll()
			}
			if got != 2 {
				t.Fatalf("%d of 2 completed without the peer", got)
			}
			r.b.inbox[ch.b.qp.Num()] = nil
		}
		// Behind a SEND that the peer has not run a LOCAL_INV waits.
		ch.a.recv(0, 1, 0, 64)
		key := w.to(0, 64, fabric.AccessRemoteRead)
		ch.b.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend})
		ch.b.send(fabric.SendWR{ID: sendID + 1, Op: fabric.OpLocalInv, RKey: key})
		for range 10 {
			r.b.poll()
		}
		ch.b.none("before the peer has polled")
		checkIDs(r.suite, "in order", ch.b.take(2), fabric.StatusSuccess, sendID, sendID+1)
	})
}

// A refused request ends the responder's queue pair too, for a reason of its
// own, and before it hears of the requester's end.
func TestRefusalEndsResponder(t *testing.T) {
	inBubble(t, Options{}, nil, func(r *rig) {
		ch := r.connect()
		ch.b.recv(0, 1, 0, 64)
		ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpWrite, RemoteAddr: 1, RKey: ch.b.mr.RKey()}, ch.a.sge(0, 8))
		for range 3 {
			r.b.poll() // a does not poll
		}
		checkIDs(r.suite, "flush", r.b.inbox[ch.b.qp.Num()], fabric.StatusFlushed, recvID)
		synctest.Wait()
		if !ch.b.isDone() || !errors.Is(ch.b.conn.Err(), fabric.ErrQPError) {
			t.Errorf("b ended with %v", ch.b.conn.Err())
		}
		if ch.a.isDone() {
			t.Error("a ended without a Poll")
		}
		checkIDs(r.suite, "write", ch.a.take(1), fabric.StatusRemoteAccess, sendID)
		if st := r.hwB().Stats(); st.Refused != 1 {
			t.Errorf("%+v", st)
		}
	})
}

func TestEmit(t *testing.T) {
	inBubble(t, Options{}, nil, func(r *rig) {
		r.hwA().Emit(fabric.EventPortDown)
		if e := <-r.a.dev.Events(); e.Kind != fabric.EventPortDown || e.Device != "left" || e.Port != 1 || e.Time.IsZero() {
			t.Errorf("%+v", e)
		}
	})
}

func TestNetworkMistakes(t *testing.T) {
	n := NewNetwork(Options{})
	n.NewProvider(DeviceOptions{Name: "x", Addrs: []netip.Addr{addr1}})
	for name, fn := range map[string]func(){
		"address twice": func() { n.NewProvider(DeviceOptions{Addrs: []netip.Addr{addr1}}) },
		"name twice":    func() { n.NewProvider(DeviceOptions{Name: "y"}, DeviceOptions{Name: "y"}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			fn()
		}()
	}
}

func TestProviderClosed(t *testing.T) {
	p := NewNetwork(Options{}).NewProvider(DeviceOptions{Name: "x", Addrs: []netip.Addr{addr1}})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Open("x"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("open: %v", err)
	}
	if _, err := p.Listen(context.Background(), netip.AddrPortFrom(addr1, 0), fabric.ListenConfig{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("listen: %v", err)
	}
}
