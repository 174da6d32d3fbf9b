package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// lentEnv is an env whose namespace 3 lends its memory, which the transport
// knows. The lender's 3072 pages of 4 KiB make 12 MiB.
func lentEnv(t testing.TB, o envOptions) (*env, *lender) {
	t.Helper()
	return lentEnvOf(t, o, blockLen)
}

// lentEnvOf is lentEnv with blocks of so many bytes.
func lentEnvOf(t testing.TB, o envOptions, block uint64) (*env, *lender) {
	t.Helper()
	d, err := newLender(3072, 4096)
	if err != nil {
		t.Fatal(err)
	}
	d.block = block
	o.extra, o.memory = d, int64(d.mem.Len())
	e := newEnv(t, o)
	e.tr.AddRegion(d.mem)
	return e, d
}

// registered waits until the target's devices have n regions in their tables.
func (e *env) registered(n int) {
	e.t.Helper()
	e.until(fmt.Sprintf("%d regions are registered", n), func() bool {
		got := 0
		for _, d := range e.tr.openDevices() {
			if table := d.lent.Load(); table != nil {
				got += len(*table)
			}
		}
		return got == n
	})
}

// lentQueue is an I/O queue with its loans at work.
func (e *env) lentQueue(o rdmatest.Options) *rdmatest.Queue {
	e.t.Helper()
	o.DataSize = 4 << 20
	q := e.queue(o, rdmatest.ConnectParams{})
	e.registered(1)
	return q
}

// checkRead reads size bytes into n descriptors of odd lengths and compares them
// with the medium's.
func (e *env) checkRead(q *rdmatest.Queue, d *lender, lba uint64, size, n int) {
	e.t.Helper()
	cmd := make(nvme.Command, nvme.SQESize)
	clear(q.Data())
	descs, parts := pieces(q, n, size, 0)
	q.IO(cmd, nvme.CmdRead, 3, extraNS, lba, uint32(size/int(d.block)), 0, 0)
	cmd.SGL1().SetSegment(nvme.SGLLastSegment, 0, uint32(len(descs)), nvme.SGLOffset)
	r, err := q.Do(e.ctx, cmd, descs)
	e.status(r.Status, err, 0)
	var got []byte
	for _, p := range parts {
		got = append(got, q.Data()[p[0]:p[0]+p[1]]...)
		clear(q.Data()[p[0] : p[0]+p[1]])
	}
	if !bytes.Equal(got, d.read(lba*d.block, uint64(size))) {
		e.t.Errorf("%d bytes at block %d into %d pieces: not what the medium has", size, lba, n)
	}
	if bytes.Count(q.Data(), []byte{0}) != len(q.Data()) {
		e.t.Errorf("%d bytes at block %d into %d pieces: bytes beside them", size, lba, n)
	}
}

// What is lent arrives complete, whatever the limits of the device, and what
// has too many pieces is copied.
func TestLentReads(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits func(*fabric.Limits)
		most   int // pieces of a loan
	}{
		{"generous", nil, maxLoan},
		{"one SGE", func(l *fabric.Limits) { l.MaxSGE, l.MaxReadSGE = 1, 1 }, maxPieces},
		{"three SGEs", func(l *fabric.Limits) { l.MaxSGE, l.MaxReadSGE = 3, 1 }, 3 * maxPieces},
		{"small messages", func(l *fabric.Limits) { l.MaxMessage = 4096 }, maxLoan},
		{"small queues", func(l *fabric.Limits) { l.MaxQPDepth, l.MaxSGE, l.MaxReadSGE = 64, 1, 1 }, maxPieces},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, d := lentEnv(t, envOptions{device: fabrictest.DeviceOptions{Limits: c.limits}})
			q := e.lentQueue(rdmatest.Options{HSQSize: 20})
			loans, copies, lentBytes := int64(0), int64(0), uint64(0)
			for _, size := range []int{512, 4096, 5 * 512, 28 << 10, 32 << 10, 64 << 10, 128 << 10, 132 << 10, 1 << 20} {
				for i, n := range []int{1, 2, 16} {
					lba := uint64(i * 3)
					e.checkRead(q, d, lba, size, n)
					first, last := lba*blockLen/4096, (lba*blockLen+uint64(size)-1)/4096
					if int(last-first)+1 <= c.most {
						loans++
						lentBytes += uint64(size)
					} else {
						copies++
					}
				}
			}
			if got := d.loans.Load(); got != loans || d.reads.Load() != copies || copies == 0 {
				t.Errorf("%d loans and %d copies, want %d and %d", got, d.reads.Load(), loans, copies)
			}
			e.until("all loans are back", func() bool { return d.lent.Load() == 0 })
			s := e.snapshot()
			if sum := s.sum(); sum.Stale != 0 || sum.LentBytes != lentBytes || s.LentMemory != 12<<20 {
				t.Errorf("%d bytes lent, want %d; %+v", sum.LentBytes, lentBytes, sum)
			}
		})
	}
}

// A hit moves no byte in this process: the WRITE's SGEs are the lent pages, and
// no buffer is taken. (The memory provider copies where a NIC would.)
func TestHitMovesNoByte(t *testing.T) {
	e, d := lentEnv(t, envOptions{cfg: func(c *Config) { c.PollGroups = 1 }})
	q := e.lentQueue(rdmatest.Options{})
	g := e.tr.groups[0]
	key := (*e.connOf(1).dev.lent.Load())[0].key
	release := g.byHand()
	defer release()
	cmd := make(nvme.Command, nvme.SQESize)
	for _, size := range []int{4096, 128 << 10} {
		q.IO(cmd, nvme.CmdRead, 1, extraNS, 3, uint32(size/blockLen), 0, size)
		e.must(q.SendCommand(cmd, nil))
		for g.batch.reset(); len(g.batch.wrs) == 0; {
			g.turn()
		}
		moved := 0
		for i := range g.batch.wrs {
			wr := &g.batch.wrs[i]
			if wr.Op != fabric.OpWrite {
				continue
			}
			for _, s := range g.batch.sges[wr.FirstSGE:][:wr.NumSGE] {
				if s.Addr < d.mem.Addr() || s.Addr+uint64(s.Length) > d.mem.Addr()+uint64(d.mem.Len()) || s.LKey != key {
					t.Errorf("%d bytes from %#x under key %#x: not of the lent memory", s.Length, s.Addr, s.LKey)
				}
				moved += int(s.Length)
			}
		}
		if p := g.pools[dataPool]; moved != size || p.free != p.pages || d.reads.Load() != 0 {
			t.Errorf("%d of %d bytes sent from lent memory; %d pages of buffers taken", moved, size, p.pages-p.free)
		}
		for d.lent.Load() != 0 || len(q.Take()) != 1 {
			g.turn()
			if _, err := q.Poll(); err != nil {
				t.Fatal(err)
			}
			if e.ctx.Err() != nil {
				t.Fatal("no response")
			}
		}
	}
}

// A device that cannot register the memory copies, and says so once.
func TestLentMemoryRefused(t *testing.T) {
	e, d := lentEnv(t, envOptions{device: fabrictest.DeviceOptions{Limits: func(l *fabric.Limits) { l.MaxMRSize = 11 << 20 }}})
	q := e.queue(rdmatest.Options{DataSize: 4 << 20}, rdmatest.ConnectParams{})
	e.until("the device has refused", func() bool { return len(e.log.lines("cannot send from a cache")) > 0 })
	e.tr.AddRegion(d.mem) // registers what is missing, and has it no second time
	for i := range 3 {
		e.checkRead(q, d, uint64(i), 64<<10, 2)
	}
	if d.loans.Load() != 0 || d.reads.Load() != 3 {
		t.Errorf("%d loans, %d copies", d.loans.Load(), d.reads.Load())
	}
	if lines := e.log.lines("cannot send from a cache"); len(lines) != 1 {
		t.Errorf("log %q", lines)
	}
	e.must(e.tr.RemoveRegion(d.mem))
	e.must(e.tr.RemoveRegion(d.mem))
}

// Memory of a backend that no region was added for is not lent, nor is that of
// one whose region was removed: the loan goes back and the data is copied.
func TestForeignLoan(t *testing.T) {
	e, d := lentEnv(t, envOptions{})
	other, err := fabric.AllocMemory(4096)
	e.must(err)
	q := e.lentQueue(rdmatest.Options{})
	e.tr.AddRegion(other)
	e.registered(2)
	e.checkRead(q, d, 0, 4096, 1)
	e.must(e.tr.RemoveRegion(d.mem))
	e.registered(1)
	e.checkRead(q, d, 0, 4096, 1)
	if d.loans.Load() != 2 || d.reads.Load() != 1 || d.lent.Load() != 0 {
		t.Errorf("%d loans, %d copies, %d out", d.loans.Load(), d.reads.Load(), d.lent.Load())
	}
	e.must(e.tr.RemoveRegion(other))
	e.must(other.Close())
	e.registered(0)
	e.checkRead(q, d, 0, 4096, 1)
	if d.loans.Load() != 2 { // no room is offered where nothing is registered
		t.Errorf("%d loans", d.loans.Load())
	}
	if n := e.snapshot().LentMemory; n != 0 {
		t.Errorf("%d bytes are still known as lent", n)
	}
}

// A namespace that is removed while its memory is on its way to a host keeps
// its queue until that has ended; then device, region and memory go in order.
func TestRemoveWhileLent(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(e *env, q *rdmatest.Queue)
	}{
		{"the host takes its responses", func(e *env, q *rdmatest.Queue) {
			for range 4 {
				e.must(q.PostHeld(1))
				r, err := q.Wait(e.ctx)
				e.status(r.Status, err, 0)
			}
		}},
		{"the host disconnects", func(e *env, q *rdmatest.Queue) { e.must(q.Conn().Disconnect()) }},
		{"the host vanishes", func(e *env, q *rdmatest.Queue) { e.net.Cut(targetIP, hostIP) }},
		{"the target disconnects", func(e *env, q *rdmatest.Queue) { e.l.Disconnect(errors.New("enough")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, d := lentEnv(t, envOptions{})
			q := e.lentQueue(rdmatest.Options{HoldReceives: true, Receives: 1})
			cmd := make(nvme.Command, nvme.SQESize)
			for i := range 4 {
				q.IO(cmd, nvme.CmdRead, uint16(i), extraNS, uint64(i)*8, 8, i*4096, 4096)
				e.must(q.SendCommand(cmd, nil))
			}
			e.until("four loans are out", func() bool { _, _ = q.Poll(); return d.lent.Load() == 4 })
			ctx, cancel := context.WithTimeout(e.ctx, 20*time.Millisecond)
			defer cancel()
			if err := e.sub.RemoveNamespace(ctx, extraNS); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("removed with memory on loan: %v", err)
			}
			if d.queues.Load() == 0 {
				t.Fatal("its queue is closed")
			}
			c.end(e, q)
			e.until("all loans are back and the queues closed", func() bool {
				_, _ = q.Poll()
				return d.lent.Load() == 0 && d.queues.Load() == 0
			})
			e.must(e.tr.RemoveRegion(d.mem))
		})
	}
}

// The namespace comes and goes with its memory in the middle of loans. The
// memory is unmapped after the last has come back: a later touch would end the
// process.
func TestLentChurn(t *testing.T) {
	e := newEnv(t, envOptions{bound: time.Minute})
	q := e.queue(rdmatest.Options{DataSize: 4 << 20}, rdmatest.ConnectParams{})
	loans := int64(0)
	for round := range 6 {
		d, err := newLender(2048, 4096)
		e.must(err)
		d.block = 4096 // as load has it
		e.tr.AddRegion(d.mem)
		_, err = e.sub.AddNamespace(target.NamespaceConfig{NSID: extraNS, Device: d})
		e.must(err)
		e.checkRead(q, d, 0, 4096, 1)
		ctx, cancel := context.WithCancel(e.ctx)
		removed := make(chan error, 1)
		time.AfterFunc(time.Duration(2+4*round)*time.Millisecond, func() {
			removed <- e.sub.RemoveNamespace(e.ctx, extraNS)
			cancel()
		})
		if err := load(ctx, q, 16, extraNS, uint64(round)); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		e.must(<-removed)
		e.must(d.closeWith(e.tr))
		for left := 16; left > 0; { // what load has left in flight
			_, err := q.Wait(e.ctx)
			e.must(err)
			left--
		}
		if d.lent.Load() != 0 {
			t.Errorf("%d loans are not back", d.lent.Load())
		}
		loans += d.loans.Load()
	}
	if loans < 100 {
		t.Errorf("%d loans in all", loans)
	}
}

// closeWith ends the device as its owner does: its queues are closed, hence
// nothing is on loan.
func (d *lender) closeWith(tr *Transport) error {
	if d.queues.Load() > 0 {
		return backend.ErrBusy
	}
	return errors.Join(tr.RemoveRegion(d.mem), d.Close())
}

// The read of a host over a wire is answered from lent memory, too.
func TestLentOverSoftRNIC(t *testing.T) {
	e, d := lentEnv(t, envOptions{open: func() (fabric.Provider, fabric.Provider, [2]netip.Addr) { return openRoCE(t) }})
	q := e.lentQueue(rdmatest.Options{})
	for _, size := range []int{512, 4096, 128 << 10, 1 << 20} {
		for _, n := range []int{1, 5} {
			e.checkRead(q, d, 5, size, n)
		}
	}
	if d.loans.Load() != 6 || d.reads.Load() != 2 {
		t.Errorf("%d loans, %d copies", d.loans.Load(), d.reads.Load())
	}
	e.until("all loans are back", func() bool { return d.lent.Load() == 0 })
}

// The search for a region against a look at each.
func TestLentTable(t *testing.T) {
	table := lentTable{{start: 100, end: 200, key: 1}, {start: 200, end: 201, key: 2}, {start: 300, end: 1000, key: 3}}
	for addr := range uint64(1100) {
		want, found := uint32(0), false
		for _, r := range table {
			if addr >= r.start && addr < r.end {
				want, found = r.key, true
			}
		}
		if key, ok := table.key(addr); key != want || ok != found {
			t.Errorf("address %d: key %d, %v", addr, key, ok)
		}
	}
	if _, ok := (lentTable{}).key(5); ok {
		t.Error("found in nothing")
	}
}
