package target

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

const lendPage = 4096

// lendingDevice has a part of its medium in memory and lends that.
type lendingDevice struct {
	*fakeDevice
	from, to uint64 // bytes that are in memory
}

func (d *lendingDevice) Lendable() []byte { return d.data }

func (d *lendingDevice) NewQueue(depth int, notify func()) (backend.Queue, error) {
	q, err := d.fakeDevice.NewQueue(depth, notify)
	return &lendingQueue{fakeQueue: q.(*fakeQueue), d: d}, err
}

type lendingQueue struct {
	*fakeQueue
	d    *lendingDevice
	lent int

	reaps, arms int
}

func (q *lendingQueue) Reap(done []backend.Completion) int {
	q.reaps++
	return q.fakeQueue.Reap(done)
}

func (q *lendingQueue) Arm() {
	q.arms++
	q.fakeQueue.Arm()
}

func (q *lendingQueue) Lend(offset, length uint64, bufs [][]byte) ([][]byte, bool) {
	if offset < q.d.from || offset+length > q.d.to {
		return bufs, false
	}
	was := len(bufs)
	for end := offset + length; offset < end; {
		n := min(end, (offset/lendPage+1)*lendPage) - offset
		if len(bufs) == cap(bufs) {
			return bufs[:was], false
		}
		bufs = append(bufs, q.d.data[offset:][:n])
		offset += n
	}
	q.lent++
	return bufs, true
}

func (q *lendingQueue) Return(lent [][]byte) {
	if len(lent) == 0 || q.lent == 0 {
		panic("nothing was lent")
	}
	q.lent--
}

func (q *lendingQueue) Close() error {
	if q.lent > 0 {
		return errors.New("closed with memory on loan")
	}
	return q.fakeQueue.Close()
}

// lendingRig is a rig with a session of one I/O queue whose transport takes
// loans, on a device that has the blocks of [0, 512) of 1024 in memory.
func lendingRig(tb testing.TB) (*rig, *Subsystem, *lendingDevice, *fakeLink) {
	tb.Helper()
	r := newRig(tb, Config{})
	port := r.addPort(1, "front", "192.0.2.1:4420")
	s := r.addSubsystem(SubsystemConfig{NQN: nqnA, Hosts: AnyHost()})
	d := &lendingDevice{fakeDevice: newFakeDevice(512, 1024), to: 512 * 512}
	for i := range d.data {
		d.data[i] = byte(i * 7 / 512)
	}
	r.devices["lending"] = d.fakeDevice
	_, err := s.AddNamespace(NamespaceConfig{NSID: 1, Device: d, Name: "disk"})
	r.must(err)
	_, ios := r.session(port, 1)
	ios[0].room = 4
	return r, s, d, ios[0]
}

// lending is the queue of the only attachment.
func lending(l *fakeLink) *lendingQueue { return l.f.g.open[0].queue.(*lendingQueue) }

// Reads are lent when the backend has them and they fit the room, and are
// executed with buffers otherwise; either way the host gets the same.
func TestLentRead(t *testing.T) {
	r, _, d, l := lendingRig(t)
	for _, c := range []struct {
		name  string
		slba  uint64
		nlb   uint32
		flags uint32
		room  int
		lent  bool
	}{
		{"one page", 8, 8, 0, 4, true},
		{"a block", 9, 1, 0, 4, true},
		{"across pages", 13, 24, 0, 4, true},
		{"too many pieces", 13, 28, 0, 4, false},
		{"one piece is too many", 7, 2, 0, 1, false},
		{"no room at all", 8, 8, 0, 0, false},
		{"not in memory", 600, 8, 0, 4, false},
		{"the half of it", 508, 8, 0, 4, false},
		{"force unit access: a flush is before it", 8, 8, nvme.IOFUA, 4, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l.room = c.room
			d.takeTrace()
			f := r.ok(l, blockCmd(nvme.CmdRead, 1, c.slba, c.nlb, c.flags), nil, int(c.nlb)*512)
			if f.transfer.Lent != c.lent || (len(d.takeTrace()) == 0) != c.lent {
				t.Errorf("lent: %v", f.transfer.Lent)
			}
			if want := d.data[c.slba*512:][:c.nlb*512]; !bytes.Equal(f.in, want) {
				t.Error("not what the device has")
			}
			if n := lending(l).lent + l.f.g.open[0].loans; n != 0 {
				t.Errorf("%d loans left", n)
			}
		})
	}
	ns := r.snapshot().Subsystems[0].Namespaces[0]
	if ns.Read.Count != 9 || ns.Lent.Count != 3 || ns.Counters.Ops[OpRead] != 9 || ns.Counters.Bytes[OpRead] != (8+1+24+28+2+8+8+8+8)*512 {
		t.Errorf("reads %d, lent %d, %+v", ns.Read.Count, ns.Lent.Count, ns.Counters)
	}
}

// A loan given back before Execute makes a read like any other of it.
func TestLoanRefusedByTransport(t *testing.T) {
	r, _, d, l := lendingRig(t)
	l.hold = true
	f := l.start(blockCmd(nvme.CmdRead, 1, 8, 8, 0), nil, 4096)
	if !f.transfer.Lent {
		t.Fatal("not lent")
	}
	l.q.Release(&f.Request)
	f.transfer.Lent = false
	l.release()
	r.step()
	if f.completed != 1 || !f.Status.OK() || !bytes.Equal(f.in, d.data[4096:][:4096]) || len(d.takeTrace()) != 1 {
		t.Errorf("completed %d, %v, %d bytes", f.completed, f.Status, len(f.in))
	}
}

// Commands that the core refuses borrow nothing.
func TestNoLoanForBadReads(t *testing.T) {
	r, _, _, l := lendingRig(t)
	r.ok(l, blockCmd(nvme.CmdRead, 1, 0, 8, 0), nil, 4096)
	for _, c := range []struct {
		sqe nvme.Command
		sgl int
	}{
		{blockCmd(nvme.CmdRead, 1, 1020, 8, 0), 4096}, {blockCmd(nvme.CmdRead, 1, 0, 8, 0), 4095}, {blockCmd(nvme.CmdRead, 2, 0, 8, 0), 4096},
	} {
		if f := r.do(l, c.sqe, nil, c.sgl); f.Status.OK() || lending(l).lent != 0 {
			t.Errorf("%v, %d on loan", f.Status, lending(l).lent)
		}
	}
}

// What changes between Prepare and Execute counts, and the loan comes back
// whatever becomes of the read.
func TestLentReadOvertaken(t *testing.T) {
	for _, c := range []struct {
		name   string
		happen func(*rig, *Subsystem, *lendingDevice, *fakeLink)
		want   nvme.Status
	}{
		{"nothing", func(*rig, *Subsystem, *lendingDevice, *fakeLink) {}, nvme.Success},
		{"namespace removed", func(r *rig, s *Subsystem, _ *lendingDevice, _ *fakeLink) {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := s.RemoveNamespace(ctx, 1); !errors.Is(err, context.Canceled) {
				r.tb.Error(err)
			}
		}, nvme.InvalidField},
		{"shrunk", func(r *rig, s *Subsystem, d *lendingDevice, _ *fakeLink) {
			d.mu.Lock()
			d.medium = 10
			d.mu.Unlock()
			_, err := s.Namespace(1).Refresh()
			r.must(err)
		}, nvme.LBAOutOfRange},
		{"queue closed", func(_ *rig, _ *Subsystem, _ *lendingDevice, l *fakeLink) { l.q.Close(ErrClosed) }, nvme.AbortedSQDeletion},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, s, d, l := lendingRig(t)
			l.hold = true
			f := l.start(blockCmd(nvme.CmdRead, 1, 8, 8, 0), nil, 4096)
			q := lending(l)
			c.happen(r, s, d, l)
			l.release()
			if f.completed != 1 || f.Status.Code() != c.want || c.want.OK() == (len(f.in) == 0) || q.lent != 0 {
				t.Errorf("completed %d, %v, %d bytes, %d on loan", f.completed, f.Status, len(f.in), q.lent)
			}
			for r.step(); s.Namespace(1) == nil && d.openQueues() > 0; {
				time.Sleep(time.Millisecond) // closed in the background
			}
		})
	}
}

// The backend queue of a namespace that was removed stays open while its memory
// is on its way to a host, and no longer.
func TestRemovedWhileLent(t *testing.T) {
	r, s, d, l := lendingRig(t)
	l.keep = true
	var fs []*fakeRequest
	for i := range 2 {
		fs = append(fs, r.ok(l, blockCmd(nvme.CmdRead, 1, uint64(8*i), 8, 0), nil, 4096))
	}
	removed := make(chan error, 1)
	go func() { removed <- s.RemoveNamespace(t.Context(), 1) }()
	for s.Namespace(1) != nil {
		time.Sleep(time.Millisecond)
	}
	l.q.Close(ErrClosed) // loans outlive their queue, too
	for _, f := range fs {
		r.step()
		if d.openQueues() != 1 {
			t.Fatal("the backend queue is closed while its memory is on loan")
		}
		if !bytes.Equal(bytes.Join(f.Loan, nil), f.in) {
			t.Error("the loan has changed")
		}
		l.q.Release(&f.Request)
	}
	for done := false; !done; {
		r.step()
		select {
		case err := <-removed:
			r.must(err)
			done = true
		case <-time.After(time.Millisecond):
		}
	}
	if d.openQueues() != 0 {
		t.Error("the backend queue is still open")
	}
}

// A queue that lends is reaped and armed as long as it may be at work on its
// own, and then left alone.
func TestWarm(t *testing.T) {
	r, _, d, l := lendingRig(t)
	g := l.f.g
	read := func() { r.ok(l, blockCmd(nvme.CmdRead, 1, 0, 8, 0), nil, 4096) }
	read()
	q := lending(l)
	for range 2 {
		q.reaps, q.arms = 0, 0
		for range 10 {
			g.Poll()
		}
		if q.reaps != 10 {
			t.Errorf("%d reaps in 10 turns", q.reaps)
		}
		for range 10 {
			g.Arm(nil)
		}
		g.Poll()
		if q.arms != armsAfterLoan || q.reaps != 10 || len(g.warm) != 0 {
			t.Errorf("%d arms, %d reaps, %d queues kept", q.arms, q.reaps, len(g.warm))
		}
		read()
	}
	d.hold(true) // with something in flight it is armed once, not twice
	q.arms = 0
	r.do(l, blockCmd(nvme.CmdWrite, 1, 0, 8, 0), make([]byte, 4096), 4096)
	g.Arm(nil)
	if q.arms != 1 {
		t.Errorf("armed %d times", q.arms)
	}
	d.hold(false)
}

// Latencies of loans are measured with one reading of the clock for several.
func TestLoanClock(t *testing.T) {
	r, _, _, l := lendingRig(t)
	r.ok(l, blockCmd(nvme.CmdRead, 1, 0, 8, 0), nil, 4096)
	g := l.f.g
	g.Tick()
	var stamps []int64
	for range 2*loansPerStamp + 1 {
		time.Sleep(time.Microsecond)
		g.stampLoan()
		stamps = append(stamps, g.now)
	}
	if n := len(slices.Compact(stamps)); n != 3 {
		t.Errorf("the clock was read %d times for %d loans", n, 2*loansPerStamp+1)
	}
}

func TestNoAllocationsOfLoans(t *testing.T) {
	_, _, _, l := lendingRig(t)
	h := newHotRequest(l, blockCmd(nvme.CmdRead, 1, 3, 16, 0), 8192)
	room := make([][]byte, 0, 4)
	trip := func() {
		h.f.Loan = room
		h.roundTrip(t)
	}
	trip()
	if n := testing.AllocsPerRun(100, trip); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if lending(l).lent != 0 || l.f.g.open[0].stats.lent.Count < 100 {
		t.Errorf("%d on loan, %d lent", lending(l).lent, l.f.g.open[0].stats.lent.Count)
	}
}
