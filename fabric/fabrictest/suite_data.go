package fabrictest

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/nvmf-go/nvmf/fabric"
)

// testSendOrder sends messages of different sizes: each arrives whole, in
// order, in the receive of its turn.
func testSendOrder(s *suite) {
	ch := s.connect()
	const count, room = 24, 4096
	ch.b.recv(0, count, 1<<20, room)
	for i := range count {
		n := 1 + i*i*7
		fill(ch.a.bytes(i*room, n), uint32(i))
		ch.a.send(fabric.SendWR{ID: sendID + uint64(i), Op: fabric.OpSend}, ch.a.sge(i*room, n))
	}
	for i := range count {
		n := 1 + i*i*7
		ch.b.ok(fabric.Completion{ID: recvID + uint64(i), Op: fabric.OpRecv, ByteLen: uint32(n)})
		same(s, fmt.Sprintf("message %d", i), ch.b.bytes(1<<20+i*room, n), ch.a.bytes(i*room, n))
		ch.a.ok(fabric.Completion{ID: sendID + uint64(i), Op: fabric.OpSend})
	}
	// One longer than any path MTU, and then the last byte of the receive.
	ch.b.recv(50, 1, 1<<20, 1<<20)
	fill(ch.a.bytes(0, 1<<20), 99)
	ch.a.send(fabric.SendWR{ID: sendID + 50, Op: fabric.OpSend}, ch.a.sge(0, 1<<20))
	ch.b.ok(fabric.Completion{ID: recvID + 50, Op: fabric.OpRecv, ByteLen: 1 << 20})
	same(s, "1 MiB message", ch.b.bytes(1<<20, 1<<20), ch.a.bytes(0, 1<<20))
	ch.a.ok(fabric.Completion{ID: sendID + 50, Op: fabric.OpSend})
}

// testGather sends from several odd pieces into several others.
func testGather(s *suite) {
	k := min(4, s.a.dev.Limits().MaxSGE, s.b.dev.Limits().MaxSGE)
	s.need(k > 1, "more than one SGE")
	ch := s.connect()
	from := ch.a.sges(0, 13, []int{1, 1000, 0, 4097}[:k]...)
	to := ch.b.sges(0, 29, []int{3, 4096, 77, 2000}[:k]...)
	fill(ch.a.bytes(0, 16384), 1)
	fill(ch.b.bytes(0, 16384), 2)
	want := slices.Clone(ch.b.bytes(0, 16384))
	var message []byte
	off := 0
	for _, e := range from {
		message = append(message, ch.a.bytes(off, int(e.Length))...)
		off += int(e.Length) + 13
	}
	rest, off := message, 0
	for _, e := range to {
		rest = rest[copy(want[off:off+int(e.Length)], rest):]
		off += int(e.Length) + 29
	}
	if len(rest) > 0 {
		s.Fatalf("the test's own receive is %d bytes short", len(rest))
	}
	if n, err := ch.b.qp.PostRecv([]fabric.RecvWR{{ID: recvID, NumSGE: uint8(k)}}, to); n != 1 || err != nil {
		s.Fatalf("PostRecv: %d, %v", n, err)
	}
	ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, from...)
	ch.b.ok(fabric.Completion{ID: recvID, Op: fabric.OpRecv, ByteLen: uint32(len(message))})
	ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpSend})
	same(s, "memory of the receiver", ch.b.bytes(0, 16384), want)
}

// testEmpty sends and writes nothing.
func testEmpty(s *suite) {
	ch := s.connect()
	ch.b.recv(0, 1, 0, 64)
	if n, err := ch.b.qp.PostRecv([]fabric.RecvWR{{ID: recvID + 1}}, nil); n != 1 || err != nil {
		s.Fatalf("PostRecv without SGE: %d, %v", n, err)
	}
	fill(ch.b.bytes(0, 64), 3)
	want := slices.Clone(ch.b.bytes(0, 64))
	for i := range 2 {
		ch.a.send(fabric.SendWR{ID: sendID + uint64(i), Op: fabric.OpSend})
		ch.b.ok(fabric.Completion{ID: recvID + uint64(i), Op: fabric.OpRecv})
		ch.a.ok(fabric.Completion{ID: sendID + uint64(i), Op: fabric.OpSend})
	}
	ch.a.send(fabric.SendWR{ID: sendID + 2, Op: fabric.OpWrite, RemoteAddr: ch.b.mem.Addr(), RKey: ch.b.mr.RKey()})
	ch.a.ok(fabric.Completion{ID: sendID + 2, Op: fabric.OpWrite})
	ch.alive("after empty messages")
	same(s, "memory of the receiver", ch.b.bytes(0, 64), want)
}

// testImmediate sends with immediate data, with a payload and without.
func testImmediate(s *suite) {
	ch := s.connect()
	ch.b.recv(0, 2, 0, 64)
	fill(ch.a.bytes(0, 5), 4)
	ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSendImm, Imm: 0x01020304}, ch.a.sge(0, 5))
	ch.b.ok(fabric.Completion{ID: recvID, Op: fabric.OpRecv, ByteLen: 5, Imm: 0x01020304, Flags: fabric.CompletionImm})
	ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpSendImm})
	same(s, "payload", ch.b.bytes(0, 5), ch.a.bytes(0, 5))
	ch.a.send(fabric.SendWR{ID: sendID + 1, Op: fabric.OpSendImm, Imm: 0xffffffff, Flags: fabric.FlagSolicited})
	ch.b.ok(fabric.Completion{ID: recvID + 1, Op: fabric.OpRecv, Imm: 0xffffffff, Flags: fabric.CompletionImm})
	ch.a.ok(fabric.Completion{ID: sendID + 1, Op: fabric.OpSendImm})
}

// testInline reuses the payload's memory as soon as PostSend has returned, and
// gives no key.
func testInline(s *suite) {
	ch := s.connect()
	limit := ch.a.qp.MaxInline()
	s.need(limit > 0, "inline data")
	if want := min(64, s.a.dev.Limits().MaxInline); limit < want {
		s.Errorf("MaxInline %d, asked for %d", limit, want)
	}
	for i, n := range []int{0, 1, limit / 2, limit} {
		ch.b.recv(i, 1, i*1024, 1024)
		src := ch.a.bytes(0, n)
		fill(src, uint32(n))
		want := slices.Clone(src)
		sge := ch.a.sge(0, n)
		sge.LKey = 0
		ch.a.send(fabric.SendWR{ID: sendID + uint64(i), Op: fabric.OpSend, Flags: fabric.FlagInline}, sge)
		clear(src)
		ch.b.ok(fabric.Completion{ID: recvID + uint64(i), Op: fabric.OpRecv, ByteLen: uint32(n)})
		ch.a.ok(fabric.Completion{ID: sendID + uint64(i), Op: fabric.OpSend})
		same(s, "inline payload", ch.b.bytes(i*1024, n), want)
	}
	src := ch.a.bytes(0, limit)
	fill(src, 77)
	want := slices.Clone(src)
	ch.a.send(fabric.SendWR{ID: sendID + 9, Op: fabric.OpWrite, Flags: fabric.FlagInline, RemoteAddr: ch.b.mem.Addr() + 8192, RKey: ch.b.mr.RKey()}, ch.a.sge(0, limit))
	clear(src)
	ch.a.ok(fabric.Completion{ID: sendID + 9, Op: fabric.OpWrite})
	s.until("the inline write", func() bool { return slices.Equal(ch.b.bytes(8192, limit), want) })

	wr := fabric.SendWR{ID: sendID, Op: fabric.OpSend, Flags: fabric.FlagInline | fabric.FlagSignaled, NumSGE: 1}
	if n, err := ch.a.qp.PostSend([]fabric.SendWR{wr}, []fabric.SGE{ch.a.sge(0, limit+1)}); n != 0 || err == nil {
		s.Errorf("%d inline bytes over a limit of %d: posted %d, %v", limit+1, limit, n, err)
	}
	ch.alive("after a refused post")
}

// testUnsignaled sends many times the queue's depth, of which every eighth is
// signaled: exactly those complete, and the slots of the others come back.
func testUnsignaled(s *suite) {
	ch := s.connect()
	const batch, rounds = 8, 40
	for r := range rounds {
		ch.b.recv(r*batch, batch, 0, 64)
		var wrs []fabric.SendWR
		for i := range batch {
			wrs = append(wrs, fabric.SendWR{ID: sendID + uint64(r*batch+i), Op: fabric.OpSend, NumSGE: 1})
		}
		wrs[batch-1].Flags = fabric.FlagSignaled
		ch.a.post([]fabric.SGE{ch.a.sge(0, 64)}, wrs...)
		for i := range batch {
			ch.b.ok(fabric.Completion{ID: recvID + uint64(r*batch+i), Op: fabric.OpRecv, ByteLen: 64})
		}
		ch.a.ok(fabric.Completion{ID: sendID + uint64(r*batch+batch-1), Op: fabric.OpSend})
	}
	s.pause()
	ch.a.none("of unsignaled sends")
}

// testBothWays has both ends send, write and read at the same time.
func testBothWays(s *suite) {
	ch := s.connect()
	const rounds, size = 30, 8192
	for _, sd := range ch.sides() {
		fill(sd.bytes(0, size), uint32(len(sd.name)))
	}
	for r := range rounds {
		for i, sd := range ch.sides() {
			peer := ch.sides()[1-i]
			sd.recv(r, 1, 1<<20, size)
			remote := fabric.SendWR{RemoteAddr: peer.mem.Addr(), RKey: peer.mr.RKey()}
			w, rd := remote, remote
			w.ID, w.Op, w.RemoteAddr = sendID+1, fabric.OpWrite, remote.RemoteAddr+2<<20
			rd.ID, rd.Op = sendID+2, fabric.OpRead
			sd.send(w, sd.sge(0, size))
			sd.send(rd, sd.sge(3<<20, size))
		}
		for _, sd := range ch.sides() {
			sd.send(fabric.SendWR{ID: sendID + 3, Op: fabric.OpSend}, sd.sge(0, size))
		}
		for i, sd := range ch.sides() {
			peer := ch.sides()[1-i]
			sends, recvs := split(sd.take(4))
			checkIDs(s, sd.name+" sends", sends, fabric.StatusSuccess, sendID+1, sendID+2, sendID+3)
			checkIDs(s, sd.name+" receives", recvs, fabric.StatusSuccess, recvID+uint64(r))
			same(s, "received", sd.bytes(1<<20, size), peer.bytes(0, size))
			same(s, "written", sd.bytes(2<<20, size), peer.bytes(0, size))
			same(s, "read", sd.bytes(3<<20, size), peer.bytes(0, size))
		}
	}
}

// split parts completions into those of sends and those of receives by their
// ids.
func split(wc []fabric.Completion) (sends, recvs []fabric.Completion) {
	for _, c := range wc {
		if c.ID >= recvID {
			recvs = append(recvs, c)
		} else {
			sends = append(sends, c)
		}
	}
	return sends, recvs
}

// checkIDs holds completions against ids in order, all with one status.
func checkIDs(s *suite, what string, wc []fabric.Completion, status fabric.Status, ids ...uint64) {
	s.Helper()
	if len(wc) != len(ids) {
		s.Fatalf("%s: %d completions, want %d: %+v", what, len(wc), len(ids), wc)
	}
	for i, c := range wc {
		if c.ID != ids[i] || !s.cfg.accepts(c.Status, status) {
			s.Errorf("%s: completion %d is id %d, %v, want id %d, %v", what, i, c.ID, c.Status, ids[i], status)
		}
	}
}

// transferSizes are lengths around every path MTU and segment size, odd ones
// and large ones.
func (s *suite) transferSizes() []int {
	sizes := []int{0, 1, 2, 3, 4, 5, 7, 63, 64, 65, 255, 256, 257, 511, 513, 1023, 1024, 1025, 1427, 1428, 1429, 2047, 2048, 2049,
		4095, 4096, 4097, 8191, 8192, 8193, 65535, 65536, 65537, 131072, 131073, 1<<20 - 1, 1 << 20, 1<<20 + 1}
	if s.cfg.SlowBearer == "" {
		sizes = append(sizes, 3<<19+3)
	}
	return sizes
}

// testWriteSizes writes every size at odd addresses: it arrives whole and
// nothing beside it changes.
func testWriteSizes(s *suite) {
	ch := s.connect()
	for i, n := range s.transferSizes() {
		src, dst := 1+i%5, 1<<20+3+i%7
		fill(ch.a.bytes(src, n), uint32(n))
		fill(ch.b.bytes(dst-16, n+32), uint32(n)+1)
		before, after := slices.Clone(ch.b.bytes(dst-16, 16)), slices.Clone(ch.b.bytes(dst+n, 16))
		wr := fabric.SendWR{ID: sendID, Op: fabric.OpWrite, RemoteAddr: ch.b.mem.Addr() + uint64(dst), RKey: ch.b.mr.RKey()}
		ch.a.send(wr, ch.a.sge(src, n))
		ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpWrite})
		ch.a.sync(ch.b)
		same(s, fmt.Sprintf("%d bytes written", n), ch.b.bytes(dst, n), ch.a.bytes(src, n))
		same(s, "memory before", ch.b.bytes(dst-16, 16), before)
		same(s, "memory after", ch.b.bytes(dst+n, 16), after)
	}
	ch.b.none("of one-sided writes")
}

// sync sends an empty message behind what was posted, so that all of it has
// arrived.
func (sd *side) sync(peer *side) {
	sd.s.Helper()
	peer.recv(800, 1, 0, 0)
	sd.send(fabric.SendWR{ID: sendID + 800, Op: fabric.OpSend})
	peer.ok(fabric.Completion{ID: recvID + 800, Op: fabric.OpRecv})
	sd.ok(fabric.Completion{ID: sendID + 800, Op: fabric.OpSend})
}

// testWriteBeforeSend: when a SEND has arrived, the WRITEs posted before it are
// in place. This is what a target's responses rest on.
func testWriteBeforeSend(s *suite) {
	ch := s.connect()
	const size = 100000
	for r := range 20 {
		ch.b.recv(r, 1, 3<<20, 64)
		fill(ch.a.bytes(0, 2*size), uint32(r))
		remote := fabric.SendWR{Op: fabric.OpWrite, NumSGE: 1, RemoteAddr: ch.b.mem.Addr(), RKey: ch.b.mr.RKey()}
		second := remote
		second.RemoteAddr += size
		second.FirstSGE = 1
		ch.a.post([]fabric.SGE{ch.a.sge(0, size), ch.a.sge(size, size), ch.a.sge(0, 16)}, remote, second,
			fabric.SendWR{ID: sendID + uint64(r), Op: fabric.OpSend, NumSGE: 1, FirstSGE: 2, Flags: fabric.FlagSignaled})
		ch.b.ok(fabric.Completion{ID: recvID + uint64(r), Op: fabric.OpRecv, ByteLen: 16})
		same(s, "data of the writes", ch.b.bytes(0, 2*size), ch.a.bytes(0, 2*size))
		ch.a.ok(fabric.Completion{ID: sendID + uint64(r), Op: fabric.OpSend})
	}
}

// testWriteImmediate: the data goes to the address, the immediate takes a
// receive.
func testWriteImmediate(s *suite) {
	ch := s.connect()
	for i, n := range []int{0, 1, 5000, 100001} {
		ch.b.recv(i, 1, 0, 64)
		fill(ch.a.bytes(0, n), uint32(i))
		fill(ch.b.bytes(0, 64), 9)
		recv := slices.Clone(ch.b.bytes(0, 64))
		wr := fabric.SendWR{ID: sendID + uint64(i), Op: fabric.OpWriteImm, Imm: 0xa0b0c0d0 + uint32(i), RemoteAddr: ch.b.mem.Addr() + 1<<20, RKey: ch.b.mr.RKey()}
		ch.a.send(wr, ch.a.sge(0, n))
		ch.b.ok(fabric.Completion{ID: recvID + uint64(i), Op: fabric.OpRecvWriteImm, ByteLen: uint32(n), Imm: wr.Imm, Flags: fabric.CompletionImm})
		ch.a.ok(fabric.Completion{ID: sendID + uint64(i), Op: fabric.OpWriteImm})
		same(s, "data", ch.b.bytes(1<<20, n), ch.a.bytes(0, n))
		same(s, "buffer of the receive", ch.b.bytes(0, 64), recv)
	}
}

// testReadSizes reads every size.
func testReadSizes(s *suite) {
	ch := s.connect()
	s.need(ch.a.conn.ORD() > 0, "RDMA READ")
	for i, n := range s.transferSizes() {
		src, dst := 3+i%7, 1<<20+1+i%5
		fill(ch.b.bytes(src, n), uint32(n))
		fill(ch.a.bytes(dst-16, n+32), uint32(n)+1)
		before, after := slices.Clone(ch.a.bytes(dst-16, 16)), slices.Clone(ch.a.bytes(dst+n, 16))
		ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpRead, RemoteAddr: ch.b.mem.Addr() + uint64(src), RKey: ch.b.mr.RKey()}, ch.a.sge(dst, n))
		ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpRead, ByteLen: uint32(n)})
		same(s, fmt.Sprintf("%d bytes read", n), ch.a.bytes(dst, n), ch.b.bytes(src, n))
		same(s, "memory before", ch.a.bytes(dst-16, 16), before)
		same(s, "memory after", ch.a.bytes(dst+n, 16), after)
	}
	ch.b.none("of one-sided reads")
}

// testReadScatter reads into several pieces.
func testReadScatter(s *suite) {
	k := min(4, s.a.dev.Limits().MaxReadSGE)
	s.need(k > 1, "more than one SGE of a READ")
	ch := s.connect()
	lengths := []int{1, 4097, 511, 3000}[:k]
	total := 0
	for _, n := range lengths {
		total += n
	}
	fill(ch.b.bytes(5, total), 1)
	fill(ch.a.bytes(0, 16384), 2)
	want := slices.Clone(ch.a.bytes(0, 16384))
	off, src := 7, ch.b.bytes(5, total)
	for _, n := range lengths {
		src = src[copy(want[off:off+n], src):]
		off += n + 17
	}
	ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpRead, RemoteAddr: ch.b.mem.Addr() + 5, RKey: ch.b.mr.RKey()}, ch.a.sges(7, 17, lengths...)...)
	ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpRead, ByteLen: uint32(total)})
	same(s, "memory of the reader", ch.a.bytes(0, 16384), want)
}

// testFence sends back, in a SEND with a fence, what the READ before it
// fetches.
func testFence(s *suite) {
	ch := s.connect()
	s.need(ch.a.conn.ORD() > 0, "RDMA READ")
	const size = 300000
	for r := range 10 {
		ch.b.recv(r, 1, 1<<20, size)
		fill(ch.b.bytes(0, size), uint32(r))
		clear(ch.a.bytes(0, size))
		ch.a.post([]fabric.SGE{ch.a.sge(0, size)},
			fabric.SendWR{ID: sendID, Op: fabric.OpRead, NumSGE: 1, RemoteAddr: ch.b.mem.Addr(), RKey: ch.b.mr.RKey()},
			fabric.SendWR{ID: sendID + 1, Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagFence | fabric.FlagSignaled})
		ch.b.ok(fabric.Completion{ID: recvID + uint64(r), Op: fabric.OpRecv, ByteLen: size})
		same(s, "what came back", ch.b.bytes(1<<20, size), ch.b.bytes(0, size))
		ch.a.ok(fabric.Completion{ID: sendID + 1, Op: fabric.OpSend})
	}
}

// testORD posts more READs than may be outstanding: the rest wait, in order,
// and so does the SEND behind them.
func testORD(s *suite) {
	const depth, reads, size = 2, 12, 70000
	s.need(s.a.dev.Limits().MaxORD >= depth && s.b.dev.Limits().MaxIRD >= depth, "two outstanding RDMA READs")
	for _, c := range []struct{ ord, ird, want int }{{depth, 4, depth}, {4, depth, depth}, {1, 1, 1}} {
		ch := s.connect(func(a, b *fabric.ConnConfig) { a.ORD, b.IRD = c.ord, c.ird })
		if a, b := ch.a.conn.ORD(), ch.b.conn.IRD(); a != c.want || b < c.want {
			s.Fatalf("ORD %d asked and IRD %d offered: a.ORD() is %d, b.IRD() is %d", c.ord, c.ird, a, b)
		}
		ch.b.recv(0, 1, 3<<20, 64)
		fill(ch.b.bytes(0, reads*size), 5)
		clear(ch.a.bytes(0, reads*size))
		for i := range reads {
			ch.a.send(fabric.SendWR{ID: sendID + uint64(i), Op: fabric.OpRead, RemoteAddr: ch.b.mem.Addr() + uint64(i*size), RKey: ch.b.mr.RKey()}, ch.a.sge(i*size, size))
		}
		ch.a.send(fabric.SendWR{ID: sendID + reads, Op: fabric.OpSend}, ch.a.sge(0, 8))
		for i := range reads {
			ch.a.ok(fabric.Completion{ID: sendID + uint64(i), Op: fabric.OpRead, ByteLen: size})
		}
		ch.a.ok(fabric.Completion{ID: sendID + reads, Op: fabric.OpSend})
		ch.b.ok(fabric.Completion{ID: recvID, Op: fabric.OpRecv, ByteLen: 8})
		same(s, "what was read", ch.a.bytes(0, reads*size), ch.b.bytes(0, reads*size))
		ch.close()
	}
}

// testNoORD: the peer answers no READs, so none can be posted.
func testNoORD(s *suite) {
	ch := s.connect(func(_, b *fabric.ConnConfig) { b.IRD = 0 })
	if ch.a.conn.ORD() != 0 || ch.b.conn.IRD() != 0 {
		s.Fatalf("IRD 0 was offered: a.ORD() is %d, b.IRD() is %d", ch.a.conn.ORD(), ch.b.conn.IRD())
	}
	wr := fabric.SendWR{ID: sendID, Op: fabric.OpRead, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: ch.b.mem.Addr(), RKey: ch.b.mr.RKey()}
	if n, err := ch.a.qp.PostSend([]fabric.SendWR{wr}, []fabric.SGE{ch.a.sge(0, 8)}); n != 0 || err == nil {
		s.Errorf("a READ was posted with ORD 0: %d, %v", n, err)
	}
	ch.alive("after a refused READ")
}

// word is the 8-byte operand at off.
func (e *end) word(off int) uint64 { return binary.NativeEndian.Uint64(e.bytes(off, 8)) }

func (e *end) setWord(off int, v uint64) { binary.NativeEndian.PutUint64(e.bytes(off, 8), v) }
