package mpa

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	keyRequest = "MPA ID Req Frame"
	keyReply   = "MPA ID Rep Frame"
	keyLen     = len(keyRequest)

	// FrameLen is the length of a Request or Reply without private data.
	FrameLen = keyLen + 4
	// MaxPrivate is the most private data of a frame, the enhanced header
	// included (RFC 5044, 7.1).
	MaxPrivate  = 512
	enhancedLen = 4
)

// Flags are the flag bits of a Request or Reply. Bits without a name are
// reserved: sent as 0 and not looked at.
type Flags uint8

// Flags.
const (
	FlagMarkers  Flags = 0x80 // the sender wants to receive markers
	FlagCRC      Flags = 0x40 // CRC is to be used, in both directions
	FlagReject   Flags = 0x20 // replies only: there is no connection
	FlagEnhanced Flags = 0x10 // the private data begin with IRD and ORD
	// FlagLarge is a hint that siw invented: the sender takes FPDUs of any
	// length, whatever its segment size. Others keep it 0.
	FlagLarge Flags = 0x08
)

// RTR is a set of frames with which an initiator can say that it is ready to
// receive (RFC 6581, 9.1).
type RTR uint8

// The frames.
const (
	RTREmpty RTR = 1 << iota // an FPDU without ULPDU
	RTRWrite                 // an RDMA Write without payload
	RTRRead                  // an RDMA Read Request of no bytes
)

// NoNegotiation as IRD or ORD means that the sender does not say it here.
const NoNegotiation = 0x3fff

const (
	bitHigh  = 0x8000 // of IRD: peer to peer; of ORD: RTRWrite
	bitLow   = 0x4000 // of IRD: RTREmpty; of ORD: RTRRead
	depthMax = 0x3fff
)

// Errors of ParseHeader and ParsePrivate.
var (
	ErrKey      = errors.New("not an MPA frame")
	ErrRevision = errors.New("unknown MPA revision")
	ErrPrivate  = errors.New("the MPA frame's private data are too long or too short")
)

// Frame is an MPA Request or Reply.
type Frame struct {
	Flags    Flags
	Revision uint8 // 1 or 2

	// When Enhanced.

	IRD, ORD   uint16 // up to 16382, or NoNegotiation
	PeerToPeer bool   // the responder may send first, after an RTR frame
	RTR        RTR    // offered, or in a reply accepted

	Private []byte // the consumer's
}

// Has says whether all of those flags are set.
func (f *Frame) Has(flags Flags) bool { return f.Flags&flags == flags }

// Enhanced says whether the private data begin with IRD and ORD: revision 1
// does not know the flag.
func (f *Frame) Enhanced() bool { return f.Has(FlagEnhanced) && f.Revision >= 2 }

// Append appends the frame to b. Private must fit: at most MaxPrivate bytes, 4
// fewer when Enhanced.
func (f *Frame) Append(b []byte, reply bool) []byte {
	key, n := keyRequest, len(f.Private)
	if reply {
		key = keyReply
	}
	if f.Enhanced() {
		n += enhancedLen
	}
	b = append(b, key...)
	b = append(b, byte(f.Flags), f.Revision)
	b = binary.BigEndian.AppendUint16(b, uint16(n))
	if f.Enhanced() {
		b = f.appendEnhanced(b)
	}
	return append(b, f.Private...)
}

func (f *Frame) appendEnhanced(b []byte) []byte {
	ird := f.IRD&depthMax | uint16(f.RTR&RTREmpty)<<14
	ord := f.ORD&depthMax | uint16(f.RTR&RTRWrite)<<14 | uint16(f.RTR&RTRRead)<<12
	if f.PeerToPeer {
		ird |= bitHigh
	}
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, ird), ord)
}

// ParseHeader reads the first FrameLen bytes of a frame and says how many bytes
// of private data follow. The errors wrap ErrKey, ErrRevision or ErrPrivate.
func (f *Frame) ParseHeader(b []byte, reply bool) (private int, err error) {
	key := keyRequest
	if reply {
		key = keyReply
	}
	if len(b) < FrameLen || string(b[:keyLen]) != key {
		return 0, ErrKey
	}
	*f = Frame{Flags: Flags(b[keyLen]), Revision: b[keyLen+1]}
	if f.Revision < 1 || f.Revision > 2 {
		return 0, fmt.Errorf("%w: %d", ErrRevision, f.Revision)
	}
	n := int(binary.BigEndian.Uint16(b[keyLen+2:]))
	if n > MaxPrivate || f.Enhanced() && n < enhancedLen {
		return 0, fmt.Errorf("%w: %d bytes", ErrPrivate, n)
	}
	return n, nil
}

// ParsePrivate reads the private data, as many bytes as ParseHeader has said.
// f.Private is a part of b.
func (f *Frame) ParsePrivate(b []byte) error {
	if f.Enhanced() {
		if len(b) < enhancedLen {
			return ErrPrivate
		}
		ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		f.IRD, f.ORD, f.PeerToPeer = ird&depthMax, ord&depthMax, ird&bitHigh != 0
		f.RTR = RTR(ird&bitLow>>14) | RTR(ord&bitHigh>>14) | RTR(ord&bitLow>>12)
		b = b[enhancedLen:]
	}
	f.Private = b
	return nil
}
