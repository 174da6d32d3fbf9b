package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

const (
	lateNS  = 4       // of tests that add namespaces
	largest = 1 << 20 // bytes of a command
)

// smallPool leaves a group the least memory there can be: two of the largest
// buffers, and the reserve.
func smallPool(c *Config) { tinyPool(c, largest) }

func tinyPool(c *Config, largest int) {
	c.PollGroups, c.MaxTransfer, c.Buffers = 1, largest, 2*int64(largest)
}

// slots are the requests of queue qid by state.
func (e *env) slots(qid uint16) map[string]int {
	e.t.Helper()
	snap := e.snapshot()
	for _, g := range snap.Groups {
		for i := range g.Connections {
			if g.Connections[i].QID == qid {
				return g.Connections[i].Slots
			}
		}
	}
	return nil
}

// allFree waits until every buffer is back.
func (e *env) allFree() {
	e.t.Helper()
	e.until("all buffers are free", func() bool {
		snap := e.snapshot()
		ok := true
		for i, g := range snap.Groups {
			ok = ok && g.BuffersFree == g.BuffersSize && g.Waiting == 0
			e.tr.groups[i].call(func() {
				for _, sh := range e.tr.groups[i].shares {
					ok = ok && sh.used == 0 && sh.n == 0
				}
			})
		}
		return ok
	})
}

// victim is a host that fills its queue with commands on a device that does not
// answer.
type victim struct {
	q     *rdmatest.Queue
	depth int
}

// stick sends depth commands of size bytes to the gate under nsid, of both
// directions or one, and waits until no more of them get buffers.
func (e *env) stick(s *rdmatest.Session, d *gate, qid uint16, nsid uint32, size int, ops ...nvme.Opcode) *victim {
	e.t.Helper()
	v := &victim{depth: 128}
	before := d.inFlight()
	v.q = e.queueOf(s, rdmatest.Options{QID: qid, HSQSize: 127, DataSize: largest}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range v.depth {
		v.q.IO(cmd, ops[i%len(ops)], uint16(i), nsid, 0, uint32(size/4096), 0, size)
		e.must(v.q.SendCommand(cmd, nil))
	}
	e.until("all that have buffers are in the backend", func() bool {
		_, _ = v.q.Poll()
		st := e.slots(qid)
		return st[slotExecuting.String()]+st[slotWantBuffer.String()] == v.depth && st[slotExecuting.String()] == d.inFlight()-before
	})
	return v
}

// freed waits until every command of v has ended well.
func (e *env) freed(v *victim) {
	e.t.Helper()
	for range v.depth {
		r, err := v.q.Wait(e.ctx)
		e.status(r.Status, err, 0)
	}
}

// well has q write and read its namespace in every size, alone and many at a time.
func (e *env) well(q *rdmatest.Queue, nsid uint32) {
	e.t.Helper()
	largest := e.tr.cfg.MaxTransfer
	for i, size := range []int{4096, largest, 68 << 10, 4096, largest} {
		fill(q.Data()[:size], byte(i))
		want := bytes.Clone(q.Data()[:size])
		e.must(q.Write(e.ctx, nsid, 0, uint32(size/blockLen), 0, size))
		clear(q.Data()[:size])
		e.must(q.Read(e.ctx, nsid, 0, uint32(size/blockLen), 0, size))
		if !bytes.Equal(q.Data()[:size], want) {
			e.t.Errorf("%d bytes: not what was written", size)
		}
	}
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 32 {
		op, size := []nvme.Opcode{nvme.CmdRead, nvme.CmdWrite, nvme.CmdCompare}[i%3], []int{4096, largest}[i/3%2]
		if op == nvme.CmdCompare {
			size = 4096 // of zeroes, which are there
			q.IO(cmd, op, uint16(i), nsid, 8192, uint32(size/blockLen), largest, size)
		} else {
			q.IO(cmd, op, uint16(i), nsid, 0, uint32(size/blockLen), 0, size)
		}
		e.must(q.SendCommand(cmd, nil))
	}
	for range 32 {
		r, err := q.Wait(e.ctx)
		e.status(r.Status, err, 0)
	}
}

// gates adds n namespaces, from lateNS on, whose devices do not answer.
func (e *env) gates(n int) (gates []*gate) {
	e.t.Helper()
	for i := range n {
		gates = append(gates, newGate(1<<30))
		e.add(uint32(lateNS+i), gates[i])
	}
	return gates
}

// Namespaces whose backends answer nothing, with all that their hosts can send
// waiting for them, leave room for another of their group. As they answer, one
// after the other, everything ends well and nothing is lost.
func TestStuckNamespaces(t *testing.T) {
	const k, m = 1 << 10, 1 << 20
	for _, c := range []struct {
		largest int
		sizes   []int // of the commands on each
	}{
		{128 * k, []int{4 * k}},
		{128 * k, []int{64 * k}},
		{128 * k, []int{128 * k}},
		{m, []int{64 * k}},
		{m, []int{m}},
		{128 * k, []int{4 * k, 4 * k}},
		{128 * k, []int{4 * k, 128 * k}},
		{128 * k, []int{128 * k, 4 * k}},
		{128 * k, []int{128 * k, 128 * k}},
		{m, []int{m, m}},
		{m, []int{m, 64 * k}},
	} {
		for _, ops := range [][]nvme.Opcode{{nvme.CmdRead}, {nvme.CmdWrite}, {nvme.CmdWrite, nvme.CmdRead}} {
			t.Run(fmt.Sprintf("%d of %d, opcodes %v", c.sizes, c.largest, ops), func(t *testing.T) {
				e := newEnv(t, envOptions{cfg: func(cfg *Config) { tinyPool(cfg, c.largest) }})
				stuck := e.gates(len(c.sizes))
				s := e.admin()
				q := e.queueOf(s, rdmatest.Options{QID: 1, DataSize: 2 * largest}, rdmatest.ConnectParams{})
				var victims []*victim
				for i, size := range c.sizes {
					victims = append(victims, e.stick(s, stuck[i], uint16(2+i), uint32(lateNS+i), size, ops...))
					if n := stuck[0].inFlight(); n == victims[0].depth || n*c.sizes[0] < 2*c.largest {
						t.Errorf("%d commands of %d bytes have buffers, the first to come", n, c.sizes[0])
					}
				}
				e.well(q, memNS)
				for i := len(stuck) - 1; i >= 0; i-- { // those that got least go first
					stuck[i].open()
					e.freed(victims[i])
					e.well(q, memNS)
				}
				e.allFree()
			})
		}
	}
}

// The requests that wait for the share of a namespace which is removed end at
// once, as a new one would. Those in the backend end when it answers; until then
// others have room.
func TestStuckNamespaceRemoved(t *testing.T) {
	stuck := newGate(1 << 30)
	e := newEnv(t, envOptions{extra: stuck, cfg: smallPool})
	s := e.admin()
	q := e.queueOf(s, rdmatest.Options{QID: 1, DataSize: 2 * largest}, rdmatest.ConnectParams{})
	v := e.stick(s, stuck, 2, extraNS, 64<<10, nvme.CmdWrite, nvme.CmdRead)
	held := stuck.inFlight()
	ctx, cancel := context.WithTimeout(e.ctx, 10*time.Millisecond)
	defer cancel()
	if err := e.sub.RemoveNamespace(ctx, extraNS); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("removed with commands in the backend: %v", err)
	}
	for range v.depth - held {
		r, err := v.q.Wait(e.ctx)
		e.status(r.Status, err, nvme.InvalidField)
	}
	e.well(q, memNS)
	fresh := newGate(1 << 30) // has the NSID, not the share: that is still taken
	fresh.open()
	_, err := e.sub.AddNamespace(target.NamespaceConfig{NSID: extraNS, Device: fresh})
	e.must(err)
	e.must(q.Read(e.ctx, extraNS, 0, 256, 0, largest))
	stuck.open()
	for range held {
		r, err := v.q.Wait(e.ctx)
		e.status(r.Status, err, 0)
	}
	e.allFree()
}

// A host that leaves takes its waiting requests with it, and what the backend
// has of it stays counted until it answers.
func TestStuckHostLeaves(t *testing.T) {
	stuck := newGate(1 << 30)
	e := newEnv(t, envOptions{extra: stuck, cfg: smallPool})
	s := e.admin()
	q := e.queueOf(s, rdmatest.Options{QID: 1, DataSize: 2 * largest}, rdmatest.ConnectParams{})
	v := e.stick(s, stuck, 2, extraNS, 256<<10, nvme.CmdWrite, nvme.CmdRead)
	held := stuck.inFlight()
	e.must(v.q.Close())
	e.until("nobody waits", func() bool { snap := e.snapshot(); return snap.Groups[0].Waiting == 0 })
	again := e.stick(s, stuck, 3, extraNS, 256<<10, nvme.CmdRead)
	if n := stuck.inFlight(); n != held {
		t.Errorf("%d commands have buffers, those of the host that left included; want %d", n, held)
	}
	e.well(q, memNS)
	stuck.open()
	e.freed(again)
	e.allFree()
}

// Small commands of many namespaces, more than there are buffers for, do not
// starve the large ones of another.
func TestLargeAmongSmall(t *testing.T) {
	e := newEnv(t, envOptions{cfg: smallPool, bound: time.Minute})
	s := e.admin()
	large := e.queueOf(s, rdmatest.Options{QID: 1, DataSize: 2 * largest}, rdmatest.ConnectParams{})
	var pumps []*pump
	e.addNulls(16)
	for i := range 16 {
		q := e.queueOf(s, rdmatest.Options{QID: uint16(2 + i), HSQSize: 127, DataSize: 128 * 4096}, rdmatest.ConnectParams{})
		pumps = append(pumps, &pump{q: q, cmd: make(nvme.Command, nvme.SQESize), op: nvme.CmdWrite, nsid: uint32(lateNS + i), size: 4096, block: 4096})
		e.must(pumps[i].start(128))
	}
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 8 {
		large.IO(cmd, []nvme.Opcode{nvme.CmdWrite, nvme.CmdRead}[i%2], uint16(i), memNS, 0, 2048, 0, largest)
		e.must(large.SendCommand(cmd, nil))
	}
	for done := 0; done < 8; {
		for _, p := range pumps {
			e.must(p.poll())
		}
		_, err := large.Poll()
		e.must(err)
		for _, r := range large.Take() {
			e.status(r.Status, nil, 0)
			done++
		}
		runtime.Gosched()
		e.must(e.ctx.Err())
	}
	for _, p := range pumps {
		if p.done == 0 {
			t.Errorf("namespace %d has had no command served", p.nsid)
		}
	}
	snap := e.snapshot()
	if sum := snap.sum(); sum.BufferWaits == 0 {
		t.Error("nothing waited")
	}
}

// A claim on a reserve that hangs holds others up for a time, not for good: with
// three namespaces stuck there is no room for the large command of a fourth, but
// for the small one of a fifth.
func TestVoidClaim(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) {
		smallPool(c)
		c.StallTimeout = 500 * time.Millisecond
	}})
	s := e.admin()
	gates := e.gates(3)
	var victims []*victim
	for i, d := range gates {
		victims = append(victims, e.stick(s, d, uint16(2+i), uint32(lateNS+i), largest, nvme.CmdRead))
	}
	small := e.queueOf(s, rdmatest.Options{QID: 1}, rdmatest.ConnectParams{})
	large := e.queueOf(s, rdmatest.Options{QID: 9, DataSize: largest}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	large.IO(cmd, nvme.CmdRead, 1, memNS, 0, 2048, 0, largest)
	e.must(large.SendCommand(cmd, nil))
	e.until("the large one waits", func() bool { _, _ = large.Poll(); return e.slots(9)[slotWantBuffer.String()] == 1 })
	for range 5 {
		e.must(small.Read(e.ctx, nullNS, 0, 1, 0, 4096))
	}
	g := e.tr.groups[0]
	g.call(func() { g.cfg.StallTimeout = time.Minute }) // the hosts here look at one queue at a time
	for i, d := range gates {
		d.open()
		e.freed(victims[i])
	}
	r, err := large.Wait(e.ctx)
	e.status(r.Status, err, 0)
	e.allFree()
}

// A backend that hangs, with commands waiting for it, is no reason to end the
// connection of a host that takes its time with other namespaces' responses.
func TestStallSparesOthers(t *testing.T) {
	stuck := newGate(1 << 30)
	e := newEnv(t, envOptions{extra: stuck, cfg: func(c *Config) {
		smallPool(c)
		c.StallTimeout = 20 * time.Millisecond
	}})
	s := e.admin()
	slow := e.queueOf(s, rdmatest.Options{QID: 1, HSQSize: 7, HRQSize: 8, Receives: 1, HoldReceives: true}, rdmatest.ConnectParams{})
	v := e.stick(s, stuck, 2, extraNS, 256<<10, nvme.CmdWrite)
	cmd := make(nvme.Command, nvme.SQESize)
	slow.IO(cmd, nvme.CmdRead, 1, memNS, 0, 8, 0, 4096)
	e.must(slow.SendCommand(cmd, nil))
	g := e.tr.groups[0]
	rounds := func() (n uint64) { g.call(func() { n = g.stall.round }); return n }
	e.until("the response is on its way", func() bool { _, _ = slow.Poll(); return e.slots(1)[slotSending.String()] == 1 })
	for end := rounds() + 4; rounds() < end && e.ctx.Err() == nil; {
		time.Sleep(5 * time.Millisecond)
	}
	if err := slow.Conn().Err(); err != nil {
		t.Errorf("ended: %v", err)
	}
	if lines := e.log.lines("120 commands on namespace 3 wait for buffers"); len(lines) != 1 {
		t.Errorf("log %q", lines)
	}
	g.call(func() { g.cfg.StallTimeout = time.Minute })
	e.must(slow.PostHeld(1))
	r, err := slow.Wait(e.ctx)
	e.status(r.Status, err, 0)
	stuck.open()
	e.freed(v)
	e.allFree()
}

// slotFor is a request of size bytes that belongs to sh.
func slotFor(sh *share, size uint32) *slot {
	return &slot{share: sh, pool: dataPool, transfer: target.Transfer{Dir: target.ControllerToHost, Length: size}}
}

// sharedGroup is a group with nothing but its buffers for I/O.
func sharedGroup(t testing.TB, buffers int64) *group {
	t.Helper()
	cfg := DefaultConfig()
	cfg.PollGroups, cfg.Buffers = 1, buffers
	g := &group{cfg: &cfg}
	for i := range g.pools {
		p, err := newPool(cfg.dataPool(), cfg.reserve(), cfg.MaxTransfer)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.mem.Close(); err != nil {
				t.Error(err)
			}
		})
		p.ratio = maxRatio
		g.pools[i] = p
	}
	return g
}

// How much one namespace can hold, alone and beside others that do.
func TestShares(t *testing.T) {
	const m = 1 << 20
	for _, c := range []struct {
		buffers int64
		size    uint32
		want    []int // buffers of each namespace in turn
	}{
		{2 * m, m, []int{2, 1, 1, 0}},
		{4 * m, m, []int{4, 1, 1, 0}},
		{8 * m, m, []int{8, 1, 1, 0}},
		{16 * m, m, []int{16, 1, 1, 0}},
		{32 * m, m, []int{30, 2, 1, 1, 0}},
		{64 * m, m, []int{58, 6, 1, 1, 0}},
		// A page of the reserve is a block of 32.
		{2 * m, 4096, []int{513, 8, 4, 2, 1, 1, 1}},
		{16 * m, 4096, []int{4096, 9, 4}},
		{64 * m, 4096, []int{15075, 1309}},
	} {
		g := sharedGroup(t, c.buffers)
		for i, want := range c.want {
			sh, got := new(share), 0
			for g.acquire(slotFor(sh, c.size)) {
				got++
			}
			if got != want {
				t.Errorf("%d bytes in buffers of %d: namespace %d gets %d, want %d", c.buffers, c.size, i, got, want)
			}
		}
	}
}

// Data that is to leave its capsule gets buffers as other data does, but does not
// wait for them: it stays where it is, then.
func TestCopyOut(t *testing.T) {
	const n = 3*pageSize - 100
	g := sharedGroup(t, 2*largest)
	g.stall.armed = true // nobody watches
	c, p := &conn{group: g}, g.pools[dataPool]
	capsule := make([]byte, 3*pageSize)
	fill(capsule, 1)
	request := func() *slot {
		return &slot{pool: dataPool, sgl: dataSGL{capsule: capsule}, transfer: target.Transfer{Dir: target.HostToController, Length: n}}
	}
	s := request()
	if !c.copyOut(s) || s.share.used != 3 || p.free != p.pages-3 || s.dataBytes() != 0 {
		t.Fatalf("not copied, or not counted: %d pages are free, %d bytes are to be fetched", p.free, s.dataBytes())
	}
	want := bytes.Clone(capsule[:n])
	clear(capsule) // the receive is posted again
	if s.viewCapsule(); !bytes.Equal(bytes.Join(s.Bufs, nil), want) {
		t.Error("the buffers have other data")
	}
	sh := s.share
	g.releaseBuffers(s)
	for _, r := range []struct {
		name string
		set  func(s *slot)
	}{
		{"no data", func(s *slot) { s.transfer.Length = 0 }},
		{"a list of descriptors", func(s *slot) { s.sgl.list = true }},
		{"it wants scratch memory, too", func(s *slot) { s.transfer.Scratch = 4096 }},
		{"the share is used up", func(*slot) { sh.used = (maxRatio + 1) * p.pages }},
		{"others of the share wait", func(*slot) { g.wait(slotFor(sh, 4096)) }},
	} {
		s := request()
		r.set(s)
		if c.copyOut(s) || s.pieces != 0 || s.Bufs != nil || p.free != p.pages {
			t.Errorf("%s: copied, %d pages are free", r.name, p.free)
		}
		sh.used = 0
	}
}

// While a request that holds nothing waits for memory nobody else takes of the
// reserve; one that needs all that is free gets it.
func TestClaim(t *testing.T) {
	g := sharedGroup(t, 2*largest)
	g.stall.armed = true // nobody watches
	p, w := g.pools[dataPool], &g.waiting[dataPool]
	hog, large, small := new(share), new(share), new(share)
	for g.acquire(slotFor(hog, largest)) {
	}
	other := slotFor(new(share), largest)
	if !g.acquire(other) {
		t.Fatal("no room for a second")
	}
	for p.reserved() >= largest>>pageShift {
		g.acquire(slotFor(new(share), 4096))
	}
	s := slotFor(large, largest)
	if g.acquire(s) {
		t.Fatal("nobody has to wait")
	}
	g.wait(s)
	if g.acquire(slotFor(small, 4096)) {
		t.Error("a small request is let past")
	}
	g.releaseBuffers(other)
	if p.reserved() < 8<<p.grain {
		t.Fatal("nothing has come back")
	}
	if g.acquire(slotFor(small, 4096)) {
		t.Error("a small request is let past when there is something")
	}
	var extra [maxPieces]block
	if p.getReserve(uint32(p.reserved()<<pageShift)-largest, extra[:]) == 0 || p.free != 256 {
		t.Fatalf("%d pages free, want those of the large one", p.free)
	}
	if !g.unserved() || !g.acquire(w.turn.head) || w.pop(large) != s || w.claim != nil {
		t.Error("the large one is not served, or keeps its claim")
	}
	g.releaseBuffers(s)
	if !g.acquire(slotFor(small, 4096)) {
		t.Error("the small one is not served afterwards")
	}
}

// The reserve serves the largest request, however the rest is fragmented.
func TestReserveDoesNotFragment(t *testing.T) {
	g := sharedGroup(t, 2*largest)
	p := g.pools[dataPool]
	small, sh := new(share), new(share)
	var taken []*slot
	for range p.buddies {
		taken = append(taken, slotFor(small, 4096))
		g.acquire(taken[len(taken)-1])
	}
	for i := 0; i < len(taken); i += 2 {
		g.releaseBuffers(taken[i])
	}
	for range 2 {
		s := slotFor(sh, largest)
		s.transfer.Scratch = target.MaxScratch
		if !g.acquire(s) {
			t.Fatalf("%d of %d pages are free, %d of them reserved: no room for the largest command", p.free, p.pages, p.reserved())
		}
		for _, b := range s.blocks[:s.pieces] {
			if b.size() < 32*pageSize && int(b.page()) >= p.buddies {
				t.Errorf("a piece of %d bytes of the reserve", b.size())
			}
		}
		sh = new(share)
	}
}

// However many namespaces wait, a turn looks at a few, and comes to all.
func TestLooksAreBounded(t *testing.T) {
	g := sharedGroup(t, 2*largest)
	p, w := g.pools[dataPool], &g.waiting[dataPool]
	all := make([]*share, 1024)
	for i := range all {
		all[i] = &share{used: (maxRatio + 1) * p.pages} // more than it may hold
		w.push(slotFor(all[i], 4096))
		w.push(slotFor(all[i], 4096))
	}
	if g.unserved() {
		t.Error("work to do when nothing has come back")
	}
	w.again()
	turns := 0
	for first := w.turn; g.unserved(); turns++ {
		before := w.look
		g.serve()
		if before-w.look > lookBatch {
			t.Fatalf("%d looks in a turn", before-w.look)
		}
		if w.look == 0 && w.turn != first {
			t.Error("not everybody was looked at")
		}
	}
	if turns != len(all)/lookBatch {
		t.Errorf("%d turns", turns)
	}
	for i, sh := range all { // and they leave in any order
		if i%3 == 0 {
			w.removeIf(func(s *slot) bool { return s.share == sh })
		} else {
			w.pop(sh)
			w.pop(sh)
		}
	}
	if w.turn != nil || w.n != 0 || w.requests != 0 || w.look != 0 {
		t.Errorf("left: %+v", *w)
	}
}

// BenchmarkServe is what a turn pays for namespaces that wait for their share,
// when buffers have come back in each.
func BenchmarkServe(b *testing.B) {
	for _, n := range []int{0, 1, 16, 1024} {
		b.Run(fmt.Sprintf("waiting-%d", n), func(b *testing.B) {
			g := sharedGroup(b, 2*largest)
			w := &g.waiting[dataPool]
			for range n {
				w.push(slotFor(&share{used: (maxRatio + 1) * g.pools[dataPool].pages}, 4096))
			}
			b.ReportAllocs()
			for b.Loop() {
				w.again()
				g.serve()
			}
		})
	}
}
