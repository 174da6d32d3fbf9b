#include "textflag.h"

// Multipliers for folding 128 bits over a distance of D bits: x^(D+32) mod P
// for the low half and x^(D-32) for the high half, bit-reflected and shifted
// left by one, as carry-less products of reflected numbers need. The test
// TestFoldConstants derives all of them.
DATA fold2048<>+0(SB)/8, $0x000000011542778a
DATA fold2048<>+8(SB)/8, $0x00000001322d1430
GLOBL fold2048<>(SB), RODATA|NOPTR, $16
DATA fold512<>+0(SB)/8, $0x0000000154442bd4
DATA fold512<>+8(SB)/8, $0x00000001c6e41596
GLOBL fold512<>(SB), RODATA|NOPTR, $16
DATA fold128<>+0(SB)/8, $0x00000001751997d0
DATA fold128<>+8(SB)/8, $0x00000000ccaa009e
GLOBL fold128<>(SB), RODATA|NOPTR, $16
// For the last steps: x^64, and for Barrett's reduction P and x^64 div P.
DATA fold64<>+0(SB)/8, $0x0000000163cd6124
DATA fold64<>+8(SB)/8, $0
GLOBL fold64<>(SB), RODATA|NOPTR, $16
DATA barrett<>+0(SB)/8, $0x00000001db710641
DATA barrett<>+8(SB)/8, $0x00000001f7011641
GLOBL barrett<>(SB), RODATA|NOPTR, $16
DATA low32<>+0(SB)/8, $0x00000000ffffffff
DATA low32<>+8(SB)/8, $0
GLOBL low32<>(SB), RODATA|NOPTR, $16

// FOLD moves acc forward over the distance of the multipliers k and adds what
// is there.
#define FOLD(acc, k, tmp, data) \
	VPCLMULQDQ $0x00, k, acc, tmp \
	VPCLMULQDQ $0x11, k, acc, acc \
	VPTERNLOGD $0x96, data, tmp, acc

// func fold(reg uint32, p *byte, n int) uint32
//
// The CRC register behind the n bytes at p, n a multiple of 64 and at least
// 256, when it is reg before them.
TEXT ·fold(SB), NOSPLIT, $0-28
	MOVL reg+0(FP), AX
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX

	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVD AX, X4
	VPXORQ Z4, Z0, Z0
	VBROADCASTI32X4 fold2048<>(SB), Z5
	ADDQ $256, SI
	SUBQ $256, CX

blocks256:
	CMPQ CX, $256
	JLT merge
	FOLD(Z0, Z5, Z6, (SI))
	FOLD(Z1, Z5, Z7, 64(SI))
	FOLD(Z2, Z5, Z8, 128(SI))
	FOLD(Z3, Z5, Z9, 192(SI))
	ADDQ $256, SI
	SUBQ $256, CX
	JMP blocks256

merge: // four accumulators, 64 bytes apart, into the last
	VBROADCASTI32X4 fold512<>(SB), Z5
	FOLD(Z0, Z5, Z6, Z1)
	FOLD(Z0, Z5, Z6, Z2)
	FOLD(Z0, Z5, Z6, Z3)

blocks64:
	CMPQ CX, $64
	JLT lanes
	FOLD(Z0, Z5, Z6, (SI))
	ADDQ $64, SI
	SUBQ $64, CX
	JMP blocks64

lanes: // four lanes, 16 bytes apart, into the last
	VMOVDQU fold128<>(SB), X5
	VEXTRACTI32X4 $1, Z0, X1
	VEXTRACTI32X4 $2, Z0, X2
	VEXTRACTI32X4 $3, Z0, X3
	FOLD(X0, X5, X6, X1)
	FOLD(X0, X5, X6, X2)
	FOLD(X0, X5, X6, X3)

	// 128 bits to 96, to 64.
	VMOVDQU low32<>(SB), X4
	VPCLMULQDQ $0x10, X5, X0, X1
	VPSRLDQ $8, X0, X0
	VPXOR X1, X0, X0
	VPAND X4, X0, X1
	VPSRLDQ $4, X0, X0
	VMOVDQU fold64<>(SB), X5
	VPCLMULQDQ $0x00, X5, X1, X1
	VPXOR X1, X0, X0

	// Barrett: to 32.
	VMOVDQU barrett<>(SB), X5
	VPAND X4, X0, X1
	VPCLMULQDQ $0x10, X5, X1, X1
	VPAND X4, X1, X1
	VPCLMULQDQ $0x00, X5, X1, X1
	VPXOR X1, X0, X0
	VPEXTRD $1, X0, AX

	VZEROUPPER
	MOVL AX, ret+24(FP)
	RET
