package target

import (
	"context"
	"net/netip"
	"os"
	"testing"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"github.com/nvmf-go/nvmf/nvme"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	nqnA    nvme.NQN = "nqn.2026-11.io.nvmf:a"
	nqnB    nvme.NQN = "nqn.2026-11.io.nvmf:b"
	hostOne nvme.NQN = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"
	hostTwo nvme.NQN = "nqn.2014-08.org.nvmexpress:uuid:22222222-2222-2222-2222-222222222222"
)

// rig is a target with its ports, groups, devices and links, for tests that
// take the groups' turns themselves.
type rig struct {
	tb      testing.TB
	t       *Target
	ports   map[string]*Port
	groups  []*fakeGroup
	devices map[string]*fakeDevice // by "nqn/nsid" or a name of its own
	links   map[string]*fakeLink
	order   []string // of links
	cids    uint16
}

func newRig(tb testing.TB, cfg Config) *rig {
	tb.Helper()
	if os.Getenv("NVMF_TEST_LOG") != "" {
		cfg.Log = logrus.New()
	}
	t, err := NewTarget(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	r := &rig{tb: tb, t: t, ports: map[string]*Port{}, devices: map[string]*fakeDevice{}, links: map[string]*fakeLink{}}
	r.group(0)
	tb.Cleanup(r.close)
	return r
}

// group is group i, made with all before it.
func (r *rig) group(i int) *fakeGroup {
	for len(r.groups) <= i {
		r.groups = append(r.groups, newFakeGroup(r.tb, r.t, 4))
	}
	return r.groups[i]
}

func (r *rig) close() {
	for _, d := range r.devices {
		d.hold(false)
	}
	for _, l := range r.links {
		l.release()
		l.Disconnect(ErrClosed)
	}
	r.step()
	if err := r.t.Close(context.Background()); err != nil {
		r.tb.Errorf("close: %v", err)
	}
	for _, f := range r.groups {
		f.end()
		f.step()
		if err := f.g.Close(); err != nil {
			r.tb.Errorf("group close: %v", err)
		}
	}
	for name, d := range r.devices {
		if err := d.Close(); err != nil {
			r.tb.Errorf("device %s: %v", name, err)
		}
	}
}

// step takes turns of every group until all is quiet.
func (r *rig) step() {
	for busy := true; busy; {
		busy = false
		for _, f := range r.groups {
			f.step()
		}
		for _, f := range r.groups {
			f.mu.Lock()
			busy = busy || len(f.msgs) > 0
			f.mu.Unlock()
		}
	}
}

// must fails the test on an error.
func (r *rig) must(err error) {
	r.tb.Helper()
	if err != nil {
		r.tb.Fatal(err)
	}
}

func testCaps() TransportCaps {
	return TransportCaps{MaxQueueDepth: 128, InCapsule: 4096, MaxSGL: 16, MaxTransfer: 1 << 20, KeyedSGL: true, Invalidate: true}
}

func (r *rig) addPort(id uint16, name, addr string) *Port {
	r.tb.Helper()
	p := &Port{ID: id, Name: name, Type: nvme.TransportRDMA, Addr: netip.MustParseAddrPort(addr), Provider: "roce", Caps: testCaps()}
	r.must(r.t.AddPort(p))
	r.ports[name] = p
	return p
}

func (r *rig) addSubsystem(cfg SubsystemConfig) *Subsystem {
	r.tb.Helper()
	s, err := r.t.AddSubsystem(cfg)
	r.must(err)
	return s
}

func (r *rig) addNamespace(s *Subsystem, nsid uint32, d *fakeDevice) *Namespace {
	r.tb.Helper()
	n, err := s.AddNamespace(NamespaceConfig{NSID: nsid, Device: d, Name: "disk"})
	r.must(err)
	return n
}

// link makes a queue of a connection, which may be changed before.
func (r *rig) link(name string, port *Port, group, qid, depth int, change ...func(*fakeLink)) *fakeLink {
	r.tb.Helper()
	f := r.group(group)
	l := newFakeLink(f, name)
	for _, c := range change {
		c(l)
	}
	q, err := f.g.NewQueue(QueueConfig{Link: l, Port: port, QID: qid, Depth: depth})
	r.must(err)
	l.q = q
	r.links[name] = l
	r.order = append(r.order, name)
	return l
}

// connectSpec is a Connect. Zero fields are good values.
type connectSpec struct {
	sub, host nvme.NQN
	hostID    nvme.HostID
	qid, size uint16
	cntlid    uint16
	attr      nvme.ConnectAttr
	kato      uint32
}

func (c connectSpec) build() (sqe nvme.Command, data nvme.ConnectData) {
	def(&c.sub, nqnA)
	def(&c.host, hostOne)
	def(&c.hostID, nvme.HostID{15: 1})
	def(&c.size, 31)
	if c.qid == 0 {
		def(&c.cntlid, nvme.CNTLIDDynamic)
	}
	sqe, data = make(nvme.Command, nvme.SQESize), make(nvme.ConnectData, nvme.ConnectDataSize)
	sqe.Connect().Init(c.qid, c.size, c.attr, c.kato)
	data.Put(c.hostID, c.cntlid, c.sub, c.host)
	return sqe, data
}

// do sends a command and takes turns until all is quiet.
func (r *rig) do(l *fakeLink, sqe nvme.Command, out []byte, sgl int) *fakeRequest {
	r.cids++
	sqe.SetCID(r.cids)
	f := l.start(sqe, out, uint64(sgl))
	r.step()
	return f
}

// ok is do for commands that must succeed.
func (r *rig) ok(l *fakeLink, sqe nvme.Command, out []byte, sgl int) *fakeRequest {
	r.tb.Helper()
	f := r.do(l, sqe, out, sgl)
	if f.completed != 1 || !f.Status.OK() {
		r.tb.Fatalf("%s %s: completed %d, %v", l.name, nvme.OpcodeName(sqe.Opcode(), l.q.state == queueAdmin), f.completed, f.Status)
	}
	return f
}

func (r *rig) connect(l *fakeLink, c connectSpec) *fakeRequest {
	sqe, data := c.build()
	return r.do(l, sqe, data, len(data))
}

// enable is what a host does after Connect.
func (r *rig) enable(l *fakeLink) {
	r.tb.Helper()
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Property().InitSet(nvme.PropCC, enableCC)
	r.ok(l, sqe, nil, 0)
}

// enableCC is CC as Linux writes it.
const enableCC = 0x00460061

// session connects an admin queue "admin" and n I/O queues "io1"... to nqnA,
// in groups 0, 1, 0...
func (r *rig) session(port *Port, n int) (admin *fakeLink, ios []*fakeLink) {
	r.tb.Helper()
	return r.sessionOf(port, "", hostOne, n)
}

// sessionOf is session for a host, with a prefix for the names of its queues.
func (r *rig) sessionOf(port *Port, prefix string, host nvme.NQN, n int) (admin *fakeLink, ios []*fakeLink) {
	r.tb.Helper()
	admin = r.link(prefix+"admin", port, 0, 0, 32)
	if f := r.connect(admin, connectSpec{host: host, kato: 5000}); !f.Status.OK() {
		r.tb.Fatal(f.Status)
	}
	r.enable(admin)
	for i := range n {
		l := r.link(prefix+"io"+string(rune('1'+i)), port, i%2, i+1, 128)
		if f := r.connect(l, connectSpec{host: host, qid: uint16(i + 1), cntlid: admin.q.ctrl.id, size: 127}); !f.Status.OK() {
			r.tb.Fatal(f.Status)
		}
		ios = append(ios, l)
	}
	return admin, ios
}

// standard is a rig with a port, nqnA with namespace 1 of 1024 blocks, and a
// session of n I/O queues.
func standard(tb testing.TB, n int) (r *rig, admin *fakeLink, ios []*fakeLink) {
	r = newRig(tb, Config{})
	port := r.addPort(1, "front", "192.0.2.1:4420")
	s := r.addSubsystem(SubsystemConfig{NQN: nqnA, Hosts: AnyHost()})
	d := newFakeDevice(512, 1024)
	r.devices["one"] = d
	r.addNamespace(s, 1, d)
	admin, ios = r.session(port, n)
	return r, admin, ios
}

// blockCmd makes the SQE of a command on blocks.
func blockCmd(o nvme.Opcode, nsid uint32, slba uint64, nlb, flags uint32) nvme.Command {
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.InitIO(o, nsid, slba, nlb, flags)
	return sqe
}
