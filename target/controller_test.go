package target

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// A host that connects a thousand times, with events outstanding, leaves
// nothing behind.
func TestReconnectsLeaveNothing(t *testing.T) {
	r := newRig(t, Config{})
	port := r.addPort(1, "front", "192.0.2.1:4420")
	r.addSubsystem(SubsystemConfig{NQN: nqnA, Hosts: AnyHost()})
	cycle := func() {
		l := r.link("admin", port, 0, 0, 32)
		r.connect(l, connectSpec{kato: 5000})
		r.enable(l)
		for range maxEvents {
			sqe := make(nvme.Command, nvme.SQESize)
			sqe.Init(nvme.AdminAsyncEvent, 0)
			if f := r.do(l, sqe, nil, 0); f.completed != 0 {
				t.Fatalf("the event request ended: %v", f.Status)
			}
		}
		l.Disconnect(errors.New("gone"))
		r.step()
		if n := len(l.take()); n != 2+maxEvents+1 {
			t.Fatalf("%d completions and a disconnection", n)
		}
		delete(r.links, "admin")
		r.order = nil
	}
	cycle()
	before := liveHeap()
	for range 1000 {
		cycle()
	}
	if grown := int64(liveHeap()) - int64(before); grown > 200_000 {
		t.Errorf("%d bytes more after 1000 connections", grown)
	}
	if len(r.t.ctrls) != 0 || len(r.t.waiting) != 0 || len(r.groups[0].g.queues) != 0 || len(r.t.subs[nqnA].ctrls) != 0 {
		t.Errorf("%d controllers, %d waiting, %d queues", len(r.t.ctrls), len(r.t.waiting), len(r.groups[0].g.queues))
	}
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Closing twice, and closing what never connected, does nothing bad.
func TestCloseTwice(t *testing.T) {
	r, admin, ios := standard(t, 1)
	fresh := r.link("fresh", r.ports["front"], 0, -1, 32)
	for _, l := range []*fakeLink{fresh, ios[0], admin} {
		l.q.Close(errors.New("once"))
		l.q.Close(errors.New("twice"))
		sqe := blockCmd(nvme.CmdRead, 1, 0, 1, 0)
		if f := r.do(l, sqe, nil, 512); f.completed != 1 || f.Status.Code() != nvme.AbortedSQDeletion {
			t.Errorf("%s: completed %d, %v", l.name, f.completed, f.Status)
		}
	}
}

// What was prepared before Close comes back from Execute, what waits for the
// backend from Close, what is in it from Poll.
func TestCloseWithCommandsEverywhere(t *testing.T) {
	r, _, ios := standard(t, 1)
	l := ios[0]
	r.ok(l, blockCmd(nvme.CmdRead, 1, 0, 1, 0), nil, 512)
	r.devices["one"].hold(true)
	var sent []*fakeRequest
	for i := range 6 { // the depth is 4
		sent = append(sent, r.do(l, blockCmd(nvme.CmdWrite, 1, uint64(i), 1, 0), nil, 512))
	}
	dsm := make(nvme.Command, nvme.SQESize)
	dsm.DSM().Init(1, 2, nvme.DSMDeallocate)
	l.hold = true
	sent = append(sent, r.do(l, dsm, make([]byte, 32), 32))
	l.q.Close(errors.New("gone"))
	ended := func() (n int) {
		for _, f := range sent {
			n += f.completed
		}
		return n
	}
	if n := ended(); n != 2 {
		t.Errorf("%d commands ended in Close, want 2", n)
	}
	l.release()
	if n := ended(); n != 3 {
		t.Errorf("%d commands ended after Execute, want 3", n)
	}
	r.devices["one"].hold(false)
	r.step()
	if n := ended(); n != len(sent) {
		t.Errorf("%d of %d commands ended", n, len(sent))
	}
	if len(l.f.g.queues) != 1 {
		t.Errorf("%d queues are left, want the admin queue", len(l.f.g.queues))
	}
}

// A command of several operations stops at the next when its queue is closed.
func TestCloseStopsChains(t *testing.T) {
	dsm := make(nvme.Command, nvme.SQESize)
	dsm.DSM().Init(1, 3, nvme.DSMDeallocate)
	ranges := make(nvme.DSMRanges, 3*nvme.DSMRangeSize)
	for i := range 3 {
		ranges.Set(i, nvme.DSMRange{SLBA: uint64(i), Blocks: 1})
	}
	flush := make(nvme.Command, nvme.SQESize)
	flush.Init(nvme.CmdFlush, nvme.NSIDBroadcast)
	for name, c := range map[string]struct {
		sqe  nvme.Command
		data []byte
		n    int
	}{
		"dsm":      {dsm, ranges, len(ranges)},
		"flush":    {flush, nil, 0},
		"verify":   {blockCmd(nvme.CmdVerify, 1, 0, 1024, 0), nil, 0},
		"compare":  {blockCmd(nvme.CmdCompare, 1, 0, 1024, 0), make([]byte, 512*1024), 512 * 1024},
		"read fua": {blockCmd(nvme.CmdRead, 1, 0, 1, nvme.IOFUA), nil, 512},
	} {
		r, _, ios := standard(t, 1)
		d := newFakeDevice(512, 64)
		r.devices["two"] = d
		r.addNamespace(r.t.Subsystem(nqnA), 2, d)
		r.devices["one"].hold(true)
		f := r.do(ios[0], c.sqe, c.data, c.n)
		ios[0].q.Close(errors.New("gone"))
		r.devices["one"].hold(false)
		r.step()
		if n := len(r.devices["one"].takeTrace()) + len(d.takeTrace()); n != 1 || f.Status.Code() != nvme.AbortedSQDeletion {
			t.Errorf("%s: %d operations, %v", name, n, f.Status)
		}
	}
}

// Four Aborts may be on their way to another group; the fifth is too many.
func TestAbortLimit(t *testing.T) {
	r, admin, _ := standard(t, 2)
	abort := func() *fakeRequest {
		sqe := make(nvme.Command, nvme.SQESize)
		sqe.Abort().Init(2, 99)
		r.cids++
		sqe.SetCID(r.cids)
		return admin.start(sqe, nil, 0) // without letting the other group answer
	}
	var sent []*fakeRequest
	for range maxAborts {
		sent = append(sent, abort())
	}
	if f := abort(); f.Status.Code() != nvme.AbortLimitExceeded {
		t.Errorf("the fifth: %v", f.Status)
	}
	r.step()
	for _, f := range sent {
		if f.completed != 1 || !f.Status.OK() || f.Result != nvme.AbortNotAborted {
			t.Errorf("completed %d, %v, result %d", f.completed, f.Status, f.Result)
		}
	}
	if f := abort(); f.completed != 0 {
		t.Error("the limit is not given back")
	}
	r.step()
}

// An Abort whose victim's owner has ended is answered.
func TestAbortAfterGroupEnd(t *testing.T) {
	r, admin, ios := standard(t, 2)
	ios[1].f.end()
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Abort().Init(2, 1)
	if f := r.ok(admin, sqe, nil, 0); f.Result != nvme.AbortNotAborted {
		t.Errorf("result %d", f.Result)
	}
}

// What the transport refuses is in the error log, and does not inherit from
// what its slot was used for before.
func TestReject(t *testing.T) {
	r, admin, ios := standard(t, 1)
	f := r.ok(ios[0], blockCmd(nvme.CmdRead, 1, 3, 1, 0), nil, 512)
	if _, st := ios[0].q.Prepare(&f.Request); !st.OK() { // and never executed
		t.Fatal(st)
	}
	f.Cmd.SetCID(77)
	if st := ios[0].q.Refuse(&f.Request, nvme.SGLTypeInvalid|nvme.StatusDNR, 39); st != nvme.SGLTypeInvalid|nvme.StatusDNR|nvme.StatusMore {
		t.Errorf("%v", st)
	}
	fresh := r.link("fresh", r.ports["front"], 0, -1, 32)
	if st := fresh.q.Refuse(&fakeSlot(77).Request, nvme.SGLTypeInvalid, -1); st != nvme.SGLTypeInvalid {
		t.Errorf("before Connect there is no log: %v", st)
	}
	e := r.latestError(admin)
	if e.SQID != 1 || e.CID != 77 || e.Location != 39 || e.LBA != 0 || e.Status.Code() != nvme.SGLTypeInvalid || e.Count != 1 {
		t.Errorf("%+v", e)
	}
	s := r.snapshot()
	if c := s.Controllers[0].Queues[1].Counters; c.Errors != 1 || c.Ops[OpRead] != 1 {
		t.Errorf("%+v", c)
	}
}

func fakeSlot(cid uint16) *fakeRequest {
	f := new(fakeRequest)
	f.Cmd = f.sqe[:]
	f.Cmd.SetCID(cid)
	return f
}

// A namespace's successor waits for the hosts that are told of changes: those
// without the event, or not enabled, are not waited for, nor those that go.
func TestAwaitListing(t *testing.T) {
	r, admin, _ := standard(t, 0)
	gone, _ := r.sessionOf(r.ports["front"], "gone", hostTwo, 0)
	r.connect(r.link("disabled", r.ports["front"], 0, 0, 32), connectSpec{})
	s := r.t.Subsystem(nqnA)
	list := func(l *fakeLink) {
		sqe := make(nvme.Command, nvme.SQESize)
		sqe.Identify().Init(nvme.CNSActiveList, 0, nvme.CSINVM, 0)
		r.ok(l, sqe, nil, nvme.IdentifySize)
	}
	waits := func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		err := s.AwaitListing(ctx)
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		return err != nil
	}
	r.must(s.AwaitListing(context.Background())) // nobody is told of anything
	for _, l := range []*fakeLink{admin, gone} {
		sqe := make(nvme.Command, nvme.SQESize)
		sqe.Features().InitSet(nvme.FeatAsyncEvent, 0, uint32(nvme.EventNSAttribute), false)
		r.ok(l, sqe, nil, 0)
		list(l)
	}
	if waits() {
		t.Error("everybody has listed")
	}
	two := newFakeDevice(512, 8)
	r.devices["two"] = two
	r.addNamespace(s, 2, two)
	if !waits() {
		t.Error("nobody has listed since")
	}
	list(admin)
	if !waits() {
		t.Error("one host has not listed")
	}
	done := make(chan error, 1)
	go func() { done <- s.AwaitListing(context.Background()) }()
	gone.Disconnect(ErrClosed)
	r.step()
	r.must(<-done)
}

// The transport ends a controller whose host broke the protocol.
func TestFail(t *testing.T) {
	r, admin, ios := standard(t, 1)
	reason := errors.New("a capsule of 10 bytes")
	ios[0].q.Fail(reason)
	if !errors.Is(admin.reason, reason) || !errors.Is(ios[0].reason, reason) {
		t.Errorf("admin %v, io %v", admin.reason, ios[0].reason)
	}
	if f := r.do(ios[0], blockCmd(nvme.CmdRead, 1, 0, 1, 0), nil, 512); f.Status.Code() != nvme.AbortedSQDeletion {
		t.Errorf("%v", f.Status)
	}
	if r.t.HasController(admin.q.ctrl.id) {
		t.Error("the controller is still there")
	}
}
