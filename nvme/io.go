package nvme

// Bits of command dword 12 of the NVM I/O commands that carry an LBA range.
const (
	IODeallocate    uint32 = 1 << 25 // DEAC, Write Zeroes
	IONamespaceZero uint32 = 1 << 23 // NSZ, Write Zeroes: the whole namespace
	IOStorageTag    uint32 = 1 << 24 // STC: check the storage tag
	IOProtection    uint32 = 0xF << 26
	IOFUA           uint32 = 1 << 30
	IOLimitedRetry  uint32 = 1 << 31
)

// DEAC is the deallocate bit of Write Zeroes.
func (c Command) DEAC() bool { return c.CDW(12)&IODeallocate != 0 }

// LimitedRetry is LR of the commands that carry an LBA range.
func (c Command) LimitedRetry() bool { return c.CDW(12)&IOLimitedRetry != 0 }

// PRINFO is the protection information field of the commands that carry an LBA
// range: bit 3 PRACT, bits 2:0 PRCHK.
func (c Command) PRINFO() uint8 { return uint8(c.CDW(12)>>26) & 0xF }

// InitIO makes the SQE a command on nlb blocks (1 to 65536) from slba, with the
// flags of command dword 12 (the IO constants).
func (c Command) InitIO(o Opcode, nsid uint32, slba uint64, nlb, flags uint32) {
	c.Init(o, nsid)
	c.SetSLBA(slba)
	c.SetCDW(12, flags)
	c.SetNLB(nlb)
}

// AbortCommand is the SQE of Abort (Base 5.1).
type AbortCommand struct{ Command }

// Abort views c as Abort.
func (c Command) Abort() AbortCommand { return AbortCommand{c} }

// SQID is the queue of the command to abort.
func (c AbortCommand) SQID() uint16 { return le.Uint16(c.Command[40:]) }

// TargetCID is the command to abort.
func (c AbortCommand) TargetCID() uint16 { return le.Uint16(c.Command[42:]) }

// Init makes the SQE an Abort of command cid of queue sqid.
func (c AbortCommand) Init(sqid, cid uint16) {
	c.Command.Init(AdminAbort, 0)
	c.SetCDW(10, uint32(cid)<<16|uint32(sqid))
}

// AbortNotAborted is bit 0 of the result of Abort: the command was not aborted.
const AbortNotAborted uint64 = 1 << 0

// Attributes of Dataset Management, command dword 11.
const (
	DSMIntegralRead  uint32 = 1 << 0 // IDR
	DSMIntegralWrite uint32 = 1 << 1 // IDW
	DSMDeallocate    uint32 = 1 << 2 // AD
)

// DSMRangeSize is the size of a range of Dataset Management in bytes.
const DSMRangeSize = 16

// DSMMaxRanges is the greatest number of ranges of one command.
const DSMMaxRanges = 256

// DSMCommand is the SQE of Dataset Management (NVM 3.2.3).
type DSMCommand struct{ Command }

// DSM views c as Dataset Management.
func (c Command) DSM() DSMCommand { return DSMCommand{c} }

// Ranges is the number of ranges, 1 to DSMMaxRanges (NR is 0-based).
func (c DSMCommand) Ranges() int { return int(c.Command[40]) + 1 }

// Attributes is command dword 11.
func (c DSMCommand) Attributes() uint32 { return c.CDW(11) }

// Deallocate is AD.
func (c DSMCommand) Deallocate() bool { return c.CDW(11)&DSMDeallocate != 0 }

// Init makes the SQE a Dataset Management of n ranges, 1 to DSMMaxRanges.
func (c DSMCommand) Init(nsid uint32, n int, attributes uint32) {
	c.Command.Init(CmdDatasetManagement, nsid)
	c.Command[40] = byte(n - 1)
	c.SetCDW(11, attributes)
}

// DSMRanges is a view of the ranges of Dataset Management, DSMRangeSize bytes
// each.
type DSMRanges []byte

// DSMRange is a range of blocks.
type DSMRange struct {
	Attributes uint32 // context attributes
	Blocks     uint32 // not 0-based: 0 is an empty range
	SLBA       uint64
}

// Len is the number of whole ranges in the bytes.
func (r DSMRanges) Len() int { return len(r) / DSMRangeSize }

// At is range i.
func (r DSMRanges) At(i int) DSMRange {
	b := r[DSMRangeSize*i:][:DSMRangeSize]
	return DSMRange{le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:])}
}

// Set sets range i.
func (r DSMRanges) Set(i int, v DSMRange) {
	b := r[DSMRangeSize*i:][:DSMRangeSize]
	le.PutUint32(b, v.Attributes)
	le.PutUint32(b[4:], v.Blocks)
	le.PutUint64(b[8:], v.SLBA)
}
