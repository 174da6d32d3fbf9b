package initiator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma"
)

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Random reads from a namespace that has no medium: the CPU time of an I/O is
// that of host and target together.
func BenchmarkQueueRead(b *testing.B) {
	for _, inv := range []Choice{Off, On} {
		for _, depth := range []int{1, 32, 128} {
			b.Run(fmt.Sprintf("4KiB/depth=%d/windows=%v", depth, inv), func(b *testing.B) {
				benchQueue(b, depth, 1, inv)
			})
		}
	}
	b.Run("128KiB/depth=32/windows=off", func(b *testing.B) { benchQueue(b, 32, 32, Off) })
}

func benchQueue(b *testing.B, depth int, blocks uint32, inv Choice) {
	r := newRig(b, rigOptions{bound: time.Minute, cfg: func(c *rdma.Config) { c.MaxQueueDepth = 256 }})
	n := r.namespace(r.connect(func(c *Config) {
		c.IOQueues, c.QueueDepth, c.Invalidate = 1, depth, inv
		c.Log = nil
	}), nullNS)
	readRandomly(b, n, depth, blocks)
}

// readRandomly keeps a queue full of random reads.
func readRandomly(b *testing.B, n *Namespace, depth int, blocks uint32) {
	q, err := n.Queue(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	size := int(blocks) * n.BlockSize()
	buf, err := NewBuffer(depth * size)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := errors.Join(q.Close(), buf.Close()); err != nil {
			b.Error(err)
		}
	}()
	ios, done := make([]IO, 0, depth), make([]Result, depth)
	add := func(slot uint64) {
		ios = append(ios, IO{
			Op: nvme.CmdRead, LBA: rand.Uint64N(n.Blocks() - uint64(blocks)), Blocks: blocks,
			Buf: buf, Offset: int(slot) * size, Tag: slot,
		})
	}
	for i := range depth {
		add(uint64(i))
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	start := cpuTime()
	b.ResetTimer()
	for left := b.N; left > 0; {
		k, err := q.Submit(ios)
		if err != nil {
			b.Fatal(err)
		}
		ios = ios[:copy(ios, ios[k:])]
		if k, err = q.Reap(done); err != nil {
			b.Fatal(err)
		}
		if k == 0 {
			if err := q.Wait(context.Background()); err != nil {
				b.Fatal(err)
			}
			continue
		}
		left -= k
		for _, res := range done[:k] {
			if !res.OK() {
				b.Fatal(res)
			}
			add(res.Tag)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "cpu-ns/op")
}

// The blocking calls, through bounce memory, by so many goroutines.
func BenchmarkReadAt(b *testing.B) {
	for _, callers := range []int{1, 32} {
		b.Run(fmt.Sprintf("4KiB/callers=%d", callers), func(b *testing.B) {
			r := newRig(b, rigOptions{bound: time.Minute})
			n := r.namespace(r.connect(func(c *Config) { c.IOQueues, c.Log, c.Invalidate = 1, nil, Off }), nullNS)
			b.SetBytes(4096)
			b.ReportAllocs()
			b.SetParallelism((callers + 1) / 2)
			start := cpuTime()
			b.ResetTimer()
			if callers == 1 {
				readLoop(b, n, b.N)
			} else {
				b.RunParallel(func(pb *testing.PB) {
					p := make([]byte, 4096)
					for pb.Next() {
						if _, err := n.ReadAt(p, 4096*rand.Int64N(1<<16)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			b.StopTimer()
			b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

func readLoop(b *testing.B, n *Namespace, times int) {
	p := make([]byte, 4096)
	for range times {
		if _, err := n.ReadAt(p, 4096*rand.Int64N(1<<16)); err != nil {
			b.Fatal(err)
		}
	}
}
