package fabrictest

import (
	"errors"

	"github.com/nvmf-go/nvmf/fabric"
)

// atomics connects with the right to atomics, or skips.
func (s *suite) atomics() (*channel, fabric.Atomics) {
	s.Helper()
	s.need(s.a.dev.Limits().Atomics && s.b.dev.Limits().Atomics, "atomics")
	ch := s.connect()
	at, ok := ch.a.qp.(fabric.Atomics)
	if !ok {
		s.Fatal("Limits.Atomics is set, but the queue pair does not implement fabric.Atomics")
	}
	return ch, at
}

// atomic posts one atomic on the peer's word at off; the old value goes to a's
// memory at 0.
func (ch *channel) atomic(at fabric.Atomics, id uint64, op fabric.Opcode, off int, compare, swapAdd uint64) {
	s := ch.a.s
	s.Helper()
	wr := fabric.AtomicWR{ID: id, Op: op, RemoteAddr: ch.b.mem.Addr() + uint64(off), RKey: ch.b.mr.RKey(),
		Compare: compare, SwapAdd: swapAdd, Flags: fabric.FlagSignaled}
	n, err := at.PostAtomic([]fabric.AtomicWR{wr}, []fabric.SGE{ch.a.sge(0, 8)})
	if n != 1 || err != nil {
		s.Fatalf("PostAtomic: %d, %v", n, err)
	}
}

// testAtomics runs both operations, those that take effect and those that do
// not.
func testAtomics(s *suite) {
	ch, at := s.atomics()
	const off = 4096
	const top = 1<<64 - 1
	for i, c := range []struct {
		op            fabric.Opcode
		before        uint64
		compare, swap uint64
		after         uint64
	}{
		{fabric.OpFetchAdd, 5, 0, 7, 12},
		{fabric.OpFetchAdd, top, 0, 1, 0},
		{fabric.OpFetchAdd, 1, 99, top, 0},
		{fabric.OpFetchAdd, 1 << 32, 0, 1 << 32, 1 << 33},
		{fabric.OpCompareSwap, 12, 12, 0x1122334455667788, 0x1122334455667788},
		{fabric.OpCompareSwap, 12, 13, 7, 12},
		{fabric.OpCompareSwap, 0x100000000, 0, 7, 0x100000000},
		{fabric.OpCompareSwap, 0, 0, top, top},
	} {
		ch.b.setWord(off, c.before)
		ch.b.setWord(off-8, 0xaaaa)
		ch.b.setWord(off+8, 0xbbbb)
		ch.a.setWord(0, ^c.before)
		id := sendID + uint64(i)
		ch.atomic(at, id, c.op, off, c.compare, c.swap)
		ch.a.ok(fabric.Completion{ID: id, Op: c.op, ByteLen: 8})
		if old, now := ch.a.word(0), ch.b.word(off); old != c.before || now != c.after {
			s.Errorf("case %d: %v on %#x returned %#x and left %#x, want %#x", i, c.op, c.before, old, now, c.after)
		}
		if ch.b.word(off-8) != 0xaaaa || ch.b.word(off+8) != 0xbbbb {
			s.Errorf("case %d: a neighbour changed", i)
		}
	}
	ch.b.none("of atomics")
}

// testAtomicErrors: a wrong address, key or right ends the connection and
// changes nothing. A driver may refuse the misaligned address at once.
func testAtomicErrors(s *suite) {
	s.need(s.a.dev.Limits().Atomics && s.b.dev.Limits().Atomics, "atomics")
	_, noRight := s.b.alloc(4096, fabric.AccessLocalWrite|fabric.AccessRemoteRead|fabric.AccessRemoteWrite)
	for _, c := range []struct {
		name string
		addr uint64
		key  uint32
		want fabric.Status
	}{
		{"misaligned", s.b.mem.Addr() + 4, s.b.mr.RKey(), fabric.StatusRemoteInvalidReq},
		{"across the end", s.b.mem.Addr() + uint64(s.b.mem.Len()), s.b.mr.RKey(), fabric.StatusRemoteAccess},
		{"without the right", noRight.Memory().Addr(), noRight.RKey(), fabric.StatusRemoteAccess},
		{"unknown key", s.b.mem.Addr(), s.unknownKey(), fabric.StatusRemoteAccess},
	} {
		ch, at := s.atomics()
		ch.b.setWord(0, 1)
		ch.b.setWord(8, 1)
		wr := fabric.AtomicWR{ID: sendID, Op: fabric.OpFetchAdd, RemoteAddr: c.addr, RKey: c.key, SwapAdd: 1, Flags: fabric.FlagSignaled}
		n, err := at.PostAtomic([]fabric.AtomicWR{wr}, []fabric.SGE{ch.a.sge(0, 8)})
		if n == 0 && c.want == fabric.StatusRemoteInvalidReq && errors.Is(err, fabric.ErrInvalid) {
			ch.alive("after a misaligned atomic was refused")
			continue
		}
		if n != 1 || err != nil {
			s.Fatalf("%s: PostAtomic: %d, %v", c.name, n, err)
		}
		checkIDs(s, c.name, ch.a.take(1), c.want, sendID)
		if ch.b.word(0) != 1 || ch.b.word(8) != 1 {
			s.Errorf("%s: memory changed", c.name)
		}
		ch.dies(c.name)
	}
}

// testAtomicsContended adds to one word over several connections at once: no
// addition is lost.
func testAtomicsContended(s *suite) {
	const conns, each = 4, 50
	var chs []*channel
	var ats []fabric.Atomics
	for range conns {
		ch, at := s.atomics()
		chs, ats = append(chs, ch), append(ats, at)
	}
	const off = 512
	s.b.setWord(off, 0)
	seen := make(map[uint64]bool)
	for range each {
		for i, ch := range chs {
			wr := fabric.AtomicWR{ID: sendID, Op: fabric.OpFetchAdd, RemoteAddr: s.b.mem.Addr() + off, RKey: s.b.mr.RKey(), SwapAdd: 3, Flags: fabric.FlagSignaled}
			if n, err := ats[i].PostAtomic([]fabric.AtomicWR{wr}, []fabric.SGE{ch.a.sge(8*i, 8)}); n != 1 || err != nil {
				s.Fatalf("PostAtomic: %d, %v", n, err)
			}
		}
		for i, ch := range chs {
			ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpFetchAdd, ByteLen: 8})
			if old := s.a.word(8 * i); seen[old] || old%3 != 0 {
				s.Fatalf("the value %d was returned twice or never existed", old)
			} else {
				seen[old] = true
			}
		}
	}
	if got := s.b.word(off); got != 3*conns*each {
		s.Errorf("sum %d, want %d", got, 3*conns*each)
	}
}
