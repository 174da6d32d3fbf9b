package nvme

import (
	"encoding"
	"encoding/json"
	"strings"
	"testing"
)

func TestIdentifiers(t *testing.T) {
	const uuid, hex32, hex16 = "7e13c854-b746-437e-b369-680c2fef14b4", "00112233445566778899aabbccddeeff", "0011223344556677"
	for _, c := range []struct {
		text string
		v    interface {
			encoding.TextMarshaler
			encoding.TextUnmarshaler
			String() string
			IsZero() bool
		}
	}{
		{uuid, new(UUID)}, {uuid, new(HostID)}, {hex32, new(NGUID)}, {hex16, new(EUI64)},
	} {
		if !c.v.IsZero() {
			t.Errorf("%T: not zero", c.v)
		}
		if err := c.v.UnmarshalText([]byte(strings.ToUpper(c.text))); err != nil {
			t.Errorf("%T: %v", c.v, err)
		}
		text, err := c.v.MarshalText()
		if string(text) != c.text || c.v.String() != c.text || err != nil || c.v.IsZero() {
			t.Errorf("%T: %q %q %v", c.v, text, c.v, err)
		}
		for _, bad := range []string{"", c.text[1:], c.text + "0", "x" + c.text[1:], c.text[:len(c.text)-1] + "g", strings.Replace(c.text, "-", "0", 1) + "é"} {
			if err := c.v.UnmarshalText([]byte(bad)); err == nil {
				t.Errorf("%T: took %q", c.v, bad)
			}
		}
	}
}

// TestUUIDBytes: the bytes are in the order of the text.
func TestUUIDBytes(t *testing.T) {
	u, err := ParseUUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range u {
		if int(b) != i {
			t.Errorf("byte %d is %#x", i, b)
		}
	}
}

func TestUint128(t *testing.T) {
	for _, c := range []struct {
		u    Uint128
		want string
	}{
		{Uint128{}, "0"},
		{Uint128Of(1234567), "1234567"},
		{Uint128{0, 1}, "18446744073709551616"},
		{Uint128{^uint64(0), ^uint64(0)}, "340282366920938463463374607431768211455"},
	} {
		if c.u.String() != c.want {
			t.Errorf("%v, want %s", c.u, c.want)
		}
		if j, err := json.Marshal(c.u); string(j) != c.want || err != nil {
			t.Errorf("%s %v", j, err)
		}
	}
	carry := Uint128Of(^uint64(0)).Add(1)
	if carry != (Uint128{0, 1}) || carry.Add(5) != (Uint128{5, 1}) || carry.Float64() != 1<<64 {
		t.Errorf("%v %v", carry, carry.Float64())
	}
	top := Uint128{^uint64(0), ^uint64(0)}
	if top.Add(1) != top {
		t.Error("wrapped")
	}
	b := make([]byte, 16)
	u128(layout{b, true}, 0, &Uint128{0x0807060504030201, 0x100F0E0D0C0B0A09})
	for i := range b {
		if int(b[i]) != i+1 {
			t.Fatalf("%x", b)
		}
	}
}
