package nvme

// FeatureID is a feature identifier (Base 5.27.1, NVM 4.1.3).
type FeatureID uint8

// Features.
const (
	FeatArbitration        FeatureID = 0x01 // Arbitration
	FeatPowerManagement    FeatureID = 0x02 // PowerManagement
	FeatLBARangeType       FeatureID = 0x03
	FeatTemperature        FeatureID = 0x04 // TemperatureThreshold
	FeatErrorRecovery      FeatureID = 0x05 // ErrorRecovery
	FeatWriteCache         FeatureID = 0x06 // bit 0: enabled
	FeatNumQueues          FeatureID = 0x07 // NumQueues
	FeatIRQCoalescing      FeatureID = 0x08
	FeatIRQConfig          FeatureID = 0x09
	FeatWriteAtomicity     FeatureID = 0x0A // bit 0: disable normal
	FeatAsyncEvent         FeatureID = 0x0B // AsyncEventConfig
	FeatAutonomousPower    FeatureID = 0x0C
	FeatHostMemory         FeatureID = 0x0D
	FeatTimestamp          FeatureID = 0x0E // Timestamp, 8 bytes of data
	FeatKeepAlive          FeatureID = 0x0F // milliseconds
	FeatHostThermal        FeatureID = 0x10 // HostThermal
	FeatNonOpPower         FeatureID = 0x11
	FeatReadRecovery       FeatureID = 0x12
	FeatHostBehavior       FeatureID = 0x16 // HostBehavior, 512 bytes of data
	FeatSanitize           FeatureID = 0x17
	FeatCommandSetProfile  FeatureID = 0x19 // index of a CNS 1Ch vector
	FeatSoftwareProgress   FeatureID = 0x80
	FeatHostID             FeatureID = 0x81 // bit 0 EXHID; 8 or 16 bytes of data
	FeatReservationMask    FeatureID = 0x82 // ReservationMask bits
	FeatReservationPersist FeatureID = 0x83 // bit 0: persist through power loss
	FeatWriteProtect       FeatureID = 0x84 // WriteProtect
)

var featureNames = map[FeatureID]string{
	FeatArbitration: "Arbitration", FeatPowerManagement: "Power Management", FeatLBARangeType: "LBA Range Type",
	FeatTemperature: "Temperature Threshold", FeatErrorRecovery: "Error Recovery", FeatWriteCache: "Volatile Write Cache",
	FeatNumQueues: "Number of Queues", FeatIRQCoalescing: "Interrupt Coalescing",
	FeatIRQConfig: "Interrupt Vector Configuration", FeatWriteAtomicity: "Write Atomicity Normal",
	FeatAsyncEvent: "Async Event Configuration", FeatAutonomousPower: "Autonomous Power State Transition",
	FeatHostMemory: "Host Memory Buffer", FeatTimestamp: "Timestamp", FeatKeepAlive: "Keep Alive Timer",
	FeatHostThermal: "Host Controlled Thermal Management", FeatNonOpPower: "Non-Operational Power State Config",
	FeatReadRecovery: "Read Recovery Level", FeatHostBehavior: "Host Behavior Support", FeatSanitize: "Sanitize Config",
	FeatCommandSetProfile: "I/O Command Set Profile", FeatSoftwareProgress: "Software Progress Marker",
	FeatHostID: "Host Identifier", FeatReservationMask: "Reservation Notification Mask",
	FeatReservationPersist: "Reservation Persistence", FeatWriteProtect: "Namespace Write Protection Config",
}

func (f FeatureID) String() string { return nameOf(featureNames, f, "feature") }

// FeatureSelect is SEL of Get Features: which value is asked for.
type FeatureSelect uint8

// Values of SEL.
const (
	SelectCurrent   FeatureSelect = 0
	SelectDefault   FeatureSelect = 1
	SelectSaved     FeatureSelect = 2
	SelectSupported FeatureSelect = 3 // the result is FeatureCapabilities
)

var selectNames = map[FeatureSelect]string{
	SelectCurrent: "current", SelectDefault: "default", SelectSaved: "saved", SelectSupported: "supported",
}

func (s FeatureSelect) String() string { return nameOf(selectNames, s, "select") }

// FeatureCapabilities is the result of Get Features with SelectSupported.
type FeatureCapabilities uint32

// Feature capabilities.
const (
	FeatureSaveable   FeatureCapabilities = 1 << 0
	FeatureNSSpecific FeatureCapabilities = 1 << 1
	FeatureChangeable FeatureCapabilities = 1 << 2
)

// FeatureCommand is the SQE of Get Features and Set Features (Base 5.15, 5.27).
type FeatureCommand struct{ Command }

// Features views c as Get Features or Set Features.
func (c Command) Features() FeatureCommand { return FeatureCommand{c} }

// FID is the feature.
func (c FeatureCommand) FID() FeatureID { return FeatureID(c.Command[40]) }

// SEL is which value Get Features asks for.
func (c FeatureCommand) SEL() FeatureSelect { return FeatureSelect(c.Command[41] & 7) }

// SV says that Set Features shall also save the value.
func (c FeatureCommand) SV() bool { return c.Command[43]&0x80 != 0 }

// Value is command dword 11: what Set Features sets.
func (c FeatureCommand) Value() uint32 { return c.CDW(11) }

// UUIDIndex is the UUID index.
func (c FeatureCommand) UUIDIndex() uint8 { return c.Command[56] & 0x7F }

// InitGet makes the SQE a Get Features. v is command dword 11, which few
// features use to select.
func (c FeatureCommand) InitGet(id FeatureID, sel FeatureSelect, nsid, v uint32) {
	c.Command.Init(AdminGetFeatures, nsid)
	c.Command[40], c.Command[41] = byte(id), byte(sel&7)
	c.SetCDW(11, v)
}

// InitSet makes the SQE a Set Features of v, saved when save.
func (c FeatureCommand) InitSet(id FeatureID, nsid, v uint32, save bool) {
	c.Command.Init(AdminSetFeatures, nsid)
	c.SetCDW(10, withBit(uint32(id), 31, save))
	c.SetCDW(11, v)
}

// Arbitration is the value of feature 01h.
type Arbitration uint32

// MakeArbitration makes the value: burst as 2^n commands (7 no limit) and the
// weights, 0-based.
func MakeArbitration(burst, low, medium, high uint8) Arbitration {
	return Arbitration(burst&7) | Arbitration(low)<<8 | Arbitration(medium)<<16 | Arbitration(high)<<24
}

// Burst is AB.
func (a Arbitration) Burst() uint8 { return uint8(a & 7) }

// Weights are LPW, MPW and HPW, 0-based.
func (a Arbitration) Weights() (low, medium, high uint8) {
	return uint8(a >> 8), uint8(a >> 16), uint8(a >> 24)
}

// PowerManagement is the value of feature 02h.
type PowerManagement uint32

// State is PS, the power state.
func (p PowerManagement) State() uint8 { return uint8(p & 0x1F) }

// Workload is WH, the workload hint.
func (p PowerManagement) Workload() uint8 { return uint8(p >> 5 & 7) }

// TemperatureThreshold is the value of feature 04h.
type TemperatureThreshold uint32

// Sensors of a temperature threshold.
const (
	SensorComposite uint8 = 0x0
	SensorAll       uint8 = 0xF
)

// MakeTemperatureThreshold makes the value: kelvins, sensor and whether it is
// the under temperature threshold.
func MakeTemperatureThreshold(kelvins uint16, sensor uint8, under bool) TemperatureThreshold {
	return withBit(TemperatureThreshold(kelvins)|TemperatureThreshold(sensor&0xF)<<16, 20, under)
}

// Kelvins is TMPTH.
func (t TemperatureThreshold) Kelvins() uint16 { return uint16(t) }

// Sensor is TMPSEL.
func (t TemperatureThreshold) Sensor() uint8 { return uint8(t >> 16 & 0xF) }

// THSEL is the threshold type: 0 over, 1 under, else reserved.
func (t TemperatureThreshold) THSEL() uint8 { return uint8(t >> 20 & 3) }

// ErrorRecovery is the value of feature 05h.
type ErrorRecovery uint32

// TLER is the time limited error recovery, units of 100 ms.
func (e ErrorRecovery) TLER() uint16 { return uint16(e) }

// DULBE is deallocated or unwritten block error enable.
func (e ErrorRecovery) DULBE() bool { return e&(1<<16) != 0 }

// NumQueues is the value and the result of feature 07h: numbers of I/O queues.
type NumQueues uint32

// MakeNumQueues makes the value of 1-based numbers, 1 to 65535.
func MakeNumQueues(sq, cq int) NumQueues {
	return NumQueues(uint16(sq-1)) | NumQueues(uint16(cq-1))<<16
}

// SQ is the number of submission queues, 1-based.
func (n NumQueues) SQ() int { return int(uint16(n)) + 1 }

// CQ is the number of completion queues, 1-based.
func (n NumQueues) CQ() int { return int(uint16(n>>16)) + 1 }

// IRQCoalescing is the value of feature 08h: bits 7:0 threshold (0-based), 15:8
// time in units of 100 us.
type IRQCoalescing uint32

// Threshold is THR, completions, 0-based.
func (i IRQCoalescing) Threshold() uint8 { return uint8(i) }

// Time is TIME in units of 100 microseconds.
func (i IRQCoalescing) Time() uint8 { return uint8(i >> 8) }

// IRQConfig is the value of feature 09h: bits 15:0 vector, bit 16 coalescing
// disabled.
type IRQConfig uint32

// Vector is IV.
func (i IRQConfig) Vector() uint16 { return uint16(i) }

// CoalescingDisabled is CD.
func (i IRQConfig) CoalescingDisabled() bool { return i&(1<<16) != 0 }

// TimestampSize is the size in bytes of the data of feature 0Eh.
const TimestampSize = 8

// TimestampOrigin says where a timestamp comes from.
type TimestampOrigin uint8

// Timestamp origins.
const (
	TimestampReset TimestampOrigin = 0 // counts from the controller's reset
	TimestampSet   TimestampOrigin = 1 // was set by Set Features
)

// Timestamp is the data of feature 0Eh (Base 5.27.1).
type Timestamp struct {
	Milliseconds uint64 // 48 bits; since 1970 when it was set
	Stopped      bool   // SYNCH: the clock may have stopped counting
	Origin       TimestampOrigin
}

// MarshalTo fills b, TimestampSize bytes.
func (t *Timestamp) MarshalTo(b []byte) {
	v := t.Milliseconds&(1<<48-1) | uint64(t.Origin&7)<<49
	le.PutUint64(encoder("timestamp", b, TimestampSize).b, withBit(v, 48, t.Stopped))
}

// Unmarshal reads b, TimestampSize bytes.
func (t *Timestamp) Unmarshal(b []byte) error {
	if err := checkLength("timestamp", b, TimestampSize); err != nil {
		return err
	}
	v := le.Uint64(b)
	*t = Timestamp{v & (1<<48 - 1), v&(1<<48) != 0, TimestampOrigin(v >> 49 & 7)}
	return nil
}

// HostThermal is the value of feature 10h.
type HostThermal uint32

// MakeHostThermal makes the value of the two temperatures in kelvins, 0 to
// disable.
func MakeHostThermal(tmt1, tmt2 uint16) HostThermal {
	return HostThermal(tmt1)<<16 | HostThermal(tmt2)
}

// TMT1 is the light throttling temperature in kelvins.
func (h HostThermal) TMT1() uint16 { return uint16(h >> 16) }

// TMT2 is the heavy throttling temperature in kelvins.
func (h HostThermal) TMT2() uint16 { return uint16(h) }

// HostBehaviorSize is the size in bytes of the data of feature 16h.
const HostBehaviorSize = 512

// HostBehavior is the data of feature 16h (Base 5.27.1).
type HostBehavior struct {
	ACRE   uint8  // advanced command retry: CRDT of CQEs is honoured
	ETDAS  uint8  // extended telemetry
	LBAFEE uint8  // LBA format extension
	HDISNS uint8  // host dispersed namespaces
	CDFE   uint16 // copy descriptor formats
}

// MarshalTo fills b, HostBehaviorSize bytes.
func (h *HostBehavior) MarshalTo(b []byte) { h.visit(encoder("host behavior", b, HostBehaviorSize)) }

// Unmarshal reads b, HostBehaviorSize bytes.
func (h *HostBehavior) Unmarshal(b []byte) error {
	if err := checkLength("host behavior", b, HostBehaviorSize); err != nil {
		return err
	}
	h.visit(decoder(b))
	return nil
}

func (h *HostBehavior) visit(l layout) {
	u8(l, 0, &h.ACRE)
	u8(l, 1, &h.ETDAS)
	u8(l, 2, &h.LBAFEE)
	u8(l, 3, &h.HDISNS)
	u16(l, 4, &h.CDFE)
}

// EXHID is bit 0 of command dword 11 of feature 81h: the host identifier has 128
// bits, which fabrics demand.
const EXHID uint32 = 1 << 0

// HostIDSize is the size in bytes of an extended host identifier.
const HostIDSize = 16

// Bits of feature 82h: notifications that are masked.
const (
	ReservationMaskRegistrationPreempted uint32 = 1 << 1
	ReservationMaskReleased              uint32 = 1 << 2
	ReservationMaskPreempted             uint32 = 1 << 3
)

// WriteProtect is bits 2:0 of feature 84h.
type WriteProtect uint8

// Write protection states.
const (
	WriteProtectNone       WriteProtect = 0
	WriteProtectOn         WriteProtect = 1
	WriteProtectPowerCycle WriteProtect = 2
	WriteProtectPermanent  WriteProtect = 3
)

var writeProtectNames = map[WriteProtect]string{
	WriteProtectNone: "no write protect", WriteProtectOn: "write protect",
	WriteProtectPowerCycle: "write protect until power cycle", WriteProtectPermanent: "permanent write protect",
}

func (w WriteProtect) String() string { return nameOf(writeProtectNames, w, "write protection") }
