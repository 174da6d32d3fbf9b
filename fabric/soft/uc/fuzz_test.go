package uc

import (
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
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

func (r *reader) u16() int { return int(r.u8())<<8 | int(r.u8()) }

// packet makes a packet for e, mostly of the service and near the numbers that
// matter.
func (r *reader) packet(e *end) []byte {
	op := wire.UC | wire.Opcode(r.u8()%12)
	if k := r.u8(); k > 240 {
		op = wire.Opcode(k)
	}
	n := r.u16() % 300
	if r.u8()&1 == 0 {
		n = testMTU
	}
	if op.Len() == 0 || !op.Info().Has(wire.Payload) {
		n = 0
	}
	b := make([]byte, max(op.Len(), wire.BTHLen)+n+wire.PadLen(n)+wire.ICRCLen)
	wire.BTH(b).Put(op, wire.BTHFlags(r.u8()&3), wire.PadLen(n), e.qp.Num(), e.qp.epsn.Add(int(int8(r.u8()))/16))
	if op.Len() > 0 && op.Info().Has(wire.HasRETH) {
		addr := e.mem.Addr() + uint64(r.u16())
		if r.u8() > 200 {
			addr -= uint64(r.u16())
		}
		wire.RETH(b[wire.BTHLen:]).Put(addr, e.mr.RKey()^uint32(r.u8()>>6), uint32(r.u16())<<(r.u8()%17))
	}
	return b
}

// FuzzQP gives a QP sequences of packets and posts. It must not panic, write only
// into its own region, send well-formed packets only, and come to rest.
func FuzzQP(f *testing.F) {
	f.Add([]byte{0, 4, 0, 0, 10, 1, 0, 0, 2, 0, 40, 0, 4, 0, 0, 10, 1, 0, 0})
	f.Add([]byte{2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 5, 1, 0, 0}) // First, Middle, Last
	f.Add([]byte{0, 6, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 11, 0, 0, 8, 1, 0, 0, 0, 64, 0, 0, 0, 8, 0, 2, 1, 0, 0, 11, 0, 0, 8, 1, 0, 0})
	f.Add([]byte{1, 0, 200, 0, 1, 1, 3, 0, 0, 1, 3, 4, 5, 0})
	f.Fuzz(func(t *testing.T, input []byte) {
		a, b := newPair(t, len(input)%2 == 1)
		canary := b.mem.Bytes()
		fill(canary, 3)
		r := &reader{input}
		for steps := 0; len(r.b) > 0 && steps < 300; steps++ {
			fuzzStep(t, a, r)
		}
		for i := range canary {
			if canary[i] != byte(i*7+i>>8*13+3) {
				t.Fatalf("byte %d of memory of nobody was written", i)
			}
		}
		a.qp.States().Set(fabric.QPError)
		a.qp.Flush()
		if !a.qp.Flushed() || a.qp.Next(&a.pkt) {
			t.Fatal("not at rest")
		}
	})
}

func fuzzStep(t *testing.T, a *end, r *reader) {
	var p wire.Packet
	switch r.u8() % 4 {
	case 0:
		if b := r.packet(a); p.Parse(b) == nil {
			a.take(b)
		}
	case 1:
		sge := a.sge(r.u16(), r.u16()%3000)
		wr := fabric.SendWR{Op: fabric.Opcode(r.u8() % 6), NumSGE: 1, RKey: 5, Flags: fabric.SendFlags(r.u8() & 3)}
		_, _ = a.qp.EnqueueUnreliable([]fabric.SendWR{wr}, []fabric.SGE{sge})
	case 2:
		sge := a.sge(r.u16(), r.u16()%3000)
		if a.srq != nil {
			_, _ = a.srq.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, []fabric.SGE{sge})
		} else {
			_, _ = a.qp.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, []fabric.SGE{sge})
		}
	case 3:
		for _, b := range a.packets() {
			if err := p.Parse(b); err != nil || p.Op.Service() != wire.UC || len(p.Payload) > testMTU {
				t.Fatalf("%x: %v", b, err)
			}
		}
		_ = a.qp.Recover()
	}
	var wc [64]fabric.Completion
	_, _ = a.cq.Poll(wc[:])
}
