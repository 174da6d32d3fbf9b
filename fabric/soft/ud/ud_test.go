package ud

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

const (
	testMTU  = 1024
	testQKey = 0x22222222
	memSize  = 16 << 10
)

type testQP struct{ QP }

func (q *testQP) CQError(error) { q.States().Set(fabric.QPError) }

// end is a device with one region, one CQ and one QP.
type end struct {
	t       testing.TB
	dev     *core.Device
	cq      core.CQ
	handles core.Handles
	mem     *fabric.Memory
	mr      fabric.MemoryRegion
	qp      *testQP
	pkt     rc.Packet
	to      *core.Handle
}

func newEnd(t testing.TB) *end {
	t.Helper()
	limits := fabric.Limits{MaxQPDepth: 64, MaxCQDepth: 1024, MaxSGE: 4, MaxInline: 64, MaxMessage: 1 << 30, Datagrams: true}
	e := &end{t: t, dev: core.NewDevice("x", limits, nil, nil), qp: new(testQP)}
	e.pkt.Header = make([]byte, 0, wire.MaxHeader)
	e.must(e.cq.Init(e.dev, 1024, nil, nil))
	var err error
	e.mem, err = fabric.AllocMemory(memSize)
	e.must(err)
	e.mr, err = e.dev.Register(e.mem, fabric.AccessLocalWrite)
	e.must(err)
	e.must(e.qp.Init(e.dev, e.qp, core.QPConfig{SendCQ: &e.cq, RecvCQ: &e.cq, Conn: &fabric.ConnConfig{
		SendDepth: 64, RecvDepth: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64,
	}}))
	e.must(e.qp.Start(&e.handles, testMTU, testQKey))
	e.to, err = e.handles.New(netip.MustParseAddr("192.0.2.7"), 0)
	e.must(err)
	t.Cleanup(func() {
		e.qp.Destroy()
		_ = e.cq.Close()
		_ = e.mr.Close()
		_ = e.mem.Close()
	})
	return e
}

func (e *end) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) sge(off, n int) fabric.SGE {
	return fabric.SGE{Addr: e.mem.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

func (e *end) post(wr fabric.DatagramWR, sges ...fabric.SGE) error {
	wr.NumSGE = uint8(len(sges))
	_, err := e.qp.Enqueue([]fabric.DatagramWR{wr}, sges)
	return err
}

// next is the next packet, BTH to ICRC; nil when there is none.
func (e *end) next() []byte {
	e.cq.Guard().Enter()
	defer e.cq.Guard().Leave()
	if e.qp.Next(&e.pkt) == nil {
		return nil
	}
	b := slices.Concat(append([][]byte{e.pkt.Header}, e.pkt.Data...)...)
	return append(b, make([]byte, e.pkt.Len()-len(b))...)
}

func (e *end) take(b []byte) {
	e.t.Helper()
	var p wire.Packet
	e.must(p.Parse(b))
	e.cq.Guard().Enter()
	defer e.cq.Guard().Leave()
	e.qp.Receive(&p, bytes.Repeat([]byte{0x47}, wire.GRHLen))
}

func (e *end) completions() []fabric.Completion {
	e.t.Helper()
	var wc [64]fabric.Completion
	n, err := e.cq.Poll(wc[:])
	e.must(err)
	return wc[:n]
}

// What a datagram looks like on the wire.
func TestPacket(t *testing.T) {
	e := newEnd(t)
	copy(e.mem.Bytes(), "hello")
	e.must(e.post(fabric.DatagramWR{
		Handle: e.to.Num(), QPN: 0x123456, QKey: 0x11111111, Imm: 0xa1b2c3d4, Op: fabric.OpSendImm, Flags: fabric.FlagSolicited,
	}, e.sge(0, 2), e.sge(2, 3)))
	b := e.next()
	var p wire.Packet
	e.must(p.Parse(b))
	if p.Op != wire.OpUDSendOnlyImm || p.BTH.DestQP() != 0x123456 || !p.BTH.Solicited() || p.BTH.AckReq() || p.BTH.Pad() != 3 {
		t.Errorf("BTH %x", p.BTH)
	}
	if d := p.DETH(); d.QKey() != 0x11111111 || d.SrcQP() != e.qp.Num() || p.Imm() != 0xa1b2c3d4 || string(p.Payload) != "hello" {
		t.Errorf("DETH %x, immediate %x, payload %q", d, p.Imm(), p.Payload)
	}
	first := p.BTH.PSN()
	e.must(e.post(fabric.DatagramWR{Handle: e.to.Num(), QPN: 2, QKey: 1 << 31}))
	e.must(p.Parse(e.next()))
	if p.BTH.PSN() != first.Next() || p.DETH().QKey() != testQKey || p.Op != wire.OpUDSendOnly {
		t.Errorf("the second: %x", p.BTH)
	}
	if c := e.completions(); len(c) != 0 {
		t.Errorf("completions of unsignaled sends: %+v", c)
	}
}

// A handle that is closed while a WR names it fails that WR, not another handle's
// way.
func TestHandleClosed(t *testing.T) {
	e := newEnd(t)
	e.must(e.post(fabric.DatagramWR{ID: 1, Handle: e.to.Num(), QPN: 5}))
	e.must(e.post(fabric.DatagramWR{ID: 2, Handle: e.to.Num(), QPN: 5}))
	e.must(e.to.Close())
	if b := e.next(); b != nil {
		t.Fatalf("sent %x", b)
	}
	c := e.completions()
	if len(c) != 2 || c[0].Status != fabric.StatusLocalQPOp || c[1].Status != fabric.StatusFlushed || e.qp.State() != fabric.QPSendQueueError {
		t.Fatalf("%+v, state %v", c, e.qp.State())
	}
	if err := e.post(fabric.DatagramWR{Handle: e.to.Num(), QPN: 5}); !errors.Is(err, fabric.ErrInvalid) {
		t.Errorf("post with a closed handle: %v", err)
	}
}

// Handles run out, and a number that is free again is another one.
func TestHandles(t *testing.T) {
	var table core.Handles
	addr := netip.MustParseAddr("192.0.2.1")
	var all []*core.Handle
	seen := make(map[uint32]bool)
	for range core.MaxHandles {
		h, err := table.New(addr, 3)
		if err != nil || h.Num() == 0 || seen[h.Num()] || table.Get(h.Num()) != h {
			t.Fatalf("%v %v", h, err)
		}
		seen[h.Num()] = true
		all = append(all, h)
	}
	if _, err := table.New(addr, 0); !errors.Is(err, fabric.ErrQueueFull) {
		t.Fatalf("one more: %v", err)
	}
	for _, h := range all[:2] {
		_, _ = h.Close(), h.Close()
		if table.Get(h.Num()) != nil {
			t.Error("a closed handle is found")
		}
	}
	for range 2 {
		h, err := table.New(addr, 0)
		if err != nil || seen[h.Num()] {
			t.Errorf("number %x of a handle: %v", h.Num(), err)
		}
		seen[h.Num()] = true
	}
	if _, err := table.New(addr, 0); err == nil {
		t.Error("closing a handle twice has freed two")
	}
}

// packetFor makes a datagram of n bytes for the QP of e.
func packetFor(e *end, op wire.Opcode, qkey uint32, n int) []byte {
	b := make([]byte, op.Len()+n+wire.PadLen(n)+wire.ICRCLen)
	wire.BTH(b).Put(op, 0, wire.PadLen(n), e.qp.Num(), 0)
	if op.Info().Has(wire.HasDETH) {
		wire.DETH(b[wire.BTHLen:]).Put(qkey, 0xabcdef)
	}
	for i := range n {
		b[op.Len()+i] = byte(i + 1)
	}
	return b
}

func TestReceive(t *testing.T) {
	e := newEnd(t)
	if _, err := e.qp.PostRecv([]fabric.RecvWR{{ID: 9, NumSGE: 1}}, []fabric.SGE{e.sge(0, 140)}); err != nil {
		t.Fatal(err)
	}
	for _, b := range [][]byte{
		packetFor(e, wire.OpUDSendOnly, testQKey^1, 10), // Q_Key
		packetFor(e, wire.OpUDSendOnly, testQKey, 101),  // too long by one
		packetFor(e, wire.OpSendOnly, 0, 10),            // RC
		packetFor(e, wire.UC|wire.OpSendOnly, 0, 10),    // UC
		packetFor(e, wire.OpUDSendOnly, testQKey, 4097), // no MTU is that large
	} {
		e.take(b)
	}
	if c := e.completions(); len(c) != 0 {
		t.Fatalf("delivered %+v", c)
	}
	if d := e.qp.Drops(); d != (fabric.Drops{QKey: 1, TooLong: 1, Malformed: 3}) {
		t.Errorf("dropped %+v", d)
	}
	if !bytes.Equal(e.mem.Bytes(), make([]byte, memSize)) {
		t.Error("something of dropped datagrams was written")
	}
	e.take(packetFor(e, wire.OpUDSendOnly, testQKey, 100))
	c := e.completions()
	if len(c) != 1 || c[0] != (fabric.Completion{ID: 9, QPN: e.qp.Num(), Op: fabric.OpRecv, ByteLen: 140, SrcQPN: 0xabcdef, Flags: fabric.CompletionGRH}) {
		t.Fatalf("%+v", c)
	}
	if m := e.mem.Bytes(); m[39] != 0x47 || m[40] != 1 || m[139] != 100 || m[140] != 0 {
		t.Errorf("%x", m[:150])
	}
	e.take(packetFor(e, wire.OpUDSendOnly, testQKey, 0))
	if d := e.qp.Drops(); d.NoReceive != 1 {
		t.Errorf("dropped %+v", d)
	}
}

// FuzzReceive gives a QP any packet. It must not panic nor write outside of the
// receive.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{0x64, 0, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 1, 0x22, 0x22, 0x22, 0x22, 0, 0, 0, 5, 1, 2, 3, 4, 9, 9, 9, 9}, uint16(100), uint16(60))
	f.Add([]byte{0x65, 0x20, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 1, 0x22, 0x22, 0x22, 0x22, 0, 0, 0, 5, 1, 2, 3, 4, 9, 9, 9, 9, 0, 0, 0, 0}, uint16(60), uint16(0))
	f.Add([]byte{0x24, 0, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 1, 9, 9, 9, 9}, uint16(0), uint16(40))
	e := newEnd(f)
	f.Fuzz(func(t *testing.T, b []byte, first, second uint16) {
		var p wire.Packet
		if p.Parse(b) != nil {
			return
		}
		first, second = first%1024, second%1024
		e.t = t
		const at = 4096
		sges := []fabric.SGE{e.sge(at, int(first)), e.sge(2*at, int(second))}
		if _, err := e.qp.PostRecv([]fabric.RecvWR{{NumSGE: 2}}, sges); err != nil && !errors.Is(err, fabric.ErrQueueFull) {
			t.Fatal(err)
		}
		clear(e.mem.Bytes())
		e.cq.Guard().Enter()
		e.qp.Receive(&p, make([]byte, wire.GRHLen))
		e.cq.Guard().Leave()
		for _, c := range e.completions() {
			if c.Status != fabric.StatusSuccess || int(c.ByteLen) != wire.GRHLen+len(p.Payload) {
				t.Fatalf("%+v of %d bytes", c, len(p.Payload))
			}
		}
		// Other inputs' receives are in front: the largest one bounds what is written.
		m := e.mem.Bytes()
		if slices.ContainsFunc(m[:at], func(c byte) bool { return c != 0 }) ||
			slices.ContainsFunc(m[at+1024:2*at], func(c byte) bool { return c != 0 }) ||
			slices.ContainsFunc(m[2*at+1024:], func(c byte) bool { return c != 0 }) {
			t.Fatal("written outside of the receive")
		}
	})
}
