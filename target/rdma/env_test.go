package rdma

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/backend/null"
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testNQN  = nvme.NQN("nqn.2026-11.io.nvmf:test")
	hostNQN  = nvme.NQN("nqn.2014-08.org.nvmexpress:uuid:6f3c0000-0000-4000-8000-000000000001")
	memNS    = 1 // 512-byte blocks, 64 MiB
	nullNS   = 2 // 4096-byte blocks, 1 GiB
	extraNS  = 3 // env.extra, if any
	blockLen = 512
)

var (
	targetIP = netip.MustParseAddr("10.0.0.1")
	hostIP   = netip.MustParseAddr("10.0.0.2")
)

// logBuffer collects what is logged.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// lines are those that hold s.
func (l *logBuffer) lines(s string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, s) {
			found = append(found, line)
		}
	}
	return found
}

// env is a target with a transport over the in-memory network, and a host.
type env struct {
	t      testing.TB
	ctx    context.Context
	net    *fabrictest.Network  // in memory, and the target's part of it
	memory *fabrictest.Provider //
	target fabric.Provider
	hosts  fabric.Provider
	addrs  [2]netip.Addr // of the target and of the host
	core   *target.Target
	sub    *target.Subsystem
	tr     *Transport
	port   *target.Port
	l      *Listener
	host   *rdmatest.Host
	log    *logBuffer
	closed bool
}

type envOptions struct {
	cfg    func(*Config)
	device fabrictest.DeviceOptions // of the target
	host   fabrictest.DeviceOptions
	extra  backend.Device // namespace 3
	memory int64          // of extra, that it has already
	bound  time.Duration  // of the whole test; default 20 s
	// open makes the providers of the target and of the host, and says where
	// they are; default in memory.
	open func() (target, host fabric.Provider, addrs [2]netip.Addr)
}

func newEnv(t testing.TB, o envOptions) *env {
	t.Helper()
	if o.bound == 0 {
		o.bound = 20 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.bound)
	t.Cleanup(cancel)
	before := fabric.LiveMemory() - o.memory
	e := &env{t: t, ctx: ctx, log: &logBuffer{}}
	if o.open == nil {
		o.open = func() (fabric.Provider, fabric.Provider, [2]netip.Addr) { return e.inMemory(o) }
	}
	e.target, e.hosts, e.addrs = o.open()
	log := logrus.New()
	log.SetOutput(e.log)
	log.SetLevel(logrus.DebugLevel)

	var err error
	e.core, err = target.NewTarget(target.Config{Log: log})
	e.must(err)
	e.sub, err = e.core.AddSubsystem(target.SubsystemConfig{NQN: testNQN, Hosts: target.AnyHost()})
	e.must(err)
	md, err := mem.Open(mem.Options{Size: 64 << 20, BlockSize: blockLen})
	e.must(err)
	nd, err := null.Open(null.Options{Size: 1 << 30, SkipReads: true})
	e.must(err)
	devices := []backend.Device{md, nd}
	if o.extra != nil {
		devices = append(devices, o.extra)
	}
	for i, d := range devices {
		_, err = e.sub.AddNamespace(target.NamespaceConfig{NSID: uint32(i + 1), Device: d})
		e.must(err)
	}

	cfg := DefaultConfig()
	cfg.Log, cfg.PollGroups, cfg.Buffers = log, 2, 16<<20
	if o.cfg != nil {
		o.cfg(&cfg)
	}
	e.tr, err = New(e.core, cfg)
	e.must(err)
	e.port = &target.Port{
		ID: 1, Name: "front", Type: nvme.TransportRDMA, Addr: netip.AddrPortFrom(e.addrs[0], 4420), Provider: e.target.Name(),
		Caps: e.tr.Caps(),
	}
	e.must(e.core.AddPort(e.port))
	e.l, err = e.tr.Listen(ctx, e.target, netip.AddrPortFrom(e.addrs[0], 4420), e.port)
	e.must(err)

	dev, err := e.hosts.DeviceFor(ctx, e.addrs[1], e.addrs[0])
	e.must(err)
	e.host = &rdmatest.Host{Device: dev, Target: e.l.Addr(), NQN: hostNQN, ID: nvme.HostID{1, 2, 3}}
	t.Cleanup(func() {
		e.shutdown()
		e.must(dev.Close())
		e.must(e.hosts.Close())
		for _, d := range devices {
			e.must(d.Close())
		}
		if live := fabric.LiveMemory(); live != before {
			t.Errorf("%d bytes of memory leaked", live-before)
		}
	})
	return e
}

// add makes d one more namespace of the subsystem.
func (e *env) add(nsid uint32, d backend.Device) {
	e.t.Helper()
	_, err := e.sub.AddNamespace(target.NamespaceConfig{NSID: nsid, Device: d})
	e.must(err)
}

// addNulls adds n namespaces on null devices, from lateNS on.
func (e *env) addNulls(n int) {
	e.t.Helper()
	for i := range n {
		d, err := null.Open(null.Options{Size: 1 << 30, SkipReads: true})
		e.must(err)
		e.t.Cleanup(func() { e.shutdown(); e.must(d.Close()) })
		e.add(uint32(lateNS+i), d)
	}
}

// inMemory makes providers of an in-memory network.
func (e *env) inMemory(o envOptions) (fabric.Provider, fabric.Provider, [2]netip.Addr) {
	e.net = fabrictest.NewNetwork(fabrictest.Options{})
	o.device.Addrs, o.host.Addrs = []netip.Addr{targetIP}, []netip.Addr{hostIP}
	e.memory = e.net.NewProvider(o.device)
	return e.memory, e.net.NewProvider(o.host), [2]netip.Addr{targetIP, hostIP}
}

// shutdown closes the target's side and looks for what is left.
func (e *env) shutdown() {
	e.t.Helper()
	if e.closed {
		return
	}
	e.closed = true
	dev, err := e.target.DeviceFor(context.Background(), e.addrs[0], e.addrs[1])
	if err == nil {
		defer func() {
			if n := dev.Counts(); n != (fabric.ObjectCounts{}) {
				e.t.Errorf("left open on the target's device: %+v", n)
			}
			e.must(dev.Close())
			e.must(e.target.Close())
		}()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	e.must(e.tr.Close(ctx))
	e.must(e.tr.Close(ctx))
	e.must(e.core.Close(ctx))
	if used := e.tr.memory.used.Load(); used != 0 {
		e.t.Errorf("%d bytes of the budget are not given back", used)
	}
}

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// admin connects and enables a controller, which ends with the test.
func (e *env) admin() *rdmatest.Session {
	e.t.Helper()
	s, err := e.host.Admin(e.ctx, testNQN, rdmatest.Options{})
	e.must(err)
	e.t.Cleanup(func() { _ = s.Close() })
	return s
}

// queue connects I/O queue 1 of a new controller.
func (e *env) queue(o rdmatest.Options, p rdmatest.ConnectParams) *rdmatest.Queue {
	e.t.Helper()
	return e.queueOf(e.admin(), o, p)
}

func (e *env) queueOf(s *rdmatest.Session, o rdmatest.Options, p rdmatest.ConnectParams) *rdmatest.Queue {
	e.t.Helper()
	if o.QID == 0 {
		o.QID = 1
	}
	q, err := s.Queue(e.ctx, o, p)
	e.must(err)
	e.t.Cleanup(func() { _ = q.Close() })
	return q
}

func (e *env) snapshot() Snapshot {
	e.t.Helper()
	s, err := e.tr.Snapshot(e.ctx)
	e.must(err)
	return s
}

// sum adds up the groups' counters.
func (s *Snapshot) sum() (g GroupStats) {
	for i := range s.Groups {
		o := &s.Groups[i].GroupStats
		g.ConnStats.add(&o.ConnStats)
		g.Stale += o.Stale
		g.Sleeps += o.Sleeps
		g.Turns += o.Turns
		g.Completions += o.Completions
		g.Ended += o.Ended
	}
	return g
}

// until polls cond, which other goroutines make true.
func (e *env) until(what string, cond func() bool) {
	e.t.Helper()
	for !cond() {
		select {
		case <-e.ctx.Done():
			e.t.Fatalf("never: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)*7
	}
}

func (e *env) status(got nvme.Status, err error, want nvme.Status) {
	e.t.Helper()
	if err != nil || got.Code() != want.Code() {
		e.t.Errorf("status %v (error %v), want %v", got, err, want)
	}
}
