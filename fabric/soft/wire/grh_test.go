package wire

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

// IP headers of a kernel's rxe.
const (
	kernelIPv4 = "45000030aca94000401179ff0a0900020a090001"
	kernelIPv6 = "60000000001c1140fd090000000000000000000000000002fd090000000000000000000000000001"
)

func TestGRH(t *testing.T) {
	for _, c := range []struct {
		name, header string
		info         IPInfo
	}{
		{"IPv4", kernelIPv4, IPInfo{Src: netip.MustParseAddr("10.9.0.2"), Dst: netip.MustParseAddr("10.9.0.1"), Len: 28, HopLimit: 64, ID: 0xaca9}},
		{"IPv6", kernelIPv6, IPInfo{Src: netip.MustParseAddr("fd09::2"), Dst: netip.MustParseAddr("fd09::1"), Len: 28, HopLimit: 64}},
	} {
		t.Run(c.name, func(t *testing.T) {
			header := unhex(t, c.header)
			want := append(make([]byte, GRHLen-len(header)), header...)
			got := bytes.Repeat([]byte{0xaa}, GRHLen+1)
			PutGRH(got, &c.info)
			if !bytes.Equal(got[:GRHLen], want) || got[GRHLen] != 0xaa {
				t.Errorf("\n got %x\nwant %x", got, want)
			}
			src, dst, ok := fabric.ParseGRH(got)
			if !ok || src != c.info.Src || dst != c.info.Dst {
				t.Errorf("ParseGRH: %v %v %v", src, dst, ok)
			}
			// Where the other form would be is of no meaning.
			if c.name == "IPv4" {
				copy(got, bytes.Repeat([]byte{0x66}, 20))
				if src, _, ok := fabric.ParseGRH(got); !ok || src != c.info.Src {
					t.Errorf("with a first part like IPv6: %v %v", src, ok)
				}
				copy(got, make([]byte, 20))
				got[30], got[31] = 0, 0
				if src, _, ok := fabric.ParseGRH(got); !ok || src != c.info.Src {
					t.Errorf("without a checksum: %v %v", src, ok)
				}
				got[20] = 0x46
			} else {
				got[0] = 0x45
			}
			if src, dst, ok := fabric.ParseGRH(got); ok {
				t.Errorf("damaged, but %v %v", src, dst)
			}
			if _, _, ok := fabric.ParseGRH(want[:GRHLen-1]); ok {
				t.Error("39 bytes are enough")
			}
		})
	}
}

// Classes are where the receiver of a packet finds them.
func TestGRHClass(t *testing.T) {
	b := make([]byte, GRHLen)
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	if PutGRH(b, &IPInfo{Src: four, Dst: four, Class: 0xb9, Len: 100}); b[21] != 0xb9 || b[28] != 0 {
		t.Errorf("%x", b)
	}
	if PutGRH(b, &IPInfo{Src: six, Dst: six, Class: 0xb9, Len: 100}); b[0] != 0x6b || b[1] != 0x90 || b[5] != 100 {
		t.Errorf("%x", b)
	}
}
