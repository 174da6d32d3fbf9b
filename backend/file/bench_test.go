package file_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/file"
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// benchFile is the file of NVMF_BENCH_FILE, to compare with other programs
// over the same one, or a new one of 256 MiB without holes.
func benchFile(b *testing.B) string {
	b.Helper()
	if path := os.Getenv("NVMF_BENCH_FILE"); path != "" {
		return path
	}
	path := filepath.Join(b.TempDir(), "bench.img")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for data := make([]byte, 1<<20); err == nil && len(data) > 0; {
		if _, err = f.Write(data); err != nil {
			b.Fatal(err)
		}
		if at, _ := f.Seek(0, 1); at == 256<<20 {
			break
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	return path
}

// cpu is the CPU time of the process in nanoseconds.
func cpu(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkRandom is 4 KiB at random places. Its owner sleeps when nothing is
// done, or looks for some time first as an adaptive poll group does. The time
// per operation is wall clock, cpu-ns/op what it cost.
func BenchmarkRandom(b *testing.B) {
	path := benchFile(b)
	for _, kind := range []backend.Kind{backend.Read, backend.Write} {
		for _, c := range []struct {
			name string
			opts file.Options
			spin time.Duration
		}{
			{"ring", file.Options{Engine: file.EngineURing}, 0},
			{"ring,spins", file.Options{Engine: file.EngineURing}, 50 * time.Microsecond},
			{"ring,locked", file.Options{Engine: file.EngineURing, LockedThread: true}, 0},
			{"ring,locked,spins", file.Options{Engine: file.EngineURing, LockedThread: true}, 50 * time.Microsecond},
			{"pool", file.Options{Engine: file.EnginePool, Workers: 128}, 0},
		} {
			for _, depth := range []int{1, 32, 128} {
				b.Run(fmt.Sprintf("%v/%s/depth=%d", kind, c.name, depth), func(b *testing.B) {
					if c.opts.LockedThread {
						runtime.LockOSThread()
						defer runtime.UnlockOSThread()
					}
					c.opts.Path = path
					benchmark(b, c.opts, kind, depth, c.spin)
				})
			}
		}
	}
}

func benchmark(b *testing.B, o file.Options, kind backend.Kind, depth int, spin time.Duration) {
	d, err := file.Open(o)
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() {
		if err := d.Close(); err != nil {
			b.Error(err)
		}
	})
	w := fabric.NewWaker()
	b.Cleanup(w.Close)
	q, err := d.NewQueue(depth, w.Wake)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := q.Close(); err != nil {
			b.Error(err)
		}
	})
	mem := backendtest.Memory(b, depth*4096)
	if reg, ok := q.(backend.Registrar); ok {
		if err := reg.RegisterBuffers([][]byte{mem}); err != nil {
			b.Log(err)
		}
	}
	blocks := d.Info().Blocks
	ops := make([]backend.Op, depth)
	for i := range ops {
		ops[i] = backend.Op{ID: uint64(i), Kind: kind, Length: 4096, Bufs: [][]byte{mem[i*4096:][:4096]}}
	}
	done := make([]backend.Completion, depth)
	next := make([]backend.Op, 0, depth)
	next = append(next, ops...)
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu(b)
	for sent, ended := 0, 0; ended < b.N; {
		next = next[:min(len(next), b.N-sent)]
		for i := range next {
			next[i].Offset = rand.Uint64N(blocks) * 4096
		}
		sent += q.Submit(next)
		done := wait(q, w, done[:depth], spin, o.Engine == file.EngineURing)
		next = next[:0]
		for _, c := range done {
			if c.Status != nvme.Success {
				b.Fatal(c.Status)
			}
			next = append(next, ops[c.ID])
		}
		ended += len(done)
	}
	b.StopTimer()
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
}

// wait is how the owner of a poll group waits; kernel says where it sleeps.
func wait(q backend.Queue, w *fabric.Waker, done []backend.Completion, spin time.Duration, kernel bool) []backend.Completion {
	for start := time.Now(); spin > 0 && time.Since(start) < spin; {
		if n := q.Reap(done); n > 0 {
			return done[:n]
		}
	}
	for {
		if n := q.Reap(done); n > 0 {
			return done[:n]
		}
		w.Prepare()
		if kernel {
			w.Within(-1)
			backend.NewArmer(q).Arm(w)
			w.Sleep(-1)
		} else {
			q.Arm()
			<-w.C
		}
	}
}

// BenchmarkCached reads from the page cache: what it costs without a medium.
func BenchmarkCached(b *testing.B) {
	path := benchFile(b)
	for _, depth := range []int{1, 32} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			benchmark(b, file.Options{Path: path, Engine: file.EngineURing, Direct: file.DirectOff}, backend.Read, depth, 0)
		})
	}
}
