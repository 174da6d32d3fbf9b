package core

import (
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

func TestCQRing(t *testing.T) {
	cq := newCQ(t, newDevice(t, nil), 5, nil, nil) // a ring of 8
	next, want := uint64(0), uint64(0)
	wc := make([]fabric.Completion, 3)
	for range 100 {
		for range 5 - int(next-want) {
			cq.Push(fabric.Completion{ID: next})
			next++
		}
		n, err := cq.Poll(wc)
		if n != 3 || err != nil {
			t.Fatalf("Poll: %d, %v", n, err)
		}
		for _, c := range wc {
			if c.ID != want {
				t.Fatalf("completion %d, want %d", c.ID, want)
			}
			want++
		}
	}
}

func TestCQOverflow(t *testing.T) {
	d := newDevice(t, nil)
	woken := 0
	cq := newCQ(t, d, 3, func() { woken++ }, nil)
	q, other := newQP(t, d, cq, nil), newQP(t, d, newCQ(t, d, 3, nil, nil), nil)
	if err := cq.Arm(); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		cq.Push(fabric.Completion{ID: uint64(i)})
	}
	if !errors.Is(q.cqErr, fabric.ErrQueueFull) || other.cqErr != nil {
		t.Errorf("queue pairs were told %v and %v", q.cqErr, other.cqErr)
	}
	if woken != 1 {
		t.Errorf("%d notifies", woken)
	}
	if wc := poll(t, cq); len(wc) != 3 || wc[2].ID != 2 {
		t.Errorf("what had fit: %+v", wc)
	}
	cq.Push(fabric.Completion{ID: 9})
	for range 2 {
		if n, err := cq.Poll(make([]fabric.Completion, 1)); n != 0 || !errors.Is(err, fabric.ErrQueueFull) {
			t.Errorf("Poll after the overflow: %d, %v", n, err)
		}
	}
	if cq.Arm() != nil || woken != 2 {
		t.Errorf("Arm after the overflow: %d notifies", woken)
	}
}

func TestCQArm(t *testing.T) {
	woken := 0
	cq := newCQ(t, newDevice(t, nil), 8, func() { woken++ }, nil)
	step := func(what string, do func(), want int) {
		t.Helper()
		if do(); woken != want {
			t.Fatalf("%s: %d notifies, want %d", what, woken, want)
		}
	}
	push := func() { cq.Push(fabric.Completion{}) }
	arm := func() { cq.Arm() }
	drain := func() { poll(t, cq) }
	step("push without Arm", push, 0)
	step("Arm with a completion there", arm, 1)
	step("push after the notify", push, 1)
	step("poll", drain, 1)
	step("Arm", arm, 1)
	step("Arm again", arm, 1)
	step("push", push, 2)
	step("second push", push, 2)
	step("poll", drain, 2)
	step("Wake without Arm", cq.Wake, 2)
	step("Arm after Wake", arm, 3)
	step("poll after Wake", drain, 3)
	step("Arm", arm, 3)
	step("Wake", cq.Wake, 4)
	step("second Wake", cq.Wake, 4)
}

func TestCQProgress(t *testing.T) {
	d := newDevice(t, nil)
	var cq *CQ
	calls, inside := 0, false
	cq = newCQ(t, d, 8, nil, func() {
		calls++
		inside = cq.Guard().seq.Load()&1 == 1
		cq.Push(fabric.Completion{ID: uint64(calls)})
	})
	if wc := poll(t, cq); len(wc) != 1 || wc[0].ID != 1 || !inside {
		t.Errorf("%+v, inside the guard: %v", wc, inside)
	}
	if cq.Guard().seq.Load()&1 != 0 {
		t.Error("Poll did not leave the guard")
	}
	// A full harvest needs no progress.
	cq.Push(fabric.Completion{})
	if n, _ := cq.Poll(make([]fabric.Completion, 1)); n != 1 || calls != 1 {
		t.Errorf("%d completions, %d calls", n, calls)
	}
	// An empty one always makes some.
	if n, _ := cq.Poll(nil); n != 0 || calls != 2 {
		t.Errorf("%d completions, %d calls", n, calls)
	}
}

func TestCQDo(t *testing.T) {
	woken := 0
	cq := newCQ(t, newDevice(t, nil), 8, func() { woken++ }, nil)
	var order []int
	cq.Arm()
	cq.Do(func() {
		order = append(order, 1)
		cq.Do(func() { order = append(order, 3) })
	})
	cq.Do(func() { order = append(order, 2) })
	if woken != 1 || order != nil {
		t.Fatalf("%d notifies, ran %v before Poll", woken, order)
	}
	poll(t, cq)
	poll(t, cq)
	if !slices.Equal(order, []int{1, 2, 3}) {
		t.Errorf("ran %v", order)
	}
}

func TestCQPurge(t *testing.T) {
	cq := newCQ(t, newDevice(t, nil), 8, nil, nil)
	for range 6 { // across the end of the ring
		cq.Push(fabric.Completion{})
	}
	poll(t, cq)
	for i, qpn := range []uint32{1, 2, 1, 1, 3, 2, 1} {
		cq.Push(fabric.Completion{ID: uint64(i), QPN: qpn})
	}
	cq.Purge(1)
	wc := poll(t, cq)
	if len(wc) != 3 || wc[0].ID != 1 || wc[1].ID != 4 || wc[2].ID != 5 {
		t.Errorf("%+v", wc)
	}
}

func TestCQClose(t *testing.T) {
	d := newDevice(t, nil)
	cq := newCQ(t, d, 8, nil, func() { t.Error("progress of a closed CQ") })
	cq.progress = nil
	q := newQP(t, d, cq, nil)
	if err := cq.Close(); !errors.Is(err, fabric.ErrBusy) {
		t.Errorf("close in use: %v", err)
	}
	q.Destroy()
	for range 2 {
		if err := cq.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if c := d.Counts(); c.CQs != 0 || len(d.guards.all) != 0 {
		t.Errorf("%+v, %d guards", c, len(d.guards.all))
	}
	cq.Push(fabric.Completion{})
	if n, err := cq.Poll(make([]fabric.Completion, 1)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("poll: %d, %v", n, err)
	}
	if err := cq.Arm(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("arm: %v", err)
	}
	if err := cq.Attach(q); !errors.Is(err, net.ErrClosed) {
		t.Errorf("attach: %v", err)
	}
	if err := q.Init(d, q, QPConfig{SendCQ: cq, RecvCQ: cq, Conn: &fabric.ConnConfig{}}); err == nil || d.Counts().QPs != 0 {
		t.Errorf("a QP on a closed CQ: %v, %+v", err, d.Counts())
	}
}

func TestCQDepth(t *testing.T) {
	d := newDevice(t, nil)
	for _, depth := range []int{-1, 0, 257} {
		if err := new(CQ).Init(d, depth, nil, nil); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
	for range 4 {
		newCQ(t, d, 256, nil, nil)
	}
	if err := new(CQ).Init(d, 1, nil, nil); !errors.Is(err, fabric.ErrQueueFull) {
		t.Errorf("one more than MaxCQ: %v", err)
	}
}

// Another goroutine wakes a sleeping owner; no wake-up is lost.
func TestCQWakeUps(t *testing.T) {
	woken := make(chan struct{}, 1)
	var work Mailbox
	cq := newCQ(t, newDevice(t, nil), 8, func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	}, work.Run)
	const rounds = 5000
	var wg sync.WaitGroup
	done := 0
	wg.Go(func() {
		for range rounds {
			work.Send(func() { done++ })
			cq.Wake()
		}
	})
	for done < rounds {
		cq.Arm()
		before := done
		if poll(t, cq); done > before {
			continue
		}
		select {
		case <-woken:
		case <-time.After(10 * time.Second):
			t.Fatalf("a wake-up was lost after %d of %d", done, rounds)
		}
		poll(t, cq)
	}
	wg.Wait()
}

func TestCQAllocates(t *testing.T) {
	cq := newCQ(t, newDevice(t, nil), 64, func() {}, func() {})
	wc := make([]fabric.Completion, 8)
	if n := testing.AllocsPerRun(100, func() {
		for range 4 {
			cq.Push(fabric.Completion{})
		}
		cq.Arm()
		cq.Wake()
		cq.Poll(wc)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestGuards(t *testing.T) {
	var s Guards
	a, b := s.New(), s.New()
	s.Wait() // nobody inside
	a.Enter()
	a.Enter() // nested
	a.Leave()
	done := make(chan struct{})
	go func() {
		s.Wait()
		close(done)
	}()
	b.Enter()
	b.Leave()
	select {
	case <-done:
		t.Fatal("Wait returned while an owner was inside")
	case <-time.After(20 * time.Millisecond):
	}
	a.Leave()
	a.Enter() // a new visit does not hold the old Wait
	<-done
	a.Leave()
	s.Remove(a)
	s.Remove(a)
	if len(s.all) != 1 || s.all[0] != b {
		t.Errorf("%d guards left", len(s.all))
	}
}
