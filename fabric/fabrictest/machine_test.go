package fabrictest

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// BenchmarkCacheLine is how long a cache line takes from one processor to another
// and back. It tells what to make of figures with an end on each: between
// neighbors it is some 100 ns, between sockets 500, and every message pays it many
// times over. On a virtual machine it changes with where its processors are.
func BenchmarkCacheLine(b *testing.B) {
	if runtime.NumCPU() < 2 {
		b.Skip("one processor")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var turn atomic.Int64
	rounds := int64(b.N)
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer close(done)
		for i := range rounds {
			for turn.Load() != 2*i+1 {
			}
			turn.Store(2*i + 2)
		}
	}()
	b.ResetTimer()
	for i := range rounds {
		turn.Store(2*i + 1)
		for turn.Load() != 2*i+2 {
		}
	}
	<-done
}
