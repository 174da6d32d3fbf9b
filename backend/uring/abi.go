package uring

// Setup flags, features, offsets and register codes.
const (
	setupRDisabled    = 1 << 6
	setupSubmitAll    = 1 << 7
	setupCoopTaskrun  = 1 << 8
	setupTaskrunFlag  = 1 << 9
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	featSingleMmap   = 1 << 0
	featNoDrop       = 1 << 1
	featSubmitStable = 1 << 2

	offSQRing = 0
	offSQEs   = 0x10000000

	enterGetEvents = 1 << 0

	sqCQOverflow      = 1 << 1
	sqTaskrun         = 1 << 2
	cqEventFDDisabled = 1 << 0

	registerBuffers     = 0
	unregisterBuffers   = 1
	registerFiles       = 2
	unregisterFiles     = 3
	registerEventFD     = 4
	registerProbe       = 8
	registerEnableRings = 12

	probeSupported = 1 << 0
)

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries      uint32
	flags                     uint32
	sqThreadCPU, sqThreadIdle uint32
	features                  uint32
	wqFD                      uint32
	_                         [3]uint32
	sqOff                     struct {
		head, tail, mask, entries uint32
		flags, dropped, array, _  uint32
		userAddr                  uint64
	}
	cqOff struct {
		head, tail, mask, entries uint32
		overflow, cqes, flags, _  uint32
		userAddr                  uint64
	}
}

// probe is struct io_uring_probe with room for every opcode.
type probe struct {
	lastOp, opsLen uint8
	_              uint16
	_              [3]uint32
	ops            [256]struct {
		op, _ uint8
		flags uint16
		_     uint32
	}
}

// Opcode is what an entry asks for.
type Opcode uint8

// Opcodes, with the kernel that brought them.
const (
	OpNop        Opcode = 0
	OpReadv      Opcode = 1
	OpWritev     Opcode = 2
	OpFsync      Opcode = 3
	OpReadFixed  Opcode = 4
	OpWriteFixed Opcode = 5
	OpFallocate  Opcode = 17 // 5.6
	OpRead       Opcode = 22 // 5.6
	OpWrite      Opcode = 23 // 5.6
	OpURingCmd   Opcode = 46 // 5.19
)

// SQE flags and per-opcode flags.
const (
	FixedFile     = 1 << 0 // Flags: FD is an index of RegisterFiles
	FsyncDatasync = 1 << 0 // OpFlags of OpFsync

	// CmdBlockDiscard is Off of OpURingCmd on a block device: discard Addr3
	// bytes at Addr (Linux 6.12).
	CmdBlockDiscard = 0x12 << 8
)

// SQE is a submission entry, struct io_uring_sqe.
type SQE struct {
	Opcode   Opcode
	Flags    uint8
	IOPrio   uint16
	FD       int32
	Off      uint64 // bytes; the command of OpURingCmd
	Addr     uint64 // of the data or of the iovecs; the length of OpFallocate
	Len      uint32 // bytes, or iovecs; the mode of OpFallocate
	OpFlags  uint32 // RWF_*, FsyncDatasync
	UserData uint64
	BufIndex uint16 // of OpReadFixed and OpWriteFixed
	_        uint16
	_        uint32
	Addr3    uint64
	_        uint64
}

// CQE is a completion entry, struct io_uring_cqe.
type CQE struct {
	UserData uint64
	Res      int32 // bytes, or a negative errno
	Flags    uint32
}
