package fabrictest

import (
	"context"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// ScaleConfig is what Scale expects of a provider.
type ScaleConfig struct {
	// Connections is how many there are at a time, 1 to 2 Mi.
	Connections int
	// HeapPerQP is the most bytes of Go heap that a QP of depth 4 may take, with
	// all that belongs to its connection.
	HeapPerQP int
}

// scaleTimeout bounds each wait of Scale, and all its connecting.
const scaleTimeout = 5 * time.Minute

// Scale holds a provider to a price for each queue pair when there are many,
// and has every one of them carry something. It is a test of its own beside
// Conformance: the number is the provider's.
func Scale(t *testing.T, open Open, cfg ScaleConfig) {
	c := Config{Timeout: scaleTimeout}
	c.setDefaults()
	s := newSuite(t, open, &c)
	before := heapBytes()
	dialled, accepted := s.connectMany(cfg.Connections)
	s.a.poll() // takes them over
	s.b.poll()
	each := int(heapBytes()-before) / (2 * cfg.Connections)
	t.Logf("%d QPs, %d bytes of heap for each", 2*cfg.Connections, each)
	if each > cfg.HeapPerQP {
		t.Errorf("a QP of depth 4 takes %d bytes, %d are allowed", each, cfg.HeapPerQP)
	}
	s.writeAll(dialled)
	for _, conns := range [][]fabric.Conn{dialled, accepted} {
		for _, conn := range conns {
			s.must(conn.Close())
		}
	}
	if a, b := s.a.dev.Counts().QPs, s.b.dev.Counts().QPs; a+b != 0 {
		t.Errorf("%d and %d QPs are left", a, b)
	}
}

// connectMany makes n connections, one behind the other, of QPs that are small.
func (s *suite) connectMany(n int) (dialled, accepted []fabric.Conn) {
	s.Helper()
	ctx := s.ctx()
	cfg := func(e *end) fabric.ConnConfig {
		return fabric.ConnConfig{SendCQ: e.cq, RecvCQ: e.cq, SendDepth: 4, RecvDepth: 4, ORD: 1, IRD: 1, RetryCount: 7, RNRRetry: 7}
	}
	l, err := s.b.p.Listen(ctx, netip.AddrPortFrom(s.b.addr, 0), fabric.ListenConfig{Backlog: 1024})
	s.must(err)
	defer l.Close()
	dialled, accepted = make([]fabric.Conn, n), make([]fabric.Conn, n)
	done := make(chan error, 1)
	go func() { done <- acceptAll(ctx, l, cfg(s.b), accepted) }()
	for i := range dialled {
		dialled[i], err = s.a.dev.Dial(ctx, netip.AddrPortFrom(s.a.addr, 0), l.Addr(), cfg(s.a))
		if err != nil {
			l.Close() // ends the goroutine
			s.Fatalf("connection %d: dial: %v (accept: %v)", i, err, <-done)
		}
	}
	s.must(<-done)
	return dialled, accepted
}

func acceptAll(ctx context.Context, l fabric.Listener, cfg fabric.ConnConfig, conns []fabric.Conn) error {
	for i := range conns {
		r, err := l.Accept(ctx)
		if err == nil {
			conns[i], err = r.Accept(ctx, cfg)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// heapBytes is what is live on the heap.
func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// writeAll has each connection of a write its own number to b, many at once.
func (s *suite) writeAll(conns []fabric.Conn) {
	s.Helper()
	const atOnce, there = 1024, memorySize / 2
	mark := func(i int) byte { return byte(i%255 + 1) }
	posted := 0
	for i, conn := range conns {
		s.a.mem.Bytes()[i] = mark(i)
		wr := []fabric.SendWR{{
			ID: sendID, Op: fabric.OpWrite, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: s.b.mem.Addr() + there + uint64(i), RKey: s.b.mr.RKey(),
		}}
		_, err := conn.QueuePair().PostSend(wr, []fabric.SGE{s.a.sge(i, 1)})
		s.must(err)
		if posted++; posted == atOnce || i == len(conns)-1 {
			s.until("WRITEs", func() bool { return len(s.a.inbox) >= posted })
			s.wrote(posted)
			posted = 0
		}
	}
	for i := range conns {
		s.until("the last WRITE", func() bool { return s.b.mem.Bytes()[there+i] == mark(i) })
	}
}

// wrote takes one completion of each of n QPs at a: of a WRITE that was well.
func (s *suite) wrote(n int) {
	s.Helper()
	if len(s.a.inbox) != n {
		s.Fatalf("completions of %d QPs, want %d", len(s.a.inbox), n)
	}
	for qpn, list := range s.a.inbox {
		if len(list) != 1 || list[0].ID != sendID || list[0].Status != fabric.StatusSuccess {
			s.Fatalf("QP %d: %+v", qpn, list)
		}
	}
	clear(s.a.inbox)
}
