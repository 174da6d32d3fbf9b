package wire

import (
	"bytes"
	"testing"

	"github.com/nvmf-go/nvmf/internal/captures"
)

// rebuild writes what was parsed into b, which has p's length.
func rebuild(b []byte, p *Packet) {
	var f BTHFlags
	if p.BTH.AckReq() {
		f |= AckReq
	}
	if p.BTH.Solicited() {
		f |= Solicited
	}
	BTH(b).Put(p.Op, f, p.BTH.Pad(), p.BTH.DestQP(), p.BTH.PSN())
	ext := b[BTHLen:]
	switch i := p.Info; {
	case i.Has(HasRETH):
		RETH(ext).Put(p.RETH().VA(), p.RETH().RKey(), p.RETH().Length())
	case i.Has(HasAETH):
		AETH(ext).Put(p.AETH().Syndrome(), p.AETH().MSN())
	case i.Has(HasDETH):
		DETH(ext).Put(p.DETH().QKey(), p.DETH().SrcQP())
	}
	if p.Info.Has(HasImm) || p.Info.Has(HasIETH) {
		PutImm(b[p.Info.ExtAt:], p.Imm())
	}
	copy(b[p.Op.Len():], p.Payload)
}

// rebuildMAD writes the message of m into b.
func rebuildMAD(b []byte, m MAD) {
	body := PutMAD(b, m.TID, m.Attr)
	switch m.Attr {
	case AttrREQ:
		r := ParseREQ(m.Body)
		r.Put(body)
	case AttrREP:
		r := ParseREP(m.Body)
		r.Put(body)
	case AttrREJ:
		r := ParseREJ(m.Body)
		r.Put(body)
	case AttrMRA:
		r := ParseMRA(m.Body)
		r.Put(body)
	default:
		r := ParsePair(m.Body)
		r.Put(body)
	}
}

// Each captured packet is parsed, and built again from what was parsed alone.
func TestCapturedPackets(t *testing.T) {
	seen := map[Opcode]int{}
	attrs := map[AttrID]int{}
	for _, name := range captures.Names() {
		for _, c := range captures.RoCE(name) {
			var p Packet
			if err := p.Parse(c.Payload); err != nil {
				// The user-space peers of these captures sent wrong packets on purpose.
				if name != captures.RoCEv2UserInitiator && name != captures.RoCEv2UserTarget {
					t.Errorf("%s frame %d: %v", name, c.Frame, err)
				}
				continue
			}
			seen[p.Op]++
			got := make([]byte, len(c.Payload))
			rebuild(got, &p)
			copy(got[len(got)-ICRCLen:], c.Payload[len(got)-ICRCLen:])
			got[1] |= c.Payload[1] & 0x40 // the migration bit, which has no meaning here
			got[4] = c.Payload[4]         // nor have the congestion marks
			copy(got[2:4], c.Payload[2:4])
			if !bytes.Equal(got, c.Payload) {
				t.Errorf("%s frame %d %v:\n got %.64x\nwant %.64x", name, c.Frame, p.Op, got, c.Payload)
			}
			if p.Info.Has(HasDETH) && p.BTH.DestQP() == GSIQP {
				checkMAD(t, name, c.Frame, &p, attrs)
			}
		}
	}
	for _, op := range []Opcode{OpSendOnly, OpSendOnlyInv, OpWriteFirst, OpWriteOnly, OpReadRequest, OpReadRespFirst, OpReadRespMid, OpReadRespLast, OpReadRespOnly, OpAck, OpUDSendOnly} {
		if seen[op] == 0 {
			t.Errorf("no %v in any capture", op)
		}
	}
	for _, a := range []AttrID{AttrREQ, AttrREP, AttrRTU, AttrDREQ, AttrDREP} {
		if attrs[a] == 0 {
			t.Errorf("no %v in any capture", a)
		}
	}
}

func checkMAD(t *testing.T, name string, frame int, p *Packet, attrs map[AttrID]int) {
	t.Helper()
	m, err := ParseMAD(p.Payload)
	if err != nil {
		return // wrong on purpose, as above
	}
	attrs[m.Attr]++
	got := make([]byte, MADLen)
	rebuildMAD(got, m)
	want := p.Payload
	if m.Attr == AttrREQ { // LIDs, and the maximum of fields without meaning in RoCE
		want = bytes.Clone(want)
		copy(want[MADHeader+52:MADHeader+56], got[MADHeader+52:])
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s frame %d %v:\n got %x\nwant %x", name, frame, m.Attr, got, want)
	}
	if m.Attr != AttrREQ {
		return
	}
	if h, err := ParseCMA(ParseREQ(m.Body).Private); err == nil {
		cma := make([]byte, CMAHeaderLen)
		h.Put(cma)
		if r := ParseREQ(m.Body); !bytes.Equal(cma, r.Private[:CMAHeaderLen]) {
			t.Errorf("%s frame %d: IP header %x, want %x", name, frame, cma, r.Private[:CMAHeaderLen])
		}
	}
}
