package backendtest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// Spec is the device a test wants.
type Spec struct {
	BlockSize uint32
	Blocks    uint64
	ReadOnly  bool
}

// Size in bytes.
func (s Spec) Size() uint64 { return s.Blocks * uint64(s.BlockSize) }

// Harness tells the suite about a backend.
type Harness struct {
	// Open makes a new device, all zeroes. The suite closes it.
	Open func(t testing.TB, s Spec) backend.Device
	// Resize gives the medium another size, so that Refresh, or already Info,
	// shows it; nil when the backend's size is fixed.
	Resize func(t testing.TB, d backend.Device, blocks uint64)
	// Forgets: writes vanish and reads give zeroes.
	Forgets bool
	// WholeBlocks: a read that races with a write of the same block gives the
	// old or the new block. Media of which that is not known leave it false.
	WholeBlocks bool
	// Allocates: the device is not made for speed.
	Allocates bool
	// LockedThread has every owner locked to its OS thread.
	LockedThread bool
}

// own makes the calling goroutine fit to own a queue, until the returned
// function is called.
func (h Harness) own() (disown func()) {
	if !h.LockedThread {
		return func() {}
	}
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

func (h Harness) open(t testing.TB, s Spec) backend.Device {
	t.Helper()
	d := h.Open(t, s)
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), d.Close()); err != nil {
			t.Errorf("closing the device: %v", err)
		}
	})
	return d
}

// Conformance runs everything the contract of package backend promises, with
// both block sizes.
func Conformance(t *testing.T, h Harness) {
	for _, bs := range []uint32{backend.MinBlockSize, backend.MaxBlockSize} {
		spec := Spec{BlockSize: bs, Blocks: 96}
		for _, c := range []struct {
			name string
			run  func(*testing.T, Harness, Spec)
		}{
			{"info", testInfo},
			{"model", testModel},
			{"transfers", testTransfers},
			{"durability", testDurability},
			{"range", testRange},
			{"full queue", testFullQueue},
			{"notify", testNotify},
			{"sleeping owner", testSleepingOwner},
			{"close", testClose},
			{"close with operations in flight", testCloseInFlight},
			{"resize", testResize},
			{"read-only", testReadOnly},
			{"several queues", testQueues},
			{"whole blocks", testWholeBlocks},
			{"registered memory", testRegistered},
			{"allocations", testAllocations},
		} {
			t.Run(fmt.Sprintf("%d/%s", bs, c.name), func(t *testing.T) {
				defer h.own()()
				c.run(t, h, spec)
			})
		}
	}
}

func testInfo(t *testing.T, h Harness, spec Spec) {
	d := h.open(t, spec)
	i := d.Info()
	if i.Type == "" || i.Engine == "" || i.BlockSize != spec.BlockSize || i.Blocks != spec.Blocks || i.ReadOnly {
		t.Errorf("info of %+v: %+v", spec, i)
	}
	for _, k := range []backend.Kind{backend.Read, backend.Write, backend.Flush, backend.WriteZeroes} {
		if !i.Kinds.Has(k) {
			t.Errorf("%v is not among its operations", k)
		}
	}
	if i.BufferAlign == 0 || i.BufferAlign&(i.BufferAlign-1) != 0 {
		t.Errorf("buffer alignment %d", i.BufferAlign)
	}
	if i.ZeroAfterDiscard && !i.Kinds.Has(backend.Discard) {
		t.Error("discards give zeroes, but there are none")
	}
	if changed, err := d.Refresh(); changed || err != nil {
		t.Errorf("refresh of an untouched device: %v, %v", changed, err)
	}
	for _, depth := range []int{-1, 0, math.MaxInt32} {
		if q, err := d.NewQueue(depth, func() {}); err == nil {
			t.Errorf("a queue of depth %d was made", depth)
			_ = q.Close()
		}
	}
}

// testTransfers reads and writes lengths and buffers that do not fit a
// system's limits: a mebibyte and more, a thousand buffers.
func testTransfers(t *testing.T, h Harness, spec Spec) {
	spec.Blocks = (3 << 20) / uint64(spec.BlockSize)
	d := h.open(t, spec)
	r := NewRig(t, d, 4)
	m := newModel(d.Info(), h.Forgets)
	mem := Memory(t, 8<<20)
	for _, c := range []struct{ length, piece, gap int }{
		{int(spec.BlockSize), int(spec.BlockSize), 0},
		{2 << 20, 2 << 20, 0},
		{2 << 20, 4096, 0},
		{2 << 20, 512, 0},
		{2 << 20, 2 << 20, 64},
		{1 << 20, 777, 1},
		{3 << 20, 65536 + 512, 512},
	} {
		var bufs [][]byte
		for left, rest := c.length, mem[c.gap:]; left > 0; {
			n := min(c.piece, left)
			bufs, rest, left = append(bufs, rest[:n:n]), rest[n:], left-n
		}
		op := backend.Op{Kind: backend.Write, Offset: uint64(3<<20 - c.length), Length: uint64(c.length), Bufs: bufs}
		scatter(bufs, m.data(&op))
		r.MustDo(op)
		m.apply(&op, m.seed)
		for _, b := range bufs {
			clear(b)
		}
		op.Kind = backend.Read
		r.MustDo(op)
		if err := m.check(&op); err != nil {
			t.Errorf("pieces of %d: %v", c.piece, err)
		}
	}
	r.MustDo(backend.Op{Kind: backend.Read})
	r.MustDo(backend.Op{Kind: backend.Write})
}

// testDurability runs every kind with every flag: none may fail for asking.
func testDurability(t *testing.T, h Harness, spec Spec) {
	r := NewRig(t, h.open(t, spec), 16)
	mem := Memory(t, 1<<16)
	bs := uint64(spec.BlockSize)
	var ops []backend.Op
	for i := range uint64(12) {
		ops = append(ops,
			backend.Op{Kind: backend.Write, FUA: i%2 == 0, Offset: i * bs, Length: bs, Bufs: [][]byte{mem[:bs]}},
			backend.Op{Kind: backend.Flush, FUA: i%2 == 0},
			backend.Op{Kind: backend.WriteZeroes, FUA: i%2 == 0, Dealloc: i%3 == 0, Offset: (20 + i) * bs, Length: bs},
			backend.Op{Kind: backend.Read, FUA: i%2 == 0, Offset: (40 + i) * bs, Length: bs, Bufs: [][]byte{mem[4096:][:bs]}},
			backend.Op{Kind: backend.Discard, FUA: i%2 == 0, Offset: (60 + i) * bs, Length: bs},
		)
	}
	for i, st := range r.DoAll(ops) {
		if st != nvme.Success {
			t.Errorf("%s: %v", Describe(&ops[i]), st)
		}
	}
}

func testRange(t *testing.T, h Harness, spec Spec) {
	r := NewRig(t, h.open(t, spec), 4)
	bs := uint64(spec.BlockSize)
	mem := Memory(t, 8192)
	for _, kind := range []backend.Kind{backend.Read, backend.Write, backend.Discard, backend.WriteZeroes} {
		for _, c := range []struct{ off, n uint64 }{
			{spec.Size(), bs},
			{spec.Size() - bs, 2 * bs},
			{spec.Size() + bs, bs},
			{math.MaxUint64 - bs + 1, bs},
			{bs, math.MaxUint64 - bs + 1},
			{1 << 63, bs},
		} {
			op := backend.Op{Kind: kind, Offset: c.off, Length: c.n, Bufs: [][]byte{mem[:min(c.n, 8192)]}}
			if st := r.Do(op); st.Code() != nvme.LBAOutOfRange {
				t.Errorf("%s: %v", Describe(&op), st)
			}
		}
	}
	if st := r.Do(backend.Op{Kind: backend.NumKinds}); st == nvme.Success {
		t.Error("an operation of no kind succeeded")
	}
}

// testFullQueue fills a queue, which must take what it has room for and no
// more, and give every completion once.
func testFullQueue(t *testing.T, h Harness, spec Spec) {
	const depth = 3
	r := NewRig(t, h.open(t, spec), depth)
	mem := Memory(t, 4096)
	ops := make([]backend.Op, 2*depth)
	for i := range ops {
		ops[i] = backend.Op{ID: uint64(i), Kind: backend.Read, Length: uint64(spec.BlockSize), Bufs: [][]byte{mem[:spec.BlockSize]}}
	}
	if n := r.Queue.Submit(ops); n != depth {
		t.Fatalf("a queue of depth %d took %d operations", depth, n)
	}
	if n := r.Queue.Submit(ops[depth:]); n != 0 {
		t.Fatalf("a full queue took %d more", n)
	}
	seen := map[uint64]int{}
	for range depth { // one at a time: a short slice must lose nothing
		for n := 0; n == 0; {
			one := r.done[:1]
			if n = r.Queue.Reap(one); n > 0 {
				seen[one[0].ID]++
				break
			}
			r.Queue.Arm()
			r.Sleep()
		}
	}
	if n := r.Queue.Submit(ops[depth:]); n != depth {
		t.Fatalf("an empty queue took %d operations", n)
	}
	for len(seen) < len(ops) {
		for _, c := range r.Wait() {
			seen[c.ID]++
		}
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%d completions of operation %d", n, id)
		}
	}
	if n := r.Queue.Reap(r.done); n != 0 {
		t.Errorf("%d completions of nothing", n)
	}
	if n := r.Queue.Submit(nil); n != 0 {
		t.Errorf("took %d of no operations", n)
	}
}

// testNotify checks one notify for one Arm: none without, at once when a
// completion is there, later when it comes later.
func testNotify(t *testing.T, h Harness, spec Spec) {
	r := NewRig(t, h.open(t, spec), 4)
	mem := Memory(t, 4096)
	op := []backend.Op{{Kind: backend.Read, Length: uint64(spec.BlockSize), Bufs: [][]byte{mem[:spec.BlockSize]}}}
	woken := func(when string, want int) {
		t.Helper()
		if n := len(r.Woken); n != want {
			t.Errorf("%s: %d notifies, want %d", when, n, want)
		}
	}
	r.Queue.Submit(op)
	for n := 0; n == 0; n = r.Queue.Reap(r.done) {
		r.Queue.Arm() // the completion is there, or comes
		r.Sleep()
	}
	woken("more than one for an Arm", 0)
	r.Queue.Submit(op)
	r.Wait()
	for len(r.Woken) > 0 {
		<-r.Woken
	}
	r.Queue.Arm()
	woken("Arm of an idle queue", 0)
	r.Queue.Submit(op)
	for r.Sleep(); r.Queue.Reap(r.done) == 0; r.Sleep() {
		r.Queue.Arm()
	}
	woken("more than one for an Arm before the Submit", 0)
	// What fails inside Submit wakes too.
	op[0].Offset = spec.Size()
	for range 2 {
		r.Queue.Submit(op)
		r.Queue.Arm()
		r.Sleep()
		if n := r.Queue.Reap(r.done); n != 1 {
			t.Errorf("reaped %d of what failed before the Arm", n)
		}
		r.Queue.Arm()
		r.Queue.Submit(op)
		r.Sleep()
		if n := r.Queue.Reap(r.done); n != 1 {
			t.Errorf("reaped %d of what failed after the Arm", n)
		}
	}
}

// testSleepingOwner sleeps after every Submit without looking: each wake-up
// has to come.
func testSleepingOwner(t *testing.T, h Harness, spec Spec) {
	const depth = 4
	r := NewRig(t, h.open(t, spec), depth)
	mem := Memory(t, 4096)
	ops := make([]backend.Op, depth)
	for i := range ops {
		ops[i] = backend.Op{Kind: backend.Read, Length: uint64(spec.BlockSize), Bufs: [][]byte{mem[:spec.BlockSize]}}
	}
	inFlight := 0
	for round := range 500 {
		inFlight += r.Queue.Submit(ops[:1+round%depth])
		for target := inFlight / 2; inFlight > target; {
			r.Queue.Arm()
			r.Sleep()
			inFlight -= r.Queue.Reap(r.done)
		}
	}
}

func testClose(t *testing.T, h Harness, spec Spec) {
	d := h.Open(t, spec)
	q, err := d.NewQueue(1, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); !errors.Is(err, backend.ErrBusy) {
		t.Errorf("closing a device with a queue: %v", err)
	}
	if err := errors.Join(q.Close(), q.Close()); err != nil {
		t.Errorf("closing the queue twice: %v", err)
	}
	if n := q.Submit(make([]backend.Op, 1)); n != 0 {
		t.Error("a closed queue took an operation")
	}
	q.Arm()
	if n := q.Reap(make([]backend.Completion, 1)); n != 0 {
		t.Error("a closed queue gave a completion")
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Errorf("closing the device twice: %v", err)
	}
	if _, err := d.NewQueue(1, func() {}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a queue of a closed device: %v", err)
	}
}

// testCloseInFlight closes a queue right after Submit: what it took has to be
// done by then.
func testCloseInFlight(t *testing.T, h Harness, spec Spec) {
	d := h.open(t, spec)
	m := newModel(d.Info(), h.Forgets)
	mem := Memory(t, 1<<20)
	op := backend.Op{Kind: backend.Write, FUA: true, Length: spec.Size(), Bufs: [][]byte{mem[:spec.Size()]}}
	scatter(op.Bufs, m.data(&op))
	r := NewRig(t, d, 4)
	if n := r.Queue.Submit([]backend.Op{op, {Kind: backend.Flush}, {Kind: backend.Flush}}); n != 3 {
		t.Fatalf("took %d", n)
	}
	if err := r.Queue.Close(); err != nil {
		t.Fatal(err)
	}
	m.apply(&op, m.seed)
	clear(mem)
	op.Kind = backend.Read
	NewRig(t, d, 1).MustDo(op)
	if err := m.check(&op); err != nil {
		t.Error(err)
	}
}

func testResize(t *testing.T, h Harness, spec Spec) {
	if h.Resize == nil {
		t.Skip("the backend's size is fixed")
	}
	d := h.open(t, spec)
	r := NewRig(t, d, 4)
	bs := uint64(spec.BlockSize)
	mem := Memory(t, 4096)
	at := func(lba uint64) nvme.Status {
		return r.Do(backend.Op{Kind: backend.Read, Offset: lba * bs, Length: bs, Bufs: [][]byte{mem[:bs]}})
	}
	for _, blocks := range []uint64{spec.Blocks * 2, spec.Blocks / 2, spec.Blocks} {
		h.Resize(t, d, blocks)
		if _, err := d.Refresh(); err != nil {
			t.Fatal(err)
		}
		if got := d.Info().Blocks; got != blocks {
			t.Fatalf("resized to %d blocks, has %d", blocks, got)
		}
		if st := at(blocks - 1); st != nvme.Success {
			t.Errorf("last block of %d: %v", blocks, st)
		}
		if st := at(blocks); st.Code() != nvme.LBAOutOfRange {
			t.Errorf("beyond the last block of %d: %v", blocks, st)
		}
		if changed, err := d.Refresh(); changed || err != nil {
			t.Errorf("second refresh: %v, %v", changed, err)
		}
	}
}

func testReadOnly(t *testing.T, h Harness, spec Spec) {
	spec.ReadOnly = true
	d := h.open(t, spec)
	if !d.Info().ReadOnly {
		t.Error("Info does not say that it is read-only")
	}
	r := NewRig(t, d, 4)
	mem := Memory(t, 4096)
	bs := uint64(spec.BlockSize)
	for _, kind := range []backend.Kind{backend.Write, backend.Discard, backend.WriteZeroes} {
		op := backend.Op{Kind: kind, Length: bs, Bufs: [][]byte{mem[:bs]}}
		if st := r.Do(op); st.Code() != nvme.NamespaceWriteProtected {
			t.Errorf("%s: %v", Describe(&op), st)
		}
	}
	r.MustDo(backend.Op{Kind: backend.Read, FUA: true, Length: bs, Bufs: [][]byte{mem[:bs]}})
	r.MustDo(backend.Op{Kind: backend.Flush})
}

// testQueues has several owners at once, each with its own part of the device.
func testQueues(t *testing.T, h Harness, spec Spec) {
	const owners = 3
	d := h.open(t, spec)
	part := spec.Blocks / owners
	var all sync.WaitGroup
	for o := range uint64(owners) {
		r := NewRig(t, d, 4)
		mem := Memory(t, 1<<20)
		all.Go(func() {
			defer h.own()()
			bs := uint64(spec.BlockSize)
			for round := range uint64(60) {
				op := backend.Op{Kind: backend.Write, Offset: o * part * bs, Length: part * bs, Bufs: [][]byte{mem[:part*bs]}}
				fill(op.Bufs[0], o, uint32(round+1))
				want := bytes.Clone(op.Bufs[0])
				if st := r.Do(op); st != nvme.Success {
					t.Errorf("%s: %v", Describe(&op), st)
					return
				}
				clear(op.Bufs[0])
				op.Kind = backend.Read
				if st := r.Do(op); st != nvme.Success || !h.Forgets && !bytes.Equal(op.Bufs[0], want) {
					t.Errorf("owner %d round %d: %v, or another's data", o, round, st)
					return
				}
			}
		})
	}
	all.Wait()
}

// testWholeBlocks reads blocks that two others overwrite.
func testWholeBlocks(t *testing.T, h Harness, spec Spec) {
	if !h.WholeBlocks {
		t.Skip("the medium promises nothing about it")
	}
	const writers, blocks, rounds = 2, 16, 20000
	d := h.open(t, spec)
	bs := uint64(spec.BlockSize)
	prepare := func(kind backend.Kind, b byte) (*Rig, backend.Op) {
		mem := Memory(t, 1<<16)
		for i := range mem {
			mem[i] = b
		}
		return NewRig(t, d, 1), backend.Op{Kind: kind, Length: blocks * bs, Bufs: [][]byte{mem[:blocks*bs]}}
	}
	var all sync.WaitGroup
	defer all.Wait()
	stop := make(chan struct{})
	defer close(stop)
	for w := range writers {
		r, op := prepare(backend.Write, byte(w))
		all.Go(func() {
			defer h.own()()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if st := r.Do(op); st != nvme.Success {
					t.Errorf("%s: %v", Describe(&op), st)
					return
				}
			}
		})
	}
	r, op := prepare(backend.Read, 0)
	for range rounds {
		r.MustDo(op)
		if b := mixed(op.Bufs[0], int(bs)); b >= 0 {
			t.Fatalf("block %d is of two writes", b)
		}
	}
}

// mixed is the first block of data whose bytes are not all the same, or -1.
func mixed(data []byte, blockSize int) int {
	for b := 0; b*blockSize < len(data); b++ {
		if block := data[b*blockSize:][:blockSize]; bytes.Count(block, block[:1]) != blockSize {
			return b
		}
	}
	return -1
}

func testRegistered(t *testing.T, h Harness, spec Spec) {
	d := h.open(t, spec)
	r := NewRig(t, d, 4)
	reg, ok := r.Queue.(backend.Registrar)
	if !ok {
		t.Skip("the queue gains nothing from registered memory")
	}
	mem, other := Memory(t, 1<<20), Memory(t, 1<<20)
	for _, regions := range [][][]byte{{mem[:1<<19], mem[1<<19:]}, {mem}, nil} {
		if err := reg.RegisterBuffers(regions); err != nil {
			t.Fatal(err)
		}
		m := newModel(d.Info(), h.Forgets)
		for _, buf := range [][]byte{mem[:spec.BlockSize], mem[1<<19-512:][:spec.BlockSize], other[:spec.BlockSize]} {
			op := backend.Op{Kind: backend.Write, Length: uint64(len(buf)), Bufs: [][]byte{buf}}
			copy(buf, m.data(&op))
			r.MustDo(op)
			m.apply(&op, m.seed)
			clear(buf)
			op.Kind = backend.Read
			r.MustDo(op)
			if err := m.check(&op); err != nil {
				t.Error(err)
			}
		}
	}
}

// testAllocations counts allocations of whole rounds: submit, wait, reap.
func testAllocations(t *testing.T, h Harness, spec Spec) {
	if h.Allocates {
		t.Skip("the device may allocate")
	}
	const depth = 8
	r := NewRig(t, h.open(t, spec), depth)
	mem := Memory(t, 1<<16)
	bs := uint64(spec.BlockSize)
	half := bs / 2
	for name, op := range map[string]backend.Op{
		"read":               {Kind: backend.Read, Bufs: [][]byte{mem[:bs]}},
		"write":              {Kind: backend.Write, Bufs: [][]byte{mem[:bs]}},
		"read, two buffers":  {Kind: backend.Read, Bufs: [][]byte{mem[:half], mem[half:bs]}},
		"write, two buffers": {Kind: backend.Write, Bufs: [][]byte{mem[:half], mem[half:bs]}},
		"read, odd address":  {Kind: backend.Read, Bufs: [][]byte{mem[1 : 1+bs]}},
		"write, odd address": {Kind: backend.Write, Bufs: [][]byte{mem[1 : 1+bs]}},
		"FUA write":          {Kind: backend.Write, FUA: true, Bufs: [][]byte{mem[:bs]}},
		"write zeroes":       {Kind: backend.WriteZeroes},
		"flush":              {Kind: backend.Flush},
	} {
		ops := make([]backend.Op, depth)
		for i := range ops {
			ops[i] = op
			if op.Kind != backend.Flush {
				ops[i].Offset, ops[i].Length = uint64(i)*bs, bs
			}
		}
		round := func() {
			for sent, left := 0, depth; left > 0; {
				sent += r.Queue.Submit(ops[sent:])
				if n := r.Queue.Reap(r.done); n > 0 {
					left -= n
					continue
				}
				r.Queue.Arm()
				<-r.Woken
			}
		}
		allocs := 1.0
		for try := 0; allocs > 0 && try < 3; try++ { // the first may start threads
			allocs = testing.AllocsPerRun(8, round)
		}
		if allocs > 0 {
			t.Errorf("%s: %v allocations in a round of %d", name, allocs, depth)
		}
	}
}
