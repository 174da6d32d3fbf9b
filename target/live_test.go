package target

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// live is a rig whose groups run on goroutines of their own.
type live struct {
	*rig
	wg       sync.WaitGroup
	issued   atomic.Int64
	finished atomic.Int64
	stop     atomic.Bool
}

func newLive(tb testing.TB, groups int) *live {
	r := newRig(tb, Config{})
	v := &live{rig: r}
	for i := range groups {
		f := r.group(i)
		v.wg.Go(f.loop)
	}
	return v
}

// quit ends the goroutines; what is left is the rig's to close.
func (v *live) quit() {
	for _, f := range v.groups {
		f.end()
	}
	v.wg.Wait()
}

// liveLink makes a queue on its owner's goroutine. l.pending is closed when its
// last command has come home after Disconnect.
func (v *live) liveLink(port *Port, group, qid int) *fakeLink {
	f := v.groups[group]
	l := newFakeLink(f, "live")
	var err error
	f.call(func() {
		l.q, err = f.g.NewQueue(QueueConfig{Link: l, Port: port, QID: qid, Depth: 128})
	})
	if err != nil {
		v.tb.Error(err)
		return nil
	}
	return l
}

// request sends a command and waits for its end.
func (v *live) request(l *fakeLink, sqe nvme.Command, out []byte, sgl int) nvme.Status {
	done := make(chan nvme.Status, 1)
	v.issued.Add(1)
	l.f.call(func() {
		old := l.onDone
		l.onDone = func(f *fakeRequest) {
			if &f.sqe[0] != &sqe[0] && f.Cmd.CID() != sqe.CID() {
				old(f)
				return
			}
			l.onDone = old
			v.finished.Add(1)
			done <- f.Status
		}
		l.start(sqe, out, uint64(sgl))
	})
	return <-done
}

func (v *live) connect(l *fakeLink, c connectSpec) nvme.Status {
	sqe, data := c.build()
	sqe.SetCID(0xFFFF)
	return v.request(l, sqe, data, len(data))
}

// load keeps a link busy with random commands until stop or disconnection.
func (v *live) load(l *fakeLink, depth int, seed uint64) {
	var one func(cid uint16)
	rng := rand.New(rand.NewPCG(seed, 1))
	l.f.call(func() {
		l.onDone = func(f *fakeRequest) {
			v.finished.Add(1)
			switch f.Status.Code() {
			case nvme.Success, nvme.InvalidField, nvme.LBAOutOfRange, nvme.AbortedSQDeletion, nvme.CommandSequenceError,
				nvme.CompareFailure, nvme.AbortRequested:
			default:
				v.tb.Errorf("%v", f.Status)
			}
			cid := f.Cmd.CID()
			l.f.run(func() { one(cid) })
		}
		one = func(cid uint16) {
			l.mu.Lock()
			gone := l.reason != nil
			l.mu.Unlock()
			if gone || v.stop.Load() {
				return
			}
			sqe, out, sgl := randomCommand(rng)
			sqe.SetCID(cid)
			v.issued.Add(1)
			l.start(sqe, out, sgl)
		}
		for i := range depth {
			one(uint16(i))
		}
	})
}

func randomCommand(rng *rand.Rand) (sqe nvme.Command, out []byte, sgl uint64) {
	nsid, nlb := uint32(rng.IntN(5)+1), uint32(rng.IntN(16)+1)
	ops := []nvme.Opcode{nvme.CmdRead, nvme.CmdWrite, nvme.CmdRead, nvme.CmdWrite, nvme.CmdCompare, nvme.CmdVerify, nvme.CmdWriteZeroes}
	switch rng.IntN(12) {
	case 0:
		sqe = make(nvme.Command, nvme.SQESize)
		sqe.Init(nvme.CmdFlush, nvme.NSIDBroadcast)
		return sqe, nil, 0
	case 1:
		sqe = make(nvme.Command, nvme.SQESize)
		sqe.DSM().Init(nsid, 3, nvme.DSMDeallocate)
		out = make([]byte, 3*nvme.DSMRangeSize)
		for i := range 3 {
			nvme.DSMRanges(out).Set(i, nvme.DSMRange{SLBA: uint64(rng.IntN(1000)), Blocks: uint32(rng.IntN(8))})
		}
		return sqe, out, uint64(len(out))
	}
	sqe = blockCmd(ops[rng.IntN(len(ops))], nsid, uint64(rng.IntN(1100)), nlb, uint32(rng.IntN(2))*nvme.IOFUA)
	out = make([]byte, nlb*512)
	return sqe, out, uint64(len(out))
}

// host is a host that connects, works, and connects again when it is thrown
// out, until stop.
func (v *live) host(port *Port, seed uint64) {
	for n := uint64(0); !v.stop.Load(); n++ {
		admin := v.liveLink(port, int(seed)%len(v.groups), 0)
		if admin == nil {
			return
		}
		v.session(admin, port, seed+n)
		admin.Disconnect(errors.New("the test has had enough"))
		<-admin.gone
	}
}

func (v *live) session(admin *fakeLink, port *Port, seed uint64) {
	admin.f.call(func() { admin.onDone = func(*fakeRequest) { v.finished.Add(1) } })
	host := nvme.UUIDNQN(nvme.UUID{0: byte(seed % 4), 15: 1})
	if !v.connect(admin, connectSpec{host: host, kato: 1000}).OK() {
		return
	}
	id := admin.q.ctrl.id
	cc := make(nvme.Command, nvme.SQESize)
	cc.Property().InitSet(nvme.PropCC, enableCC)
	cc.SetCID(0xFFFF)
	v.request(admin, cc, nil, 0)
	for i := 1; i <= 3; i++ {
		if l := v.liveLink(port, i%len(v.groups), i); l != nil {
			if v.connect(l, connectSpec{host: host, qid: uint16(i), cntlid: id, size: 100}).OK() {
				v.load(l, 8, seed*10+uint64(i))
			} else {
				l.Disconnect(errors.New("not connected"))
			}
		}
	}
	for cid := range uint16(40) {
		select {
		case <-admin.gone:
			return
		default:
		}
		v.administer(admin, cid+100)
	}
}

// administer sends an admin command, of each kind in turn.
func (v *live) administer(admin *fakeLink, cid uint16) {
	sqe, sgl := make(nvme.Command, nvme.SQESize), 0
	switch cid % 5 {
	case 0:
		sqe.GetLogPage().Init(nvme.NSIDBroadcast, nvme.LogRequest{LID: nvme.LogSMART, Length: 512})
		sgl = 512
	case 1:
		sqe.Abort().Init(cid%4, cid%8)
	case 2:
		sqe.Identify().Init(nvme.CNSActiveList, 0, 0, 0)
		sgl = nvme.IdentifySize
	case 3:
		sqe.GetLogPage().Init(nvme.NSIDBroadcast, nvme.LogRequest{LID: nvme.LogChangedNS, Length: 4096})
		sgl = 4096
	case 4:
		sqe.Init(nvme.AdminKeepAlive, 0)
	}
	sqe.SetCID(cid)
	v.request(admin, sqe, nil, sgl)
}

// reconfigure makes a change to the subsystem.
func (v *live) reconfigure(s *Subsystem, step int) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	nsid := uint32(step%5 + 1)
	switch n := s.Namespace(nsid); {
	case step%7 == 3:
		v.must(s.SetHosts(OnlyHosts(nvme.UUIDNQN(nvme.UUID{0: byte(step % 4), 15: 1}))))
		v.must(s.SetHosts(AnyHost()))
	case step%7 == 5:
		if _, err := v.t.Snapshot(ctx); err != nil {
			v.tb.Error(err)
		}
	case n == nil:
		d := newFakeDevice(512, 1024)
		v.devices[string(rune('a'+step))] = d
		v.addNamespace(s, nsid, d)
	case step%2 == 0:
		d := n.dev.(*fakeDevice)
		d.mu.Lock()
		d.medium = uint64(512 + step)
		d.mu.Unlock()
		if _, err := n.Refresh(); err != nil {
			v.tb.Error(err)
		}
	default:
		v.must(s.RemoveNamespace(ctx, nsid))
		if open := n.dev.(*fakeDevice).openQueues(); open != 0 {
			v.tb.Errorf("%v: %d queues are open after its removal", n, open)
		}
	}
}

// Everything is changed while hosts connect, work and leave: nothing is lost,
// nothing is left, and the race detector has nothing to say.
func TestReconfigureUnderLoad(t *testing.T) {
	v := newLive(t, 2)
	port := v.addPort(1, "front", "192.0.2.1:4420")
	s := v.addSubsystem(SubsystemConfig{NQN: nqnA, Hosts: AnyHost()})
	var hosts sync.WaitGroup
	for seed := range uint64(3) {
		hosts.Go(func() { v.host(port, seed*1000) })
	}
	for step := range 60 {
		v.reconfigure(s, step)
		time.Sleep(2 * time.Millisecond) // lets the hosts in between
	}
	v.stop.Store(true)
	hosts.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	v.must(v.t.RemoveSubsystem(ctx, nqnA))
	v.must(v.t.Close(ctx))
	v.quit()
	v.step()
	t.Logf("%d commands", v.issued.Load())
	if i, f := v.issued.Load(), v.finished.Load(); i != f || i < 1000 {
		t.Errorf("%d commands were sent, %d came home", i, f)
	}
	for name, d := range v.devices {
		if n := d.openQueues(); n != 0 {
			t.Errorf("device %s: %d queues are open", name, n)
		}
	}
}
