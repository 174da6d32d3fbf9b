package mpa

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	// LengthLen is the length of the field in front of the ULPDU.
	LengthLen = 2
	// CRCLen is that of the one behind the pad.
	CRCLen = 4
	// MaxULPDU is what the length field can say.
	MaxULPDU = 1<<16 - 1
	// MaxTrailer is the most that follows a ULPDU.
	MaxTrailer = 3 + CRCLen
	// MaxFPDU is the length of the longest FPDU.
	MaxFPDU = LengthLen + MaxULPDU + 3 + CRCLen
)

// Pad is the number of pad bytes behind a ULPDU of n bytes: length, ULPDU and
// pad together are a multiple of 4.
func Pad(n int) int { return -(LengthLen + n) & 3 }

// FPDULen is the length of an FPDU whose ULPDU has n bytes.
func FPDULen(n int) int { return LengthLen + n + Pad(n) + CRCLen }

// ULPDUFor is the longest ULPDU of an FPDU of at most n bytes, rounded down to
// a multiple of 8 as siw does.
func ULPDUFor(n int) int { return min(n&^7-LengthLen-CRCLen, MaxULPDU) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC is the CRC32C of b: of an FPDU up to its pad (RFC 5044, 4.4).
func CRC(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// PutCRC writes a CRC as it goes over the wire.
func PutCRC(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }

// CheckCRC says whether the CRC of a whole FPDU is right.
func CheckCRC(fpdu []byte) bool {
	n := len(fpdu) - CRCLen
	return n >= LengthLen && binary.LittleEndian.Uint32(fpdu[n:]) == CRC(fpdu[:n])
}
