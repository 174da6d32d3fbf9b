package file

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/internal/waker"
	"github.com/nvmf-go/nvmf/fabric"
)

// signals is how often the eventfd of a queue was signalled since the last call.
func signals(t *testing.T, evfd int) uint64 {
	t.Helper()
	var b [8]byte
	switch n, err := unix.Read(evfd, b[:]); {
	case err == unix.EAGAIN:
		return 0
	case err != nil || n != len(b):
		t.Fatalf("read %d bytes of an eventfd: %v", n, err)
	}
	return binary.NativeEndian.Uint64(b[:])
}

// A queue whose owner does not sleep costs no signals of its eventfd, whose count
// nobody resets. One that sleeps is woken, by notify or in the kernel.
func TestSignalsOnlyForSleepers(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, d *Device, _ *faults) {
		r := backendtest.NewRig(t, d, 1)
		g := r.Queue.(*queue).ring
		if g == nil {
			t.Skip("the pool has no eventfd")
		}
		mem := backendtest.Memory(t, 4096)
		busy := func(when string) {
			done := make([]backend.Completion, 1)
			for range 50 {
				r.Queue.Submit([]backend.Op{read(mem, 0)})
				for r.Queue.Reap(done) == 0 {
					time.Sleep(10 * time.Microsecond)
				}
			}
			if n := signals(t, g.evfd); n != 0 {
				t.Errorf("%d signals %s", n, when)
			}
		}
		busy("before a sleep")

		w := fabric.NewWaker()
		defer w.Close()
		for range 3 {
			w.Prepare()
			r.Queue.(*queue).ArmOn(w)
			r.Queue.Submit([]backend.Op{read(mem, 0)})
			if w.Sleep(time.Minute); !w.Woke(g.evfd) {
				t.Fatal("the sleep in the kernel did not end with the operation")
			}
			r.Wait()
			if signals(t, g.evfd) == 0 {
				t.Error("no signal after ArmOn")
			}
			busy("after a sleep in the kernel")
		}
		if g.ear.events != nil {
			t.Error("a goroutine listens for an owner that does not need it")
		}

		r.Queue.Arm()
		r.Queue.Submit([]backend.Op{read(mem, 0)})
		r.Sleep()
		r.Wait()
		signals(t, g.evfd) // there may be none left
		busy("after a sleep that notify has ended")
		if err := r.Queue.Close(); err != nil { // before w
			t.Error(err)
		}
	})
}

// Calls that block do not hold up others while there are workers to start, or
// workers that wait, and never more run than allowed.
func TestPoolRunsCallsTogether(t *testing.T) {
	const workers = 4
	p := newPool(workers)
	defer p.close()
	woken := make(chan struct{}, 100)
	q := &queue{waker: waker.New(func() { woken <- struct{}{} })}
	var pipes [workers + 1]struct{ r, w *os.File }
	var slots [workers + 1]slot
	for i := range pipes {
		var err error
		if pipes[i].r, pipes[i].w, err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
		defer pipes[i].r.Close()
		defer pipes[i].w.Close()
		slots[i].queue = q
	}
	blockOn := func(i int) {
		s := &slots[i]
		s.call = call{op: callRead, fd: int(pipes[i].r.Fd()), off: ^uint64(0)} // no offset: a pipe has none
		s.call.single(&s.one, make([]byte, 1))
		var list jobs
		list.push(s)
		p.give(&list)
	}
	// end lets the call of slot i end, and expects it to be the one that does.
	end := func(i int) {
		t.Helper()
		q.waker.Arm()
		if _, err := pipes[i].w.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-woken:
		case <-time.After(10 * time.Second):
			t.Fatalf("call %d does not run", i)
		}
		if s := q.back.Swap(nil); s != &slots[i] || s.res != 1 || s.link != nil {
			t.Fatalf("call %d: another ended", i)
		}
	}
	for n := 1; n <= workers; n++ { // n-1 wait for work, one is to start
		for range 2 {
			for i := range n {
				blockOn(i)
			}
			for i := n - 1; i >= 0; i-- {
				end(i)
			}
		}
	}
	for i := range pipes { // one more than there are workers
		blockOn(i)
	}
	if p.workers != workers {
		t.Errorf("%d workers, want %d", p.workers, workers)
	}
	end(0)
	end(workers)
	for i := 1; i < workers; i++ {
		end(i)
	}
}
