package initiator

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// sleeper is a queue and whether it sleeps in the kernel.
type sleeper struct {
	*Queue
	kernel bool
}

// sleepers runs fn with a queue of each provider: the one in memory has its owners
// sleep in the Go scheduler, the software RNICs in the kernel.
func sleepers(t *testing.T, fn func(t *testing.T, q sleeper)) {
	t.Run("memory", func(t *testing.T) {
		r := newRig(t, rigOptions{})
		fn(t, sleeper{r.queueOf(r.namespace(r.connect(), memNS)), false})
	})
	for _, w := range wires {
		t.Run(w.name, func(t *testing.T) {
			if os.Getenv("GOMAXPROCS") != "" {
				t.Skip("GOMAXPROCS says how many sleep in the kernel")
			}
			fabric.Owners(4) // the target's poll group sleeps there too
			p, err := w.open()
			if err != nil {
				t.Skip(err)
			}
			cfg := softRig(t, p)
			c, err := Connect(t.Context(), p, cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}()
			n, err := c.Namespace(t.Context(), memNS)
			if err != nil {
				t.Fatal(err)
			}
			q, err := n.Queue(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := q.Close(); err != nil {
					t.Error(err)
				}
			}()
			fn(t, sleeper{q, true})
		})
	}
}

// asleep waits until the queue sleeps where it should.
func (q sleeper) asleep(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if w := q.q.w; w.Asleep() && w.Kernel() == q.kernel {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it does not sleep; in the kernel: %v", q.kernel)
		}
	}
}

// ended waits for the end of a call.
func ended(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("in vain: %s", what)
		return nil
	}
}

func (q sleeper) rest(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() { done <- q.Rest(ctx) }()
	return done
}

// A Ring ends the sleep there is, or else the next, and no other.
func TestQueueRing(t *testing.T) {
	sleepers(t, func(t *testing.T, q sleeper) {
		ctx, cancel := context.WithCancelCause(t.Context())
		q.Ring()
		q.Ring()
		if err := ended(t, "rung before the sleep", q.rest(ctx)); err != nil {
			t.Error(err)
		}
		done := q.rest(ctx)
		q.asleep(t)
		select {
		case err := <-done:
			t.Fatalf("two rings end two sleeps: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		q.Ring()
		if err := ended(t, "rung in its sleep", done); err != nil {
			t.Error(err)
		}
		why := errors.New("enough")
		done = q.rest(ctx)
		q.asleep(t)
		cancel(why)
		if err := ended(t, "the context ends", done); !errors.Is(err, why) {
			t.Error(err)
		}
		if err := ended(t, "the context has ended", q.rest(ctx)); !errors.Is(err, why) {
			t.Error(err)
		}
	})
}

// Wait ends too, with commands in flight, while it polls and while it sleeps.
func TestQueueRingWait(t *testing.T) {
	for name, spin := range map[string]time.Duration{"polling": time.Hour, "asleep": -1} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{})
			q := r.queueOf(r.namespace(r.connect(), memNS))
			q.spin = fabric.NewSpin(spin) // of this queue alone
			r.net.Cut(hostIP, targetIPs[0])
			_, err := q.Submit([]IO{{Op: nvme.CmdRead, Blocks: 8, Buf: r.buffer(4096)}})
			r.must(err)
			done := make(chan error, 1)
			go func() { done <- q.Wait(r.ctx) }()
			time.Sleep(time.Millisecond)
			q.Ring()
			r.must(ended(t, "Wait", done))
			if n, err := q.Reap(make([]Result, 1)); n != 0 || err != nil {
				t.Errorf("%d results, %v", n, err)
			}
			r.net.Heal(hostIP, targetIPs[0])
		})
	}
}

// Whenever work comes, before the last look at it, behind that or in the sleep,
// the owner wakes for it.
func TestQueueRingRaces(t *testing.T) {
	sleepers(t, func(t *testing.T, q sleeper) {
		const rounds = 500
		var work atomic.Bool
		did := make(chan error)
		go func() {
			for n := 0; n < rounds; {
				if work.Swap(false) {
					did <- nil
					n++
					continue
				}
				if err := q.Rest(t.Context()); err != nil {
					did <- err
					return
				}
			}
		}()
		for i := range rounds {
			time.Sleep(time.Duration(i%8) * 10 * time.Microsecond)
			work.Store(true)
			q.Ring()
			if err := ended(t, "work", did); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A descriptor that is watched ends sleeps as often as it has something.
func TestQueueWatch(t *testing.T) {
	sleepers(t, func(t *testing.T, q sleeper) {
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pipe[0])
		defer unix.Close(pipe[1])
		asked := make(chan error, 1) // to watch in place of the kernel
		standIn := func() {
			select {
			case asked <- nil:
			default:
			}
		}
		if err := q.Watch(pipe[0], standIn); err != nil {
			t.Fatal(err)
		}
		got := make(chan error)
		go func() {
			var b [1]byte
			for n := 0; n < 3; {
				if k, _ := unix.Read(pipe[0], b[:]); k == 1 {
					n++
					got <- nil
				} else if err := q.Rest(t.Context()); err != nil {
					got <- err
					return
				}
			}
		}()
		for range 3 {
			q.asleep(t)
			if _, err := unix.Write(pipe[1], []byte{1}); err != nil {
				t.Fatal(err)
			}
			if !q.kernel {
				_ = ended(t, "somebody else is to watch", asked)
				q.Ring()
			}
			if err := ended(t, "a byte", got); err != nil {
				t.Fatal(err)
			}
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
		if err := q.Watch(pipe[0], func() {}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a closed queue watches: %v", err)
		}
		q.Ring() // nobody minds
	})
}
