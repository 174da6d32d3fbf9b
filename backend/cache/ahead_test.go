package cache

import (
	"fmt"
	"testing"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/nvme"
)

// sequential is a cache with read-ahead over 4 MiB, whose blocks hold their
// number.
func sequential(t *testing.T, o Options) (*Device, *backendtest.Faulty, *rig) {
	t.Helper()
	const blocks = 1024
	f := backendtest.NewFaulty(openMem(t, backendtest.Spec{BlockSize: 4096, Blocks: blocks}))
	d := opened(t, f, 512, o)
	r := newRig(t, d, 8)
	for i := range uint64(blocks) {
		r.memory[i] = byte(i)
	}
	for i := range uint64(blocks) {
		if st := r.write(i*4096, 4096, byte(i)); st != nvme.Success {
			t.Fatal(st)
		}
	}
	return d, f, r
}

// next reads one block, by Lend when it can be lent.
func (r *rig) next(t *testing.T, i uint64) {
	t.Helper()
	if data, ok := r.lend(i*4096, 4096); ok {
		if !is(data, byte(i)) {
			t.Fatalf("block %d lent: %x", i, data[0])
		}
		return
	}
	if st := r.read(i*4096, 4096); st != nvme.Success || !is(r.memory[:4096], byte(i)) {
		t.Fatalf("block %d: %v, %x", i, st, r.memory[0])
	}
}

func TestReadAhead(t *testing.T) {
	for _, o := range []Options{{ReadAhead: 128 << 10}, {ReadAhead: 256 << 10, Admission: AdmitAll}, {ReadAhead: 64 << 10, Page: 16 << 10}} {
		t.Run(describe(o), func(t *testing.T) {
			d, f, r := sequential(t, o)
			before := f.Seen(backend.Read)
			for i := range uint64(512) {
				if i%8 == 0 {
					settle(d) // or no page may be free, on a busy machine
				}
				r.next(t, i)
			}
			reads, s := f.Seen(backend.Read)-before, r.stats(d)
			if reads > 128 {
				t.Errorf("512 blocks in a row took %d reads of the medium", reads)
			}
			if s.ReadAheadIssued == 0 || s.ReadAheadUsed*10 < s.ReadAheadIssued*8 {
				t.Errorf("%d pages read ahead, %d of them used", s.ReadAheadIssued, s.ReadAheadUsed)
			}
			if s.Hits < 300 {
				t.Errorf("%d hits", s.Hits)
			}
		})
	}
}

// It stops at the end of the device.
func TestReadAheadAtTheEnd(t *testing.T) {
	d, f, r := sequential(t, Options{ReadAhead: 1 << 20})
	f.Judge(func(op *backend.Op) backendtest.Verdict {
		if op.Kind == backend.Read && op.Offset+op.Length > 1024*4096 {
			t.Errorf("%s", backendtest.Describe(op))
		}
		return backendtest.Verdict{}
	})
	for i := uint64(700); i < 1024; i++ {
		r.next(t, i)
	}
	if r.stats(d).ReadAheadUsed == 0 {
		t.Error("nothing was read ahead")
	}
}

// Readers that stop after a few blocks: reading ahead of them does not pay, and
// ends.
func TestReadAheadThatDoesNotPay(t *testing.T) {
	d, _, r := sequential(t, Options{ReadAhead: 256 << 10})
	run := func() uint64 {
		before := r.stats(d).ReadAheadIssued
		for start := range uint64(100) {
			for i := range uint64(3) {
				r.next(t, start*10%1000+i+start/100)
			}
		}
		return r.stats(d).ReadAheadIssued - before
	}
	first := run()
	run()
	if last := run(); first == 0 || last > first/4 {
		t.Errorf("%d pages were read ahead for nothing at first, %d in the end", first, last)
	}
}

// Reads wait for what is being read ahead and do not read it twice; when that
// fails they read for themselves.
func TestReadAheadInFlight(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint("fails ", fails), func(t *testing.T) {
			d, f, r := sequential(t, Options{ReadAhead: 64 << 10})
			f.Judge(func(op *backend.Op) backendtest.Verdict {
				if op.Kind == backend.Read && op.Length > 4096 {
					v := backendtest.Verdict{Hold: true}
					if fails {
						v.Status = nvme.UnrecoveredReadError
					}
					return v
				}
				return backendtest.Verdict{}
			})
			i := uint64(0)
			for ; f.Held() == 0 && i < 20; i++ {
				r.next(t, i)
			}
			if f.Held() == 0 {
				t.Fatal("nothing is read ahead")
			}
			reads := f.Seen(backend.Read)
			if _, ok := r.lend(i*4096, 4096); ok {
				t.Error("lent what is being read")
			}
			var ops []backend.Op
			for j := range uint64(3) {
				ops = append(ops, backend.Op{ID: j, Kind: backend.Read, Offset: (i + j) * 4096, Length: 4096, Bufs: [][]byte{r.memory[j*4096:][:4096]}})
			}
			if n := r.Queue.Submit(ops); n != 3 || f.Seen(backend.Read) != reads {
				t.Errorf("%d taken, %d reads of the medium", n, f.Seen(backend.Read)-reads)
			}
			f.Judge(nil)
			f.Release(-1)
			for done := 0; done < 3; {
				for _, c := range r.Wait() {
					if done++; c.Status != nvme.Success || !is(r.memory[c.ID*4096:][:4096], byte(i+c.ID)) {
						t.Errorf("block %d: %v", i+c.ID, c.Status)
					}
				}
			}
			if s := r.stats(d); !fails && s.ReadAheadIssued == 0 {
				t.Error("not counted")
			}
		})
	}
}

// What was read ahead is stale after a write, like all else.
func TestReadAheadAndWrite(t *testing.T) {
	d, _, r := sequential(t, Options{ReadAhead: 64 << 10})
	for i := range uint64(40) {
		r.next(t, i)
	}
	for i := uint64(40); i < 60; i++ {
		r.write(i*4096, 4096, 0xAB)
		if data, ok := r.lend(i*4096, 4096); ok && !is(data, 0xAB) {
			t.Fatalf("block %d is stale", i)
		}
		if st := r.read(i*4096, 4096); st != nvme.Success || !is(r.memory[:4096], 0xAB) {
			t.Fatalf("block %d: %v, %x", i, st, r.memory[0])
		}
	}
	if r.stats(d).ReadAheadIssued == 0 {
		t.Error("nothing was read ahead")
	}
}

// A scan of much more than fits leaves what is read often in memory, and is
// not looked for page by page.
func TestScan(t *testing.T) {
	for _, ahead := range []int{0, 64 << 10} {
		d := opened(t, openMem(t, backendtest.Spec{BlockSize: 4096, Blocks: 48 << 10}), 512, Options{ReadAhead: ahead})
		r := newRig(t, d, 8)
		hot := func() (hits int) {
			for i := range uint64(300) {
				page := i * 37 % 300 * 131 // here and there
				if _, ok := r.lend(page*4096, 4096); ok {
					hits++
				} else if st := r.read(page*4096, 4096); st != nvme.Success {
					t.Fatal(st)
				}
			}
			settle(d)
			return hits
		}
		for range 6 {
			hot()
		}
		before := hot()
		s := r.stats(d)
		for i := range uint64(16 << 10) { // 32 times the cache
			if st := r.read(i*4096, 4096); st != nvme.Success {
				t.Fatal(st)
			}
		}
		settle(d)
		after := hot()
		if before < 295 || after < before*95/100 {
			t.Errorf("ahead %d: of 300 hot pages %d were in memory before a scan, %d after", ahead, before, after)
		}
		if e := r.stats(d); ahead == 0 && e.Bypasses-s.Bypasses < 15_000 {
			t.Errorf("%d of 16384 reads were not looked for", e.Bypasses-s.Bypasses)
		}
	}
}

// A second scan of what fits is noticed, and a third is served from memory.
func TestScanAgain(t *testing.T) {
	f := backendtest.NewFaulty(openMem(t, backendtest.Spec{BlockSize: 4096, Blocks: 1024}))
	d := opened(t, f, 2048, Options{})
	r := newRig(t, d, 8)
	var hits uint64
	for range 4 {
		hits = r.stats(d).Hits
		for i := range uint64(1024) {
			if st := r.read(i*4096, 4096); st != nvme.Success {
				t.Fatal(st)
			}
		}
		settle(d)
	}
	if hits = r.stats(d).Hits - hits; hits < 700 {
		t.Errorf("%d of 1024 reads of the fourth scan hit", hits)
	}
}

func TestStreams(t *testing.T) {
	s := newStreams()
	for i := range uint64(10) { // two that alternate, and random reads between
		for _, r := range [][2]uint64{{1<<20 + i*4096, 4096}, {1<<30 + i*8192, 8192}, {mix(i) &^ 4095, 4096}} {
			s.note(s.find(r[0]), r[0], r[1])
		}
	}
	for _, c := range []struct{ next, run uint64 }{{1<<20 + 10*4096, 10 * 4096}, {1<<30 + 10*8192, 10 * 8192}} {
		if i := s.find(c.next); i < 0 || i >= established || s.all[i].run != c.run {
			t.Errorf("the stream at %d is %d", c.next, i)
		}
	}
	for first := range uint64(600) {
		for n := uint64(1); n < 300; n += 7 {
			want := false
			for p := first; p < first+n; p++ {
				want = want || p%probeEvery == 0
			}
			if probes(first, n) != want {
				t.Fatalf("probes(%d, %d)", first, n)
			}
		}
	}
}
