package cache

import (
	"bytes"
	"testing"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/backend/null"
	"github.com/nvmf-go/nvmf/nvme"
)

// faulty is a cache of 64 pages over 256 blocks that tests hold back and fail.
func faulty(t *testing.T, blockSize uint32, o Options) (*Device, *backendtest.Faulty, *rig) {
	t.Helper()
	f := backendtest.NewFaulty(openMem(t, backendtest.Spec{BlockSize: blockSize, Blocks: 256}))
	d := opened(t, f, 64, o)
	return d, f, newRig(t, d, 8)
}

// is says whether all bytes of b are v.
func is(b []byte, v byte) bool { return len(b) > 0 && bytes.Count(b, []byte{v}) == len(b) }

// cached reads n bytes at off until they are in memory.
func (r *rig) cached(t *testing.T, d *Device, off, n uint64) {
	t.Helper()
	for range 3 {
		if st := r.read(off, n); st != nvme.Success {
			t.Fatal(st)
		}
		settle(d)
	}
	if _, ok := r.lend(off, n); !ok {
		t.Fatalf("%d bytes at %d are not in memory", n, off)
	}
}

func TestLend(t *testing.T) {
	d, f, r := faulty(t, 512, Options{})
	if st := r.write(8192, 12288, 7); st != nvme.Success {
		t.Fatal(st)
	}
	if _, ok := r.lend(8192, 4096); ok {
		t.Error("lent what nobody has read")
	}
	r.cached(t, d, 8192, 12288)
	reads := f.Seen(backend.Read)
	for _, c := range []struct{ off, n uint64 }{{8192, 4096}, {8192, 12288}, {8704, 512}, {8192 + 3584, 1024}, {12288 + 512, 4096}} {
		data, ok := r.lend(c.off, c.n)
		if !ok || uint64(len(data)) != c.n || !is(data, 7) {
			t.Errorf("lending %d at %d: %v, %d bytes", c.n, c.off, ok, len(data))
		}
		if st := r.read(c.off, c.n); st != nvme.Success || !is(r.memory[:c.n], 7) {
			t.Errorf("reading %d at %d: %v", c.n, c.off, st)
		}
	}
	if got := f.Seen(backend.Read); got != reads {
		t.Errorf("hits read the medium %d times", got-reads)
	}
	for _, c := range []struct{ off, n uint64 }{{8192, 0}, {4096, 8192}, {256 * 512, 512}, {1 << 63, 1 << 63}, {^uint64(511), 1024}} {
		if _, ok := r.lend(c.off, c.n); ok {
			t.Errorf("lent %d bytes at %d", c.n, c.off)
		}
	}
}

// Lend never grows what it appends to, and appends to it.
func TestLendRoom(t *testing.T) {
	d, _, r := faulty(t, 4096, Options{})
	r.cached(t, d, 0, 8192)
	for _, room := range []int{0, 1} {
		if lent, ok := r.lender.Lend(0, 8192, make([][]byte, 0, room)); ok || len(lent) != 0 {
			t.Errorf("two pages lent into room for %d", room)
		}
	}
	mine := make([][]byte, 1, 3)
	mine[0] = []byte("mine")
	lent, ok := r.lender.Lend(0, 8192, mine)
	if !ok || len(lent) != 3 || &lent[0] != &mine[0] || string(lent[0]) != "mine" {
		t.Fatalf("lent %d pieces, %v", len(lent), ok)
	}
	lendable := d.Lendable()
	for _, b := range lent[1:] {
		if len(b) != 4096 || cap(b) != 4096 || !within(b, lendable) {
			t.Errorf("a piece of %d bytes, room for %d", len(b), cap(b))
		}
	}
	r.lender.Return(lent[1:])
}

func within(b, in []byte) bool {
	i := cap(in) - len(in[:cap(in)])
	for at := 0; at+len(b) <= len(in); at += MinPage {
		if &in[at+i] == &b[0] {
			return true
		}
	}
	return false
}

// What is lent stays through a write, and the next read gives the new data.
func TestLentStays(t *testing.T) {
	d, _, r := faulty(t, 4096, Options{})
	r.write(0, 4096, 1)
	r.cached(t, d, 0, 4096)
	lent, ok := r.lender.Lend(0, 4096, make([][]byte, 0, 1))
	if !ok {
		t.Fatal("not lent")
	}
	for v := byte(2); v < 50; v++ {
		r.write(0, 4096, v)
		if data, ok := r.lend(0, 4096); ok && !is(data, v) {
			t.Fatalf("stale after the write of %d", v)
		}
	}
	if !is(lent[0], 1) {
		t.Error("what is lent has changed")
	}
	r.lender.Return(lent)
}

func TestNotReturned(t *testing.T) {
	d := over(t, openMem(t, backendtest.Spec{BlockSize: 4096, Blocks: 16}), 64, Options{})
	r := newRig(t, d, 1)
	r.cached(t, d, 0, 4096)
	if _, ok := r.lender.Lend(0, 4096, make([][]byte, 0, 1)); !ok {
		t.Fatal("not lent")
	}
	if err := r.Queue.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err == nil {
		t.Error("a page that was not returned is not noticed")
	}
}

// A write that is read often stays in memory, without a look at the medium.
func TestRefill(t *testing.T) {
	d, f, r := faulty(t, 4096, Options{})
	r.cached(t, d, 0, 8192)
	reads := f.Seen(backend.Read)
	r.write(0, 8192, 9)
	if data, ok := r.lend(0, 8192); !ok || !is(data, 9) {
		t.Errorf("the written pages are not in memory: %v", ok)
	}
	if st := r.write(8192, 4096, 9); st != nvme.Success { // was not read
		t.Error(st)
	}
	if _, ok := r.lend(8192, 4096); ok {
		t.Error("a page that nobody reads was kept")
	}
	if f.Seen(backend.Read) != reads {
		t.Error("the medium was read")
	}
}

// changing is each kind of operation that makes a page stale.
func changing(v byte, mem []byte) map[string]backend.Op {
	for i := range mem {
		mem[i] = v
	}
	return map[string]backend.Op{
		"write":          {Kind: backend.Write, Length: 4096, Bufs: [][]byte{mem[:4096]}},
		"FUA write":      {Kind: backend.Write, FUA: true, Length: 4096, Bufs: [][]byte{mem[:4096]}},
		"partial write":  {Kind: backend.Write, Offset: 512, Length: 1024, Bufs: [][]byte{mem[:1024]}},
		"discard":        {Kind: backend.Discard, Length: 4096},
		"write zeroes":   {Kind: backend.WriteZeroes, Offset: 512, Length: 512},
		"discard of all": {Kind: backend.Discard, Length: 256 * 512},
	}
}

// While an operation that changes a page is in flight, nothing is lent of it
// and what is read is not kept; nor when it fails.
func TestWriteInFlight(t *testing.T) {
	for _, fails := range []bool{false, true} {
		for name, op := range changing(3, backendtest.Memory(t, 4096)) {
			d, f, r := faulty(t, 512, Options{Admission: AdmitAll})
			r.write(0, 4096, 1)
			r.cached(t, d, 0, 4096)
			f.Judge(func(o *backend.Op) backendtest.Verdict {
				v := backendtest.Verdict{Hold: o.Kind != backend.Read}
				if fails && v.Hold {
					v.Status = nvme.WriteFault
				}
				return v
			})
			other := newRig(t, d, 2)
			other.Queue.Submit([]backend.Op{op})
			fills := r.stats(d).Fills
			for range 3 {
				if _, ok := r.lend(0, 4096); ok {
					t.Errorf("%s, fails %v: lent while it is in flight", name, fails)
				}
				if st := r.read(0, 4096); st != nvme.Success || !is(r.memory[:4096], 1) {
					t.Errorf("%s: %v", name, st)
				}
			}
			if n := r.stats(d).Fills; n != fills {
				t.Errorf("%s: %d pages were kept that may change", name, n-fills)
			}
			f.Judge(nil)
			f.Release(-1)
			other.Wait()
			r.cached(t, d, 0, 4096)
			data, _ := r.lend(0, 4096)
			if r.MustDo(backend.Op{Kind: backend.Read, FUA: true, Length: 4096, Bufs: [][]byte{r.memory[:4096]}}); !bytes.Equal(data, r.memory[:4096]) {
				t.Errorf("%s, fails %v: memory and medium differ in the end", name, fails)
			}
			if fails && !is(data, 1) {
				t.Errorf("%s: it failed, yet the page changed", name)
			}
		}
	}
}

// A fill that a write overtakes is not kept.
func TestFillOvertaken(t *testing.T) {
	d, f, r := faulty(t, 4096, Options{Admission: AdmitAll})
	f.Judge(func(o *backend.Op) backendtest.Verdict {
		return backendtest.Verdict{Hold: o.Kind == backend.Read, After: true} // the medium is read, the completion is late
	})
	reader := newRig(t, d, 1)
	reader.Queue.Submit([]backend.Op{{Kind: backend.Read, Length: 4096, Bufs: [][]byte{reader.memory[:4096]}}})
	reader.Queue.Reap(make([]backend.Completion, 1))
	r.write(0, 4096, 5)
	f.Judge(nil)
	f.Release(-1)
	reader.Wait()
	settle(d)
	if data, ok := r.lend(0, 4096); ok && !is(data, 5) {
		t.Error("the old page is lent")
	}
	if st := r.read(0, 4096); st != nvme.Success || !is(r.memory[:4096], 5) {
		t.Errorf("the old page is read: %v", st)
	}
}

// Two writes of a page overlap: whose data the medium has is not known.
func TestOverlappingWrites(t *testing.T) {
	d, f, r := faulty(t, 4096, Options{Admission: AdmitAll})
	r.cached(t, d, 0, 4096)
	f.Judge(backendtest.Hold(backend.Kinds(backend.Write)))
	var rigs [2]*rig
	for i := range rigs {
		rigs[i] = newRig(t, d, 1)
		for j := range rigs[i].memory[:4096] {
			rigs[i].memory[j] = byte(10 + i)
		}
		rigs[i].Queue.Submit([]backend.Op{{Kind: backend.Write, Length: 4096, Bufs: [][]byte{rigs[i].memory[:4096]}}})
	}
	fills := r.stats(d).Fills
	f.Judge(nil)
	f.Release(-1)
	rigs[1].Wait() // the one that began last ends first
	rigs[0].Wait()
	rigs[0].stats(d)
	rigs[1].stats(d)
	if n := r.stats(d).Fills; n != fills {
		t.Errorf("%d pages were kept", n-fills)
	}
	if st := r.read(0, 4096); st != nvme.Success || !is(r.memory[:4096], 10) {
		t.Errorf("read %v, %x", st, r.memory[:2])
	}
}

// An error is not kept, and one in a part of a page that nobody asked for is
// nobody's.
func TestErrors(t *testing.T) {
	d, f, r := faulty(t, 512, Options{Admission: AdmitAll})
	f.Judge(backendtest.Fail(nvme.UnrecoveredReadError, backend.Kinds(backend.Read), 1024, 512))
	if st := r.read(512, 512); st != nvme.Success {
		t.Errorf("the block beside: %v", st)
	}
	if st := r.read(1024, 512); st.Code() != nvme.UnrecoveredReadError {
		t.Errorf("the block itself: %v", st)
	}
	if st := r.read(0, 4096); st.Code() != nvme.UnrecoveredReadError {
		t.Errorf("the page: %v", st)
	}
	settle(d)
	if n := r.stats(d); n.Fills != 0 {
		t.Errorf("%d pages with errors were kept", n.Fills)
	}
	f.Judge(nil)
	r.cached(t, d, 0, 4096)
}

// Reads with FUA are the medium's: memory is none.
func TestFUA(t *testing.T) {
	d, f, r := faulty(t, 4096, Options{})
	r.cached(t, d, 0, 4096)
	reads := f.Seen(backend.Read)
	r.MustDo(backend.Op{Kind: backend.Read, FUA: true, Length: 4096, Bufs: [][]byte{r.memory[:4096]}})
	if f.Seen(backend.Read) != reads+1 {
		t.Error("a read with FUA was answered from memory")
	}
	flushes := f.Seen(backend.Flush)
	r.MustDo(backend.Op{Kind: backend.Flush})
	if f.Seen(backend.Flush) != flushes+1 {
		t.Error("a flush did not get through")
	}
}

func TestResize(t *testing.T) {
	m := openMem(t, backendtest.Spec{BlockSize: 4096, Blocks: 64}).(*mem.Device)
	d := opened(t, m, 64, Options{})
	r := newRig(t, d, 4)
	r.write(60*4096, 4096, 1)
	r.cached(t, d, 60*4096, 4096)
	resize := func(blocks uint64) {
		t.Helper()
		if err := m.Resize(blocks * 4096); err != nil {
			t.Fatal(err)
		}
		if d.Info().Blocks != blocks {
			t.Fatalf("%d blocks", d.Info().Blocks)
		}
	}
	resize(32)
	if _, ok := r.lend(60*4096, 4096); ok {
		t.Error("lent beyond the end")
	}
	if st := r.read(60*4096, 4096); st.Code() != nvme.LBAOutOfRange {
		t.Errorf("read beyond the end: %v", st)
	}
	resize(128)
	if data, ok := r.lend(60*4096, 4096); ok && !is(data, 0) {
		t.Error("a block came back")
	}
	if st := r.read(60*4096, 4096); st != nvme.Success || !is(r.memory[:4096], 0) {
		t.Errorf("a block came back: %v", st)
	}
	r.cached(t, d, 127*4096, 4096)
	if n := d.Stats().Resizes; n != 2 {
		t.Errorf("%d resizes", n)
	}
}

// What does not fill a page at the end is not cached, and right.
func TestRaggedEnd(t *testing.T) {
	m := openMem(t, backendtest.Spec{BlockSize: 512, Blocks: 8 + 3})
	d := opened(t, m, 64, Options{Admission: AdmitAll})
	r := newRig(t, d, 4)
	r.write(4096, 3*512, 6)
	for range 3 {
		if st := r.read(4096+512, 1024); st != nvme.Success || !is(r.memory[:1024], 6) {
			t.Errorf("%v", st)
		}
		settle(d)
	}
	if _, ok := r.lend(4096, 512); ok {
		t.Error("lent of a page that is not whole")
	}
}

// A range of any length costs no more than the regions there are.
func TestLongRanges(t *testing.T) {
	const size = 2 << 40
	n, err := null.Open(null.Options{Size: size, BlockSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	d := opened(t, n, 64, Options{Admission: AdmitAll})
	r := newRig(t, d, 4)
	for _, c := range []struct {
		off, n   uint64
		hit      bool // of the page at 1 TiB
		regions  int
		anyWords bool
	}{
		{0, size, false, numRegions, false},
		{0, 4 << 30, true, 2, false},
		{1 << 40, 4 << 30, false, 2, false},
		{(1 << 40) + 8192, 64 << 10, true, 0, true},
		{(1 << 40) + 8192, 4 << 20, false, 1, false},
		{1 << 40, 4096, false, 0, true},
		{size - 8<<20, 8 << 20, true, 1, false},
	} {
		r.cached(t, d, 1<<40, 4096)
		before := d.marks()
		r.MustDo(backend.Op{Kind: backend.Discard, Offset: c.off, Length: c.n})
		regions, words := before.differ(d.marks())
		if _, ok := r.lend(1<<40, 4096); ok != c.hit || regions != c.regions || words != c.anyWords {
			t.Errorf("%d bytes at %d: lent %v; %d regions, words %v", c.n, c.off, ok, regions, words)
		}
	}
}

type marks struct{ regions, words []uint64 }

func (d *Device) marks() (m marks) {
	for i := range d.versions.regions {
		m.regions = append(m.regions, d.versions.regions[i].Load())
	}
	for i := range d.versions.words {
		m.words = append(m.words, d.versions.words[i].Load())
	}
	return m
}

func (m marks) differ(o marks) (regions int, words bool) {
	for i := range m.regions {
		if m.regions[i] != o.regions[i] {
			regions++
		}
	}
	for i := range m.words {
		words = words || m.words[i] != o.words[i]
	}
	return regions, words
}

// Operations that no device accepts pass, and leave no mark in flight.
func TestBadOperations(t *testing.T) {
	d, _, r := faulty(t, 512, Options{Admission: AdmitAll, ReadAhead: 64 << 10})
	for _, op := range []backend.Op{
		{Kind: backend.Write, Offset: 1 << 63, Length: 512},
		{Kind: backend.Discard, Offset: ^uint64(511), Length: 1024},
		{Kind: backend.WriteZeroes, Offset: 512, Length: ^uint64(511)},
		{Kind: backend.Read, Offset: ^uint64(511), Length: 512},
		{Kind: backend.Read, Offset: 512, Length: ^uint64(511)},
		{Kind: backend.NumKinds, Length: 512},
		{Kind: 77},
	} {
		if st := r.Do(op); st == nvme.Success {
			t.Errorf("%s succeeded", backendtest.Describe(&op))
		}
	}
	if _, quiet := d.changes.quiet(); !quiet {
		t.Error("a change is in flight for ever")
	}
	for i := range d.versions.regions {
		if d.versions.regions[i].Load()&writersMask != 0 {
			t.Fatal("a region has a writer for ever")
		}
	}
	r.cached(t, d, 0, 4096)
}

// After a discard the memory is given back, by the watch.
func TestClean(t *testing.T) {
	d, _, r := faulty(t, 4096, Options{Admission: AdmitAll})
	for i := range uint64(8) {
		r.cached(t, d, i*4096, 4096)
	}
	held := d.Stats().Used
	r.MustDo(backend.Op{Kind: backend.Discard, Length: 6 * 4096})
	d.watch.clean()
	settle(d)
	if used := d.Stats().Used; held != 8 || used != 2 {
		t.Errorf("%d pages are in use after a discard of 6 of %d", used, held)
	}
	if data, ok := r.lend(6*4096, 8192); !ok || len(data) != 8192 {
		t.Error("the others are gone too")
	}
}

func TestRegionsOfEverySize(t *testing.T) {
	for _, pages := range []uint64{1, 1 << 10, 1<<20 - 1, 1 << 20, 1<<20 + 1, 1 << 30, 1 << 51} {
		v := newVersions(64, pages)
		if v.shift < minRegion || pages>>v.shift > numRegions {
			t.Errorf("%d pages: regions of 2^%d", pages, v.shift)
		}
		v.begin(0, 1<<51)
		v.begin(pages/2, longRange+1)
		v.end(pages/2, longRange+1)
		v.end(0, 1<<51)
		for i := range v.regions {
			if v.regions[i].Load()&writersMask != 0 {
				t.Fatalf("%d pages: a writer is left", pages)
			}
		}
	}
}

// Pages that share a region's word, on a device that has grown, go stale
// together with it.
func TestRegionsWrap(t *testing.T) {
	v := newVersions(64, 1<<20)
	far := uint64(5<<20 + 3)
	s, _ := v.stamp(mix(far), far)
	v.begin(3, longRange+1)
	if v.current(mix(far), far, s) {
		t.Error("not stale")
	}
}

// An entry, and then its slot, may become another page's between the look for
// one and the reference of the other: what the slot is of is checked then.
func TestAnotherPage(t *testing.T) {
	d, _, r := faulty(t, 4096, Options{})
	r.write(0, 4096, 1)
	r.write(4096, 4096, 2)
	r.cached(t, d, 0, 4096)
	r.cached(t, d, 4096, 4096)
	x := d.index
	one, other := x.get(mix(0)), x.get(mix(1))
	mine, others := x.slot(one), x.slot(other)
	// The words are the same for both: only the number tells.
	d.slots.descs[others].stamp = d.slots.descs[mine].stamp
	x.entries[one].slot.Store(others)
	if data, ok := r.lend(0, 4096); ok {
		t.Errorf("another page was lent: %x", data[0])
	}
	x.entries[one].slot.Store(mine)
	// Nor does an entry that is another page's by now take this one's slot.
	if x.replace(one, 1, others) {
		t.Error("an entry was replaced for another page")
	}
	if used := d.Stats().Used; used != 2 {
		t.Errorf("%d pages in use", used)
	}
}

func TestReferences(t *testing.T) {
	s := newSlots(backendtest.Memory(t, 8*4096), 4096)
	slot := s.take()
	if s.ref(slot) {
		t.Error("a reference to a private slot")
	}
	s.descs[slot].ref.Store(1)
	if !s.ref(slot) {
		t.Error("no reference to a published one")
	}
	s.unref(slot)
	s.unref(slot)
	if s.ref(slot) || s.used.Load() != 0 {
		t.Error("a reference to a free slot, or it is not free")
	}
	seen := map[uint32]bool{}
	for n := s.take(); n != 0; n = s.take() {
		if seen[n] || n > 8 {
			t.Fatalf("slot %d again, or there is none", n)
		}
		seen[n] = true
	}
	if len(seen) != 8 {
		t.Errorf("%d slots of 8", len(seen))
	}
}
