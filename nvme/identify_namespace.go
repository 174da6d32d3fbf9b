package nvme

// Bits of NSFEAT of IdentifyNamespace, byte 24.
const (
	NSFEATThin          uint8 = 1 << 0
	NSFEATAtomic        uint8 = 1 << 1 // NAWUN, NAWUPF, NACWU are defined
	NSFEATDeallocError  uint8 = 1 << 2 // the Deallocated or Unwritten error
	NSFEATUniqueIDs     uint8 = 1 << 3 // identifiers are never reused
	NSFEATOptimalFields uint8 = 1 << 4 // NPWG, NPWA, NPDG, NPDA, NOWS are defined
)

// NMICShared is bit 0 of NMIC: several controllers may attach the namespace.
const NMICShared uint8 = 1 << 0

// Bits of RESCAP: reservation capabilities.
const (
	RESCAPPersist                uint8 = 1 << 0 // through power loss
	RESCAPWriteExclusive         uint8 = 1 << 1
	RESCAPExclusiveAccess        uint8 = 1 << 2
	RESCAPWriteExclusiveRegOnly  uint8 = 1 << 3
	RESCAPExclusiveAccessRegOnly uint8 = 1 << 4
	RESCAPWriteExclusiveAllReg   uint8 = 1 << 5
	RESCAPExclusiveAccessAllReg  uint8 = 1 << 6
	RESCAPIgnoreKey13            uint8 = 1 << 7 // IEKEY as of revision 1.3
)

// DLFEAT: what deallocated blocks read as in bits 2:0, and bit 3.
const (
	DLFEATUnreported  uint8 = 0
	DLFEATZeroes      uint8 = 1
	DLFEATOnes        uint8 = 2
	DLFEATReadMask    uint8 = 7
	DLFEATWriteZeroes uint8 = 1 << 3 // the Deallocate bit of Write Zeroes
	DLFEATGuardCRC    uint8 = 1 << 4
)

// NSATTRWriteProtected is bit 0 of NSATTR.
const NSATTRWriteProtected uint8 = 1 << 0

// LBAFormat is an LBA format descriptor (NVM 4.1.5).
type LBAFormat uint32

// MakeLBAFormat makes a format of 2^lbads byte blocks, ms bytes of metadata and
// relative performance rp (0 best).
func MakeLBAFormat(lbads uint8, ms uint16, rp uint8) LBAFormat {
	return LBAFormat(rp&3)<<24 | LBAFormat(lbads)<<16 | LBAFormat(ms)
}

// MS is the metadata size in bytes.
func (f LBAFormat) MS() uint16 { return uint16(f) }

// LBADS is the block size as 2^n bytes; 0 means no such format.
func (f LBAFormat) LBADS() uint8 { return uint8(f >> 16) }

// RP is the relative performance, 0 is best.
func (f LBAFormat) RP() uint8 { return uint8(f>>24) & 3 }

// BlockSize is the block size in bytes, 0 when LBADS is not 9 to 31.
func (f LBAFormat) BlockSize() uint32 {
	if n := f.LBADS(); n >= 9 && n <= 31 {
		return 1 << n
	}
	return 0
}

// MaxLBAFormats is the number of LBA format descriptors.
const MaxLBAFormats = 64

// IdentifyNamespace is CNS 00h of the NVM command set (NVM 4.1.5). Field
// names are the specification's; counts of blocks marked 0-based are that.
type IdentifyNamespace struct {
	NSZE, NCAP, NUSE uint64 // blocks
	NSFEAT           uint8
	NLBAF            uint8 // formats, 0-based
	FLBAS            uint8 // bits 3:0 and 6:5 format index, bit 4 metadata inline
	MC, DPC, DPS     uint8
	NMIC             uint8
	RESCAP           uint8
	FPI              uint8
	DLFEAT           uint8
	NAWUN, NAWUPF    uint16 // 0-based
	NACWU            uint16 // 0-based
	NABSN, NABO      uint16
	NABSPF           uint16
	NOIOB            uint16  // blocks
	NVMCAP           Uint128 // bytes
	NPWG, NPWA       uint16  // 0-based
	NPDG, NPDA       uint16  // 0-based
	NOWS             uint16  // 0-based
	MSSRL            uint16
	MCL              uint32
	MSRC             uint8
	NULBAF           uint8
	ANAGRPID         uint32
	NSATTR           uint8
	NVMSETID, ENDGID uint16
	NGUID            NGUID
	EUI64            EUI64
	LBAF             [MaxLBAFormats]LBAFormat
}

// MarshalTo fills b, IdentifySize bytes; reserved and vendor bytes are zero.
func (n *IdentifyNamespace) MarshalTo(b []byte) {
	n.visit(encoder("identify namespace", b, IdentifySize))
}

// Unmarshal reads b, IdentifySize bytes.
func (n *IdentifyNamespace) Unmarshal(b []byte) error {
	if err := checkLength("identify namespace", b, IdentifySize); err != nil {
		return err
	}
	n.visit(decoder(b))
	return nil
}

// FormatIndex is the index of the LBA format in use: FLBAS bits 6:5 and 3:0.
func (n *IdentifyNamespace) FormatIndex() int {
	return int(n.FLBAS&0xF | n.FLBAS>>5&3<<4)
}

// Format is the LBA format in use.
func (n *IdentifyNamespace) Format() LBAFormat { return n.LBAF[n.FormatIndex()] }

func (n *IdentifyNamespace) visit(l layout) {
	u64(l, 0, &n.NSZE)
	u64(l, 8, &n.NCAP)
	u64(l, 16, &n.NUSE)
	for i, p := range [...]*uint8{
		&n.NSFEAT, &n.NLBAF, &n.FLBAS, &n.MC, &n.DPC, &n.DPS, &n.NMIC, &n.RESCAP, &n.FPI, &n.DLFEAT,
	} {
		u8(l, 24+i, p)
	}
	for i, p := range [...]*uint16{
		&n.NAWUN, &n.NAWUPF, &n.NACWU, &n.NABSN, &n.NABO, &n.NABSPF, &n.NOIOB,
	} {
		u16(l, 34+2*i, p)
	}
	u128(l, 48, &n.NVMCAP)
	for i, p := range [...]*uint16{&n.NPWG, &n.NPWA, &n.NPDG, &n.NPDA, &n.NOWS, &n.MSSRL} {
		u16(l, 64+2*i, p)
	}
	u32(l, 76, &n.MCL)
	u8(l, 80, &n.MSRC)
	u8(l, 82, &n.NULBAF)
	u32(l, 92, &n.ANAGRPID)
	u8(l, 99, &n.NSATTR)
	u16(l, 100, &n.NVMSETID)
	u16(l, 102, &n.ENDGID)
	raw(l, 104, n.NGUID[:])
	raw(l, 120, n.EUI64[:])
	for i := range n.LBAF {
		u32(l, 128+4*i, &n.LBAF[i])
	}
}

// IdentifyNamespaceNVM is CNS 05h of the NVM command set (NVM 4.1.5).
type IdentifyNamespaceNVM struct {
	LBSTM uint64 // storage tag mask
	PIC   uint8  // protection information capabilities
	ELBAF [MaxLBAFormats]uint32
}

// MarshalTo fills b, IdentifySize bytes.
func (n *IdentifyNamespaceNVM) MarshalTo(b []byte) {
	n.visit(encoder("NVM namespace", b, IdentifySize))
}

// Unmarshal reads b, IdentifySize bytes.
func (n *IdentifyNamespaceNVM) Unmarshal(b []byte) error {
	if err := checkLength("NVM namespace", b, IdentifySize); err != nil {
		return err
	}
	n.visit(decoder(b))
	return nil
}

func (n *IdentifyNamespaceNVM) visit(l layout) {
	u64(l, 0, &n.LBSTM)
	u8(l, 8, &n.PIC)
	for i := range n.ELBAF {
		u32(l, 12+4*i, &n.ELBAF[i])
	}
}

// NSTATReady is bit 0 of NSTAT: the namespace is ready.
const NSTATReady uint8 = 1 << 0

// Bits of NSFEAT of IdentifyNamespaceIndependent.
const (
	NSFEATIndepUniqueIDs uint8 = 1 << 3 // identifiers are never reused
	NSFEATIndepRotating  uint8 = 1 << 4 // Base 2.1
	NSFEATIndepNoVWC     uint8 = 1 << 5 // Base 2.1: the volatile write cache is not present
)

// IdentifyNamespaceIndependent is CNS 08h, what does not depend on the command
// set (Base 5.17.2).
type IdentifyNamespaceIndependent struct {
	NSFEAT           uint8
	NMIC             uint8
	RESCAP           uint8
	FPI              uint8
	ANAGRPID         uint32
	NSATTR           uint8
	NVMSETID, ENDGID uint16
	NSTAT            uint8
}

// MarshalTo fills b, IdentifySize bytes.
func (n *IdentifyNamespaceIndependent) MarshalTo(b []byte) {
	n.visit(encoder("independent namespace", b, IdentifySize))
}

// Unmarshal reads b, IdentifySize bytes.
func (n *IdentifyNamespaceIndependent) Unmarshal(b []byte) error {
	if err := checkLength("independent namespace", b, IdentifySize); err != nil {
		return err
	}
	n.visit(decoder(b))
	return nil
}

func (n *IdentifyNamespaceIndependent) visit(l layout) {
	u8(l, 0, &n.NSFEAT)
	u8(l, 1, &n.NMIC)
	u8(l, 2, &n.RESCAP)
	u8(l, 3, &n.FPI)
	u32(l, 4, &n.ANAGRPID)
	u8(l, 8, &n.NSATTR)
	u16(l, 10, &n.NVMSETID)
	u16(l, 12, &n.ENDGID)
	u8(l, 14, &n.NSTAT)
}
