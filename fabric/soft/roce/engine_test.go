package roce

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// One datagram of segmentation offload carries packets for QPs of two
// completion queues: the socket it comes to is right for one of them, and the
// other gets its packets too.
func TestStrays(t *testing.T) {
	p, q := newProvider(t, Options{}), newProvider(t, Options{})
	x := newEnd(t, p, "127.0.0.2")
	ys := []*fabrictest.End{newEnd(t, q, "127.0.0.3"), newEnd(t, q, "127.0.0.3")}
	var conns []fabric.Conn
	for _, y := range ys {
		fabrictest.Connect(x, y)
		conns = append(conns, x.Conn)
		x.Conn = nil
	}
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	x.Poll()
	const rounds = 20
	for r := range rounds {
		for i, c := range conns {
			qp := c.QueuePair().(*queuePair)
			qp.path.group = 0 // as if the peer had one socket for all
			x.Mem.Bytes()[i] = byte(r + 1)
			sge := []fabric.SGE{x.SGE(i, 1)}
			if _, err := qp.PostSend([]fabric.SendWR{{Op: fabric.OpWrite, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: ys[i].Mem.Addr(), RKey: ys[i].MR.RKey()}}, sge); err != nil {
				t.Fatal(err)
			}
		}
		for done := 0; done < len(conns); {
			done += len(x.Poll())
			for _, y := range ys {
				y.Poll()
			}
		}
		for i, y := range ys {
			if got := y.Mem.Bytes()[0]; got != byte(r+1) {
				t.Fatalf("round %d: connection %d wrote %d", r, i, got)
			}
		}
	}
	var strewn, resent uint64
	for _, y := range ys {
		strewn += engineOf(y).strewn
	}
	if resent = conns[0].QueuePair().(*queuePair).e.stats.Resent; strewn == 0 {
		t.Errorf("no packet was strewn (%d resent)", resent)
	}
}

// A stray for nobody, and more strays than an engine keeps, are dropped.
func TestStraysBounded(t *testing.T) {
	x, _ := rcPair(t, Options{}, nil)
	e := engineOf(x)
	b := make([]byte, wire.BTHLen+wire.ICRCLen)
	wire.BTH(b).Put(wire.OpSendOnly, 0, 0, e.index|1<<20, 0)
	for range 3 * maxStrays {
		e.dev.forward(netip.MustParseAddr("127.0.0.9"), e.index|1<<20, b)
	}
	if n := len(e.strays); n != maxStrays {
		t.Errorf("%d strays are kept", n)
	}
	before := e.lost
	x.Poll()
	if n := e.lost - before; n != maxStrays || len(e.strays) != 0 {
		t.Errorf("%d strays were dropped, %d are left", n, len(e.strays))
	}
	e.dev.forward(netip.MustParseAddr("127.0.0.9"), groupMask, b) // an engine that is not
}

// Packets that are for a QP but not from its peer, or not of its partition, do
// nothing.
func TestForeignPackets(t *testing.T) {
	x, y := rcPair(t, Options{}, nil)
	x.Poll()
	y.Poll()
	q := y.QP.(*queuePair)
	peer := netip.MustParseAddr("127.0.0.2")
	packet := func(op wire.Opcode) ([]byte, *wire.Packet) {
		b := make([]byte, op.Len()+16+wire.ICRCLen)
		wire.BTH(b).Put(op, wire.AckReq, 0, q.Num(), q.Config().RecvPSN)
		p := new(wire.Packet)
		if err := p.Parse(b); err != nil {
			t.Fatal(err)
		}
		return b, p
	}
	received := func() uint64 { return q.e.stats.Received }
	before := received()
	b, p := packet(wire.OpSendOnly)
	q.e.dispatch(netip.MustParseAddr("127.0.0.4"), p, b, clock())
	b[2], b[3] = 0x80, 1
	q.e.dispatch(peer, p, b, clock())
	b, p = packet(wire.OpCNP)
	q.e.dispatch(peer, p, b, clock()) // slows down, no more
	if n := received() - before; n != 0 {
		t.Errorf("%d packets reached the QP", n)
	}
	b, p = packet(wire.OpSendOnly)
	q.e.dispatch(peer, p, b, clock())
	if n := received() - before; n != 1 {
		t.Errorf("%d packets reached the QP", n)
	}
}

// An owner that sleeps with nothing to do is not woken.
func TestIdleSleeps(t *testing.T) {
	x, y := rcPair(t, Options{}, nil)
	for _, e := range []*fabrictest.End{x, y} {
		for range 10 {
			e.Poll()
		}
		select {
		case <-e.Woke:
		default:
		}
	}
	for _, e := range []*fabrictest.End{x, y} {
		e.Must(e.CQ.Arm())
		e.Poll()
	}
	select {
	case <-x.Woke:
		t.Error("x was woken")
	case <-y.Woke:
		t.Error("y was woken")
	case <-time.After(100 * time.Millisecond):
	}
}

// Completion queues come and go; their sockets are used again, and what came
// for the last user is not seen by the next.
func TestSocketsReused(t *testing.T) {
	p, q := newProvider(t, Options{}), newProvider(t, Options{})
	d, err := q.Open("roce-lo-127.0.0.3")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for range 5 {
		x, y := newEnd(t, p, "127.0.0.2"), newEnd(t, q, "127.0.0.3")
		fabrictest.Connect(x, y)
		sge := []fabric.SGE{x.SGE(0, 8)}
		for range 100 {
			if _, err := x.QP.PostSend([]fabric.SendWR{{Op: fabric.OpWrite, NumSGE: 1, RemoteAddr: y.Mem.Addr(), RKey: y.MR.RKey()}}, sge); err != nil {
				t.Fatal(err)
			}
		}
		x.Poll() // y never reads them
		y.Close()
		x.Close()
	}
	if n := len(d.(*device).socks.pairs); n != 1 {
		t.Errorf("%d pairs of sockets", n)
	}
	_, err = d.(*device).p.DeviceFor(context.Background(), netip.MustParseAddr("127.0.0.3"), netip.MustParseAddr("127.0.0.2"))
	if err != nil {
		t.Error(err)
	}
	d.Close()
}
