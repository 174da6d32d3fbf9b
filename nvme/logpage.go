package nvme

import "math"

// LogPage is a log page identifier (Base figure 202).
type LogPage uint8

// Log pages.
const (
	LogSupported      LogPage = 0x00 // SupportedPages
	LogError          LogPage = 0x01 // ErrorEntry
	LogSMART          LogPage = 0x02 // SMARTLog
	LogFirmware       LogPage = 0x03 // FirmwareLog
	LogChangedNS      LogPage = 0x04 // NSList
	LogEffects        LogPage = 0x05 // EffectsLog
	LogSelfTest       LogPage = 0x06
	LogTelemetryHost  LogPage = 0x07
	LogTelemetryCtrl  LogPage = 0x08
	LogEndurance      LogPage = 0x09
	LogPredLatency    LogPage = 0x0A
	LogANA            LogPage = 0x0C // ANAHeader, ANAGroup
	LogPersistent     LogPage = 0x0D
	LogLBAStatus      LogPage = 0x0E
	LogFeatureEffects LogPage = 0x12 // FeatureEffects
	LogDiscovery      LogPage = 0x70 // DiscoveryHeader, DiscoveryEntry
	LogReservation    LogPage = 0x80 // ReservationNotification
	LogSanitize       LogPage = 0x81
)

var logPageNames = map[LogPage]string{
	LogSupported: "Supported Log Pages", LogError: "Error Information", LogSMART: "SMART / Health Information",
	LogFirmware: "Firmware Slot Information", LogChangedNS: "Changed Namespace List",
	LogEffects: "Commands Supported and Effects", LogSelfTest: "Device Self-test",
	LogTelemetryHost: "Telemetry Host-Initiated", LogTelemetryCtrl: "Telemetry Controller-Initiated",
	LogEndurance: "Endurance Group Information", LogPredLatency: "Predictable Latency Per NVM Set",
	LogANA: "Asymmetric Namespace Access", LogPersistent: "Persistent Event", LogLBAStatus: "LBA Status Information",
	LogFeatureEffects: "Feature Identifiers Supported and Effects", LogDiscovery: "Discovery",
	LogReservation: "Reservation Notification", LogSanitize: "Sanitize Status",
}

func (p LogPage) String() string { return nameOf(logPageNames, p, "log page") }

// LogRequest is what a Get Log Page asks for (Base 5.16.1).
type LogRequest struct {
	LID LogPage
	LSP uint8 // log specific field, 7 bits
	RAE bool  // retain the asynchronous event
	// Length is the number of bytes wanted, a multiple of 4 from 4 to 16 GiB
	// (NUMD, which is dwords, 0-based, in 32 bits).
	Length uint64
	// Offset is the first byte wanted, or the index of an entry when OT.
	Offset    uint64
	OT        bool
	LSI       uint16 // log specific identifier
	UUIDIndex uint8
	CSI       CSI
}

// LogCommand is the SQE of Get Log Page.
type LogCommand struct{ Command }

// GetLogPage views c as Get Log Page.
func (c Command) GetLogPage() LogCommand { return LogCommand{c} }

// Request reads the dwords of the SQE.
func (c LogCommand) Request() LogRequest {
	d10, d11, d14 := c.CDW(10), c.CDW(11), c.CDW(14)
	return LogRequest{
		LID:       LogPage(d10),
		LSP:       uint8(d10>>8) & 0x7F,
		RAE:       d10&(1<<15) != 0,
		Length:    4 * (uint64(d11&0xFFFF)<<16 + uint64(d10>>16) + 1),
		Offset:    le.Uint64(c.Command[48:]),
		OT:        d14&(1<<23) != 0,
		LSI:       uint16(d11 >> 16),
		UUIDIndex: uint8(d14) & 0x7F,
		CSI:       CSI(d14 >> 24),
	}
}

// Init makes the SQE a Get Log Page. A length of 0 is taken as 4; one that is no
// multiple of 4 is rounded up.
func (c LogCommand) Init(nsid uint32, r LogRequest) {
	c.Command.Init(AdminGetLogPage, nsid)
	numd := uint32(0)
	if r.Length > 4 {
		numd = uint32(min((r.Length+3)/4-1, math.MaxUint32))
	}
	d10 := uint32(r.LID) | uint32(r.LSP&0x7F)<<8 | numd<<16
	c.SetCDW(10, withBit(d10, 15, r.RAE))
	c.SetCDW(11, numd>>16|uint32(r.LSI)<<16)
	le.PutUint64(c.Command[48:], r.Offset)
	d14 := uint32(r.UUIDIndex&0x7F) | uint32(r.CSI)<<24
	c.SetCDW(14, withBit(d14, 23, r.OT))
}

// SupportedPagesSize is the size of log page 00h in bytes.
const SupportedPagesSize = 1024

// LogSupport is one dword of log page 00h (Base 5.16.1).
type LogSupport uint32

// Bits of a LogSupport. Bits 31:16 are specific to the page.
const (
	LogPageSupported      LogSupport = 1 << 0
	LogPageIndexSupported LogSupport = 1 << 1 // OT of Get Log Page
)

// SupportedPages is a view of log page 00h, SupportedPagesSize bytes.
type SupportedPages []byte

// At is the dword of a page.
func (s SupportedPages) At(p LogPage) LogSupport { return LogSupport(le.Uint32(s[4*int(p):])) }

// Set sets the dword of a page.
func (s SupportedPages) Set(p LogPage, v LogSupport) { le.PutUint32(s[4*int(p):], uint32(v)) }

// ErrorEntrySize is the size of an entry of log page 01h in bytes.
const ErrorEntrySize = 64

// ErrorLocationNone says that an error is not of a field of the command.
const ErrorLocationNone uint16 = 0xFFFF

// SQIDNone says that an error entry is not of one queue or command.
const SQIDNone uint16 = 0xFFFF

// ErrorEntry is an entry of log page 01h (Base 5.16.1).
type ErrorEntry struct {
	Count    uint64 // unique, ascending; 0 marks an entry that is not used
	SQID     uint16
	CID      uint16
	Status   Status
	Location uint16 // ErrorLocation
	LBA      uint64
	NSID     uint32
	VSIA     uint8 // vendor log page with more
	TRTYPE   TransportType
	CSI      CSI    // Base 2.1, with Version 1
	Opcode   Opcode // Base 2.1, with Version 1
	Specific uint64 // command specific information
	TTSI     uint16 // transport type specific information
	Version  uint8  // Base 2.1: 1 when CSI and Opcode are valid
}

// ErrorLocation names bit b of byte n of the SQE as the parameter in error.
func ErrorLocation(n uint8, b uint8) uint16 { return uint16(b&7)<<8 | uint16(n) }

// MarshalTo fills b, ErrorEntrySize bytes.
func (e *ErrorEntry) MarshalTo(b []byte) { e.visit(encoder("error log entry", b, ErrorEntrySize)) }

// Unmarshal reads b, ErrorEntrySize bytes.
func (e *ErrorEntry) Unmarshal(b []byte) error {
	if err := checkLength("error log entry", b, ErrorEntrySize); err != nil {
		return err
	}
	e.visit(decoder(b))
	return nil
}

func (e *ErrorEntry) visit(l layout) {
	field := uint16(e.Status) << 1 // as in a CQE, bit 0 being the phase tag
	u64(l, 0, &e.Count)
	u16(l, 8, &e.SQID)
	u16(l, 10, &e.CID)
	u16(l, 12, &field)
	u16(l, 14, &e.Location)
	u64(l, 16, &e.LBA)
	u32(l, 24, &e.NSID)
	u8(l, 28, &e.VSIA)
	u8(l, 29, &e.TRTYPE)
	u8(l, 30, &e.CSI)
	u8(l, 31, &e.Opcode)
	u64(l, 32, &e.Specific)
	u16(l, 40, &e.TTSI)
	u8(l, 63, &e.Version)
	e.Status = Status(field >> 1)
}

// FirmwareLogSize is the size of log page 03h in bytes.
const FirmwareLogSize = 512

// FirmwareLog is log page 03h (Base 5.16.1).
type FirmwareLog struct {
	AFI uint8      // bits 2:0 the active slot, 6:4 that of the next reset
	FRS [7][8]byte // revisions of slots 1 to 7, PutText; empty slots are zero
}

// MarshalTo fills b, FirmwareLogSize bytes.
func (f *FirmwareLog) MarshalTo(b []byte) { f.visit(encoder("firmware log", b, FirmwareLogSize)) }

// Unmarshal reads b, FirmwareLogSize bytes.
func (f *FirmwareLog) Unmarshal(b []byte) error {
	if err := checkLength("firmware log", b, FirmwareLogSize); err != nil {
		return err
	}
	f.visit(decoder(b))
	return nil
}

func (f *FirmwareLog) visit(l layout) {
	u8(l, 0, &f.AFI)
	for i := range f.FRS {
		raw(l, 8+8*i, f.FRS[i][:])
	}
}

// EffectsLogSize is the size of log page 05h in bytes.
const EffectsLogSize = 4096

// Effects is one dword of log page 05h (Base 5.16.1).
type Effects uint32

// Bits of Effects. Bits 31:20 are the scope.
const (
	EffectSupported       Effects = 1 << 0  // CSUPP
	EffectContentChange   Effects = 1 << 1  // LBCC: logical block content
	EffectNamespaceChange Effects = 1 << 2  // NCC: namespace capability
	EffectInventoryChange Effects = 1 << 3  // NIC: namespace inventory
	EffectControllerCap   Effects = 1 << 4  // CCC: controller capability
	EffectExclusiveNS     Effects = 1 << 16 // CSE 001b: alone in the namespace
	EffectExclusiveAll    Effects = 2 << 16 // CSE 010b: alone in any namespace
	EffectExclusiveMask   Effects = 7 << 16
	EffectUUIDSelection   Effects = 1 << 19

	EffectScopeNamespace  Effects = 1 << 20
	EffectScopeController Effects = 1 << 21
	EffectScopeNVMSet     Effects = 1 << 22
	EffectScopeEndurance  Effects = 1 << 23
	EffectScopeDomain     Effects = 1 << 24
	EffectScopeSubsystem  Effects = 1 << 25
)

// EffectsLog is a view of log page 05h, EffectsLogSize bytes.
type EffectsLog []byte

// Admin is the dword of an admin command.
func (e EffectsLog) Admin(o Opcode) Effects { return Effects(le.Uint32(e[4*int(o):])) }

// IO is the dword of an I/O command.
func (e EffectsLog) IO(o Opcode) Effects { return Effects(le.Uint32(e[1024+4*int(o):])) }

// SetAdmin sets the dword of an admin command.
func (e EffectsLog) SetAdmin(o Opcode, v Effects) { le.PutUint32(e[4*int(o):], uint32(v)) }

// SetIO sets the dword of an I/O command.
func (e EffectsLog) SetIO(o Opcode, v Effects) { le.PutUint32(e[1024+4*int(o):], uint32(v)) }

// FeatureEffectsSize is the size of log page 12h in bytes.
const FeatureEffectsSize = 1024

// FeatureEffect is one dword of log page 12h (Base 5.16.1).
type FeatureEffect uint32

// Bits of a FeatureEffect. Bits 31:20 are the scope, as of Effects.
const (
	FeatureSupported       FeatureEffect = 1 << 0 // FSUPP
	FeatureContentChange   FeatureEffect = 1 << 1 // UDCC: user data content
	FeatureNamespaceChange FeatureEffect = 1 << 2
	FeatureInventoryChange FeatureEffect = 1 << 3
	FeatureControllerCap   FeatureEffect = 1 << 4
	FeatureUUIDSelection   FeatureEffect = 1 << 19

	FeatureScopeNamespace  FeatureEffect = 1 << 20
	FeatureScopeController FeatureEffect = 1 << 21
	FeatureScopeNVMSet     FeatureEffect = 1 << 22
	FeatureScopeEndurance  FeatureEffect = 1 << 23
	FeatureScopeDomain     FeatureEffect = 1 << 24
	FeatureScopeSubsystem  FeatureEffect = 1 << 25
)

// FeatureEffects is a view of log page 12h, FeatureEffectsSize bytes.
type FeatureEffects []byte

// At is the dword of a feature.
func (f FeatureEffects) At(id FeatureID) FeatureEffect {
	return FeatureEffect(le.Uint32(f[4*int(id):]))
}

// Set sets the dword of a feature.
func (f FeatureEffects) Set(id FeatureID, v FeatureEffect) { le.PutUint32(f[4*int(id):], uint32(v)) }

// ReservationNotificationSize is the size of log page 80h in bytes.
const ReservationNotificationSize = 64

// ReservationEvent is the type of a reservation notification.
type ReservationEvent uint8

// Reservation notifications.
const (
	ReservationEmpty                 ReservationEvent = 0
	ReservationRegistrationPreempted ReservationEvent = 1
	ReservationReleased              ReservationEvent = 2
	ReservationPreempted             ReservationEvent = 3
)

var reservationEventNames = map[ReservationEvent]string{
	ReservationEmpty: "empty log page", ReservationRegistrationPreempted: "registration preempted",
	ReservationReleased: "reservation released", ReservationPreempted: "reservation preempted",
}

func (e ReservationEvent) String() string {
	return nameOf(reservationEventNames, e, "reservation notification")
}

// ReservationNotification is log page 80h (Base 5.16.1).
type ReservationNotification struct {
	Count     uint64 // ascending by one for each notification, wrapping to 1
	Type      ReservationEvent
	Available uint8 // notifications that wait, 255 for more
	NSID      uint32
}

// MarshalTo fills b, ReservationNotificationSize bytes.
func (r *ReservationNotification) MarshalTo(b []byte) {
	r.visit(encoder("reservation notification", b, ReservationNotificationSize))
}

// Unmarshal reads b, ReservationNotificationSize bytes.
func (r *ReservationNotification) Unmarshal(b []byte) error {
	if err := checkLength("reservation notification", b, ReservationNotificationSize); err != nil {
		return err
	}
	r.visit(decoder(b))
	return nil
}

func (r *ReservationNotification) visit(l layout) {
	u64(l, 0, &r.Count)
	u8(l, 8, &r.Type)
	u8(l, 9, &r.Available)
	u32(l, 12, &r.NSID)
}
