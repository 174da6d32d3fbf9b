package target

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

func TestGroupRefused(t *testing.T) {
	r := newRig(t, Config{})
	run, wake := func(func()) bool { return true }, func() {}
	for name, cfg := range map[string]GroupConfig{
		"no run":  {Wake: wake},
		"no wake": {Run: run},
		"depth":   {Run: run, Wake: wake, BackendDepth: -1},
		"deep":    {Run: run, Wake: wake, BackendDepth: 1<<16 + 1},
	} {
		if _, err := r.t.NewGroup(cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestQueueRefused(t *testing.T) {
	r := newRig(t, Config{})
	port := r.addPort(1, "front", "192.0.2.1:4420")
	g, l := r.groups[0].g, newFakeLink(r.groups[0], "l")
	for name, cfg := range map[string]QueueConfig{
		"no link":      {Port: port, Depth: 2},
		"no port":      {Link: l, Depth: 2},
		"depth":        {Link: l, Port: port, Depth: 1},
		"another port": {Link: l, Port: &Port{Name: "front"}, Depth: 2},
	} {
		if _, err := g.NewQueue(cfg); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// After Close nothing is let in, and everything says why.
func TestClosedTarget(t *testing.T) {
	r, admin, _ := standard(t, 1)
	port := r.ports["front"]
	waiting := r.link("waiting", port, 0, -1, 32)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.t.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("close with a controller that nobody closes: %v", err)
	}
	for _, l := range []*fakeLink{admin, waiting} {
		if !errors.Is(l.reason, ErrClosed) {
			t.Errorf("%s was disconnected for %v", l.name, l.reason)
		}
	}
	r.step()
	if err := r.t.Close(context.Background()); err != nil {
		t.Error(err)
	}
	_, errSub := r.t.AddSubsystem(SubsystemConfig{NQN: nqnB})
	_, errGroup := r.t.NewGroup(GroupConfig{Run: func(func()) bool { return true }, Wake: func() {}})
	_, errQueue := r.groups[0].g.NewQueue(QueueConfig{Link: admin, Port: port, Depth: 32})
	for name, err := range map[string]error{
		"subsystem": errSub, "group": errGroup, "queue": errQueue, "port": r.t.AddPort(&Port{ID: 2, Name: "x", Addr: port.Addr, Caps: testCaps()}),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A backend that takes nothing while nothing is in flight would never wake
// anybody: the command fails instead of waiting for ever.
func TestBackendRefuses(t *testing.T) {
	r, _, ios := standard(t, 1)
	r.ok(ios[0], blockCmd(nvme.CmdRead, 1, 0, 1, 0), nil, 512)
	ios[0].f.g.open[0].queue.(*fakeQueue).depth = 0
	if f := r.do(ios[0], blockCmd(nvme.CmdRead, 1, 0, 1, 0), nil, 512); f.completed != 1 || f.Status.Code() != nvme.InternalError {
		t.Errorf("completed %d, %v", f.completed, f.Status)
	}
}

// A backend queue that is shallower than it was asked to be keeps the order.
func TestBackendShallow(t *testing.T) {
	r, _, ios := standard(t, 1)
	r.ok(ios[0], blockCmd(nvme.CmdRead, 1, 0, 1, 0), nil, 512)
	ios[0].f.g.open[0].queue.(*fakeQueue).depth = 2
	r.devices["one"].takeTrace()
	r.devices["one"].hold(true)
	for i := range 7 {
		r.do(ios[0], blockCmd(nvme.CmdRead, 1, uint64(i), 1, 0), nil, 512)
	}
	if s := r.snapshot().Subsystems[0].Namespaces[0]; s.Inflight != 2 || s.Waiting != 5 || s.Waits == 0 {
		t.Errorf("in flight %d, waiting %d, waits %d", s.Inflight, s.Waiting, s.Waits)
	}
	r.devices["one"].hold(false)
	r.step()
	for i, op := range r.devices["one"].takeTrace() {
		if op.Offset != uint64(i)*512 {
			t.Errorf("operation %d is at %d", i, op.Offset)
		}
	}
}

// failingDevice has no queues to give.
type failingDevice struct{ *fakeDevice }

func (failingDevice) NewQueue(int, func()) (backend.Queue, error) {
	return nil, errors.New("too many open files")
}

func TestBackendCannotOpen(t *testing.T) {
	r, _, ios := standard(t, 1)
	s := r.t.Subsystem(nqnA)
	if _, err := s.AddNamespace(NamespaceConfig{NSID: 2, Device: failingDevice{newFakeDevice(512, 64)}, Name: "bad"}); err != nil {
		t.Fatal(err)
	}
	flush := make(nvme.Command, nvme.SQESize)
	flush.Init(nvme.CmdFlush, nvme.NSIDBroadcast)
	dsm := make(nvme.Command, nvme.SQESize)
	dsm.DSM().Init(2, 1, nvme.DSMDeallocate)
	for _, c := range []struct {
		sqe nvme.Command
		n   int
	}{
		{blockCmd(nvme.CmdRead, 2, 0, 1, 0), 512}, {blockCmd(nvme.CmdCompare, 2, 0, 1, 0), 512}, {flush, 0}, {dsm, 16},
	} {
		if f := r.do(ios[0], c.sqe, make([]byte, c.n), c.n); f.completed != 1 || f.Status.Code() != nvme.InternalError {
			t.Errorf("%s: completed %d, %v", nvme.OpcodeName(c.sqe.Opcode(), false), f.completed, f.Status)
		}
	}
	r.ok(ios[0], blockCmd(nvme.CmdRead, 1, 0, 1, 0), nil, 512) // the other namespace is well
}

// registrar is a backend queue that wants to know the memory.
type registrar struct {
	*fakeQueue
	got [][][]byte
	err error
}

func (q *registrar) RegisterBuffers(mem [][]byte) error {
	q.got = append(q.got, mem)
	return q.err
}

func TestRegisterMemory(t *testing.T) {
	r, _, ios := standard(t, 1)
	r.ok(ios[0], blockCmd(nvme.CmdRead, 1, 0, 1, 0), nil, 512)
	g := ios[0].f.g
	q := &registrar{fakeQueue: g.open[0].queue.(*fakeQueue), err: errors.New("no room")}
	g.open[0].queue = q
	g.RegisterMemory(make([]byte, 1), make([]byte, 2))
	g.RegisterMemory(make([]byte, 3))
	if len(q.got) != 2 || len(q.got[0]) != 2 || len(q.got[1]) != 3 {
		t.Errorf("%v", q.got)
	}
	r.ok(ios[0], blockCmd(nvme.CmdRead, 1, 0, 1, 0), nil, 512) // without, too
}

// A completion of an operation that there is not is no request's.
func TestForeignCompletion(t *testing.T) {
	r, _, ios := standard(t, 1)
	r.devices["one"].hold(true)
	f := r.do(ios[0], blockCmd(nvme.CmdRead, 1, 0, 1, 0), nil, 512)
	g := ios[0].f.g
	a := g.open[0]
	for _, id := range []uint64{1 << 40, 7, 1<<32 | 3} {
		g.complete(a, backend.Completion{ID: id})
	}
	if f.completed != 0 || a.inflight() != 1 {
		t.Errorf("completed %d, in flight %d", f.completed, a.inflight())
	}
	r.devices["one"].hold(false)
	r.step()
	if f.completed != 1 {
		t.Error("the operation did not end")
	}
}

// Requests wait in a FIFO that is taken apart from anywhere.
func TestFIFO(t *testing.T) {
	var f fifo
	var rs [5]Request
	for i := range rs {
		f.push(&rs[i])
	}
	is := func(want *Request) func(*Request) bool { return func(r *Request) bool { return r == want } }
	for _, i := range []int{2, 0, 4} {
		if f.remove(is(&rs[i])) != &rs[i] {
			t.Fatalf("request %d was not found", i)
		}
	}
	if f.remove(is(&rs[2])) != nil {
		t.Error("request 2 was found twice")
	}
	f.push(&rs[0])
	for _, i := range []int{1, 3, 0} {
		if f.empty() || f.pop() != &rs[i] {
			t.Fatalf("request %d is not next", i)
		}
	}
	if !f.empty() || f.n != 0 || f.tail != nil {
		t.Errorf("%+v", f)
	}
}

func TestCommonPrefix(t *testing.T) {
	split := func(s string) (bufs [][]byte) {
		for p := range strings.SplitSeq(s, "|") {
			bufs = append(bufs, []byte(p))
		}
		return bufs
	}
	for _, c := range []struct {
		data string
		at   uint64
		want string
		same uint64
	}{
		{"abcdef", 0, "abc", 3},
		{"abc|def", 2, "cd|ef", 4},
		{"abc|def", 3, "def", 3},
		{"abc|def", 4, "e|x", 1},
		{"abc|def", 0, "abc|dxf", 4},
		{"abc|def", 5, "fg", 1}, // data ends
		{"abc", 3, "d", 0},
		{"ab|cd|ef", 1, "b|c|d|e|f", 5},
	} {
		if got := commonPrefix(split(c.data), c.at, split(c.want)); got != c.same {
			t.Errorf("%s from %d, %s: %d, want %d", c.data, c.at, c.want, got, c.same)
		}
	}
}

// Transports know namespaces by small numbers, and are told when one goes while
// its requests have not been executed.
func TestNamespaceNumbers(t *testing.T) {
	r, admin, ios := standard(t, 1)
	l, s := ios[0], r.t.Subsystem(nqnA)
	r.devices["two"] = newFakeDevice(512, 1024)
	r.addNamespace(s, 2, r.devices["two"])
	l.hold = true
	read := func(nsid uint32) *fakeRequest { return r.do(l, blockCmd(nvme.CmdRead, nsid, 0, 1, 0), nil, 512) }
	one, two := read(1), read(2)
	if a, b := one.Namespace(), two.Namespace(); a == 0 || b == 0 || a == b || max(a, b) > 2 {
		t.Errorf("namespaces %d and %d", a, b)
	}
	keepAlive := make(nvme.Command, nvme.SQESize)
	keepAlive.Init(nvme.AdminKeepAlive, 0)
	if n := r.ok(admin, keepAlive, nil, 0).Namespace(); n != 0 {
		t.Errorf("namespace %d of a command on none", n)
	}
	done := make(chan error, 1)
	go func() { done <- s.RemoveNamespace(t.Context(), 1) }()
	for len(r.group(0).removed) == 0 {
		time.Sleep(time.Millisecond)
		r.step()
	}
	if got := r.group(0).removed; len(got) != 1 || got[0] != one.Namespace() || one.completed != 0 {
		t.Errorf("removed %v, want %d", got, one.Namespace())
	}
	r.must(<-done)
	l.release()
	r.step()
	if one.Status.Code() != nvme.InvalidField || !two.Status.OK() {
		t.Errorf("%v and %v", one.Status, two.Status)
	}
}
