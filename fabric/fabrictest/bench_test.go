package fabrictest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

// benchEnd is one end of a benchmark's connection.
type benchEnd struct {
	dev  fabric.Device
	cq   fabric.CompletionQueue
	mem  *fabric.Memory
	mr   fabric.MemoryRegion
	conn fabric.Conn
	qp   fabric.QueuePair
	wc   []fabric.Completion
}

func (e *benchEnd) setup(b testing.TB, p fabric.Provider, name string) {
	var err error
	must := func(e error) {
		if e != nil {
			b.Fatal(e)
		}
	}
	e.dev, err = p.Open(name)
	must(err)
	e.cq, err = e.dev.NewCompletionQueue(4096, nil)
	must(err)
	e.mem, err = fabric.AllocMemory(1 << 20)
	must(err)
	e.mr, err = e.dev.Register(e.mem, fabric.AccessLocalWrite|fabric.AccessRemoteRead|fabric.AccessRemoteWrite)
	must(err)
	e.wc = make([]fabric.Completion, 64)
}

func (e *benchEnd) config() fabric.ConnConfig {
	return fabric.ConnConfig{
		SendCQ: e.cq, RecvCQ: e.cq, SendDepth: 128, RecvDepth: 128, MaxInline: 64, ORD: 16, IRD: 16,
		RetryCount: 7, RNRRetry: 7,
		Setup: func(qp fabric.QueuePair) error { e.qp = qp; return nil },
	}
}

func benchPair(b testing.TB) (x, y *benchEnd) {
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	n := NewNetwork(Options{})
	x, y = new(benchEnd), new(benchEnd)
	px := n.NewProvider(DeviceOptions{Name: "x", Addrs: addrs[:1]})
	py := n.NewProvider(DeviceOptions{Name: "y", Addrs: addrs[1:]})
	x.setup(b, px, "x")
	y.setup(b, py, "y")
	l, err := py.Listen(context.Background(), netip.AddrPortFrom(addrs[1], 4420), fabric.ListenConfig{})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(context.Background())
		if err == nil {
			y.conn, err = r.Accept(context.Background(), y.config())
		}
		done <- err
	}()
	x.conn, err = x.dev.Dial(context.Background(), netip.AddrPort{}, l.Addr(), x.config())
	if err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		l.Close()
		for _, e := range []*benchEnd{x, y} {
			e.conn.Close()
			e.mr.Close()
			e.mem.Close()
			e.cq.Close()
			if err := e.dev.Close(); err != nil {
				b.Error(err)
			}
		}
	})
	return x, y
}

// poll takes what is there and returns how many.
func (e *benchEnd) poll(b testing.TB) int {
	n, err := e.cq.Poll(e.wc)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range e.wc[:n] {
		if c.Status != fabric.StatusSuccess {
			b.Fatalf("%+v", c)
		}
	}
	return n
}

// BenchmarkWR is the CPU of one WR, both ends on one goroutine: posted, run by
// the responder, completed at the requester (the last of a batch) and, for
// SENDs, at the receiver.
func BenchmarkWR(b *testing.B) {
	for _, op := range []fabric.Opcode{fabric.OpSend, fabric.OpWrite, fabric.OpRead} {
		for _, batch := range []int{1, 16} {
			for _, size := range []uint32{64, 4096} {
				b.Run(fmt.Sprintf("%v/batch=%d/size=%d", op, batch, size), func(b *testing.B) {
					benchWR(b, op, batch, size)
				})
			}
		}
	}
}

func benchWR(b *testing.B, op fabric.Opcode, batch int, size uint32) {
	x, y := benchPair(b)
	sges := []fabric.SGE{{Addr: x.mem.Addr(), Length: size, LKey: x.mr.LKey()}}
	rsges := []fabric.SGE{{Addr: y.mem.Addr(), Length: size, LKey: y.mr.LKey()}}
	wrs := make([]fabric.SendWR, batch)
	recvs := make([]fabric.RecvWR, batch)
	for i := range wrs {
		wrs[i] = fabric.SendWR{ID: uint64(i), Op: op, NumSGE: 1, RemoteAddr: y.mem.Addr(), RKey: y.mr.RKey()}
		recvs[i] = fabric.RecvWR{ID: uint64(i), NumSGE: 1}
	}
	wrs[batch-1].Flags = fabric.FlagSignaled
	b.ReportAllocs()
	b.SetBytes(int64(size))
	for n := 0; n < b.N; n += batch {
		if op == fabric.OpSend {
			if _, err := y.qp.PostRecv(recvs, rsges); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := x.qp.PostSend(wrs, sges); err != nil {
			b.Fatal(err)
		}
		y.poll(b)
		if x.poll(b) != 1 {
			b.Fatal("no completion")
		}
	}
}
