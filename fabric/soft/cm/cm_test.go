package cm

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

var (
	addrA = netip.MustParseAddr("10.9.0.1")
	addrB = netip.MustParseAddr("10.9.0.2")
)

// world is two managers, the net between them and a clock.
type world struct {
	t     *testing.T
	now   time.Duration
	a, b  *Manager
	trace []string
	// lose says which of the next datagrams are lost, by message and number of
	// its kind from now on: "REQ1".
	lose  map[string]bool
	count map[string]int
	// program handles events; nil leaves them in the trace alone.
	program map[*Manager]func(Event)
	last    map[string][]byte // the last datagram of each message
}

func config(addr netip.Addr, guid uint64) Config {
	return Config{Addr: addr, GUID: guid, MTU: func() wire.MTU { return wire.MTU1024 }, FirstComm: wire.CommID(guid * 0x1000), Listens: func(port uint16) bool { return port == 4420 }}
}

func newWorld(t *testing.T, lose ...string) *world {
	w := &world{
		t: t, a: New(config(addrA, 0xa)), b: New(config(addrB, 0xb)),
		lose: map[string]bool{}, count: map[string]int{}, program: map[*Manager]func(Event){}, last: map[string][]byte{},
	}
	for _, l := range lose {
		w.lose[l] = true
	}
	w.program[w.a] = func(e Event) {
		if e.Kind == Replied {
			e.Conn.Ready()
		}
	}
	w.program[w.b] = func(e Event) {
		if e.Kind == Requested {
			e.Conn.Accept(localB, w.now)
		}
	}
	return w
}

var (
	localA = Local{QPN: 0x111, StartPSN: 0x123456, ORD: 4, IRD: 16, RetryCount: 7, RNRRetry: 6, AckTimeout: 14, Private: []byte("hello")}
	localB = Local{QPN: 0x222, StartPSN: 0x654321, ORD: 16, IRD: 4, RNRRetry: 5, Private: []byte("world")}
	dial   = Dial{Peer: addrB, Source: netip.AddrPortFrom(addrA, 40000), Port: 4420, MTU: wire.MTU1024}
)

func (w *world) name(m *Manager) string {
	if m == w.a {
		return "a"
	}
	return "b"
}

func (w *world) log(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%v ", w.now.Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

// pump moves datagrams and events until there are none.
func (w *world) pump() {
	for again := true; again; {
		again = false
		for _, m := range []*Manager{w.a, w.b} {
			for e, ok := m.Event(); ok; e, ok = m.Event() {
				again = true
				w.event(m, e)
			}
			for _, b, ok := m.Next(); ok; _, b, ok = m.Next() {
				again = true
				w.carry(m, b)
			}
		}
	}
}

func (w *world) event(m *Manager, e Event) {
	s := []string{"Requested", "Replied", "Established", "Rejected", "Disconnected", "Finished", "Failed"}[e.Kind]
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	w.log("%s: %s", w.name(m), s)
	if f := w.program[m]; f != nil {
		f(e)
	}
}

func (w *world) carry(from *Manager, b []byte) {
	mad, err := wire.ParseMAD(b)
	if err != nil {
		w.t.Fatal(err)
	}
	kind := mad.Attr.String()
	w.last[kind] = bytes.Clone(b)
	w.count[kind]++
	key := fmt.Sprint(kind, w.count[kind])
	to := w.b
	if from == w.b {
		to = w.a
	}
	if w.lose[key] || w.lose[kind] {
		w.log("%s> %s LOST", w.name(from), kind)
		return
	}
	w.log("%s> %s", w.name(from), kind)
	to.Receive(from.cfg.Addr, b, w.now)
	if w.lose["twice"] {
		to.Receive(from.cfg.Addr, b, w.now)
	}
}

// run goes on for d.
func (w *world) run(d time.Duration) {
	for end := w.now + d; ; {
		w.pump()
		next := min(w.a.Deadline(), w.b.Deadline())
		if next > end {
			w.now = end
			return
		}
		w.now = next
		w.a.Expire(w.now)
		w.b.Expire(w.now)
	}
}

func (w *world) expect(want ...string) {
	w.t.Helper()
	if !slices.Equal(w.trace, want) {
		w.t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(w.trace, "\n\t"), strings.Join(want, "\n\t"))
	}
	w.trace = nil
}

// rest checks that both managers have forgotten everything in the end.
func (w *world) rest() {
	w.t.Helper()
	w.run(time.Hour)
	for _, m := range []*Manager{w.a, w.b} {
		if m.Len()+len(m.peers)+len(m.qps)+len(m.timers) != 0 {
			w.t.Errorf("%s keeps %d connections, %d peers, %d QPs, %d timers", w.name(m), m.Len(), len(m.peers), len(m.qps), len(m.timers))
		}
	}
}

func TestHandshakeAndDisconnect(t *testing.T) {
	w := newWorld(t)
	var p *Conn
	program := w.program[w.b]
	w.program[w.b] = func(e Event) { p = e.Conn; program(e) }
	c := w.a.Connect(dial, localA, w.now)
	w.run(time.Minute)
	w.expect("0s a> REQ", "0s b: Requested", "0s b> REP", "0s a: Replied", "0s a> RTU", "0s b: Established")
	if c.State() != Connected || p.State() != Connected || w.a.Deadline() != Never || w.b.Deadline() != Never {
		t.Errorf("states %v and %v", c.State(), p.State())
	}
	if !bytes.HasPrefix(p.Request.Private, []byte("hello\x00")) || len(p.Request.Private) != wire.REQConsumerLen {
		t.Errorf("private data of the request: %q", p.Request.Private)
	}
	if !bytes.HasPrefix(c.Reply.Private, []byte("world\x00")) || len(c.Reply.Private) != wire.REPPrivateLen {
		t.Errorf("private data of the reply: %q", c.Reply.Private)
	}
	if p.Source != dial.Source || p.Port != 4420 || p.Peer != addrA || p.Request.StartPSN != 0x123456 || p.Request.ResponderRes != 16 || p.Request.InitiatorDepth != 4 {
		t.Errorf("request %+v", p.Request)
	}
	if c.Reply.QPN != 0x222 || c.Reply.StartPSN != 0x654321 || c.Reply.RNRRetry != 5 || c.LocalQPN() != 0x111 || p.LocalQPN() != 0x222 {
		t.Errorf("reply %+v", c.Reply)
	}
	p.Disconnect(w.now)
	w.run(0)
	w.expect("1m0s b> DREQ", "1m0s a: Disconnected", "1m0s a> DREP", "1m0s b: Finished")
	if c.State() != TimeWait || p.State() != TimeWait {
		t.Errorf("states %v and %v", c.State(), p.State())
	}
	w.rest()
}

// What is lost is repeated: by who waits for the answer, in its own time.
func TestLosses(t *testing.T) {
	for _, c := range []struct {
		lose string
		want []string
	}{
		{"REQ1", []string{"0s a> REQ LOST", "537ms a> REQ", "537ms b: Requested", "537ms b> REP", "537ms a: Replied", "537ms a> RTU", "537ms b: Established"}},
		{"REP1", []string{"0s a> REQ", "0s b: Requested", "0s b> REP LOST", "537ms a> REQ", "537ms b> REP", "537ms b> REP",
			"537ms a: Replied", "537ms a> RTU", "537ms b: Established"}},
		{"RTU1", []string{"0s a> REQ", "0s b: Requested", "0s b> REP", "0s a: Replied", "0s a> RTU LOST", "537ms b> REP", "537ms a> RTU", "537ms b: Established"}},
	} {
		t.Run(c.lose, func(t *testing.T) {
			w := newWorld(t, c.lose)
			conn := w.a.Connect(dial, localA, 0)
			w.run(10 * time.Second)
			w.expect(c.want...)
			w.lose["DREQ1"], w.lose["DREP1"] = true, true
			w.now = 10 * time.Second
			conn.Disconnect(w.now)
			w.run(1500 * time.Millisecond)
			w.expect("10s a> DREQ LOST", "10.537s a> DREQ", "10.537s b: Disconnected", "10.537s b> DREP LOST", "11.074s a> DREQ", "11.074s b> DREP", "11.074s a: Finished")
			w.rest()
		})
	}
}

// Each datagram comes twice: nothing happens twice.
func TestDuplicates(t *testing.T) {
	w := newWorld(t, "twice")
	c := w.a.Connect(dial, localA, 0)
	w.run(time.Second)
	c.Disconnect(w.now)
	w.run(time.Second)
	w.expect("0s a> REQ", "0s b: Requested", "0s b> MRA", "0s b> REP", "0s a: Replied", "0s a> RTU", "0s b: Established",
		"1s a> DREQ", "1s b: Disconnected", "1s b> DREP", "1s b> DREP", "1s a: Finished")
	w.rest()
}

// A program that takes its time: the repeated REQ is answered with MRA, and
// the peer waits.
func TestSlowAccept(t *testing.T) {
	w := newWorld(t)
	var p *Conn
	w.program[w.b] = func(e Event) { p = e.Conn }
	w.a.Connect(dial, localA, 0)
	w.run(40 * time.Second)
	w.expect("0s a> REQ", "0s b: Requested", "537ms a> REQ", "537ms b> MRA")
	p.Accept(localB, w.now)
	w.run(time.Second)
	w.expect("40s b> REP", "40s a: Replied", "40s a> RTU", "40s b: Established")
}

func TestReject(t *testing.T) {
	w := newWorld(t)
	w.program[w.b] = func(e Event) { e.Conn.Reject(fabric.RejectConsumer, []byte{1, 0, 6, 0}) }
	var got error
	w.program[w.a] = func(e Event) { got = e.Err }
	w.a.Connect(dial, localA, 0)
	w.run(time.Second)
	w.expect("0s a> REQ", "0s b: Requested", "0s b> REJ", "0s a: Rejected: connection rejected: refused by the listening program (28)")
	var r *fabric.RejectError
	if !errors.As(got, &r) || r.Reason != fabric.RejectConsumer || len(r.Private) != wire.REJPrivateLen || !bytes.HasPrefix(r.Private, []byte{1, 0, 6, 0, 0}) {
		t.Errorf("%#v", got)
	}
	w.rest()
}

// A path MTU that is too large is refused with the largest that is not.
func TestRejectMTU(t *testing.T) {
	w := newWorld(t)
	d := dial
	d.MTU = wire.MTU4096
	c := w.a.Connect(d, localA, 0)
	w.run(time.Second)
	w.expect("0s a> REQ", "0s b> REJ", "0s a: Rejected: connection rejected: path MTU not acceptable (26)")
	if c.MaxMTU != wire.MTU1024 {
		t.Errorf("the peer accepts %v", c.MaxMTU)
	}
	w.rest()
}

// The active side refuses the reply, as when its program has gone meanwhile.
func TestRejectReply(t *testing.T) {
	w := newWorld(t)
	w.program[w.a] = func(e Event) { e.Conn.Reject(fabric.RejectConsumer, nil) }
	w.a.Connect(dial, localA, 0)
	w.run(time.Second)
	w.expect("0s a> REQ", "0s b: Requested", "0s b> REP", "0s a: Replied", "0s a> REJ", "0s b: Rejected: connection rejected: refused by the listening program (28)")
	w.rest()
}

// The active side gives up before and after the passive one has answered.
func TestGiveUp(t *testing.T) {
	w := newWorld(t)
	var p *Conn
	w.program[w.b] = func(e Event) { p = e.Conn }
	c := w.a.Connect(dial, localA, 0)
	w.run(0)
	c.Reject(fabric.RejectTimeout, nil)
	w.run(time.Second)
	w.expect("0s a> REQ", "0s b: Requested", "0s a> REJ", "0s b: Rejected: connection rejected: timeout (4)")
	if p.Accept(localB, w.now) {
		t.Error("a request that was given up was accepted")
	}
	w.rest()

	w = newWorld(t, "REJ1")
	w.program[w.b] = func(e Event) { p = e.Conn }
	c = w.a.Connect(dial, localA, 0)
	w.run(0)
	c.Reject(fabric.RejectTimeout, nil)
	w.run(time.Second)
	if !p.Accept(localB, w.now) {
		t.Error("not accepted")
	}
	w.run(time.Second)
	w.expect("0s a> REQ", "0s b: Requested", "0s a> REJ LOST", "1s b> REP", "1s a> REJ", "1s b: Rejected: connection rejected: invalid communication ID (6)")
	w.rest()
}

func TestPeerSilent(t *testing.T) {
	w := newWorld(t, "REQ")
	w.a.Connect(dial, localA, 0)
	w.run(time.Hour)
	if n := w.count["REQ"]; n != 1+maxRetries {
		t.Errorf("%d REQs", n)
	}
	if got := w.trace[len(w.trace)-2:]; got[1] != "8.59s a> REJ" || !strings.Contains(got[0], "Failed: timed out: 10.9.0.2 does not answer the connection request") {
		t.Errorf("%q", got)
	}
	w.rest()

	w = newWorld(t, "RTU", "REJ")
	w.a.Connect(dial, localA, 0)
	w.run(time.Minute)
	if n := w.count["REP"]; n != 1+maxRetries {
		t.Errorf("%d REPs", n)
	}

	w = newWorld(t)
	c := w.a.Connect(dial, localA, 0)
	w.run(0)
	w.lose["DREQ"] = true
	c.Disconnect(w.now)
	w.run(time.Minute)
	if last := w.trace[len(w.trace)-1]; last != "8.59s a: Finished" {
		t.Error(last)
	}
}

// A peer that has restarted asks for a connection on a QP number in use.
func TestStale(t *testing.T) {
	w := newWorld(t)
	w.a.Connect(dial, localA, 0)
	w.run(time.Second)
	w.trace = nil
	cfg := config(addrA, 0xa)
	cfg.FirstComm = 0x777
	w.a = New(cfg)
	w.a.Connect(dial, localA, w.now)
	w.run(time.Second)
	w.expect("1s a> REQ", "1s b: Failed: "+errStale.Error(), "1s b> REJ", "1s b> DREQ",
		"1s a: Rejected: connection rejected: stale connection (10)", "1s a> DREP")
	w.rest()
}

// Both ends disconnect at once.
func TestDisconnectCrossing(t *testing.T) {
	w := newWorld(t)
	var p *Conn
	program := w.program[w.b]
	w.program[w.b] = func(e Event) { p = e.Conn; program(e) }
	c := w.a.Connect(dial, localA, 0)
	w.run(0)
	w.trace = nil
	c.Disconnect(w.now)
	p.Disconnect(w.now)
	if p.Disconnect(w.now) {
		t.Error("disconnected twice")
	}
	w.run(time.Second)
	w.expect("0s a> DREQ", "0s b: Finished", "0s b> DREQ", "0s b> DREP", "0s a: Finished", "0s a> DREP")
	w.rest()
}

// The peer disconnects before its RTU has come.
func TestDisconnectBeforeRTU(t *testing.T) {
	w := newWorld(t, "RTU")
	c := w.a.Connect(dial, localA, 0)
	w.run(0)
	c.Disconnect(w.now)
	w.run(0)
	w.expect("0s a> REQ", "0s b: Requested", "0s b> REP", "0s a: Replied", "0s a> RTU LOST", "0s a> DREQ", "0s b: Disconnected", "0s b> DREP", "0s a: Finished")
	w.rest()
}

// What a REQ must say to be taken, and how the others are refused.
func TestRequestChecks(t *testing.T) {
	for _, c := range []struct {
		name   string
		at     []int // offset in the message, and the new byte
		reason fabric.RejectReason
	}{
		{"another port", []int{15, 0x45}, fabric.RejectBadServiceID},
		{"another port space", []int{13, 0x11}, fabric.RejectBadServiceID},
		{"another service prefix", []int{8, 1}, fabric.RejectBadServiceID},
		{"unreliable connection", []int{43, 17<<3 | 1<<1}, fabric.RejectTransport},
		{"remote GID", []int{87, 9}, fabric.RejectBadGID},
		{"local GID", []int{71, 9}, fabric.RejectBadGID},
		{"P_Key", []int{48, 0x80, 49, 1}, fabric.RejectBadGID},
		{"limited member", []int{48, 0x7f}, 0},
		{"path MTU too large", []int{50, 5 << 4}, fabric.RejectMTU},
		{"path MTU 0", []int{50, 0}, fabric.RejectMTU},
		{"path MTU smaller", []int{50, 1 << 4}, 0},
		{"QP 1", []int{32, 0, 33, 0, 34, 1}, fabric.RejectNoQP},
		{"IP header version", []int{140, 0x10}, fabric.RejectConsumer},
		{"IP version", []int{141, 0x60}, fabric.RejectConsumer},
		{"IP destination", []int{175, 9}, fabric.RejectConsumer},
		{"IP source", []int{159, 9}, 0},
		{"LIDs 0", []int{52, 0, 53, 0, 54, 0, 55, 0}, 0},
		{"hop limit 1", []int{93, 1}, 0},
		{"ACK timeout 0", []int{95, 0}, 0},
		{"CA GUID 0", []int{23, 0}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.program[w.b] = nil
			w.lose["REQ"] = true
			w.a.Connect(dial, localA, 0)
			w.run(0)
			b := w.last["REQ"]
			for i := 0; i < len(c.at); i += 2 {
				b[wire.MADHeader+c.at[i]] = byte(c.at[i+1])
			}
			w.trace = nil
			w.b.Receive(addrA, b, 0)
			_, _, answered := w.b.Next()
			e, event := w.b.Event()
			if c.reason == 0 {
				if answered || !event || e.Kind != Requested {
					t.Error("refused")
				}
				return
			}
			w.b.Receive(addrA, b, 0)
			_, out, _ := w.b.Next()
			mad, err := wire.ParseMAD(out)
			if err != nil || mad.Attr != wire.AttrREJ || event || w.b.Len() != 0 {
				t.Fatalf("%v, %v, event %v", mad.Attr, err, event)
			}
			r := wire.ParseREJ(mad.Body)
			if fabric.RejectReason(r.Reason) != c.reason || r.LocalComm != 0 || r.RemoteComm != 0xa001 || r.About != wire.AboutREQ {
				t.Errorf("%+v", r)
			}
		})
	}
}

// Messages that belong to nothing.
func TestStrays(t *testing.T) {
	m := New(config(addrB, 0xb))
	send := func(a wire.AttrID, put func(b []byte)) (wire.MAD, bool) {
		b := make([]byte, wire.MADLen)
		put(wire.PutMAD(b, 99, a))
		m.Receive(addrA, b, 0)
		_, out, ok := m.Next()
		if !ok {
			return wire.MAD{}, false
		}
		mad, err := wire.ParseMAD(out)
		if err != nil {
			t.Fatal(err)
		}
		return mad, true
	}
	pair := func(b []byte) { (&wire.Pair{LocalComm: 5, RemoteComm: 6, RemoteQPN: 7}).Put(b) }
	if mad, ok := send(wire.AttrDREQ, pair); !ok || mad.Attr != wire.AttrDREP || mad.TID != 99 || wire.ParsePair(mad.Body) != (wire.Pair{LocalComm: 6, RemoteComm: 5}) {
		t.Errorf("stray DREQ: %v %v", mad.Attr, ok)
	}
	if mad, ok := send(wire.AttrREP, func(b []byte) { (&wire.REP{LocalComm: 5, RemoteComm: 6}).Put(b) }); !ok || mad.Attr != wire.AttrREJ || wire.ParseREJ(mad.Body).RemoteComm != 5 {
		t.Errorf("stray REP: %v %v", mad.Attr, ok)
	}
	for _, a := range []wire.AttrID{wire.AttrRTU, wire.AttrDREP, wire.AttrMRA, wire.AttrREJ, 0x19} {
		if mad, ok := send(a, pair); ok {
			t.Errorf("stray %v was answered with %v", a, mad.Attr)
		}
	}
	m.Receive(addrA, make([]byte, 100), 0)
	if m.Len() != 0 {
		t.Error("something is left")
	}
}

// A DREQ must name our QP, and come from the peer's address.
func TestForeignDisconnect(t *testing.T) {
	w := newWorld(t)
	var p *Conn
	program := w.program[w.b]
	w.program[w.b] = func(e Event) { p = e.Conn; program(e) }
	c := w.a.Connect(dial, localA, 0)
	w.run(0)
	b := make([]byte, wire.MADLen)
	(&wire.Pair{LocalComm: c.local, RemoteComm: p.local, RemoteQPN: 0x333}).Put(wire.PutMAD(b, 1, wire.AttrDREQ))
	w.b.Receive(addrA, b, 0)
	(&wire.Pair{LocalComm: c.local, RemoteComm: p.local, RemoteQPN: 0x222}).Put(wire.PutMAD(b, 1, wire.AttrDREQ))
	w.b.Receive(netip.MustParseAddr("10.9.0.3"), b, 0)
	if p.State() != Connected {
		t.Errorf("state %v", p.State())
	}
}

func TestMaxConns(t *testing.T) {
	w := newWorld(t)
	w.b.cfg.MaxConns = 1
	w.a.Connect(dial, localA, 0)
	second := localA
	second.QPN++
	w.a.Connect(dial, second, 0)
	w.run(time.Second)
	if last := w.trace[len(w.trace)-1]; !strings.Contains(strings.Join(w.trace, "\n"), "Rejected: connection rejected: no resources available (3)") {
		t.Error(last, w.trace)
	}
	w.a.cfg.MaxConns = 1
	if w.a.Connect(dial, localA, 0) != nil {
		t.Error("one too many")
	}
}
