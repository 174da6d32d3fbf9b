package fabrictest

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shareSlice is how long each side of a comparison runs before the other has its
// turn: long against what starting and ending cost, short against what else
// happens to the machine.
const shareSlice = 20 * time.Millisecond

// Share compares how fast op moves data with how fast bound does. They take
// turns, so that whatever slows the machine slows both. Each is called with a
// number of rounds of its own kind and returns the bytes it has moved when all has
// arrived. One operation of the benchmark is a turn of both. The results are the
// medians of the two rates in MB/s and of their ratios in percent, "%bound".
func Share(b *testing.B, bound, op func(rounds int) (moved int64)) {
	b.Helper()
	sides := [2]func(int) int64{bound, op}
	var rounds [2]int
	for i, run := range sides {
		rounds[i] = calibrate(run)
	}
	var rates [2][]float64
	ratios := make([]float64, 0, b.N)
	b.ResetTimer()
	for range b.N {
		for i, run := range sides {
			start := time.Now()
			moved := run(rounds[i])
			rates[i] = append(rates[i], float64(moved)/1e6/time.Since(start).Seconds())
		}
		ratios = append(ratios, 100*rates[1][len(ratios)]/rates[0][len(ratios)])
	}
	b.StopTimer()
	b.ReportMetric(median(rates[0]), "bound-MB/s")
	b.ReportMetric(median(rates[1]), "MB/s")
	b.ReportMetric(median(ratios), "%bound")
}

// calibrate is the number of rounds that fill a slice.
func calibrate(run func(int) int64) int {
	for n := 64; ; n *= 2 {
		start := time.Now()
		run(n)
		if d := time.Since(start); d >= shareSlice/4 {
			return max(int(int64(n)*int64(shareSlice)/int64(d)), 1)
		}
	}
}

// CPU is the processor time of the process so far.
func CPU() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
