package nvme

import (
	"fmt"
	"net/netip"
	"strconv"
)

// Sizes in bytes of log page 70h: a header, then entries.
const (
	DiscoveryHeaderSize = 1024
	DiscoveryEntrySize  = 1024
)

// MaxDiscoveryEntries bounds what a host need believe of a discovery service:
// NUMREC is 64 bits of a peer's choosing.
const MaxDiscoveryEntries = 1 << 16

// DiscoveryHeader is the head of log page 70h (Base 5.16.1). It is in the
// first 20 bytes; the rest is reserved.
type DiscoveryHeader struct {
	GENCTR uint64 // changes with every change of the log
	NUMREC uint64 // entries
	RECFMT uint16 // 0
}

// DiscoveryHeaderPart is how many bytes hold the fields of a DiscoveryHeader,
// which hosts read alone to see GENCTR again.
const DiscoveryHeaderPart = 20

// MarshalTo fills b, DiscoveryHeaderSize bytes.
func (h *DiscoveryHeader) MarshalTo(b []byte) {
	h.visit(encoder("discovery log header", b, DiscoveryHeaderSize))
}

// Unmarshal reads the first DiscoveryHeaderPart bytes of b.
func (h *DiscoveryHeader) Unmarshal(b []byte) error {
	if len(b) < DiscoveryHeaderPart {
		return &LengthError{"discovery log header", len(b), DiscoveryHeaderPart}
	}
	h.visit(decoder(b))
	return nil
}

func (h *DiscoveryHeader) visit(l layout) {
	u64(l, 0, &h.GENCTR)
	u64(l, 8, &h.NUMREC)
	u16(l, 16, &h.RECFMT)
}

// TREQ are the transport requirements of a discovery entry.
type TREQ uint8

// Transport requirements. Bits 1:0 are the secure channel.
const (
	TREQSecureUnspecified TREQ = 0
	TREQSecureRequired    TREQ = 1
	TREQSecureNotRequired TREQ = 2
	TREQSecureMask        TREQ = 3
	TREQDisableSQFlow     TREQ = 1 << 2 // Connect may disable SQ flow control
)

// EFLAGS of a discovery entry.
const (
	EFLAGSDupInfo uint16 = 1 << 0 // DUPRETINFO: same information on every port
	EFLAGSEPCSD   uint16 = 1 << 1 // explicit persistent connections are supported
	EFLAGSNoCDC   uint16 = 1 << 2 // NCC: no connectivity to a CDC
)

// ASQSizeMin is the least ASQSZ that a controller may report.
const ASQSizeMin = 32

// TSASRDMA is the transport specific address subtype of RDMA.
type TSASRDMA struct {
	QPTYPE RDMAQPType
	PRTYPE RDMAProvider
	CMS    RDMACM
	PKEY   uint16 // datagram QPs only
}

// DiscoveryEntry is an entry of log page 70h (Base 5.16.1).
type DiscoveryEntry struct {
	TRTYPE  TransportType
	ADRFAM  AddressFamily
	SUBTYPE SubsystemType
	TREQ    TREQ
	PORTID  uint16
	CNTLID  uint16 // CNTLIDDynamic in the dynamic model
	ASQSZ   uint16 // admin queue entries, 1-based
	EFLAGS  uint16
	TRSVCID [32]byte           // PutText: the port, in decimal
	SUBNQN  [NQNFieldSize]byte // PutNQN, DecodeNQN
	TRADDR  [256]byte          // PutText: the address
	TSAS    [256]byte          // SetRDMA, RDMA
}

// MarshalTo fills b, DiscoveryEntrySize bytes.
func (e *DiscoveryEntry) MarshalTo(b []byte) {
	e.visit(encoder("discovery log entry", b, DiscoveryEntrySize))
}

// Unmarshal reads b, DiscoveryEntrySize bytes.
func (e *DiscoveryEntry) Unmarshal(b []byte) error {
	if err := checkLength("discovery log entry", b, DiscoveryEntrySize); err != nil {
		return err
	}
	e.visit(decoder(b))
	return nil
}

func (e *DiscoveryEntry) visit(l layout) {
	u8(l, 0, &e.TRTYPE)
	u8(l, 1, &e.ADRFAM)
	u8(l, 2, &e.SUBTYPE)
	u8(l, 3, &e.TREQ)
	u16(l, 4, &e.PORTID)
	u16(l, 6, &e.CNTLID)
	u16(l, 8, &e.ASQSZ)
	u16(l, 10, &e.EFLAGS)
	raw(l, 32, e.TRSVCID[:])
	raw(l, 256, e.SUBNQN[:])
	raw(l, 512, e.TRADDR[:])
	raw(l, 768, e.TSAS[:])
}

// SetAddr sets ADRFAM, TRADDR and TRSVCID to an IP address and a port. The zone
// of a link-local address means nothing to others and is left out.
func (e *DiscoveryEntry) SetAddr(a netip.AddrPort) {
	ip := a.Addr().Unmap().WithZone("")
	e.ADRFAM = FamilyIPv4
	if ip.Is6() {
		e.ADRFAM = FamilyIPv6
	}
	PutText(e.TRADDR[:], ip.String())
	PutText(e.TRSVCID[:], strconv.Itoa(int(a.Port())))
}

// Addr is the IP address and port of TRADDR and TRSVCID. It fails when they are
// not numeric, or are not of the family of ADRFAM.
func (e *DiscoveryEntry) Addr() (netip.AddrPort, error) {
	addr, service := Text(e.TRADDR[:]), Text(e.TRSVCID[:])
	ip, err := netip.ParseAddr(addr)
	if err != nil || ip.Is4() != (e.ADRFAM == FamilyIPv4) || ip.Is6() != (e.ADRFAM == FamilyIPv6) {
		return netip.AddrPort{}, fmt.Errorf("nvme: transport address %q: not of family %v", addr, e.ADRFAM)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil || port == 0 {
		return netip.AddrPort{}, fmt.Errorf("nvme: transport service %q: not a port", service)
	}
	return netip.AddrPortFrom(ip, uint16(port)), nil
}

// SetRDMA makes TSAS that of RDMA.
func (e *DiscoveryEntry) SetRDMA(t TSASRDMA) {
	clear(e.TSAS[:])
	t.visit(layout{e.TSAS[:], true})
}

// RDMA is TSAS when TRTYPE is RDMA.
func (e *DiscoveryEntry) RDMA() (t TSASRDMA) {
	t.visit(layout{e.TSAS[:], false})
	return t
}

func (t *TSASRDMA) visit(l layout) {
	u8(l, 0, &t.QPTYPE)
	u8(l, 1, &t.PRTYPE)
	u8(l, 2, &t.CMS)
	u16(l, 8, &t.PKEY)
}
