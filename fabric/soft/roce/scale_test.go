package roce

import (
	"context"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

// Thousands of QPs on one device: what each costs in memory is bounded, and
// all of them work.
func TestManyQPs(t *testing.T) {
	const n = 10_000
	p, q := newProvider(t, Options{}), newProvider(t, Options{})
	x, y := newBenchEnd(t, p, "127.0.0.2"), newBenchEnd(t, q, "127.0.0.3")
	l, err := q.Listen(context.Background(), netip.MustParseAddrPort("127.0.0.3:0"), fabric.ListenConfig{Backlog: 1024})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := func(e *benchEnd) fabric.ConnConfig {
		return fabric.ConnConfig{SendCQ: e.cq, RecvCQ: e.cq, SendDepth: 4, RecvDepth: 4, ORD: 1, IRD: 1, RetryCount: 7, RNRRetry: 7}
	}
	before := heapBytes()
	accepted, dialled := make([]fabric.Conn, n), make([]fabric.Conn, n)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range accepted {
			r, err := l.Accept(context.Background())
			if err == nil {
				accepted[i], err = r.Accept(context.Background(), cfg(y))
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range dialled {
		if dialled[i], err = x.dev.Dial(context.Background(), netip.AddrPort{}, l.Addr(), cfg(x)); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	x.poll(t) // takes them over
	y.poll(t)
	each := int(heapBytes()-before) / (2 * n)
	t.Logf("%d connections, %d bytes of heap for each QP", n, each)
	if each > 16<<10 {
		t.Errorf("a QP of depth 4 takes %d bytes", each)
	}
	writeAll(t, x, y, dialled)
	for _, conns := range [][]fabric.Conn{dialled, accepted} {
		for _, c := range conns {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if a, b := x.dev.Counts().QPs, y.dev.Counts().QPs; a+b != 0 {
		t.Errorf("%d and %d QPs are left", a, b)
	}
}

func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// writeAll has each connection write its own number, all at once.
func writeAll(t *testing.T, x, y *benchEnd, conns []fabric.Conn) {
	t.Helper()
	for i, c := range conns {
		x.mem.Bytes()[i] = byte(i%255 + 1)
		sge := []fabric.SGE{{Addr: x.mem.Addr() + uint64(i), Length: 1, LKey: x.mr.LKey()}}
		wr := []fabric.SendWR{{Op: fabric.OpWrite, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: y.mem.Addr() + benchMemory/2 + uint64(i), RKey: y.mr.RKey()}}
		if _, err := c.QueuePair().PostSend(wr, sge); err != nil {
			t.Fatal(err)
		}
		if i%1024 == 1023 || i == len(conns)-1 {
			for done := 0; done < i%1024+1; y.poll(t) {
				done += len(x.poll(t))
			}
		}
	}
	for i := range conns {
		if got := y.mem.Bytes()[benchMemory/2+i]; got != byte(i%255+1) {
			t.Fatalf("connection %d wrote %d", i, got)
		}
	}
}
