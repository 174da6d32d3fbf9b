package initiator

import (
	"bytes"
	"context"
	"fmt"
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
	"github.com/nvmf-go/nvmf/target/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testNQN  = nvme.NQN("nqn.2026-11.io.nvmf:test")
	hostNQN  = nvme.NQN("nqn.2014-08.org.nvmexpress:uuid:6f3c0000-0000-4000-8000-000000000001")
	memNS    = 1 // 512-byte blocks, 64 MiB
	nullNS   = 2 // 4096-byte blocks, 1 GiB
	memBlock = 512
	memSize  = 64 << 20
)

var (
	targetIPs = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	hostIP    = netip.MustParseAddr("10.0.0.9")
)

// targetAddr is the address of portal i.
func targetAddr(i int) netip.AddrPort { return netip.AddrPortFrom(targetIPs[i], 4420) }

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

func (l *logBuffer) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), s)
}

func (l *logBuffer) logger() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(l)
	log.SetLevel(logrus.DebugLevel)
	return log
}

// rig is our own target, behind one portal or two, and a host's provider, over
// the in-memory network.
type rig struct {
	t       testing.TB
	ctx     context.Context
	net     *fabrictest.Network
	hosts   *fabrictest.Provider
	targets *fabrictest.Provider
	core    *target.Target
	sub     *target.Subsystem
	portals []*portal
	hostLog *logBuffer
	log     *logBuffer
	spaces  []backend.Device
}

// portal is a listener of the target with a transport of its own, so that it can
// be killed alone.
type portal struct {
	r    *rig
	addr netip.AddrPort
	port *target.Port
	cfg  rdma.Config
	tr   *rdma.Transport

	known bool // to the core
}

type rigOptions struct {
	portals int // default 1
	cfg     func(*rdma.Config)
	host    fabrictest.DeviceOptions
	target  fabrictest.DeviceOptions
	network fabrictest.Options
	extra   backend.Device // namespace 3
	bound   time.Duration  // of the whole test; default 30 s
	core    func(*target.Config)
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	def(&o.bound, 30*time.Second)
	def(&o.portals, 1)
	ctx, cancel := context.WithTimeout(context.Background(), o.bound)
	before := fabric.LiveMemory()
	r := &rig{t: t, ctx: ctx, net: fabrictest.NewNetwork(o.network), log: &logBuffer{}, hostLog: &logBuffer{}}
	o.host.Addrs, o.target.Addrs = []netip.Addr{hostIP}, targetIPs[:o.portals]
	o.host.Name, o.target.Name = "host0", "target0"
	r.hosts, r.targets = r.net.NewProvider(o.host), r.net.NewProvider(o.target)
	cfg := target.Config{Log: r.log.logger()}
	if o.core != nil {
		o.core(&cfg)
	}
	var err error
	r.core, err = target.NewTarget(cfg)
	r.must(err)
	r.sub, err = r.core.AddSubsystem(target.SubsystemConfig{NQN: testNQN, Hosts: target.AnyHost()})
	r.must(err)
	md, err := mem.Open(mem.Options{Size: memSize, BlockSize: memBlock})
	r.must(err)
	nd, err := null.Open(null.Options{Size: 1 << 30, SkipReads: true})
	r.must(err)
	r.spaces = []backend.Device{md, nd}
	if o.extra != nil {
		r.spaces = append(r.spaces, o.extra)
	}
	for i, d := range r.spaces {
		_, err = r.sub.AddNamespace(target.NamespaceConfig{NSID: uint32(i + 1), Device: d})
		r.must(err)
	}
	for i := range o.portals {
		r.addPortal(i, o.cfg)
	}
	t.Cleanup(func() {
		r.close()
		cancel()
		if live := fabric.LiveMemory(); live != before {
			t.Errorf("%d bytes of registered memory leaked", live-before)
		}
		if t.Failed() && testing.Verbose() {
			t.Logf("host:\n%s\ntarget:\n%s", r.hostLog.b.String(), r.log.b.String())
		}
	})
	return r
}

func (r *rig) addPortal(i int, change func(*rdma.Config)) {
	r.t.Helper()
	p := &portal{r: r, addr: netip.AddrPortFrom(targetIPs[i], 4420), cfg: rdma.DefaultConfig()}
	p.cfg.Log, p.cfg.PollGroups, p.cfg.Buffers = r.log.logger(), 1, 16<<20
	if change != nil {
		change(&p.cfg)
	}
	p.port = &target.Port{ID: uint16(i + 1), Name: fmt.Sprintf("front%d", i+1), Type: nvme.TransportRDMA, Addr: p.addr, Provider: "memory"}
	r.portals = append(r.portals, p)
	p.start()
}

// start brings the portal up.
func (p *portal) start() {
	p.r.t.Helper()
	var err error
	p.tr, err = rdma.New(p.r.core, p.cfg)
	p.r.must(err)
	p.port.Caps = p.tr.Caps()
	if !p.known {
		p.known = true
		p.r.must(p.r.core.AddPort(p.port))
	}
	_, err = p.tr.Listen(context.Background(), p.r.targets, p.addr, p.port)
	p.r.must(err)
}

// stop takes the portal down: its connections are disconnected.
func (p *portal) stop() {
	p.r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	p.r.must(p.tr.Close(ctx))
}

func (r *rig) close() {
	r.t.Helper()
	for _, p := range r.portals {
		p.stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r.must(r.core.Close(ctx))
	for _, d := range r.spaces {
		r.must(d.Close())
	}
	for _, p := range []*fabrictest.Provider{r.hosts, r.targets} {
		infos, err := p.Devices()
		r.must(err)
		for _, info := range infos {
			dev, err := p.Open(info.Name)
			r.must(err)
			if n := dev.Counts(); n != (fabric.ObjectCounts{}) {
				r.t.Errorf("left open on %s: %+v", info.Name, n)
			}
			r.must(dev.Close())
		}
		r.must(p.Close())
	}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// config is a Config for the first portal.
func (r *rig) config(change ...func(*Config)) Config {
	cfg := Config{
		Addr: netip.AddrPortFrom(targetIPs[0], 4420), Subsystem: testNQN, HostNQN: hostNQN,
		IOQueues: 2, QueueDepth: 32, Log: r.hostLog.logger(),
	}
	for _, fn := range change {
		fn(&cfg)
	}
	return cfg
}

// connect connects a controller that is closed with the test.
func (r *rig) connect(change ...func(*Config)) *Controller {
	r.t.Helper()
	c, err := Connect(r.ctx, r.hosts, r.config(change...))
	r.must(err)
	r.t.Cleanup(func() { r.must(c.Close()) })
	return c
}

// namespace opens a namespace of c.
func (r *rig) namespace(c *Controller, nsid uint32) *Namespace {
	r.t.Helper()
	n, err := c.Namespace(r.ctx, nsid)
	r.must(err)
	return n
}

// until polls cond, which other goroutines make true.
func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	for !cond() {
		select {
		case <-r.ctx.Done():
			r.t.Fatalf("never: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = seed + byte(i) + byte(i>>8)*7
	}
}
