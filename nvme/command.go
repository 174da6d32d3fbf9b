package nvme

import "encoding/binary"

// Sizes in bytes of queue entries and descriptors.
const (
	SQESize = 64
	CQESize = 16
	SGLSize = 16
)

var le = binary.LittleEndian

// Command is a view of a 64-byte SQE (Base 3.3.3.1). Check its length once,
// where it enters, before any method.
type Command []byte

// Opcode is byte 0.
func (c Command) Opcode() Opcode { return Opcode(c[0]) }

// Flags is byte 1: bits 1:0 FUSE, bits 7:6 PSDT.
func (c Command) Flags() uint8 { return c[1] }

// Fuse is the fused operation field: one of the Fuse constants, or 3, which is
// reserved.
func (c Command) Fuse() uint8 { return c[1] & 3 }

// PSDT says how PRPs or SGLs describe the data: one of the PSDT constants, or 3,
// which is reserved. Fabrics demand PSDTSGL (NVMe-oF 2.1).
func (c Command) PSDT() uint8 { return c[1] >> 6 }

// CID is the command identifier, opaque to the controller.
func (c Command) CID() uint16 { return le.Uint16(c[2:]) }

// NSID is the namespace identifier.
func (c Command) NSID() uint32 { return le.Uint32(c[4:]) }

// SGL1 is the first SGL descriptor.
func (c Command) SGL1() SGL { return SGL(c[24:40]) }

// CDW is command dword n, 10 to 15 in practice.
func (c Command) CDW(n int) uint32 { return le.Uint32(c[4*n:]) }

// SLBA is the starting LBA of the NVM I/O commands.
func (c Command) SLBA() uint64 { return le.Uint64(c[40:]) }

// NLB is the number of logical blocks, 1-based.
func (c Command) NLB() uint32 { return uint32(le.Uint16(c[48:])) + 1 }

// FUA is force unit access of Read, Write, Write Zeroes, Compare and Verify.
func (c Command) FUA() bool { return c[51]&0x40 != 0 }

// FCType is the fabrics command type of a fabrics command (NVMe-oF 3).
func (c Command) FCType() FabricsType { return FabricsType(c[4]) }

// Init clears the SQE and gives it an opcode, a namespace, PSDT 01b and the
// keyed descriptor of no data. The command identifier is 0.
func (c Command) Init(o Opcode, nsid uint32) {
	clear(c[:SQESize])
	c[0], c[1] = byte(o), FlagsSGL
	le.PutUint32(c[4:], nsid)
	c.SGL1().SetNull()
}

// SetOpcode sets byte 0, in place as all setters do.
func (c Command) SetOpcode(o Opcode) { c[0] = byte(o) }

// SetFlags sets byte 1.
func (c Command) SetFlags(f uint8) { c[1] = f }

// SetCID sets the command identifier.
func (c Command) SetCID(id uint16) { le.PutUint16(c[2:], id) }

// SetNSID sets the namespace identifier.
func (c Command) SetNSID(n uint32) { le.PutUint32(c[4:], n) }

// SetCDW sets command dword n.
func (c Command) SetCDW(n int, v uint32) { le.PutUint32(c[4*n:], v) }

// SetSLBA sets the starting LBA.
func (c Command) SetSLBA(lba uint64) { le.PutUint64(c[40:], lba) }

// SetNLB sets the number of logical blocks, 1 to 65536.
func (c Command) SetNLB(n uint32) { le.PutUint16(c[48:], uint16(n-1)) }

// Values of PSDT (Base figure 87).
const (
	PSDTPRP        uint8 = 0
	PSDTSGL        uint8 = 1 // metadata, if any, is contiguous at MPTR
	PSDTSGLSegment uint8 = 2 // MPTR is the address of an SGL segment
)

// Values of FUSE.
const (
	FuseNone   uint8 = 0
	FuseFirst  uint8 = 1
	FuseSecond uint8 = 2
)

// FlagsSGL is byte 1 of a fabrics SQE: PSDT 01b.
const FlagsSGL = PSDTSGL << 6

// SGL is a view of a 16-byte SGL descriptor (Base 4.1.2).
type SGL []byte

// SGLType is the descriptor type, bits 7:4 of byte 15.
type SGLType uint8

// SGL descriptor types and sub types.
const (
	SGLDataBlock      SGLType = 0x0
	SGLBitBucket      SGLType = 0x1
	SGLSegment        SGLType = 0x2
	SGLLastSegment    SGLType = 0x3
	SGLKeyedDataBlock SGLType = 0x4
	SGLTransportData  SGLType = 0x5

	SGLAddress    uint8 = 0x0
	SGLOffset     uint8 = 0x1 // the address is an offset into the capsule
	SGLInvalidate uint8 = 0xF // keyed: invalidate the key with the response
)

// Type is the descriptor type.
func (s SGL) Type() SGLType { return SGLType(s[15] >> 4) }

// SubType is the descriptor sub type.
func (s SGL) SubType() uint8 { return s[15] & 15 }

// Address is the address, or the offset for SGLOffset.
func (s SGL) Address() uint64 { return le.Uint64(s) }

// Length is the 32-bit length of every unkeyed type.
func (s SGL) Length() uint32 { return le.Uint32(s[8:]) }

// KeyedLength is the 24-bit length of a keyed data block.
func (s SGL) KeyedLength() uint32 { return le.Uint32(s[8:]) & 0xFFFFFF }

// Key is the remote key of a keyed data block.
func (s SGL) Key() uint32 { return le.Uint32(s[11:]) }

// SetKeyed makes the descriptor a keyed data block. n is below 1<<24.
func (s SGL) SetKeyed(addr uint64, n, key uint32, sub uint8) {
	le.PutUint64(s, addr)
	le.PutUint32(s[8:], n)
	le.PutUint32(s[11:], key)
	s[15] = byte(SGLKeyedDataBlock)<<4 | sub
}

// SetInCapsule makes the descriptor name n bytes at off of the capsule's data.
func (s SGL) SetInCapsule(off uint64, n uint32) {
	le.PutUint64(s, off)
	le.PutUint32(s[8:], n)
	s[12], s[13], s[14] = 0, 0, 0
	s[15] = byte(SGLDataBlock)<<4 | SGLOffset
}

// Completion is a view of a 16-byte CQE (Base 3.3.3.2, NVMe-oF 2.2).
type Completion []byte

// Put fills the CQE. The phase tag is 0 on fabrics.
func (c Completion) Put(result uint64, sqhd, sqid, cid uint16, s Status) {
	le.PutUint64(c, result)
	le.PutUint16(c[8:], sqhd)
	le.PutUint16(c[10:], sqid)
	le.PutUint16(c[12:], cid)
	le.PutUint16(c[14:], uint16(s)<<1)
}

// Result is the command specific dwords 0 and 1.
func (c Completion) Result() uint64 { return le.Uint64(c) }

// SQHD is the submission queue head pointer.
func (c Completion) SQHD() uint16 { return le.Uint16(c[8:]) }

// SQID is the submission queue identifier.
func (c Completion) SQID() uint16 { return le.Uint16(c[10:]) }

// CID is the command identifier.
func (c Completion) CID() uint16 { return le.Uint16(c[12:]) }

// Status is the status field without the phase tag.
func (c Completion) Status() Status { return Status(le.Uint16(c[14:]) >> 1) }
