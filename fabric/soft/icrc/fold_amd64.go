package icrc

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// foldLeast is the length from which folding beats package hash/crc32; it has
// to be at least 256.
const foldLeast = 512

// hasFold says whether the processor multiplies 512 bits at a time; hash/crc32
// uses 128, and the CRC is the largest part of what a packet costs beside the
// kernel.
var hasFold = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ

//go:noescape
func fold(reg uint32, p *byte, n int) uint32

// updateLong continues a CRC over p, of at least foldLeast bytes, or some of it,
// and returns the rest.
func updateLong(crc uint32, p []byte) (uint32, []byte) {
	if !hasFold {
		return crc32.Update(crc, crc32.IEEETable, p), nil
	}
	n := len(p) &^ 63
	return ^fold(^crc, &p[0], n), p[n:]
}
