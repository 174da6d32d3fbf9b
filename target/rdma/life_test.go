package rdma

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// load keeps n mixed commands of up to 128 KiB in flight until it is told to
// stop or the connection ends.
func load(ctx context.Context, q *rdmatest.Queue, n int, nsid uint32, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 7))
	cmd := make(nvme.Command, nvme.SQESize)
	send := func(cid uint16) error {
		op := nvme.CmdRead
		if rng.IntN(2) == 0 {
			op = nvme.CmdWrite
		}
		nlb := uint32(1 + rng.IntN(32))
		q.IO(cmd, op, cid, nsid, uint64(rng.IntN(1024)), nlb, 0, int(nlb)*4096)
		return q.SendCommand(cmd, nil)
	}
	for cid := range uint16(n) {
		if err := send(cid); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		if _, err := q.Poll(); err != nil {
			return err
		}
		for _, r := range q.Take() {
			if err := send(r.CID); err != nil {
				return err
			}
		}
		runtime.Gosched()
	}
	return ctx.Err()
}

// leaves waits until the target has n connections and all buffers.
func (e *env) leaves(n int) {
	e.t.Helper()
	e.until(fmt.Sprintf("%d connections and all buffers", n), func() bool {
		s := e.snapshot()
		ok := s.Connections == n
		for _, g := range s.Groups {
			ok = ok && g.BuffersFree == g.BuffersSize && g.AdminBuffersFree == g.AdminBuffersSize && g.Waiting == 0
		}
		return ok
	})
}

// Hosts go in every manner, in the middle of their I/O.
func TestHostGoes(t *testing.T) {
	for _, c := range []struct {
		name string
		opts envOptions
		how  func(e *env, q *rdmatest.Queue)
	}{
		{"disconnect", envOptions{}, func(e *env, q *rdmatest.Queue) { e.must(q.Conn().Disconnect()) }},
		{"close", envOptions{}, func(e *env, q *rdmatest.Queue) { e.must(q.Close()) }},
		{"vanish", envOptions{}, func(e *env, q *rdmatest.Queue) { e.net.Cut(targetIP, hostIP) }},
		{"invalid memory", envOptions{}, func(e *env, q *rdmatest.Queue) { e.must(q.Region().Close()) }},
		{"shared receives", envOptions{cfg: func(c *Config) { c.SRQ = On }}, func(e *env, q *rdmatest.Queue) { e.must(q.Conn().Disconnect()) }},
		{"no receives", envOptions{}, func(e *env, q *rdmatest.Queue) { e.must(q.Conn().Disconnect()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, d := lentEnvOf(t, c.opts, 4096)
			e.host.KATO = 500
			for round := range 8 {
				s, err := e.host.Admin(e.ctx, testNQN, rdmatest.Options{})
				e.must(err)
				q := e.queueOf(s, rdmatest.Options{HoldReceives: c.name == "no receives"}, rdmatest.ConnectParams{})
				ctx, cancel := context.WithTimeout(e.ctx, time.Duration(1+round)*time.Millisecond)
				_ = load(ctx, q, 32, []uint32{nullNS, extraNS}[round%2], uint64(round)) // ends with the time
				cancel()
				c.how(e, q)
				_ = q.Close()
				_ = s.Close()
				if c.name == "vanish" { // nobody says good-bye
					e.leaves(0)
					e.net.Heal(targetIP, hostIP)
					if round > 0 {
						break // it takes a keep alive timeout each
					}
				}
			}
			e.leaves(0)
			e.until("all loans are back", func() bool { return d.lent.Load() == 0 })
			e.until("the core has no controller", func() bool {
				snap, err := e.core.Snapshot(e.ctx)
				return err == nil && len(snap.Controllers) == 0
			})
		})
	}
}

// Thousands of connections come and go; nothing stays.
func TestChurn(t *testing.T) {
	rounds := 1500
	if testing.Short() {
		rounds = 100
	}
	e := newEnv(t, envOptions{bound: time.Minute})
	e.admin() // one in each group, so that both have what they need of the device
	e.admin()
	before := e.usage()
	for i := range rounds {
		o := rdmatest.Options{HSQSize: 7, DataSize: 4096, CapsuleSize: 64 + 4096, Sends: 2}
		q, err := e.host.Dial(e.ctx, o)
		e.must(err)
		switch i % 4 {
		case 0: // never says a word
		case 1:
			_, err := e.host.Connect(e.ctx, q, rdmatest.ConnectParams{Subsys: testNQN, CNTLID: nvme.CNTLIDDynamic, SQSize: 7})
			e.must(err)
		case 2:
			e.must(q.Send(make([]byte, 5)))
		case 3:
			cmd := make(nvme.Command, nvme.SQESize)
			cmd.Connect().Init(0, 7, 0, 0)
			cmd.SGL1().SetKeyed(q.Addr(), nvme.ConnectDataSize, q.RKey()^0x55, 0)
			e.must(q.SendCommand(cmd, nil))
		}
		e.must(q.Close())
	}
	e.leaves(2)
	runtime.GC()
	var now usage
	defer func() { t.Logf("before %+v, after %+v", before, now) }()
	e.until("as much open as before", func() bool { now = e.usage(); return now == before })
}

type usage struct {
	objects    fabric.ObjectCounts
	memory     int64
	goroutines int
}

// usage is what is open on the target's side.
func (e *env) usage() usage {
	e.t.Helper()
	dev, err := e.target.DeviceFor(e.ctx, targetIP, hostIP)
	e.must(err)
	defer func() { e.must(dev.Close()) }()
	return usage{dev.Counts(), fabric.LiveMemory(), runtime.NumGoroutine()}
}

// The core ends a connection: by a fatal controller, by the keep alive, by a
// port that goes.
func TestCoreDisconnects(t *testing.T) {
	e := newEnv(t, envOptions{})
	s := e.admin()
	q := e.queueOf(s, rdmatest.Options{}, rdmatest.ConnectParams{})
	e.core.RemovePort(e.port)
	for _, q := range []*rdmatest.Queue{q, s.Admin} {
		if err := q.WaitClosed(e.ctx); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the end is not in order: %v", err)
		}
	}
	e.leaves(0)
}

// A host whose controller ends gets no response any more, however long the end
// takes to reach its queues: an error would be the end of its commands.
func TestNoResponseAtTheEnd(t *testing.T) {
	e := newEnv(t, envOptions{})
	s := e.admin()
	q := e.queueOf(s, rdmatest.Options{}, rdmatest.ConnectParams{})
	admin, io := e.connOf(0), e.connOf(1)
	if admin.group == io.group {
		t.Fatal("both queues are in one group")
	}
	capsules := func() (n uint64) {
		admin.group.call(func() { n = admin.stats.Capsules })
		return n
	}
	before := capsules()
	io.group.mu.Lock() // the admin queue's Disconnect waits for the I/O queue's
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		e.core.RemovePort(e.port)
	}()
	e.until("the controller ends", admin.queue.Ending)
	cmd := make(nvme.Command, nvme.SQESize)
	cmd.Init(nvme.AdminKeepAlive, 0)
	e.must(s.Admin.SendCommand(cmd, nil))
	e.until("the command has arrived", func() bool { _, _ = s.Admin.Poll(); return capsules() > before })
	admin.group.call(func() {}) // and the turn after
	admin.group.call(func() {})
	if n, err := s.Admin.Poll(); n > 0 || err != nil {
		t.Errorf("%d responses, %v: %v", n, err, s.Admin.Take())
	}
	io.group.mu.Unlock()
	<-removed
	for _, q := range []*rdmatest.Queue{q, s.Admin} {
		if err := q.WaitClosed(e.ctx); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the end is not in order: %v", err)
		}
	}
	if late := s.Admin.Take(); len(late) > 0 {
		t.Errorf("late responses: %v", late)
	}
	e.leaves(0)
}

// connOf is the connection of the queue with that ID; there is one.
func (e *env) connOf(qid uint16) (found *conn) {
	e.t.Helper()
	for _, g := range e.tr.groups {
		g.call(func() {
			for _, c := range g.conns {
				if c != nil && c.qid == qid {
					found = c
				}
			}
		})
	}
	if found == nil {
		e.t.Fatalf("no queue %d", qid)
	}
	return found
}

// Close under load: hosts see an orderly disconnect, and a backend that hangs
// holds Close up to its context only; called again it finishes.
func TestCloseDrains(t *testing.T) {
	stuck := newGate(1 << 30)
	e := newEnv(t, envOptions{extra: stuck})
	s := e.admin()
	hung := e.queueOf(s, rdmatest.Options{QID: 1}, rdmatest.ConnectParams{})
	busy := e.queueOf(s, rdmatest.Options{QID: 2}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 4 {
		hung.IO(cmd, nvme.CmdWrite, uint16(i), extraNS, 0, 1, 0, 4096)
		e.must(hung.SendCommand(cmd, nil))
	}
	e.until("the backend has them", func() bool { _, _ = hung.Poll(); return stuck.inFlight() == 4 })
	ended := make(chan error, 1)
	go func() { ended <- load(e.ctx, busy, 32, nullNS, 1) }()
	time.Sleep(5 * time.Millisecond)

	ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
	defer cancel()
	if err := e.tr.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close with a hung backend: %v", err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) && !errors.Is(err, fabric.ErrQPError) {
		t.Errorf("the busy host sees %v", err)
	}
	if err := hung.WaitClosed(e.ctx); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the hung host sees %v", err)
	}
	if _, err := e.host.Dial(e.ctx, rdmatest.Options{}); err == nil {
		t.Error("a closing transport takes connections")
	}
	stuck.open()
	e.must(e.tr.Close(e.ctx))
	if _, err := e.tr.Snapshot(e.ctx); !errors.Is(err, net.ErrClosed) {
		t.Errorf("snapshot of a closed transport: %v", err)
	}
	if _, err := e.tr.Listen(e.ctx, e.target, netip.AddrPortFrom(targetIP, 4421), e.port); !errors.Is(err, net.ErrClosed) {
		t.Errorf("listen on a closed transport: %v", err)
	}
}

// The card is pulled under load: its connections end, the transport lives.
func TestDeviceRemoved(t *testing.T) {
	e := newEnv(t, envOptions{})
	q := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Millisecond)
	defer cancel()
	_ = load(ctx, q, 16, nullNS, 1)
	e.memory.Device("mem0").Remove()
	e.leaves(0)
	e.until("the device is given up", func() bool {
		e.tr.mu.Lock()
		defer e.tr.mu.Unlock()
		return len(e.tr.devices) == 0
	})
	if lines := e.log.lines("device removed"); len(lines) == 0 {
		t.Error("no line says so")
	}
}

// A device that fails to post costs the connection.
func TestPostFails(t *testing.T) {
	e := newEnv(t, envOptions{})
	bystander := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
	for n := 1; n <= 40; n++ {
		q := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
		e.memory.Device("mem0").FailPost(n, errors.New("the device has had enough"))
		cmd := make(nvme.Command, nvme.SQESize)
		for i := range 16 {
			op := nvme.CmdRead
			if i%2 == 0 {
				op = nvme.CmdWrite
			}
			q.IO(cmd, op, uint16(i), memNS, 0, 8, 0, 4096)
			if err := q.SendCommand(cmd, nil); err != nil {
				break
			}
		}
		if err := q.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("post %d: %v", n, err)
		}
	}
	e.must(bystander.Read(e.ctx, memNS, 0, 8, 0, 4096))
	if s := e.snapshot(); s.sum().Stale != 0 {
		t.Errorf("%+v", s.sum())
	}
	if lines := e.log.lines("did not flush"); len(lines) != 0 {
		t.Errorf("log %q", lines)
	}
}

// A lossy network costs time, nothing else.
func TestLossyNetwork(t *testing.T) {
	e := newEnv(t, envOptions{})
	q := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
	e.net.SetFaults(targetIP, hostIP, fabrictest.Faults{Drop: 0.05, DropAck: 0.05, Duplicate: 0.05})
	for i := range 50 {
		n := 4096 * (1 + i%8)
		fill(q.Data()[:n], byte(i))
		e.must(q.Write(e.ctx, memNS, 0, uint32(n/blockLen), 0, n))
		e.must(q.Read(e.ctx, memNS, 0, uint32(n/blockLen), 1<<20, n))
		if string(q.Data()[:n]) != string(q.Data()[1<<20:1<<20+n]) {
			t.Fatalf("round %d: not what was written", i)
		}
	}
	e.net.Heal(targetIP, hostIP)
}

// A listener that is closed leaves its connections, until told to end them.
func TestListenerClose(t *testing.T) {
	e := newEnv(t, envOptions{})
	s := e.admin()
	e.must(e.l.Close())
	e.must(e.l.Close())
	if err := e.l.Err(); !errors.Is(err, net.ErrClosed) && !errors.Is(err, context.Canceled) {
		t.Errorf("ended by %v", err)
	}
	if _, err := s.Admin.Identify(e.ctx, 1, 0); err != nil {
		t.Error(err)
	}
	if _, err := e.host.Dial(e.ctx, rdmatest.Options{}); err == nil {
		t.Error("a closed listener accepts")
	}
	e.l.Disconnect(fmt.Errorf("the listener was removed: %w", net.ErrClosed))
	if err := s.Admin.WaitClosed(e.ctx); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	e.leaves(0)
}

func TestListenErrors(t *testing.T) {
	e := newEnv(t, envOptions{})
	if _, err := e.tr.Listen(e.ctx, e.target, e.l.Addr(), e.port); !errors.Is(err, fabric.ErrAddrInUse) {
		t.Errorf("the same address: %v", err)
	}
	other := netip.MustParseAddrPort("10.9.9.9:4420")
	if _, err := e.tr.Listen(e.ctx, e.target, other, e.port); !errors.Is(err, fabric.ErrAddrNotAvailable) {
		t.Errorf("somebody else's address: %v", err)
	}
	port := *e.port
	port.Caps.MaxTransfer *= 2
	if _, err := e.tr.Listen(e.ctx, e.target, netip.AddrPortFrom(targetIP, 4421), &port); err == nil {
		t.Error("other caps")
	}
}

// Every poll mode works, and an idle group sleeps unless told otherwise.
func TestPollModes(t *testing.T) {
	for mode := PollAdaptive; mode <= PollEvent; mode++ {
		t.Run(mode.String(), func(t *testing.T) {
			e := newEnv(t, envOptions{cfg: func(c *Config) { c.Poll, c.Spin = mode, 20*time.Microsecond }})
			q := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
			for range 50 {
				e.must(q.Read(e.ctx, memNS, 0, 8, 0, 4096))
				if mode != PollBusy {
					time.Sleep(time.Millisecond)
				}
			}
			s := e.snapshot()
			if sum := s.sum(); (sum.Sleeps == 0) != (mode == PollBusy) {
				t.Errorf("slept %d times", sum.Sleeps)
			}
			if mode == PollBusy {
				return
			}
			before := e.snapshot()
			time.Sleep(50 * time.Millisecond)
			after := e.snapshot()
			// Each snapshot wakes every group for a spin. One that never slept would
			// make some thousands even on a slow machine.
			if n := after.sum().Turns - before.sum().Turns; n > 1000 {
				t.Errorf("%d turns while idle", n)
			}
		})
	}
}

// Connections spread over the groups, admin queues too.
func TestSpread(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) { c.PollGroups = 4 }})
	s := e.admin()
	for qid := uint16(1); qid <= 7; qid++ {
		e.queueOf(s, rdmatest.Options{QID: qid, DataSize: 4096}, rdmatest.ConnectParams{})
	}
	for i, g := range e.snapshot().Groups {
		if len(g.Connections) != 2 {
			t.Errorf("group %d has %d connections", i, len(g.Connections))
		}
	}
}

// brokenCQ fails as a CQ does that has overrun, or whose device has died.
type brokenCQ struct{ fabric.CompletionQueue }

func (brokenCQ) Poll([]fabric.Completion) (int, error) { return 0, errors.New("CQ overrun") }

// A completion queue that fails takes its connections with it, and no more:
// new ones get another.
func TestCompletionQueueFails(t *testing.T) {
	stuck := newGate(1 << 30)
	e := newEnv(t, envOptions{extra: stuck, cfg: func(c *Config) { c.PollGroups = 1 }})
	q := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 8 {
		nsid, size := uint32(memNS), 8*blockLen
		if i%2 == 0 {
			nsid, size = extraNS, 8*4096
		}
		q.IO(cmd, nvme.CmdRead, uint16(i), nsid, 0, 8, 0, size)
		e.must(q.SendCommand(cmd, nil))
	}
	e.until("the backend has some", func() bool { _, _ = q.Poll(); return stuck.inFlight() > 0 })
	g := e.tr.groups[0]
	g.call(func() { g.cqs[0].cq = brokenCQ{g.cqs[0].cq} })
	if err := q.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	stuck.open()
	e.leaves(0)
	again := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
	e.must(again.Read(e.ctx, memNS, 0, 8, 0, 4096))
	if lines := e.log.lines("CQ overrun"); len(lines) == 0 {
		t.Error("no line says so")
	}
}

// Hosts give up in the middle of the handshake, again and again, and the
// transport closes in the middle of it.
func TestHandshakeGivenUp(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) { c.HandshakeTimeout = 200 * time.Millisecond }})
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range 200 {
		ctx, cancel := context.WithTimeout(e.ctx, time.Duration(rng.IntN(300))*time.Microsecond)
		q, err := e.host.Dial(ctx, rdmatest.Options{DataSize: 4096})
		cancel()
		if i%16 == 0 {
			e.net.Cut(targetIP, hostIP)
		}
		if err == nil {
			_ = q.Send(make([]byte, 64))
			_ = q.Close()
		}
		e.net.Heal(targetIP, hostIP)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				q, err := e.host.Dial(e.ctx, rdmatest.Options{DataSize: 4096})
				if err != nil {
					return
				}
				_ = q.Close()
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	e.shutdown()
	wg.Wait()
}

// A device that fails to post the first receives costs the handshake.
func TestSetupFails(t *testing.T) {
	e := newEnv(t, envOptions{})
	s := e.admin()
	for _, n := range []int{1, 10, 33} {
		e.memory.Device("mem0").FailPost(n, errors.New("no more receives"))
		if q, err := e.host.Dial(e.ctx, rdmatest.Options{}); err == nil {
			t.Errorf("post %d failed, and the connection is there", n)
			_ = q.Close()
		}
	}
	e.leaves(1)
	if _, err := s.Admin.Identify(e.ctx, 1, 0); err != nil {
		t.Error(err)
	}
	if lines := e.log.lines("no more receives"); len(lines) != 3 {
		t.Errorf("log %q", lines)
	}
}

// A snapshot tells what every connection is doing.
func TestSnapshot(t *testing.T) {
	stuck := newGate(1 << 30)
	e := newEnv(t, envOptions{extra: stuck})
	s := e.admin()
	q := e.queueOf(s, rdmatest.Options{QID: 3, IRD: 7}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 5 {
		q.IO(cmd, nvme.CmdRead, uint16(i), extraNS, 0, 1, 0, 4096)
		e.must(q.SendCommand(cmd, nil))
	}
	e.until("the backend has them", func() bool { _, _ = q.Poll(); return stuck.inFlight() == 5 })
	snap := e.snapshot()
	if snap.Connections != 2 || snap.MemoryUsed <= 16<<20 || snap.MemoryLimit != 1<<30 {
		t.Errorf("%+v", snap)
	}
	found := false
	for _, g := range snap.Groups {
		for _, c := range g.Connections {
			if c.QID != 3 {
				continue
			}
			found = true
			if c.Slots["executing"] != 5 || c.Peer.Addr() != hostIP || c.Local != e.l.Addr() || c.Device != "mem0" ||
				c.Provider != "memory" || c.Listener != "front" || c.Depth != 32 || c.ORD != 7 || c.Capsules != 6 || c.Responses != 1 {
				t.Errorf("%+v", c)
			}
			if g.BuffersFree != g.BuffersSize-5*4096 {
				t.Errorf("%d of %d bytes free", g.BuffersFree, g.BuffersSize)
			}
		}
	}
	if !found {
		t.Error("queue 3 is not there")
	}
	stuck.open()
	for range 5 {
		r, err := q.Wait(e.ctx)
		e.status(r.Status, err, 0)
	}
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	if _, err := e.tr.Snapshot(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// deafConn is a connection whose QP does not go to the error state.
type deafConn struct{ fabric.Conn }

func (deafConn) Disconnect() error { return nil }

// A QP that does not flush is destroyed in the end, with a line that says so.
func TestFlushTimeout(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) { c.PollGroups, c.DrainTimeout = 1, 30*time.Millisecond }})
	q := e.queue(rdmatest.Options{HoldReceives: true, Receives: 1}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 4 { // answered into no receive: they stay in flight
		q.IO(cmd, nvme.CmdRead, uint16(i), memNS, 0, 8, 0, 4096)
		e.must(q.SendCommand(cmd, nil))
	}
	e.until("responses are in flight", func() bool {
		_, _ = q.Poll()
		for _, c := range e.snapshot().Groups[0].Connections {
			if c.QID == 1 && c.Slots["sending"] == 4 {
				return true
			}
		}
		return false
	})
	g := e.tr.groups[0]
	g.call(func() {
		for _, c := range g.conns {
			c.fc = deafConn{c.fc}
		}
	})
	e.l.Disconnect(net.ErrClosed)
	e.leaves(0)
	if lines := e.log.lines("did not flush"); len(lines) != 2 {
		t.Errorf("log %q", lines)
	}
}
