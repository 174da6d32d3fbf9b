package iwarp

import (
	"context"
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

// testEnd is one end of a connection with memory and a CQ of its own.
type testEnd struct {
	testing.TB
	dev   fabric.Device
	cq    fabric.CompletionQueue
	mem   *fabric.Memory
	mr    fabric.MemoryRegion
	conn  fabric.Conn
	qp    fabric.QueuePair
	wc    []fabric.Completion
	woke  chan struct{}
	w     *fabric.Waker // woken instead of woke; nil: none
	idle  int
	reads int                 // ORD and IRD
	got   []fabric.Completion // by until
}

const (
	endMemory = 4 << 20
	endReads  = 16 // ORD and IRD, unless a test wants others
)

func (e *testEnd) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// newEnd makes an end on the device of a local address.
func newEnd(t testing.TB, p fabric.Provider, local netip.Addr) *testEnd {
	t.Helper()
	e := &testEnd{TB: t, wc: make([]fabric.Completion, 64), woke: make(chan struct{}, 1), reads: endReads}
	var err error
	e.dev, err = p.DeviceFor(context.Background(), local, local)
	e.must(err)
	e.cq, err = e.dev.NewCompletionQueue(4096, e.wake)
	e.must(err)
	e.mem, err = fabric.AllocMemory(endMemory)
	e.must(err)
	for i := 0; i < e.mem.Len(); i += 4096 {
		e.mem.Bytes()[i] = byte(i >> 12)
	}
	e.mr, err = e.dev.Register(e.mem, fabric.AccessLocalWrite|fabric.AccessRemoteRead|fabric.AccessRemoteWrite|fabric.AccessRemoteAtomic)
	e.must(err)
	t.Cleanup(e.close)
	return e
}

func (e *testEnd) close() {
	if e.conn != nil {
		e.conn.Close()
	}
	for _, c := range []interface{ Close() error }{e.cq, e.mr, e.mem, e.dev} {
		if err := c.Close(); err != nil {
			e.Error(err)
		}
	}
}

func (e *testEnd) wake() {
	if e.w != nil {
		e.w.Wake()
		return
	}
	select {
	case e.woke <- struct{}{}:
	default:
	}
}

// poll takes what is there, all of it successes.
func (e *testEnd) poll() []fabric.Completion {
	n, err := e.cq.Poll(e.wc)
	if err != nil {
		e.Fatal(err)
	}
	for _, c := range e.wc[:n] {
		if c.Status != fabric.StatusSuccess {
			e.Fatalf("%+v, connection: %v", c, e.conn.Err())
		}
	}
	return e.wc[:n]
}

// wait is poll for an owner that sleeps when it has spun for a while, as a poll
// group does.
func (e *testEnd) wait() []fabric.Completion {
	const spins = 100
	wc := e.poll()
	if e.idle++; len(wc) > 0 {
		e.idle = 0
	}
	if e.idle < spins {
		return wc
	}
	e.idle = 0
	e.must(e.cq.Arm())
	if wc = e.poll(); len(wc) == 0 {
		<-e.woke
	}
	return wc
}

func (e *testEnd) config() fabric.ConnConfig {
	return fabric.ConnConfig{SendCQ: e.cq, RecvCQ: e.cq, SendDepth: 256, RecvDepth: 256, MaxInline: 64, ORD: e.reads, IRD: e.reads,
		Setup: func(q fabric.QueuePair) error { e.qp = q; return nil }}
}

// connect has x dial y.
func connect(x, y *testEnd, p fabric.Provider) {
	x.Helper()
	addr := y.dev.Info().Addrs[0]
	l, err := p.Listen(context.Background(), netip.AddrPortFrom(addr, 0), fabric.ListenConfig{})
	x.must(err)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(context.Background())
		if err == nil {
			y.conn, err = r.Accept(context.Background(), y.config())
		}
		done <- err
	}()
	x.conn, err = x.dev.Dial(context.Background(), netip.AddrPort{}, l.Addr(), x.config())
	x.must(err)
	x.must(<-done)
}

// newPair connects two ends on loopback.
func newPair(t testing.TB, o Options) (x, y *testEnd) {
	t.Helper()
	return newPairFor(t, o, endReads)
}

// newPairFor is newPair with so many READs at a time.
func newPairFor(t testing.TB, o Options, reads int) (x, y *testEnd) {
	t.Helper()
	p := newProvider(t, o)
	x, y = newEnd(t, p, netip.MustParseAddr("127.0.0.2")), newEnd(t, p, netip.MustParseAddr("127.0.0.3"))
	x.reads, y.reads = reads, reads
	connect(x, y, p)
	return x, y
}

func engineOf(e *testEnd) *engine { return e.qp.(*queuePair).e }
