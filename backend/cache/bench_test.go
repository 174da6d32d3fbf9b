package cache

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/backend/null"
	"github.com/nvmf-go/nvmf/nvme"
)

// slow is a device whose operations take a time, any number of them at once,
// of which it keeps account instead of waiting: all that are in flight end
// together, one latency after the last of them began.
type slow struct {
	backend.Device
	latency time.Duration
	waited  *time.Duration
}

func (d slow) NewQueue(depth int, notify func()) (backend.Queue, error) {
	q, err := d.Device.NewQueue(depth, notify)
	return &slowQueue{q, d}, err
}

type slowQueue struct {
	backend.Queue
	dev slow
}

func (q *slowQueue) Reap(done []backend.Completion) int {
	n := q.Queue.Reap(done)
	if n > 0 {
		*q.dev.waited += q.dev.latency
	}
	return n
}

// driver keeps so many reads in flight, one block each, and lends first if the
// queue can.
type driver struct {
	q      backend.Queue
	lender backend.Lender
	ops    []backend.Op
	free   []int
	batch  []backend.Op
	done   []backend.Completion
	bufs   [][]byte
}

func newDriver(b testing.TB, d backend.Device, depth int) *driver {
	b.Helper()
	q, err := d.NewQueue(depth, func() {})
	if err != nil {
		b.Fatal(err)
	}
	v := &driver{q: q, ops: make([]backend.Op, depth), done: make([]backend.Completion, depth), bufs: make([][]byte, 0, 16)}
	v.lender, _ = q.(backend.Lender)
	memory := backendtest.Memory(b, depth*4096)
	for i := range v.ops {
		v.ops[i] = backend.Op{ID: uint64(i), Kind: backend.Read, Length: 4096, Bufs: [][]byte{memory[i*4096:][:4096]}}
		v.free = append(v.free, i)
	}
	return v
}

// run makes n reads at the offsets that next gives.
func (v *driver) run(b testing.TB, n int, next func() uint64) {
	for ended := 0; ended < n; {
		v.batch = v.batch[:0]
		for len(v.free) > 0 && ended+len(v.ops)-len(v.free) < n {
			off := next()
			if v.lender != nil {
				if lent, ok := v.lender.Lend(off, 4096, v.bufs); ok {
					v.lender.Return(lent)
					ended++
					continue
				}
			}
			i := v.free[len(v.free)-1]
			v.free = v.free[:len(v.free)-1]
			v.ops[i].Offset = off
			v.batch = append(v.batch, v.ops[i])
		}
		if v.q.Submit(v.batch) != len(v.batch) {
			b.Fatal("a queue with room did not take everything")
		}
		got := v.q.Reap(v.done)
		for _, c := range v.done[:got] {
			if c.Status != nvme.Success {
				b.Fatal(c.Status)
			}
			v.free = append(v.free, int(c.ID))
		}
		if ended += got; got == 0 {
			runtime.Gosched()
		}
	}
}

func (v *driver) close(b testing.TB, d backend.Device) {
	if err := v.q.Close(); err != nil {
		b.Error(err)
	}
	if err := d.Close(); err != nil {
		b.Error(err)
	}
}

// zipf gives page numbers below n, the popular ones scattered over them.
func zipf(n uint64, s float64, seed uint64) func() uint64 {
	z := rand.NewZipf(rand.New(rand.NewPCG(seed, 11)), s, 1, n-1)
	order := rand.New(rand.NewPCG(seed, 12)).Perm(int(n))
	return func() uint64 { return uint64(order[z.Uint64()]) }
}

func openNull(b testing.TB, size uint64) backend.Device {
	d, err := null.Open(null.Options{Size: size, BlockSize: 4096})
	if err != nil {
		b.Fatal(err)
	}
	return d
}

// BenchmarkZipf is random reads of a working set of four times the cache, on a
// medium of 100 us. The time is that of the medium, which is kept account of,
// and of the processor.
func BenchmarkZipf(b *testing.B) {
	for _, depth := range []int{1, 32} {
		for _, cached := range []bool{false, true} {
			b.Run(fmt.Sprintf("depth %d/cache %v", depth, cached), func(b *testing.B) { readZipf(b, depth, cached) })
		}
	}
}

func readZipf(b *testing.B, depth int, cached bool) {
	const pages = 8192
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var waited time.Duration
	var d backend.Device = slow{openNull(b, 4*pages*4096), 100 * time.Microsecond, &waited}
	pick := zipf(4*pages, 1.1, 1)
	next := func() uint64 { return pick() * 4096 }
	if cached {
		c := over(b, d, pages, Options{})
		w := newDriver(b, c, depth)
		for range 16 * pages / 256 { // to the steady state
			w.run(b, 256, next)
			settle(c)
		}
		if err := w.q.Close(); err != nil {
			b.Fatal(err)
		}
		d = c
	}
	v := newDriver(b, d, depth)
	waited = 0
	start := cpu(b)
	b.ResetTimer()
	v.run(b, b.N, next)
	b.StopTimer()
	b.ReportMetric(float64(b.N)/(cpu(b)-start+waited).Seconds(), "iops")
	if c, ok := d.(*Device); ok {
		v.q.Arm()
		b.ReportMetric(100*float64(v.q.(*queue).counts.own[hits])/float64(b.N), "%hits")
		b.ReportMetric(float64(c.Stats().HitLatency.Mean()), "ns-look")
	}
	v.close(b, d)
}

// cpu is the processor time of this thread: what a machine that others use
// leaves comparable.
func cpu(b testing.TB) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// BenchmarkColdScan is a sequential read of what nobody has read before, and
// random reads that never come back, with a cache and without in turn. It
// reports the time of a read of each, and what the cache adds: of the processor,
// and of the medium where that takes any.
func BenchmarkColdScan(b *testing.B) {
	for _, medium := range []string{"100us", "mem", "null"} {
		for _, access := range []string{"sequential", "random"} {
			b.Run(medium+"/"+access, func(b *testing.B) { coldScan(b, medium, access) })
		}
	}
}

// populate writes a device: memory that was only read is the system's one page
// of zeroes.
func populate(b testing.TB, d backend.Device, size uint64) {
	v := newDriver(b, d, 1)
	v.ops[0].Kind = backend.Write
	for off := uint64(0); off < size; off += 4096 {
		v.ops[0].Offset = off
		v.q.Submit(v.ops)
		v.q.Reap(v.done)
	}
	v.q.Close()
}

func coldScan(b *testing.B, medium, access string) {
	const chunk, size = 2048, 64 << 20
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var devs [2]backend.Device
	var drivers [2]*driver
	var at [2]uint64
	var waited time.Duration
	for i := range devs {
		switch devs[i] = openNull(b, 1<<40); medium {
		case "mem":
			m, err := mem.Open(mem.Options{Size: size})
			if err != nil {
				b.Fatal(err)
			}
			devs[i] = m
			populate(b, m, size)
		case "100us":
			devs[i] = slow{devs[i], 100 * time.Microsecond, &waited}
		}
		if i == 1 {
			devs[i] = over(b, devs[i], 4096, Options{})
		}
		drivers[i] = newDriver(b, devs[i], 32)
	}
	blocks := devs[0].Info().Blocks / 2 // the pages are taken by the other half
	for range 3 {
		n := uint64(0)
		drivers[1].run(b, 8192, func() uint64 { n++; return (blocks + n*37%8192) * 4096 })
		settle(devs[1].(*Device))
	}
	run := func(i, n int) time.Duration {
		clear(devs[1].(*Device).door.words) // a pass over a small medium is a new one
		waited = 0
		start := cpu(b)
		drivers[i].run(b, n, func() uint64 {
			if at[i]++; access == "random" {
				return mix(at[i]) % blocks * 4096
			}
			return at[i] % blocks * 4096
		})
		return cpu(b) - start + waited
	}
	var spent [2]time.Duration
	for range 16 {
		run(0, chunk)
		run(1, chunk)
	}
	b.ResetTimer()
	for n := 0; n < b.N; n += chunk {
		for i := range spent {
			spent[i] += run(i, chunk)
		}
	}
	b.StopTimer()
	reads := float64((b.N + chunk - 1) / chunk * chunk)
	b.ReportMetric(float64(spent[0])/reads, "ns-bare")
	b.ReportMetric(float64(spent[1])/reads, "ns-cache")
	b.ReportMetric(100*float64(spent[1]-spent[0])/float64(spent[0]), "%more")
	drivers[1].q.Arm()
	st := devs[1].(*Device).Stats()
	b.Logf("%d hits, %d misses, %d bypasses, %d fills, %d rejected, %d evicted", st.Hits, st.Misses, st.Bypasses, st.Fills, st.Rejected, st.Evicted)
	for i := range devs {
		drivers[i].close(b, devs[i])
	}
}

// BenchmarkHit is what a hit costs, of pages that lie all over the cache.
func BenchmarkHit(b *testing.B) {
	const pages = 16384
	d := over(b, openNull(b, pages*4096), 2*pages, Options{})
	v := newDriver(b, d, 32)
	at := uint64(0)
	next := func() uint64 { at++; return mix(at) % pages * 4096 }
	for range 8 {
		v.run(b, 2*pages, next)
		settle(d)
	}
	hits := func(b *testing.B, f func(off uint64)) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		b.ReportAllocs()
		start := cpu(b)
		for b.Loop() {
			f(next())
		}
		b.ReportMetric(float64(cpu(b)-start)/float64(b.N), "cpu-ns/op")
	}
	b.Run("Lend", func(b *testing.B) {
		hits(b, func(off uint64) {
			if lent, ok := v.lender.Lend(off, 4096, v.bufs); ok {
				v.lender.Return(lent)
			}
		})
	})
	b.Run("Submit", func(b *testing.B) {
		hits(b, func(off uint64) {
			v.ops[0].Offset = off
			v.q.Submit(v.ops[:1])
			v.q.Reap(v.done)
		})
	})
	v.close(b, d)
}
