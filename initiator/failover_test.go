package initiator

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma"
)

const slowNS = 3 // a medium that takes its time with writes

// slowRig is a rig of two portals before a medium that a test can hold up.
func slowRig(t *testing.T) (*rig, *backendtest.Faulty) {
	t.Helper()
	d, err := mem.Open(mem.Options{Size: 1 << 20, BlockSize: 512})
	if err != nil {
		t.Fatal(err)
	}
	slow := backendtest.NewFaulty(d)
	r := newRig(t, rigOptions{
		portals: 2, extra: slow, bound: time.Hour,
		cfg: func(c *rdma.Config) { c.Poll = rdma.PollEvent },
	})
	return r, slow
}

// multipath connects a Multipath over the rig's portals.
func (r *rig) multipath(p Policy, change ...func(*Config)) *Multipath {
	r.t.Helper()
	var list []PathConfig
	for i := range r.portals {
		cfg := r.config(append([]func(*Config){still}, change...)...)
		cfg.Addr = targetAddr(i)
		cfg.KeepAlive, cfg.ConnectTimeout = time.Second, time.Second
		cfg.ReconnectDelay, cfg.MaxReconnectDelay = 100*time.Millisecond, time.Second
		list = append(list, PathConfig{Provider: r.hosts, Config: cfg})
	}
	m, err := ConnectMultipath(r.ctx, list, MultipathConfig{Policy: p, Log: r.hostLog.logger()})
	r.must(err)
	r.t.Cleanup(func() { r.must(m.Close()) })
	return m
}

// A write that the medium has kept from before the path was lost lands late. It
// must not undo what was written after it: that is what ReplayDelay is for, and
// without it that is what happens.
func TestGhostWrite(t *testing.T) {
	for _, delay := range []time.Duration{0, -1} {
		t.Run(fmt.Sprint("ReplayDelay ", delay), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r, slow := slowRig(t)
				m := r.multipath(Failover, func(c *Config) { c.ReplayDelay = delay })
				n, err := m.Namespace(r.ctx, slowNS)
				r.must(err)
				var once sync.Once
				slow.Judge(func(op *backend.Op) (v backendtest.Verdict) {
					if op.Kind == backend.Write {
						once.Do(func() { v.Hold = true })
					}
					return v
				})
				block := func(b byte) []byte {
					p := make([]byte, 512)
					for i := range p {
						p[i] = b
					}
					return p
				}
				time.AfterFunc(time.Millisecond, func() { r.net.Cut(hostIP, targetIPs[0]) })
				time.AfterFunc(2500*time.Millisecond, func() { slow.Release(-1) })
				for _, b := range []byte{'A', 'B'} {
					if _, err := n.WriteAt(block(b), 0); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(5 * time.Second)
				p := make([]byte, 512)
				_, err = n.ReadAt(p, 0)
				r.must(err)
				want := byte('B')
				if delay < 0 {
					want = 'A'
				}
				if p[0] != want {
					t.Errorf("block is %q, want %q", p[0], want)
				}
				r.net.Heal(hostIP, targetIPs[0])
			})
		})
	}
}

// blockOp is a read or a write of one block, whose content is one number.
type blockOp struct {
	write bool
	block int
	value uint64
}

// blockModel says that each block is a register.
var blockModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byBlock := map[int][]porcupine.Operation{}
		for _, op := range history {
			b := op.Input.(blockOp).block
			byBlock[b] = append(byBlock[b], op)
		}
		var list [][]porcupine.Operation
		for _, ops := range byBlock {
			list = append(list, ops)
		}
		return list
	},
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		in := input.(blockOp)
		if in.write {
			return true, in.value
		}
		return output.(uint64) == state.(uint64), state
	},
}

// The model tells a lost write, a late one and a stale read from what is right.
func TestBlockModel(t *testing.T) {
	w := func(v uint64, call, back int64) porcupine.Operation {
		return porcupine.Operation{Input: blockOp{write: true, value: v}, Output: v, Call: call, Return: back}
	}
	r := func(v uint64, call, back int64) porcupine.Operation {
		return porcupine.Operation{ClientId: 1, Input: blockOp{}, Output: v, Call: call, Return: back}
	}
	for name, tt := range map[string]struct {
		history []porcupine.Operation
		want    bool
	}{
		"right":             {[]porcupine.Operation{w(1, 1, 2), r(1, 3, 4), w(2, 5, 6), r(2, 7, 8)}, true},
		"seen on the way":   {[]porcupine.Operation{w(1, 1, 9), r(0, 2, 3), r(1, 4, 5)}, true},
		"lost":              {[]porcupine.Operation{w(1, 1, 2), r(0, 3, 4)}, false},
		"done twice, late":  {[]porcupine.Operation{w(1, 1, 2), w(2, 3, 4), r(2, 5, 6), r(1, 7, 8)}, false},
		"back and forth":    {[]porcupine.Operation{w(1, 1, 9), r(1, 2, 3), r(0, 4, 5)}, false},
		"never written":     {[]porcupine.Operation{r(7, 1, 2)}, false},
		"another's block":   {[]porcupine.Operation{w(1, 1, 2), {Input: blockOp{block: 1}, Output: uint64(1), Call: 3, Return: 4}}, false},
		"its own block too": {[]porcupine.Operation{w(1, 1, 2), {Input: blockOp{block: 1}, Output: uint64(0), Call: 3, Return: 4}}, true},
	} {
		if got := porcupine.CheckOperations(blockModel, tt.history); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// recorder keeps what the callers did and saw.
type recorder struct {
	t     *testing.T
	n     *Namespace
	start time.Time

	mu      sync.Mutex
	history []porcupine.Operation
	clock   int64
}

// now is virtual time, made strictly ascending, for many things happen at one
// instant of it.
func (r *recorder) now() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock = max(r.clock+1, int64(time.Since(r.start)))
	return r.clock
}

// do runs one operation, in the name of a client.
func (r *recorder) do(client int, op blockOp) {
	p := make([]byte, 512)
	call := r.now()
	var err error
	if op.write {
		for i := 0; i < len(p); i += 8 {
			binary.LittleEndian.PutUint64(p[i:], op.value)
		}
		_, err = r.n.WriteAt(p, int64(op.block)*512)
	} else {
		_, err = r.n.ReadAt(p, int64(op.block)*512)
	}
	back := r.now()
	if err != nil {
		r.t.Errorf("client %d: %+v: %v", client, op, err)
		return
	}
	got := binary.LittleEndian.Uint64(p)
	for i := 0; i < len(p); i += 8 {
		if binary.LittleEndian.Uint64(p[i:]) != got {
			r.t.Errorf("block %d is torn", op.block)
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, porcupine.Operation{ClientId: client, Input: op, Call: call, Output: got, Return: back})
}

// Two portals, of which one at a time is killed, in every way there is, while
// callers write and read a few blocks on a medium that is slow and out of order:
// no caller sees an error, no write is lost, none is done twice where it shows.
func TestFailover(t *testing.T) {
	if testing.Short() {
		failover(t, time.Minute)
		return
	}
	failover(t, 10*time.Minute)
}

func failover(t *testing.T, length time.Duration) {
	const (
		writers, readers = 4, 4
		blocks           = 2 // of each writer
		think            = 100 * time.Millisecond
	)
	bubble(t, func(t *testing.T) {
		r, slow := slowRig(t)
		m := r.multipath(RoundRobin)
		n, err := m.Namespace(r.ctx, slowNS)
		r.must(err)
		slow.Judge(func(op *backend.Op) backendtest.Verdict {
			if op.Kind != backend.Write || rand.N(2) == 0 {
				return backendtest.Verdict{}
			}
			time.AfterFunc(rand.N(500*time.Millisecond), func() { slow.Release(1) })
			return backendtest.Verdict{Hold: true}
		})
		rec := &recorder{t: t, n: n, start: time.Now()}
		end := rec.start.Add(length)
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := uint64(1); time.Now().Before(end); i++ {
					rec.do(w, blockOp{write: true, block: w*blocks + rand.N(blocks), value: uint64(w)<<32 | i})
					time.Sleep(rand.N(2 * think))
				}
			})
		}
		for c := range readers {
			wg.Go(func() {
				for time.Now().Before(end) {
					rec.do(writers+c, blockOp{block: rand.N(writers * blocks)})
					time.Sleep(rand.N(2 * think))
				}
			})
		}
		kills := r.killOneByOne(m, end)
		wg.Wait()
		slow.Judge(nil)
		slow.Release(-1)
		if res := porcupine.CheckOperationsTimeout(blockModel, rec.history, time.Minute); res != porcupine.Ok {
			t.Errorf("%d operations: linearizable: %v", len(rec.history), res)
		}
		lost := 0
		for _, c := range m.Controllers() {
			lost += c.Status().Reconnects
		}
		if kills < 5 || lost < kills/2 || len(rec.history) < int(length/think) {
			t.Errorf("%d kills, %d reconnects, %d operations", kills, lost, len(rec.history))
		}
		t.Logf("%v: %d kills, %d reconnects, %d operations", length, kills, lost, len(rec.history))
	})
}

// killOneByOne kills a portal, has it back, and waits until its path is used
// again, until end. It returns how often.
func (r *rig) killOneByOne(m *Multipath, end time.Time) (kills int) {
	for ; time.Now().Before(end); kills++ {
		i := rand.N(len(r.portals))
		p, c := r.portals[i], m.Controllers()[i]
		switch rand.N(3) {
		case 0: // the daemon goes
			p.stop()
			time.Sleep(rand.N(3 * time.Second))
			p.start()
		case 1: // the cable goes
			r.net.Cut(hostIP, p.addr.Addr())
			time.Sleep(rand.N(5 * time.Second))
			r.net.Heal(hostIP, p.addr.Addr())
		case 2: // one queue goes
			c.mu.Lock()
			q := c.queues[rand.N(len(c.queues))]
			c.mu.Unlock()
			r.disconnect(c, q)
		}
		for c.State() != StateLive || c.Status().State != StateLive {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(rand.N(3 * time.Second))
	}
	return kills
}

// disconnect cuts the connection of one queue of a controller.
func (r *rig) disconnect(c *Controller, q *queue) {
	a := c.assoc.Load()
	a.mu.Lock()
	defer a.mu.Unlock()
	for qc := range a.conns {
		if qc.qid == q.qid {
			_ = qc.conn.Disconnect()
		}
	}
}

// What is in flight on a Queue when its controller goes is done in the end,
// once, and the Queue goes on.
func TestQueueFailover(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		c := f.connect(still, func(c *Config) { c.ReplayDelay, c.FastIOFail = time.Second, 10*time.Second })
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		q, err := n.Queue(f.ctx)
		f.must(err)
		defer func() { f.must(q.Close()) }()
		b, err := NewBuffer(64 << 10)
		f.must(err)
		defer func() { f.must(b.Close()) }()
		fill(b.Bytes()[:8192], 7)

		seen := map[nvme.Opcode]int{}
		var mu sync.Mutex
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if fc.req.QID == 0 || isConnect(cmd) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			seen[cmd.Opcode()]++
			if seen[cmd.Opcode()] == 1 {
				return &answer{silent: true}
			}
			return nil
		})
		start := time.Now()
		k, err := q.Submit([]IO{
			{Op: nvme.CmdWrite, LBA: 0, Blocks: 16, Buf: b, Tag: 1},
			{Op: nvme.CmdRead, LBA: 100, Blocks: 16, Buf: b, Offset: 32 << 10, Tag: 2},
			{Op: nvme.CmdFlush, Tag: 3},
		})
		if k != 3 || err != nil {
			t.Fatal(k, err)
		}
		time.AfterFunc(time.Millisecond, f.cutAll)
		at := map[uint64]time.Duration{}
		for done := make([]Result, 8); len(at) < 3; {
			f.must(q.Wait(f.ctx))
			k, err := q.Reap(done)
			f.must(err)
			for _, res := range done[:k] {
				if _, twice := at[res.Tag]; twice || !res.OK() {
					t.Errorf("%+v, twice %v", res, twice)
				}
				at[res.Tag] = time.Since(start)
			}
		}
		if at[1] < time.Second || at[1] > 1100*time.Millisecond || at[2] > 100*time.Millisecond || at[3] > 100*time.Millisecond {
			t.Errorf("ended after %v", at)
		}
		if string(f.disk[:8192]) != string(b.Bytes()[:8192]) {
			t.Error("not what was written")
		}

		// When it does not come back, what waits fails after FastIOFail.
		f.judge(func(nvme.CMRequest) []byte { return []byte{} })
		f.cutAll()
		time.Sleep(time.Millisecond)
		start = time.Now()
		_, err = q.Submit([]IO{{Op: nvme.CmdRead, Blocks: 1, Buf: b, Tag: 9}})
		f.must(err)
		f.must(q.Wait(f.ctx))
		done := make([]Result, 8)
		k, err = q.Reap(done)
		if d := time.Since(start); k != 1 || err != nil || done[0].Err == nil || d < 9900*time.Millisecond || d > 10*time.Second {
			t.Errorf("%d, %v, %+v after %v", k, err, done[0], d)
		}
		f.judge(nil)
		time.Sleep(time.Second)
		if _, err = q.Submit([]IO{{Op: nvme.CmdRead, Blocks: 1, Buf: b, Tag: 10}}); err != nil {
			t.Error(err)
		}
		f.must(q.Wait(f.ctx))
		if k, err = q.Reap(done); k != 1 || !done[0].OK() {
			t.Errorf("after it came back: %v %+v", err, done[0])
		}
	})
}
