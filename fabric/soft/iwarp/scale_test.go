package iwarp

import (
	"context"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
)

// Ten thousand QPs on one device: what each costs in memory is bounded, and all
// of them work. Both ends of five thousand connections are on it; each end has a
// socket.
func TestManyQPs(t *testing.T) {
	n := min(5000, (fileLimit()-500)/2)
	if n < 5000 {
		t.Logf("only %d connections: the limit of open files is %d", n, fileLimit())
	}
	addr := netip.MustParseAddr("127.0.0.1")
	p := newProvider(t, Options{})
	x, y := newEnd(t, p, addr), newEnd(t, p, addr)
	l, err := p.Listen(context.Background(), netip.AddrPortFrom(addr, 0), fabric.ListenConfig{Backlog: 1024})
	x.must(err)
	defer l.Close()
	cfg := func(e *testEnd) fabric.ConnConfig {
		return fabric.ConnConfig{SendCQ: e.cq, RecvCQ: e.cq, SendDepth: 4, RecvDepth: 4, ORD: 1, IRD: 1}
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
		dialled[i], err = x.dev.Dial(context.Background(), netip.AddrPort{}, l.Addr(), cfg(x))
		x.must(err)
	}
	wg.Wait()
	x.poll() // takes them over
	y.poll()
	each := int(heapBytes()-before) / (2 * n)
	t.Logf("%d QPs, %d bytes of heap for each", 2*n, each)
	if each > 32<<10 {
		t.Errorf("a QP of depth 4 takes %d bytes", each)
	}
	writeAll(t, x, y, dialled)
	for _, conns := range [][]fabric.Conn{dialled, accepted} {
		for _, c := range conns {
			x.must(c.Close())
		}
	}
	if left := x.dev.Counts().QPs; left != 0 {
		t.Errorf("%d QPs are left", left)
	}
}

// fileLimit is how many files the process may open, after asking for more.
func fileLimit() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 1024
	}
	if l.Cur < l.Max {
		l.Cur = l.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &l) // what there is has to do
		_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	}
	return int(min(l.Cur, 1<<20))
}

func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// writeAll has each connection write its own number, many at once.
func writeAll(t *testing.T, x, y *testEnd, conns []fabric.Conn) {
	t.Helper()
	for i, c := range conns {
		x.mem.Bytes()[i] = byte(i%255 + 1)
		sge := []fabric.SGE{{Addr: x.mem.Addr() + uint64(i), Length: 1, LKey: x.mr.LKey()}}
		wr := []fabric.SendWR{{Op: fabric.OpWrite, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: y.mem.Addr() + endMemory/2 + uint64(i), RKey: y.mr.RKey()}}
		_, err := c.QueuePair().PostSend(wr, sge)
		x.must(err)
		if i%1024 == 1023 || i == len(conns)-1 {
			for done := 0; done < i%1024+1; y.poll() {
				done += len(x.poll())
			}
		}
	}
	arrived := func(i int) bool { return y.mem.Bytes()[endMemory/2+i] == byte(i%255+1) }
	until(t, "the last WRITE", func() bool {
		for i := range conns {
			if !arrived(i) {
				return false
			}
		}
		return true
	}, x, y)
}
