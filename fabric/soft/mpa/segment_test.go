package mpa

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/nvmf-go/nvmf/internal/captures"
)

func TestFPDULen(t *testing.T) {
	for _, c := range [][3]int{{0, 2, 8}, {14, 0, 20}, {15, 3, 24}, {16, 2, 24}, {17, 1, 24}, {18, 0, 24}, {1442, 0, 1448}, {65535, 3, MaxFPDU}} {
		if Pad(c[0]) != c[1] || FPDULen(c[0]) != c[2] {
			t.Errorf("ULPDU of %d: pad %d, FPDU %d, want %d and %d", c[0], Pad(c[0]), FPDULen(c[0]), c[1], c[2])
		}
	}
	for _, c := range [][2]int{{1448, 1442}, {1455, 1442}, {1456, 1450}, {65483, 65474}, {70000, MaxULPDU}} {
		if got := ULPDUFor(c[0]); got != c[1] || FPDULen(got) > max(c[0], 0) {
			t.Errorf("ULPDU for %d: %d in an FPDU of %d, want %d", c[0], got, FPDULen(got), c[1])
		}
	}
}

// The FPDU of a Read Request out of a capture, CRC computed by hand.
func TestCRC(t *testing.T) {
	b := []byte("123456789") // the check value of CRC32C
	if got := CRC(b); got != 0xe3069283 {
		t.Errorf("CRC %#x", got)
	}
	fpdu := make([]byte, 20)
	h := Header{Op: OpWrite, Last: true, STag: 1}
	binary.BigEndian.PutUint16(fpdu, TaggedLen)
	h.Put(fpdu[LengthLen:])
	PutCRC(fpdu[16:], CRC(fpdu[:16]))
	if !CheckCRC(fpdu) {
		t.Error("a good CRC was refused")
	}
	for i := range fpdu {
		for bit := range 8 {
			fpdu[i] ^= 1 << bit
			if CheckCRC(fpdu) {
				t.Errorf("bit %d of byte %d flipped: not noticed", bit, i)
			}
			fpdu[i] ^= 1 << bit
		}
	}
	for n := range 6 {
		if CheckCRC(fpdu[:n]) {
			t.Errorf("%d bytes have a CRC", n)
		}
	}
}

// The control bytes as siw sends them.
func TestHeaderBytes(t *testing.T) {
	for _, c := range []struct {
		h    Header
		want string
	}{
		{Header{Op: OpWrite, Last: true, STag: 0x11223344, TO: 0x0102030405060708}, "c1 40 11223344 0102030405060708"},
		{Header{Op: OpWrite, STag: 1}, "81 40 00000001 0000000000000000"},
		{Header{Op: OpReadResponse, Last: true}, "c1 42 00000000 0000000000000000"},
		{Header{Op: OpReadRequest, Last: true, QN: 1, MSN: 7}, "41 41 00000000 00000001 00000007 00000000"},
		{Header{Op: OpSend, MSN: 3, MO: 0x5a4}, "01 43 00000000 00000000 00000003 000005a4"},
		{Header{Op: OpSendSEInv, Last: true, STag: 9, MSN: 1}, "41 46 00000009 00000000 00000001 00000000"},
		{Header{Op: OpTerminate, Last: true, QN: 2, MSN: 1}, "41 47 00000000 00000002 00000001 00000000"},
		{Header{Op: OpImmediate, Last: true, MSN: 2}, "41 48 00000000 00000000 00000002 00000000"},
		{Header{Op: OpAtomicResponse, Last: true, QN: 3, MSN: 2}, "41 4b 00000000 00000003 00000002 00000000"},
	} {
		want, b := unhex(t, c.want), make([]byte, UntaggedLen)
		n := c.h.Put(b)
		if !bytes.Equal(b[:n], want) || n != c.h.Len() {
			t.Errorf("%v: % x, want % x", c.h.Op, b[:n], want)
		}
		var got Header
		if cause := got.Parse(want); cause != 0 || got != c.h {
			t.Errorf("%v: parsed %+v, %v", c.h.Op, got, cause)
		}
	}
}

func TestHeaderErrors(t *testing.T) {
	for name, c := range map[string]struct {
		b    string
		want Cause
	}{
		"tagged version":       {"c2 40 00000000 0000000000000000", TaggedVersion},
		"untagged version":     {"40 43 00000000 00000000 00000001 00000000", UntaggedVersion},
		"RDMAP version":        {"41 83 00000000 00000000 00000001 00000000", RDMAPVersion},
		"RDMAP version 0":      {"c1 00 00000000 0000000000000000", RDMAPVersion},
		"unknown opcode":       {"41 4c 00000000 00000000 00000001 00000000", UnexpectedOpcode},
		"tagged Send":          {"c1 43 00000000 0000000000000000", UnexpectedOpcode},
		"untagged Write":       {"41 40 00000000 00000000 00000001 00000000", UnexpectedOpcode},
		"Send on queue 2":      {"41 43 00000000 00000002 00000001 00000000", BadQueue},
		"Read on queue 0":      {"41 41 00000000 00000000 00000001 00000000", BadQueue},
		"Terminate on queue 4": {"41 47 00000000 00000004 00000001 00000000", BadQueue},
	} {
		var h Header
		if got := h.Parse(unhex(t, c.b)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	for _, c := range []struct {
		first byte
		n     int
		want  int
	}{{0x80, 14, TaggedLen}, {0x80, 13, 0}, {0, 18, UntaggedLen}, {0, 17, 0}, {0, 0, 0}, {0xff, 65535, TaggedLen}} {
		got, cause := HeaderLen(c.first, c.n)
		if got != c.want || (cause != 0) != (c.want == 0) {
			t.Errorf("first byte %#x of %d: %d, %v", c.first, c.n, got, cause)
		}
	}
}

func TestOpcodes(t *testing.T) {
	if s := Opcode(12).String(); s != "Opcode(0xc)" || OpSend.String() != "Send" {
		t.Errorf("%q", s)
	}
	for op := range Opcode(16) {
		if want := op == OpWrite || op == OpReadResponse; op.Tagged() != want {
			t.Errorf("%v: tagged %v", op, op.Tagged())
		}
		if want := op == OpSendInv || op == OpSendSEInv; op.Invalidates() != want {
			t.Errorf("%v: invalidates %v", op, op.Invalidates())
		}
	}
}

func TestReadRequest(t *testing.T) {
	b := unhex(t, "00000000 0000000100000001 00000400 154e6401 ffff8da703633000")
	var r ReadRequest
	r.Parse(b)
	want := ReadRequest{SinkTO: 0x100000001, Size: 1024, SourceSTag: 0x154e6401, SourceTO: 0xffff8da703633000}
	if r != want {
		t.Errorf("%+v", r)
	}
	got := make([]byte, ReadRequestLen)
	r.Put(got)
	if !bytes.Equal(got, b) {
		t.Errorf("% x", got)
	}
}

func TestAtomicMessages(t *testing.T) {
	r := AtomicRequest{Op: CmpSwap, ID: 0x01020304, STag: 5, TO: 6, Data: 7, Mask: 8, Compare: 9, CompareMask: 10}
	b := make([]byte, AtomicRequestLen)
	r.Put(b)
	want := unhex(t, "00000002 01020304 00000005 0000000000000006 0000000000000007 0000000000000008 0000000000000009 000000000000000a")
	if !bytes.Equal(b, want) {
		t.Errorf("% x", b)
	}
	var got AtomicRequest
	if got.Parse(b); got != r {
		t.Errorf("%+v", got)
	}
	PutAtomicResponse(b, 77, 1<<60)
	if id, v := ParseAtomicResponse(b); id != 77 || v != 1<<60 {
		t.Errorf("%d, %#x", id, v)
	}
	for _, ofSend := range []bool{false, true} {
		PutImmediate(b, 0xa0b0c0d0, ofSend)
		if imm, s := ParseImmediate(b); imm != 0xa0b0c0d0 || s != ofSend || b[0] != 0xa0 {
			t.Errorf("%#x, %v: % x", imm, s, b[:ImmediateLen])
		}
	}
}

// addByBits is the definition of RFC 7306, 5.2.2: bit by bit, with no carry out
// of a bit that the mask has.
func addByBits(a, b, mask uint64) (sum uint64) {
	var carry uint64
	for i := range 64 {
		x, y := a>>i&1, b>>i&1
		sum |= (x ^ y ^ carry) << i
		if carry = x&y | x&carry | y&carry; mask>>i&1 != 0 {
			carry = 0
		}
	}
	return sum
}

func TestAtomicApply(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		old, data, mask := rng.Uint64(), rng.Uint64(), rng.Uint64()&rng.Uint64()
		if rng.IntN(4) == 0 {
			mask = 0
		}
		r := AtomicRequest{Op: FetchAdd, Data: data, Mask: mask}
		if got, ok := r.Apply(old); !ok || got != addByBits(old, data, mask) || mask == 0 && got != old+data {
			t.Fatalf("%#x + %#x with %#x: %#x, want %#x", old, data, mask, got, addByBits(old, data, mask))
		}
	}
	const all = 1<<64 - 1
	for _, c := range [][6]uint64{ // old, compare, its mask, data, its mask, want
		{12, 12, all, 5, all, 5}, {12, 13, all, 5, all, 12}, {0xff12, 0x12, 0xff, 0x34, 0xff, 0xff34}, {1, 2, 0, 3, all, 3},
	} {
		r := AtomicRequest{Op: CmpSwap, Compare: c[1], CompareMask: c[2], Data: c[3], Mask: c[4]}
		if got, ok := r.Apply(c[0]); !ok || got != c[5] {
			t.Errorf("%x: got %#x", c, got)
		}
	}
	if _, ok := (&AtomicRequest{Op: 1}).Apply(0); ok {
		t.Error("operation 1 was applied")
	}
}

// FuzzHeader: what parses is built to the same bytes, reserved bits apart.
func FuzzHeader(f *testing.F) {
	for _, c := range captures.Conns(captures.IWARPUserTarget)[:2] {
		for _, stream := range [][]byte{c.FromClient, c.FromServer} {
			stream = stream[FrameLen+int(binary.BigEndian.Uint16(stream[FrameLen-2:])):]
			for range min(8, len(stream)/64) {
				n := int(binary.BigEndian.Uint16(stream))
				f.Add(stream[LengthLen : LengthLen+min(n, 64)])
				stream = stream[FPDULen(n):]
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		n, cause := HeaderLen(b[0], len(b))
		if cause != 0 {
			return
		}
		var h Header
		if cause := h.Parse(b[:n]); cause != 0 {
			if !cause.Known() {
				t.Errorf("cause %v", cause)
			}
			return
		}
		got := make([]byte, UntaggedLen)
		if k := h.Put(got); k != n {
			t.Fatalf("%d bytes of %d", k, n)
		}
		want := append([]byte(nil), b[:n]...)
		want[0] &^= 0x3c
		want[1] &^= 0x30
		if !bytes.Equal(got[:n], want) {
			t.Errorf("built % x of % x", got[:n], want)
		}
		payload := b[n:]
		if len(payload) >= AtomicRequestLen {
			var r AtomicRequest
			r.Parse(payload)
			if v, ok := r.Apply(5); ok && r.Op == FetchAdd && r.Mask == 0 && v != 5+r.Data {
				t.Errorf("5 + %d is %d", r.Data, v)
			}
		}
	})
}

func TestNothingAllocates(t *testing.T) {
	b := make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		h := Header{Op: OpSend, Last: true, MSN: uint32(bits.Len8(b[3]))}
		k := h.Put(b)
		h.Parse(b[:k])
		var r ReadRequest
		r.Put(b)
		r.Parse(b)
		PutCRC(b, CRC(b[4:]))
		CheckCRC(b)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
