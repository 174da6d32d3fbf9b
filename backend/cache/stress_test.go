package cache

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/nvme"
)

// checkedReads is how many reads TestStress checks in all. NVMF_CACHE_READS
// asks for another number, 10000000 for the long run.
func checkedReads(t testing.TB) uint64 {
	if s := os.Getenv("NVMF_CACHE_READS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if testing.Short() || underRace {
		return 60_000
	}
	return 600_000
}

// The device of the stress: blocks of a stripe have one writer, those of the
// tail the one that resizes.
const (
	stressBlock  = 512
	stripeBlocks = 64
	stressBlocks = 64 * stripeBlocks
	tailBlocks   = 4 * stripeBlocks
	allBlocks    = stressBlocks + tailBlocks
	writerCount  = 3
	readerCount  = 4
	stressDepth  = 8
	maxStress    = 24 // blocks of an operation
	history      = 256
	poison       = 0xDD
)

// block is what the harness knows of one. Its one writer numbers what it does
// to it; content says the number, but for zeroes.
type block struct {
	started atomic.Uint64 // the last that was begun
	floor   atomic.Uint64 // nothing before it may be read: it was acknowledged, or read
	zeroes  [history]atomic.Bool
}

func (b *block) raise(to uint64) {
	for {
		was := b.floor.Load()
		if was >= to || b.floor.CompareAndSwap(was, to) {
			return
		}
	}
}

// lastZero is the latest number from lo to hi that left zeroes, if any.
func (b *block) lastZero(lo, hi uint64) (uint64, bool) {
	for n := hi; ; n-- {
		if n == 0 || b.zeroes[n%history].Load() {
			return n, true
		}
		if n == lo || hi-n >= history-1 {
			return 0, false
		}
	}
}

type stress struct {
	t      *testing.T
	dev    backend.Device
	medium *mem.Device
	blocks [allBlocks]block
	reads  atomic.Uint64
	until  uint64
	stop   atomic.Bool
	aligns bool // writes are of whole pages, for the naive

	stale, torn, freed, wrongStatus atomic.Uint64
	writes, discards, resizes, lent atomic.Uint64
	failures                        atomic.Uint64
	first                           atomic.Pointer[string]
}

func pattern(lba, number uint64) uint64 { return mix(lba<<40^number) &^ 0xff }

// compose makes the content of a block. It and decode work on memory that is
// the client's alone: the race detector would only make them slow.
//
//go:norace
func compose(b []byte, lba, number uint64) {
	binary.LittleEndian.PutUint64(b, number)
	p := pattern(lba, number)
	for i := 8; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], p+uint64(i>>3))
	}
}

// decode takes a block apart: all zeroes are number 0.
//
//go:norace
func decode(b []byte, lba uint64) (number uint64, zero, whole, freed bool) {
	number = binary.LittleEndian.Uint64(b)
	second := binary.LittleEndian.Uint64(b[8:])
	if number == 0 && second == 0 {
		for i := 0; i < len(b); i += 8 {
			if binary.LittleEndian.Uint64(b[i:]) != 0 {
				return 0, true, false, false
			}
		}
		return 0, true, true, false
	}
	p := pattern(lba, number)
	for i := 8; i < len(b); i += 8 {
		if v := binary.LittleEndian.Uint64(b[i:]); v != p+uint64(i>>3) {
			return number, false, false, v == poison*0x0101010101010101
		}
	}
	return number, false, true, false
}

func (s *stress) fault(n *atomic.Uint64, format string, a ...any) {
	n.Add(1)
	if s.first.Load() == nil {
		msg := fmt.Sprintf(format, a...)
		s.first.CompareAndSwap(nil, &msg)
	}
}

// check compares a block that was read with what may be there: floor is from
// before the read was submitted.
func (s *stress) check(b []byte, lba, floor uint64, how string) {
	blk := &s.blocks[lba]
	hi := blk.started.Load()
	number, zero, whole, freed := decode(b, lba)
	switch {
	case freed:
		s.fault(&s.freed, "block %d by %s: of a freed page", lba, how)
	case !whole:
		s.fault(&s.torn, "block %d by %s: begins with %x", lba, how, b[:16])
	case zero:
		n, ok := blk.lastZero(floor, hi)
		if !ok && hi-floor < history-1 {
			s.fault(&s.stale, "block %d by %s: zeroes, which none of %d to %d left", lba, how, floor, hi)
		} else if ok && n >= floor {
			number = 0 // which of several zeroes is not known
		}
	case number < floor || number > hi:
		s.fault(&s.stale, "block %d by %s: number %d, not %d to %d", lba, how, number, floor, hi)
	}
	if number > 0 {
		blk.raise(number)
	}
}

// client is the owner of a queue and its operations in flight.
type client struct {
	s     *stress
	rng   *rand.Rand
	q     backend.Queue
	slots [stressDepth]flight
	free  []int
	done  [stressDepth]backend.Completion
	busy  map[uint64]bool // blocks, of a writer
	kept  [4]loan
	pos   uint64 // of a sequential reader
}

type flight struct {
	op     backend.Op
	memory []byte
	floors [maxStress]uint64
	lba, n uint64
}

// loan is what was lent, to be looked at again before its return.
type loan struct {
	bufs   [][]byte
	memory [64][]byte
	lba, n uint64
	floors [maxStress]uint64
	copy   [maxStress * stressBlock]byte
}

func (s *stress) client(seed uint64) *client {
	q, err := s.dev.NewQueue(stressDepth, func() {})
	if err != nil {
		s.t.Fatal(err)
	}
	c := &client{s: s, q: q, rng: rand.New(rand.NewPCG(seed, 99)), busy: map[uint64]bool{}}
	memory := make([]byte, stressDepth*maxStress*stressBlock)
	for i := range c.slots {
		c.slots[i].memory, memory = memory[:maxStress*stressBlock], memory[maxStress*stressBlock:]
		c.free = append(c.free, i)
	}
	return c
}

func (c *client) run(step func()) {
	for !c.s.stop.Load() {
		if len(c.free) > 0 {
			step()
		}
		c.reap()
	}
	for len(c.free) < stressDepth {
		c.reap()
	}
	for i := range c.kept {
		c.giveBack(&c.kept[i])
	}
	if err := c.q.Close(); err != nil {
		c.s.t.Error(err)
	}
}

// submit starts an operation on n blocks from lba.
func (c *client) submit(kind backend.Kind, lba, n uint64, fua bool) *flight {
	i := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	f := &c.slots[i]
	f.lba, f.n = lba, n
	f.op = backend.Op{ID: uint64(i), Kind: kind, FUA: fua, Offset: lba * stressBlock, Length: n * stressBlock}
	if i%3 == 0 {
		f.op.ID |= 1 << 63
	}
	if data := f.memory[:n*stressBlock]; kind == backend.Read || kind == backend.Write {
		cut := len(data) * c.rng.IntN(4) / 4
		f.op.Bufs = [][]byte{data[:cut], data[cut:]}
	}
	for j := range n {
		b := &c.s.blocks[lba+j]
		switch f.floors[j] = b.floor.Load(); kind {
		case backend.Write, backend.Discard, backend.WriteZeroes:
			f.floors[j] = b.started.Load() + 1
			b.zeroes[f.floors[j]%history].Store(kind != backend.Write)
			b.started.Store(f.floors[j])
			compose(f.memory[j*stressBlock:][:stressBlock], lba+j, f.floors[j])
			c.busy[lba+j] = true
		}
	}
	if c.q.Submit([]backend.Op{f.op}) != 1 {
		c.s.t.Error("a queue with room took nothing")
	}
	return f
}

func (c *client) reap() {
	n := c.q.Reap(c.done[:])
	if n == 0 {
		runtime.Gosched()
	}
	for _, d := range c.done[:n] {
		i := d.ID &^ (1 << 63)
		c.end(&c.slots[i], d.Status)
		c.free = append(c.free, int(i))
	}
}

func (c *client) end(f *flight, st nvme.Status) {
	if st != nvme.Success {
		c.s.failures.Add(1)
	}
	switch {
	case f.op.Kind == backend.Read:
		c.s.reads.Add(1)
		beyond := st.Code() == nvme.LBAOutOfRange && f.lba+f.n > stressBlocks
		if st != nvme.Success && !beyond && st.Code() != nvme.UnrecoveredReadError {
			c.s.fault(&c.s.wrongStatus, "read: %v", st)
		}
		for j := range f.n {
			if st == nvme.Success {
				c.s.check(f.memory[j*stressBlock:][:stressBlock], f.lba+j, f.floors[j], "read")
			}
		}
	case f.op.Kind != backend.Flush:
		for j := range f.n {
			if delete(c.busy, f.lba+j); st == nvme.Success {
				c.s.blocks[f.lba+j].raise(f.floors[j])
			}
		}
	}
}

// place is where to read: mostly in a small hot part, now and then on and on.
func (c *client) place() (lba, n uint64) {
	n = 1 + c.rng.Uint64N(maxStress)
	switch c.rng.IntN(8) {
	case 0:
		lba = c.rng.Uint64N(allBlocks - n)
	case 1, 2:
		lba, n = c.pos, 8
		if c.pos += n; c.pos+8 > allBlocks {
			c.pos = 0
		}
	default:
		lba = c.rng.Uint64N(6*stripeBlocks) * 5 % (stressBlocks - maxStress)
	}
	if c.s.aligns || c.rng.IntN(3) == 0 {
		lba, n = lba&^7, 8
	}
	return lba, n
}

func (c *client) read() {
	lba, n := c.place()
	if l, ok := c.q.(backend.Lender); ok && c.rng.IntN(2) == 0 && c.borrow(l, lba, n) {
		return
	}
	c.submit(backend.Read, lba, n, c.rng.IntN(32) == 0)
	if until := c.s.until; c.s.reads.Load() >= until {
		c.s.stop.Store(true)
	}
}

// borrow reads by Lend, checks at once, and keeps the pieces for a while.
func (c *client) borrow(q backend.Lender, lba, n uint64) bool {
	k := &c.kept[c.rng.IntN(len(c.kept))]
	c.giveBack(k)
	for j := range n {
		k.floors[j] = c.s.blocks[lba+j].floor.Load()
	}
	lent, ok := q.Lend(lba*stressBlock, n*stressBlock, k.memory[:0])
	if !ok {
		return false
	}
	c.s.reads.Add(1)
	c.s.lent.Add(1)
	k.bufs, k.lba, k.n = lent, lba, n
	to := k.copy[:0]
	for _, b := range lent {
		to = append(to, b...)
	}
	if len(to) != int(n*stressBlock) {
		c.s.fault(&c.s.wrongStatus, "lent %d bytes of %d blocks", len(to), n)
		return true
	}
	for j := range n {
		c.s.check(to[j*stressBlock:][:stressBlock], lba+j, k.floors[j], "lend")
	}
	return true
}

// giveBack looks once more: what is lent does not change.
func (c *client) giveBack(k *loan) {
	if k.bufs == nil {
		return
	}
	at := 0
	for _, b := range k.bufs {
		if string(b) != string(k.copy[at:at+len(b)]) {
			c.s.fault(&c.s.freed, "block %d: lent memory has changed", k.lba)
		}
		at += len(b)
	}
	c.q.(backend.Lender).Return(k.bufs)
	k.bufs = nil
}

// write changes a range of one of the writer's stripes that nothing in flight
// changes.
func (c *client) write(writer uint64) {
	c.s.writes.Add(1)
	stripe := c.rng.Uint64N(stressBlocks/stripeBlocks/writerCount)*writerCount + writer
	c.change(stripe * stripeBlocks)
}

func (c *client) change(stripe uint64) {
	n := 1 + c.rng.Uint64N(maxStress)
	lba := stripe + c.rng.Uint64N(stripeBlocks-n+1)
	if c.s.aligns || c.rng.IntN(2) == 0 {
		lba, n = lba&^7, 8
	}
	for j := range n {
		if c.busy[lba+j] {
			return
		}
	}
	switch kind := c.rng.IntN(60); {
	case kind == 0:
		c.submit(backend.Flush, 0, 0, false)
	case kind < 2:
		c.s.discards.Add(1)
		c.submit(backend.Discard, lba, n, false)
	case kind < 6:
		c.submit(backend.WriteZeroes, lba, n, false)
	default:
		c.submit(backend.Write, lba, n, c.rng.IntN(8) == 0)
	}
}

// resize cuts the tail off and grows it again; in between it writes there.
func (c *client) resize() {
	for range 1 + c.rng.IntN(1000) {
		if len(c.free) > 0 && c.rng.IntN(8) == 0 {
			c.change(stressBlocks + c.rng.Uint64N(tailBlocks/stripeBlocks)*stripeBlocks)
		}
		c.reap()
	}
	for len(c.free) < stressDepth {
		c.reap()
	}
	keep := stressBlocks + c.rng.Uint64N(tailBlocks)
	for lba := keep; lba < allBlocks; lba++ {
		b := &c.s.blocks[lba]
		n := b.started.Load() + 1
		b.zeroes[n%history].Store(true)
		b.started.Store(n)
	}
	for _, blocks := range []uint64{keep, allBlocks} {
		if err := c.s.medium.Resize(blocks * stressBlock); err != nil {
			c.s.t.Error(err)
		}
		if _, err := c.s.dev.Refresh(); err != nil {
			c.s.t.Error(err)
		}
	}
	for lba := keep; lba < allBlocks; lba++ {
		c.s.blocks[lba].raise(c.s.blocks[lba].started.Load())
	}
	c.s.resizes.Add(1)
}

// load runs everything until so many reads were checked, or a fault if that is
// what is wanted.
func (s *stress) load() {
	var all sync.WaitGroup
	for i := range uint64(readerCount) {
		c := s.client(i)
		all.Go(func() { c.run(c.read) })
	}
	for i := range uint64(writerCount) {
		c := s.client(100 + i)
		all.Go(func() {
			c.run(func() {
				if c.rng.IntN(3) == 0 { // readers are what is counted
					c.write(i)
				}
			})
		})
	}
	c := s.client(200)
	all.Go(func() { c.run(c.resize) })
	all.Wait()
}

func (s *stress) faults() uint64 {
	return s.stale.Load() + s.torn.Load() + s.freed.Load() + s.wrongStatus.Load()
}

func (s *stress) String() string {
	first := "none"
	if p := s.first.Load(); p != nil {
		first = *p
	}
	return fmt.Sprintf("%d reads checked (%d lent), %d changes, %d discards, %d resizes, %d failures: stale %d, torn %d, use after free %d, wrong status %d; first: %s",
		s.reads.Load(), s.lent.Load(), s.writes.Load(), s.discards.Load(), s.resizes.Load(), s.failures.Load(),
		s.stale.Load(), s.torn.Load(), s.freed.Load(), s.wrongStatus.Load(), first)
}

func newStress(t *testing.T, reads uint64) *stress {
	m, err := mem.Open(mem.Options{Size: allBlocks * stressBlock, BlockSize: stressBlock})
	if err != nil {
		t.Fatal(err)
	}
	return &stress{t: t, medium: m, until: reads}
}

// pageMemory is memory for pages: of the Go heap under the race detector,
// which sees only that.
func pageMemory(t *testing.T, n int) []byte {
	if !underRace {
		return backendtest.Memory(t, n)
	}
	b := make([]byte, n+MaxPage)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (MaxPage - 1)
	return b[skip : skip+n : skip+n]
}

func TestStress(t *testing.T) {
	cases := []struct {
		name  string
		pages int
		opts  Options
	}{
		{"tight", 256, Options{}},
		{"tight, all", 192, Options{Admission: AdmitAll}},
		{"roomy, read-ahead", 1024, Options{ReadAhead: 64 << 10}},
		{"tight, large pages, all, read-ahead", 96, Options{Admission: AdmitAll, Page: 8 << 10, ReadAhead: 32 << 10}},
	}
	each := checkedReads(t)/uint64(len(cases)) + 1
	poisoned := bytes.Repeat([]byte{poison}, MaxPage)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := newStress(t, each)
			c.opts.Page = max(c.opts.Page, MinPage)
			c.opts.Memory = pageMemory(t, c.pages*c.opts.Page)
			d := over(t, &late{Device: s.medium, faults: 200}, c.pages, c.opts)
			d.slots.freed = func(slot uint32) {
				copy(d.slots.data(slot), poisoned)
			}
			s.dev = d
			s.load()
			st := d.Stats()
			err := d.Close() // fails if a page is leaked
			t.Logf("%v; %d hits, %d misses, %d bypasses, %d fills, %d evicted, %d rejected, %d stale, %d without a page, ahead %d of %d", s,
				st.Hits, st.Misses, st.Bypasses, st.Fills, st.Evicted, st.Rejected, st.Stale, st.NoPage, st.ReadAheadUsed, st.ReadAheadIssued)
			if s.faults() > 0 || err != nil {
				t.Errorf("%v; %v", s, err)
			}
			if free := drain(&d.slots.stack); free != c.pages {
				t.Errorf("%d of %d pages are free in the end", free, c.pages)
			}
			if free := drain(&d.index.stack); free != c.pages {
				t.Errorf("%d of %d entries are free in the end", free, c.pages)
			}
			if st.Hits == 0 || st.Fills == 0 || st.Evicted == 0 && c.pages < 300 || s.lent.Load() == 0 || s.failures.Load() == 0 || s.resizes.Load() == 0 {
				t.Errorf("the load is none: %+v", st)
			}
		})
	}
}

func drain(s *stack) (n int) {
	for s.pop() != 0 {
		n++
	}
	return n
}

// Without a cache there is nothing to find.
func TestStressWithoutCache(t *testing.T) {
	s := newStress(t, 20_000)
	s.dev = &late{Device: s.medium, faults: 200}
	s.load()
	if err := s.dev.Close(); err != nil || s.faults() > 0 {
		t.Errorf("%v; %v", s, err)
	}
}

// The same harness finds caches out that rely on ristretto's order.
func TestStressHasTeeth(t *testing.T) {
	for name, setAfter := range map[string]bool{"Set after write": true, "Del after write": false} {
		t.Run(name, func(t *testing.T) {
			s := newStress(t, 20_000_000)
			s.aligns = true
			s.dev = newNaive(&late{Device: s.medium, faults: 200}, 256, setAfter)
			done := make(chan struct{})
			go func() { defer close(done); s.load() }()
			for s.stale.Load() == 0 && !s.stop.Load() {
				runtime.Gosched()
			}
			s.stop.Store(true)
			<-done
			if err := s.dev.Close(); err != nil {
				t.Error(err)
			}
			if s.stale.Load() == 0 {
				t.Errorf("not noticed: %v", s)
			}
			t.Logf("%v", s)
		})
	}
}
