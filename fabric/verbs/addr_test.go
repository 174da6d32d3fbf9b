//go:build linux && cgo && !nordma

package verbs

import (
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

func TestSockaddr(t *testing.T) {
	for _, c := range []struct{ addr, hex, back string }{
		{"10.9.0.1:4420", "02001144" + "0a090001" + "0000000000000000000000000000000000000000", ""},
		{"[::ffff:10.9.0.1]:4420", "02001144" + "0a090001" + "0000000000000000000000000000000000000000", "10.9.0.1:4420"},
		{"0.0.0.0:0", "02000000000000000000000000000000000000000000000000000000", ""},
		{"[fd09::1]:4420", "0a001144" + "00000000" + "fd090000000000000000000000000001" + "00000000", ""},
		{"[::]:1", "0a000001" + "00000000" + "00000000000000000000000000000000" + "00000000", ""},
		{"[fe80::1%lo]:2", "0a000002" + "00000000" + "fe800000000000000000000000000001" + "01000000", ""},
		{"[fe80::1%1]:2", "0a000002" + "00000000" + "fe800000000000000000000000000001" + "01000000", "[fe80::1%lo]:2"},
		{"[fe80::1%4000000]:2", "0a000002" + "00000000" + "fe800000000000000000000000000001" + "00093d00", ""},
	} {
		sa, err := encodeAddr(netip.MustParseAddrPort(c.addr))
		if err != nil {
			t.Errorf("%s: %v", c.addr, err)
			continue
		}
		if got := hex.EncodeToString(sa[:]); got != c.hex {
			t.Errorf("%s: %s, want %s", c.addr, got, c.hex)
		}
		want := c.addr
		if c.back != "" {
			want = c.back
		}
		if got := decodeAddr(sa).String(); got != want {
			t.Errorf("%s came back as %s, want %s", c.addr, got, want)
		}
	}
	if got := decodeAddr(sockaddr{}); got.IsValid() {
		t.Errorf("no family: %v", got)
	}
}

func TestSockaddrRefuses(t *testing.T) {
	for _, a := range []netip.AddrPort{
		{},
		netip.MustParseAddrPort("[fe80::1]:4420"),
		netip.MustParseAddrPort("[fe80::1%absent0]:4420"),
	} {
		if _, err := encodeAddr(a); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("%v: %v", a, err)
		}
	}
}

func TestHasAddr(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fe80::1%lo")}
	for a, want := range map[string]bool{
		"10.9.0.1": true, "::ffff:10.9.0.1": true, "10.9.0.2": false,
		"fe80::1%lo": true, "fe80::1%1": true, "fe80::1": false, "fe80::1%2": false,
	} {
		if got := hasAddr(addrs, netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v, want %v", a, got, want)
		}
	}
}

func TestSourceOf(t *testing.T) {
	a, err := sourceOf(netip.MustParseAddr("127.0.0.1"))
	if err != nil || a != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("%v, %v", a, err)
	}
}

func TestGUID(t *testing.T) {
	mac, _ := net.ParseMAC("52:54:00:12:34:56")
	if g := guidOf(mac); g != 0x505400fffe123456 {
		t.Errorf("%#x", g)
	}
	if g := guidOf(nil); g != 0 {
		t.Errorf("no MAC: %#x", g)
	}
}
