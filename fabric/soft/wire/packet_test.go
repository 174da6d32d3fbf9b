package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/nvmf-go/nvmf/fabric/soft/psn"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Packets of a kernel's rxe, from the BTH on.
const (
	kernelAck  = "1100ffff0000001100" + "4905be" + "1f000001" + "e7aabec2"
	kernelRead = "0c00ffff00000011809bcad0" + "ffff899f8362e400" + "000003c2" + "00000400" + "b4f63f95"
	kernelInv  = "1700ffff00000011809bcad1" + "000003c2" + "01000000000000000100000000000000" + "e4b05e81"
)

func TestParseKernelPackets(t *testing.T) {
	var p Packet
	if err := p.Parse(unhex(t, kernelAck)); err != nil {
		t.Fatal(err)
	}
	if p.Op != OpAck || p.BTH.DestQP() != 0x11 || p.BTH.PSN() != 0x4905be || p.BTH.AckReq() || p.BTH.PKey() != PKeyDefault {
		t.Errorf("ACK: %v %x", p.Op, p.BTH)
	}
	if a := p.AETH(); a.Syndrome() != AckNoCredits || a.MSN() != 1 {
		t.Errorf("AETH: %v %v", a.Syndrome(), a.MSN())
	}

	if err := p.Parse(unhex(t, kernelRead)); err != nil {
		t.Fatal(err)
	}
	r := p.RETH()
	if p.Op != OpReadRequest || !p.BTH.AckReq() || r.VA() != 0xffff899f8362e400 || r.RKey() != 0x3c2 || r.Length() != 1024 {
		t.Errorf("READ: %v %x", p.Op, p.BTH)
	}

	if err := p.Parse(unhex(t, kernelInv)); err != nil {
		t.Fatal(err)
	}
	if p.Op != OpSendOnlyInv || p.InvalidateKey() != 0x3c2 || !bytes.Equal(p.Payload, unhex(t, "01000000000000000100000000000000")) {
		t.Errorf("SEND with invalidate: %v %x %x", p.Op, p.BTH, p.Payload)
	}
}

func TestPutIsParseReversed(t *testing.T) {
	for _, want := range []string{kernelAck, kernelRead, kernelInv} {
		b := unhex(t, want)
		var p Packet
		if err := p.Parse(b); err != nil {
			t.Fatal(err)
		}
		got := bytes.Clone(b)
		clear(got[:p.Op.Len()])
		var f BTHFlags
		if p.BTH.AckReq() {
			f |= AckReq
		}
		BTH(got).Put(p.Op, f, p.BTH.Pad(), p.BTH.DestQP(), p.BTH.PSN())
		switch {
		case p.Info.Has(HasAETH):
			AETH(got[BTHLen:]).Put(p.AETH().Syndrome(), p.AETH().MSN())
		case p.Info.Has(HasRETH):
			RETH(got[BTHLen:]).Put(p.RETH().VA(), p.RETH().RKey(), p.RETH().Length())
		case p.Info.Has(HasIETH):
			PutImm(got[BTHLen:], p.InvalidateKey())
		}
		if !bytes.Equal(got, b) {
			t.Errorf("%v:\n got %x\nwant %x", p.Op, got, b)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		name, hex string
		want      error
	}{
		{"nothing", "", ErrShort},
		{"BTH without ICRC", "1100ffff00000011004905be1f0000", ErrShort},
		{"ACK without AETH", "1100ffff00000011004905be1f000001", ErrShort},
		{"version", "1101ffff00000011004905be1f000001e7aabec2", ErrVersion},
		{"opcode 0x15", "1500ffff00000011004905be1f000001e7aabec2", ErrOpcode},
		{"opcode of RD", "4000ffff00000011004905be1f000001e7aabec2", ErrOpcode},
		{"pad without payload", "0430ffff00000011004905be1f0000e7", ErrShort},
		{"pad larger than payload", "0430ffff00000011004905be0102e7aabec2", ErrShort},
		{"ACK with payload", "1100ffff00000011004905be1f00000100000000e7aabec2", ErrPayload},
		{"READ request with payload", kernelRead + "00000000", ErrPayload},
	} {
		var p Packet
		if err := p.Parse(unhex(t, c.hex)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func TestPad(t *testing.T) {
	b := make([]byte, BTHLen+8+ICRCLen)
	BTH(b).Put(OpSendOnly, Solicited, 3, 0xffffff, psn.Mask)
	copy(b[BTHLen:], "hello")
	var p Packet
	if err := p.Parse(b); err != nil {
		t.Fatal(err)
	}
	if string(p.Payload) != "hello" || !p.BTH.Solicited() || p.BTH.DestQP() != 0xffffff || p.BTH.PSN() != psn.Mask {
		t.Errorf("%x payload %q", p.BTH, p.Payload)
	}
	for n, want := range []int{0, 3, 2, 1, 0} {
		if got := PadLen(n); got != want {
			t.Errorf("PadLen(%d) = %d", n, got)
		}
	}
}

func TestAtomicHeaders(t *testing.T) {
	b := make([]byte, MaxHeader+ICRCLen)
	BTH(b).Put(OpCmpSwap, AckReq, 0, 5, 6)
	AtomicETH(b[BTHLen:]).Put(1<<60, 7, 8, 9)
	var p Packet
	if err := p.Parse(b); err != nil {
		t.Fatal(err)
	}
	if h := p.AtomicETH(); h.VA() != 1<<60 || h.RKey() != 7 || h.SwapAdd() != 8 || h.Compare() != 9 {
		t.Errorf("%x", p.BTH)
	}
	b = make([]byte, OpAtomicAck.Len()+ICRCLen)
	BTH(b).Put(OpAtomicAck, 0, 0, 5, 6)
	AETH(b[BTHLen:]).Put(AckNoCredits, 10)
	PutAtomicAck(b[BTHLen+AETHLen:], 1<<63|1)
	if err := p.Parse(b); err != nil {
		t.Fatal(err)
	}
	if p.AtomicOriginal() != 1<<63|1 || p.AETH().MSN() != 10 {
		t.Errorf("%x", p.BTH)
	}
}

// The lengths of the fact sheet of every RC opcode, headers only.
func TestOpcodeLengths(t *testing.T) {
	want := map[Opcode]int{
		0x00: 12, 0x01: 12, 0x02: 12, 0x03: 16, 0x04: 12, 0x05: 16,
		0x06: 28, 0x07: 12, 0x08: 12, 0x09: 16, 0x0a: 28, 0x0b: 32,
		0x0c: 28, 0x0d: 16, 0x0e: 12, 0x0f: 16, 0x10: 16, 0x11: 16, 0x12: 24,
		0x13: 40, 0x14: 40, 0x16: 16, 0x17: 16,
		0x20: 12, 0x21: 12, 0x22: 12, 0x23: 16, 0x24: 12, 0x25: 16,
		0x26: 28, 0x27: 12, 0x28: 12, 0x29: 16, 0x2a: 28, 0x2b: 32,
		0x64: 20, 0x65: 24, 0x81: 12,
	}
	for o := range 256 {
		op := Opcode(o)
		if n, ok := want[op]; ok != (op.Info().Kind != KindNone) || op.Len() != n {
			t.Errorf("%v: defined %v, length %d, want %d", op, !ok, op.Len(), n)
		}
		if op.Len() > MaxHeader {
			t.Errorf("%v is longer than MaxHeader", op)
		}
	}
	if s := OpWriteOnlyImm.String(); s != "RC WRITE Only with Immediate" {
		t.Error(s)
	}
	if s := Opcode(0x15).String(); s != "opcode 0x15" {
		t.Error(s)
	}
	if OpUDSendOnly.Service() != 0x60 || (UC|OpSendOnly).Service() != UC {
		t.Error("service")
	}
}

func TestSegments(t *testing.T) {
	for _, c := range []struct {
		n    uint32
		mtu  int
		want int
	}{{0, 256, 1}, {1, 256, 1}, {256, 256, 1}, {257, 256, 2}, {1<<32 - 1, 256, 1 << 24}, {131072, 4096, 32}} {
		if got := Segments(c.n, c.mtu); got != c.want {
			t.Errorf("Segments(%d, %d) = %d, want %d", c.n, c.mtu, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{kernelAck, kernelRead, kernelInv} {
		f.Add(unhex(f, s))
	}
	f.Add(make([]byte, BTHLen+ICRCLen))
	for o := range opcodes { // every opcode of every service, with a payload where it may have one
		if op := Opcode(o); op.Info().Kind != KindNone {
			b := make([]byte, op.Len()+8+ICRCLen)
			BTH(b).Put(op, Solicited, 3, 0x123456, 0xfffffe)
			if !op.Info().Has(Payload) {
				b = append(b[:op.Len()], 1, 2, 3, 4)
				BTH(b).Put(op, AckReq, 0, 0x123456, 0xfffffe)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Packet
		if p.Parse(b) != nil {
			return
		}
		if n := len(p.BTH) + len(p.Payload) + p.BTH.Pad() + ICRCLen; n != len(b) {
			t.Fatalf("%d bytes accounted for, of %d", n, len(b))
		}
		touch(&p)
	})
}

// touch reads every header the packet has.
func touch(p *Packet) {
	i := p.Info
	if i.Has(HasRETH) {
		_, _, _ = p.RETH().VA(), p.RETH().RKey(), p.RETH().Length()
	}
	if i.Has(HasAETH) {
		_, _ = p.AETH().Syndrome().String(), p.AETH().MSN()
	}
	if i.Has(HasAtomicETH) {
		_ = p.AtomicETH().Compare()
	}
	if i.Has(HasAtomicAck) {
		_ = p.AtomicOriginal()
	}
	if i.Has(HasDETH) {
		_, _ = p.DETH().QKey(), p.DETH().SrcQP()
	}
	if i.Has(HasImm) || i.Has(HasIETH) {
		_, _ = p.Imm(), p.InvalidateKey()
	}
}
