package wire

import (
	"encoding/binary"
	"net/netip"

	"github.com/nvmf-go/nvmf/fabric/soft/psn"
)

// Lengths of the private data of each message, in bytes. That of a REQ begins
// with the header of the IP addressing annex (IBTA vol 1, annex A11).
const (
	REQPrivateLen  = 92
	MRAPrivateLen  = 222
	REJPrivateLen  = 148
	REPPrivateLen  = 196
	RTUPrivateLen  = 224
	DREQPrivateLen = 220
	DREPPrivateLen = 224
	REJInfoLen     = 72 // additional reject information
)

// CommID names one end of a connection to the other.
type CommID uint32

// LIDPermissive is the LID of a RoCE path, which has none.
const LIDPermissive = 0xffff

// REQ is the request for communication (12.6.5). Fields that RoCEv2 with
// reliable connections leaves no choice are not here: Put writes them.
type REQ struct {
	LocalComm      CommID
	ServiceID      uint64
	CAGUID         uint64
	QPN            uint32
	ResponderRes   uint8     // READs and atomics the sender can answer at a time
	InitiatorDepth uint8     // READs and atomics it wants outstanding
	RemoteCMTime   uint8     // 5 bits: within 4.096 us * 2^t the peer shall answer
	Transport      uint8     // 2 bits: 0 reliable connection
	FlowControl    bool      // end-to-end flow control
	StartPSN       psn.Value // the first that the sender expects to receive
	LocalCMTime    uint8     // 5 bits: how soon the sender will answer a REP
	RetryCount     uint8     // 3 bits
	PKey           uint16    //
	PathMTU        MTU       // 4 bits
	RNRRetry       uint8     // 3 bits
	MaxCMRetries   uint8     // 4 bits
	SRQ            bool
	LocalGID       netip.Addr
	RemoteGID      netip.Addr
	FlowLabel      uint32 // 20 bits
	Rate           uint8  // 6 bits
	TrafficClass   uint8
	HopLimit       uint8
	SubnetLocal    bool
	AckTimeout     uint8  // 5 bits
	AltLID         uint16 // not 0: there is an alternate path
	Private        []byte // REQPrivateLen bytes
}

// ParseREQ reads the message in b, CMLen bytes. Private refers to b.
func ParseREQ(b []byte) REQ {
	_ = b[CMLen-1]
	return REQ{
		LocalComm:      CommID(be32(b)),
		ServiceID:      binary.BigEndian.Uint64(b[8:]),
		CAGUID:         binary.BigEndian.Uint64(b[16:]),
		QPN:            be24(b[32:]),
		ResponderRes:   b[35],
		InitiatorDepth: b[39],
		RemoteCMTime:   b[43] >> 3,
		Transport:      b[43] >> 1 & 3,
		FlowControl:    b[43]&1 != 0,
		StartPSN:       psn.Value(be24(b[44:])),
		LocalCMTime:    b[47] >> 3,
		RetryCount:     b[47] & 7,
		PKey:           binary.BigEndian.Uint16(b[48:]),
		PathMTU:        MTU(b[50] >> 4),
		RNRRetry:       b[50] & 7,
		MaxCMRetries:   b[51] >> 4,
		SRQ:            b[51]&8 != 0,
		LocalGID:       gid(b[56:]),
		RemoteGID:      gid(b[72:]),
		FlowLabel:      be32(b[88:]) >> 12,
		Rate:           b[91] & 63,
		TrafficClass:   b[92],
		HopLimit:       b[93],
		SubnetLocal:    b[94]&8 != 0,
		AckTimeout:     b[95] >> 3,
		AltLID:         binary.BigEndian.Uint16(b[96:]),
		Private:        b[140 : 140+REQPrivateLen],
	}
}

// Put writes the message into b, CMLen zeroed bytes. Private may be shorter
// than its field.
func (m *REQ) Put(b []byte) {
	_ = b[CMLen-1]
	binary.BigEndian.PutUint32(b, uint32(m.LocalComm))
	binary.BigEndian.PutUint64(b[8:], m.ServiceID)
	binary.BigEndian.PutUint64(b[16:], m.CAGUID)
	put24(b[32:], m.QPN)
	b[35] = m.ResponderRes
	b[39] = m.InitiatorDepth
	b[43] = m.RemoteCMTime<<3 | m.Transport&3<<1 | bit(m.FlowControl)
	put24(b[44:], uint32(m.StartPSN))
	b[47] = m.LocalCMTime<<3 | m.RetryCount&7
	binary.BigEndian.PutUint16(b[48:], m.PKey)
	b[50] = byte(m.PathMTU)<<4 | m.RNRRetry&7
	b[51] = m.MaxCMRetries<<4 | bit(m.SRQ)<<3
	binary.BigEndian.PutUint16(b[52:], LIDPermissive)
	binary.BigEndian.PutUint16(b[54:], LIDPermissive)
	putGID(b[56:], m.LocalGID)
	putGID(b[72:], m.RemoteGID)
	binary.BigEndian.PutUint32(b[88:], m.FlowLabel<<12|uint32(m.Rate&63))
	b[92] = m.TrafficClass
	b[93] = m.HopLimit
	b[94] = bit(m.SubnetLocal) << 3
	b[95] = m.AckTimeout << 3
	binary.BigEndian.PutUint16(b[96:], m.AltLID)
	copy(b[140:140+REQPrivateLen], m.Private)
}

// REP is the reply (12.6.8).
type REP struct {
	LocalComm      CommID
	RemoteComm     CommID
	QPN            uint32
	StartPSN       psn.Value
	ResponderRes   uint8
	InitiatorDepth uint8
	TargetACKDelay uint8 // 5 bits
	Failover       uint8 // 2 bits
	FlowControl    bool
	RNRRetry       uint8 // 3 bits
	SRQ            bool
	CAGUID         uint64
	Private        []byte // REPPrivateLen bytes
}

// ParseREP reads the message in b, CMLen bytes. Private refers to b.
func ParseREP(b []byte) REP {
	_ = b[CMLen-1]
	return REP{
		LocalComm:      CommID(be32(b)),
		RemoteComm:     CommID(be32(b[4:])),
		QPN:            be24(b[12:]),
		StartPSN:       psn.Value(be24(b[20:])),
		ResponderRes:   b[24],
		InitiatorDepth: b[25],
		TargetACKDelay: b[26] >> 3,
		Failover:       b[26] >> 1 & 3,
		FlowControl:    b[26]&1 != 0,
		RNRRetry:       b[27] >> 5,
		SRQ:            b[27]&0x10 != 0,
		CAGUID:         binary.BigEndian.Uint64(b[28:]),
		Private:        b[36 : 36+REPPrivateLen],
	}
}

// Put writes the message into b, CMLen zeroed bytes.
func (m *REP) Put(b []byte) {
	_ = b[CMLen-1]
	binary.BigEndian.PutUint32(b, uint32(m.LocalComm))
	binary.BigEndian.PutUint32(b[4:], uint32(m.RemoteComm))
	put24(b[12:], m.QPN)
	put24(b[20:], uint32(m.StartPSN))
	b[24] = m.ResponderRes
	b[25] = m.InitiatorDepth
	b[26] = m.TargetACKDelay<<3 | m.Failover&3<<1 | bit(m.FlowControl)
	b[27] = m.RNRRetry<<5 | bit(m.SRQ)<<4
	binary.BigEndian.PutUint64(b[28:], m.CAGUID)
	copy(b[36:36+REPPrivateLen], m.Private)
}

// Which message a REJ or an MRA is about.
const (
	AboutREQ   = 0
	AboutREP   = 1
	AboutOther = 2
)

// REJ is the rejection (12.6.7).
type REJ struct {
	LocalComm  CommID // 0 when the sender has no state for it
	RemoteComm CommID
	About      uint8 // 2 bits
	InfoLen    uint8 // valid bytes of Info, 7 bits
	Reason     uint16
	Info       []byte // REJInfoLen bytes
	Private    []byte // REJPrivateLen bytes
}

// ParseREJ reads the message in b, CMLen bytes. Info and Private refer to b.
func ParseREJ(b []byte) REJ {
	_ = b[CMLen-1]
	return REJ{
		LocalComm:  CommID(be32(b)),
		RemoteComm: CommID(be32(b[4:])),
		About:      b[8] >> 6,
		InfoLen:    b[9] >> 1,
		Reason:     binary.BigEndian.Uint16(b[10:]),
		Info:       b[12 : 12+REJInfoLen],
		Private:    b[84 : 84+REJPrivateLen],
	}
}

// Put writes the message into b, CMLen zeroed bytes.
func (m *REJ) Put(b []byte) {
	_ = b[CMLen-1]
	binary.BigEndian.PutUint32(b, uint32(m.LocalComm))
	binary.BigEndian.PutUint32(b[4:], uint32(m.RemoteComm))
	b[8] = m.About << 6
	b[9] = m.InfoLen << 1
	binary.BigEndian.PutUint16(b[10:], m.Reason)
	copy(b[12:12+REJInfoLen], m.Info)
	copy(b[84:84+REJPrivateLen], m.Private)
}

// MRA asks for patience (12.6.6).
type MRA struct {
	LocalComm   CommID
	RemoteComm  CommID
	About       uint8 // 2 bits
	ServiceTime uint8 // 5 bits: 4.096 us * 2^t
}

// ParseMRA reads the message in b, CMLen bytes.
func ParseMRA(b []byte) MRA {
	_ = b[CMLen-1]
	return MRA{CommID(be32(b)), CommID(be32(b[4:])), b[8] >> 6, b[9] >> 3}
}

// Put writes the message into b, CMLen zeroed bytes.
func (m *MRA) Put(b []byte) {
	_ = b[CMLen-1]
	binary.BigEndian.PutUint32(b, uint32(m.LocalComm))
	binary.BigEndian.PutUint32(b[4:], uint32(m.RemoteComm))
	b[8] = m.About << 6
	b[9] = m.ServiceTime << 3
}

// Pair is what RTU, DREQ and DREP consist of (12.6.9 to 12.6.11).
type Pair struct {
	LocalComm  CommID
	RemoteComm CommID
	RemoteQPN  uint32 // DREQ only: the receiver's own QP
}

// ParsePair reads the message in b, CMLen bytes.
func ParsePair(b []byte) Pair {
	_ = b[CMLen-1]
	return Pair{CommID(be32(b)), CommID(be32(b[4:])), be24(b[8:])}
}

// Put writes the message into b, CMLen zeroed bytes.
func (m *Pair) Put(b []byte) {
	_ = b[CMLen-1]
	binary.BigEndian.PutUint32(b, uint32(m.LocalComm))
	binary.BigEndian.PutUint32(b[4:], uint32(m.RemoteComm))
	put24(b[8:], m.RemoteQPN)
}

func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }

func be24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func put24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v) }

func bit(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// gid reads a RoCEv2 GID: an IPv6 address, or an IPv4 address mapped into one.
func gid(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b[:16])).Unmap() }

func putGID(b []byte, a netip.Addr) {
	g := a.As16()
	copy(b, g[:])
}
