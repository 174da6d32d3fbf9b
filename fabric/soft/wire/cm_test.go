package wire

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var cmpAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func fill(n int, first byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

func TestREQ(t *testing.T) {
	want := REQ{
		LocalComm: 0x11223344, ServiceID: ServiceID(4420), CAGUID: 0x0102030405060708, QPN: 0xabcdef,
		ResponderRes: 128, InitiatorDepth: 16, RemoteCMTime: 20, Transport: 1, FlowControl: true, StartPSN: 0x9bcad0,
		LocalCMTime: 21, RetryCount: 7, PKey: 0xffff, PathMTU: MTU1024, RNRRetry: 6, MaxCMRetries: 15, SRQ: true,
		LocalGID: netip.MustParseAddr("10.9.0.1"), RemoteGID: netip.MustParseAddr("fd09::2"),
		FlowLabel: 0xabcde, Rate: 0x2b, TrafficClass: 0x68, HopLimit: 64, SubnetLocal: true, AckTimeout: 19,
		AltLID: 3, Private: fill(REQPrivateLen, 1),
	}
	b := make([]byte, MADLen)
	want.Put(PutMAD(b, 77, AttrREQ))
	m, err := ParseMAD(b)
	if err != nil || m.TID != 77 || m.Attr != AttrREQ || len(m.Body) != CMLen {
		t.Fatalf("%+v %v", m, err)
	}
	got := ParseREQ(m.Body)
	if d := cmp.Diff(want, got, cmpAddr); d != "" {
		t.Error(d)
	}
	// The bytes the fact sheet gives of a Linux host.
	for off, v := range map[int]byte{43: 0xa3, 47: 0xaf, 50: 0x36, 51: 0xf8, 95: 0x98, 52: 0xff, 55: 0xff} {
		if m.Body[off] != v {
			t.Errorf("byte %d is 0x%02x, want 0x%02x", off, m.Body[off], v)
		}
	}
}

func TestREP(t *testing.T) {
	want := REP{
		LocalComm: 1, RemoteComm: 2, QPN: 3, StartPSN: 4, ResponderRes: 5, InitiatorDepth: 6, TargetACKDelay: 15,
		Failover: 2, FlowControl: true, RNRRetry: 7, SRQ: true, CAGUID: 8, Private: fill(REPPrivateLen, 3),
	}
	b := make([]byte, CMLen)
	want.Put(b)
	if d := cmp.Diff(want, ParseREP(b)); d != "" {
		t.Error(d)
	}
	if b[26] != 15<<3|2<<1|1 || b[27] != 0xf0 {
		t.Errorf("bytes 26 and 27: %x", b[26:28])
	}
}

func TestREJ(t *testing.T) {
	want := REJ{LocalComm: 1, RemoteComm: 2, About: AboutREP, InfoLen: 72, Reason: 28, Info: fill(REJInfoLen, 9), Private: fill(REJPrivateLen, 5)}
	b := make([]byte, CMLen)
	want.Put(b)
	if d := cmp.Diff(want, ParseREJ(b)); d != "" {
		t.Error(d)
	}
}

func TestMRAAndPair(t *testing.T) {
	b := make([]byte, CMLen)
	mra := MRA{1, 2, AboutREQ, 24}
	mra.Put(b)
	if got := ParseMRA(b); got != mra {
		t.Errorf("%+v", got)
	}
	clear(b)
	pair := Pair{0xffffffff, 2, 0xfffffe}
	pair.Put(b)
	if got := ParsePair(b); got != pair {
		t.Errorf("%+v", got)
	}
}

func TestParseMADRefuses(t *testing.T) {
	good := make([]byte, MADLen)
	PutMAD(good, 1, AttrRTU)
	for _, c := range []struct {
		name string
		at   int
		v    byte
	}{{"base version", 0, 2}, {"class", 1, 3}, {"class version", 2, 1}, {"method", 3, 0x83}} {
		b := bytes.Clone(good)
		b[c.at] = c.v
		if _, err := ParseMAD(b); !errors.Is(err, ErrMADClass) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for _, n := range []int{0, 24, 255, 257} {
		if _, err := ParseMAD(make([]byte, n)); !errors.Is(err, ErrMADLength) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestCMAHeader(t *testing.T) {
	for _, h := range []CMAHeader{
		{netip.MustParseAddrPort("10.9.0.1:40000"), netip.MustParseAddr("10.9.0.2")},
		{netip.MustParseAddrPort("[fd09::1]:1"), netip.MustParseAddr("fd09::2")},
	} {
		b := fill(REQPrivateLen, 1)
		h.Put(b)
		if got, err := ParseCMA(b); err != nil || got != h {
			t.Errorf("%+v: %+v %v", h, got, err)
		}
		b[0] = 1
		if _, err := ParseCMA(b); !errors.Is(err, ErrCMAVersion) {
			t.Errorf("version 1: %v", err)
		}
		b[0], b[1] = 0, 0x50
		if _, err := ParseCMA(b); !errors.Is(err, ErrCMAFamily) {
			t.Errorf("IP version 5: %v", err)
		}
	}
	if port, ok := ServicePort(0x0000000001061144); port != 4420 || !ok {
		t.Error(port, ok)
	}
	if _, ok := ServicePort(0x0000000001111144); ok {
		t.Error("a UDP service is taken for TCP")
	}
}

func TestAttrNames(t *testing.T) {
	for a := AttrREQ; a <= AttrDREP; a++ {
		if a.String() == "unknown" {
			t.Errorf("0x%x has no name", uint16(a))
		}
	}
	if AttrID(0x19).String() != "unknown" {
		t.Error("0x19 has a name")
	}
}

func FuzzMAD(f *testing.F) {
	b := make([]byte, MADLen)
	for a := AttrREQ; a <= AttrDREP; a++ {
		PutMAD(b, 5, a)
		f.Add(bytes.Clone(b))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseMAD(b)
		if err != nil {
			return
		}
		out := make([]byte, MADLen)
		body := PutMAD(out, m.TID, m.Attr)
		switch m.Attr {
		case AttrREQ:
			r := ParseREQ(m.Body)
			_, _ = ParseCMA(r.Private)
			r.Put(body)
			if d := cmp.Diff(r, ParseREQ(body), cmpAddr); d != "" {
				t.Fatal(d)
			}
		case AttrREP:
			r := ParseREP(m.Body)
			r.Put(body)
			if d := cmp.Diff(r, ParseREP(body)); d != "" {
				t.Fatal(d)
			}
		case AttrREJ:
			r := ParseREJ(m.Body)
			r.Put(body)
			if d := cmp.Diff(r, ParseREJ(body)); d != "" {
				t.Fatal(d)
			}
		case AttrMRA:
			r := ParseMRA(m.Body)
			r.Put(body)
			if got := ParseMRA(body); got != r {
				t.Fatal(got, r)
			}
		default:
			r := ParsePair(m.Body)
			r.Put(body)
			if got := ParsePair(body); got != r {
				t.Fatal(got, r)
			}
		}
	})
}
