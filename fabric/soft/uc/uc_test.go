package uc

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

const (
	testMTU = 256
	memSize = 64 << 10
)

type testQP struct{ QP }

func (q *testQP) CQError(error) { q.States().Set(fabric.QPError) }

// end is one side: a device with one region, one CQ and one QP.
type end struct {
	t   testing.TB
	dev *core.Device
	cq  core.CQ
	srq *core.SRQ
	mem *fabric.Memory
	mr  fabric.MemoryRegion
	qp  *testQP
	pkt rc.Packet
}

var testLimits = fabric.Limits{
	MaxQPDepth: 1024, MaxCQDepth: 8192, MaxSRQ: 10, MaxSRQDepth: 1024, MaxSGE: 16, MaxInline: 64, MaxMessage: 1 << 30,
	SendInvalidate: true, UnreliableConnections: true,
}

func newEnd(t testing.TB, shared bool) *end {
	t.Helper()
	e := &end{t: t, dev: core.NewDevice("x", testLimits, nil, nil), qp: new(testQP)}
	e.pkt.Header = make([]byte, 0, wire.MaxHeader)
	e.must(e.cq.Init(e.dev, 1024, nil, nil))
	var err error
	e.mem, err = fabric.AllocMemory(memSize)
	e.must(err)
	e.mr, err = e.dev.Register(e.mem, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	e.must(err)
	if shared {
		e.srq, err = e.dev.NewSRQ(64, 2)
		e.must(err)
	}
	e.must(e.qp.Init(e.dev, e.qp, core.QPConfig{SendCQ: &e.cq, RecvCQ: &e.cq, SRQ: e.srq, Conn: &fabric.ConnConfig{
		SendDepth: 64, RecvDepth: 64, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64,
	}}))
	t.Cleanup(e.close)
	return e
}

func (e *end) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) close() {
	e.qp.Destroy()
	_ = e.cq.Close()
	_ = e.mr.Close()
	_ = e.mem.Close()
}

// newPair connects two ends.
func newPair(t testing.TB, shared bool) (a, b *end) {
	a, b = newEnd(t, shared), newEnd(t, shared)
	a.qp.Start(Config{MTU: testMTU, DestQPN: b.qp.Num(), SendPSN: 0xfffffd, RecvPSN: 7})
	b.qp.Start(Config{MTU: testMTU, DestQPN: a.qp.Num(), SendPSN: 7, RecvPSN: 0xfffffd})
	if !a.qp.States().Connect() || !b.qp.States().Connect() {
		t.Fatal("no connection")
	}
	return a, b
}

func (e *end) sge(off, n int) fabric.SGE {
	return fabric.SGE{Addr: e.mem.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

func (e *end) send(wr fabric.SendWR, sges ...fabric.SGE) {
	e.t.Helper()
	wr.NumSGE, wr.Flags = uint8(len(sges)), wr.Flags|fabric.FlagSignaled
	if n, err := e.qp.EnqueueUnreliable([]fabric.SendWR{wr}, sges); n != 1 {
		e.t.Fatal(err)
	}
}

func (e *end) recv(id uint64, sges ...fabric.SGE) {
	e.t.Helper()
	post := e.qp.PostRecv
	if e.srq != nil {
		post = e.srq.PostRecv
	}
	if n, err := post([]fabric.RecvWR{{ID: id, NumSGE: uint8(len(sges))}}, sges); n != 1 {
		e.t.Fatal(err)
	}
}

// packets are all that the end has to send, BTH to ICRC.
func (e *end) packets() (list [][]byte) {
	e.t.Helper()
	e.cq.Guard().Enter()
	defer e.cq.Guard().Leave()
	for e.qp.Next(&e.pkt) {
		b := slices.Concat(append([][]byte{e.pkt.Header}, e.pkt.Data...)...)
		b = append(b, make([]byte, e.pkt.Len()-len(b))...)
		list = append(list, b)
	}
	return list
}

func (e *end) take(b []byte) {
	e.t.Helper()
	var p wire.Packet
	e.must(p.Parse(b))
	e.cq.Guard().Enter()
	defer e.cq.Guard().Leave()
	e.qp.Receive(&p)
}

// done are the completions since the last call, in short.
func (e *end) done() string {
	e.t.Helper()
	var wc [64]fabric.Completion
	n, err := e.cq.Poll(wc[:])
	e.must(err)
	var s []string
	for _, c := range wc[:n] {
		d := fmt.Sprintf("%d:%d", c.ID, c.Status)
		if c.Op >= fabric.OpRecv && c.Status == 0 {
			d += fmt.Sprintf(":%d", c.ByteLen)
		}
		s = append(s, d)
	}
	return strings.Join(s, " ")
}

func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + seed)
	}
}

// A message of three packets on the wire: opcodes, sequence numbers across the
// end of their range, solicited event and immediate on the last.
func TestPackets(t *testing.T) {
	a, b := newPair(t, false)
	a.send(fabric.SendWR{Op: fabric.OpSendImm, Imm: 0x01020304, Flags: fabric.FlagSolicited}, a.sge(0, 2*testMTU+3))
	a.send(fabric.SendWR{Op: fabric.OpWriteImm, Imm: 5, RemoteAddr: 0x1122, RKey: 0x77}, a.sge(0, 2*testMTU))
	a.send(fabric.SendWR{Op: fabric.OpWrite, RemoteAddr: 0x33, RKey: 0x78})
	var got []string
	for _, pkt := range a.packets() {
		var p wire.Packet
		if err := p.Parse(pkt); err != nil {
			t.Fatal(err)
		}
		s := fmt.Sprintf("%v psn=%d %d", p.Op, uint32(p.BTH.PSN()), len(p.Payload))
		if p.BTH.DestQP() != b.qp.Num() || p.BTH.AckReq() {
			t.Errorf("%s: to %d, acknowledge %v", s, p.BTH.DestQP(), p.BTH.AckReq())
		}
		if p.BTH.Solicited() {
			s += " SE"
		}
		if p.Info.Has(wire.HasRETH) {
			s += fmt.Sprintf(" va=%x key=%x len=%d", p.RETH().VA(), p.RETH().RKey(), p.RETH().Length())
		}
		if p.Info.Has(wire.HasImm) {
			s += fmt.Sprintf(" imm=%x", p.Imm())
		}
		got = append(got, s)
	}
	want := []string{
		"UC SEND First psn=16777213 256", "UC SEND Middle psn=16777214 256", "UC SEND Last with Immediate psn=16777215 3 SE imm=1020304",
		"UC WRITE First psn=0 256 va=1122 key=77 len=512", "UC WRITE Last with Immediate psn=1 256 imm=5", "UC WRITE Only psn=2 0 va=33 key=78 len=0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s := a.done(); s != "0:0 0:0 0:0" {
		t.Errorf("completions %q", s)
	}
}

// Three messages of three packets, some of which are lost, come twice or out of
// order: a message with a hole is dropped, the next one is not, and its receive
// is the one that was not used up.
func TestHoles(t *testing.T) {
	for _, c := range []struct {
		order string // of the packets 0 to 8
		want  string
		lost  uint64
		cut   bool // a message had begun: a receive of an SRQ ends in an error
	}{
		{"012345678", "0:0:600 1:0:600 2:0:600", 0, false},
		{"12345678", "0:0:600 1:0:600", 2, false},
		{"02345678", "0:0:600 1:0:600", 1, true},
		{"01345678", "0:0:600 1:0:600", 1, true}, // First instead of Last
		{"01245678", "0:0:600 1:0:600", 2, false},
		{"01235678", "0:0:600 1:0:600", 1, true},
		{"0123678", "0:0:600 1:0:600", 1, true},
		{"678", "0:0:600", 0, false},
		{"048", "", 2, true},
		{"021345678", "0:0:600 1:0:600", 2, true},
		{"0123450012678", "0:0:600 1:0:600 2:0:600 3:0:600", 1, true}, // what comes twice is two messages
		{"01122345678", "0:0:600 1:0:600", 3, true},
	} {
		for _, shared := range []bool{false, true} {
			a, b := newPair(t, shared)
			for i := range 3 {
				fill(a.mem.Bytes()[1024*i:1024*i+600], i)
				a.send(fabric.SendWR{ID: uint64(i), Op: fabric.OpSend}, a.sge(1024*i, 600))
			}
			for i := range 8 {
				b.recv(uint64(i), b.sge(1024*i, 1024))
			}
			pkts := a.packets()
			for _, i := range c.order {
				b.take(pkts[i-'0'])
			}
			got := b.done()
			if shared {
				// A receive of an SRQ that had a part of a message ends in an error.
				if good := strings.Count(got, ":0:600"); good != strings.Count(c.want, ":0:600") {
					t.Errorf("%s of an SRQ: %q", c.order, got)
				}
				if cut := strings.Contains(got, fmt.Sprintf(":%d", fabric.StatusRemoteInvalidReq)); cut != c.cut {
					t.Errorf("%s of an SRQ: %q", c.order, got)
				}
			} else if got != c.want {
				t.Errorf("%s: completions %q, want %q", c.order, got, c.want)
			}
			if d := b.qp.Drops(); d != (fabric.Drops{Lost: c.lost}) {
				t.Errorf("%s: dropped %+v, want %d lost", c.order, d, c.lost)
			}
			if b.qp.State() != fabric.QPReadyToSend {
				t.Errorf("%s: state %v", c.order, b.qp.State())
			}
		}
	}
}

// A WRITE with a hole has written what came before it and nothing else; its
// immediate is not delivered.
func TestWriteHole(t *testing.T) {
	a, b := newPair(t, false)
	fill(a.mem.Bytes()[:1000], 1)
	b.recv(1, b.sge(0, 0))
	a.send(fabric.SendWR{Op: fabric.OpWriteImm, RemoteAddr: b.mem.Addr() + 8192, RKey: b.mr.RKey(), Imm: 1}, a.sge(0, 1000))
	pkts := a.packets()
	for _, i := range []int{0, 2, 3} {
		b.take(pkts[i])
	}
	got, want := b.mem.Bytes()[8192:9192], make([]byte, 1000)
	copy(want, a.mem.Bytes()[:testMTU])
	if !bytes.Equal(got, want) || b.done() != "" {
		t.Error("something of the message behind the hole has had an effect")
	}
	for _, p := range pkts {
		b.take(p)
	}
	if !bytes.Equal(got, a.mem.Bytes()[:1000]) || b.done() != "1:0:1000" {
		t.Error("the message that is whole was not delivered")
	}
}

// A key that dies between two packets of a WRITE ends it.
func TestKeyDies(t *testing.T) {
	a, b := newPair(t, false)
	m, err := fabric.AllocMemory(4096)
	b.must(err)
	defer m.Close()
	mr, err := b.dev.Register(m, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	b.must(err)
	fill(a.mem.Bytes()[:1000], 1)
	a.send(fabric.SendWR{Op: fabric.OpWrite, RemoteAddr: m.Addr(), RKey: mr.RKey()}, a.sge(0, 1000))
	pkts := a.packets()
	b.take(pkts[0])
	b.must(mr.Close())
	for _, p := range pkts[1:] {
		b.take(p)
	}
	if d := b.qp.Drops(); d != (fabric.Drops{Access: 1, Lost: 2}) {
		t.Errorf("dropped %+v", d)
	}
	if !bytes.Equal(m.Bytes()[testMTU:1000], make([]byte, 1000-testMTU)) {
		t.Error("written without a key")
	}
}

// Packets that no requester sends.
func TestMalformed(t *testing.T) {
	a, b := newPair(t, false)
	packet := func(op wire.Opcode, n int, length uint32) []byte {
		p := make([]byte, op.Len()+n+wire.PadLen(n)+wire.ICRCLen)
		wire.BTH(p).Put(op, 0, wire.PadLen(n), b.qp.Num(), b.qp.epsn)
		if op.Info().Has(wire.HasRETH) {
			wire.RETH(p[wire.BTHLen:]).Put(b.mem.Addr(), b.mr.RKey(), length)
		}
		return p
	}
	b.recv(0, b.sge(0, 4096))
	for _, c := range []struct {
		name string
		pkts [][]byte
	}{
		{"RC opcode", [][]byte{packet(wire.OpSendOnly, 8, 0)}},
		{"UD opcode", [][]byte{packet(wire.OpUDSendOnly, 8, 0)}},
		{"READ request of RC", [][]byte{packet(wire.OpReadRequest, 0, 8)}},
		{"first of 255 bytes", [][]byte{packet(wire.UC|wire.OpSendFirst, testMTU-1, 0)}},
		{"only of 257 bytes", [][]byte{packet(wire.UC|wire.OpSendOnly, testMTU+1, 0)}},
		{"WRITE longer than it says", [][]byte{packet(wire.UC|wire.OpWriteOnly, 9, 8)}},
		{"WRITE shorter than it says", [][]byte{packet(wire.UC|wire.OpWriteOnly, 8, 9)}},
		{"first WRITE of more than it says", [][]byte{packet(wire.UC|wire.OpWriteFirst, testMTU, testMTU-1)}},
	} {
		before := b.qp.Drops().Malformed
		for _, p := range c.pkts {
			b.take(p)
		}
		if got := b.qp.Drops().Malformed; got != before+1 {
			t.Errorf("%s: not counted", c.name)
		}
		if s := b.done(); s != "" {
			t.Errorf("%s: completions %q", c.name, s)
		}
	}
	a.send(fabric.SendWR{Op: fabric.OpSend}, a.sge(0, 10))
	for _, p := range a.packets() {
		b.take(p)
	}
	if s := b.done(); s != "0:0:10" {
		t.Errorf("afterwards: %q", s)
	}
}

// An error in the middle of a message of ours leaves a hole at the peer, and the
// next message is whole.
func TestSendQueueError(t *testing.T) {
	a, b := newPair(t, false)
	b.recv(9, b.sge(0, 1024))
	bad := a.sge(0, 300)
	bad.LKey ^= 1 << 31
	a.send(fabric.SendWR{ID: 1, Op: fabric.OpSend}, a.sge(0, 300), bad)
	a.send(fabric.SendWR{ID: 2, Op: fabric.OpSend}, a.sge(0, 10))
	first := a.packets()
	if len(first) != 1 {
		t.Fatalf("%d packets before the bad memory", len(first))
	}
	b.take(first[0])
	if s := a.done(); s != fmt.Sprintf("1:%d 2:%d", fabric.StatusLocalProtection, fabric.StatusFlushed) || a.qp.State() != fabric.QPSendQueueError {
		t.Fatalf("completions %q, state %v", s, a.qp.State())
	}
	a.send(fabric.SendWR{ID: 3, Op: fabric.OpSend}, a.sge(0, 10))
	if n := len(a.packets()); n != 0 || a.done() != fmt.Sprintf("3:%d", fabric.StatusFlushed) {
		t.Error("a WR in SQE was not flushed")
	}
	a.must(a.qp.Recover())
	a.send(fabric.SendWR{ID: 4, Op: fabric.OpSend}, a.sge(0, 10))
	for _, p := range a.packets() {
		b.take(p)
	}
	if s := b.done(); s != "9:0:10" || b.qp.Drops().Lost != 1 {
		t.Errorf("the peer: %q, %+v", s, b.qp.Drops())
	}
}
