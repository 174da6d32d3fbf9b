package rdma

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// byHand stops the poll group's goroutine and hands the group to the caller,
// who then drives its turns, until release.
func (g *group) byHand() (release func()) {
	taken, back := make(chan struct{}), make(chan struct{})
	g.post(func() { close(taken); <-back })
	<-taken
	return func() { close(back) }
}

// pump is a host that keeps depth commands in flight on one queue.
type pump struct {
	q     *rdmatest.Queue
	cmd   nvme.Command
	op    nvme.Opcode
	nsid  uint32
	size  int
	block int    // bytes
	data  []byte // in the capsule, for writes
	next  uint64
	done  int
}

func (p *pump) send(cid uint16) error {
	p.next = p.next*6364136223846793005 + 1442695040888963407
	p.q.IO(p.cmd, p.op, cid, p.nsid, p.next>>33%(1<<10), uint32(p.size/p.block), int(cid)*p.size, p.size)
	if p.data != nil {
		p.cmd.SGL1().SetInCapsule(0, uint32(len(p.data)))
	}
	return p.q.SendCommand(p.cmd, p.data)
}

func (p *pump) start(depth int) error {
	for cid := range uint16(depth) {
		if err := p.send(cid); err != nil {
			return err
		}
	}
	return nil
}

// poll takes responses and sends as many commands.
func (p *pump) poll() error {
	if _, err := p.q.Poll(); err != nil {
		return err
	}
	for _, r := range p.q.Take() {
		if !r.Status.OK() {
			return r.Status
		}
		p.done++
		if err := p.send(r.CID); err != nil {
			return err
		}
	}
	return nil
}

func newPump(e *env, op nvme.Opcode, depth, size int, inCapsule bool) *pump {
	q := e.queue(rdmatest.Options{HSQSize: uint16(max(depth-1, 1)), DataSize: depth * size}, rdmatest.ConnectParams{})
	p := &pump{q: q, cmd: make(nvme.Command, nvme.SQESize), op: op, nsid: nullNS, size: size, block: 4096}
	if inCapsule {
		p.data = make([]byte, size)
	}
	return p
}

// lends has the pump read what the lender has, in blocks of 512 bytes.
func (p *pump) lends() { p.nsid, p.block = extraNS, blockLen }

// Nothing allocates per I/O, from the capsule to the response: reads, writes by
// READ and in the capsule, large ones, and waiting for buffers.
func TestNoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, c := range []struct {
		name      string
		op        nvme.Opcode
		depth     int
		size      int
		inCapsule bool
		cfg       func(*Config)
	}{
		{"read of lent memory", nvme.CmdRead, 32, 4096, false, nil},
		{"read of 128 KiB of lent memory", nvme.CmdRead, 16, 128 << 10, false, nil},
		{"read", nvme.CmdRead, 32, 4096, false, nil},
		{"read, depth 1", nvme.CmdRead, 1, 4096, false, nil},
		{"write", nvme.CmdWrite, 32, 4096, false, nil},
		{"write in the capsule", nvme.CmdWrite, 32, 4096, true, nil},
		{"write of 68 KiB", nvme.CmdWrite, 16, 68 << 10, false, nil},
		{"read of 1 MiB, waiting", nvme.CmdRead, 16, 1 << 20, false, func(c *Config) { c.Buffers = 2 << 20 }},
		{"shared receives", nvme.CmdWrite, 32, 4096, true, func(c *Config) { c.SRQ = On }},
		{"event mode", nvme.CmdRead, 4, 4096, false, func(c *Config) { c.Poll = PollEvent }},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, d := lentEnv(t, envOptions{cfg: func(cfg *Config) {
				cfg.PollGroups = 1
				if c.cfg != nil {
					c.cfg(cfg)
				}
			}})
			p := newPump(e, c.op, c.depth, c.size, c.inCapsule)
			if strings.Contains(c.name, "lent") {
				p.lends()
			}
			e.must(p.start(c.depth))
			run := func(n int) {
				for end := p.done + n; p.done < end; {
					e.must(p.poll())
					runtime.Gosched()
				}
			}
			defer func() {
				if lent := d.loans.Load(); p.nsid == extraNS && lent < int64(p.done) {
					t.Errorf("%d of %d reads were lent", lent, p.done)
				}
			}()
			n := 4000
			if c.size > 128<<10 {
				n = 400
			}
			run(n)
			// What else the process does allocates too, so the best of a few counts.
			best := ^uint64(0)
			for range 5 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				run(n)
				runtime.ReadMemStats(&after)
				best = min(best, after.Mallocs-before.Mallocs)
			}
			if best > uint64(n/100) {
				t.Errorf("%d allocations in %d commands", best, n)
			}
		})
	}
}

// BenchmarkIO measures commands over the in-memory provider and the null
// backend. target-ns is the poll group's CPU time per command, host-ns the raw
// host's, which executes the RDMA WRITEs; both run on one thread, in turns.
func BenchmarkIO(b *testing.B) {
	for _, c := range []struct {
		name      string
		op        nvme.Opcode
		size      int
		inCapsule bool
	}{
		{"read-4K", nvme.CmdRead, 4096, false},
		{"write-4K", nvme.CmdWrite, 4096, false},
		{"write-4K-in-capsule", nvme.CmdWrite, 4096, true},
		{"read-128K", nvme.CmdRead, 128 << 10, false},
	} {
		for _, depth := range []int{1, 32, 128} {
			b.Run(fmt.Sprintf("%s/depth-%d", c.name, depth), func(b *testing.B) {
				benchmarkIO(b, c.op, depth, c.size, c.inCapsule)
			})
		}
	}
}

func benchmarkIO(b *testing.B, op nvme.Opcode, depth, size int, inCapsule bool) {
	e := newEnv(b, envOptions{bound: time.Minute, cfg: func(c *Config) { c.PollGroups, c.Buffers = 1, 64<<20 }})
	benchmarkPump(b, e, newPump(e, op, depth, size, inCapsule), depth)
}

// BenchmarkLent measures reads of pages of 4 KiB that begin anywhere in one:
// sent from where they are, and copied into buffers before. It says up to how
// many pieces a loan is worth its SGEs (maxLoan).
func BenchmarkLent(b *testing.B) {
	for _, size := range []int{4 << 10, 16 << 10, 28 << 10, 64 << 10, 128 << 10, 256 << 10} {
		for _, how := range []string{"lent", "copied"} {
			b.Run(fmt.Sprintf("%dK/%s", size>>10, how), func(b *testing.B) {
				e, d := lentEnv(b, envOptions{bound: time.Minute, cfg: func(c *Config) { c.PollGroups, c.Buffers = 1, 64<<20 }})
				d.cold.Store(how == "copied")
				p := newPump(e, nvme.CmdRead, 16, size, false)
				p.lends()
				e.registered(1)
				benchmarkPump(b, e, p, 16)
				b.ReportMetric(float64(d.loans.Load())/float64(p.done), "loans/op")
			})
		}
	}
}

// benchmarkPump runs a pump against the only poll group.
func benchmarkPump(b *testing.B, e *env, p *pump, depth int) {
	g := e.tr.groups[0]
	release := g.byHand()
	defer release()
	runtime.LockOSThread() // the clock is the thread's
	defer runtime.UnlockOSThread()
	cost := clockCost()
	e.must(p.start(depth))
	before := g.stats.Turns
	var host, target time.Duration
	b.ReportAllocs()
	b.ResetTimer()
	start := p.done
	for p.done-start < b.N {
		t0 := cpuTime()
		g.turn()
		t1 := cpuTime()
		if err := p.poll(); err != nil {
			b.Fatal(err)
		}
		target += t1 - t0 - cost
		host += cpuTime() - t1 - cost
	}
	b.StopTimer()
	n := float64(p.done - start)
	b.ReportMetric(float64(target.Nanoseconds())/n, "target-ns/op")
	b.ReportMetric(float64(host.Nanoseconds())/n, "host-ns/op")
	b.ReportMetric(n/float64(g.stats.Turns-before), "ops/turn")
}

// cpuTime is the time that this thread has used: on a busy machine it says more
// than the wall clock.
func cpuTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// clockCost is what one reading of the clock takes.
func clockCost() time.Duration {
	const n = 10000
	t0 := cpuTime()
	for range n {
		cpuTime()
	}
	return (cpuTime() - t0) / n
}

// BenchmarkIdleTurn is the price of a turn with nothing to do.
func BenchmarkIdleTurn(b *testing.B) {
	e := newEnv(b, envOptions{bound: time.Minute, cfg: func(c *Config) { c.PollGroups = 1 }})
	e.admin()
	g := e.tr.groups[0]
	release := g.byHand()
	defer release()
	g.turn()
	b.ReportAllocs()
	for b.Loop() {
		g.turn()
	}
}
