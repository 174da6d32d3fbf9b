package fabrictest

import (
	"errors"
	"net"

	"github.com/nvmf-go/nvmf/fabric"
)

// testQueueFull fills the queues: what was posted before the error completes,
// and there is room again.
func testQueueFull(s *suite) {
	ch := s.connect()
	recvs := make([]fabric.RecvWR, 4096)
	for i := range recvs {
		recvs[i] = fabric.RecvWR{ID: recvID + uint64(i), NumSGE: 1}
	}
	n, err := ch.b.qp.PostRecv(recvs, []fabric.SGE{ch.b.sge(0, 64)})
	if n < 32 || n == len(recvs) || !errors.Is(err, fabric.ErrQueueFull) {
		s.Fatalf("%d receives fitted a queue of 32: %v", n, err)
	}
	if again, err := ch.b.qp.PostRecv(recvs[n:n+1], []fabric.SGE{ch.b.sge(0, 64)}); again != 0 || !errors.Is(err, fabric.ErrQueueFull) {
		s.Fatalf("one more receive: %d, %v", again, err)
	}
	// READs, which cannot complete before they are answered.
	wrs := make([]fabric.SendWR, 4096)
	for i := range wrs {
		wrs[i] = fabric.SendWR{ID: sendID + uint64(i), Op: fabric.OpRead, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: ch.b.mem.Addr(), RKey: ch.b.mr.RKey()}
	}
	for round := range 3 {
		n, err := ch.a.qp.PostSend(wrs, []fabric.SGE{ch.a.sge(0, 64)})
		if n < 32 || n == len(wrs) || !errors.Is(err, fabric.ErrQueueFull) {
			s.Fatalf("round %d: %d sends fitted a queue of 32: %v", round, n, err)
		}
		var op *fabric.OpError
		if !errors.As(err, &op) || op.QPN != ch.a.qp.Num() || op.Device != s.a.dev.Name() {
			s.Errorf("the error does not name the queue pair: %#v", err)
		}
		for i, c := range ch.a.take(n) {
			if c.ID != sendID+uint64(i) || c.Status != fabric.StatusSuccess {
				s.Fatalf("round %d: completion %d: %+v", round, i, c)
			}
		}
	}
}

// testPostInvalid: a faulty WR is refused at once, those before it in the same
// batch are posted, and nothing behind it.
func testPostInvalid(s *suite) {
	ch := s.connect()
	limit := min(4, s.a.dev.Limits().MaxSGE)
	sges := make([]fabric.SGE, 64)
	for i := range sges {
		sges[i] = ch.a.sge(i*8, 8)
	}
	good := fabric.SendWR{ID: sendID, Op: fabric.OpWrite, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: ch.b.mem.Addr(), RKey: ch.b.mr.RKey()}
	for name, change := range map[string]func(*fabric.SendWR){
		"SGEs beyond the slice":        func(w *fabric.SendWR) { w.FirstSGE = 64 },
		"last SGE beyond the slice":    func(w *fabric.SendWR) { w.FirstSGE, w.NumSGE = 63, 2 },
		"first SGE far away":           func(w *fabric.SendWR) { w.FirstSGE = 1<<32 - 1 },
		"more SGEs than asked for":     func(w *fabric.SendWR) { w.NumSGE = uint8(limit) + 60 },
		"operation of a receive queue": func(w *fabric.SendWR) { w.Op = fabric.OpRecv },
		"no operation":                 func(w *fabric.SendWR) { w.Op = 200 },
	} {
		bad := good
		change(&bad)
		n, err := ch.a.qp.PostSend([]fabric.SendWR{good, bad, good}, sges)
		var op *fabric.OpError
		if n != 1 || !errors.As(err, &op) {
			s.Errorf("%s: %d of 3 posted, %v", name, n, err)
			continue
		}
		checkIDs(s, name, ch.a.take(1), fabric.StatusSuccess, sendID)
	}
	for name, bad := range map[string]fabric.RecvWR{
		"SGEs beyond the slice":    {FirstSGE: 64, NumSGE: 1},
		"more SGEs than asked for": {NumSGE: 64},
	} {
		n, err := ch.b.qp.PostRecv([]fabric.RecvWR{{ID: recvID, NumSGE: 1}, bad}, sges)
		if n != 1 || err == nil {
			s.Errorf("receive with %s: %d of 2 posted, %v", name, n, err)
		}
	}
	s.pause()
	ch.a.none("of refused posts")
}

// testPostInErrorState: what is posted after the end either is refused or
// completes flushed; it never runs.
func testPostInErrorState(s *suite) {
	ch := s.connect()
	fill(ch.b.bytes(0, 64), 1)
	s.must(ch.a.conn.Disconnect())
	s.until("the end of the connection", func() bool { return ch.a.isDone() && ch.b.isDone() })
	if st := ch.a.qp.State(); st != fabric.QPError {
		s.Errorf("state %v after a disconnect", st)
	}
	want := append([]byte(nil), ch.b.bytes(0, 64)...)
	var accepted []uint64
	count := func(what string, id uint64, n int, err error) {
		switch {
		case n == 1 && err == nil:
			accepted = append(accepted, id)
		case n != 0 || !errors.Is(err, fabric.ErrQPError) && !errors.Is(err, net.ErrClosed):
			s.Errorf("%s in the error state: %d, %v", what, n, err)
		}
	}
	for i := range 3 {
		id := sendID + uint64(i)
		wr := fabric.SendWR{ID: id, Op: fabric.OpWrite, NumSGE: 1, RemoteAddr: ch.b.mem.Addr(), RKey: ch.b.mr.RKey()}
		n, err := ch.a.qp.PostSend([]fabric.SendWR{wr}, []fabric.SGE{ch.a.sge(1<<20, 64)})
		count("PostSend", id, n, err)
	}
	sends := len(accepted)
	for i := range 3 {
		id := recvID + uint64(i)
		n, err := ch.a.qp.PostRecv([]fabric.RecvWR{{ID: id, NumSGE: 1}}, []fabric.SGE{ch.a.sge(0, 64)})
		count("PostRecv", id, n, err)
	}
	gotS, gotR := split(ch.a.take(len(accepted)))
	checkIDs(s, "sends in the error state", gotS, fabric.StatusFlushed, accepted[:sends]...)
	checkIDs(s, "receives in the error state", gotR, fabric.StatusFlushed, accepted[sends:]...)
	s.pause()
	ch.a.none("beyond the flushed ones")
	same(s, "memory of the peer", ch.b.bytes(0, 64), want)
}
