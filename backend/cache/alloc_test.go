package cache

import (
	"runtime"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/nvme"
)

// allocations are those of f per run, at best of a few tries: ristretto
// allocates a stripe for each 64 looks, which is less than one per run.
func allocations(f func()) float64 {
	best := testing.AllocsPerRun(500, f)
	for range 3 {
		best = min(best, testing.AllocsPerRun(500, f))
	}
	return best
}

func TestAllocations(t *testing.T) {
	if underRace {
		t.Skip("sync.Pool, which ristretto uses, allocates under the race detector")
	}
	d := opened(t, openMem(t, backendtest.Spec{BlockSize: 4096, Blocks: 64 << 10}), 256, Options{})
	r := newRig(t, d, 8)
	for i := range uint64(4) {
		r.cached(t, d, i*4096, 4096)
	}
	for i := range uint64(300) { // the pages are taken
		r.read((1000+i*7)*4096, 4096)
		r.read((1000+i*7)*4096, 4096)
	}
	settle(d)
	bufs := make([][]byte, 0, 4)
	op := []backend.Op{{Kind: backend.Read, Length: 16384, Bufs: [][]byte{r.memory[:16384]}}}
	done := make([]backend.Completion, 1)
	submit := func() {
		r.Queue.Submit(op)
		r.Queue.Reap(done)
	}
	at := uint64(5000)
	for name, f := range map[string]func(){
		"hit by Lend": func() {
			lent, ok := r.lender.Lend(0, 16384, bufs)
			if !ok {
				t.Fatal("no hit")
			}
			r.lender.Return(lent)
		},
		"hit by Submit": func() { op[0].Offset, op[0].Length = 0, 16384; submit() },
		"miss": func() {
			at += 3
			if _, ok := r.lender.Lend(at*4096, 4096, bufs); ok {
				t.Fatal("a hit")
			}
			op[0].Offset, op[0].Length = at*4096, 4096
			op[0].Bufs[0] = r.memory[:4096]
			submit()
			op[0].Bufs[0] = r.memory[:16384]
		},
	} {
		before := r.stats(d)
		if n := allocations(f); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		after := r.stats(d)
		if hit := strings.HasPrefix(name, "hit"); hit != (after.Hits > before.Hits) || hit == (after.Misses > before.Misses) {
			t.Errorf("%s: %d hits, %d misses", name, after.Hits-before.Hits, after.Misses-before.Misses)
		}
	}
}

// What fills allocates nothing of ours, and neither does a write that keeps a
// page in memory; what ristretto allocates for a page that enters is said.
func TestFillAllocations(t *testing.T) {
	if underRace {
		t.Skip("as above")
	}
	d := opened(t, openMem(t, backendtest.Spec{BlockSize: 4096, Blocks: 4096}), 256, Options{Admission: AdmitAll, ReadAhead: 64 << 10})
	r := newRig(t, d, 8)
	op := []backend.Op{{Kind: backend.Read, Length: 4096, Bufs: [][]byte{r.memory[:4096]}}}
	done := make([]backend.Completion, 1)
	const runs = 20000
	run := func() {
		for i := range uint64(runs) {
			op[0].Kind, op[0].Offset = backend.Read, mix(i)%4096*4096
			if i%4 == 0 {
				op[0].Offset = i / 4 % 4096 * 4096
			}
			if i%5 == 0 {
				op[0].Kind = backend.Write
			}
			r.Queue.Submit(op)
			for r.Queue.Reap(done) == 0 {
				r.Queue.Arm() // an operation ahead has come in its place
			}
			if done[0].Status != nvme.Success {
				t.Fatal(done[0].Status)
			}
			runtime.Gosched() // to ristretto
		}
	}
	run()
	fills := r.stats(d).Fills
	old := runtime.MemProfileRate
	runtime.MemProfileRate = 1
	defer func() { runtime.MemProfileRate = old }()
	ours, theirs := allocated(run)
	fills = r.stats(d).Fills - fills
	if ours > 0 || fills < 100 {
		t.Errorf("%d allocations of ours in %d operations that filled %d pages", ours, runs, fills)
	}
	t.Logf("%d operations, %d fills: %d allocations of ristretto", runs, fills, theirs)
}

// allocated counts the allocations of f whose stack passes through this
// package but not ristretto, and through ristretto.
func allocated(f func()) (ours, theirs int64) {
	count := func() (o, th int64) {
		runtime.GC() // publishes the profile
		runtime.GC()
		records := make([]runtime.MemProfileRecord, 1<<14)
		n, ok := runtime.MemProfile(records, true)
		if !ok {
			panic("a larger profile")
		}
		for _, rec := range records[:n] {
			switch stack := frames(rec.Stack()); {
			case strings.Contains(stack, "ristretto"):
				th += rec.AllocObjects
			case strings.Contains(stack, "cache.(*queue)") || strings.Contains(stack, "cache.(*index)"):
				o += rec.AllocObjects
			}
		}
		return o, th
	}
	ours0, theirs0 := count()
	f()
	ours, theirs = count()
	return ours - ours0, theirs - theirs0
}

func frames(pcs []uintptr) (all string) {
	for f := runtime.CallersFrames(pcs); ; {
		frame, more := f.Next()
		if all += frame.Function + "\n"; !more {
			return all
		}
	}
}

func TestMemoryNeeded(t *testing.T) {
	const mib = 1 << 20
	for _, page := range []int{4 << 10, 8 << 10, 16 << 10, 64 << 10} {
		var last uint64
		for size := uint64(mib); size <= 64<<30; size += size/7 + 4096 {
			m, err := MemoryNeeded(size, page)
			if err != nil {
				if size > 4*mib {
					t.Errorf("%d bytes, pages of %d: %v", size, page, err)
				}
				continue
			}
			if m.Total() > size || m.Pages%uint64(page) != 0 || m.Pages < last {
				t.Fatalf("%d bytes, pages of %d: %+v, in all %d", size, page, m, m.Total())
			}
			if last = m.Pages; size >= 64*mib && m.Pages < size/100*86 {
				t.Errorf("%d bytes, pages of %d: only %d for pages", size, page, m.Pages)
			}
		}
	}
	for _, c := range []struct {
		size uint64
		page int
	}{{0, 4096}, {4096, 4096}, {400 << 10, 4096}, {1 << 30, 5000}, {1 << 30, 1 << 20}, {1 << 30, -1}} {
		if m, err := MemoryNeeded(c.size, c.page); err == nil {
			t.Errorf("%d bytes, pages of %d: %+v", c.size, c.page, m)
		}
	}
	if m, err := MemoryNeeded(1<<62, 4096); err != nil || m.Pages != maxPages*4096 {
		t.Errorf("more than can be used: %+v, %v", m, err)
	}
}

// What a full cache takes of the heap is not more than it says.
func TestMemoryIsCounted(t *testing.T) {
	if underRace {
		t.Skip("the race detector's memory is not the cache's")
	}
	for _, page := range []int{4 << 10, 64 << 10} {
		need, err := MemoryNeeded(96<<20, page)
		if err != nil {
			t.Fatal(err)
		}
		memory := backendtest.Memory(t, int(need.Pages))
		null := openNull(t, 1<<32)
		before := heap()
		d := over(t, null, 0, Options{Memory: memory, Page: page, Admission: AdmitAll})
		if got := d.Stats().Memory; got != need {
			t.Errorf("a budget of %+v gives a cache of %+v", need, got)
		}
		r := newRig(t, d, 1)
		queue := heap()
		fill := backend.Op{Kind: backend.Read, Length: uint64(page), Bufs: [][]byte{r.memory[:page]}}
		for i := range 2 * need.Pages / uint64(page) {
			fill.Offset = i * uint64(page)
			r.MustDo(fill)
			if i%256 == 0 {
				settle(d)
			}
		}
		settle(d)
		s := r.stats(d)
		taken := heap() - before
		if most := int64(need.Total() - need.Pages); taken > most {
			t.Errorf("pages of %d: %d bytes of the heap, %d of them empty, for %d pages; said %d", page, taken, queue-before, s.Used, most)
		}
		if s.Used < s.Pages*8/10 {
			t.Errorf("%d of %d pages in use", s.Used, s.Pages)
		}
		t.Logf("pages of %d: %d pages, %d bytes of the heap each, %d said", page, s.Pages, taken/int64(s.Pages), int64(need.Total()-need.Pages)/int64(s.Pages))
		r.Queue.Close()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
