package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/providers"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// Hosts lose their queues because the target closes, and not for what has to be
// done on the way.
func TestCloseEndsHosts(t *testing.T) {
	r := newRig(t, ramBackends+subsystem("a", "any", "{nsid: 1, backend: ram0}"))
	_, q := r.connect(nqnA)
	ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
	defer cancel()
	if err := r.d.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := q.Read(r.ctx, 1, 0, 1, 0, 512); err == nil {
		t.Error("a closed daemon reads")
	}
	if !r.log.has("controller 1 ends: the target is closing") || r.log.has("port was removed") {
		t.Error("the log gives another reason")
	}
	if res := r.d.Reload(r.ctx, r.config(head)); len(res.Errors) != 1 {
		t.Errorf("reload of a closed daemon: %+v", res)
	}
}

// moving is a provider whose device goes and comes back as another.
type moving struct {
	*fabrictest.Provider // the present one
	pulled               chan struct{}
}

func (m *moving) Listen(ctx context.Context, a netip.AddrPort, c fabric.ListenConfig) (fabric.Listener, error) {
	l, err := m.Provider.Listen(ctx, a, c)
	return &mortal{l, m.pulled}, err
}

// switched is always the present provider.
type switched struct{ now *atomic.Pointer[moving] }

func (s *switched) Name() string                            { return s.now.Load().Name() }
func (s *switched) Devices() ([]fabric.DeviceInfo, error)   { return s.now.Load().Devices() }
func (s *switched) Open(name string) (fabric.Device, error) { return s.now.Load().Open(name) }
func (s *switched) Close() error                            { return s.now.Load().Close() }

func (s *switched) DeviceFor(ctx context.Context, local, remote netip.Addr) (fabric.Device, error) {
	return s.now.Load().DeviceFor(ctx, local, remote)
}

func (s *switched) Listen(ctx context.Context, a netip.AddrPort, c fabric.ListenConfig) (fabric.Listener, error) {
	return s.now.Load().Listen(ctx, a, c)
}

// mortal is a listener that ends with its device, as those of verbs do.
type mortal struct {
	fabric.Listener
	pulled <-chan struct{}
}

func (m *mortal) Accept(ctx context.Context) (fabric.Request, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-m.pulled:
			cancel()
		case <-ctx.Done():
		}
	}()
	r, err := m.Listener.Accept(ctx)
	select {
	case <-m.pulled:
		return nil, fabric.ErrNoDevice
	default:
		return r, err
	}
}

// A listener whose address no device has yet waits for it and says so, serves
// once it is there, and waits again when the device is pulled out.
func TestListenerWaits(t *testing.T) {
	var now atomic.Pointer[moving]
	r := newRig(t, strings.Replace(head, "10.0.0.1", "0.0.0.0", 1)+"subsystems:\n"+subsystem("a", "any"), func(r *rig, o *Options) {
		now.Store(&moving{r.net.NewProvider(), nil}) // has no device
		o.Providers = &providers.Set{Open: map[string]func() (fabric.Provider, error){}}
		o.Providers.Open["verbs"] = func() (fabric.Provider, error) { return &switched{&now}, nil }
	})
	l := r.status().Listeners[0]
	if l.State != Waiting || !strings.Contains(l.Reason, fabric.ErrAddrNotAvailable.Error()) {
		t.Errorf("%+v", l)
	}
	if !r.log.has("listener front: waiting for address 0.0.0.0:4420") {
		t.Error("the log does not say so")
	}
	for i := range 2 {
		name, at := fmt.Sprintf("plug%d", i), netip.AddrFrom4([4]byte{10, 9, 9, byte(i)})
		m := &moving{r.net.NewProvider(fabrictest.DeviceOptions{Name: name, Addrs: []netip.Addr{at}}), make(chan struct{})}
		now.Store(m)
		r.host.Target = netip.AddrPortFrom(at, 4420)
		r.until("it listens", func() bool { return r.status().Listeners[0].State == Listening })
		r.connect(nqnA)
		m.Device(name).Remove()
		close(m.pulled)
		r.until("it waits", func() bool { return r.status().Listeners[0].State == Waiting })
		r.until("the host is gone", func() bool { return len(r.status().Controllers) == 0 })
	}
	if !r.log.has("listener front: down, waiting for address 0.0.0.0:4420 to come back") {
		t.Error("the log does not say that it went")
	}
}

// stuckBackends are mem backends that can hold operations back, by name.
type stuckBackends map[string]*backendtest.Faulty

func (s stuckBackends) use(_ *rig, o *Options) {
	o.open = func(b config.Backend) (backend.Device, error) {
		d, err := openBackend(b)
		if err != nil {
			return nil, err
		}
		s[b.Name] = backendtest.NewFaulty(d)
		return s[b.Name], nil
	}
}

// A reload that waits for slow media holds up neither status nor hosts nor the
// end, and waits for all of them at the same time.
func TestReloadOfStuckBackends(t *testing.T) {
	stuck := stuckBackends{}
	r := newRig(t, ramBackends+subsystem("a", "any", "{nsid: 1, backend: ram0}", "{nsid: 2, backend: ram1}", "{nsid: 3, backend: ram0}"), stuck.use)
	s, q := r.connect(nqnA)
	for _, f := range stuck {
		f.Judge(backendtest.Hold(backend.Kinds(backend.Read)))
	}
	cmd := make(nvme.Command, nvme.SQESize)
	for nsid, bs := range map[uint32]int{1: 512, 2: 4096, 3: 512} {
		q.IO(cmd, nvme.CmdRead, uint16(nsid), nsid, 0, 1, 0, bs)
		if err := q.SendCommand(cmd, nil); err != nil {
			t.Fatal(err)
		}
	}
	r.until("the reads are in the backends", func() bool { return stuck["ram0"].Held() == 2 && stuck["ram1"].Held() == 1 })

	done := make(chan *Result, 1)
	go func() { done <- r.d.Reload(r.ctx, r.config(head+"subsystems:\n"+subsystem("a", "any"))) }()
	r.until("the namespaces are gone", func() bool { return len(r.status().Subsystems[0].Namespaces) == 0 })
	if _, err := s.Admin.Identify(r.ctx, 1, 0); err != nil {
		t.Errorf("admin command: %v", err)
	}
	select {
	case res := <-done:
		t.Fatalf("the reload did not wait: %+v", res)
	default:
	}
	stuck["ram0"].Release(-1)
	stuck["ram1"].Release(-1)
	if res := <-done; len(res.Errors) > 0 || len(res.Changes) != 5 { // three namespaces, two backends
		t.Errorf("%+v", res)
	}
}

// The end does not wait for a reload.
func TestCloseDuringReload(t *testing.T) {
	stuck := stuckBackends{}
	r := newRig(t, ramBackends+subsystem("a", "any", "{nsid: 1, backend: ram0}"), stuck.use)
	_, q := r.connect(nqnA)
	stuck["ram0"].Judge(backendtest.Hold(backend.Kinds(backend.Read)))
	cmd := make(nvme.Command, nvme.SQESize)
	q.IO(cmd, nvme.CmdRead, 1, 1, 0, 1, 0, 512)
	if err := q.SendCommand(cmd, nil); err != nil {
		t.Fatal(err)
	}
	r.until("the read is in the backend", func() bool { return stuck["ram0"].Held() == 1 })
	reloaded, closed := make(chan *Result, 1), make(chan error, 1)
	go func() { reloaded <- r.d.Reload(r.ctx, r.config(head+"subsystems:\n"+subsystem("a", "any"))) }()
	r.until("the namespace is gone", func() bool { return len(r.status().Subsystems[0].Namespaces) == 0 })
	go func() { closed <- r.d.Close(r.ctx) }()
	res := <-reloaded
	if len(res.Errors) == 0 || !errors.Is(res.Errors[0], errClosed) {
		t.Errorf("reload: %+v", res)
	}
	stuck["ram0"].Release(-1)
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
}

// An NSID that is given to another backend is absent until the hosts that are
// told of changes have seen that.
func TestRemapIsSeen(t *testing.T) {
	r := newRig(t, ramBackends+subsystem("a", "any", "{nsid: 1, backend: ram0}"))
	s, _ := r.connect(nqnA)
	cmd := make(nvme.Command, nvme.SQESize)
	cmd.Features().InitSet(nvme.FeatAsyncEvent, 0, uint32(nvme.EventNSAttribute), false)
	if got, err := s.Admin.Do(r.ctx, cmd); err != nil || !got.Status.OK() {
		t.Fatal(got, err)
	}
	done := make(chan *Result, 1)
	go func() {
		done <- r.d.Reload(r.ctx, r.config(ramBackends+subsystem("a", "any", "{nsid: 1, backend: ram1}")))
	}()
	active := func() uint32 {
		list, err := s.Admin.Identify(r.ctx, uint8(nvme.CNSActiveList), 0)
		if err != nil {
			t.Fatal(err)
		}
		return nvme.NSList(list).At(0)
	}
	// A host lists when it is told; this one looks until it sees the change.
	r.until("the namespace is absent", func() bool { return active() == 0 })
	if res := <-done; len(res.Errors) > 0 {
		t.Errorf("%+v", res)
	}
	if n := active(); n != 1 {
		t.Errorf("active: %d", n)
	}
	if r.log.has("waiting for its hosts") {
		t.Error("the reload did not notice that the host has looked")
	}
}

// What each host does to each namespace is in the status.
func TestStatusOfHosts(t *testing.T) {
	r := newRig(t, ramBackends+subsystem("a", "any", "{nsid: 1, backend: ram0}", "{nsid: 4, backend: ram1}"))
	_, q := r.connect(nqnA)
	r.host.NQN, r.host.ID = "nqn.2026-11.io.nvmf:host2", nvme.HostID{2}
	_, other := r.connect(nqnA)
	for _, c := range []struct {
		q    *rdmatest.Queue
		nsid uint32
		n    int
	}{{q, 1, 512}, {q, 4, 4096}, {other, 4, 8192}} {
		blocks := map[uint32]int{1: 512, 4: 4096}[c.nsid]
		if err := c.q.Write(r.ctx, c.nsid, 0, uint32(c.n/blocks), 0, c.n); err != nil {
			t.Fatal(err)
		}
	}
	hosts := r.status().Hosts
	if len(hosts) != 2 || len(hosts[0].Namespaces) != 2 || len(hosts[1].Namespaces) != 1 {
		t.Fatalf("%+v", hosts)
	}
	for i, c := range []struct {
		n     HostNamespace
		nsid  uint32
		bytes uint64
	}{{hosts[0].Namespaces[0], 1, 512}, {hosts[0].Namespaces[1], 4, 4096}, {hosts[1].Namespaces[0], 4, 8192}} {
		if c.n.NSID != c.nsid || c.n.Counters.Bytes["write"] != c.bytes || c.n.Write.Count != 1 || c.n.Backend == "" {
			t.Errorf("%d: %+v", i, c.n)
		}
	}
}

// A persistent discovery controller hears of a change at once and of nothing
// when a reload changes nothing; the first 20 bytes of the log tell the
// generation and the number of entries.
func TestDiscoveryEvents(t *testing.T) {
	before := ramBackends + subsystem("a", "any", "{nsid: 1, backend: ram0}")
	r := newRig(t, before)
	s, err := r.host.Admin(r.ctx, nvme.DiscoveryNQN, rdmatest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	header := func() (genctr, numrec uint64) {
		cmd := make(nvme.Command, nvme.SQESize)
		cmd.GetLogPage().Init(0, nvme.LogRequest{LID: nvme.LogDiscovery, Length: 20})
		cmd.SGL1().SetKeyed(s.Admin.Addr(), 20, s.Admin.RKey(), nvme.SGLAddress)
		clear(s.Admin.Data()[:64])
		if got, err := s.Admin.Do(r.ctx, cmd); err != nil || !got.Status.OK() {
			t.Fatal(got, err)
		}
		b := s.Admin.Data()
		if !bytes.Equal(b[20:64], make([]byte, 44)) {
			t.Error("more than 20 bytes were written")
		}
		return binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	}
	genctr, numrec := header()
	if numrec != 2 || genctr != r.status().Discovery {
		t.Errorf("generation %d, %d entries", genctr, numrec)
	}
	await := r.wantEvent(s, nvme.EventDiscovery)
	r.reload(before)
	if again, _ := header(); again != genctr {
		t.Errorf("generation %d became %d without a change", genctr, again)
	}
	if n, err := s.Admin.Poll(); n != 0 || err != nil {
		t.Errorf("%d events without a change, %v", n, err)
	}
	r.reload(before + subsystem("b", "any"))
	await(nvme.DiscoveryChanged)
	if again, n := header(); again == genctr || n != 3 {
		t.Errorf("generation %d, then %d with %d entries", genctr, again, n)
	}
}
