package iwarp

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/fabric/soft/host"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// Segments as short as towards hardware.
func TestConformanceSegments(t *testing.T) {
	if testing.Short() {
		t.Skip("the same as IPv4 but for the length of segments")
	}
	fabrictest.Conformance(t, between(Options{MaxFPDU: 1448}, "127.0.0.2", "127.0.0.3"), fabrictest.Config{Cycles: 60})
}

// until polls ends until ok.
func until(t testing.TB, what string, ok func() bool, ends ...*testEnd) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		for _, e := range ends {
			n, _ := e.CQ.Poll(e.WC)
			e.got = append(e.got, e.WC[:n]...)
		}
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for %s", what)
		}
		runtime.Gosched()
	}
}

func isDone(c fabric.Conn) bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// A revision 1 peer is served: with as many READs as are assumed of it.
func TestRevision1(t *testing.T) {
	x, y := newPair(t, Options{Revision: 1, UntoldReads: 2, CRC: CRCOn})
	if x.Conn.ORD() != 2 || x.Conn.IRD() != 2 || y.Conn.ORD() != 2 || y.Conn.IRD() != 2 {
		t.Fatalf("ORD %d and %d, IRD %d and %d", x.Conn.ORD(), y.Conn.ORD(), x.Conn.IRD(), y.Conn.IRD())
	}
	for range 10 {
		_, err := x.QP.PostSend([]fabric.SendWR{{Op: fabric.OpRead, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: y.Mem.Addr(), RKey: y.MR.RKey()}},
			[]fabric.SGE{x.SGE(0, 5000)})
		x.Must(err)
	}
	until(t, "READs", func() bool { return len(x.got) == 10 }, x, y)
	for _, c := range x.got {
		if c.Status != fabric.StatusSuccess {
			t.Errorf("%+v", c)
		}
	}
}

// An owner that sleeps is woken by what brings it no completion: WRITEs of more
// than all buffers hold pass only if it reads on.
func TestWokenByWrites(t *testing.T) {
	for _, crc := range []CRC{CRCAuto, CRCOn} {
		x, y := newPair(t, Options{CRC: crc, SendBuffer: 64 << 10, RecvBuffer: 64 << 10})
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				y.Must(y.CQ.Arm())
				y.Poll() // once more after Arm, as the contract wants
				select {
				case <-y.Woke:
				case <-stop:
					return
				}
			}
		}()
		const total = 40
		for posted, completed := 0, 0; completed < total; {
			for posted < total && posted-completed < 8 {
				_, err := x.QP.PostSend([]fabric.SendWR{{Op: fabric.OpWrite, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: y.Mem.Addr(), RKey: y.MR.RKey()}},
					[]fabric.SGE{x.SGE(0, 1<<20)})
				x.Must(err)
				posted++
			}
			n := len(x.Poll())
			if completed += n; n == 0 {
				x.Must(x.CQ.Arm())
				if n := len(x.Poll()); n > 0 {
					completed += n
					continue
				}
				select {
				case <-x.Woke:
				case <-time.After(10 * time.Second):
					t.Fatalf("crc %v: stuck after %d WRITEs of %d posted", crc, completed, posted)
				}
			}
		}
		close(stop)
		<-done
	}
}

// An owner that looks once more before it sleeps may find room in a socket, and
// not use it up: it stays awake, for nobody tells it again.
func TestNothingLeftAsleep(t *testing.T) {
	x, y := newPair(t, Options{})
	w := fabric.NewWaker()
	defer w.Close()
	x.Waker = w
	e := x.CQ.(*completionQueue).Engines()[0]
	const writes = 48
	sge := []fabric.SGE{x.SGE(0, endMemory)}
	wr := []fabric.SendWR{{Op: fabric.OpWrite, NumSGE: 1, RemoteAddr: y.Mem.Addr(), RKey: y.MR.RKey(), Flags: fabric.FlagSignaled}}
	for range writes {
		if _, err := x.QP.PostSend(wr, sge); err != nil {
			t.Fatal(err)
		}
	}
	drain := func() {
		for range 100 {
			y.Poll()
		}
	}
	for done := 0; done < writes; {
		for range 100 { // until the socket is full
			done += len(x.Poll())
		}
		w.Prepare()
		x.Must(w.Arm(x.CQ))
		drain()
		done += len(x.Poll()) // looks once more
		if !w.Asleep() || done == writes {
			w.Cancel()
			continue
		}
		if n := e.active.Len(); n > 0 {
			t.Fatalf("%d of %d WRITEs sent, and the owner sleeps over the rest", done, writes)
		}
		drain()
		w.Sleep(-1)
	}
}

// What was posted together leaves in one system call: here as much as a queue of 32
// NVMe reads makes, its data before its responses.
func TestOneSend(t *testing.T) {
	x, y := newPair(t, Options{SendBuffer: 1 << 20, RecvBuffer: 1 << 20})
	const reads = 32
	var wrs [2 * reads]fabric.SendWR
	var recvs [reads]fabric.RecvWR
	for i := range reads {
		wrs[i] = fabric.SendWR{Op: fabric.OpWrite, NumSGE: 1, RemoteAddr: y.Mem.Addr(), RKey: y.MR.RKey()}
		wrs[reads+i] = fabric.SendWR{Op: fabric.OpSend, NumSGE: 1, FirstSGE: 1, Flags: fabric.FlagSignaled}
		recvs[i].NumSGE = 1
	}
	_, err := y.QP.PostRecv(recvs[:], []fabric.SGE{y.SGE(0, 64)})
	y.Must(err)
	for len(x.Poll()) > 0 { // what the handshake left
	}
	calls := engineOf(x).calls
	n, err := x.QP.PostSend(wrs[:], []fabric.SGE{x.SGE(0, 4096), x.SGE(4096, 16)})
	x.Must(err)
	done := len(x.Poll())
	if got := engineOf(x).calls - calls; n != len(wrs) || got != 1 || done != reads {
		t.Fatalf("%d of %d WRs posted, %d completed after %d system calls", n, len(wrs), done, got)
	}
	for got := 0; got < reads; {
		got += len(y.Poll())
	}
}

// rawAccept connects a plain socket to e as an initiator that has said hello.
func rawAccept(t *testing.T, p *Provider, e *testEnd) *net.TCPConn {
	t.Helper()
	l := listen(t, p)
	raw := rawDial(t, l, frame(reqKey, "10 02 0004 | 0010 0010"))
	r, err := l.Accept(context.Background())
	e.Must(err)
	e.Conn, err = r.Accept(context.Background(), e.Config)
	e.Must(err)
	expectBytes(t, raw, frame(repKey, "10 02 0004 | 0010 0010"))
	return raw
}

// fpdu makes a segment without CRC.
func fpdu(h mpa.Header, payload ...byte) []byte {
	b := make([]byte, mpa.LengthLen+h.Len())
	h.Put(b[mpa.LengthLen:])
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b, uint16(len(b)-mpa.LengthLen))
	return append(b, make([]byte, mpa.Pad(len(b)-mpa.LengthLen)+mpa.CRCLen)...)
}

// A hostile stream ends its own connection, with a Terminate that arrives
// although the peer has sent more than was read; the one beside it goes on.
func TestHostileConnection(t *testing.T) {
	p := newProvider(t, Options{})
	x, y := newEnd(t, p, netip.MustParseAddr("127.0.0.1")), newEnd(t, p, netip.MustParseAddr("127.0.0.1"))
	fabrictest.Connect(x.End, y.End)
	for name, c := range map[string]struct {
		stream []byte
		cause  mpa.Cause
	}{
		"WRITE to nowhere":    {fpdu(mpa.Header{Op: mpa.OpWrite, Last: true, STag: 1, TO: 2}, make([]byte, 100000%60000)...), mpa.TaggedInvalidSTag},
		"SEND without buffer": {fpdu(mpa.Header{Op: mpa.OpSend, Last: true, MSN: 1}, 1, 2, 3), mpa.NoBuffer},
		"READ of nothing":     {fpdu(mpa.Header{Op: mpa.OpReadRequest, Last: true, MSN: 1}, append(make([]byte, 15), 9, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0)...), mpa.RemoteInvalidSTag},
		"nonsense":            {[]byte(strings.Repeat("nonsense", 5000)), mpa.UntaggedVersion},
	} {
		e := newEnd(t, p, netip.MustParseAddr("127.0.0.1"))
		raw := rawAccept(t, p, e)
		closed := make(chan error, 1)
		go func() {
			_, err := raw.Write(append(c.stream, make([]byte, 300000)...))
			closed <- err
		}()
		until(t, name, func() bool { return isDone(e.Conn) }, e)
		expectTerminate(t, raw, c.cause)
		expectEnd(t, raw)
		raw.Close()
		<-closed
		if err := e.Conn.Err(); !errors.Is(err, fabric.ErrQPError) || !strings.Contains(err.Error(), c.cause.String()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := y.QP.PostRecv([]fabric.RecvWR{{ID: 7, NumSGE: 1}}, []fabric.SGE{y.SGE(0, 64)})
	y.Must(err)
	_, err = x.QP.PostSend([]fabric.SendWR{{Op: fabric.OpSend, NumSGE: 1}}, []fabric.SGE{x.SGE(0, 64)})
	x.Must(err)
	until(t, "a SEND beside hostile peers", func() bool { return len(y.got) == 1 }, x, y)
	if y.got[0].Status != fabric.StatusSuccess {
		t.Errorf("%+v", y.got[0])
	}
}

// How a connection ends that its peer ends.
func TestPeerEnds(t *testing.T) {
	half := fpdu(mpa.Header{Op: mpa.OpWrite, Last: true}, 1, 2, 3, 4)[:14]
	for name, c := range map[string]struct {
		end  func(raw *net.TCPConn)
		want error
		text string
	}{
		"in order":                   {func(raw *net.TCPConn) { raw.CloseWrite() }, net.ErrClosed, "disconnected by the peer"},
		"in the middle of a message": {func(raw *net.TCPConn) { raw.Write(half); raw.CloseWrite() }, net.ErrClosed, "in the middle of a message"},
		"by a reset":                 {func(raw *net.TCPConn) { raw.SetLinger(0); raw.Close() }, net.ErrClosed, "reset by the peer"},
		"by a Terminate": {func(raw *net.TCPConn) { raw.Write(terminateFPDU(mpa.MPACatastrophic)); raw.Close() },
			fabric.ErrQPError, "MPA: local catastrophic error"},
	} {
		p := newProvider(t, Options{})
		e := newEnd(t, p, netip.MustParseAddr("127.0.0.1"))
		raw := rawAccept(t, p, e)
		_, err := e.QP.PostRecv([]fabric.RecvWR{{ID: 1}, {ID: 2}}, nil)
		e.Must(err)
		c.end(raw)
		until(t, name, func() bool { return isDone(e.Conn) && len(e.got) == 2 }, e)
		if err := e.Conn.Err(); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		for i, wc := range e.got {
			if wc.ID != uint64(i+1) || wc.Status != fabric.StatusFlushed {
				t.Errorf("%s: %+v", name, wc)
			}
		}
	}
}

// What was handed to TCP arrives, though the connection is ended right behind
// it and the peer has sent what nobody read.
func TestDisconnectDelivers(t *testing.T) {
	x, y := newPair(t, Options{})
	const count, size = 16, 100000
	for i := range count {
		_, err := y.QP.PostRecv([]fabric.RecvWR{{ID: uint64(i), NumSGE: 1}}, []fabric.SGE{y.SGE(i*size, size)})
		y.Must(err)
		_, err = x.QP.PostSend([]fabric.SendWR{{ID: uint64(i), Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled}},
			[]fabric.SGE{x.SGE(i*size, size)})
		x.Must(err)
	}
	until(t, "SENDs to be handed over", func() bool { return len(x.got) == count }, x)
	_, err := y.QP.PostSend([]fabric.SendWR{{Op: fabric.OpWrite, NumSGE: 1, RemoteAddr: x.Mem.Addr(), RKey: x.MR.RKey()}}, []fabric.SGE{y.SGE(0, 64)})
	y.Must(err)
	until(t, "the peer's first turn", func() bool { return len(y.got) > 0 }, y)
	x.Must(x.Conn.Disconnect())
	until(t, "all SENDs", func() bool { return len(y.got) == count && isDone(y.Conn) }, x, y)
	for i, c := range y.got {
		if c.Status != fabric.StatusSuccess || c.ByteLen != size || c.ID != uint64(i) {
			t.Errorf("message %d: %+v", i, c)
		}
	}
}

// The sockets are what the options say.
func TestSocketOptions(t *testing.T) {
	x, y := newPair(t, Options{DSCP: 10, KeepAlive: 7 * time.Second, SendTimeout: 9 * time.Second})
	until(t, "adoption", func() bool { return x.QP.(*queuePair).fd >= 0 && y.QP.(*queuePair).fd >= 0 }, x, y)
	for _, e := range []*testEnd{x, y} {
		for _, o := range []option{
			{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1, "no delay"}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1, "keep-alive"},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 7, "idle"}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 7, "interval"}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3, "count"},
			{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 9000, "timeout"}, {unix.IPPROTO_IP, unix.IP_TOS, 40, "class"},
		} {
			if got, err := unix.GetsockoptInt(e.QP.(*queuePair).fd, o.level, o.name); got != o.value || err != nil {
				t.Errorf("%s is %d (%v), want %d", o.what, got, err, o.value)
			}
		}
	}
}

// The congestion control is the one that was asked for, at both ends; one that
// there is not is a clear error, of Listen and Dial.
func TestCongestionControl(t *testing.T) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		t.Fatal(err)
	}
	system := strings.TrimSpace(string(b))
	auto := func(got string) bool {
		return got == system && !strings.HasPrefix(got, "bbr") || got == "cubic" || got == "reno"
	}
	for _, c := range []struct {
		congestion string
		want       func(got string) bool
	}{
		{"", auto}, {CongestionAuto, auto},
		{CongestionSystem, func(got string) bool { return got == system }},
		{"reno", func(got string) bool { return got == "reno" }},
	} {
		x, y := newPair(t, Options{Congestion: c.congestion})
		until(t, "adoption", func() bool { return x.QP.(*queuePair).fd >= 0 && y.QP.(*queuePair).fd >= 0 }, x, y)
		for _, e := range []*testEnd{x, y} {
			if got, err := congestion(e.QP.(*queuePair).fd); err != nil || !c.want(got) {
				t.Errorf("asked for %q: %q, %v; the system has %q", c.congestion, got, err, system)
			}
		}
	}
	p := newProvider(t, Options{Congestion: "nosuch"})
	addr := netip.MustParseAddrPort("127.0.0.1:0")
	_, err = p.Listen(context.Background(), addr, fabric.ListenConfig{})
	if !errors.Is(err, fabric.ErrInvalid) || !strings.Contains(err.Error(), `congestion control "nosuch"`) {
		t.Errorf("Listen with one that there is not: %v", err)
	}
	e := newEnd(t, p, addr.Addr())
	_, err = e.Dev.Dial(context.Background(), netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.1:9"), e.Config)
	if !errors.Is(err, fabric.ErrInvalid) || !strings.Contains(err.Error(), `congestion control "nosuch"`) {
		t.Errorf("Dial with one that there is not: %v", err)
	}
}

// A wildcard listener serves every address of the host, and names the device of
// each request.
func TestWildcardListener(t *testing.T) {
	p := newProvider(t, Options{})
	for _, any := range []string{"0.0.0.0:0", "[::]:0"} {
		l, err := p.Listen(context.Background(), netip.MustParseAddrPort(any), fabric.ListenConfig{})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []string{"127.0.0.1", "127.0.0.5", "::1"} {
			addr := netip.MustParseAddr(a)
			if any == "0.0.0.0:0" && addr.Is6() {
				continue
			}
			e := newEnd(t, p, addr)
			var wg sync.WaitGroup
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				r, err := l.Accept(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if r.Device().Info().Addrs[0] != addr || r.LocalAddr().Addr() != addr || r.RemoteAddr().Addr() != addr {
					t.Errorf("%s: device %s, from %v to %v", any, r.Device().Name(), r.RemoteAddr(), r.LocalAddr())
				}
				if err := r.Reject(nil); err != nil {
					t.Error(err)
				}
			})
			_, err := e.Dev.Dial(context.Background(), netip.AddrPort{}, netip.AddrPortFrom(addr, l.Addr().Port()), e.Config)
			var r *fabric.RejectError
			if !errors.As(err, &r) {
				t.Errorf("%s through %s: %v", a, any, err)
			}
			wg.Wait()
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Link-local addresses need their zone, in every place. Loopback has none: this
// is for a network namespace with a veth pair.
func TestLinkLocal(t *testing.T) {
	list, err := host.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	var local []host.Addr
	for _, a := range list {
		if a.IP.Is6() && a.IP.IsLinkLocalUnicast() && a.Up {
			local = append(local, a)
		}
	}
	if len(local) < 2 {
		t.Skip("there are no two interfaces with link-local addresses")
	}
	p := newProvider(t, Options{})
	for _, a := range local {
		e := newEnd(t, p, a.IP)
		l, err := p.Listen(context.Background(), netip.AddrPortFrom(a.IP, 0), fabric.ListenConfig{})
		e.Must(err)
		done := make(chan error, 1)
		go func() {
			r, err := l.Accept(context.Background())
			if err == nil {
				if r.Device().Name() != e.Dev.Name() || r.LocalAddr() != l.Addr() || r.RemoteAddr().Addr() != a.Plain() {
					t.Errorf("request to %v on %s from %v", r.LocalAddr(), r.Device().Name(), r.RemoteAddr())
				}
				err = r.Reject(nil)
			}
			done <- err
		}()
		_, err = e.Dev.Dial(context.Background(), netip.AddrPort{}, l.Addr(), e.Config)
		var r *fabric.RejectError
		if !errors.As(err, &r) {
			t.Errorf("%v: %v", a.IP, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-done
	}
}

func TestNamesAndAddresses(t *testing.T) {
	p := newProvider(t, Options{})
	d, err := p.Open("iwarp-lo")
	if err != nil {
		t.Fatal(err)
	}
	if info := d.Info(); info.Addrs[0] != netip.MustParseAddr("127.0.0.1") || info.NetDev != "lo" || info.MTU == 0 || info.Limits.RNR || info.Note == "" {
		t.Errorf("%+v", info)
	}
	d2, err := p.Open("iwarp-lo-127.0.0.9")
	if err != nil || d2.Info().GUID == d.Info().GUID {
		t.Errorf("%v", err)
	}
	_, err = d2.Dial(context.Background(), netip.MustParseAddrPort("127.0.0.1:0"), netip.MustParseAddrPort("127.0.0.1:9"), fabric.ConnConfig{})
	if !errors.Is(err, fabric.ErrAddrNotAvailable) {
		t.Errorf("dial from another device's address: %v", err)
	}
	_, err = d2.Dial(context.Background(), netip.AddrPort{}, netip.MustParseAddrPort("[::1]:9"), fabric.ConnConfig{})
	if !errors.Is(err, fabric.ErrUnreachable) {
		t.Errorf("dial from IPv4 to IPv6: %v", err)
	}
	if _, err := p.DeviceFor(context.Background(), netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.1")); !errors.Is(err, fabric.ErrNoDevice) {
		t.Errorf("a device for both families: %v", err)
	}
	for _, d := range []fabric.Device{d, d2} {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.Open("iwarp-lo"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("open after close: %v", err)
	}
	for _, a := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		if _, err := p.Listen(context.Background(), netip.MustParseAddrPort(a), fabric.ListenConfig{}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("listen on %s after close: %v", a, err)
		}
	}
}

// Connections cost a bounded amount of memory, work all of them, and leave
// nothing. 5,000 of them are 10,000 queue pairs on one device.
func TestManyConnections(t *testing.T) {
	conns := 5000
	if testing.Short() {
		conns = 200
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if most := int(min(files.Cur, 1<<20)-200) / 2; conns > most {
		t.Logf("%d connections of %d, for want of descriptors", most, conns)
		conns = most
	}
	p := newProvider(t, Options{})
	addr := netip.MustParseAddr("127.0.0.1")
	x, y := newEnd(t, p, addr), newEnd(t, p, addr)
	before := heap()
	m := manyConnections(t, p, x, y, conns)
	perQP := int64(heap()-before) / int64(2*conns)
	t.Logf("%d bytes of heap a queue pair", perQP)
	if perQP > 16<<10 {
		t.Errorf("a queue pair costs %d bytes", perQP)
	}
	if n := x.Dev.Counts().QPs; n != 2*conns {
		t.Errorf("%d queue pairs", n)
	}
	for round := range 2 {
		m.round(t, uint64(round))
	}
	m.close(t)
	if n := x.Dev.Counts().QPs; n != 0 {
		t.Errorf("%d queue pairs are left", n)
	}
}

func heap() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc + s.StackInuse
}

// many is connections from x to y.
type many struct {
	x, y     *testEnd
	from, to []fabric.Conn
}

func manyConnections(t *testing.T, p *Provider, x, y *testEnd, n int) *many {
	l, err := p.Listen(context.Background(), netip.MustParseAddrPort("127.0.0.1:0"), fabric.ListenConfig{Backlog: 512})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := &many{x: x, y: y}
	small := func(e *testEnd) fabric.ConnConfig {
		c := e.Config
		c.SendDepth, c.RecvDepth, c.MaxInline, c.Setup = 4, 4, 0, nil
		return c
	}
	done := make(chan error, 1)
	go func() {
		for range n {
			r, err := l.Accept(context.Background())
			if err == nil {
				var c fabric.Conn
				c, err = r.Accept(context.Background(), small(y))
				m.to = append(m.to, c)
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range n {
		c, err := x.Dev.Dial(context.Background(), netip.AddrPort{}, l.Addr(), small(x))
		if err != nil {
			t.Fatal(err)
		}
		m.from = append(m.from, c)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return m
}

// round sends a message over each.
func (m *many) round(t *testing.T, id uint64) {
	m.x.got, m.y.got = nil, nil
	for _, c := range m.to {
		_, err := c.QueuePair().PostRecv([]fabric.RecvWR{{ID: id, NumSGE: 1}}, []fabric.SGE{m.y.SGE(0, 64)})
		m.y.Must(err)
	}
	for i, c := range m.from {
		_, err := c.QueuePair().PostSend([]fabric.SendWR{{ID: id, Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled}}, []fabric.SGE{m.x.SGE(0, 64)})
		m.x.Must(err)
		if i%512 == 511 {
			until(t, "SENDs", func() bool { return len(m.y.got) > i }, m.x, m.y)
		}
	}
	until(t, "all SENDs", func() bool { return len(m.x.got) == len(m.from) && len(m.y.got) == len(m.to) }, m.x, m.y)
	for _, c := range append(m.x.got, m.y.got...) {
		if c.Status != fabric.StatusSuccess || c.ID != id {
			t.Fatalf("%+v", c)
		}
	}
}

// close ends half of them at each end and waits until both know.
func (m *many) close(t *testing.T) {
	for i := range m.from {
		m.x.Must([]fabric.Conn{m.from[i], m.to[i]}[i%2].Disconnect())
	}
	for i := range m.from {
		until(t, "the end of all", func() bool { return isDone(m.from[i]) && isDone(m.to[i]) }, m.x, m.y)
		m.x.Must(m.from[i].Close())
		m.y.Must(m.to[i].Close())
	}
}
