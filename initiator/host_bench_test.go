package initiator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma"
)

// threadCPU is the time that this thread has used.
func threadCPU() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// clockCost is what one reading of that clock takes.
func clockCost() time.Duration {
	const n = 10000
	t0 := threadCPU()
	for range n {
		threadCPU()
	}
	return (threadCPU() - t0) / n
}

// BenchmarkHost is the host's share of a 4 KiB read over the in-memory provider:
// Submit and Reap, and what the provider does within them (the doorbell, and the
// poll that takes the response). To ask in vain is not in it, nor is the
// target.
func BenchmarkHost(b *testing.B) {
	for _, depth := range []int{1, 32, 128} {
		b.Run(fmt.Sprintf("read-4K/depth-%d", depth), func(b *testing.B) { benchHost(b, depth) })
	}
}

func benchHost(b *testing.B, depth int) {
	r := newRig(b, rigOptions{bound: time.Minute, cfg: func(c *rdma.Config) { c.MaxQueueDepth = 256 }})
	n := r.namespace(r.connect(func(c *Config) { c.IOQueues, c.QueueDepth, c.Invalidate, c.Log = 1, depth, Off, nil }), nullNS)
	q, err := n.Queue(context.Background())
	r.must(err)
	defer q.Close()
	buf, err := NewBuffer(depth * 4096)
	r.must(err)
	defer buf.Close()
	ios, done := make([]IO, depth), make([]Result, depth)
	for i := range ios {
		ios[i] = IO{Op: nvme.CmdRead, Blocks: 1, Buf: buf, Offset: i * 4096, Tag: uint64(i)}
	}
	runtime.LockOSThread() // the clock is the thread's
	defer runtime.UnlockOSThread()
	clock := clockCost()
	var used time.Duration
	turns := 0
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; left -= depth {
		for i := range ios {
			ios[i].LBA = rand.Uint64N(n.Blocks() - 1)
		}
		t0 := threadCPU()
		k, err := q.Submit(ios)
		used += threadCPU() - t0 - clock
		if err != nil || k != depth {
			b.Fatal(k, err)
		}
		for got := 0; got < depth; {
			t1 := threadCPU()
			k, err := q.Reap(done)
			if err != nil {
				b.Fatal(err)
			}
			if k == 0 { // to ask in vain is to wait
				runtime.Gosched()
				continue
			}
			used += threadCPU() - t1 - clock
			for i := range done[:k] {
				if !done[i].OK() {
					b.Fatal(done[i])
				}
			}
			got += k
			turns++
		}
	}
	b.StopTimer()
	ops := float64((b.N + depth - 1) / depth * depth)
	b.ReportMetric(float64(used.Nanoseconds())/ops, "host-ns/op")
	b.ReportMetric(ops/float64(turns), "ops/reap")
}
