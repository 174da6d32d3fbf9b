//go:build linux && cgo && !nordma

package verbs

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// testTimeout bounds everything a test waits for: the guest's processor is
// emulated.
const testTimeout = 20 * time.Second

// needDevice gives the provider and its first usable device, or skips. With
// NVMF_NEED_RDMA set, as in the lab, skipping is a failure.
func needDevice(t *testing.T) (fabric.Provider, fabric.DeviceInfo) {
	t.Helper()
	skip := t.Skipf
	if os.Getenv("NVMF_NEED_RDMA") != "" {
		skip = t.Fatalf
	}
	p, err := New()
	if err != nil {
		skip("%v", err)
	}
	t.Cleanup(func() { closing(t, p) })
	infos, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if i.PortUp && len(i.Addrs) > 0 {
			return p, i
		}
	}
	skip("no usable device among %v: %s", infos, diagnose(sysfsRoot))
	return nil, fabric.DeviceInfo{}
}

func closing(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// end is one side of a connection with what it needs: memory, a CQ, a waker.
type end struct {
	t      *testing.T
	dev    fabric.Device
	mem    *fabric.Memory
	mr     fabric.MemoryRegion
	cq     fabric.CompletionQueue
	srq    fabric.SharedReceiveQueue
	wake   chan struct{}
	conn   fabric.Conn
	closed chan error
	got    []fabric.Completion
}

const endMemory = 1 << 20

func newEnd(t *testing.T, dev fabric.Device) *end {
	t.Helper()
	e := &end{t: t, dev: dev, wake: make(chan struct{}, 1), closed: make(chan error, 4)}
	var err error
	if e.mem, err = fabric.AllocMemory(endMemory); err != nil {
		t.Fatal(err)
	}
	access := fabric.AccessLocalWrite | fabric.AccessRemoteRead | fabric.AccessRemoteWrite
	if dev.Limits().Atomics {
		access |= fabric.AccessRemoteAtomic
	}
	if dev.Limits().MemoryWindows {
		access |= fabric.AccessWindowBind
	}
	if e.mr, err = dev.Register(e.mem, access); err != nil {
		t.Fatal(err)
	}
	if e.cq, err = dev.NewCompletionQueue(256, e.notify); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.close)
	return e
}

func (e *end) notify() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *end) close() {
	if e.conn != nil {
		closing(e.t, e.conn)
	}
	if e.srq != nil {
		closing(e.t, e.srq)
	}
	closing(e.t, e.cq)
	closing(e.t, e.mr)
	closing(e.t, e.mem)
}

// config has recvs receives of 4 KiB posted by Setup, at the start of the
// memory, with their index as ID.
func (e *end) config(recvs int) fabric.ConnConfig {
	return fabric.ConnConfig{
		SendCQ: e.cq, RecvCQ: e.cq, SRQ: e.srq, SendDepth: 64, RecvDepth: 64, MaxSendSGE: 2, MaxRecvSGE: 2,
		MaxInline: 64, ORD: 4, IRD: 4, RetryCount: 7, RNRRetry: 7,
		Setup: func(qp fabric.QueuePair) error {
			if e.srq != nil || recvs == 0 {
				return nil
			}
			return e.postRecvs(qp, recvs)
		},
		Closed: func(err error) { e.closed <- err },
	}
}

func (e *end) postRecvs(q interface {
	PostRecv([]fabric.RecvWR, []fabric.SGE) (int, error)
}, n int) error {
	wrs, sges := make([]fabric.RecvWR, n), make([]fabric.SGE, n)
	for i := range wrs {
		wrs[i] = fabric.RecvWR{ID: uint64(i), FirstSGE: uint32(i), NumSGE: 1}
		sges[i] = e.sge(i*4096, 4096)
	}
	got, err := q.PostRecv(wrs, sges)
	if err == nil && got != n {
		e.t.Errorf("posted %d of %d receives without an error", got, n)
	}
	return err
}

func (e *end) sge(off, n int) fabric.SGE {
	return fabric.SGE{Addr: e.mem.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

// sendID marks sends in completions.
const sendID = 1000

// send posts one WR over [off, off+n) of the memory.
func (e *end) send(wr fabric.SendWR, off, n int) {
	e.t.Helper()
	wr.ID, wr.NumSGE = sendID, 1
	if n == 0 {
		wr.NumSGE = 0
	}
	if k, err := e.conn.QueuePair().PostSend([]fabric.SendWR{wr}, []fabric.SGE{e.sge(off, n)}); k != 1 || err != nil {
		e.t.Fatalf("post %v: %d, %v", wr.Op, k, err)
	}
}

// next waits for the next completion, asleep.
func (e *end) next() fabric.Completion {
	e.t.Helper()
	timeout := time.After(testTimeout)
	for len(e.got) == 0 {
		var wc [16]fabric.Completion
		n, err := e.cq.Poll(wc[:])
		if err != nil {
			e.t.Fatal(err)
		}
		if e.got = append(e.got, wc[:n]...); n > 0 {
			break
		}
		if err := e.cq.Arm(); err != nil {
			e.t.Fatal(err)
		}
		if n, err = e.cq.Poll(wc[:]); err != nil {
			e.t.Fatal(err)
		} else if n > 0 {
			e.got = append(e.got, wc[:n]...)
			break
		}
		select {
		case <-e.wake:
		case <-timeout:
			e.t.Fatal("no completion")
		}
	}
	c := e.got[0]
	e.got = e.got[1:]
	return c
}

// want waits for a completion and checks it.
func (e *end) want(id uint64, status fabric.Status, op fabric.Opcode) fabric.Completion {
	e.t.Helper()
	c := e.next()
	if c.ID != id || c.Status != status || c.Op != op || c.QPN != e.conn.QueuePair().Num() {
		e.t.Fatalf("completion %+v (%v), want id %d, %v, %v", c, c.Status, id, status, op)
	}
	return c
}

func (e *end) wantClosed() error {
	e.t.Helper()
	select {
	case err := <-e.closed:
		return err
	case <-time.After(testTimeout):
		e.t.Fatal("Closed was not called")
		return nil
	}
}

// pair connects two ends of one device over one of its addresses.
type pair struct {
	p      fabric.Provider
	dev    fabric.Device
	a, b   *end // a dials
	accept func(*fabric.ConnConfig)
	dial   func(*fabric.ConnConfig)
}

func newPair(t *testing.T) *pair {
	p, info := needDevice(t)
	dev, err := p.Open(info.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closing(t, dev)
	})
	return &pair{p: p, dev: dev, a: newEnd(t, dev), b: newEnd(t, dev)}
}

// addr is the device's first address of the family.
func (p *pair) addr(t *testing.T, is6 bool) netip.AddrPort {
	for _, a := range p.dev.Info().Addrs {
		if a.Is6() == is6 && !a.IsLinkLocalUnicast() {
			return netip.AddrPortFrom(a, 0)
		}
	}
	t.Skipf("the device has no such address: %v", p.dev.Info().Addrs)
	return netip.AddrPort{}
}

// iwarp says whether the device lacks immediates and answers to WRs.
func (p *pair) iwarp() bool { return p.dev.Info().Transport == fabric.TransportIWARP }

// refuses posts an operation that the device does not have, behind one that it
// has.
func (p *pair) refuses(t *testing.T, wr fabric.SendWR) {
	t.Helper()
	write := fabric.SendWR{ID: sendID, Op: fabric.OpWrite, RemoteAddr: p.b.mem.Addr(), RKey: p.b.mr.RKey(), NumSGE: 1, Flags: signaled}
	n, err := p.a.conn.QueuePair().PostSend([]fabric.SendWR{write, wr, write}, []fabric.SGE{p.a.sge(0, 8)})
	if n != 1 || !errors.Is(err, fabric.ErrNotSupported) {
		t.Errorf("%v: posted %d, %v", wr.Op, n, err)
	}
	p.a.want(sendID, success, fabric.OpWrite)
}

func (p *pair) connect(t *testing.T, at netip.AddrPort, recvs int) {
	t.Helper()
	ctx := deadline(t)
	l, err := p.p.Listen(ctx, at, fabric.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, l)
	errs := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			cfg := p.b.config(recvs)
			if p.accept != nil {
				p.accept(&cfg)
			}
			p.b.conn, err = r.Accept(ctx, cfg)
		}
		errs <- err
	}()
	cfg := p.a.config(recvs)
	if p.dial != nil {
		p.dial(&cfg)
	}
	to := l.Addr()
	if to.Addr().IsUnspecified() {
		to = netip.AddrPortFrom(p.addr(t, to.Addr().Is6()).Addr(), to.Port())
	}
	c, err := p.dev.Dial(ctx, netip.AddrPort{}, to, cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.a.conn = c
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
}

// flushed polls n flushes.
func (e *end) flushed(n int) {
	e.t.Helper()
	for range n {
		if c := e.next(); c.Status != fabric.StatusFlushed {
			e.t.Fatalf("%+v (%v), want a flush", c, c.Status)
		}
	}
}

func containsAll(s string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}
