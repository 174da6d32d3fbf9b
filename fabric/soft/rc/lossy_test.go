package rc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// weather is what a link does to packets: shares of 0 to 1.
type weather struct{ lose, twice, late float64 }

// route makes a router of it.
func (f weather) route(w *world, rng *rand.Rand) func(int, wire.Opcode, int) []time.Duration {
	arrive := func() time.Duration {
		if rng.Float64() < f.late {
			return w.delay + time.Duration(rng.IntN(500))*time.Microsecond
		}
		return w.delay
	}
	return func(int, wire.Opcode, int) []time.Duration {
		switch {
		case rng.Float64() < f.lose:
			return nil
		case rng.Float64() < f.twice:
			return []time.Duration{arrive(), arrive() + time.Duration(rng.IntN(2000))*time.Microsecond}
		}
		return []time.Duration{arrive()}
	}
}

// transfer is one operation and the memory it moves.
type transfer struct {
	op       fabric.Opcode
	from, to []byte
}

// traffic posts random operations of end i, each with its own bytes at both
// ends so that what arrived can be checked. Atomics all add to one counter.
type traffic struct {
	w       *world
	i       int
	rng     *rand.Rand
	all     []transfer
	next    int // offset of free memory, the same at both ends
	limit   int
	adds    int
	recvs   []transfer
	counter int
	window  fabric.MemoryWindow // bound and invalidated in turn
	bound   bool
}

const counterSize = 64

func (tr *traffic) step() {
	e, peer := tr.w.ends[tr.i], tr.w.ends[1-tr.i]
	n := tr.rng.IntN(3000)
	if tr.rng.IntN(4) == 0 {
		n = tr.rng.IntN(30000)
	}
	n = min(n, tr.limit-tr.next)
	id := uint64(len(tr.all))
	mine, theirs := e.mem.Bytes()[tr.next:tr.next+n], peer.mem.Bytes()[tr.next:tr.next+n]
	flags := fabric.FlagSignaled
	if tr.rng.IntN(8) == 0 {
		flags |= fabric.FlagFence
	}
	op := []fabric.Opcode{
		fabric.OpSend, fabric.OpWrite, fabric.OpRead, fabric.OpWriteImm, fabric.OpSendImm, fabric.OpFetchAdd, fabric.OpBind,
	}[tr.rng.IntN(7)]
	if op == fabric.OpBind {
		tr.stepWindow(e, id)
		return
	}
	x := transfer{op, mine, theirs}
	wr := fabric.SendWR{ID: id, Op: op, Flags: flags, RemoteAddr: peer.mem.Addr() + uint64(tr.next), RKey: peer.mr.RKey(), Imm: uint32(id)}
	switch op {
	case fabric.OpFetchAdd:
		tr.adds++
		_, err := e.qp.EnqueueAtomic([]fabric.AtomicWR{{
			ID: id, Op: op, Flags: flags, RemoteAddr: peer.mem.Addr() + uint64(tr.counter), RKey: peer.mr.RKey(), SwapAdd: 1,
		}}, []fabric.SGE{e.sge(tr.counter+8, 8)})
		tr.w.must(err)
		tr.all = append(tr.all, transfer{op: op})
		return
	case fabric.OpRead:
		x.from, x.to = theirs, mine
		wr.Imm = 0
	case fabric.OpSend, fabric.OpSendImm:
		tr.w.recv(1-tr.i, uint64(len(tr.recvs)), peer.sge(tr.next, n))
		tr.recvs = append(tr.recvs, x)
	case fabric.OpWriteImm:
		tr.w.recv(1-tr.i, uint64(len(tr.recvs)), peer.sge(tr.next, 0))
		tr.recvs = append(tr.recvs, x)
	}
	fill(x.from, int(id))
	clear(x.to)
	k := tr.rng.IntN(n + 1)
	tr.w.post(tr.i, wr, e.sge(tr.next, k), e.sge(tr.next+k, n-k))
	tr.all = append(tr.all, x)
	tr.next += n
}

// stepWindow binds the window, or invalidates it.
func (tr *traffic) stepWindow(e *end, id uint64) {
	if tr.bound = !tr.bound; tr.bound {
		_, err := e.qp.EnqueueBind(tr.window, e.mr, 0, 64, fabric.AccessRemoteRead, id, fabric.FlagSignaled)
		tr.w.must(err)
		tr.all = append(tr.all, transfer{op: fabric.OpBind})
		return
	}
	tr.w.post(tr.i, fabric.SendWR{ID: id, Op: fabric.OpLocalInv, RKey: tr.window.RKey(), Flags: fabric.FlagSignaled})
	tr.all = append(tr.all, transfer{op: fabric.OpLocalInv})
}

// check holds what completed against what was posted, in order.
func (tr *traffic) check(name string) {
	e, peer := tr.w.ends[tr.i], tr.w.ends[1-tr.i]
	var sends, recvs int
	for _, c := range e.wcs {
		if c.Op >= fabric.OpRecv {
			continue
		}
		if c.ID != uint64(sends) || c.Status != fabric.StatusSuccess || c.Op != tr.all[sends].op {
			tr.w.t.Fatalf("%s: %v %v %+v completion %+v instead of the %dth %v", name, e.qp.Err(), peer.qp.Err(), *e.qp.stats, c, sends, tr.all[sends].op)
		}
		sends++
	}
	for _, c := range peer.wcs {
		if c.Op < fabric.OpRecv {
			continue
		}
		x := tr.recvs[recvs]
		if c.ID != uint64(recvs) || c.Status != fabric.StatusSuccess || int(c.ByteLen) != len(x.from) {
			tr.w.t.Fatalf("%s: receive %+v instead of the %dth of %d bytes", name, c, recvs, len(x.from))
		}
		recvs++
	}
	if sends != len(tr.all) || recvs != len(tr.recvs) {
		tr.w.t.Fatalf("%s: %d of %d sends, %d of %d receives completed", name, sends, len(tr.all), recvs, len(tr.recvs))
	}
	for i, x := range tr.all {
		if !bytes.Equal(x.from, x.to) {
			tr.w.t.Fatalf("%s: the bytes of the %dth, a %v, differ", name, i, x.op)
		}
	}
	if got := int(peer.mem.Bytes()[tr.counter]); got != tr.adds%256 {
		tr.w.t.Fatalf("%s: %d atomics were executed %d times", name, tr.adds, got)
	}
}

// Both ends send, write, read and count at once through all sorts of weather:
// everything completes, in order, with the right bytes, each once.
func TestLossy(t *testing.T) {
	seeds := 6
	if testing.Short() {
		seeds = 1
	}
	for _, f := range []weather{
		{}, {lose: 0.01}, {lose: 0.05}, {lose: 0.2}, {twice: 0.1}, {late: 0.1}, {0.05, 0.05, 0.05}, {0.2, 0.2, 0.2},
	} {
		t.Run(fmt.Sprintf("lose %v twice %v late %v", f.lose, f.twice, f.late), func(t *testing.T) {
			for seed := range seeds {
				lossy(t, f, uint64(seed))
			}
		})
	}
}

func lossy(t *testing.T, f weather, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	cfg := defaultConfig()
	cfg.MTU = 256 << rng.IntN(5)
	cfg.ORD, cfg.IRD = 1+int(seed)%5, 1+int(seed)%5
	cfg.psn, cfg.depth = 0xfffff0, 512
	cfg.RetryCount = 7
	cfg.AckTimeout = time.Second
	w := newWorld(t, cfg)
	w.router = f.route(w, rng)
	half := memSize / 2
	ends := []*traffic{
		{w: w, i: 0, rng: rng, next: counterSize, limit: half, counter: 0},
		{w: w, i: 1, rng: rng, next: half + counterSize, limit: memSize, counter: half},
	}
	for _, tr := range ends {
		for _, e := range w.ends {
			clear(e.mem.Bytes()[tr.counter : tr.counter+counterSize])
		}
		var err error
		tr.window, err = w.ends[tr.i].dev.NewMemoryWindow()
		w.must(err)
	}
	for range 40 {
		for range 3 {
			ends[rng.IntN(2)].step()
		}
		w.run(time.Duration(rng.IntN(300)) * time.Microsecond)
		w.now += time.Duration(rng.IntN(300)) * time.Microsecond
	}
	w.run(time.Hour)
	for _, tr := range ends {
		tr.check(fmt.Sprintf("seed %d end %d", seed, tr.i))
	}
	for _, e := range w.ends {
		if d := e.qp.Deadline(); d != Never {
			t.Errorf("seed %d: %s waits for %v with nothing to do", seed, e.name, d)
		}
	}
}

// A path that loses one packet in five still moves data, and what is sent
// again stays within a small multiple of the data: no storm.
func TestNoStorm(t *testing.T) {
	for _, lose := range []float64{0.01, 0.05, 0.2} {
		cfg := defaultConfig()
		cfg.MTU, cfg.RetryCount, cfg.AckTimeout = 1024, 7, time.Second
		w := newWorld(t, cfg)
		w.router = weather{lose: lose}.route(w, rand.New(rand.NewPCG(7, 7)))
		a, b := w.ends[0], w.ends[1]
		const n = 1 << 20
		w.post(0, fabric.SendWR{ID: 1, Op: fabric.OpWrite, Flags: fabric.FlagSignaled, RemoteAddr: b.mem.Addr(), RKey: b.mr.RKey()}, a.sge(0, n))
		for i := range 8 {
			w.post(0, fabric.SendWR{ID: 2, Op: fabric.OpRead, RemoteAddr: b.mem.Addr(), RKey: b.mr.RKey(), Flags: fabric.FlagSignaled}, a.sge(n+i*n/8, n/8))
		}
		w.run(time.Hour)
		if len(a.wcs) != 9 || a.wcs[8].Status != 0 {
			t.Fatalf("lose %v: %v", lose, statuses(a))
		}
		const data = 2 * n / 1024
		t.Logf("lose %v: %v, %d packets for %d of data, %+v", lose, w.now, w.count[0]+w.count[1], data, *a.qp.stats)
		if sent := w.count[0] + w.count[1]; sent > 8*data {
			t.Errorf("lose %v: %d packets for %d of data", lose, sent, data)
		}
	}
}
