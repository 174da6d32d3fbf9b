package rdmap

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// Every operation in every size, whatever the sockets take and give.
func TestTransfers(t *testing.T) {
	for name, config := range configs() {
		t.Run(name, func(t *testing.T) {
			cfg, take, piece := config()
			w := newWorld(t, cfg)
			w.take, w.piece = take, piece
			sizes := []int{0, 1, 2, 3, 4, 63, 64, 65, 511, 513, 1424, 1428, 1429, 4096, 70001}
			if take == 7 {
				sizes = sizes[:10]
			}
			for i, n := range sizes {
				transfer(w, uint64(i), n)
			}
		})
	}
}

const half = memSize / 2

// transfer moves n bytes by each operation.
func transfer(w *world, seed uint64, n int) {
	w.Helper()
	a, b := w.a, w.b
	a.fill(3, n, seed)
	b.fill(half+5, n, seed+1)
	b.recv(1, b.sge(100, n/2), b.sge(half+100, n-n/2))
	a.post(fabric.SendWR{ID: 10, Op: fabric.OpSend}, a.sge(3, n))
	w.run()
	b.expect("SEND", received(1, n))
	a.expect("SEND", sent(10, fabric.OpSend))
	w.same("sent", append(append([]byte(nil), b.bytes(100, n/2)...), b.bytes(half+100, n-n/2)...), a.bytes(3, n))

	a.post(a.remote(fabric.OpWrite, 11, 9), a.sge(3, n/3), a.sge(3+n/3, n-n/3))
	b.recv(2)
	wr := a.remote(fabric.OpWriteImm, 12, half+9)
	wr.Imm = 0xa0b0c0d0
	a.post(wr, a.sge(3, n))
	b.recv(3)
	a.post(fabric.SendWR{ID: 13, Op: fabric.OpSendImm, Imm: 7})
	w.run()
	b.expect("WRITE_IMM",
		fabric.Completion{ID: 2, Op: fabric.OpRecvWriteImm, ByteLen: uint32(n), Imm: 0xa0b0c0d0, Flags: fabric.CompletionImm},
		fabric.Completion{ID: 3, Op: fabric.OpRecv, Imm: 7, Flags: fabric.CompletionImm})
	a.expect("WRITE", sent(11, fabric.OpWrite), sent(12, fabric.OpWriteImm), sent(13, fabric.OpSendImm))
	w.same("written", b.bytes(9, n), a.bytes(3, n))
	w.same("written with immediate", b.bytes(half+9, n), a.bytes(3, n))

	b.fill(half+5, n, seed+1)
	a.post(a.remote(fabric.OpRead, 14, half+5), a.sge(half+1, n/2), a.sge(200000, n-n/2))
	w.run()
	a.expect("READ", fabric.Completion{ID: 14, Op: fabric.OpRead, ByteLen: uint32(n)})
	w.same("read", append(append([]byte(nil), a.bytes(half+1, n/2)...), a.bytes(200000, n-n/2)...), b.bytes(half+5, n))
}

func TestInlineAndSolicited(t *testing.T) {
	w := newWorld(t, defaultConfig)
	a, b := w.a, w.b
	for i, n := range []int{0, 1, 64, 128} {
		a.fill(0, n, uint64(i))
		want := append([]byte(nil), a.bytes(0, n)...)
		b.recv(1, b.sge(0, 200))
		a.post(fabric.SendWR{ID: 5, Op: fabric.OpSend, Flags: fabric.FlagInline | fabric.FlagSolicited}, fabric.SGE{Addr: a.mem.Addr(), Length: uint32(n)})
		clear(a.bytes(0, n))
		a.send()
		if n > 0 && a.out[3] != 0x40|byte(mpa.OpSendSE) {
			t.Errorf("control byte %#x of a solicited SEND", a.out[3])
		}
		w.run()
		b.expect("inline", received(1, n))
		w.same("inline", b.bytes(0, n), want)
		a.expect("inline", sent(5, fabric.OpSend))
	}
}

// A SEND with immediate and payload does not exist; what is in front of it is
// posted.
func TestSendImmediatePayload(t *testing.T) {
	w := newWorld(t, defaultConfig)
	wrs := []fabric.SendWR{{ID: 1, Op: fabric.OpWrite}, {ID: 2, Op: fabric.OpSendImm, NumSGE: 1}, {ID: 3}}
	n, err := w.a.qp.EnqueueSend(wrs, []fabric.SGE{w.a.sge(0, 1)})
	if n != 1 || !errors.Is(err, fabric.ErrNotSupported) {
		t.Errorf("%d, %v", n, err)
	}
	for name, wr := range map[string]fabric.SendWR{"index": {Op: fabric.OpSendImm, FirstSGE: 9, NumSGE: 1}, "far": {Op: fabric.OpSendImm, FirstSGE: 1<<32 - 1, NumSGE: 255}} {
		if n, err := w.a.qp.EnqueueSend([]fabric.SendWR{wr}, []fabric.SGE{w.a.sge(0, 0)}); n != 0 || !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("SGE %s: %d, %v", name, n, err)
		}
	}
}

func TestAtomics(t *testing.T) {
	for _, crc := range []bool{false, true} {
		cfg := defaultConfig
		cfg.CRC = crc
		w := newWorld(t, cfg)
		a, b := w.a, w.b
		word := nativeWord
		for i, c := range []struct {
			op                           fabric.Opcode
			before, compare, swap, after uint64
		}{
			{fabric.OpFetchAdd, 5, 0, 7, 12}, {fabric.OpFetchAdd, 1<<64 - 1, 0, 1, 0},
			{fabric.OpCompareSwap, 12, 12, 99, 99}, {fabric.OpCompareSwap, 12, 13, 99, 12}, {fabric.OpCompareSwap, 0, 0, 1<<64 - 1, 1<<64 - 1},
		} {
			binary.NativeEndian.PutUint64(b.bytes(64, 8), c.before)
			a.atomic(fabric.AtomicWR{ID: uint64(i), Op: c.op, RemoteAddr: 64, Compare: c.compare, SwapAdd: c.swap}, a.sge(8, 8))
			w.run()
			a.expect("atomic", fabric.Completion{ID: uint64(i), Op: c.op, ByteLen: 8})
			if word(a, 8) != c.before || word(b, 64) != c.after {
				t.Errorf("case %d: returned %#x, left %#x", i, word(a, 8), word(b, 64))
			}
		}
		// In order with READs: each sees the one before.
		binary.NativeEndian.PutUint64(b.bytes(64, 8), 0)
		for i := range 6 {
			a.atomic(fabric.AtomicWR{ID: uint64(i), Op: fabric.OpFetchAdd, RemoteAddr: 64, SwapAdd: 1}, a.sge(1000+8*i, 8))
			a.post(a.remote(fabric.OpRead, uint64(100+i), 64), a.sge(2000+8*i, 8))
		}
		w.run()
		if n := len(a.poll()); n != 12 {
			t.Fatalf("%d completions", n)
		}
		for i := range 6 {
			if word(a, 1000+8*i) != uint64(i) || word(a, 2000+8*i) != uint64(i)+1 {
				t.Errorf("step %d: atomic found %d, READ %d", i, word(a, 1000+8*i), word(a, 2000+8*i))
			}
		}
	}
}

// No more READs are under way than ORD, and a fence waits for all of them.
func TestORDAndFence(t *testing.T) {
	cfg := defaultConfig
	cfg.ORD, cfg.IRD = 2, 2
	w := newWorld(t, cfg)
	a, b := w.a, w.b
	b.recv(1, b.sge(0, 8))
	b.recv(2, b.sge(0, 8))
	for i := range 5 {
		a.post(a.remote(fabric.OpRead, uint64(i), 0), a.sge(8*i, 8))
	}
	a.post(fabric.SendWR{ID: 10, Op: fabric.OpSend, Flags: fabric.FlagFence}, a.sge(0, 8))
	a.post(fabric.SendWR{ID: 11, Op: fabric.OpSend}, a.sge(0, 8))
	const requestLen = 2 + 18 + 28 + 4
	for i, want := range []int{2, 2, 1} {
		a.send()
		if len(a.out) != want*requestLen {
			t.Fatalf("round %d: %d bytes sent, want %d Read Requests", i, len(a.out), want)
		}
		b.receive()
		b.send()
		a.receive()
	}
	w.run()
	a.expect("READs", fabric.Completion{ID: 0, Op: fabric.OpRead, ByteLen: 8}, fabric.Completion{ID: 1, Op: fabric.OpRead, ByteLen: 8},
		fabric.Completion{ID: 2, Op: fabric.OpRead, ByteLen: 8}, fabric.Completion{ID: 3, Op: fabric.OpRead, ByteLen: 8},
		fabric.Completion{ID: 4, Op: fabric.OpRead, ByteLen: 8}, sent(10, fabric.OpSend), sent(11, fabric.OpSend))
	b.expect("SENDs", received(1, 8), received(2, 8))
}

// WRs complete in the order they were posted, though a SEND is done before the
// READ in front of it; unsignaled ones do not show.
func TestCompletionOrder(t *testing.T) {
	w := newWorld(t, defaultConfig)
	a, b := w.a, w.b
	b.recv(1, b.sge(0, 8))
	a.post(a.remote(fabric.OpRead, 1, 0), a.sge(0, 8))
	if _, err := a.qp.EnqueueSend([]fabric.SendWR{a.remote(fabric.OpWrite, 2, 0)}, nil); err != nil {
		t.Fatal(err)
	}
	a.post(fabric.SendWR{ID: 3, Op: fabric.OpSend}, a.sge(0, 8))
	a.send()
	b.receive()
	b.expect("SEND", received(1, 8))
	a.expect("before the response")
	w.run()
	a.expect("after it", fabric.Completion{ID: 1, Op: fabric.OpRead, ByteLen: 8}, sent(3, fabric.OpSend))
}

// With large messages both ways neither end's own starve behind its answers.
func TestAnswersAndRequestsInTurn(t *testing.T) {
	w := newWorld(t, defaultConfig)
	w.take = 20000
	a, b := w.a, w.b
	for i := range 10 {
		if i < 4 {
			a.post(a.remote(fabric.OpRead, uint64(i), 0), a.sge(0, 100000))
		}
		b.post(b.remote(fabric.OpWrite, uint64(10+i), half), b.sge(half, 100000))
	}
	var order []uint64
	for range 1000 {
		for _, e := range []*end{a, b} {
			e.send()
			e.receive()
			for _, c := range e.poll() {
				order = append(order, c.ID)
			}
		}
	}
	at := make(map[uint64]int)
	for i, id := range order {
		at[id] = i
	}
	// Some WRITEs had begun when the READs came, then they take turns.
	if len(order) != 14 || at[3] > at[19] || at[14] < at[0] {
		t.Errorf("order of completions: %v", order)
	}
}

// The responder is silent until the initiator has sent something, which an RTR
// frame does for it.
func TestPassive(t *testing.T) {
	for name, rtr := range map[string]mpa.RTR{"WRITE": mpa.RTRWrite, "READ": mpa.RTRRead} {
		cfg := defaultConfig
		cfg.RTR = rtr
		w := newWorld(t, cfg)
		a, b := w.a, w.b
		a.recv(1, a.sge(0, 8))
		b.post(fabric.SendWR{ID: 1, Op: fabric.OpSend}, b.sge(0, 8))
		if n := b.send(); n != 0 {
			t.Fatalf("%s: %d bytes before the initiator's", name, n)
		}
		w.run()
		b.expect(name, sent(1, fabric.OpSend))
		a.expect(name, received(1, 8))
		b.recv(2, b.sge(0, 8))
		for i := range 5 {
			a.post(a.remote(fabric.OpRead, uint64(i), 0), a.sge(0, 8))
		}
		a.post(fabric.SendWR{ID: 9, Op: fabric.OpSend}, a.sge(0, 8))
		w.run()
		if n := len(a.poll()); n != 6 {
			t.Errorf("%s: %d completions after it", name, n)
		}
		b.expect(name, received(2, 8))
	}
}

// An FPDU without ULPDU is an RTR frame as well, but only in front.
func TestEmptyFPDU(t *testing.T) {
	for _, crc := range []bool{false, true} {
		cfg := defaultConfig
		cfg.CRC = crc
		w := newWorld(t, cfg)
		w.b.qp.cfg.Passive = true
		empty := make([]byte, 8)
		mpa.PutCRC(empty[4:], mpa.CRC(empty[:4]))
		w.a.out = append([]byte(nil), empty...)
		w.b.post(fabric.SendWR{ID: 1, Op: fabric.OpSend}, w.b.sge(0, 8))
		w.a.recv(1, w.a.sge(0, 8))
		w.piece = 3
		w.run()
		w.a.expect("SEND", received(1, 8))
		w.b.expect("SEND", sent(1, fabric.OpSend))
		w.a.out = append(w.a.out, empty...)
		w.run()
		if err := w.b.qp.Err(); err == nil || w.b.stats.Terminates != 1 {
			t.Errorf("a second one: %v", err)
		}
	}
}

// Post, Fill, Wrote and Feed allocate nothing.
func TestNothingAllocates(t *testing.T) {
	for _, crc := range []bool{false, true} {
		cfg := defaultConfig
		cfg.CRC, cfg.ULPDU = crc, 60000
		w := newWorld(t, cfg)
		a, b := w.a, w.b
		a.out, b.out = make([]byte, 0, 1<<20), make([]byte, 0, 1<<20)
		wrs := []fabric.SendWR{a.remote(fabric.OpWrite, 1, 0), a.remote(fabric.OpRead, 2, 0), {ID: 3, Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled}}
		wrs[0].NumSGE, wrs[1].NumSGE = 1, 1
		sges := []fabric.SGE{a.sge(0, 100000)}
		recv, rsge := []fabric.RecvWR{{NumSGE: 1}}, []fabric.SGE{b.sge(0, 100000)}
		wc := make([]fabric.Completion, 8)
		step := func() {
			b.qp.PostRecv(recv, rsge)
			a.qp.EnqueueSend(wrs, sges)
			for got := 0; got < 2; {
				for _, e := range []*end{a, b} {
					e.send()
					p := w.peer(e)
					k := min(len(p.out), 50000)
					e.feed(p.out[:k])
					p.out = p.out[:copy(p.out, p.out[k:])]
					n, _ := e.cq.Poll(wc)
					got += n
				}
			}
		}
		for range 20 {
			step()
		}
		if n := testing.AllocsPerRun(50, step); n != 0 {
			t.Errorf("crc %v: %v allocations", crc, n)
		}
	}
}
