package daemon

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

const (
	nqnA = "nqn.2026-11.io.nvmf:a"
	nqnB = "nqn.2026-11.io.nvmf:b"
)

// code is the status in err without its hints; Success when there is none.
func code(err error) nvme.Status {
	var st nvme.Status
	errors.As(err, &st)
	return st.Code()
}

const ramBackends = head + `backends:
  - {name: ram0, type: mem, size: 1MiB}
  - {name: ram1, type: mem, size: 2MiB, block_size: 4096}
subsystems:
`

func TestServe(t *testing.T) {
	r := newRig(t, ramBackends+subsystem("a", "any", "{nsid: 1, backend: ram0}", "{nsid: 7, backend: ram1}"))
	_, q := r.connect(nqnA)
	if err := q.Write(r.ctx, 1, 0, 8, 0, 4096); err != nil {
		t.Error(err)
	}
	if err := q.Read(r.ctx, 7, 511, 1, 0, 4096); err != nil {
		t.Error(err)
	}
	st := r.status()
	if l := st.Listeners[0]; l.State != Listening || l.Provider != "memory" || l.Controllers != 1 {
		t.Errorf("listener %+v", l)
	}
	ns := st.Subsystems[0].Namespaces
	if len(ns) != 2 || ns[0].Counters.Bytes["write"] != 4096 || ns[1].Counters.Ops["read"] != 1 || ns[1].Read.Count != 1 {
		t.Errorf("namespaces %+v", ns)
	}
	if len(st.Controllers) != 1 || len(st.Controllers[0].Queues) != 2 || st.Controllers[0].Host != hostNQN {
		t.Errorf("controllers %+v", st.Controllers)
	}
	if st.RDMA.Connections != 2 || st.Process.Registered == 0 || st.Process.RSS == 0 || st.Process.Files == 0 {
		t.Errorf("rdma %+v process %+v", st.RDMA, st.Process)
	}
}

func TestReloadNamespaces(t *testing.T) {
	r := newRig(t, ramBackends+subsystem("a", "any", "{nsid: 1, backend: ram0}"))
	s, q := r.connect(nqnA)
	res := r.reload(ramBackends + subsystem("a", "any", "{nsid: 1, backend: ram0}", "{nsid: 2, backend: ram1}"))
	if len(res.Changes) != 1 {
		t.Errorf("changes: %q", res.Changes)
	}
	if err := q.Read(r.ctx, 2, 0, 1, 0, 4096); err != nil {
		t.Errorf("the new namespace: %v", err)
	}
	r.reload(ramBackends + subsystem("a", "any", "{nsid: 2, backend: ram1}"))
	if err := q.Read(r.ctx, 1, 0, 1, 0, 512); code(err) != nvme.InvalidField {
		t.Errorf("the removed namespace: %v", err)
	}
	if _, err := s.Admin.Identify(r.ctx, 1, 0); err != nil {
		t.Errorf("the controller did not survive: %v", err)
	}
}

func TestReloadNothing(t *testing.T) {
	yaml := ramBackends + subsystem("a", "any", "{nsid: 1, backend: ram0}")
	r := newRig(t, yaml)
	gen := r.status().Discovery
	if res := r.reload(yaml); len(res.Changes)+len(res.Restart) > 0 {
		t.Errorf("%+v", res)
	}
	if g := r.status().Discovery; g != gen {
		t.Errorf("discovery generation %d became %d", gen, g)
	}
}

func TestReloadRemap(t *testing.T) {
	r := newRig(t, ramBackends+subsystem("a", "any", "{nsid: 1, backend: ram0}"))
	before := r.status().Subsystems[0].Namespaces[0]
	r.reload(ramBackends + subsystem("a", "any", "{nsid: 1, backend: ram1}"))
	after := r.status().Subsystems[0].Namespaces[0]
	if after.Backend != "ram1" || after.BlockSize != 4096 || after.UUID == before.UUID {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
}

func TestReloadSubsystems(t *testing.T) {
	r := newRig(t, ramBackends+subsystem("a", "any"))
	r.reload(ramBackends + subsystem("a", "any") + subsystem("b", "any"))
	r.connect(nqnB)
	s, _ := r.connect(nqnA)
	r.reload(ramBackends + subsystem("b", "any"))
	if _, err := s.Admin.Identify(r.ctx, 1, 0); err == nil {
		t.Error("a controller of a removed subsystem answers")
	}
	if _, err := r.host.Admin(r.ctx, nqnA, rdmatest.Options{}); err == nil {
		t.Error("a removed subsystem takes a host")
	}
	if st := r.status(); len(st.Subsystems) != 1 || st.Subsystems[0].Controllers != 1 {
		t.Errorf("%+v", st.Subsystems)
	}
}

func TestReloadHosts(t *testing.T) {
	r := newRig(t, ramBackends+subsystem("a", "["+hostNQN+"]"))
	s, _ := r.connect(nqnA)
	r.reload(ramBackends + subsystem("a", "['nqn.2026-11.io.nvmf:host2']"))
	if _, err := s.Admin.Identify(r.ctx, 1, 0); err == nil {
		t.Error("a host that is no longer allowed still has its controller")
	}
	_, err := r.host.Admin(r.ctx, nqnA, rdmatest.Options{})
	if code(err) != nvme.ConnectInvalidHost {
		t.Errorf("connect: %v", err)
	}
}

func TestReloadGrowsFile(t *testing.T) {
	conf := func(size string) string {
		return head + "backends: [{name: d, type: file, path: DIR/d.img, size: " + size + "}]\nsubsystems:\n" +
			subsystem("a", "any", "{nsid: 1, backend: d}")
	}
	r := newRig(t, conf("1MiB"))
	_, q := r.connect(nqnA)
	if err := q.Read(r.ctx, 1, 2048, 1, 0, 512); code(err) != nvme.LBAOutOfRange {
		t.Errorf("past the end: %v", err)
	}
	r.reload(conf("2MiB"))
	if err := q.Read(r.ctx, 1, 2048, 1, 0, 512); err != nil {
		t.Errorf("after growing: %v", err)
	}
	if got := r.status().Subsystems[0].Namespaces[0].Bytes; got != 2<<20 {
		t.Errorf("size %d", got)
	}
	res := r.d.Reload(r.ctx, r.config(conf("1MiB")))
	if len(res.Errors) != 1 || !strings.Contains(res.Errors[0].Error(), "never cut") {
		t.Errorf("shrinking: %v", res.Errors)
	}
	if st, err := os.Stat(filepath.Join(r.dir, "d.img")); err != nil || st.Size() != 2<<20 {
		t.Errorf("the file was cut: %v %v", st.Size(), err)
	}
}

// A file that was grown by hand is seen at the next reload.
func TestReloadSeesForeignSize(t *testing.T) {
	conf := head + "backends: [{name: d, type: file, path: DIR/d.img}]\nsubsystems:\n" + subsystem("a", "any", "{nsid: 1, backend: d}")
	r := newRig(t, head+"subsystems:\n"+subsystem("a", "any"))
	path := r.file("d.img", 1<<20)
	r.reload(conf)
	if err := os.Truncate(path, 3<<20); err != nil {
		t.Fatal(err)
	}
	res := r.reload(conf)
	if len(res.Changes) != 1 || r.status().Subsystems[0].Namespaces[0].Bytes != 3<<20 {
		t.Errorf("%+v %+v", res, r.status().Subsystems[0].Namespaces[0])
	}
}

// What fails is said, the rest goes on, and the next reload tries again.
func TestMissingBackend(t *testing.T) {
	backends, _, _ := strings.Cut(ramBackends, "subsystems:")
	conf := backends + "  - {name: d, type: file, path: DIR/none.img}\nsubsystems:\n" +
		subsystem("a", "any", "{nsid: 1, backend: d}", "{nsid: 2, backend: ram0}")
	r := newRig(t, conf)
	_, q := r.connect(nqnA)
	if err := q.Read(r.ctx, 2, 0, 1, 0, 512); err != nil {
		t.Errorf("the other namespace: %v", err)
	}
	res := r.d.Reload(r.ctx, r.config(conf))
	if len(res.Errors) != 1 || !errors.Is(res.Errors[0], os.ErrNotExist) || !strings.Contains(res.Errors[0].Error(), "hence no "+nqnA+" namespace 1") {
		t.Errorf("errors: %v", res.Errors)
	}
	r.file("none.img", 1<<20)
	r.reload(conf)
	if err := q.Read(r.ctx, 1, 0, 1, 0, 512); err != nil {
		t.Errorf("once it is there: %v", err)
	}
}

func TestStrict(t *testing.T) {
	n := fabrictest.NewNetwork(fabrictest.Options{})
	p := n.NewProvider(fabrictest.DeviceOptions{Addrs: []netip.Addr{targetAddr}})
	f, err := config.Parse("test.yaml", []byte(head+"strict: true\nbackends: [{name: d, type: file, path: /nonexistent/none.img}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = Start(context.Background(), f, Options{Log: quiet(), Providers: only(p)})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "backend d") {
		t.Errorf("%v", err)
	}
}

func TestReloadListeners(t *testing.T) {
	second := strings.Replace(head, "provider: verbs}", "provider: verbs}, {name: back, address: 10.0.0.1, port: 4421, provider: verbs}", 1)
	r := newRig(t, head+"subsystems:\n"+subsystem("a", "any"))
	r.reload(second + "subsystems:\n" + subsystem("a", "any"))
	r.host.Target = netip.AddrPortFrom(targetAddr, 4421)
	s, _ := r.connect(nqnA)
	r.reload(head + "subsystems:\n" + subsystem("a", "any"))
	if _, err := s.Admin.Identify(r.ctx, 1, 0); err == nil {
		t.Error("a controller on a removed listener answers")
	}
	var rejected *fabric.RejectError
	if _, err := r.host.Dial(r.ctx, rdmatest.Options{}); !errors.As(err, &rejected) || rejected.Reason != fabric.RejectBadServiceID {
		t.Errorf("dial to a removed listener: %v", err)
	}
}

func TestNeedRestart(t *testing.T) {
	r := newRig(t, head)
	res := r.reload(strings.Replace(head, "poll_groups: 1", "poll_groups: 2\npoll: busy\ncntlid: {min: 5}", 1))
	if want := []string{"poll", "poll_groups", "cntlid"}; !slices.Equal(res.Restart, want) {
		t.Errorf("%q, want %q", res.Restart, want)
	}
}
