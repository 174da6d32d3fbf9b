package nvme

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestParseNQN(t *testing.T) {
	long := "nqn.2014-08.com.example:" + strings.Repeat("x", MaxNQN-24)
	for _, s := range []string{
		"nqn.2014-08.com.example:nvme:nvm-subsystem-sn-d78432",
		"nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
		"nqn.2014-08.org.nvmexpress.discovery",
		"nqn.2026-11.io.nvmf:disk0",
		"nqn.2026-12.io:x",
		"nqn.2026-01.a-b.c9.d:größe, spaces and:colons",
		long,
	} {
		if n, err := ParseNQN(s); err != nil || string(n) != s {
			t.Errorf("%q: %q, %v", s, n, err)
		}
	}
	for s, want := range map[string]error{
		"":                     ErrNQNEmpty,
		long + "x":             ErrNQNTooLong,
		"nqn.2026-11.io:\xff":  ErrNQNText,
		"nqn.2026-11.io:a\nb":  ErrNQNText,
		"nqn.2026-11.io:a\x00": ErrNQNText,
		"nqn.2026-11.io:\x7f":  ErrNQNText,
		"t1":                   ErrNQNForm,
		"nqn.":                 ErrNQNForm,
		"nqn.2026-11":          ErrNQNForm,
		"nqn.2026-11.":         ErrNQNForm,
		"nqn.2026-11.io":       ErrNQNForm,
		"nqn.2026-11.io:":      ErrNQNForm,
		"nqn.2026-11.:x":       ErrNQNForm,
		"nqn.2026-11io:x":      ErrNQNForm,
		"nqn.2026-13.io:x":     ErrNQNForm,
		"nqn.2026-00.io:x":     ErrNQNForm,
		"nqn.2026/11.io:x":     ErrNQNForm,
		"nqn.20x6-11.io:x":     ErrNQNForm,
		"nqn.2026-11.io..a:x":  ErrNQNForm,
		"nqn.2026-11.-io:x":    ErrNQNForm,
		"nqn.2026-11.io-:x":    ErrNQNForm,
		"nqn.2026-11.i_o:x":    ErrNQNForm,
		"nqn.2026-11.9io:x":    ErrNQNForm,
		"NQN.2026-11.io:x":     ErrNQNForm,
		"iqn.2026-11.io:x":     ErrNQNForm,
		"nqn.2026-11." + strings.Repeat("a", 64) + ":x":                        ErrNQNForm,
		"nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf":  ErrNQNForm,
		"nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bfg": ErrNQNForm,
		"nqn.2014-08.org.nvmexpress:uuid:":                                     ErrNQNForm,
	} {
		if n, err := ParseNQN(s); !errors.Is(err, want) || n != "" {
			t.Errorf("%q: %q, %v, want %v", s, n, err, want)
		} else if len(err.Error()) > 4*MaxNQN+100 {
			t.Errorf("%d bytes of error", len(err.Error()))
		}
	}
}

func TestUUIDNQN(t *testing.T) {
	u := UUID{0xF8, 0x1D, 0x4F, 0xAE, 0x7D, 0xEC, 0x11, 0xD0, 0xA7, 0x65, 0, 0xA0, 0xC9, 0x1E, 0x6B, 0xF6}
	n := UUIDNQN(u)
	if n != "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6" {
		t.Errorf("%q", n)
	}
	if back, ok := n.UUID(); !ok || back != u {
		t.Errorf("%v %v", back, ok)
	}
	if _, ok := DiscoveryNQN.UUID(); ok || !DiscoveryNQN.IsDiscovery() || n.IsDiscovery() {
		t.Error("discovery")
	}
}

// field makes the 256 bytes that carry s.
func field(s string) []byte { return append([]byte(s), make([]byte, NQNFieldSize-len(s))...) }

func TestDecodeNQN(t *testing.T) {
	for _, s := range []string{"t1", "x", strings.Repeat("a", MaxNQN), string(DiscoveryNQN)} {
		b := field(s)
		b[NQNFieldSize-1] = 'z' // behind the NUL: ignored
		if n, err := DecodeNQN(b); err != nil || string(n) != s {
			t.Errorf("%q: %q, %v", s, n, err)
		}
	}
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", field(""), ErrNQNEmpty},
		{"unterminated", bytes.Repeat([]byte("A"), NQNFieldSize), ErrNQNUnterminated},
		{"224 bytes", field(strings.Repeat("A", MaxNQN+1)), ErrNQNTooLong},
		{"255 bytes", field(strings.Repeat("A", NQNFieldSize-1)), ErrNQNTooLong},
		{"not UTF-8", field("nqn.\xC3"), ErrNQNText},
		{"escape", field("nqn.\x1b[2J"), ErrNQNText},
	} {
		if n, err := DecodeNQN(c.b); !errors.Is(err, c.want) || n != "" {
			t.Errorf("%s: %q, %v, want %v", c.name, n, err, c.want)
		}
	}
	var le *LengthError
	if _, err := DecodeNQN(make([]byte, 255)); !errors.As(err, &le) {
		t.Errorf("255 bytes: %v", err)
	}
}

func TestPutNQN(t *testing.T) {
	b := bytes.Repeat([]byte{0xFF}, NQNFieldSize)
	PutNQN(b, "t1")
	if !bytes.Equal(b, field("t1")) {
		t.Errorf("%q", b)
	}
	PutNQN(b, NQN(strings.Repeat("x", 300)))
	if n, err := DecodeNQN(b); err != nil || len(n) != MaxNQN {
		t.Errorf("%d bytes, %v", len(n), err)
	}
}

func TestText(t *testing.T) {
	b := make([]byte, 8)
	for s, want := range map[string]string{
		"": "        ", "Linux": "Linux   ", "12345678": "12345678", "123456789": "12345678", "a\x00b\x1bc\xC3": "a?b?c?  ",
	} {
		PutText(b, s)
		if string(b) != want {
			t.Errorf("%q: %q, want %q", s, b, want)
		}
	}
	for s, want := range map[string]string{
		"        ": "", "Linux   ": "Linux", "4420\x00\x00\x00\x00": "4420", "a b  \x00x ": "a b",
		"\x1b[2Jx\xff ": "?[2Jx?", "\x00abc    ": "", " lead   ": " lead",
	} {
		if got := Text([]byte(s)); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}
