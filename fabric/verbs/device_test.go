//go:build linux && cgo && !nordma

package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

func TestDevices(t *testing.T) {
	p, err := New()
	if err != nil {
		t.Skip(err)
	}
	defer closing(t, p)
	infos, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		t.Logf("%+v", i)
		if i.Name == "" || i.Provider != ProviderName || i.Note == "" && i.Limits.MaxQP == 0 {
			t.Errorf("%+v", i)
		}
	}
	if _, err := p.Open("absent0"); !errors.Is(err, fabric.ErrNoDevice) {
		t.Errorf("open an absent device: %v", err)
	}
	if _, err := p.DeviceFor(deadline(t), netip.Addr{}, netip.MustParseAddr("192.0.2.1")); !errors.Is(err, fabric.ErrNoDevice) {
		t.Errorf("device for a far address: %v", err)
	}
	_, err = p.Listen(deadline(t), netip.MustParseAddrPort("192.0.2.1:4420"), fabric.ListenConfig{})
	if !errors.Is(err, fabric.ErrAddrNotAvailable) {
		t.Errorf("listen on a foreign address: %v", err)
	}
}

func TestInfo(t *testing.T) {
	p, info := needDevice(t)
	l := info.Limits
	if l.MaxSGE < 1 || l.MaxQPDepth < 128 || l.MaxCQDepth < 128 || l.MaxMessage == 0 || l.MaxMRSize == 0 {
		t.Errorf("limits %+v", l)
	}
	if info.NetDev == "" || info.GUID == 0 || info.Transport == fabric.TransportUnknown || info.MTU < 256 {
		t.Errorf("%+v", info)
	}
	for _, a := range info.Addrs {
		d, err := p.DeviceFor(deadline(t), netip.Addr{}, a)
		if err != nil || d.Name() != info.Name {
			t.Errorf("device for %v: %v, %v", a, d, err)
			continue
		}
		closing(t, d)
	}
}

func TestReferences(t *testing.T) {
	p, info := needDevice(t)
	d, err := p.Open(info.Name)
	if err != nil {
		t.Fatal(err)
	}
	d2, err := p.Open(info.Name)
	if err != nil || d2 != d {
		t.Fatalf("second open: %v, %v", d2, err)
	}
	closing(t, d)
	cq, err := d.NewCompletionQueue(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); !errors.Is(err, fabric.ErrBusy) {
		t.Errorf("close with an open CQ: %v", err)
	}
	if err := p.Close(); !errors.Is(err, fabric.ErrBusy) {
		t.Errorf("close the provider with an open device: %v", err)
	}
	closing(t, cq)
	closing(t, cq)
	closing(t, d)
	if err := d.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a close too many: %v", err)
	}
	if _, err := d.NewCompletionQueue(1, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("CQ of a closed device: %v", err)
	}
	for range d.Events() { // closed with the device
	}
}

func TestOperations(t *testing.T) {
	for name, at := range map[string]func(*pair) netip.AddrPort{
		"IPv4":       func(p *pair) netip.AddrPort { return p.addr(t, false) },
		"IPv6":       func(p *pair) netip.AddrPort { return p.addr(t, true) },
		"any IPv4":   func(*pair) netip.AddrPort { return netip.MustParseAddrPort("0.0.0.0:0") },
		"any IPv6":   func(*pair) netip.AddrPort { return netip.MustParseAddrPort("[::]:0") },
		"link-local": linkLocal,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			ap := at(p)
			if !ap.IsValid() {
				t.Skip("no link-local address")
			}
			p.dial = func(c *fabric.ConnConfig) { c.PrivateData = []byte("hello") }
			p.accept = func(c *fabric.ConnConfig) { c.PrivateData = []byte("welcome") }
			p.connect(t, ap, 8)
			if !bytes.HasPrefix(p.a.conn.PrivateData(), []byte("welcome")) {
				t.Errorf("private data %q", p.a.conn.PrivateData())
			}
			if a, b := p.a.conn, p.b.conn; a.LocalAddr() != b.RemoteAddr() || a.RemoteAddr() != b.LocalAddr() {
				t.Errorf("addresses %v -> %v and %v -> %v", a.LocalAddr(), a.RemoteAddr(), b.LocalAddr(), b.RemoteAddr())
			}
			if p.a.conn.QueuePair().State() != fabric.QPReadyToSend || p.b.conn.QueuePair().State() != fabric.QPReadyToSend {
				t.Error("QPs not in RTS")
			}
			exerciseSends(t, p)
			exerciseWrites(t, p)
			exerciseReads(t, p)
			exerciseAtomics(t, p)
			exerciseWindows(t, p)
		})
	}
}

func linkLocal(p *pair) netip.AddrPort {
	for _, a := range p.dev.Info().Addrs {
		if a.IsLinkLocalUnicast() {
			return netip.AddrPortFrom(a, 0)
		}
	}
	return netip.AddrPort{}
}

const (
	signaled = fabric.FlagSignaled
	success  = fabric.StatusSuccess
)

func exerciseSends(t *testing.T, p *pair) {
	a, b := p.a, p.b
	for i, c := range []struct {
		wr fabric.SendWR
		n  int
	}{
		{fabric.SendWR{Op: fabric.OpSend, Flags: signaled}, 4096},
		{fabric.SendWR{Op: fabric.OpSendImm, Imm: 0x01020304, Flags: signaled | fabric.FlagSolicited}, 100},
		{fabric.SendWR{Op: fabric.OpSend, Flags: signaled | fabric.FlagInline}, 32},
		{fabric.SendWR{Op: fabric.OpSend, Flags: signaled | fabric.FlagFence}, 0},
	} {
		if c.wr.Op == fabric.OpSendImm && p.iwarp() {
			p.refuses(t, c.wr)
			c.wr.Op, c.wr.Imm = fabric.OpSend, 0
		}
		payload := a.mem.Bytes()[65536:][:c.n]
		for k := range payload {
			payload[k] = byte(k*7 + i)
		}
		a.send(c.wr, 65536, c.n)
		a.want(sendID, success, c.wr.Op)
		rc := b.want(uint64(i), success, fabric.OpRecv)
		if int(rc.ByteLen) != c.n || !bytes.Equal(b.mem.Bytes()[i*4096:][:c.n], payload) {
			t.Errorf("case %d: received %d bytes, or others than sent", i, rc.ByteLen)
		}
		if imm := rc.Flags&fabric.CompletionImm != 0; imm != (c.wr.Op == fabric.OpSendImm) || imm && rc.Imm != c.wr.Imm {
			t.Errorf("case %d: flags %v, immediate %#x", i, rc.Flags, rc.Imm)
		}
	}
}

func exerciseWrites(t *testing.T, p *pair) {
	a, b := p.a, p.b
	remote := func(off int) uint64 { return b.mem.Addr() + uint64(off) }
	copy(a.mem.Bytes()[65536:], "written by RDMA")
	a.send(fabric.SendWR{Op: fabric.OpWrite, RemoteAddr: remote(131072), RKey: b.mr.RKey(), Flags: signaled}, 65536, 15)
	a.want(sendID, success, fabric.OpWrite)
	if got := string(b.mem.Bytes()[131072:][:15]); got != "written by RDMA" {
		t.Errorf("written %q", got)
	}
	if p.iwarp() {
		p.refuses(t, fabric.SendWR{Op: fabric.OpWriteImm})
		return
	}
	a.send(fabric.SendWR{Op: fabric.OpWriteImm, RemoteAddr: remote(131072 + 100), RKey: b.mr.RKey(), Imm: 77, Flags: signaled}, 65536, 15)
	a.want(sendID, success, fabric.OpWriteImm)
	if rc := b.want(4, success, fabric.OpRecvWriteImm); rc.Imm != 77 || rc.Flags != fabric.CompletionImm || rc.ByteLen != 15 {
		t.Errorf("write with immediate: %+v", rc)
	}
}

func exerciseReads(t *testing.T, p *pair) {
	a, b := p.a, p.b
	for i := range b.mem.Bytes()[262144:][:200000] {
		b.mem.Bytes()[262144+i] = byte(i * 13)
	}
	a.send(fabric.SendWR{Op: fabric.OpRead, RemoteAddr: b.mem.Addr() + 262144, RKey: b.mr.RKey(), Flags: signaled}, 262144, 200000)
	if c := a.want(sendID, success, fabric.OpRead); c.ByteLen != 200000 {
		t.Errorf("read completion of %d bytes", c.ByteLen)
	}
	if !bytes.Equal(a.mem.Bytes()[262144:][:200000], b.mem.Bytes()[262144:][:200000]) {
		t.Error("read other bytes")
	}
}

func exerciseAtomics(t *testing.T, p *pair) {
	if !p.dev.Limits().Atomics {
		t.Log("no atomics")
		return
	}
	a, b := p.a, p.b
	word := b.mem.Bytes()[524288:][:8]
	old := func() uint64 { return binary.NativeEndian.Uint64(a.mem.Bytes()[524288:]) }
	binary.NativeEndian.PutUint64(word, 40)
	post := func(wr fabric.AtomicWR) {
		t.Helper()
		wr.ID, wr.RemoteAddr, wr.RKey, wr.Flags = sendID, b.mem.Addr()+524288, b.mr.RKey(), signaled
		if n, err := a.conn.QueuePair().(fabric.Atomics).PostAtomic([]fabric.AtomicWR{wr}, []fabric.SGE{a.sge(524288, 8)}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		a.want(sendID, success, wr.Op)
	}
	post(fabric.AtomicWR{Op: fabric.OpFetchAdd, SwapAdd: 2})
	if v := binary.NativeEndian.Uint64(word); v != 42 || old() != 40 {
		t.Errorf("fetch and add: %d, was %d", v, old())
	}
	post(fabric.AtomicWR{Op: fabric.OpCompareSwap, Compare: 41, SwapAdd: 1})
	if v := binary.NativeEndian.Uint64(word); v != 42 || old() != 42 {
		t.Errorf("compare and swap of another value: %d, was %d", v, old())
	}
	post(fabric.AtomicWR{Op: fabric.OpCompareSwap, Compare: 42, SwapAdd: 1})
	if v := binary.NativeEndian.Uint64(word); v != 1 || old() != 42 {
		t.Errorf("compare and swap: %d, was %d", v, old())
	}
}

// exerciseWindows binds a window at b, lets a write through it, and has it
// invalidated by a's SEND; then the key must be dead, which ends the
// connection.
func exerciseWindows(t *testing.T, p *pair) {
	if !p.dev.Limits().MemoryWindows || !p.dev.Limits().SendInvalidate {
		t.Log("no windows")
		return
	}
	a, b := p.a, p.b
	w, err := p.dev.(fabric.MemoryWindower).NewMemoryWindow()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closing(t, w) })
	bind := func() uint32 {
		t.Helper()
		key, err := b.conn.QueuePair().(fabric.WindowBinder).PostBind(w, b.mr, 8192, 4096, fabric.AccessRemoteWrite, sendID, signaled)
		if err != nil {
			t.Fatal(err)
		}
		b.want(sendID, success, fabric.OpBind)
		return key
	}
	write := func(key uint32, status fabric.Status) {
		t.Helper()
		a.send(fabric.SendWR{Op: fabric.OpWrite, RemoteAddr: b.mem.Addr() + 8192, RKey: key, Flags: signaled}, 65536, 10)
		a.want(sendID, status, fabric.OpWrite)
	}
	key := bind()
	if key != w.RKey() {
		t.Errorf("key %#x, window's %#x", key, w.RKey())
	}
	write(key, success)
	a.send(fabric.SendWR{Op: fabric.OpSendInv, RKey: key, Flags: signaled}, 65536, 16)
	a.want(sendID, success, fabric.OpSendInv)
	switch rc := b.want(5, success, fabric.OpRecv); {
	case rc.Flags == 0:
		t.Log("the device does not say which key the peer invalidated (rxe of Linux 6.1)")
	case rc.Flags != fabric.CompletionInvalidated || rc.Imm != key:
		t.Errorf("receive of an invalidate: %+v, want key %#x", rc, key)
	}
	key2 := bind()
	if key2 == key {
		t.Error("the same key twice")
	}
	write(key2, success)
	b.send(fabric.SendWR{Op: fabric.OpLocalInv, RKey: key2, Flags: signaled}, 0, 0)
	b.want(sendID, success, fabric.OpLocalInv)
	write(key2, fabric.StatusRemoteAccess)
	if _, err := b.conn.QueuePair().(fabric.WindowBinder).PostBind(w, b.mr, endMemory-1, 2, fabric.AccessRemoteWrite, 1, 0); !errors.Is(err, fabric.ErrInvalid) {
		t.Errorf("bind beyond the region: %v", err)
	}
}
