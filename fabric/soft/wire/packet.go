package wire

import (
	"encoding/binary"
	"errors"

	"github.com/nvmf-go/nvmf/fabric/soft/psn"
)

// Errors of Parse. A receiver drops such packets silently (IBTA vol 1, 9.6).
var (
	ErrShort   = errors.New("packet shorter than its headers")
	ErrVersion = errors.New("transport header version is not 0")
	ErrOpcode  = errors.New("undefined opcode")
	ErrPayload = errors.New("payload on an opcode that has none")
)

// Packet is a view of one packet: what a UDP datagram of port 4791 carries.
// It is valid as long as the bytes it was parsed from.
type Packet struct {
	BTH     BTH    // the headers, BTH and extended, Op.Len() bytes
	Payload []byte // without pad and ICRC
	Info    *Info
	Op      Opcode
}

// Parse checks the lengths of the packet in b, which begins with the BTH and
// ends with the ICRC, and points p into it.
func (p *Packet) Parse(b []byte) error {
	if len(b) < BTHLen+ICRCLen {
		return ErrShort
	}
	h := BTH(b)
	p.Op = h.Op()
	p.Info = p.Op.Info()
	if h.Version() != 0 {
		return ErrVersion
	}
	if p.Info.Kind == KindNone {
		return ErrOpcode
	}
	hdr, tail := int(p.Info.Len), h.Pad()+ICRCLen
	if hdr > len(b) || tail > len(b)-hdr {
		return ErrShort
	}
	p.BTH, p.Payload = BTH(b[:hdr]), b[hdr:len(b)-tail]
	if len(p.Payload) > 0 && !p.Info.Has(Payload) {
		return ErrPayload
	}
	return nil
}

// RETH is the RDMA header of a packet whose Info has it, and so on.
func (p *Packet) RETH() RETH { return RETH(p.BTH[BTHLen:]) }

// AETH is the ACK header.
func (p *Packet) AETH() AETH { return AETH(p.BTH[BTHLen:]) }

// AtomicETH is the header of an atomic request.
func (p *Packet) AtomicETH() AtomicETH { return AtomicETH(p.BTH[BTHLen:]) }

// DETH is the datagram header.
func (p *Packet) DETH() DETH { return DETH(p.BTH[BTHLen:]) }

// Imm is the immediate.
func (p *Packet) Imm() uint32 { return binary.BigEndian.Uint32(p.BTH[p.Info.ExtAt:]) }

// InvalidateKey is the key in the IETH.
func (p *Packet) InvalidateKey() uint32 { return binary.BigEndian.Uint32(p.BTH[p.Info.ExtAt:]) }

// AtomicOriginal is the value in the AtomicAckETH.
func (p *Packet) AtomicOriginal() uint64 { return binary.BigEndian.Uint64(p.BTH[p.Info.ExtAt:]) }

// BTH is a view of a packet from its base transport header on (IBTA vol 1,
// 9.2), at least BTHLen bytes.
type BTH []byte

// BTHFlags are the single bits of the BTH.
type BTHFlags uint8

// Flags of the BTH. M, the migration state, is neither set nor looked at.
const (
	AckReq    BTHFlags = 1 << iota // the responder shall acknowledge
	Solicited                      // the message is a solicited event
)

// PKeyDefault is the full member of the default partition, the only one of
// RoCEv2.
const PKeyDefault = 0xffff

// Put writes the 12 bytes of a BTH. pad is the number of pad bytes, qpn the
// destination.
func (h BTH) Put(op Opcode, f BTHFlags, pad int, qpn uint32, p psn.Value) {
	_ = h[BTHLen-1]
	h[0] = byte(op)
	h[1] = byte(f&Solicited)<<6 | byte(pad&3)<<4
	binary.BigEndian.PutUint16(h[2:], PKeyDefault)
	binary.BigEndian.PutUint32(h[4:], qpn&psn.Mask)
	binary.BigEndian.PutUint32(h[8:], uint32(f&AckReq)<<31|uint32(p))
}

// Op is the opcode.
func (h BTH) Op() Opcode { return Opcode(h[0]) }

// Solicited says that the message asks for a solicited event.
func (h BTH) Solicited() bool { return h[1]&0x80 != 0 }

// Pad is the number of pad bytes behind the payload, 0 to 3.
func (h BTH) Pad() int { return int(h[1]>>4) & 3 }

// Version is the header version, 0 for every valid packet.
func (h BTH) Version() int { return int(h[1] & 15) }

// PKey is the partition key.
func (h BTH) PKey() uint16 { return binary.BigEndian.Uint16(h[2:]) }

// BECN says that a forward congestion mark was seen by the receiver of ours.
func (h BTH) BECN() bool { return h[4]&0x40 != 0 }

// DestQP is the destination QP number.
func (h BTH) DestQP() uint32 { return binary.BigEndian.Uint32(h[4:]) & psn.Mask }

// AckReq says that the requester wants an acknowledgement.
func (h BTH) AckReq() bool { return h[8]&0x80 != 0 }

// PSN is the packet sequence number.
func (h BTH) PSN() psn.Value { return psn.New(binary.BigEndian.Uint32(h[8:])) }

// Segments is the number of packets, and of sequence numbers, of a message of
// n bytes on a path of that MTU: at least 1.
func Segments(n uint32, mtu int) int {
	if n <= uint32(mtu) {
		return 1
	}
	return int((uint64(n) + uint64(mtu) - 1) / uint64(mtu))
}

// PadLen is the number of pad bytes behind n bytes of payload.
func PadLen(n int) int { return -n & 3 }
