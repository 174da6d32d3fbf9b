package wire

import (
	"encoding/binary"

	"github.com/nvmf-go/nvmf/fabric/soft/psn"
)

// RETH is the RDMA extended transport header (IBTA vol 1, 9.3.3): 16 bytes.
type RETH []byte

// Put writes the header.
func (h RETH) Put(va uint64, rkey, n uint32) {
	_ = h[RETHLen-1]
	binary.BigEndian.PutUint64(h, va)
	binary.BigEndian.PutUint32(h[8:], rkey)
	binary.BigEndian.PutUint32(h[12:], n)
}

// VA is the virtual address at the responder.
func (h RETH) VA() uint64 { return binary.BigEndian.Uint64(h) }

// RKey is the remote key.
func (h RETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// Length is that of the whole message in bytes.
func (h RETH) Length() uint32 { return binary.BigEndian.Uint32(h[12:]) }

// AtomicETH is the header of an atomic request (9.3.5): 28 bytes.
type AtomicETH []byte

// Put writes the header. For FetchAdd swapAdd is the addend and compare 0.
func (h AtomicETH) Put(va uint64, rkey uint32, swapAdd, compare uint64) {
	_ = h[AtomicETHLen-1]
	binary.BigEndian.PutUint64(h, va)
	binary.BigEndian.PutUint32(h[8:], rkey)
	binary.BigEndian.PutUint64(h[12:], swapAdd)
	binary.BigEndian.PutUint64(h[20:], compare)
}

// VA is the address of the 8 bytes.
func (h AtomicETH) VA() uint64 { return binary.BigEndian.Uint64(h) }

// RKey is the remote key.
func (h AtomicETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// SwapAdd is the new value of a CmpSwap, the addend of a FetchAdd.
func (h AtomicETH) SwapAdd() uint64 { return binary.BigEndian.Uint64(h[12:]) }

// Compare is what a CmpSwap compares with.
func (h AtomicETH) Compare() uint64 { return binary.BigEndian.Uint64(h[20:]) }

// AETH is the ACK header (9.3.4): 4 bytes.
type AETH []byte

// Put writes the header.
func (h AETH) Put(s Syndrome, msn psn.Value) {
	binary.BigEndian.PutUint32(h, uint32(s)<<24|uint32(msn))
}

// Syndrome says whether it is an ACK, an RNR NAK or a NAK, and which.
func (h AETH) Syndrome() Syndrome { return Syndrome(h[0]) }

// MSN is the responder's message sequence number.
func (h AETH) MSN() psn.Value { return psn.New(binary.BigEndian.Uint32(h)) }

// DETH is the datagram header (9.3.1): 8 bytes.
type DETH []byte

// Put writes the header.
func (h DETH) Put(qkey, srcQP uint32) {
	_ = h[DETHLen-1]
	binary.BigEndian.PutUint32(h, qkey)
	binary.BigEndian.PutUint32(h[4:], srcQP&psn.Mask)
}

// QKey is the queue key.
func (h DETH) QKey() uint32 { return binary.BigEndian.Uint32(h) }

// SrcQP is the QP that sent the datagram.
func (h DETH) SrcQP() uint32 { return binary.BigEndian.Uint32(h[4:]) & psn.Mask }

// PutImm writes an ImmDt or an IETH: both are one 32-bit word.
func PutImm(b []byte, v uint32) { binary.BigEndian.PutUint32(b, v) }

// PutAtomicAck writes an AtomicAckETH.
func PutAtomicAck(b []byte, original uint64) { binary.BigEndian.PutUint64(b, original) }
