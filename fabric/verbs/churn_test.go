//go:build linux && cgo && !nordma

package verbs

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// Every order of dialling, giving up, accepting, refusing, ignoring and
// disconnecting: nothing hangs, nothing is left, Closed comes once for each
// Setup.
func TestChurn(t *testing.T) {
	p := newPair(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	l, err := p.p.Listen(ctx, p.addr(t, false), fabric.ListenConfig{Backlog: 4})
	if err != nil {
		t.Fatal(err)
	}
	var setups, closeds atomic.Int64
	config := func(e *end) fabric.ConnConfig {
		c := e.config(0)
		c.Setup = func(fabric.QueuePair) error { setups.Add(1); return nil }
		c.Closed = func(error) { closeds.Add(1) }
		return c
	}
	end := func(c fabric.Conn, err error) {
		if err != nil {
			return
		}
		if rand.IntN(2) == 0 {
			time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
			c.Disconnect()
		}
		closing(t, c)
	}
	patience := func() time.Duration {
		if rand.IntN(3) == 0 {
			return 2 * time.Second
		}
		return time.Duration(rand.IntN(60)) * time.Millisecond
	}
	var dialled, accepted, refused atomic.Int64
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for ctx.Err() == nil {
				short, cancel := context.WithTimeout(ctx, patience())
				c, err := p.dev.Dial(short, netip.AddrPort{}, l.Addr(), config(p.a))
				cancel()
				if err == nil {
					dialled.Add(1)
				} else {
					refused.Add(1)
				}
				end(c, err)
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			for {
				r, err := l.Accept(ctx)
				if err != nil {
					return
				}
				if rand.IntN(4) == 0 {
					_ = r.Reject(nil) // the peer may have given up
					continue
				}
				short, cancel := context.WithTimeout(ctx, patience())
				c, err := r.Accept(short, config(p.b))
				cancel()
				if err == nil {
					accepted.Add(1)
				}
				end(c, err)
			}
		})
	}
	wg.Wait()
	closing(t, l)
	t.Logf("dialled %d, gave up %d, accepted %d", dialled.Load(), refused.Load(), accepted.Load())
	if dialled.Load() == 0 || refused.Load() == 0 || accepted.Load() == 0 {
		t.Error("not every outcome was met")
	}
	for deadline := time.Now().Add(testTimeout); closeds.Load() != setups.Load() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if s, c := setups.Load(), closeds.Load(); s != c {
		t.Errorf("%d Setups, %d Closeds", s, c)
	}
	if c := p.dev.Counts(); c != (fabric.ObjectCounts{CQs: 2, MRs: 2}) {
		t.Errorf("%+v", c)
	}
}

// TestChild is the peer that TestPeerKilled kills.
func TestChild(t *testing.T) {
	to := os.Getenv("NVMF_TEST_CHILD_DIALS")
	if to == "" {
		t.Skip("only as a child")
	}
	p := newPair(t)
	c, err := p.dev.Dial(deadline(t), netip.AddrPort{}, netip.MustParseAddrPort(to), p.a.config(4))
	if err != nil {
		t.Fatal(err)
	}
	p.a.conn = c
	<-c.Done()
}

func TestPeerKilled(t *testing.T) {
	p := newPair(t)
	ctx := deadline(t)
	l, err := p.p.Listen(ctx, p.addr(t, false), fabric.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, l)
	child := exec.Command(os.Args[0], "-test.run=^TestChild$")
	child.Env = append(os.Environ(), "NVMF_TEST_CHILD_DIALS="+l.Addr().String())
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	r, err := l.Accept(ctx)
	if err == nil {
		p.b.conn, err = r.Accept(ctx, p.b.config(4))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := child.Wait(); !errors.As(err, &exit) {
		t.Errorf("child: %v", err)
	}
	if err := p.b.wantClosed(); err == nil {
		t.Error("Closed(nil)")
	}
	p.b.flushed(4)
}
