package backendtest

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// patience bounds every wait for a completion or notify; only a fault runs
// into it.
var patience = 30 * time.Second

// Rig drives one queue from one goroutine.
type Rig struct {
	Queue backend.Queue
	// Woken receives for each notify; it has room for many, so that none is
	// lost.
	Woken chan struct{}

	t      testing.TB
	nextID uint64
	done   []backend.Completion
}

// NewRig makes a queue of d, closed with the test.
func NewRig(t testing.TB, d backend.Device, depth int) *Rig {
	t.Helper()
	r := &Rig{t: t, Woken: make(chan struct{}, 1<<12), done: make([]backend.Completion, depth)}
	q, err := d.NewQueue(depth, r.notify)
	if err != nil {
		t.Fatalf("new queue of depth %d: %v", depth, err)
	}
	r.Queue = q
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Errorf("closing the queue: %v", err)
		}
	})
	return r
}

func (r *Rig) notify() {
	select {
	case r.Woken <- struct{}{}:
	default:
		panic("backendtest: more notifies than any test arms")
	}
}

// Do runs one operation to its end.
func (r *Rig) Do(op backend.Op) nvme.Status {
	r.t.Helper()
	return r.DoAll([]backend.Op{op})[0]
}

// MustDo is Do for an operation that has to succeed.
func (r *Rig) MustDo(op backend.Op) {
	r.t.Helper()
	if st := r.Do(op); st != nvme.Success {
		r.t.Fatalf("%s: %v", Describe(&op), st)
	}
}

// DoAll runs operations, as many at a time as the queue takes, and returns
// their statuses in order. It sets the IDs, and fails the test when one does
// not come back exactly once.
func (r *Rig) DoAll(ops []backend.Op) []nvme.Status {
	r.t.Helper()
	first := r.nextID
	r.nextID += uint64(len(ops))
	for i := range ops {
		ops[i].ID = first + uint64(i)
	}
	seen := make([]bool, len(ops))
	all := make([]nvme.Status, len(ops))
	for submitted, ended := 0, 0; ended < len(ops); {
		submitted += r.Queue.Submit(ops[submitted:])
		for _, c := range r.Wait() {
			i := c.ID - first
			if i >= uint64(submitted) || seen[i] {
				r.t.Fatalf("completion of ID %d, which is not in flight", c.ID)
			}
			seen[i], all[i] = true, c.Status
			ended++
		}
	}
	return all
}

// Wait returns completions, at least one. They are valid until the next call.
func (r *Rig) Wait() []backend.Completion {
	r.t.Helper()
	for {
		if n := r.Queue.Reap(r.done); n > 0 {
			return r.done[:n]
		}
		r.Queue.Arm()
		if n := r.Queue.Reap(r.done); n > 0 {
			return r.done[:n] // the notify may still come: it finds nothing
		}
		r.Sleep()
	}
}

// Sleep waits for a notify.
func (r *Rig) Sleep() {
	r.t.Helper()
	select {
	case <-r.Woken:
	case <-time.After(patience):
		r.t.Fatal("no notify after Arm: a wake-up was lost, or an operation")
	}
}

// Memory is n bytes at the start of a page, outside the Go heap, unmapped with
// the test.
func Memory(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatalf("mapping %d bytes: %v", n, err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Describe names an operation for messages.
func Describe(op *backend.Op) string {
	s := fmt.Sprintf("%v of %d bytes at %d in %d buffers", op.Kind, op.Length, op.Offset, len(op.Bufs))
	if op.FUA {
		s += ", FUA"
	}
	if op.Dealloc {
		s += ", deallocate"
	}
	return s
}
