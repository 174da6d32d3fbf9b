package target

import (
	"testing"

	"github.com/nvmf-go/nvmf/nvme"
)

// hotRequest is a slot that is used again and again, as a transport does.
type hotRequest struct {
	l *fakeLink
	f fakeRequest
}

func newHotRequest(l *fakeLink, sqe nvme.Command, sgl uint64) *hotRequest {
	h := &hotRequest{l: l}
	copy(h.f.sqe[:], sqe)
	h.f.Cmd, h.f.SGLLength = h.f.sqe[:], sgl
	l.onDone = func(*fakeRequest) {}
	return h
}

// prepare and execute are a command's way, Submit and Poll are left to the
// caller. Buffers are made once.
func (h *hotRequest) send(tb testing.TB) {
	h.f.completed = 0
	t, st := h.l.q.Prepare(&h.f.Request)
	if !st.OK() {
		tb.Fatal(st)
	}
	h.f.transfer = Transfer{Lent: t.Lent} // no direction: the fake need not join the buffers
	if t.Lent {
		h.l.q.Execute(&h.f.Request)
		return
	}
	if uint32(length(h.f.Bufs)) != t.Length {
		h.f.Bufs = chop(make([]byte, t.Length), 4096)
	}
	if uint32(length(h.f.Scratch)) != t.Scratch {
		h.f.Scratch = chop(make([]byte, t.Scratch), 4096)
	}
	h.l.q.Execute(&h.f.Request)
}

func (h *hotRequest) roundTrip(tb testing.TB) {
	g := h.l.f.g
	g.Tick()
	h.send(tb)
	for h.f.completed == 0 {
		g.Submit()
		g.Arm(nil)
		g.Poll()
	}
	if !h.f.Status.OK() {
		tb.Fatal(h.f.Status)
	}
}

// hotCommands are the commands that must not allocate.
func hotCommands() map[string]struct {
	sqe nvme.Command
	sgl uint64
} {
	dsm := make(nvme.Command, nvme.SQESize)
	dsm.DSM().Init(1, 2, nvme.DSMDeallocate)
	flush := make(nvme.Command, nvme.SQESize)
	flush.Init(nvme.CmdFlush, nvme.NSIDBroadcast)
	return map[string]struct {
		sqe nvme.Command
		sgl uint64
	}{
		"read":         {blockCmd(nvme.CmdRead, 1, 8, 8, 0), 4096},
		"read fua":     {blockCmd(nvme.CmdRead, 1, 8, 8, nvme.IOFUA), 4096},
		"write":        {blockCmd(nvme.CmdWrite, 1, 8, 8, 0), 4096},
		"compare":      {blockCmd(nvme.CmdCompare, 1, 8, 8, 0), 4096},
		"verify":       {blockCmd(nvme.CmdVerify, 1, 0, 1000, 0), 0},
		"write zeroes": {blockCmd(nvme.CmdWriteZeroes, 1, 8, 8, nvme.IODeallocate), 0},
		"dsm":          {dsm, 32},
		"flush all":    {flush, 0},
	}
}

func TestNoAllocations(t *testing.T) {
	for name, c := range hotCommands() {
		t.Run(name, func(t *testing.T) {
			_, _, ios := standard(t, 1)
			h := newHotRequest(ios[0], c.sqe, c.sgl)
			h.roundTrip(t) // opens the attachment
			for _, a := range ios[0].f.g.open {
				a.queue.(*fakeQueue).quiet = true
			}
			if n := testing.AllocsPerRun(100, func() { h.roundTrip(t) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// A command that fails is counted and logged without allocating either.
func TestNoAllocationsOnErrors(t *testing.T) {
	_, _, ios := standard(t, 1)
	h := newHotRequest(ios[0], blockCmd(nvme.CmdRead, 1, 1<<40, 8, 0), 4096)
	n := testing.AllocsPerRun(100, func() {
		if _, st := h.l.q.Prepare(&h.f.Request); st.Code() != nvme.LBAOutOfRange {
			t.Fatal(st)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRead(b *testing.B) {
	_, _, ios := standard(b, 1)
	const depth = 32
	var hot [depth]*hotRequest
	for i := range hot {
		hot[i] = newHotRequest(ios[0], blockCmd(nvme.CmdRead, 1, uint64(8*i), 8, 0), 4096)
		hot[i].roundTrip(b)
	}
	g := ios[0].f.g
	ios[0].f.g.open[0].queue.(*fakeQueue).quiet = true
	b.ReportAllocs()
	for n := 0; b.Loop(); n += depth {
		g.Tick()
		for _, h := range hot {
			h.send(b)
		}
		for g.Submit(); g.Poll() > 0; g.Submit() {
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/depth, "ns/read")
}

// length is the number of bytes in bufs.
func length(bufs [][]byte) (n uint64) {
	for _, b := range bufs {
		n += uint64(len(b))
	}
	return n
}
