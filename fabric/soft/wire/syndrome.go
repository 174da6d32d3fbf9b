package wire

import (
	"fmt"
	"time"
)

// Syndrome is the first byte of the AETH (IBTA vol 1, 9.7.5.1.1): two bits
// that say ACK, RNR NAK or NAK behind a zero bit, and five of detail.
type Syndrome uint8

// Syndromes. AckNoCredits is an ACK that says nothing of receive credits, as
// a responder without end-to-end flow control sends it.
const (
	AckNoCredits    Syndrome = 0x1f
	RNRNak          Syndrome = 0x20 // or-ed with a timer code
	NakSequence     Syndrome = 0x60
	NakInvalid      Syndrome = 0x61
	NakRemoteAccess Syndrome = 0x62
	NakRemoteOp     Syndrome = 0x63
	NakInvalidRD    Syndrome = 0x64
)

// IsAck says whether the syndrome is a positive acknowledgement.
func (s Syndrome) IsAck() bool { return s&0xe0 == 0 }

// IsRNR says whether the syndrome is a receiver-not-ready NAK.
func (s Syndrome) IsRNR() bool { return s&0xe0 == RNRNak }

// IsNak says whether the syndrome is a NAK other than RNR.
func (s Syndrome) IsNak() bool { return s&0xe0 == 0x60 }

// RNRTime is how long the requester has to wait after an RNR NAK.
func (s Syndrome) RNRTime() time.Duration { return RNRTime(uint8(s)) }

func (s Syndrome) String() string {
	switch {
	case s.IsAck():
		return "ACK"
	case s.IsRNR():
		return fmt.Sprintf("RNR NAK %v", s.RNRTime())
	}
	switch s {
	case NakSequence:
		return "NAK sequence error"
	case NakInvalid:
		return "NAK invalid request"
	case NakRemoteAccess:
		return "NAK remote access error"
	case NakRemoteOp:
		return "NAK remote operational error"
	case NakInvalidRD:
		return "NAK invalid RD request"
	}
	return fmt.Sprintf("syndrome 0x%02x", uint8(s))
}

// rnrTimes is IBTA vol 1, table 45, in units of 10 us.
var rnrTimes = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTime is the time of a 5-bit RNR timer code.
func RNRTime(code uint8) time.Duration {
	return time.Duration(rnrTimes[code&31]) * 10 * time.Microsecond
}

// RNRCode is the smallest timer code whose time is at least d; code 0, the
// longest time, when none is.
func RNRCode(d time.Duration) uint8 {
	for c := uint8(1); c < 32; c++ {
		if RNRTime(c) >= d {
			return c
		}
	}
	return 0
}

// AckTimeout is the time of a 5-bit local ACK timeout: 4.096 us * 2^t, and 0,
// which means no timeout, for t = 0 (IBTA vol 1, 9.7.6.1.3).
func AckTimeout(t uint8) time.Duration {
	if t &= 31; t == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << t
}
