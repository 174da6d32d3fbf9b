package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

const (
	reqKey = "MPA ID Req Frame"
	repKey = "MPA ID Rep Frame"
)

func frame(key, hexTail string) []byte {
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "").Replace(hexTail))
	if err != nil {
		panic(err)
	}
	return append([]byte(key), b...)
}

// rawDial connects a plain socket to the listener and sends b.
func rawDial(t *testing.T, l fabric.Listener, b []byte) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// expectBytes reads exactly want.
func expectBytes(t *testing.T, c net.Conn, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(c, got)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got % x (%v)\nwant % x", got[:n], err, want)
	}
}

// expectEnd reads to the end of the stream and finds nothing.
func expectEnd(t *testing.T, c net.Conn) {
	t.Helper()
	if rest, err := io.ReadAll(c); len(rest) > 0 || errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		t.Fatalf("% x, then %v, want the end", rest, err)
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func listen(t *testing.T, p *Provider) fabric.Listener {
	t.Helper()
	l, err := p.Listen(context.Background(), netip.MustParseAddrPort("127.0.0.1:0"), fabric.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// What a peer's Request is answered with, to the byte. The accepting end has
// 16 READs each way.
func TestRequests(t *testing.T) {
	for name, c := range map[string]struct {
		opts           Options
		request, reply string // behind the key
		ord, ird       int    // of the peer, as shown to the consumer
		crc, large     bool
	}{
		"Linux host":         {Options{}, "10 02 0006 | 0080 0000 | 6869", "10 02 0006 | 0000 0010 | 7965", 0, 128, false, false},
		"with CRC":           {Options{}, "50 02 0004 | 0008 0004", "50 02 0006 | 0004 0008 | 7965", 4, 8, true, false},
		"CRC that we want":   {Options{CRC: CRCOn}, "10 02 0004 | 0001 0001", "50 02 0006 | 0001 0001 | 7965", 1, 1, true, false},
		"RTR WRITE":          {Options{}, "10 02 0004 | 8010 c010", "10 02 0006 | 8010 8010 | 7965", 16, 16, false, false},
		"RTR READ":           {Options{}, "10 02 0004 | 8010 4000", "10 02 0006 | 8001 4010 | 7965", 0, 16, false, false},
		"RTR empty FPDU":     {Options{}, "10 02 0004 | c010 0010", "10 02 0006 | c010 0010 | 7965", 16, 16, false, false},
		"peer to peer alone": {Options{}, "10 02 0004 | 8010 0010", "10 02 0006 | 0010 0010 | 7965", 16, 16, false, false},
		"siw's hint":         {Options{}, "18 02 0004 | 0010 0010", "18 02 0006 | 0010 0010 | 7965", 16, 16, false, true},
		"nothing negotiated": {Options{UntoldReads: 3}, "10 02 0004 | 3fff 3fff", "10 02 0006 | 0003 0003 | 7965", 3, 3, false, false},
		"revision 1":         {Options{UntoldReads: 2}, "00 01 0002 | 6869", "00 01 0002 | 7965", 2, 2, false, false},
		"revision 1 and CRC": {Options{}, "40 01 0000", "40 01 0002 | 7965", 1, 1, true, false},
		"revision 2, bare":   {Options{}, "00 02 0000", "00 02 0002 | 7965", 1, 1, false, false},
		"reserved bits":      {Options{}, "17 02 0004 | 0010 0010", "10 02 0006 | 0010 0010 | 7965", 16, 16, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t, c.opts)
			e := newEnd(t, p, netip.MustParseAddr("127.0.0.1"))
			l := listen(t, p)
			raw := rawDial(t, l, frame(reqKey, c.request))
			r, err := l.Accept(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if r.PeerORD() != c.ord || r.PeerIRD() != c.ird {
				t.Errorf("peer's ORD %d and IRD %d", r.PeerORD(), r.PeerIRD())
			}
			if want := strings.HasSuffix(c.request, "6869"); want != (string(r.PrivateData()) == "hi") || !want && len(r.PrivateData()) > 0 {
				t.Errorf("private data %q", r.PrivateData())
			}
			cfg := e.Config
			cfg.PrivateData = []byte("ye")
			e.Conn, err = r.Accept(context.Background(), cfg)
			e.Must(err)
			expectBytes(t, raw, frame(repKey, c.reply))
			got := e.Conn.QueuePair().(*queuePair).Config()
			if got.CRC != c.crc || !got.Passive || (got.ULPDU == largeULPDU) != c.large {
				t.Errorf("%+v", got)
			}
			if e.Conn.ORD() != min(16, c.ird) {
				t.Errorf("our ORD is %d", e.Conn.ORD())
			}
		})
	}
}

// Requests that no consumer sees.
func TestRefusedRequests(t *testing.T) {
	for name, c := range map[string]struct {
		opts    Options
		request []byte
		reply   []byte // nil: the connection is closed without
	}{
		"markers":           {Options{}, frame(reqKey, "90 02 0004 | 0010 0010"), frame(repKey, "30 02 0004 | 0000 0000")},
		"markers and CRC":   {Options{}, frame(reqKey, "d0 02 0004 | 0010 0010"), frame(repKey, "70 02 0004 | 0000 0000")},
		"markers, old":      {Options{}, frame(reqKey, "80 01 0000"), frame(repKey, "20 01 0000")},
		"CRC not wanted":    {Options{CRC: CRCOff}, frame(reqKey, "50 02 0004 | 0010 0010"), frame(repKey, "70 02 0004 | 0000 0000")},
		"no MPA":            {Options{}, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), nil},
		"a reply":           {Options{}, frame(repKey, "10 02 0004 | 0010 0010"), nil},
		"revision 3":        {Options{}, frame(reqKey, "10 03 0004 | 0010 0010"), nil},
		"revision 0":        {Options{}, frame(reqKey, "00 00 0000"), nil},
		"private data":      {Options{}, frame(reqKey, "00 01 0201"), nil},
		"no IRD and ORD":    {Options{}, frame(reqKey, "10 02 0002 | 0000"), nil},
		"half, then silent": {Options{RequestTimeout: 30 * time.Millisecond}, frame(reqKey, "10 02 0004 | 00"), nil},
		"silent":            {Options{RequestTimeout: 30 * time.Millisecond}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, newProvider(t, c.opts))
			raw := rawDial(t, l, c.request)
			expectBytes(t, raw, c.reply)
			expectEnd(t, raw)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
			if r, err := l.Accept(ctx); err == nil {
				t.Errorf("the consumer got %+v", r)
			}
		})
	}
}

// A consumer's refusal carries exactly its private data.
func TestRejectBytes(t *testing.T) {
	for request, reply := range map[string]string{
		"10 02 0004 | 0010 0010": "30 02 0008 | 0000 0000 | 00000200",
		"50 02 0004 | 0010 0010": "70 02 0008 | 0000 0000 | 00000200",
		"00 01 0000":             "20 01 0004 | 00000200",
	} {
		l := listen(t, newProvider(t, Options{}))
		raw := rawDial(t, l, frame(reqKey, request))
		r, err := l.Accept(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Reject(make([]byte, maxPrivate+1)); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("too much private data: %v", err)
		}
		if err := r.Reject([]byte{0, 0, 2, 0}); err != nil {
			t.Fatal(err)
		}
		expectBytes(t, raw, frame(repKey, reply))
		expectEnd(t, raw)
		if _, err := r.Accept(context.Background(), fabric.ConnConfig{}); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("accept of a rejected request: %v", err)
		}
	}
}

// A peer that goes on before it has the reply, or goes away, is not shown or
// cannot be accepted.
func TestImpatientPeers(t *testing.T) {
	p := newProvider(t, Options{})
	e := newEnd(t, p, netip.MustParseAddr("127.0.0.1"))
	l := listen(t, p)
	request := frame(reqKey, "10 02 0004 | 0010 0010")
	for name, act := range map[string]func(c *net.TCPConn){
		"sends":  func(c *net.TCPConn) { c.Write([]byte{1}) },
		"closes": func(c *net.TCPConn) { c.Close() },
		"resets": func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
	} {
		raw := rawDial(t, l, request)
		r, err := l.Accept(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		act(raw)
		time.Sleep(5 * time.Millisecond)
		if c, err := r.Accept(context.Background(), e.Config); !errors.Is(err, fabric.ErrUnreachable) {
			t.Errorf("a peer that %s: %v, %v", name, c, err)
		}
		raw = rawDial(t, l, request)
		act(raw)
		time.Sleep(5 * time.Millisecond)
		good := rawDial(t, l, frame(reqKey, "10 02 0008 | 0010 0010 | 676f6f64"))
		if r, err = l.Accept(context.Background()); err != nil || string(r.PrivateData()) != "good" {
			t.Errorf("behind a peer that %s came %q, %v", name, r.PrivateData(), err)
		}
		good.Close()
	}
}

// Peers that connect and say nothing keep nobody out.
func TestManySilentPeers(t *testing.T) {
	l := listen(t, newProvider(t, Options{}))
	first := rawDial(t, l, nil)
	for range maxGreeting + 10 {
		rawDial(t, l, nil)
	}
	expectEnd(t, first)
	rawDial(t, l, frame(reqKey, "10 02 0004 | 0010 0010"))
	if _, err := l.Accept(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// server is a plain socket that answers one dialler.
type server struct {
	t *testing.T
	l net.Listener
}

func newServer(t *testing.T) *server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return &server{t, l}
}

// take accepts a connection, reads the Request and answers with b.
func (s *server) take(b []byte) (net.Conn, mpa.Frame) {
	c, err := s.l.Accept()
	if err != nil {
		return nil, mpa.Frame{}
	}
	s.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	var f mpa.Frame
	if err := readFrame(c, &f, false); err != nil {
		s.t.Error(err)
	}
	if len(b) > 0 {
		_, _ = c.Write(b)
	}
	return c, f
}

// dial dials it.
func (s *server) dial(ctx context.Context, o Options) (*testEnd, error) {
	p := newProvider(s.t, o)
	e := newEnd(s.t, p, netip.MustParseAddr("127.0.0.1"))
	cfg := e.Config
	cfg.PrivateData = []byte("hello")
	var err error
	e.Conn, err = e.Dev.Dial(ctx, netip.AddrPort{}, s.l.Addr().(*net.TCPAddr).AddrPort(), cfg)
	if err != nil {
		e.Conn = nil
		if n := e.Dev.Counts().QPs; n != 0 {
			s.t.Errorf("%d queue pairs are left", n)
		}
	}
	return e, err
}

// The Request that we send.
func TestRequestBytes(t *testing.T) {
	for want, o := range map[string]Options{
		"18 02 0009 | 8010 c010 | 68656c6c6f": {},
		"58 02 0009 | 8010 c010 | 68656c6c6f": {CRC: CRCOn},
		"18 02 0009 | 0010 0010 | 68656c6c6f": {NoPeerToPeer: true},
		"08 01 0005 | 68656c6c6f":             {Revision: 1},
	} {
		s := newServer(t)
		done := make(chan mpa.Frame, 1)
		go func() { _, f := s.take(frame(repKey, "20 01 0000")); done <- f }()
		_, err := s.dial(context.Background(), o)
		var r *fabric.RejectError
		if !errors.As(err, &r) || r.Reason != fabric.RejectConsumer {
			t.Errorf("%v", err)
		}
		f := <-done
		if got := f.Append(nil, false); !bytes.Equal(got, frame(reqKey, want)) {
			t.Errorf("sent % x, want %s", got, want)
		}
	}
}

// What the dialler makes of a Reply.
func TestReplies(t *testing.T) {
	for name, c := range map[string]struct {
		opts       Options
		reply      string
		err        error
		terminate  mpa.Cause
		ord, ird   int
		crc, large bool
		rtr        mpa.RTR
	}{
		"nvmet":               {reply: "10 02 0004 | 0000 0008", ord: 0, ird: 16},
		"siw, peer to peer":   {reply: "10 02 0004 | 8008 8008", ord: 8, ird: 16, rtr: mpa.RTRWrite},
		"READ as RTR":         {reply: "10 02 0004 | 8008 4008", ord: 8, ird: 16, rtr: mpa.RTRRead},
		"both":                {reply: "10 02 0004 | 8008 c008", ord: 8, ird: 16, rtr: mpa.RTRWrite},
		"other RTR":           {reply: "10 02 0004 | c008 0008", err: fabric.ErrNotSupported, terminate: mpa.NoRTR},
		"READ without ORD":    {reply: "10 02 0004 | 8000 4008", err: fabric.ErrNotSupported, terminate: mpa.NoRTR},
		"CRC":                 {reply: "50 02 0004 | 0010 0010", ord: 16, ird: 16, crc: true},
		"CRC not wanted":      {opts: Options{CRC: CRCOff}, reply: "50 02 0004 | 0010 0010", err: fabric.ErrNotSupported, terminate: mpa.BadMPA},
		"CRC that we want":    {opts: Options{CRC: CRCOn}, reply: "10 02 0004 | 0010 0010", ord: 16, ird: 16, crc: true},
		"hint":                {reply: "18 02 0004 | 0010 0010", ord: 16, ird: 16, large: true},
		"more than IRD":       {reply: "10 02 0004 | 0010 0040", ord: 16, ird: 64},
		"much more than IRD":  {reply: "10 02 0004 | 0010 0081", err: fabric.ErrNotSupported, terminate: mpa.InsufficientIRD},
		"more than ORD":       {reply: "10 02 0004 | 0100 0010", ord: 16, ird: 16},
		"nothing negotiated":  {opts: Options{UntoldReads: 5}, reply: "10 02 0004 | 3fff 3fff", ord: 5, ird: 16},
		"revision 1":          {opts: Options{Revision: 1, UntoldReads: 4}, reply: "00 01 0000", ord: 4, ird: 4},
		"revision 1 in reply": {opts: Options{UntoldReads: 4}, reply: "00 01 0000", ord: 4, ird: 16},
		"markers":             {reply: "90 02 0004 | 0010 0010", err: fabric.ErrNotSupported, terminate: mpa.BadMPA},
		"revision 7":          {reply: "10 07 0004 | 0010 0010", err: mpa.ErrRevision},
		"too much private":    {reply: "10 02 0300", err: mpa.ErrPrivate},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			conns := make(chan net.Conn, 1)
			go func() { c, _ := s.take(frame(repKey, c.reply)); conns <- c }()
			e, err := s.dial(context.Background(), c.opts)
			if !errors.Is(err, c.err) || (err != nil) != (c.err != nil) {
				t.Fatalf("dial: %v, want %v", err, c.err)
			}
			raw := <-conns
			if c.err != nil {
				if c.terminate != 0 {
					expectTerminate(t, raw, c.terminate)
				}
				expectEnd(t, raw)
				return
			}
			got := e.Conn.QueuePair().(*queuePair).Config()
			if e.Conn.ORD() != c.ord || e.Conn.IRD() != c.ird || got.CRC != c.crc || got.RTR != c.rtr || got.Passive || (got.ULPDU == largeULPDU) != c.large {
				t.Errorf("ORD %d, IRD %d, %+v", e.Conn.ORD(), e.Conn.IRD(), got)
			}
		})
	}
}

// expectTerminate reads a Terminate FPDU.
func expectTerminate(t *testing.T, c net.Conn, want mpa.Cause) {
	t.Helper()
	var head [2]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		t.Fatal(err)
	}
	n := int(binary.BigEndian.Uint16(head[:]))
	fpdu := append(head[:], make([]byte, mpa.FPDULen(n)-2)...)
	if _, err := io.ReadFull(c, fpdu[2:]); err != nil {
		t.Fatal(err)
	}
	var h mpa.Header
	var term mpa.Terminate
	if cause := h.Parse(fpdu[2:]); cause != 0 || h.Op != mpa.OpTerminate || !term.Parse(fpdu[2+mpa.UntaggedLen:2+n]) || term.Cause != want {
		t.Errorf("% x: %v, %v, want %v", fpdu, cause, &term, want)
	}
}

// Refusals, silence and broken connections.
func TestDialFails(t *testing.T) {
	for name, c := range map[string]struct {
		opts  Options
		reply []byte
		end   func(c net.Conn)
		want  error
	}{
		"closed":    {end: func(c net.Conn) { c.Close() }, want: fabric.ErrUnreachable},
		"reset":     {end: func(c net.Conn) { c.(*net.TCPConn).SetLinger(0); c.Close() }, want: fabric.ErrUnreachable},
		"half":      {reply: frame(repKey, "10 02"), end: func(c net.Conn) { c.Close() }, want: fabric.ErrUnreachable},
		"silent":    {opts: Options{ReplyTimeout: 30 * time.Millisecond}, want: fabric.ErrTimeout},
		"no MPA":    {reply: []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), want: mpa.ErrKey},
		"own frame": {reply: frame(reqKey, "10 02 0004 | 0010 0010"), want: mpa.ErrKey},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			go func() {
				if conn, _ := s.take(c.reply); c.end != nil {
					c.end(conn)
				}
			}()
			if _, err := s.dial(context.Background(), c.opts); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
	s := newServer(t)
	go s.take(frame(repKey, "30 02 0008 | 0010 0000 | 00000200"))
	var r *fabric.RejectError
	if _, err := s.dial(context.Background(), Options{}); !errors.As(err, &r) || !bytes.Equal(r.Private, []byte{0, 0, 2, 0}) {
		t.Errorf("reject: %v", err)
	}
	s = newServer(t)
	s.l.Close()
	if _, err := s.dial(context.Background(), Options{}); !errors.As(err, &r) || r.Reason != fabric.RejectBadServiceID {
		t.Errorf("nobody listens: %v", err)
	}
	s = newServer(t)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { s.take(nil); cancel() }()
	if _, err := s.dial(ctx, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"CRC": {CRC: 3}, "revision": {Revision: 3}, "negative revision": {Revision: -1}, "short FPDU": {MaxFPDU: 127}, "long FPDU": {MaxFPDU: mpa.MaxFPDU + 1},
		"READs": {UntoldReads: 129}, "DSCP": {DSCP: 64}, "buffer": {SendBuffer: -1}, "time": {ReplyTimeout: -1},
	} {
		if _, err := New(o); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []CRC{CRCAuto, CRCOff, CRCOn} {
		if got, err := ParseCRC(c.String()); got != c || err != nil {
			t.Errorf("%v: %v, %v", c, got, err)
		}
	}
	if _, err := ParseCRC("maybe"); !errors.Is(err, fabric.ErrInvalid) || CRC(9).String() != "CRC(9)" {
		t.Errorf("maybe: %v", err)
	}
	p := newProvider(t, Options{CRC: CRCOn, Revision: 1, MaxFPDU: 1448})
	devs, err := p.Devices()
	if err != nil || len(devs) == 0 || !strings.Contains(devs[0].Note, "CRC on, MPA revision 1, FPDUs up to 1448") {
		t.Errorf("%+v, %v", devs, err)
	}
}
