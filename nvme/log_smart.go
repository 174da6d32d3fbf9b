package nvme

// SMARTLogSize is the size of log page 02h in bytes.
const SMARTLogSize = 512

// Critical warnings of the SMART log; the same bits of AsyncEventConfig ask for
// the events.
const (
	WarningSpare       uint8 = 1 << 0
	WarningTemperature uint8 = 1 << 1
	WarningReliability uint8 = 1 << 2
	WarningReadOnly    uint8 = 1 << 3
	WarningBackup      uint8 = 1 << 4
	WarningPMR         uint8 = 1 << 5
)

// SMARTLog is log page 02h (Base 5.16.1). A data unit is a thousand units of
// 512 bytes, rounded up.
type SMARTLog struct {
	CriticalWarning     uint8
	Temperature         uint16 // kelvins, the composite temperature
	AvailableSpare      uint8  // percent
	SpareThreshold      uint8  // percent
	PercentageUsed      uint8
	EnduranceWarning    uint8
	DataUnitsRead       Uint128
	DataUnitsWritten    Uint128
	HostReadCommands    Uint128
	HostWriteCommands   Uint128
	ControllerBusyTime  Uint128 // minutes
	PowerCycles         Uint128
	PowerOnHours        Uint128
	UnsafeShutdowns     Uint128
	MediaErrors         Uint128
	ErrorLogEntries     Uint128
	WarningTempTime     uint32    // minutes
	CriticalTempTime    uint32    // minutes
	TemperatureSensor   [8]uint16 // kelvins, 0 for none
	ThermalTransitions1 uint32
	ThermalTransitions2 uint32
	ThermalTime1        uint32 // seconds
	ThermalTime2        uint32 // seconds
}

// SMARTDataUnits is the number of data units of n bytes.
func SMARTDataUnits(n uint64) uint64 {
	const unit = 512 * 1000
	units := n / unit
	if n%unit != 0 {
		units++
	}
	return units
}

// MarshalTo fills b, SMARTLogSize bytes.
func (s *SMARTLog) MarshalTo(b []byte) { s.visit(encoder("SMART log", b, SMARTLogSize)) }

// Unmarshal reads b, SMARTLogSize bytes.
func (s *SMARTLog) Unmarshal(b []byte) error {
	if err := checkLength("SMART log", b, SMARTLogSize); err != nil {
		return err
	}
	s.visit(decoder(b))
	return nil
}

func (s *SMARTLog) visit(l layout) {
	u8(l, 0, &s.CriticalWarning)
	u16(l, 1, &s.Temperature)
	u8(l, 3, &s.AvailableSpare)
	u8(l, 4, &s.SpareThreshold)
	u8(l, 5, &s.PercentageUsed)
	u8(l, 6, &s.EnduranceWarning)
	for i, p := range [...]*Uint128{
		&s.DataUnitsRead, &s.DataUnitsWritten, &s.HostReadCommands, &s.HostWriteCommands,
		&s.ControllerBusyTime, &s.PowerCycles, &s.PowerOnHours, &s.UnsafeShutdowns,
		&s.MediaErrors, &s.ErrorLogEntries,
	} {
		u128(l, 32+16*i, p)
	}
	u32(l, 192, &s.WarningTempTime)
	u32(l, 196, &s.CriticalTempTime)
	for i := range s.TemperatureSensor {
		u16(l, 200+2*i, &s.TemperatureSensor[i])
	}
	u32(l, 216, &s.ThermalTransitions1)
	u32(l, 220, &s.ThermalTransitions2)
	u32(l, 224, &s.ThermalTime1)
	u32(l, 228, &s.ThermalTime2)
}
