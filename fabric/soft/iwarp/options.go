package iwarp

import (
	"fmt"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// CRC says when FPDUs carry a CRC. TCP has a checksum of its own, which is
// weaker; both ends of a connection use the CRC when either wants it.
type CRC uint8

// When.
const (
	CRCAuto CRC = iota // when the peer wants it
	CRCOff             // never: peers that want it are refused
	CRCOn              // always
)

var crcNames = [...]string{"auto", "off", "on"}

func (c CRC) String() string {
	if int(c) < len(crcNames) {
		return crcNames[c]
	}
	return fmt.Sprintf("CRC(%d)", uint8(c))
}

// ParseCRC is the CRC mode of that name: auto, on or off; the empty one is
// auto.
func ParseCRC(s string) (CRC, error) {
	for i, name := range crcNames {
		if s == name || s == "" {
			return CRC(i), nil
		}
	}
	return 0, fmt.Errorf("%w: CRC mode %q is none of auto, on and off", fabric.ErrInvalid, s)
}

// Options configure a Provider. The zero value is what most want.
type Options struct {
	CRC CRC
	// Revision is the MPA revision of connections that are dialled: 1, or 2,
	// which 0 means too. Peers of either are served.
	Revision int
	// UntoldReads is how many RDMA READs are assumed that a peer answers, and
	// wants, which does not say: one of revision 1. 0 means 1.
	UntoldReads int
	// NoPeerToPeer dials without asking that the accepting end may be the first
	// to send. Then it may not.
	NoPeerToPeer bool
	// MaxFPDU is the longest FPDU to send in bytes, 128 to 65548. 0 means as
	// long as a TCP segment, as hardware likes it, and much longer towards a
	// peer that says it takes those, as ours do.
	MaxFPDU int
	// RequestTimeout is how long a peer that has connected may take to say what
	// it wants, ReplyTimeout how long one that was dialled may take to answer
	// that; 0 means 10 s and 5 s.
	RequestTimeout, ReplyTimeout time.Duration
	// KeepAlive is after how long a silent peer is probed; it is given up after
	// four times that. 0 means 10 s, a negative value never probes.
	KeepAlive time.Duration
	// SendTimeout is how long a peer may acknowledge nothing of what was sent
	// to it, or have no room for it (TCP_USER_TIMEOUT). 0 means 60 s, a negative
	// value leaves it to the system.
	SendTimeout time.Duration
	// DSCP is the class (0 to 63) of connections that ask for none.
	DSCP uint8
	// SendBuffer and RecvBuffer are the sizes of a socket's buffers in bytes; 0
	// leaves them to the system, which adapts them.
	SendBuffer, RecvBuffer int
	// Congestion is the TCP congestion control: the kernel's name of one,
	// CongestionSystem, or CongestionAuto, which the empty one means too.
	Congestion string
}

// What Options.Congestion may be besides a name.
const (
	// CongestionSystem is the system's choice.
	CongestionSystem = "system"
	// CongestionAuto is the system's choice unless that is BBR, which paces what it
	// sends by the bandwidth it believes in: on the short and fast paths of storage
	// that costs half of it. Then it is cubic, or where that may not be had, reno.
	CongestionAuto = "auto"
)

// minFPDU is the shortest FPDU that control messages fit in.
const minFPDU = 128

func (o *Options) setDefaults() error {
	switch {
	case o.CRC > CRCOn:
		return fmt.Errorf("%w: CRC mode %d", fabric.ErrInvalid, o.CRC)
	case o.Revision < 0 || o.Revision > 2:
		return fmt.Errorf("%w: MPA revision %d is neither 1 nor 2", fabric.ErrInvalid, o.Revision)
	case o.MaxFPDU != 0 && (o.MaxFPDU < minFPDU || o.MaxFPDU > mpa.MaxFPDU):
		return fmt.Errorf("%w: FPDUs of %d bytes are not in %d to %d", fabric.ErrInvalid, o.MaxFPDU, minFPDU, mpa.MaxFPDU)
	case o.UntoldReads < 0 || o.UntoldReads > maxReads:
		return fmt.Errorf("%w: %d READs are not in 0 to %d", fabric.ErrInvalid, o.UntoldReads, maxReads)
	case o.DSCP > 63:
		return fmt.Errorf("%w: DSCP %d is not in 0 to 63", fabric.ErrInvalid, o.DSCP)
	case o.SendBuffer < 0 || o.RecvBuffer < 0 || o.RequestTimeout < 0 || o.ReplyTimeout < 0:
		return fmt.Errorf("%w: a size or time is negative", fabric.ErrInvalid)
	}
	def(&o.Revision, 2)
	def(&o.Congestion, CongestionAuto)
	def(&o.UntoldReads, 1)
	def(&o.RequestTimeout, 10*time.Second)
	def(&o.ReplyTimeout, 5*time.Second)
	def(&o.KeepAlive, 10*time.Second)
	def(&o.SendTimeout, time.Minute)
	return nil
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// note is what DeviceInfo says of the options.
func (o *Options) note() string {
	s := "software RNIC, CRC " + o.CRC.String()
	if o.Revision != 2 {
		s += ", MPA revision 1"
	}
	if o.MaxFPDU != 0 {
		s += fmt.Sprintf(", FPDUs up to %d bytes", o.MaxFPDU)
	}
	if o.Congestion != CongestionAuto {
		s += ", congestion control " + o.Congestion
	}
	return s
}

// trafficClass is the TOS byte of a connection that asks for class.
func (o *Options) trafficClass(class uint8) uint8 {
	if class == 0 {
		class = o.DSCP << 2
	}
	return class
}
