package fabrictest

import (
	"context"
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

// End is one end of a connection, with a completion queue and memory of its own,
// for what a provider tests and measures beside the suite. The suite's ends bear
// completions that have failed; these do not. Its methods are the owner's, except
// Wake.
type End struct {
	testing.TB
	Dev    fabric.Device
	CQ     fabric.CompletionQueue // for sends and receives
	Mem    *fabric.Memory         // each page begins with its number, as a byte
	MR     fabric.MemoryRegion    // of all of Mem, with all rights but that to bind windows
	WC     []fabric.Completion    // room for a Poll of CQ
	Config fabric.ConnConfig      // of the next connection
	Conn   fabric.Conn            // nil, or what Close closes
	QP     fabric.QueuePair       // set by Config.Setup
	Woke   chan struct{}          // has a value after a Wake
	Waker  *fabric.Waker          // woken instead of Woke if not nil; Wait is not for it

	p     fabric.Provider
	local netip.Addr
	idle  int // Waits in a row that found nothing
}

// NewEnd makes an end with so many bytes of memory on the device that p finds for
// the addresses (see fabric.Provider.DeviceFor). cfg says all of Config but the
// queues and Setup. The end is closed with the test.
func NewEnd(t testing.TB, p fabric.Provider, local, remote netip.Addr, memory int, cfg fabric.ConnConfig) *End {
	t.Helper()
	e := &End{TB: t, WC: make([]fabric.Completion, 64), Config: cfg, Woke: make(chan struct{}, 1), p: p, local: local}
	var err error
	e.Dev, err = p.DeviceFor(context.Background(), local, remote)
	e.Must(err)
	e.CQ, err = e.Dev.NewCompletionQueue(4096, e.Wake)
	e.Must(err)
	e.Mem, err = fabric.AllocMemory(memory)
	e.Must(err)
	for i := 0; i < memory; i += 4096 {
		e.Mem.Bytes()[i] = byte(i >> 12)
	}
	e.MR, err = e.Dev.Register(e.Mem, fabric.AccessLocalWrite|fabric.AccessRemoteRead|fabric.AccessRemoteWrite|fabric.AccessRemoteAtomic)
	e.Must(err)
	e.Config.SendCQ, e.Config.RecvCQ = e.CQ, e.CQ
	e.Config.Setup = func(qp fabric.QueuePair) error { e.QP = qp; return nil }
	t.Cleanup(e.Close)
	return e
}

// Close closes the connection and everything else; again does nothing.
func (e *End) Close() {
	e.Helper()
	if e.Dev == nil {
		return
	}
	if e.Conn != nil {
		e.Conn.Close()
	}
	for _, c := range []interface{ Close() error }{e.CQ, e.MR, e.Mem, e.Dev} {
		if err := c.Close(); err != nil {
			e.Error(err)
		}
	}
	e.Dev = nil
}

// Connect has x dial y, which listens on its local address meanwhile.
func Connect(x, y *End) {
	x.Helper()
	ctx := context.Background()
	l, err := y.p.Listen(ctx, netip.AddrPortFrom(y.local, 0), fabric.ListenConfig{})
	x.Must(err)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			y.Conn, err = r.Accept(ctx, y.Config)
		}
		done <- err
	}()
	x.Conn, err = x.Dev.Dial(ctx, netip.AddrPort{}, l.Addr(), x.Config)
	x.Must(err)
	x.Must(<-done)
}

// Must ends the test when err is not nil.
func (e *End) Must(err error) {
	if err != nil {
		e.Helper()
		e.Fatal(err)
	}
}

// SGE names n bytes of the memory from off on.
func (e *End) SGE(off, n int) fabric.SGE {
	return fabric.SGE{Addr: e.Mem.Addr() + uint64(off), Length: uint32(n), LKey: e.MR.LKey()}
}

// Wake is the notify of CQ. It may be called from any goroutine.
func (e *End) Wake() {
	if e.Waker != nil {
		e.Waker.Wake()
		return
	}
	select {
	case e.Woke <- struct{}{}:
	default:
	}
}

// Poll takes what is there. A completion that has failed ends the test.
func (e *End) Poll() []fabric.Completion {
	n, err := e.CQ.Poll(e.WC)
	if err != nil { // Must is a call: this is in the loops that are measured
		e.Helper()
		e.Fatal(err)
	}
	for _, c := range e.WC[:n] {
		if c.Status != fabric.StatusSuccess {
			e.Helper()
			if e.Conn != nil {
				e.Log("connection:", e.Conn.Err())
			}
			e.Fatalf("%+v", c)
		}
	}
	return e.WC[:n]
}

// Wait is Poll for an owner that sleeps on Woke when it has spun for a while, as a
// poll group does.
func (e *End) Wait() []fabric.Completion {
	const spins = 100
	wc := e.Poll()
	if e.idle++; len(wc) > 0 {
		e.idle = 0
	}
	if e.idle < spins {
		return wc
	}
	e.idle = 0
	e.Must(e.CQ.Arm())
	if wc = e.Poll(); len(wc) == 0 {
		<-e.Woke
	}
	return wc
}
