package roce

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

// looseEnd is an end with a QP of an unreliable service.
type looseEnd struct {
	*fabrictest.End
	ud fabric.DatagramQP
	uc fabric.UnreliableQP
}

func newLooseEnd(t testing.TB, p *Provider, addr string) *looseEnd {
	e := &looseEnd{End: newEnd(t, p, addr)}
	cfg := fabric.UnreliableConfig{SendCQ: e.CQ, RecvCQ: e.CQ, SendDepth: 256, RecvDepth: 256, MaxInline: 64}
	var err error
	if e.ud, err = e.Dev.(fabric.DatagramDevice).NewDatagramQP(cfg, testQKey); err == nil {
		e.uc, err = e.Dev.(fabric.UnreliableConnector).NewUnreliableQP(cfg)
	}
	e.Must(err)
	t.Cleanup(func() { _, _ = e.ud.Close(), e.uc.Close() })
	return e
}

const testQKey = 0x11111111

// loosePair is two ends on loopback, in that weather, with their UC QPs
// connected at a path MTU.
func loosePair(t testing.TB, o Options, w *weather, mtu int, addrs ...string) (x, y *looseEnd) {
	t.Helper()
	p, q := newProvider(t, o), newProvider(t, o)
	p.weather, q.weather = w, w
	x, y = newLooseEnd(t, p, addrs[0]), newLooseEnd(t, q, addrs[1])
	for _, c := range []struct{ e, peer *looseEnd }{{x, y}, {y, x}} {
		c.e.Must(c.e.uc.Connect(fabric.UnreliablePeer{Addr: c.peer.Dev.Info().Addrs[0], QPN: c.peer.uc.Num(), MTU: mtu}))
	}
	return x, y
}

func (e *looseEnd) handle(to netip.Addr, class uint8) uint32 {
	e.Helper()
	h, err := e.Dev.(fabric.DatagramDevice).NewAddressHandle(to, class)
	e.Must(err)
	e.Cleanup(func() { _ = h.Close() })
	return h.Num()
}

// await polls both ends until y has n completions, for at most a while.
func (e *looseEnd) await(peer *looseEnd, n int, wait time.Duration) (wcs []fabric.Completion) {
	e.Helper()
	for end := time.Now().Add(wait); len(wcs) < n && time.Now().Before(end); runtime.Gosched() {
		peer.Poll()
		wcs = append(wcs, e.Poll()...)
	}
	return wcs
}

// What the kernel tells of the IP header is in front of a datagram.
func TestDatagramHeader(t *testing.T) {
	for _, c := range []struct {
		a, b     string
		off      int // of the header in front
		class    func(h []byte) byte
		hops     func(h []byte) byte
		length   func(h []byte) uint16
		overhead uint16
	}{
		{"127.0.0.2", "127.0.0.3", 20, func(h []byte) byte { return h[1] }, func(h []byte) byte { return h[8] }, func(h []byte) uint16 { return binary.BigEndian.Uint16(h[2:]) }, 20 + 8 + 20 + 4},
		{"::1", "::1", 0, func(h []byte) byte { return h[0]<<4 | h[1]>>4 }, func(h []byte) byte { return h[7] }, func(h []byte) uint16 { return binary.BigEndian.Uint16(h[4:]) }, 8 + 20 + 4},
	} {
		t.Run(c.a, func(t *testing.T) {
			p := newProvider(t, Options{})
			x, y := newLooseEnd(t, p, c.a), newLooseEnd(t, p, c.b)
			const class = 26 << 2
			to := x.handle(netip.MustParseAddr(c.b), class)
			x.Poll()
			y.Poll() // y has asked for the headers
			for try := 0; ; try++ {
				_, _ = y.ud.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, []fabric.SGE{y.SGE(0, 4096)})
				if n, err := x.ud.PostDatagrams([]fabric.DatagramWR{{Handle: to, QPN: y.ud.Num(), QKey: testQKey, NumSGE: 1}}, []fabric.SGE{x.SGE(0, 100)}); n != 1 {
					t.Fatal(err)
				}
				if len(y.await(x, 1, time.Second)) > 0 {
					break
				}
				if try == 10 {
					t.Fatal("nothing arrives")
				}
			}
			h := y.Mem.Bytes()[c.off:fabric.GRHLen]
			if c.class(h)&^3 != class || c.hops(h) != 64 || c.length(h) != 100+c.overhead {
				t.Errorf("class %#x, hop limit %d, length %d in %x", c.class(h), c.hops(h), c.length(h), y.Mem.Bytes()[:fabric.GRHLen])
			}
			if src, dst, ok := fabric.ParseGRH(y.Mem.Bytes()); !ok || src.String() != c.a || dst.String() != c.b {
				t.Errorf("from %v to %v, %v", src, dst, ok)
			}
		})
	}
}

// In bad weather every message that arrives is whole, and some do.
func TestUnreliableWeather(t *testing.T) {
	for _, mtu := range []int{256, 4096} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) { testWeather(t, mtu) })
	}
}

func testWeather(t *testing.T, mtu int) {
	w := newWeather(7)
	w.lose, w.twice, w.late, w.flip = 0.03, 0.02, 0.02, 0.01
	x, y := loosePair(t, Options{}, w, mtu, "127.0.0.2", "127.0.0.3")
	to := x.handle(netip.MustParseAddr("127.0.0.3"), 0)
	const size, slots, rounds = 3000, 16, 60
	for i := range slots {
		_, _ = y.uc.PostRecv([]fabric.RecvWR{{ID: uint64(i), NumSGE: 1}}, []fabric.SGE{y.SGE(i*8192, 8192)})
		_, _ = y.ud.PostRecv([]fabric.RecvWR{{ID: uint64(100 + i), NumSGE: 1}}, []fabric.SGE{y.SGE((100+i)*8192, 8192)})
	}
	var whole [2]int
	for r := range rounds {
		msg := x.Mem.Bytes()[:size]
		for i := range msg {
			msg[i] = byte(i*13 + r)
		}
		if n, err := x.uc.PostSend([]fabric.SendWR{{Op: fabric.OpSend, NumSGE: 1}}, []fabric.SGE{x.SGE(0, size)}); n != 1 {
			t.Fatal(err)
		}
		if n, err := x.ud.PostDatagrams([]fabric.DatagramWR{{Handle: to, QPN: y.ud.Num(), QKey: testQKey, NumSGE: 1}}, []fabric.SGE{x.SGE(0, size)}); n != 1 {
			t.Fatal(err)
		}
		for _, c := range y.await(x, 2, 20*time.Millisecond) {
			kind, off, post := 0, int(c.ID)*8192, y.uc.PostRecv
			if c.Flags&fabric.CompletionGRH != 0 {
				kind, off, post = 1, off+fabric.GRHLen, y.ud.PostRecv
			}
			got := y.Mem.Bytes()[off : off+size]
			seed := got[0]
			for i := range got {
				if got[i] != byte(i*13)+seed {
					t.Fatalf("round %d: byte %d of a message differs", r, i)
				}
			}
			whole[kind]++
			_, _ = post([]fabric.RecvWR{{ID: c.ID, NumSGE: 1}}, []fabric.SGE{y.SGE(int(c.ID)*8192, 8192)})
		}
	}
	t.Logf("MTU %d: %d of %d messages over UC, %d over UD; %+v", mtu, whole[0], rounds, whole[1], w.counts())
	if whole[0] == 0 || whole[1] == 0 || w.counts().lost == 0 {
		t.Error("nothing arrived, or nothing was lost")
	}
}

// A message of each service, posted, sent, received and polled, allocates
// nothing.
func TestUnreliableNoAllocation(t *testing.T) {
	x, y := loosePair(t, Options{}, nil, 1024, "127.0.0.2", "127.0.0.3")
	to := x.handle(netip.MustParseAddr("127.0.0.3"), 0)
	recv := []fabric.RecvWR{{NumSGE: 1}}
	into := []fabric.SGE{y.SGE(0, 8192)}
	from := []fabric.SGE{x.SGE(0, 3000), x.SGE(0, 500)}
	sends := []fabric.SendWR{
		{Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled},
		{Op: fabric.OpWrite, NumSGE: 1, RemoteAddr: y.Mem.Addr() + 1<<20, RKey: y.MR.RKey(), Flags: fabric.FlagSignaled},
	}
	grams := []fabric.DatagramWR{{Handle: to, QPN: y.ud.Num(), QKey: testQKey, FirstSGE: 1, NumSGE: 1, Flags: fabric.FlagSignaled}}
	got := 0
	round := func() {
		_, _ = y.uc.PostRecv(recv, into)
		_, _ = y.ud.PostRecv(recv, into)
		_, _ = x.uc.PostSend(sends, from)
		_, _ = x.ud.PostDatagrams(grams, from)
		for range 4 {
			x.Poll()
			got += len(y.Poll())
		}
	}
	for range 20 {
		round()
	}
	got = 0
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
	if got < 200 {
		t.Errorf("%d of 402 messages were received", got)
	}
}

// An owner that sleeps is woken by a message of either service.
func TestUnreliableWakes(t *testing.T) {
	x, y := loosePair(t, Options{}, nil, 0, "127.0.0.2", "127.0.0.3")
	to := x.handle(netip.MustParseAddr("127.0.0.3"), 0)
	for _, send := range []func(){
		func() { _, _ = x.uc.PostSend([]fabric.SendWR{{NumSGE: 1}}, []fabric.SGE{x.SGE(0, 64)}) },
		func() {
			_, _ = x.ud.PostDatagrams([]fabric.DatagramWR{{Handle: to, QPN: y.ud.Num(), QKey: testQKey, NumSGE: 1}}, []fabric.SGE{x.SGE(0, 64)})
		},
	} {
		_, _ = y.uc.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, []fabric.SGE{y.SGE(0, 4096)})
		_, _ = y.ud.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, []fabric.SGE{y.SGE(4096, 4096)})
		for len(y.Poll()) > 0 {
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for arrived := false; !arrived; {
			y.Must(y.CQ.Arm())
			send()
			x.Must(x.CQ.Arm()) // sends what was posted
			select {
			case <-y.Woke:
				arrived = len(y.Poll()) > 0
			case <-ctx.Done():
				t.Fatal("never woken")
			}
		}
	}
}

// Datagrams to QPs of different engines of one device travel apart, those to one
// QP together; all arrive where they should.
func TestDatagramsToManyEngines(t *testing.T) {
	p, q := newProvider(t, Options{}), newProvider(t, Options{})
	x := newLooseEnd(t, p, "127.0.0.2")
	var ys []*looseEnd
	for range 3 {
		ys = append(ys, newLooseEnd(t, q, "127.0.0.3"))
	}
	to := x.handle(netip.MustParseAddr("127.0.0.3"), 0)
	const each = 20
	var wrs []fabric.DatagramWR
	for i := range 3 * each {
		wrs = append(wrs, fabric.DatagramWR{Handle: to, QPN: ys[i/each].ud.Num(), QKey: testQKey, Imm: uint32(i), Op: fabric.OpSendImm, NumSGE: 1})
	}
	calls := x.ud.(*datagramQP).e.tx.calls
	for _, y := range ys {
		y.Poll()
		for range each {
			_, _ = y.ud.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, []fabric.SGE{y.SGE(0, 4096)})
		}
	}
	copy(x.Mem.Bytes(), bytes.Repeat([]byte{1}, 64))
	if n, err := x.ud.PostDatagrams(wrs, []fabric.SGE{x.SGE(0, 64)}); n != len(wrs) {
		t.Fatal(err)
	}
	for i, y := range ys {
		got := y.await(x, each, 10*time.Second)
		if len(got) != each {
			t.Errorf("engine %d: %d of %d datagrams", i, len(got), each)
		}
		for k, c := range got {
			if want := uint32(i*each + k); c.Imm != want || c.SrcQPN != x.ud.Num() {
				t.Errorf("engine %d: %+v, want immediate %d", i, c, want)
			}
		}
		if n := y.ud.(*datagramQP).e.strewn; n != 0 {
			t.Errorf("%d packets came to engine %d for another", n, i)
		}
	}
	if n := x.ud.(*datagramQP).e.tx.calls - calls; n != 1 {
		t.Errorf("%d system calls to send them", n)
	}
}
