package fabrictest

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// memorySize is the memory of an end: room for the largest transfer twice.
const memorySize = 4 << 20

// The WR ids of sends and receives, so that a failed completion, whose opcode a
// device does not have to know, says which it was.
const (
	sendID = 1000
	recvID = 2000
)

// suite is one test of the suite: two ends and what it makes of them.
type suite struct {
	*testing.T
	cfg  *Config
	open Open
	a, b *end

	scope *[]func() // in scoped: what Cleanup takes
}

// end is one of the two devices with a CQ, memory and a region.
type end struct {
	s    *suite
	name string
	p    fabric.Provider
	addr netip.Addr
	dev  fabric.Device
	cq   fabric.CompletionQueue
	mem  *fabric.Memory
	mr   fabric.MemoryRegion

	wc     []fabric.Completion
	inbox  map[uint32][]fabric.Completion // polled and not taken, by QP number
	pollTo error                          // Poll has failed
}

// side is one end of a connection.
type side struct {
	*end
	conn fabric.Conn
	qp   fabric.QueuePair

	setups    atomic.Int32
	closes    atomic.Int32
	closedErr atomic.Value
	closed    bool
}

// channel is a connection: a dialled, b accepted.
type channel struct{ a, b *side }

func newSuite(t *testing.T, open Open, cfg *Config) *suite {
	s := &suite{T: t, cfg: cfg, open: open}
	pa, pb, addrA, addrB := open(t)
	s.T.Cleanup(s.allClosed) // runs behind the ends' own
	s.a = s.newEnd("a", pa, addrA, addrB)
	s.b = s.newEnd("b", pb, addrB, addrA)
	return s
}

// sub runs a part of the test with the same ends under its own name.
func (s *suite) sub(name string, run func(*suite)) {
	s.Run(name, func(t *testing.T) {
		sub := *s
		sub.T = t
		s.a.s, s.b.s = &sub, &sub
		defer func() { s.a.s, s.b.s = s, s }()
		run(&sub)
	})
}

// scoped runs fn; what it leaves to Cleanup is done at its end instead of the
// test's.
func (s *suite) scoped(fn func()) {
	var todo []func()
	s.scope = &todo
	fn()
	s.scope = nil
	for _, f := range slices.Backward(todo) {
		f()
	}
}

// Cleanup is testing.T's, or scoped's.
func (s *suite) Cleanup(fn func()) {
	if s.scope != nil {
		*s.scope = append(*s.scope, fn)
		return
	}
	s.T.Cleanup(fn)
}

// must ends the test when err is not nil.
func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// ctx bounds a call that can block.
func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	s.Cleanup(cancel)
	return ctx
}

func (s *suite) newEnd(name string, p fabric.Provider, addr, peer netip.Addr) *end {
	s.Helper()
	e := &end{s: s, name: name, p: p, addr: addr, wc: make([]fabric.Completion, 64), inbox: make(map[uint32][]fabric.Completion)}
	var err error
	e.dev, err = p.DeviceFor(s.ctx(), addr, peer)
	s.must(err)
	s.Cleanup(func() { s.closed(name+": device", e.dev.Close()) })
	e.cq = e.newCQ(4096, nil)
	e.mem, e.mr = e.alloc(memorySize, e.rights())
	return e
}

// allClosed checks that the devices are closed when all references that the
// test took were given back: nobody else may hold one.
func (s *suite) allClosed() {
	for _, e := range []*end{s.a, s.b} {
		if e == nil {
			continue
		}
		timeout := time.After(s.cfg.Timeout)
		for open := true; open; {
			select {
			case _, open = <-e.dev.Events():
			case <-timeout:
				s.Errorf("%s: the device is still open after its last Close", e.name)
				return
			}
		}
	}
}

// closed reports a Close that failed.
func (s *suite) closed(what string, err error) {
	s.Helper()
	if err != nil {
		s.Errorf("close %s: %v", what, err)
	}
}

// newCQ makes a CQ that lives as long as the test.
func (e *end) newCQ(depth int, notify func()) fabric.CompletionQueue {
	e.s.Helper()
	cq, err := e.dev.NewCompletionQueue(depth, notify)
	e.s.must(err)
	e.s.Cleanup(func() { e.s.closed(e.name+": CQ", cq.Close()) })
	return cq
}

// rights are all that the device can grant.
func (e *end) rights() fabric.Access {
	a := fabric.AccessLocalWrite | fabric.AccessRemoteRead | fabric.AccessRemoteWrite
	if e.dev.Limits().Atomics {
		a |= fabric.AccessRemoteAtomic
	}
	if e.dev.Limits().MemoryWindows {
		a |= fabric.AccessWindowBind
	}
	return a
}

// alloc makes registered memory that lives as long as the test.
func (e *end) alloc(size int, a fabric.Access) (*fabric.Memory, fabric.MemoryRegion) {
	e.s.Helper()
	m, err := fabric.AllocMemory(size)
	e.s.must(err)
	e.s.Cleanup(func() { e.s.closed(e.name+": memory", m.Close()) })
	mr, err := e.dev.Register(m, a)
	e.s.must(err)
	e.s.Cleanup(func() { e.s.closed(e.name+": region", mr.Close()) })
	return m, mr
}

// bytes is the end's memory from off on.
func (e *end) bytes(off, n int) []byte { return e.mem.Bytes()[off : off+n : off+n] }

// sge names the end's memory.
func (e *end) sge(off, n int) fabric.SGE {
	return fabric.SGE{Addr: e.mem.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

// sges are several SGEs one behind the other in the memory, with gap bytes
// between them.
func (e *end) sges(off, gap int, lengths ...int) []fabric.SGE {
	var list []fabric.SGE
	for _, n := range lengths {
		list = append(list, e.sge(off, n))
		off += n + gap
	}
	return list
}

// poll takes what the CQ has into the inbox and says how many.
func (e *end) poll() int { return e.pollCQ(e.cq) }

func (e *end) pollCQ(cq fabric.CompletionQueue) int {
	n, err := cq.Poll(e.wc)
	if err != nil {
		e.pollTo = err
	}
	for _, c := range e.wc[:n] {
		e.inbox[c.QPN] = append(e.inbox[c.QPN], c)
	}
	return n
}

// until polls both ends until ok, or ends the test.
func (s *suite) until(what string, ok func() bool) {
	s.Helper()
	if !s.within(s.cfg.Timeout, ok) {
		s.Fatalf("timed out waiting for %s; unclaimed completions: a %v, b %v", what, s.a.inbox, s.b.inbox)
	}
}

// within polls both ends until ok, for at most d.
func (s *suite) within(d time.Duration, ok func() bool) bool {
	s.Helper()
	end := time.Now().Add(d)
	for idle := 0; ; idle++ {
		if s.a.poll()+s.b.poll() > 0 {
			idle = 0
		}
		if ok() {
			return true
		}
		if s.a.pollTo != nil || s.b.pollTo != nil {
			s.Fatalf("poll: a: %v, b: %v", s.a.pollTo, s.b.pollTo)
		}
		if time.Now().After(end) {
			return false
		}
		relax(idle)
	}
}

// relax gives others the processor, the longer the more often it was for
// nothing.
func relax(idle int) {
	switch {
	case idle < 20:
		runtime.Gosched()
	case idle < 200:
		time.Sleep(20 * time.Microsecond)
	default:
		time.Sleep(500 * time.Microsecond)
	}
}

// pause polls both ends for a while in which nothing should happen.
func (s *suite) pause() { s.within(20*time.Millisecond, func() bool { return false }) }

// take waits for n completions of a side, in order.
func (sd *side) take(n int) []fabric.Completion {
	sd.s.Helper()
	qpn := sd.qp.Num()
	sd.s.until(fmt.Sprintf("%d completions at %s", n, sd.name), func() bool { return len(sd.inbox[qpn]) >= n })
	got := sd.inbox[qpn][:n:n]
	sd.inbox[qpn] = sd.inbox[qpn][n:]
	return got
}

// none fails when the side has a completion that nobody took.
func (sd *side) none(when string) {
	sd.s.Helper()
	if got := sd.inbox[sd.qp.Num()]; len(got) > 0 {
		sd.s.Errorf("%s: unexpected completions %s at %s: %+v", sd.name, when, sd.name, got)
	}
}

// ok takes one completion and holds it against the expected one, in what the
// contract says of it.
func (sd *side) ok(want fabric.Completion) {
	sd.s.Helper()
	got := sd.take(1)[0]
	want.QPN, got.Vendor = sd.qp.Num(), 0
	if got.Flags == 0 {
		got.Imm = 0
		if want.Flags == fabric.CompletionInvalidated && sd.s.cfg.KeepsInvalidatedKey != "" {
			want.Flags, want.Imm = 0, 0
		}
	}
	switch got.Op {
	case fabric.OpRecv, fabric.OpRecvWriteImm, fabric.OpRead, fabric.OpCompareSwap, fabric.OpFetchAdd:
	default:
		got.ByteLen = 0
	}
	if got != want {
		sd.s.Fatalf("completion at %s:\n got %+v\nwant %+v", sd.name, got, want)
	}
}

// post posts send WRs with one common SGE list.
func (sd *side) post(sges []fabric.SGE, wrs ...fabric.SendWR) {
	sd.s.Helper()
	n, err := sd.qp.PostSend(wrs, sges)
	skipIfUnsupported(sd.s.T, err)
	if n != len(wrs) || err != nil {
		sd.s.Fatalf("%s: PostSend posted %d of %d: %v", sd.name, n, len(wrs), err)
	}
}

// send posts one signaled WR with all of sges.
func (sd *side) send(wr fabric.SendWR, sges ...fabric.SGE) {
	sd.s.Helper()
	wr.Flags |= fabric.FlagSignaled
	wr.NumSGE = uint8(len(sges))
	sd.post(sges, wr)
}

// recv posts receives of size bytes each, ids counting from recvID+first, at
// consecutive places of the memory from off on.
func (sd *side) recv(first, count, off, size int) {
	sd.s.Helper()
	var wrs []fabric.RecvWR
	var sges []fabric.SGE
	for i := range count {
		wrs = append(wrs, fabric.RecvWR{ID: recvID + uint64(first+i), FirstSGE: uint32(len(sges)), NumSGE: 1})
		sges = append(sges, sd.sge(off+i*size, size))
	}
	if n, err := sd.qp.PostRecv(wrs, sges); n != count || err != nil {
		sd.s.Fatalf("%s: PostRecv posted %d of %d: %v", sd.name, n, count, err)
	}
}

// config is the usual configuration of a side.
func (sd *side) config() fabric.ConnConfig {
	l := sd.dev.Limits()
	return fabric.ConnConfig{
		SendCQ: sd.cq, RecvCQ: sd.cq, SendDepth: 32, RecvDepth: 32,
		MaxSendSGE: min(4, l.MaxSGE), MaxRecvSGE: min(4, l.MaxSGE), MaxInline: min(64, l.MaxInline),
		ORD: min(4, l.MaxORD), IRD: min(4, l.MaxIRD), RetryCount: 7, RNRRetry: 7,
		Setup: func(qp fabric.QueuePair) error {
			sd.setups.Add(1)
			sd.qp = qp
			return nil
		},
		Closed: func(err error) {
			if err != nil {
				sd.closedErr.Store(err)
			}
			sd.closes.Add(1)
		},
	}
}

// connect makes a connection, dialled by a and accepted by b, with the usual
// configuration after the changes of mod. It is closed with the test.
func (s *suite) connect(mod ...func(a, b *fabric.ConnConfig)) *channel {
	s.Helper()
	ch, err := s.tryConnect(s.a, s.b, mod...)
	s.must(err)
	return ch
}

func (s *suite) tryConnect(from, to *end, mod ...func(a, b *fabric.ConnConfig)) (*channel, error) {
	s.Helper()
	l, err := to.p.Listen(s.ctx(), netip.AddrPortFrom(to.addr, 0), fabric.ListenConfig{})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return s.connectTo(l, from, to, mod...)
}

// connectTo is connect through an existing listener of to.
func (s *suite) connectTo(l fabric.Listener, from, to *end, mod ...func(a, b *fabric.ConnConfig)) (*channel, error) {
	ch := &channel{a: &side{end: from}, b: &side{end: to}}
	ca, cb := ch.a.config(), ch.b.config()
	for _, m := range mod {
		m(&ca, &cb)
	}
	ctx, accepted := s.ctx(), make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			ch.b.conn, err = r.Accept(ctx, cb)
		}
		accepted <- err
	}()
	conn, err := from.dev.Dial(ctx, netip.AddrPortFrom(from.addr, 0), l.Addr(), ca)
	if err != nil {
		l.Close() // ends the goroutine
		return nil, fmt.Errorf("dial: %w (accept: %w)", err, <-accepted)
	}
	if err := <-accepted; err != nil {
		conn.Close()
		return nil, fmt.Errorf("accept: %w", err)
	}
	ch.a.conn = conn
	ch.a.qp, ch.b.qp = conn.QueuePair(), ch.b.conn.QueuePair()
	s.Cleanup(ch.close)
	return ch, nil
}

// sides are both.
func (ch *channel) sides() []*side { return []*side{ch.a, ch.b} }

// close ends the connection and destroys both QPs; again does nothing.
func (ch *channel) close() {
	for _, sd := range ch.sides() {
		if !sd.closed {
			sd.conn.Disconnect()
		}
	}
	for _, sd := range ch.sides() {
		if sd.closed {
			continue
		}
		sd.closed = true
		sd.s.closed(sd.name+": connection", sd.conn.Close())
		delete(sd.inbox, sd.qp.Num())
	}
}

// isDone says whether the connection has ended at this side.
func (sd *side) isDone() bool {
	select {
	case <-sd.conn.Done():
		return true
	default:
		return false
	}
}

// alive fails unless the connection works in both directions.
func (ch *channel) alive(when string) {
	s := ch.a.s
	s.Helper()
	for _, p := range [][2]*side{{ch.a, ch.b}, {ch.b, ch.a}} {
		from, to := p[0], p[1]
		to.recv(900, 1, memorySize-64, 64)
		fill(from.bytes(memorySize-128, 64), 0xa11e)
		from.send(fabric.SendWR{ID: sendID + 900, Op: fabric.OpSend}, from.sge(memorySize-128, 64))
		to.ok(fabric.Completion{ID: recvID + 900, Op: fabric.OpRecv, ByteLen: 64})
		from.ok(fabric.Completion{ID: sendID + 900, Op: fabric.OpSend})
		same(s, when, to.bytes(memorySize-64, 64), from.bytes(memorySize-128, 64))
	}
}

// fill writes a pattern that depends on seed and position.
func fill(b []byte, seed uint32) {
	x := seed*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
}

// same fails at the first byte where got and want differ.
func same(s *suite, what string, got, want []byte) {
	s.Helper()
	if len(got) != len(want) {
		s.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			s.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
		}
	}
}

// transport is what the devices speak.
func (s *suite) transport() fabric.Transport { return s.a.dev.Info().Transport }

// sameDevice says whether both ends are on one device.
func (s *suite) sameDevice() bool { return s.a.p == s.b.p && s.a.dev.Name() == s.b.dev.Name() }

// unacknowledged says that SENDs and WRITEs complete before the peer has said
// anything, as on iWARP: what the peer refuses shows up later.
func (s *suite) unacknowledged() bool { return s.transport() == fabric.TransportIWARP }

// need skips the test unless the device has what.
func (s *suite) need(have bool, what string) {
	s.Helper()
	if !have {
		s.Skipf("the limits of the device offer no %s", what)
	}
}
