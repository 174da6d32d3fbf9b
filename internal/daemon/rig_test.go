package daemon

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/providers"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// rig is a daemon on an in-memory network with one host beside it.
type rig struct {
	t    *testing.T
	ctx  context.Context
	d    *Daemon
	dir  string
	host *rdmatest.Host
	dev  fabric.Device
	net  *fabrictest.Network
	near *fabrictest.Provider // the daemon's
	log  *logBuffer
}

// logBuffer keeps the daemon's log.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// has says whether a line of the log has s in it.
func (l *logBuffer) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), s)
}

var (
	targetAddr = netip.MustParseAddr("10.0.0.1")
	hostAddr   = netip.MustParseAddr("10.0.0.2")
)

const hostNQN = "nqn.2026-11.io.nvmf:host1"

// newRig starts a daemon on the configuration, in which DIR stands for a
// folder of the test. The options may be changed before.
func newRig(t *testing.T, yaml string, change ...func(*rig, *Options)) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), log: &logBuffer{}}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	r.ctx = ctx
	r.net = fabrictest.NewNetwork(fabrictest.Options{})
	r.near = r.net.NewProvider(fabrictest.DeviceOptions{Addrs: []netip.Addr{targetAddr}})
	far := r.net.NewProvider(fabrictest.DeviceOptions{Addrs: []netip.Addr{hostAddr}})
	o := Options{Log: logrus.New(), Providers: only(r.near), retry: 10 * time.Millisecond}
	o.Log.SetOutput(r.log)
	for _, c := range change {
		c(r, &o)
	}
	d, err := Start(ctx, r.config(yaml), o)
	if err != nil {
		t.Fatal(err)
	}
	r.d = d
	if r.dev, err = far.DeviceFor(ctx, hostAddr, hostAddr); err != nil {
		t.Fatal(err)
	}
	r.host = &rdmatest.Host{Device: r.dev, Target: netip.AddrPortFrom(targetAddr, 4420), NQN: hostNQN, ID: nvme.HostID{1}}
	t.Cleanup(r.close)
	return r
}

// only is a provider under the name verbs.
func only(p fabric.Provider) *providers.Set {
	return &providers.Set{Open: map[string]func() (fabric.Provider, error){"verbs": func() (fabric.Provider, error) { return p, nil }}}
}

// until waits until cond holds.
func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	for !cond() {
		select {
		case <-r.ctx.Done():
			r.t.Fatalf("never: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (r *rig) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := r.d.Close(ctx); err != nil {
		r.t.Errorf("Close: %v", err)
	}
	if err := r.d.Close(ctx); err != nil {
		r.t.Errorf("second Close: %v", err)
	}
	if c := r.dev.Counts(); c != (fabric.ObjectCounts{}) {
		r.t.Errorf("the host's device has %+v", c)
	}
}

func quiet() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

func (r *rig) config(yaml string) *config.File {
	r.t.Helper()
	f, err := config.Parse("test.yaml", []byte(strings.ReplaceAll(yaml, "DIR", r.dir)))
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// reload applies a configuration and wants no error.
func (r *rig) reload(yaml string) *Result {
	r.t.Helper()
	res := r.d.Reload(r.ctx, r.config(yaml))
	for _, err := range res.Errors {
		r.t.Errorf("reload: %v", err)
	}
	return res
}

// connect makes a controller of the subsystem with one I/O queue.
func (r *rig) connect(nqn nvme.NQN) (*rdmatest.Session, *rdmatest.Queue) {
	r.t.Helper()
	s, err := r.host.Admin(r.ctx, nqn, rdmatest.Options{})
	if err != nil {
		r.t.Fatalf("connect to %s: %v", nqn, err)
	}
	q, err := s.Queue(r.ctx, rdmatest.Options{QID: 1}, rdmatest.ConnectParams{QID: 1, SQSize: 31})
	if err != nil {
		r.t.Fatalf("I/O queue of %s: %v", nqn, err)
	}
	r.t.Cleanup(func() { q.Close(); s.Close() })
	return s, q
}

func (r *rig) status() *Status {
	r.t.Helper()
	st, err := r.d.Status(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return st
}

func (r *rig) file(name string, size int64) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	f, err := os.Create(path)
	if err == nil {
		err = f.Truncate(size)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return path
}

// head is the part of a configuration that no test changes.
const head = `
version: 1
listeners: [{name: front, address: 10.0.0.1, provider: verbs}]
rdma: {buffers: 4MiB, max_transfer: 1MiB}
poll_groups: 1
`

func subsystem(name, hosts string, namespaces ...string) string {
	return fmt.Sprintf("  - {nqn: 'nqn.2026-11.io.nvmf:%s', hosts: %s, namespaces: [%s]}\n", name, hosts, strings.Join(namespaces, ", "))
}

// wantEvent has events of a kind reported and gives a function that waits for
// one.
func (r *rig) wantEvent(s *rdmatest.Session, kind nvme.AsyncEventConfig) func(nvme.AsyncEvent) {
	r.t.Helper()
	cmd := make(nvme.Command, nvme.SQESize)
	cmd.Features().InitSet(nvme.FeatAsyncEvent, 0, uint32(kind), false)
	if got, err := s.Admin.Do(r.ctx, cmd); err != nil || !got.Status.OK() {
		r.t.Fatal(got, err)
	}
	const cid = 0xAE
	cmd.Init(nvme.AdminAsyncEvent, 0)
	cmd.SetCID(cid)
	if err := s.Admin.SendCommand(cmd, nil); err != nil {
		r.t.Fatal(err)
	}
	return func(want nvme.AsyncEvent) {
		r.t.Helper()
		if got, err := s.Admin.WaitCID(r.ctx, cid); err != nil || nvme.AsyncEvent(got.Result) != want {
			r.t.Errorf("event %#x, %v", got.Result, err)
		}
	}
}
