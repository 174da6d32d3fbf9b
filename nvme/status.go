package nvme

import "fmt"

// Status is the 15-bit status field of a CQE without the phase tag (Base
// 3.3.3.2): bits 7:0 SC, 10:8 SCT, 12:11 CRD, 13 M, 14 DNR. 0 is success.
type Status uint16

// Bits of a Status.
const (
	StatusMore Status = 1 << 13 // more information is in the error log
	StatusDNR  Status = 1 << 14 // do not retry
	statusCode Status = 0x7FF   // SCT and SC
)

// Generic command statuses (Base figure 95).
const (
	Success                  Status = 0x000
	InvalidOpcode            Status = 0x001
	InvalidField             Status = 0x002
	CommandIDConflict        Status = 0x003
	DataTransferError        Status = 0x004
	AbortedPowerLoss         Status = 0x005
	InternalError            Status = 0x006
	AbortRequested           Status = 0x007
	AbortedSQDeletion        Status = 0x008
	AbortedFailedFused       Status = 0x009
	AbortedMissingFused      Status = 0x00A
	InvalidNamespace         Status = 0x00B
	CommandSequenceError     Status = 0x00C
	InvalidSGLSegment        Status = 0x00D
	InvalidSGLCount          Status = 0x00E
	DataSGLLengthInvalid     Status = 0x00F
	MetadataSGLLengthInvalid Status = 0x010
	SGLTypeInvalid           Status = 0x011
	PRPOffsetInvalid         Status = 0x013
	AtomicWriteUnitExceeded  Status = 0x014
	OperationDenied          Status = 0x015
	SGLOffsetInvalid         Status = 0x016
	HostIDInconsistent       Status = 0x018
	KeepAliveExpired         Status = 0x019
	KeepAliveInvalid         Status = 0x01A
	AbortedPreempt           Status = 0x01B
	SanitizeFailed           Status = 0x01C
	SanitizeInProgress       Status = 0x01D
	SGLDataBlockGranularity  Status = 0x01E
	NamespaceWriteProtected  Status = 0x020
	CommandInterrupted       Status = 0x021
	TransientTransport       Status = 0x022
	ProhibitedByLockdown     Status = 0x023
	MediaNotReady            Status = 0x024
	LBAOutOfRange            Status = 0x080
	CapacityExceeded         Status = 0x081
	NamespaceNotReady        Status = 0x082
	ReservationConflict      Status = 0x083
	FormatInProgress         Status = 0x084
)

// Command specific statuses (Base figure 96, NVMe-oF 3.3). Codes from 180h on
// depend on the command: those of Connect and those of the NVM command set are
// the same numbers.
const (
	InvalidQueueID            Status = 0x101
	InvalidQueueSize          Status = 0x102
	AbortLimitExceeded        Status = 0x103
	AsyncEventLimitExceeded   Status = 0x105
	InvalidLogPage            Status = 0x109
	InvalidFormat             Status = 0x10A
	FeatureNotSaveable        Status = 0x10D
	FeatureNotChangeable      Status = 0x10E
	FeatureNotNamespace       Status = 0x10F
	OverlappingRange          Status = 0x114
	NamespaceCapacity         Status = 0x115
	NamespaceIDUnavailable    Status = 0x116
	NamespaceAttached         Status = 0x118
	NamespacePrivate          Status = 0x119
	NamespaceNotAttached      Status = 0x11A
	InvalidControllerID       Status = 0x11F
	ANAGroupInvalid           Status = 0x124
	CommandSetNotSupported    Status = 0x129
	CommandSetNotEnabled      Status = 0x12A
	CommandSetsRejected       Status = 0x12B
	InvalidCommandSet         Status = 0x12C
	ConnectIncompatibleFormat Status = 0x180
	ConnectControllerBusy     Status = 0x181
	ConnectInvalidParameters  Status = 0x182
	ConnectRestartDiscovery   Status = 0x183
	ConnectInvalidHost        Status = 0x184
	InvalidQueueType          Status = 0x185
	DiscoverRestart           Status = 0x190
	AuthenticationRequired    Status = 0x191
	ConflictingAttributes     Status = 0x180 // NVM commands
	InvalidProtectionInfo     Status = 0x181
	WriteToReadOnlyRange      Status = 0x182
	CommandSizeLimitExceeded  Status = 0x183
)

// Media and path statuses (Base figures 98 and 99).
const (
	WriteFault           Status = 0x280
	UnrecoveredReadError Status = 0x281
	GuardCheck           Status = 0x282
	ApplicationTagCheck  Status = 0x283
	ReferenceTagCheck    Status = 0x284
	CompareFailure       Status = 0x285
	AccessDenied         Status = 0x286
	DeallocatedBlock     Status = 0x287
	InternalPathError    Status = 0x300
	ANAPersistentLoss    Status = 0x301
	ANAInaccessible      Status = 0x302
	ANATransition        Status = 0x303
	ControllerPathError  Status = 0x360
	HostPathError        Status = 0x370
	HostAborted          Status = 0x371
)

// Code is the status code type and status code alone, for comparison.
func (s Status) Code() Status { return s & statusCode }

// SC is the 8-bit status code.
func (s Status) SC() uint8 { return uint8(s) }

// SCT is the 3-bit status code type.
func (s Status) SCT() uint8 { return uint8(s>>8) & 7 }

// DNR says whether the do-not-retry bit is set.
func (s Status) DNR() bool { return s&StatusDNR != 0 }

// More says whether the error log has more.
func (s Status) More() bool { return s&StatusMore != 0 }

// CRD is the command retry delay: 0 for none, or which of CRDT1 to CRDT3 of
// Identify Controller.
func (s Status) CRD() uint8 { return uint8(s>>11) & 3 }

// WithCRD sets CRD.
func (s Status) WithCRD(n uint8) Status { return s&^(3<<11) | Status(n&3)<<11 }

// OK says whether the command succeeded.
func (s Status) OK() bool { return s.Code() == Success }

// Error makes Status usable with errors.Is; commands report *StatusError.
func (s Status) Error() string { return s.String() }

// String is the status in words, with its number. Codes that mean one thing for
// Connect and another for I/O commands are told with both; StatusText knows.
func (s Status) String() string {
	text, ok := statusNames[s.Code()]
	if fabrics, both := fabricsNames[s.Code()]; both && ok {
		text = fabrics + ", or " + text
	} else if both {
		text, ok = fabrics, true
	}
	return s.format(text, ok)
}

// StatusText is s in words, as a command of opcode o has to read it: from 180h
// on the command specific codes of fabrics commands and of the NVM command set
// overlap.
func StatusText(s Status, o Opcode) string {
	if o == CmdFabrics {
		if text, ok := fabricsNames[s.Code()]; ok {
			return s.format(text, true)
		}
	}
	if text, ok := statusNames[s.Code()]; ok {
		return s.format(text, true)
	}
	text, ok := fabricsNames[s.Code()]
	return s.format(text, ok)
}

func (s Status) format(text string, known bool) string {
	if !known {
		text = unknownText(s)
	}
	if s.DNR() {
		return fmt.Sprintf("%s (%#x, do not retry)", text, uint16(s.Code()))
	}
	return fmt.Sprintf("%s (%#x)", text, uint16(s.Code()))
}

func unknownText(s Status) string {
	switch s.SCT() {
	case 0:
		return "unknown generic status"
	case 1:
		return "unknown command specific status"
	case 2:
		return "unknown media or data integrity error"
	case 3:
		return "unknown path error"
	case 7:
		return "vendor specific status"
	}
	return "unknown status"
}

// StatusError is a failed command at an API.
type StatusError struct {
	Status Status
	Opcode Opcode
	FCType FabricsType // when Opcode is CmdFabrics
	QID    uint16
	CID    uint16
	Admin  bool   // which set Opcode is of
	Result uint64 // of the CQE: where an invalid Connect parameter is
}

func (e *StatusError) Error() string {
	name := OpcodeName(e.Opcode, e.Admin)
	if e.Opcode == CmdFabrics {
		name = e.FCType.String()
	}
	text := fmt.Sprintf("%s: %s", name, StatusText(e.Status, e.Opcode))
	if e.Opcode == CmdFabrics && e.FCType == FabricsConnect && e.Status.Code() == ConnectInvalidParameters {
		text += ": " + ConnectParameter(e.Result)
	}
	return text
}

// Is matches a Status of the same code, whatever its DNR bit.
func (e *StatusError) Is(target error) bool {
	s, ok := target.(Status)
	return ok && s.Code() == e.Status.Code()
}
