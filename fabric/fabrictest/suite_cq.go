package fabrictest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// testNotify: one notify for each Arm, for what comes after it or was there
// already, and none without.
func testNotify(s *suite) {
	var notified, armed atomic.Int32
	cq := s.b.newCQ(64, func() { notified.Add(1) })
	ch := s.connect(func(_, b *fabric.ConnConfig) { b.SendCQ, b.RecvCQ = cq, cq })
	arm := func() {
		armed.Add(1)
		s.must(cq.Arm())
	}
	send := func(n int) {
		for range n {
			ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 8))
		}
	}
	ch.b.recv(0, 20, 0, 64)
	qpn := ch.b.qp.Num()
	have := func(n int) func() bool {
		return func() bool { s.b.pollCQ(cq); return len(s.b.inbox[qpn]) >= n }
	}
	idle := func() { s.within(10*time.Millisecond, func() bool { s.b.pollCQ(cq); return false }) }

	send(1)
	s.until("a completion without Arm", have(1))
	if n := notified.Load(); n != 0 {
		s.Fatalf("%d notifies without Arm", n)
	}
	idle()
	arm()
	for s.b.pollCQ(cq) > 0 {
	}
	send(3)
	s.until("a notify after Arm", func() bool { return notified.Load() > 0 })
	s.until("the completions", have(4))
	idle()
	if n := notified.Load(); n != 1 {
		s.Fatalf("%d notifies for one Arm", n)
	}
	send(2)
	s.until("one of two completions", func() bool {
		n, err := cq.Poll(s.b.wc[:1])
		s.must(err)
		return n == 1
	})
	arm() // the other is there, or comes
	s.until("a notify for what was there", func() bool { return notified.Load() == 2 })
	s.until("the other completion", have(5))
	idle()
	send(1)
	s.pause() // it is there, or only a Poll of b away
	arm()
	s.until("a notify for what nobody has polled for", func() bool { return notified.Load() == 3 })
	s.until("that completion", have(6))
	idle()
	arm()
	arm()
	s.must(ch.a.conn.Disconnect())
	s.until("a notify for the flush", func() bool { return notified.Load() >= 4 })
	s.until("the flush", have(6+13))
	if n, a := notified.Load(), armed.Load(); n > a {
		s.Errorf("%d notifies for %d Arms", n, a)
	}
}

// sleeper is an owner that sleeps on its CQ whenever there is nothing.
type sleeper struct {
	qp    fabric.QueuePair
	cq    fabric.CompletionQueue
	woken chan struct{}
	wc    []fabric.Completion
	limit time.Duration
}

// wait returns at least one completion.
func (w *sleeper) wait() ([]fabric.Completion, error) {
	for {
		for _, last := range []bool{false, true} {
			if n, err := w.cq.Poll(w.wc); n > 0 || err != nil {
				return w.wc[:n], err
			}
			if last {
				break
			}
			if err := w.cq.Arm(); err != nil {
				return nil, err
			}
		}
		select {
		case <-w.woken:
		case <-time.After(w.limit):
			if n, _ := w.cq.Poll(w.wc); n > 0 {
				return nil, fmt.Errorf("no notify for %+v", w.wc[:n])
			}
			return nil, errors.New("no notify, and nothing there")
		}
	}
}

// testNoLostWakeup plays ping-pong between two owners that sleep: one wake-up
// lost stops it.
func testNoLostWakeup(s *suite) {
	const rounds = 600
	var ws [2]*sleeper
	for i, e := range []*end{s.a, s.b} {
		w := &sleeper{woken: make(chan struct{}, 1), wc: make([]fabric.Completion, 8), limit: s.cfg.Timeout}
		w.cq = e.newCQ(64, func() {
			select {
			case w.woken <- struct{}{}:
			default:
			}
		})
		ws[i] = w
	}
	ch := s.connect(func(a, b *fabric.ConnConfig) {
		a.SendCQ, a.RecvCQ, b.SendCQ, b.RecvCQ = ws[0].cq, ws[0].cq, ws[1].cq, ws[1].cq
	})
	for i, sd := range ch.sides() {
		sd.recv(0, 2, 0, 64)
		ws[i].qp = sd.qp
	}
	play := func(i int, sd *side) error {
		rng := rand.New(rand.NewPCG(uint64(i), s.cfg.Seed))
		sge := []fabric.SGE{sd.sge(0, 64)}
		mine := i == 0
		for got := 0; got < rounds; {
			if mine {
				if rng.IntN(4) == 0 {
					time.Sleep(time.Duration(rng.IntN(50)) * time.Microsecond)
				}
				if _, err := sd.qp.PostSend([]fabric.SendWR{{ID: sendID, Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled}}, sge); err != nil {
					return err
				}
				mine = false
			}
			wc, err := ws[i].wait()
			if err != nil {
				return fmt.Errorf("%s after %d messages: %w", sd.name, got, err)
			}
			for _, c := range wc {
				if c.Status != fabric.StatusSuccess {
					return fmt.Errorf("%s: %+v", sd.name, c)
				}
				if c.ID == sendID {
					continue
				}
				got++
				mine = got < rounds || i == 1
				if _, err := sd.qp.PostRecv([]fabric.RecvWR{{ID: recvID, NumSGE: 1}}, sge); err != nil {
					return err
				}
			}
		}
		if mine { // b's last answer
			_, err := sd.qp.PostSend([]fabric.SendWR{{ID: sendID, Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled}}, sge)
			if err == nil {
				_, err = ws[i].wait()
			}
			return err
		}
		return nil
	}
	var wg sync.WaitGroup
	for i, sd := range ch.sides() {
		wg.Go(func() {
			if err := play(i, sd); err != nil {
				s.Error(err)
			}
		})
	}
	wg.Wait()
}

// testSeparateCQs: sends complete in the one, receives in the other.
func testSeparateCQs(s *suite) {
	send, recv := s.a.newCQ(64, nil), s.a.newCQ(64, nil)
	ch := s.connect(func(a, _ *fabric.ConnConfig) { a.SendCQ, a.RecvCQ = send, recv })
	ch.a.recv(0, 3, 1<<20, 64)
	ch.b.recv(0, 3, 1<<20, 64)
	for range 3 {
		ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 8))
		ch.b.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.b.sge(0, 8))
	}
	counts := make(map[fabric.CompletionQueue][2]int)
	poll := func() bool {
		total := 0
		for _, cq := range []fabric.CompletionQueue{send, recv} {
			n, err := cq.Poll(s.a.wc)
			s.must(err)
			sends, recvs := split(s.a.wc[:n])
			counts[cq] = [2]int{counts[cq][0] + len(sends), counts[cq][1] + len(recvs)}
			total += counts[cq][0] + counts[cq][1]
		}
		return total >= 6
	}
	s.until("the completions in two queues", poll)
	if counts[send] != [2]int{3, 0} || counts[recv] != [2]int{0, 3} {
		s.Errorf("send CQ has %v sends and receives, receive CQ %v", counts[send], counts[recv])
	}
	for _, cq := range []fabric.CompletionQueue{send, recv} {
		if err := cq.Close(); !errors.Is(err, fabric.ErrBusy) {
			s.Errorf("close of a CQ in use: %v", err)
		}
	}
	ch.b.take(6)
}

// testOverflow makes more completions than a CQ holds: that is an error that
// ends the connection, and never a completion that is missing in silence.
func testOverflow(s *suite) {
	if s.cfg.Overflows != "" {
		s.Skip(s.cfg.Overflows)
	}
	const depth, sends = 4, 24
	cq := s.a.newCQ(depth, nil)
	ch := s.connect(func(a, _ *fabric.ConnConfig) { a.SendCQ, a.RecvCQ = cq, cq })
	ch.b.recv(0, sends, 0, 64)
	var wrs []fabric.SendWR
	for i := range sends {
		wrs = append(wrs, fabric.SendWR{ID: sendID + uint64(i), Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled})
	}
	ch.a.post([]fabric.SGE{ch.a.sge(0, 8)}, wrs...) // at once: hardware may overflow meanwhile
	// All are answered before a looks.
	s.within(200*time.Millisecond, func() bool { return len(ch.b.inbox[ch.b.qp.Num()]) >= sends })
	got, failed := 0, error(nil)
	one := make([]fabric.Completion, 1)
	s.until("all completions or an error", func() bool {
		for failed == nil && got < sends {
			n, err := cq.Poll(one)
			if n == 0 && err == nil {
				return false
			}
			if failed = err; n == 1 && one[0].Status == fabric.StatusSuccess {
				if one[0].ID != sendID+uint64(got) {
					s.Fatalf("completion %d is of WR %d", got, one[0].ID-sendID)
				}
				got++
			}
		}
		return true
	})
	switch {
	case failed == nil:
		s.Logf("the CQ of %d took all %d completions", depth, sends)
	case !errors.Is(failed, fabric.ErrQueueFull) || errors.Is(failed, net.ErrClosed):
		s.Errorf("Poll after an overflow: %v", failed)
	case ch.a.qp.State() != fabric.QPError:
		s.Errorf("the queue pair is in state %v after the overflow of its CQ", ch.a.qp.State())
	default:
		s.until("the end of the connection", ch.a.isDone)
		if err := ch.a.conn.Err(); !errors.Is(err, fabric.ErrQueueFull) {
			s.Errorf("the connection ended with %v", err)
		}
	}
}
