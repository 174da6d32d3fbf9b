package initiator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/nvme"
)

// queueOf takes a queue of a namespace that is closed with the test.
func (r *rig) queueOf(n *Namespace) *Queue {
	r.t.Helper()
	q, err := n.Queue(r.ctx)
	r.must(err)
	r.t.Cleanup(func() { r.must(q.Close()) })
	return q
}

func (r *rig) buffer(size int) *Buffer {
	r.t.Helper()
	b, err := NewBuffer(size)
	r.must(err)
	r.t.Cleanup(func() { r.must(b.Close()) })
	return b
}

// run submits ios and reaps their results, by tag.
func (r *rig) run(q *Queue, ios ...IO) map[uint64]Result {
	r.t.Helper()
	got := make(map[uint64]Result)
	done := make([]Result, 8)
	for {
		n, err := q.Submit(ios)
		r.must(err)
		ios = ios[n:]
		k, err := q.Reap(done)
		r.must(err)
		for _, res := range done[:k] {
			if _, twice := got[res.Tag]; twice {
				r.t.Errorf("two results for tag %d", res.Tag)
			}
			got[res.Tag] = res
		}
		if k == 0 && len(ios) == 0 {
			if q.drained() {
				return got
			}
			r.must(q.Wait(r.ctx))
		}
	}
}

// Every operation of a Queue, with memory windows and without, in capsules and
// not.
func TestQueue(t *testing.T) {
	for _, inv := range []Choice{On, Off} {
		for _, capsules := range []bool{true, false} {
			t.Run(fmt.Sprintf("windows %v, capsules %v", inv, capsules), func(t *testing.T) {
				r := newRig(t, rigOptions{})
				c := r.connect(func(c *Config) { c.Invalidate, c.NoInCapsule = inv, !capsules })
				n := r.namespace(c, memNS)
				q := r.queueOf(n)
				if q.Depth() != 32 {
					t.Errorf("depth %d", q.Depth())
				}
				b := r.buffer(1 << 20)
				fill(b.Bytes()[:512<<10], 3)
				var ios []IO
				for i := range uint64(64) { // 8 KiB each, half of it in two
					ios = append(ios, IO{Op: nvme.CmdWrite, LBA: 16 * i, Blocks: 8, Buf: b, Offset: int(i) * 8192, Tag: 2 * i},
						IO{Op: nvme.CmdWrite, LBA: 16*i + 8, Blocks: 8, Buf: b, Offset: int(i)*8192 + 4096, Tag: 2*i + 1, Flags: FUA})
				}
				for tag, res := range r.run(q, ios...) {
					if !res.OK() {
						t.Errorf("write %d: %+v", tag, res)
					}
				}
				res := r.run(q, IO{Op: nvme.CmdRead, LBA: 0, Blocks: 1024, Buf: b, Offset: 512 << 10})[0]
				if !res.OK() || !bytes.Equal(b.Bytes()[:512<<10], b.Bytes()[512<<10:]) {
					t.Errorf("read: %+v, or not what was written", res)
				}
				got := r.run(q,
					IO{Op: nvme.CmdFlush, Tag: 1},
					IO{Op: nvme.CmdCompare, LBA: 0, Blocks: 8, Buf: b, Tag: 2},
					IO{Op: nvme.CmdCompare, LBA: 0, Blocks: 8, Buf: b, Offset: 512, Tag: 3},
					IO{Op: nvme.CmdVerify, LBA: 0, Blocks: 8, Tag: 4},
					IO{Op: nvme.CmdRead, LBA: n.Blocks(), Blocks: 8, Buf: b, Tag: 5},
				)
				want := map[uint64]nvme.Status{1: 0, 2: 0, 3: nvme.CompareFailure, 4: 0, 5: nvme.LBAOutOfRange}
				for tag, st := range want {
					if got[tag].Status.Code() != st || got[tag].Err != nil {
						t.Errorf("tag %d: %+v, want %v", tag, got[tag], st)
					}
				}
				r.run(q, IO{Op: nvme.CmdWriteZeroes, LBA: 0, Blocks: 16}, IO{Op: nvme.CmdDatasetManagement, LBA: 16, Blocks: 16, Tag: 1})
				r.run(q, IO{Op: nvme.CmdRead, LBA: 0, Blocks: 32, Buf: b})
				if !bytes.Equal(b.Bytes()[:16<<10], make([]byte, 16<<10)) {
					t.Error("blocks are not zero after Write Zeroes and Dataset Management")
				}
			})
		}
	}
}

// What makes no sense is refused before it is sent.
func TestQueueRefuses(t *testing.T) {
	r := newRig(t, rigOptions{})
	n := r.namespace(r.connect(), memNS)
	q := r.queueOf(n)
	b := r.buffer(4096)
	for name, io := range map[string]IO{
		"no buffer":       {Op: nvme.CmdRead, Blocks: 1},
		"no blocks":       {Op: nvme.CmdRead, Buf: b},
		"past the buffer": {Op: nvme.CmdWrite, Blocks: 8, Buf: b, Offset: 512},
		"negative offset": {Op: nvme.CmdWrite, Blocks: 1, Buf: b, Offset: -512},
		"offset beyond":   {Op: nvme.CmdWrite, Blocks: 1, Buf: b, Offset: 8192},
		"too many":        {Op: nvme.CmdWriteZeroes, Blocks: 1 << 20},
		"other operation": {Op: nvme.CmdCopy, Blocks: 1},
	} {
		if k, err := q.Submit([]IO{io}); k != 0 || err == nil {
			t.Errorf("%s: %d taken, %v", name, k, err)
		}
	}
	good := IO{Op: nvme.CmdRead, Blocks: 8, Buf: b}
	if k, err := q.Submit([]IO{good, {Op: nvme.CmdRead}}); k != 1 || err == nil {
		t.Errorf("one good, one bad: %d taken, %v", k, err)
	}
	if got := r.run(q); len(got) != 1 || !func() bool { x := got[0]; return x.OK() }() {
		t.Errorf("%+v", got)
	}
	if err := q.Wait(r.ctx); err != nil {
		t.Errorf("Wait with nothing in flight: %v", err)
	}
}

// Queues are taken from those of the blocking calls and go back.
func TestQueueTakesAll(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.connect()
	n := r.namespace(c, memNS)
	a, err := n.Queue(r.ctx)
	r.must(err)
	b, err := n.Queue(r.ctx)
	r.must(err)
	if _, err := n.Queue(r.ctx); !errors.Is(err, ErrNoQueue) {
		t.Errorf("a third queue of two: %v", err)
	}
	p := make([]byte, 4096)
	if _, err := n.ReadAt(p, 0); !errors.Is(err, ErrNoQueue) {
		t.Errorf("read without a queue: %v", err)
	}
	r.must(a.Close())
	r.must(a.Close())
	if _, err := n.ReadAt(p, 0); err != nil {
		t.Errorf("read after a queue came back: %v", err)
	}
	if _, err := a.Submit(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("submit to a closed queue: %v", err)
	}
	r.must(b.Close())
}

// A queue whose controller is closed fails what is in it, and says so.
func TestQueueOutlivesController(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.connect()
	n := r.namespace(c, memNS)
	q := r.queueOf(n)
	b := r.buffer(4096)
	r.run(q, IO{Op: nvme.CmdRead, Blocks: 8, Buf: b})
	r.portals[0].r.net.Cut(hostIP, targetIPs[0])
	k, err := q.Submit([]IO{{Op: nvme.CmdRead, Blocks: 8, Buf: b, Tag: 7}, {Op: nvme.CmdWrite, Blocks: 8, Buf: b, Tag: 8}})
	if k != 2 || err != nil {
		t.Fatalf("%d, %v", k, err)
	}
	c.cfg.ShutdownTimeout = 1 // nobody hears it
	r.must(c.Close())
	done := make([]Result, 4)
	r.must(q.Wait(r.ctx))
	if k, err = q.Reap(done); k != 2 || err != nil {
		t.Fatalf("%d, %v", k, err)
	}
	for _, res := range done[:2] {
		if !errors.Is(res.Err, net.ErrClosed) {
			t.Errorf("%+v", res)
		}
	}
	if _, err := q.Reap(done); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reap: %v", err)
	}
	if _, err := q.Submit(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("submit: %v", err)
	}
	r.net.Heal(hostIP, targetIPs[0])
}

// A queue at rest takes over the connection that is made when one was lost.
func TestQueueRest(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.connect()
	q := r.queueOf(r.namespace(c, memNS))
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(r.ctx)
	rested := make(chan error, 1)
	go func() { rested <- q.Rest(ctx) }()
	r.must(c.Reset(r.ctx))
	current := func() bool {
		q.enter()
		defer q.leave()
		return q.q.next.Load() == nil && q.q.qc != nil && q.q.qc.assoc == c.assoc.Load()
	}
	for end := time.Now().Add(20 * time.Second); !current(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the queue does not take the new connection over")
		}
	}
	cancel(why)
	if err := <-rested; !errors.Is(err, why) {
		t.Error(err)
	}
	go func() { rested <- q.Rest(r.ctx) }()
	r.must(c.Close())
	r.must(<-rested)
	r.must(q.Close())
}

// Queues taken and given back while the controller is closed.
func TestQueueRacesClose(t *testing.T) {
	r := newRig(t, rigOptions{})
	for i := range 20 {
		c, err := Connect(r.ctx, r.hosts, r.config())
		r.must(err)
		n := r.namespace(c, memNS)
		b := r.buffer(4096)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					q, err := n.Queue(r.ctx)
					switch {
					case errors.Is(err, net.ErrClosed):
						return
					case errors.Is(err, ErrNoQueue):
						continue
					case err != nil:
						t.Error(err)
						return
					}
					if _, err := q.Submit([]IO{{Op: nvme.CmdRead, Blocks: 8, Buf: b}}); err != nil && !errors.Is(err, net.ErrClosed) {
						t.Error(err)
					}
					r.must(q.Close())
				}
			})
		}
		time.Sleep(time.Duration(i) * 50 * time.Microsecond)
		r.must(c.Close())
		wg.Wait()
	}
}

// A caller that will not wait for a busy queue leaves it to the others.
func TestQueueTakenTooLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if fc.req.QID == 0 || isConnect(cmd) {
				return nil
			}
			a := *fc.usual(cmd, fc.capsule)
			a.late = time.Second
			return &a
		})
		n, err := f.connect(still).Namespace(f.ctx, 1)
		f.must(err)
		done := make(chan error)
		go func() {
			_, err := n.ReadAt(make([]byte, 512), 0)
			done <- err
		}()
		time.Sleep(time.Millisecond)
		ctx, cancel := context.WithTimeout(f.ctx, time.Millisecond)
		defer cancel()
		if _, err := n.Queue(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		f.must(<-done)
		time.Sleep(time.Millisecond)
		if _, err := n.ReadAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
	})
}

// An I/O allocates nothing, whichever way its data goes.
func TestQueueAllocations(t *testing.T) {
	for name, o := range map[string]struct {
		op   nvme.Opcode
		inv  Choice
		size uint32
	}{
		"read with a window": {nvme.CmdRead, On, 8},
		"read":               {nvme.CmdRead, Off, 8},
		"write in a capsule": {nvme.CmdWrite, On, 8},
		"write":              {nvme.CmdWrite, On, 64},
		"flush":              {nvme.CmdFlush, Off, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{})
			n := r.namespace(r.connect(func(c *Config) { c.Invalidate = o.inv }), memNS)
			q := r.queueOf(n)
			b := r.buffer(64 << 10)
			ios, done := make([]IO, 4), make([]Result, 8)
			for i := range ios {
				ios[i] = IO{Op: o.op, LBA: uint64(i) * 128, Blocks: o.size, Buf: b}
			}
			ctx := context.Background()
			batch := func() {
				if k, err := q.Submit(ios); k != len(ios) || err != nil {
					t.Fatal(k, err)
				}
				for left := len(ios); left > 0; {
					k, err := q.Reap(done)
					if err != nil {
						t.Fatal(err)
					}
					if left -= k; k == 0 {
						if err := q.Wait(ctx); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			batch()
			if a := testing.AllocsPerRun(200, batch); a != 0 {
				t.Errorf("%v allocations for %d I/Os", a, len(ios))
			}
		})
	}
}

// The sends of a Submit go out in one post.
func TestQueueBatches(t *testing.T) {
	r := newRig(t, rigOptions{})
	n := r.namespace(r.connect(func(c *Config) { c.Invalidate = Off }), memNS)
	q := r.queueOf(n)
	b := r.buffer(64 << 10)
	ios := make([]IO, 16)
	for i := range ios {
		ios[i] = IO{Op: nvme.CmdRead, Blocks: 8, Buf: b, Offset: 4096 * i, Tag: uint64(i)}
	}
	host := r.hosts.Device("host0")
	host.FailPost(2, errPost) // the second WR of the batch
	before := q.q.qc
	if _, err := q.Submit(ios); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(before.assoc.reason(), errPost) {
		t.Errorf("reason %v", before.assoc.reason())
	}
	for tag, res := range r.run(q) {
		if !res.OK() {
			t.Errorf("%d: %+v", tag, res)
		}
	}
}

var errPost = errors.New("post failed")

// Over a device that sends in Poll many commands leave in two parts with a poll
// between them, few at once, and none is left behind.
func TestQueueParts(t *testing.T) {
	for _, c := range []struct {
		name            string
		inPoll          bool
		each, ios, sent int // I/Os of one Submit, of all, and sent before the first poll
	}{
		{"many", true, 24, 24, 12},
		{"odd", true, 19, 19, 10},
		{"one by one", true, 1, 24, 12},
		{"few", true, leastPart, leastPart, leastPart},
		{"the device sends at once", false, 24, 24, 24},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rigOptions{host: fabrictest.DeviceOptions{Limits: func(l *fabric.Limits) { l.SendsInPoll = c.inPoll }}})
			n := r.namespace(r.connect(), memNS)
			p := r.queueOf(n)
			b := r.buffer(256 << 10)
			ios := make([]IO, c.ios)
			for i := range ios {
				ios[i] = IO{Op: nvme.CmdRead, Blocks: 8, Buf: b, Offset: 4096 * i, Tag: uint64(i)}
			}
			for i := 0; i < c.ios; i += c.each {
				if k, err := p.Submit(ios[i : i+c.each]); k != c.each || err != nil {
					t.Fatal(k, err)
				}
			}
			if p.q.inflight != c.sent || p.q.pending.len() != c.ios-c.sent {
				t.Errorf("%d are sent before the first poll and %d wait, want %d sent", p.q.inflight, p.q.pending.len(), c.sent)
			}
			var done [1]Result
			k, err := p.Reap(done[:])
			if err != nil || p.q.pending.len() != 0 {
				t.Errorf("%d wait after a Reap, %v", p.q.pending.len(), err)
			}
			if got := len(r.run(p)) + k; got != c.ios {
				t.Errorf("%d of %d are done", got, c.ios)
			}
		})
	}
}
