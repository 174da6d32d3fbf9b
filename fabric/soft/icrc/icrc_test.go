package icrc

import (
	"encoding/hex"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/internal/captures"
)

// Packets of a kernel's rxe, from the IP header on.
var kernelPackets = []string{
	"45000030aca94000401179ff0a0900020a090001f7f412b7001c00001100ffff00000011004905be1f000001e7aabec2",
	"4500003cacaa4000401179f20a0900020a090001f7f412b7002800000c00ffff00000011809bcad0ffff899f8362e400000003c200000400b4f63f95",
	"45000040acab4000401179ed0a0900020a090001f7f412b7002c00001700ffff00000011809bcad1000003c201000000000000000100000000000000e4b05e81",
	"60000000001c1140fd090000000000000000000000000002fd090000000000000000000000000001e83512b7001c00001100ffff0000001300656c1c1f00000193449166",
}

type ipPacket struct {
	flow Flow
	id   uint16
	b    []byte // BTH to ICRC
}

func split(t testing.TB, s string) ipPacket {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return splitIP(b)
}

func splitIP(b []byte) ipPacket {
	port := func(off int) uint16 { return uint16(b[off])<<8 | uint16(b[off+1]) }
	if b[0]>>4 == 6 {
		src, dst := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		return ipPacket{NewFlow(netip.AddrPortFrom(src, port(40)), netip.AddrPortFrom(dst, port(42))), 0, b[48:]}
	}
	src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	return ipPacket{NewFlow(netip.AddrPortFrom(src, port(20)), netip.AddrPortFrom(dst, port(22))), port(4), b[28:]}
}

func TestKernelPackets(t *testing.T) {
	for _, s := range kernelPackets {
		p := split(t, s)
		if d := p.flow.residue(p.b, p.id); d != 0 {
			t.Errorf("%.20s: ICRC off by %08x", s, d)
		}
		want := Get(p.b[len(p.b)-Len:])
		Put(p.b[len(p.b)-Len:], 0)
		p.flow.Seal(p.b, p.id)
		if got := Get(p.b[len(p.b)-Len:]); got != want {
			t.Errorf("%.20s: sealed with %08x, want %08x", s, got, want)
		}
	}
}

// The congestion marks are masked and left as they were.
func TestMarksDoNotCount(t *testing.T) {
	p := split(t, kernelPackets[0])
	p.b[resv8a] = 0x40
	if p.flow.residue(p.b, p.id) != 0 || p.b[resv8a] != 0x40 {
		t.Errorf("marks 0x%02x", p.b[resv8a])
	}
}

func flows() []Flow {
	return []Flow{
		NewFlow(netip.MustParseAddrPort("127.0.0.1:49152"), netip.MustParseAddrPort("127.0.0.2:4791")),
		NewFlow(netip.MustParseAddrPort("[::1]:49152"), netip.MustParseAddrPort("[fd00::2]:4791")),
	}
}

// packet makes a sealed packet of n bytes.
func packet(f Flow, n int, id uint16) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	f.Seal(b, id)
	return b
}

func TestStepsAgree(t *testing.T) {
	for _, f := range flows() {
		for _, n := range []int{16, 20, 64, 1052, 4128} {
			b := packet(f, n, 7)
			crc := Payload(Header(f.Seed(n, 7), b[:12]), b[12:n-Len])
			if crc != Get(b[n-Len:]) {
				t.Errorf("%d bytes: %08x in steps, %08x sealed", n, crc, Get(b[n-Len:]))
			}
		}
	}
}

// Every identification of a counting peer is recovered, wherever it starts.
func TestReceiverCounting(t *testing.T) {
	f := flows()[0]
	for _, start := range []uint16{0, 127, 128, 40000, 65500} {
		r := Receiver{Flow: f}
		now := time.Duration(0)
		for i := range 500 {
			if n := 16 + 4*rand.IntN(1000); !r.Check(packet(f, n, start+uint16(i)), 0, now) {
				t.Fatalf("start %d: packet %d refused", start, i)
			}
		}
	}
}

// A peer that begins each send at 0, with and without segmentation.
func TestReceiverSegments(t *testing.T) {
	f := flows()[0]
	r := Receiver{Flow: f}
	for range 20 {
		for i := range 1 + rand.IntN(64) {
			if !r.Check(packet(f, 4112, uint16(i)), i, 0) {
				t.Fatalf("segment %d refused", i)
			}
		}
	}
}

func TestReceiverWithoutDF(t *testing.T) {
	f := flows()[0]
	sender := f
	sender.seed ^= fragmentEffect
	r := Receiver{Flow: f}
	for i := range 20 {
		if !r.Check(packet(sender, 100, 30000+uint16(i)), 0, 0) {
			t.Fatalf("packet %d refused", i)
		}
	}
	if r.Flow != sender {
		t.Error("the missing bit was not remembered")
	}
}

func TestReceiverJumps(t *testing.T) {
	f := flows()[0]
	now := 100 * time.Second
	r := Receiver{Flow: f}
	check := func(name string, id uint16, want bool) {
		t.Helper()
		if got := r.Check(packet(f, 60, id), 0, now); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	check("the first is believed", 30000, true)
	check("lost packets", 30200, true)
	check("reordered", 30190, true)
	check("the order goes on", 30201, true)
	check("a jump is not believed", 40000, false)
	check("nor another", 50000, false)
	check("but the successor of one is", 50001, true)
	check("from there on", 50002, true)
	now += 10 * time.Second
	check("a pause makes Linux jump by up to a tick each", 58000, true)
	check("a restart of the peer", 0, true)
}

func TestReceiverV6(t *testing.T) {
	f := flows()[1]
	r := Receiver{Flow: f}
	b := packet(f, 100, 0)
	if !r.Check(b, 0, 0) {
		t.Error("refused")
	}
	b[50] ^= 1
	if r.Check(b, 0, 0) {
		t.Error("a flipped bit was not seen")
	}
}

// Flipped bits are seen: each single one, and random damage once the peer's
// counting is known.
func TestReceiverCorruption(t *testing.T) {
	f := flows()[0]
	r := Receiver{Flow: f}
	now := time.Duration(0)
	if !r.Check(packet(f, 60, 30000), 0, now) {
		t.Fatal("refused")
	}
	good := packet(f, 1052, 30001)
	for bit := range 8 * len(good) {
		if bit/8 == resv8a {
			continue
		}
		good[bit/8] ^= 1 << (bit % 8)
		if r.Check(good, 0, now) {
			t.Fatalf("bit %d", bit)
		}
		good[bit/8] ^= 1 << (bit % 8)
	}
	r = Receiver{Flow: f}
	r.Check(packet(f, 60, 30000), 0, now)
	missed := 0
	b := packet(f, 256, 30001)
	for range 100000 {
		copy(b[100+rand.IntN(100):], []byte{byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32())})
		if r.Check(b, 0, now) {
			missed++
		}
	}
	if missed > 3 { // expected 0.01
		t.Errorf("%d of 100000 damaged packets passed", missed)
	}
}

func TestPow(t *testing.T) {
	if pow(0) != one || pow(8) != x8 || pow(order) != one {
		t.Errorf("x^0 %08x, x^8 %08x, x^order %08x", pow(0), pow(8), pow(order))
	}
	if got := mul(pow(1000), pow(order-1000)); got != one {
		t.Errorf("x^1000 times its inverse is %08x", got)
	}
	b := []byte{0x5a, 0, 0, 0}
	if got, want := mul(pow(32), 0x5a), linear(b); got != want {
		t.Errorf("one byte and three zeros: %08x, want %08x", got, want)
	}
}

func TestNoAllocation(t *testing.T) {
	f := flows()[0]
	r := Receiver{Flow: f}
	b := packet(f, 4112, 30000)
	now := time.Duration(0)
	if n := testing.AllocsPerRun(100, func() {
		f.Seal(b, 30000)
		if !r.Check(b, 0, now) {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzReceiver(f *testing.F) {
	for _, s := range kernelPackets {
		p := split(f, s)
		f.Add(p.b, uint8(0))
	}
	f.Fuzz(func(t *testing.T, b []byte, index uint8) {
		if len(b) < 16 {
			return
		}
		for _, fl := range flows() {
			r := Receiver{Flow: fl}
			r.Check(b, int(index), 0)
			fl.Seal(b, uint16(index))
			if !r.Check(b, int(index), 0) {
				t.Fatal("a sealed packet is refused")
			}
		}
	})
}

// Every length, by whatever the processor has, is the CRC of the standard library.
func TestUpdate(t *testing.T) {
	b := make([]byte, 20000)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	for n := range 4500 {
		off := rand.IntN(100)
		crc := rand.Uint32()
		if got, want := update(crc, b[off:off+n]), crc32.Update(crc, crc32.IEEETable, b[off:off+n]); got != want {
			t.Fatalf("%d bytes: %08x, want %08x", n, got, want)
		}
	}
	if got, want := update(0, b), crc32.ChecksumIEEE(b); got != want {
		t.Fatalf("%08x, want %08x", got, want)
	}
}

func FuzzUpdate(f *testing.F) {
	f.Add(make([]byte, 600), uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, crc uint32) {
		if got, want := update(crc, b), crc32.Update(crc, crc32.IEEETable, b); got != want {
			t.Fatalf("%d bytes: %08x, want %08x", len(b), got, want)
		}
	})
}

func BenchmarkSeal(b *testing.B) {
	f := flows()[0]
	for _, n := range []int{20, 4112} {
		p := packet(f, n, 0)
		b.Run(map[int]string{20: "ack", 4112: "4k"}[n], func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				f.Seal(p, 3)
			}
		})
	}
	b.Run("crc32 4k", func(b *testing.B) {
		p := packet(f, 4112, 0)
		b.SetBytes(4112)
		for b.Loop() {
			crc32.ChecksumIEEE(p)
		}
	})
	b.Run("solve", func(b *testing.B) {
		r := Receiver{Flow: f}
		p := packet(f, 20, 0)
		i := uint16(200)
		for b.Loop() {
			i += 5
			f.Seal(p, i)
			r.Check(p, 0, 0)
		}
	})
}

// Every packet of every capture, in order of each flow: the ICRC is that of
// the kernel, and a receiver that does not see the identification finds it.
func TestCaptures(t *testing.T) {
	checked := 0
	for _, name := range captures.Names() {
		receivers := map[Flow]*Receiver{}
		for _, p := range captures.RoCE(name) {
			ip := splitIP(p.IP)
			if d := ip.flow.residue(ip.b, ip.id); d != 0 {
				t.Fatalf("%s frame %d: ICRC off by %08x", name, p.Frame, d)
			}
			r := receivers[ip.flow]
			if r == nil {
				r = &Receiver{Flow: ip.flow}
				receivers[ip.flow] = r
			}
			if !r.Check(ip.b, 0, time.Duration(p.Time.UnixNano())) {
				t.Errorf("%s frame %d: refused", name, p.Frame)
			}
			if !ip.flow.V6() && r.next != ip.id+1 {
				t.Errorf("%s frame %d: next is %d behind %d", name, p.Frame, r.next, ip.id)
			}
			checked++
		}
	}
	if checked < 1000 {
		t.Errorf("only %d packets", checked)
	}
}
