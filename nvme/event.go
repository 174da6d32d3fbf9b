package nvme

import "fmt"

// AsyncEventConfig is the value of feature 0Bh (Base 5.27.1). OAES of Identify
// Controller says with the same bits which notices there are, bit 10 apart, which
// LPA tells.
type AsyncEventConfig uint32

// Events that a host may ask for. Bits 7:0 are critical warnings of the SMART
// log (the Warning constants).
const (
	EventNSAttribute    AsyncEventConfig = 1 << 8
	EventFirmware       AsyncEventConfig = 1 << 9
	EventTelemetry      AsyncEventConfig = 1 << 10
	EventANA            AsyncEventConfig = 1 << 11
	EventPredLatency    AsyncEventConfig = 1 << 12
	EventLBAStatus      AsyncEventConfig = 1 << 13
	EventEnduranceGroup AsyncEventConfig = 1 << 14
	EventShutdown       AsyncEventConfig = 1 << 15
	EventZone           AsyncEventConfig = 1 << 27
	EventDiscovery      AsyncEventConfig = 1 << 31
)

// AsyncEvent is dword 0 of the completion of an Asynchronous Event Request (Base
// 5.2): bits 2:0 type, 15:8 information, 23:16 log page.
type AsyncEvent uint32

// EventType is the type of an AsyncEvent.
type EventType uint8

// Event types.
const (
	EventError     EventType = 0
	EventSMART     EventType = 1
	EventNotice    EventType = 2
	EventImmediate EventType = 3
	EventIOCS      EventType = 6 // of the I/O command set
	EventVendor    EventType = 7
)

// Event information, by type.
const (
	ErrorDoorbellRegister uint8 = 0x00
	ErrorDoorbellValue    uint8 = 0x01
	ErrorDiagnostic       uint8 = 0x02
	ErrorPersistent       uint8 = 0x03
	ErrorTransient        uint8 = 0x04
	ErrorFirmwareLoad     uint8 = 0x05

	SMARTReliability uint8 = 0x00
	SMARTTemperature uint8 = 0x01
	SMARTSpare       uint8 = 0x02

	NoticeNSAttribute uint8 = 0x00
	NoticeFirmware    uint8 = 0x01
	NoticeTelemetry   uint8 = 0x02
	NoticeANA         uint8 = 0x03
	NoticePredLatency uint8 = 0x04
	NoticeLBAStatus   uint8 = 0x05
	NoticeEndurance   uint8 = 0x06
	NoticeShutdown    uint8 = 0x07
	NoticeZone        uint8 = 0xEF
	NoticeDiscovery   uint8 = 0xF0

	ImmediateReset uint8 = 0x00 // normal NVM subsystem reset

	IOCSReservation uint8 = 0x00
	IOCSSanitize    uint8 = 0x01
	IOCSSanitizeUnx uint8 = 0x02 // with unexpected deallocation
)

// Events that fabrics controllers send.
var (
	NSAttributeChanged = MakeAsyncEvent(EventNotice, NoticeNSAttribute, LogChangedNS)
	ANAChanged         = MakeAsyncEvent(EventNotice, NoticeANA, LogANA)
	DiscoveryChanged   = MakeAsyncEvent(EventNotice, NoticeDiscovery, LogDiscovery)
	ReservationLogged  = MakeAsyncEvent(EventIOCS, IOCSReservation, LogReservation)
)

// MakeAsyncEvent makes an event.
func MakeAsyncEvent(t EventType, info uint8, lid LogPage) AsyncEvent {
	return AsyncEvent(lid)<<16 | AsyncEvent(info)<<8 | AsyncEvent(t&7)
}

// Type is bits 2:0.
func (e AsyncEvent) Type() EventType { return EventType(e & 7) }

// Info is bits 15:8.
func (e AsyncEvent) Info() uint8 { return uint8(e >> 8) }

// LogPage is the page to read, which also clears the event.
func (e AsyncEvent) LogPage() LogPage { return LogPage(e >> 16) }

var eventTypeNames = map[EventType]string{
	EventError: "error status", EventSMART: "SMART / health status", EventNotice: "notice",
	EventImmediate: "immediate", EventIOCS: "I/O command set", EventVendor: "vendor specific",
}

func (t EventType) String() string { return nameOf(eventTypeNames, t, "event type") }

var eventInfoNames = map[EventType]map[uint8]string{
	EventError: {
		ErrorDoorbellRegister: "write to invalid doorbell register", ErrorDoorbellValue: "invalid doorbell write value",
		ErrorDiagnostic: "diagnostic failure", ErrorPersistent: "persistent internal error",
		ErrorTransient: "transient internal error", ErrorFirmwareLoad: "firmware image load error",
	},
	EventSMART: {
		SMARTReliability: "NVM subsystem reliability", SMARTTemperature: "temperature threshold",
		SMARTSpare: "spare below threshold",
	},
	EventNotice: {
		NoticeNSAttribute: "namespace attribute changed", NoticeFirmware: "firmware activation starting",
		NoticeTelemetry: "telemetry log changed", NoticeANA: "asymmetric namespace access change",
		NoticePredLatency: "predictable latency event", NoticeLBAStatus: "LBA status information alert",
		NoticeEndurance: "endurance group event", NoticeShutdown: "normal NVM subsystem shutdown",
		NoticeZone: "zone descriptor changed", NoticeDiscovery: "discovery log page changed",
	},
	EventImmediate: {ImmediateReset: "normal NVM subsystem reset"},
	EventIOCS: {
		IOCSReservation: "reservation log page available", IOCSSanitize: "sanitize completed",
		IOCSSanitizeUnx: "sanitize completed with unexpected deallocation",
	},
}

// String is the event in words.
func (e AsyncEvent) String() string {
	info, ok := eventInfoNames[e.Type()][e.Info()]
	if !ok {
		info = fmt.Sprintf("information %#02x", e.Info())
	}
	return fmt.Sprintf("%v: %s", e.Type(), info)
}

// Enable is the bit of the Asynchronous Event Configuration that lets a notice
// through. It is 0 for other types: error events have no mask, and that of a
// SMART event is the critical warnings it stands for.
func (e AsyncEvent) Enable() AsyncEventConfig {
	if e.Type() != EventNotice {
		return 0
	}
	switch i := e.Info(); {
	case i <= NoticeShutdown:
		return EventNSAttribute << i
	case i == NoticeZone:
		return EventZone
	case i == NoticeDiscovery:
		return EventDiscovery
	}
	return 0
}
