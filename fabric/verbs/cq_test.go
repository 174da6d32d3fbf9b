//go:build linux && cgo && !nordma

package verbs

import (
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

// sleeper is the owner of an end's CQ that sleeps in a Waker.
type sleeper struct {
	*end
	q *completionQueue
	w *fabric.Waker
}

func newSleeper(t *testing.T, e *end) *sleeper {
	t.Helper()
	s := &sleeper{end: e, w: fabric.NewWaker()}
	closing(t, e.cq)
	var err error
	if e.cq, err = e.dev.NewCompletionQueue(256, s.w.Wake); err != nil {
		t.Fatal(err)
	}
	s.q = e.cq.(*completionQueue)
	t.Cleanup(s.w.Close)
	return s
}

// poll takes what is there.
func (s *sleeper) poll() int {
	s.t.Helper()
	var wc [16]fabric.Completion
	n, err := s.q.Poll(wc[:])
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// sleep arms the CQ, has fn run, and sleeps. It says whether that was in the
// kernel. Where something is there already it does not sleep, and returns how much:
// with a fn, that is an error.
func (s *sleeper) sleep(fn func()) (kernel bool, n int) {
	s.t.Helper()
	s.w.Prepare()
	if err := s.w.Arm(s.q); err != nil {
		s.t.Fatal(err)
	}
	kernel = s.w.Kernel()
	if n = s.poll(); n > 0 {
		if fn != nil {
			s.t.Fatal("a completion before anything was sent")
		}
		s.w.Cancel()
		return kernel, n
	}
	if fn != nil {
		go fn()
	}
	if kernel {
		s.w.Sleep(testTimeout)
	} else {
		<-s.w.C
	}
	return kernel, 0
}

// until sleeps until a completion is there, and says how often.
func (s *sleeper) until(fn func()) (sleeps, inKernel int) {
	s.t.Helper()
	for n, kernel := 0, false; n == 0; fn = nil {
		if kernel, n = s.sleep(fn); n > 0 {
			break // the sleep before had ended for no reason
		}
		if sleeps++; kernel {
			inKernel++
		}
		n = s.poll()
	}
	return sleeps, inKernel
}

// The owner of a CQ waits for its channel itself, once it has had a berth for a
// while, and the routine does when it has none. No event is lost between the two.
func TestOwnerWaitsForChannel(t *testing.T) {
	p := newPair(t)
	s := newSleeper(t, p.b)
	p.connect(t, p.addr(t, false), 64)
	send := func() { p.a.send(fabric.SendWR{Op: fabric.OpSend}, 0, 8) }
	for range settleAfter {
		s.until(send)
	}
	for range 16 {
		if n, k := s.until(send); k != n || s.q.bed != s.w {
			t.Fatalf("%d of %d sleeps are in the kernel", k, n)
		}
	}
	for range 4 { // by the routine again
		if err := s.q.Arm(); err != nil || s.q.bed != nil {
			t.Fatal("the owner still waits:", err)
		}
		if _, k := s.until(send); k != 0 {
			t.Fatal("the owner waits again at once")
		}
	}
	for range settleAfter {
		s.until(send)
	}
	if s.q.bed != s.w {
		t.Error("the owner does not wait again")
	}
}
