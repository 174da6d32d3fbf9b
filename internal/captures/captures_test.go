package captures

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"
)

// TestFrames: the counts are those of capinfos.
func TestFrames(t *testing.T) {
	want := map[string]int{
		RoCEv2MTU1024: 620, RoCEv2MTU4096: 265, RoCEv2IPv6: 267, RoCEv2UserInitiator: 331,
		RoCEv2UserTarget: 245, IWARP: 652, IWARPTerminate: 308, IWARPUserTarget: 507,
	}
	for _, name := range Names() {
		frames := Frames(name)
		if len(frames) != want[name] {
			t.Errorf("%s: %d frames, want %d", name, len(frames), want[name])
		}
		for i, f := range frames {
			if f.Len != len(f.Data) {
				t.Errorf("%s: frame %d has %d of %d bytes", name, i+1, len(f.Data), f.Len)
			}
		}
		delete(want, name)
	}
	if len(want) != 0 {
		t.Errorf("not in Names: %v", want)
	}
}

// TestRoCE: the counts are tshark's for "udp.dstport == 4791 && !icmp".
func TestRoCE(t *testing.T) {
	for _, c := range []struct {
		name  string
		count int
		v6    bool
	}{
		{RoCEv2MTU1024, 616, false}, {RoCEv2MTU4096, 261, false}, {RoCEv2IPv6, 261, true},
		{RoCEv2UserInitiator, 331, false}, {RoCEv2UserTarget, 224, false}, {IWARP, 0, false},
	} {
		ps := RoCE(c.name)
		if len(ps) != c.count {
			t.Errorf("%s: %d packets, want %d", c.name, len(ps), c.count)
		}
		for _, p := range ps {
			head := 28
			if c.v6 {
				head = 48
			}
			if p.Src.Addr().Is6() != c.v6 || len(p.IP) != head+len(p.Payload) || len(p.Payload) < 16 {
				t.Fatalf("%s: frame %d: %v to %v, %d bytes of IP, %d of payload",
					c.name, p.Frame, p.Src, p.Dst, len(p.IP), len(p.Payload))
			}
		}
	}
}

func TestConns(t *testing.T) {
	for _, name := range []string{IWARP, IWARPTerminate, IWARPUserTarget} {
		conns := Conns(name)
		if len(conns) < 2 {
			t.Fatalf("%s: %d connections", name, len(conns))
		}
		for i, c := range conns {
			if c.Gaps {
				t.Errorf("%s: connection %d has gaps", name, i)
			}
			if c.Server.Port() != PortNVMe {
				t.Errorf("%s: connection %d goes to %v", name, i, c.Server)
			}
			if !bytes.HasPrefix(c.FromClient, []byte("MPA ID Req Frame")) {
				t.Errorf("%s: connection %d of %v begins with %.20q", name, i, c.Client, c.FromClient)
			}
			if len(c.FromServer) > 0 && !bytes.HasPrefix(c.FromServer, []byte("MPA ID Rep Frame")) {
				t.Errorf("%s: connection %d is answered %.20q", name, i, c.FromServer)
			}
		}
	}
}

func TestUnknownName(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	Frames("nothing")
}

// file makes a pcap of one frame.
func file(order binary.ByteOrder, magic, link, sec, frac, captured, length uint32, data []byte) []byte {
	b := make([]byte, 40, 40+len(data))
	order.PutUint32(b, magic)
	order.PutUint16(b[4:], 2)
	order.PutUint16(b[6:], 4)
	order.PutUint32(b[16:], 65535)
	order.PutUint32(b[20:], link)
	order.PutUint32(b[24:], sec)
	order.PutUint32(b[28:], frac)
	order.PutUint32(b[32:], captured)
	order.PutUint32(b[36:], length)
	return append(b, data...)
}

func TestReadFormats(t *testing.T) {
	data := []byte{1, 2, 3}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		for magic, unit := range map[uint32]time.Duration{magicMicro: time.Microsecond, magicNano: time.Nanosecond} {
			frames, err := Read(bytes.NewReader(file(order, magic, 1, 7, 9, 3, 5, data)))
			if err != nil || len(frames) != 1 {
				t.Fatalf("%v %#x: %v, %v", order, magic, frames, err)
			}
			f := frames[0]
			if !f.Time.Equal(time.Unix(7, int64(9*unit))) || f.Len != 5 || !bytes.Equal(f.Data, data) {
				t.Errorf("%v %#x: %+v", order, magic, f)
			}
		}
	}
}

func TestReadErrors(t *testing.T) {
	le := binary.LittleEndian
	good := file(le, magicMicro, 1, 0, 0, 3, 3, []byte{1, 2, 3})
	for _, c := range []struct {
		name string
		b    []byte
		eof  bool
	}{
		{"empty", nil, false},
		{"short header", good[:20], true},
		{"magic", file(le, 0x0A0D0D0A, 1, 0, 0, 0, 0, nil), false},
		{"link type", file(le, magicMicro, 113, 0, 0, 0, 0, nil), false},
		{"more captured than sent", file(le, magicMicro, 1, 0, 0, 4, 3, make([]byte, 4)), false},
		{"huge", file(le, magicMicro, 1, 0, 0, 1<<30, 1<<30, nil), false},
		{"short record", good[:30], true},
		{"no data", good[:40], true},
		{"short data", good[:41], true},
	} {
		frames, err := Read(bytes.NewReader(c.b))
		if err == nil {
			t.Errorf("%s: read %d frames", c.name, len(frames))
		}
		if c.eof && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if frames, err := Read(bytes.NewReader(good[:24])); err != nil || len(frames) != 0 {
		t.Errorf("no records: %v, %v", frames, err)
	}
}

func tcp(from, to uint16, seq uint32, flags uint8, data string) Packet {
	at := netip.MustParseAddr("192.0.2.1")
	return Packet{
		Proto: ProtoTCP, Src: netip.AddrPortFrom(at, from), Dst: netip.AddrPortFrom(at, to),
		Seq: seq, Flags: flags, Payload: []byte(data),
	}
}

// TestAssemble reorders, repeats and reuses a port.
func TestAssemble(t *testing.T) {
	const c, s = 1000, 4420
	got := assemble([]Packet{
		tcp(c, s, 0xFFFFFFFE, SYN, ""),
		tcp(c, s, 0xFFFFFFFE, SYN, ""), // again
		tcp(s, c, 50, SYN|ACK, ""),
		tcp(c, s, 2, ACK, "defg"),
		tcp(c, s, 0xFFFFFFFF, ACK, "abc"), // sequence numbers wrap
		tcp(c, s, 1, ACK, "cdef"),         // again, cut otherwise
		tcp(s, c, 50, ACK, "?"),           // keep-alive probe
		tcp(s, c, 51, ACK, "xy"),
		tcp(2000, s, 9, ACK, "no SYN"),
		tcp(c, s, 700, SYN, ""),
		tcp(s, c, 90, SYN|ACK, ""),
		tcp(c, s, 702, ACK, "gap before"),
	})
	if len(got) != 2 {
		t.Fatalf("%d connections", len(got))
	}
	if a := got[0]; string(a.FromClient) != "abcdefg" || string(a.FromServer) != "xy" || a.Gaps || a.Server.Port() != s {
		t.Errorf("first: %+v", a)
	}
	if b := got[1]; len(b.FromClient) != 0 || !b.Gaps {
		t.Errorf("second: %+v", b)
	}
}

func TestParseVLAN(t *testing.T) {
	frame := RoCE(RoCEv2MTU1024)[0]
	tagged := append(make([]byte, 12, 200), 0x81, 0, 0, 5, 8, 0)
	p, ok := parse(append(tagged, frame.IP...))
	if !ok || !bytes.Equal(p.Payload, frame.Payload) || p.Src != frame.Src {
		t.Errorf("%v %+v", ok, p)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{RoCEv2MTU1024, RoCEv2IPv6, IWARP} {
		f.Add(Frames(name)[10].Data)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		p, ok := parse(frame)
		if ok && (len(p.Payload) > len(p.IP) || len(p.IP) > len(frame)) {
			t.Errorf("%d of %d of %d bytes", len(p.Payload), len(p.IP), len(frame))
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add(file(binary.LittleEndian, magicNano, 1, 1, 2, 3, 3, []byte{1, 2, 3}))
	f.Add(file(binary.BigEndian, magicMicro, 1, 1, 2, 3, 9, []byte{1, 2, 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		frames, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		n := 24
		for _, f := range frames {
			n += 16 + len(f.Data)
		}
		if n != len(b) {
			t.Errorf("%d bytes read of %d", n, len(b))
		}
	})
}
