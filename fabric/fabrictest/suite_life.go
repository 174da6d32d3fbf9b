package fabrictest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// testDisconnect ends connections in order, from either side, from both at
// once and repeatedly: all posted WRs are flushed in order at both ends.
func testDisconnect(s *suite) {
	for name, disconnect := range map[string]func(ch *channel) error{
		"by the dialler":  func(ch *channel) error { return ch.a.conn.Disconnect() },
		"by the acceptor": func(ch *channel) error { return ch.b.conn.Disconnect() },
		"by both": func(ch *channel) error {
			var wg sync.WaitGroup
			errs := make([]error, 2)
			for i, sd := range ch.sides() {
				wg.Go(func() { errs[i] = sd.conn.Disconnect() })
			}
			wg.Wait()
			return errors.Join(errs...)
		},
		"again and again": func(ch *channel) error {
			return errors.Join(ch.a.conn.Disconnect(), ch.a.conn.Disconnect(), ch.b.conn.Disconnect(), ch.a.conn.Disconnect())
		},
	} {
		s.sub(name, func(s *suite) {
			ch := s.connect()
			ch.alive("before")
			ch.a.recv(0, 5, 0, 64)
			ch.b.recv(0, 7, 0, 64)
			s.must(disconnect(ch))
			for sd, n := range map[*side]int{ch.a: 5, ch.b: 7} {
				for i, c := range sd.take(n) {
					if c.ID != recvID+uint64(i) || c.Status != fabric.StatusFlushed || c.QPN != sd.qp.Num() {
						s.Errorf("%s: flush %d: %+v", sd.name, i, c)
					}
				}
			}
			s.until("the end at both sides", func() bool { return ch.a.isDone() && ch.b.isDone() })
			s.must(ch.a.conn.Disconnect())
			for _, sd := range ch.sides() {
				sd.checkEnded(name)
				sd.none("beyond the flush")
				if !errors.Is(sd.conn.Err(), net.ErrClosed) {
					s.Errorf("%s ended with %v", sd.name, sd.conn.Err())
				}
				s.must(sd.conn.Close())
				s.must(sd.conn.Close())
				if n := sd.dev.Counts().QPs; n > 1 || !s.sameDevice() && n != 0 {
					s.Errorf("%s: %d queue pairs after Close", sd.name, n)
				}
			}
		})
	}
}

// flood keeps a side's send queue full of every kind of WR and checks the order
// of what completes.
type flood struct {
	sd     *side
	peer   *side
	posted int
	done   int
	failed bool
}

// post fills the queue.
func (f *flood) post() {
	ops := []fabric.Opcode{fabric.OpWrite, fabric.OpRead, fabric.OpSend}
	if !f.sd.dev.Limits().RNR {
		ops = ops[:2] // nothing holds SENDs back from a peer without receives
	}
	for {
		op := ops[f.posted%len(ops)]
		wr := fabric.SendWR{ID: uint64(f.posted), Op: op, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: f.peer.mem.Addr() + 1<<20, RKey: f.peer.mr.RKey()}
		n, err := f.sd.qp.PostSend([]fabric.SendWR{wr}, []fabric.SGE{f.sd.sge(0, 2048)})
		if n == 0 || err != nil {
			return
		}
		f.posted++
	}
}

// check takes what completed.
func (f *flood) check(wc []fabric.Completion) error {
	for _, c := range wc {
		switch {
		case c.ID != uint64(f.done):
			return fmt.Errorf("completion of WR %d, want %d", c.ID, f.done)
		case c.Status == fabric.StatusSuccess && f.failed:
			return fmt.Errorf("WR %d succeeded behind one that was flushed", c.ID)
		case c.Status != fabric.StatusSuccess && c.Status != fabric.StatusFlushed:
			return fmt.Errorf("WR %d ended with %v", c.ID, c.Status)
		}
		f.failed = f.failed || c.Status != fabric.StatusSuccess
		f.done++
	}
	return nil
}

// testDisconnectUnderLoad disconnects in the middle of everything: each WR
// completes exactly once, in order, with success or flushed.
func testDisconnectUnderLoad(s *suite) {
	for round := range 10 {
		ch := s.connect(func(a, b *fabric.ConnConfig) { b.RecvDepth = 256 })
		f := &flood{sd: ch.a, peer: ch.b}
		received := 0
		repost := func() {
			for range 64 {
				if n, _ := ch.b.qp.PostRecv([]fabric.RecvWR{{ID: recvID, NumSGE: 1}}, []fabric.SGE{s.b.sge(0, 2048)}); n == 0 {
					return
				}
				received++
			}
		}
		repost()
		var wg sync.WaitGroup
		by := ch.sides()[round%2]
		wg.Go(func() {
			time.Sleep(time.Duration(round*150) * time.Microsecond)
			if err := by.conn.Disconnect(); err != nil {
				s.Error(err)
			}
		})
		qpn := ch.a.qp.Num()
		s.until("the end under load", func() bool {
			if !ch.b.isDone() && len(ch.b.inbox[ch.b.qp.Num()]) > received-96 {
				repost()
			}
			if !ch.a.isDone() {
				f.post()
			}
			if err := f.check(ch.a.inbox[qpn]); err != nil {
				s.Fatalf("round %d: %v", round, err)
			}
			ch.a.inbox[qpn] = nil
			return ch.a.isDone() && ch.b.isDone() && f.done == f.posted && len(ch.b.inbox[ch.b.qp.Num()]) == received
		})
		wg.Wait()
		s.pause()
		ch.a.none("beyond what was posted")
		ch.close()
	}
}

// testCloseAbrupt closes one end without a word and without polling: the other
// learns that it is over and flushes.
func testCloseAbrupt(s *suite) {
	for i := range 4 {
		ch := s.connect()
		first, second := ch.sides()[i%2], ch.sides()[1-i%2]
		first.recv(0, 4, 0, 64)
		second.recv(0, 4, 0, 64)
		if i >= 2 { // with something under way
			for range 8 {
				first.send(fabric.SendWR{ID: sendID, Op: fabric.OpWrite, RemoteAddr: second.mem.Addr(), RKey: second.mr.RKey()}, first.sge(0, 1<<16))
			}
		}
		s.must(first.conn.Close())
		first.closed = true
		if _, err := first.qp.PostSend([]fabric.SendWR{{Op: fabric.OpSend}}, nil); err == nil {
			s.Error("PostSend on a closed connection was taken")
		}
		if _, err := first.qp.PostRecv([]fabric.RecvWR{{}}, nil); err == nil {
			s.Error("PostRecv on a closed connection was taken")
		}
		wc := second.take(4)
		checkIDs(s, second.name, wc, fabric.StatusFlushed, recvID, recvID+1, recvID+2, recvID+3)
		s.until("the end at the other side", second.isDone)
		if err := second.conn.Err(); !errors.Is(err, net.ErrClosed) {
			s.Errorf("the other side ended with %v", err)
		}
		first.none("after Close")
		ch.close()
	}
}

// footprint is what must not grow.
type footprint struct {
	a, b       fabric.ObjectCounts
	memory     int64
	goroutines int
	files      int
	heap       uint64
}

func (s *suite) footprint() footprint {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	files, _ := os.ReadDir("/proc/self/fd")
	return footprint{s.a.dev.Counts(), s.b.dev.Counts(), fabric.LiveMemory(), runtime.NumGoroutine(), len(files), m.HeapAlloc}
}

// testLeaks connects, works and disconnects many times and counts what is left.
func testLeaks(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	for i := range 30 {
		s.scoped(func() { s.cycle(l, i) }) // warm up
	}
	time.Sleep(20 * time.Millisecond)
	before := s.footprint()
	for i := range s.cfg.Cycles {
		s.scoped(func() { s.cycle(l, i) })
	}
	settled := func() bool {
		now := s.footprint()
		return now.goroutines <= before.goroutines && now.files <= before.files
	}
	if !s.within(s.cfg.Timeout, settled) {
		s.Errorf("before %d cycles: %+v\nafter: %+v", s.cfg.Cycles, before, s.footprint())
	}
	after := s.footprint()
	if after.a != before.a || after.b != before.b || after.memory != before.memory {
		s.Errorf("before %d cycles: %+v\nafter: %+v", s.cfg.Cycles, before, after)
	}
	if grown := int64(after.heap) - int64(before.heap); grown > int64(s.cfg.Cycles)*4096 {
		s.Errorf("the heap grew by %d bytes a cycle", grown/int64(s.cfg.Cycles))
	}
}

// cycle is the life of one connection; i chooses how it ends.
func (s *suite) cycle(l fabric.Listener, i int) {
	ch, err := s.connectTo(l, s.a, s.b)
	s.must(err)
	ch.b.recv(0, 2, 0, 64)
	ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 64))
	ch.b.ok(fabric.Completion{ID: recvID, Op: fabric.OpRecv, ByteLen: 64})
	switch i % 3 {
	case 0:
		s.must(ch.a.conn.Disconnect())
		checkIDs(s, "flush", ch.b.take(1), fabric.StatusFlushed, recvID+1)
	case 1:
		s.must(ch.b.conn.Disconnect())
	} // and once by Close alone
}

// testScale holds many connections at a time, on one CQ each end.
func testScale(s *suite) {
	l := s.listen(fabric.ListenConfig{})
	chs := make([]*channel, 0, s.cfg.Connections)
	small := func(a, b *fabric.ConnConfig) {
		for _, c := range []*fabric.ConnConfig{a, b} {
			c.SendDepth, c.RecvDepth, c.MaxInline = 4, 4, 0
		}
	}
	for range s.cfg.Connections {
		ch, err := s.connectTo(l, s.a, s.b, small)
		s.must(err)
		ch.b.recv(0, 2, 0, 64)
		chs = append(chs, ch)
	}
	if n := s.a.dev.Counts().QPs; n < s.cfg.Connections {
		s.Errorf("%d queue pairs are counted with %d connections", n, s.cfg.Connections)
	}
	for round := range 2 {
		for _, ch := range chs {
			ch.a.send(fabric.SendWR{ID: sendID + uint64(round), Op: fabric.OpSend}, ch.a.sge(0, 64))
		}
		for _, ch := range chs {
			ch.b.ok(fabric.Completion{ID: recvID + uint64(round), Op: fabric.OpRecv, ByteLen: 64})
			ch.a.ok(fabric.Completion{ID: sendID + uint64(round), Op: fabric.OpSend})
		}
	}
	for i, ch := range chs {
		s.must(ch.sides()[i%2].conn.Disconnect())
	}
	for _, ch := range chs {
		s.until("the end of all connections", func() bool { return ch.a.isDone() && ch.b.isDone() })
		ch.close()
	}
}

// testAllocations posts and polls without allocating.
func testAllocations(s *suite) {
	if s.cfg.Allocates != "" {
		s.Skip(s.cfg.Allocates)
	}
	ch := s.connect()
	rwr, rsge := []fabric.RecvWR{{ID: recvID, NumSGE: 1}}, []fabric.SGE{ch.b.sge(0, 4096)}
	sge := []fabric.SGE{ch.a.sge(0, 4096)}
	remote := fabric.SendWR{NumSGE: 1, RemoteAddr: ch.b.mem.Addr() + 1<<20, RKey: ch.b.mr.RKey()}
	wrs := make([]fabric.SendWR, 3)
	for i, op := range []fabric.Opcode{fabric.OpWrite, fabric.OpRead, fabric.OpSend} {
		wrs[i] = remote
		wrs[i].Op = op
	}
	wrs[2].Flags = fabric.FlagSignaled
	wc := make([]fabric.Completion, 8)
	end := time.Now().Add(s.cfg.Timeout)
	op := func() {
		if _, err := ch.b.qp.PostRecv(rwr, rsge); err != nil {
			s.Fatal(err)
		}
		if _, err := ch.a.qp.PostSend(wrs, sge); err != nil {
			s.Fatal(err)
		}
		for got := 0; got < 2; {
			for _, cq := range []fabric.CompletionQueue{s.a.cq, s.b.cq} {
				n, err := cq.Poll(wc)
				if err != nil || n > 0 && wc[0].Status != fabric.StatusSuccess {
					s.Fatal(err, wc[:n])
				}
				got += n
			}
			if got < 2 && time.Now().After(end) {
				s.Fatal("timed out")
			}
		}
	}
	for range 200 {
		op() // warm up
	}
	if n := testing.AllocsPerRun(500, op); n >= 1 {
		s.Errorf("%v allocations for a WRITE, a READ, a SEND and a receive", n)
	}
}
