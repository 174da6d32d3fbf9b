package cm

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
	"github.com/nvmf-go/nvmf/internal/captures"
)

// managementPackets are the datagrams to QP 1 of a capture.
func managementPackets(t testing.TB, name string) (ps []captures.Packet, mads []wire.MAD) {
	t.Helper()
	for _, p := range captures.RoCE(name) {
		var v wire.Packet
		if v.Parse(p.Payload) != nil || v.Op != wire.OpUDSendOnly || v.BTH.DestQP() != wire.GSIQP {
			continue
		}
		if mad, err := wire.ParseMAD(v.Payload); err == nil {
			p.Payload = v.Payload
			ps, mads = append(ps, p), append(mads, mad)
		}
	}
	return ps, mads
}

// A manager in the place of the kernel's target takes what the kernel's host
// sent to it: each request, and each end.
func TestCapturedHost(t *testing.T) {
	for _, name := range []string{captures.RoCEv2MTU1024, captures.RoCEv2MTU4096, captures.RoCEv2IPv6} {
		ps, mads := managementPackets(t, name)
		cfg := config(ps[0].Dst.Addr(), 0xb)
		cfg.MTU = func() wire.MTU { return wire.MTU4096 }
		m := New(cfg)
		conns := map[wire.CommID]*Conn{} // by the host's id
		var requests, ends int
		for i, p := range ps {
			now := p.Time.Sub(ps[0].Time)
			if p.Dst.Addr() != cfg.Addr {
				continue
			}
			b := bytes.Clone(p.Payload)
			body := b[wire.MADHeader:]
			switch mads[i].Attr {
			case wire.AttrRTU, wire.AttrDREQ, wire.AttrDREP:
				// They name the ids and QPs of the target that was there.
				pair := wire.ParsePair(body)
				c := conns[pair.LocalComm]
				if c == nil {
					t.Fatalf("%s frame %d: %v of an unknown connection", name, p.Frame, mads[i].Attr)
				}
				pair.RemoteComm, pair.RemoteQPN = c.local, c.LocalQPN()
				pair.Put(body)
			}
			m.Receive(p.Src.Addr(), b, now)
			for e, ok := m.Event(); ok; e, ok = m.Event() {
				switch e.Kind {
				case Requested:
					requests++
					conns[e.Conn.Request.LocalComm] = e.Conn
					checkLinuxRequest(t, name, e.Conn, p)
					e.Conn.Accept(Local{QPN: 0x100 + uint32(requests)}, now)
				case Disconnected:
					ends++
				}
			}
		}
		if requests < 2 || ends != requests {
			t.Errorf("%s: %d requests, %d ends", name, requests, ends)
		}
		m.Expire(time.Hour)
		if m.Len() != 0 {
			t.Errorf("%s: %d connections are left", name, m.Len())
		}
	}
}

// checkLinuxRequest holds a request of the kernel's NVMe host against what is
// known of it.
func checkLinuxRequest(t *testing.T, name string, c *Conn, p captures.Packet) {
	t.Helper()
	r := &c.Request
	if c.Port != 4420 || c.Source.Addr() != p.Src.Addr() || r.ResponderRes != 128 || r.InitiatorDepth != 0 || r.RetryCount != 7 || r.RNRRetry != 7 || r.AckTimeout != 19 {
		t.Errorf("%s: port %d from %v, %+v", name, c.Port, c.Source, *r)
	}
}

// What we send as the active side is, but for ids and numbers, what the
// kernel's host sends.
func TestRequestLikeLinux(t *testing.T) {
	ps, mads := managementPackets(t, captures.RoCEv2MTU1024)
	if mads[0].Attr != wire.AttrREQ {
		t.Fatal(mads[0].Attr)
	}
	linux := wire.ParseREQ(mads[0].Body)
	h, err := wire.ParseCMA(linux.Private)
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{Addr: ps[0].Src.Addr(), GUID: linux.CAGUID, FirstComm: linux.LocalComm - 1})
	m.Connect(Dial{Peer: ps[0].Dst.Addr(), Source: h.Src, Port: 4420, MTU: linux.PathMTU}, Local{
		QPN: linux.QPN, StartPSN: linux.StartPSN, IRD: linux.ResponderRes, RetryCount: 7, RNRRetry: 7,
		AckTimeout: linux.AckTimeout, Private: linux.Private[wire.CMAHeaderLen:],
	}, 0)
	_, b, _ := m.Next()
	got, want := bytes.Clone(b), bytes.Clone(ps[0].Payload)
	copy(got[8:16], want[8:16])                                 // transaction
	got[wire.MADHeader+43] = want[wire.MADHeader+43]            // our times are shorter
	got[wire.MADHeader+47] = want[wire.MADHeader+47]            //
	got[wire.MADHeader+51] = want[wire.MADHeader+51]            //
	copy(got[wire.MADHeader+88:][:4], want[wire.MADHeader+88:]) // flow label
	if !bytes.Equal(got, want) {
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("byte %d of the message is 0x%02x, the kernel sends 0x%02x", i-wire.MADHeader, got[i], want[i])
			}
		}
	}
}

// FuzzManager gives a manager sequences of messages, some of them mangled.
func FuzzManager(f *testing.F) {
	ps, mads := managementPackets(f, captures.RoCEv2MTU1024)
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 200, 0, 0, 0})
	f.Add([]byte{3, 10, 43, 9, 4, 0, 0, 0, 250, 0, 0, 0, 5, 0, 7, 255, 201, 0, 0, 0})
	f.Fuzz(func(t *testing.T, input []byte) {
		cfg := config(addrB, 0xb)
		cfg.Addr, cfg.MaxConns = ps[0].Dst.Addr(), 4
		m := New(cfg)
		src := ps[0].Src.Addr()
		var conns []*Conn
		var now time.Duration
		for ; len(input) >= 4; input = input[4:] {
			what, a, at, v := input[0], input[1], int(input[2]), input[3]
			now += time.Duration(a) * 10 * time.Millisecond
			switch {
			case what < 200:
				b := make([]byte, wire.MADLen)
				mad := mads[int(what)%len(mads)]
				copy(wire.PutMAD(b, 1, mad.Attr), mad.Body)
				b[at] ^= v
				if a&1 != 0 && len(conns) > 0 { // name our id
					c := conns[int(a)%len(conns)]
					binary.BigEndian.PutUint32(b[wire.MADHeader+4:], uint32(c.local))
				}
				m.Receive(src, b, now)
			case what < 210 && len(conns) > 0:
				conns[at%len(conns)].Accept(Local{QPN: uint32(v)}, now)
			case what < 220 && len(conns) > 0:
				conns[at%len(conns)].Reject(fabric.RejectReason(v), nil)
			case what < 230 && len(conns) > 0:
				conns[at%len(conns)].Disconnect(now)
			case what < 240:
				if c := m.Connect(Dial{Peer: src, Source: netip.AddrPortFrom(cfg.Addr, 1)}, Local{}, now); c != nil {
					conns = append(conns, c)
				}
			case what < 250 && len(conns) > 0:
				conns[at%len(conns)].Ready()
			default:
				m.Expire(now)
			}
			for e, ok := m.Event(); ok; e, ok = m.Event() {
				if e.Kind == Requested {
					conns = append(conns, e.Conn)
				}
			}
			for _, b, ok := m.Next(); ok; _, b, ok = m.Next() {
				if _, err := wire.ParseMAD(b); err != nil {
					t.Fatal(err)
				}
			}
			if m.Len() > cfg.MaxConns {
				t.Fatalf("%d connections", m.Len())
			}
		}
	})
}
