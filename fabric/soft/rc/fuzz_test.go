package rc

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
	"github.com/nvmf-go/nvmf/internal/captures"
)

// reader takes numbers from fuzz input; behind its end all are 0.
type reader struct{ b []byte }

func (r *reader) u8() byte {
	if len(r.b) == 0 {
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) u16() uint16 { return uint16(r.u8())<<8 | uint16(r.u8()) }

// packet makes a packet for e out of the input: mostly well-formed in what
// cannot be seen anyway, with numbers near the ones that matter.
func (r *reader) packet(e, peer *end) []byte {
	op := wire.Opcode(r.u8())
	if op.Len() == 0 {
		op &= 0x17
	}
	n := int(r.u16() % 300)
	if op.Len() == 0 || !op.Info().Has(wire.Payload) {
		n = 0
	}
	if r.u8()&1 == 0 && n > 0 {
		n = 256
	}
	b := make([]byte, max(op.Len(), wire.BTHLen)+n+wire.PadLen(n)+wire.ICRCLen)
	base := e.qp.rsp.epsn
	if op.Len() > 0 && !op.Info().Has(wire.Request) {
		base = e.qp.req.una
	}
	seq := base.Add(int(int8(r.u8())) / 8)
	wire.BTH(b).Put(op, wire.BTHFlags(r.u8()&3), wire.PadLen(n), e.qp.Num(), seq)
	if op.Len() == 0 {
		return b
	}
	key := peer.mr.RKey()
	switch i := op.Info(); {
	case i.Has(wire.HasRETH):
		wire.RETH(b[wire.BTHLen:]).Put(e.addr(r), e.key(r), uint32(r.u16())<<(r.u8()%17))
	case i.Has(wire.HasAETH):
		wire.AETH(b[wire.BTHLen:]).Put(wire.Syndrome(r.u8()), psn.New(uint32(r.u16())))
	case i.Has(wire.HasAtomicETH):
		wire.AtomicETH(b[wire.BTHLen:]).Put(e.addr(r), e.key(r), uint64(r.u8()), uint64(r.u8()))
	case i.Has(wire.HasIETH):
		wire.PutImm(b[wire.BTHLen:], key^uint32(r.u8()))
	}
	return b
}

// addr is an address in or near the memory of e.
func (e *end) addr(r *reader) uint64 {
	switch r.u8() % 4 {
	case 0:
		return e.mem.Addr() + uint64(len(e.mem.Bytes())) - uint64(r.u8())
	case 1:
		return e.mem.Addr() - uint64(r.u8())
	case 2:
		return -uint64(r.u8())
	}
	return e.mem.Addr() + uint64(r.u16())
}

// key is a key of e, mostly.
func (e *end) key(r *reader) uint32 { return e.mr.RKey() ^ uint32(r.u8()>>6) }

const fuzzMem = 32 << 10

// FuzzMachines gives a QP sequences of packets, posts and time. It must not
// panic, must send well-formed packets only, and not without end.
func FuzzMachines(f *testing.F) {
	f.Add([]byte{0, 4, 0, 10, 0, 0, 1, 2, 3, 1, 0, 0x0c, 0, 0, 0, 0, 1, 3, 0, 1, 0, 10, 0, 2})
	f.Add([]byte{3, 0, 200, 3, 5, 255, 2, 0, 0x11, 0, 0, 0, 0, 0, 0x60, 0, 0, 1, 2})
	f.Add([]byte{3, 2, 200, 2, 0, 0x10, 0, 200, 1, 0, 0, 0x1f, 0, 0, 2, 1, 255})
	// Opcodes of UC and UD are nothing to a reliable connection.
	f.Add([]byte{4, 1, 0, 0, 0x24, 0, 10, 1, 0, 0, 0, 0x26, 0, 0, 0, 0, 0, 0, 0x64, 0, 10, 1, 0, 0, 0, 0x65, 0, 10, 1, 0, 0, 0, 0x04, 0, 10, 1, 0, 0})
	var session []byte
	for _, p := range captures.RoCE(captures.RoCEv2MTU1024)[:120] {
		session = append(session, 0, p.Payload[0], byte(len(p.Payload)>>8), byte(len(p.Payload)), 0, 0, 1)
	}
	f.Add(session)
	f.Fuzz(func(t *testing.T, input []byte) {
		cfg := defaultConfig()
		cfg.depth, cfg.RNRRetry, cfg.mem = 16, 6, fuzzMem
		w := newWorld(t, cfg)
		a, canary := w.ends[0], w.ends[1].mem.Bytes()
		fill(canary, 3)
		r := &reader{input}
		for steps := 0; len(r.b) > 0 && steps < 500; steps++ {
			fuzzStep(t, w, r)
		}
		for i := range canary {
			if canary[i] != byte(i*7+i>>8*13+3) {
				t.Fatalf("byte %d of memory of nobody was written", i)
			}
		}
		a.qp.States().Set(fabric.QPError)
		a.qp.Flush()
		if !a.qp.Flushed() || a.qp.Deadline() != Never {
			t.Fatal("not at rest")
		}
	})
}

func fuzzStep(t *testing.T, w *world, r *reader) {
	a, b := w.ends[0], w.ends[1]
	a.cq.Guard().Enter()
	defer a.cq.Guard().Leave()
	switch r.u8() % 5 {
	case 0:
		var p wire.Packet
		if p.Parse(r.packet(a, b)) == nil {
			a.qp.Receive(&p, w.now)
		}
	case 1:
		w.now += time.Duration(r.u8()) * time.Millisecond
		a.qp.Expire(w.now)
	case 2:
		drain(t, w, a)
	case 3:
		op := fabric.Opcode(r.u8() % 8)
		wr := fabric.SendWR{Op: op, NumSGE: 1, Flags: fabric.SendFlags(r.u8() & 0x0b), RemoteAddr: 1 << 20, RKey: 7}
		sge := a.sge(1000, int(r.u16()))
		if op == fabric.OpCompareSwap || op == fabric.OpFetchAdd {
			_, _ = a.qp.EnqueueAtomic([]fabric.AtomicWR{{Op: op, RKey: 7}}, []fabric.SGE{a.sge(0, 8)})
			return
		}
		_, _ = a.qp.EnqueueSend([]fabric.SendWR{wr}, []fabric.SGE{sge})
	case 4:
		_, _ = a.qp.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, []fabric.SGE{a.sge(0, int(r.u16()))})
	}
	w.poll(a)
}

// drain takes all packets an end has to send.
func drain(t *testing.T, w *world, e *end) {
	var p wire.Packet
	for n := 0; e.qp.Next(&e.pkt, w.now, true); n++ {
		// The largest READ is answered to its end.
		if n > fuzzMem/256*len(e.qp.rsp.log.ring)+1000 {
			t.Fatal("sends without end")
		}
		size := 0
		for _, d := range e.pkt.Data {
			size += len(d)
		}
		if size != e.pkt.Size || size > e.qp.cfg.MTU {
			t.Fatalf("packet of %d bytes says %d", size, e.pkt.Size)
		}
		b := make([]byte, e.pkt.Len())
		copy(b, e.pkt.Header)
		if err := p.Parse(b); err != nil {
			t.Fatalf("%x: %v", e.pkt.Header, err)
		}
		if binary.BigEndian.Uint32(e.pkt.Header[4:]) != w.ends[1].qp.Num() {
			t.Fatal("to another QP")
		}
	}
}

// A transfer allocates nothing at either end.
func TestNoAllocation(t *testing.T) {
	cfg := defaultConfig()
	cfg.MTU = 1024
	w := newWorld(t, cfg)
	a, b := w.ends[0], w.ends[1]
	buf := make([]byte, 4096)
	var p wire.Packet
	wrs := []fabric.SendWR{
		{ID: 1, Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled},
		{ID: 2, Op: fabric.OpWrite, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: b.mem.Addr(), RKey: b.mr.RKey()},
		{ID: 3, Op: fabric.OpRead, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: b.mem.Addr(), RKey: b.mr.RKey()},
	}
	sges := []fabric.SGE{a.sge(0, 3000)}
	recv, recvSGE := []fabric.RecvWR{{ID: 4, NumSGE: 1}}, []fabric.SGE{b.sge(8192, 3000)}
	wc := make([]fabric.Completion, 16)
	move := func(from, to *end) {
		for from.qp.Next(&from.pkt, w.now, true) {
			n := copy(buf, from.pkt.Header)
			for _, d := range from.pkt.Data {
				n += copy(buf[n:], d)
			}
			if err := p.Parse(buf[:from.pkt.Len()]); err != nil {
				t.Fatal(err)
			}
			to.qp.Receive(&p, w.now)
		}
	}
	completions := 0
	round := func() {
		_, _ = b.qp.PostRecv(recv, recvSGE)
		_, _ = a.qp.EnqueueSend(wrs, sges)
		for range 3 {
			move(a, b)
			move(b, a)
		}
		for _, e := range w.ends {
			n, _ := e.cq.Poll(wc)
			completions += n
		}
		w.now += time.Millisecond
	}
	round()
	completions = 0
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
	if completions != 101*4 {
		t.Errorf("%d completions", completions)
	}
}

// What the machines cost for a message of one packet: post, request, receive,
// acknowledge, complete, without any copy but the 64 bytes.
func BenchmarkWrite64(b *testing.B) {
	cfg := defaultConfig()
	cfg.MTU = 4096
	w := newWorld(b, cfg)
	x, y := w.ends[0], w.ends[1]
	buf := make([]byte, 8192)
	wrs := make([]fabric.SendWR, 16)
	for i := range wrs {
		wrs[i] = fabric.SendWR{Op: fabric.OpWrite, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: y.mem.Addr(), RKey: y.mr.RKey()}
	}
	sges := []fabric.SGE{x.sge(0, 64)}
	wc := make([]fabric.Completion, 16)
	move := func(from, to *end) {
		var p wire.Packet
		for from.qp.Next(&from.pkt, w.now, true) {
			n := copy(buf, from.pkt.Header)
			for _, d := range from.pkt.Data {
				copy(buf[n:], d)
			}
			if err := p.Parse(buf[:from.pkt.Len()]); err != nil {
				b.Fatal(err)
			}
			to.qp.Receive(&p, w.now)
		}
	}
	b.ReportAllocs()
	for i := 0; i < b.N; i += len(wrs) {
		_, _ = x.qp.EnqueueSend(wrs, sges)
		move(x, y)
		move(y, x)
		if n, _ := x.cq.Poll(wc); n != len(wrs) {
			b.Fatal(n)
		}
	}
}
