package wire

import (
	"testing"
	"time"
)

func TestRNRTimes(t *testing.T) {
	for code, want := range map[uint8]time.Duration{
		0:  655360 * time.Microsecond,
		1:  10 * time.Microsecond,
		12: 640 * time.Microsecond,
		14: 1280 * time.Microsecond,
		20: 10240 * time.Microsecond,
		31: 491520 * time.Microsecond,
	} {
		if got := RNRTime(code); got != want {
			t.Errorf("code %d: %v, want %v", code, got, want)
		}
		if got := (RNRNak | Syndrome(code)).RNRTime(); got != want {
			t.Errorf("syndrome of %d: %v", code, got)
		}
	}
	for d, want := range map[time.Duration]uint8{
		0: 1, 10 * time.Microsecond: 1, 11 * time.Microsecond: 2, time.Millisecond: 14,
		491520 * time.Microsecond: 31, 500 * time.Millisecond: 0, time.Hour: 0,
	} {
		if got := RNRCode(d); got != want {
			t.Errorf("RNRCode(%v) = %d, want %d", d, got, want)
		}
	}
}

func TestAckTimeout(t *testing.T) {
	for c, want := range map[uint8]time.Duration{
		0: 0, 1: 8192 * time.Nanosecond, 14: 67108864 * time.Nanosecond, 19: 2147483648 * time.Nanosecond, 32: 0,
	} {
		if got := AckTimeout(c); got != want {
			t.Errorf("AckTimeout(%d) = %v, want %v", c, got, want)
		}
	}
}

func TestSyndrome(t *testing.T) {
	for _, c := range []struct {
		s             Syndrome
		ack, rnr, nak bool
		text          string
	}{
		{0x00, true, false, false, "ACK"},
		{0x1f, true, false, false, "ACK"},
		{0x2e, false, true, false, "RNR NAK 1.28ms"},
		{0x60, false, false, true, "NAK sequence error"},
		{0x61, false, false, true, "NAK invalid request"},
		{0x62, false, false, true, "NAK remote access error"},
		{0x63, false, false, true, "NAK remote operational error"},
		{0x64, false, false, true, "NAK invalid RD request"},
		{0x65, false, false, true, "syndrome 0x65"},
		{0x40, false, false, false, "syndrome 0x40"},
		{0x9f, false, false, false, "syndrome 0x9f"},
	} {
		if c.s.IsAck() != c.ack || c.s.IsRNR() != c.rnr || c.s.IsNak() != c.nak || c.s.String() != c.text {
			t.Errorf("0x%02x: %v %v %v %q", uint8(c.s), c.s.IsAck(), c.s.IsRNR(), c.s.IsNak(), c.s)
		}
	}
}

func TestMTU(t *testing.T) {
	for _, c := range []struct {
		ip   int
		v6   bool
		want MTU
	}{
		{1500, false, MTU1024}, {1500, true, MTU1024}, {9000, false, MTU4096}, {65536, false, MTU4096},
		{4096 + 72, false, MTU4096}, {4096 + 71, false, MTU2048}, {4096 + 72, true, MTU2048}, {4096 + 92, true, MTU4096},
		{328, false, MTU256}, {327, false, 0}, {0, false, 0},
	} {
		if got := MTUFor(c.ip, c.v6); got != c.want {
			t.Errorf("MTUFor(%d, %v) = %v, want %v", c.ip, c.v6, got, c.want)
		}
	}
	for n, want := range map[int]MTU{0: 0, 255: 0, 256: MTU256, 4095: MTU2048, 4096: MTU4096, 1 << 20: MTU4096} {
		if got := MTUOf(n); got != want {
			t.Errorf("MTUOf(%d) = %v", n, got)
		}
	}
	if MTU(0).Bytes() != 0 || MTU(6).Valid() || MTU4096.Bytes() != 4096 || MTU256.Bytes() != 256 || MTU(9).String() != "MTU(9)" || MTU512.String() != "512" {
		t.Error("MTU")
	}
}
