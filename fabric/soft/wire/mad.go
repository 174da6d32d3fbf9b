package wire

import (
	"encoding/binary"
	"errors"
)

// Lengths and numbers of the general services interface (IBTA vol 1, 13.4).
const (
	MADLen     = 256 // every MAD, padded with zeros
	MADHeader  = 24
	CMLen      = MADLen - MADHeader // the message of the connection manager
	GSIQP      = 1
	GSIQKey    = 0x80010000
	baseVer    = 1
	classCM    = 7
	classVer   = 2
	methodSend = 3
)

// AttrID says which message of the connection manager a MAD carries (12.6).
type AttrID uint16

// Messages of the connection manager.
const (
	AttrREQ  AttrID = 0x10
	AttrMRA  AttrID = 0x11
	AttrREJ  AttrID = 0x12
	AttrREP  AttrID = 0x13
	AttrRTU  AttrID = 0x14
	AttrDREQ AttrID = 0x15
	AttrDREP AttrID = 0x16
)

func (a AttrID) String() string {
	switch a {
	case AttrREQ:
		return "REQ"
	case AttrMRA:
		return "MRA"
	case AttrREJ:
		return "REJ"
	case AttrREP:
		return "REP"
	case AttrRTU:
		return "RTU"
	case AttrDREQ:
		return "DREQ"
	case AttrDREP:
		return "DREP"
	}
	return "unknown"
}

// Errors of ParseMAD: such datagrams are dropped silently.
var (
	ErrMADLength = errors.New("MAD is not 256 bytes")
	ErrMADClass  = errors.New("MAD is not of the communication management class")
)

// MAD is what the connection manager needs of a management datagram.
type MAD struct {
	TID  uint64 // transaction
	Attr AttrID
	Body []byte // CMLen bytes: the message
}

// ParseMAD checks a datagram to QP 1. Body refers to b.
func ParseMAD(b []byte) (MAD, error) {
	if len(b) != MADLen {
		return MAD{}, ErrMADLength
	}
	if b[0] != baseVer || b[1] != classCM || b[2] != classVer || b[3] != methodSend {
		return MAD{}, ErrMADClass
	}
	return MAD{
		TID:  binary.BigEndian.Uint64(b[8:]),
		Attr: AttrID(binary.BigEndian.Uint16(b[16:])),
		Body: b[MADHeader:],
	}, nil
}

// PutMAD writes the header of a MAD into b, MADLen bytes, and returns the
// zeroed room for the message behind it.
func PutMAD(b []byte, tid uint64, a AttrID) []byte {
	b = b[:MADLen]
	clear(b)
	b[0], b[1], b[2], b[3] = baseVer, classCM, classVer, methodSend
	binary.BigEndian.PutUint64(b[8:], tid)
	binary.BigEndian.PutUint16(b[16:], uint16(a))
	return b[MADHeader:]
}
