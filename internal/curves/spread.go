package curves

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/nvmf-go/nvmf/initiator"
)

// spreader has callers read from all of many namespaces.
type spreader struct {
	list    []*initiator.Namespace
	size    int // bytes of a read
	buf     *initiator.Buffer
	measure atomic.Bool // the ramp is over
	ending  atomic.Bool
}

// caller is one of them. Its goroutine owns it.
type caller struct {
	s    *spreader
	off  int // of its bytes in the buffer
	rng  *rand.Rand
	hist *hdrhistogram.Histogram // ns
	err  error
}

// spread loads with blocking reads, each from a namespace taken at random.
func (l *Load) spread(ctx context.Context, list []*initiator.Namespace) (res Result, err error) {
	s := &spreader{list: list, size: l.BlockSize}
	if s.buf, err = initiator.NewBuffer(l.Callers * l.BlockSize); err != nil {
		return res, err
	}
	defer s.buf.Close()
	callers := make([]*caller, l.Callers)
	var wg sync.WaitGroup
	for i := range callers {
		c := &caller{s: s, off: i * l.BlockSize, rng: rand.New(rand.NewPCG(1, uint64(i))), hist: hdrhistogram.New(1, int64(100*time.Second), 3)}
		callers[i] = c
		wg.Go(func() {
			if c.err = c.run(ctx); c.err != nil {
				s.ending.Store(true)
			}
		})
	}
	used, err := s.time(ctx, l)
	s.ending.Store(true)
	wg.Wait()
	for _, c := range callers {
		err = errors.Join(err, c.err)
	}
	if err != nil {
		return res, err
	}
	return sum(used, callers, l.BlockSize)
}

// spent is what a measured time has taken.
type spent struct {
	elapsed      time.Duration
	host, target time.Duration // of processors
}

// time lets the ramp and the measured time pass.
func (s *spreader) time(ctx context.Context, l *Load) (u spent, err error) {
	if err := sleep(ctx, l.Time/10); err != nil {
		return u, err
	}
	before, err := now(l.PID)
	if err != nil {
		return u, err
	}
	start := time.Now()
	s.measure.Store(true)
	if err := sleep(ctx, l.Time); err != nil {
		return u, err
	}
	s.measure.Store(false)
	after, err := now(l.PID)
	return spent{time.Since(start), after.host - before.host, after.target - before.target}, err
}

// now is what this program and the daemon have used since they began.
func now(pid int) (u spent, err error) {
	if u.host, err = processCPU(os.Getpid()); err != nil {
		return u, err
	}
	u.target, err = processCPU(pid)
	return u, err
}

// sum puts the callers' reads together.
func sum(u spent, callers []*caller, size int) (res Result, err error) {
	all := hdrhistogram.New(1, int64(100*time.Second), 3)
	var counts []float64
	for _, c := range callers {
		all.Merge(c.hist)
		counts = append(counts, float64(c.hist.TotalCount()))
	}
	ios, seconds := float64(all.TotalCount()), u.elapsed.Seconds()
	if ios == 0 {
		return res, errNothing
	}
	return Result{
		IOPS: ios / seconds, Bandwidth: ios * float64(size) / seconds,
		P50: micros(time.Duration(all.ValueAtPercentile(50))), P99: micros(time.Duration(all.ValueAtPercentile(99))),
		Host: micros(u.host) / ios, Target: micros(u.target) / ios,
		Least: slices.Min(counts) / seconds, Most: slices.Max(counts) / seconds,
	}, nil
}

// run reads until the end.
func (c *caller) run(ctx context.Context) error {
	for !c.s.ending.Load() {
		n := c.s.list[c.rng.IntN(len(c.s.list))]
		off := c.rng.Int64N(n.Size()/int64(c.s.size)) * int64(c.s.size)
		counts, start := c.s.measure.Load(), time.Now()
		if err := n.ReadBuffer(ctx, c.s.buf, c.off, c.s.size, off); err != nil {
			return err
		}
		if counts {
			_ = c.hist.RecordValue(min(int64(time.Since(start)), int64(100*time.Second))) // is within its bounds
		}
	}
	return nil
}
