package nvme

import (
	"fmt"
	"time"
)

// Property is the offset of a controller property (Base 3.1.3).
type Property uint32

// Properties that fabrics controllers have.
const (
	PropCAP  Property = 0x00 // 8 bytes
	PropVS   Property = 0x08
	PropCC   Property = 0x14
	PropCSTS Property = 0x1C
	PropNSSR Property = 0x20
	PropCRTO Property = 0x68 // when CAP.CRMS is not 0
)

// NSSRReset is the value written to NSSR for an NVM subsystem reset: "NVMe".
const NSSRReset uint32 = 0x4E564D65

// Size is the size of the property in bytes, 4 or 8.
func (p Property) Size() int {
	if p == PropCAP {
		return 8
	}
	return 4
}

func (p Property) String() string {
	switch p {
	case PropCAP:
		return "CAP"
	case PropVS:
		return "VS"
	case PropCC:
		return "CC"
	case PropCSTS:
		return "CSTS"
	case PropNSSR:
		return "NSSR"
	case PropCRTO:
		return "CRTO"
	}
	return fmt.Sprintf("property %#x", uint32(p))
}

// timeoutUnit is the unit of CAP.TO, CRTO.CRWMT and CRTO.CRIMT.
const timeoutUnit = 500 * time.Millisecond

// bitsOf is the field of w bits at bit lo of v.
func bitsOf[T ~uint32 | ~uint64](v T, lo, w int) T { return v >> lo & (1<<w - 1) }

// withBits replaces the field of w bits at bit lo of v; x is cut to its width.
func withBits[T ~uint32 | ~uint64](v T, lo, w int, x T) T {
	mask := T(1)<<w - 1
	return v&^(mask<<lo) | x&mask<<lo
}

func withBit[T ~uint32 | ~uint64](v T, n int, on bool) T {
	if on {
		return v | 1<<n
	}
	return v &^ (1 << n)
}

// Capabilities is the value of CAP, offset 0h (Base 3.1.3.1).
type Capabilities uint64

// CSS bits of CAP, bits 44:37.
const (
	CapCSSNVM   uint8 = 1 << 0 // NVM command set
	CapCSSIOCS  uint8 = 1 << 6 // one or more I/O command sets, chosen by CC.CSS 110b
	CapCSSNoIOC uint8 = 1 << 7 // no I/O command set
)

// CRMS bits of CAP, bits 60:59.
const (
	CapCRWMS uint8 = 1 << 0 // controller ready with media
	CapCRIMS uint8 = 1 << 1 // controller ready independent of media
)

// MQES is the maximum queue entries supported, 0-based.
func (c Capabilities) MQES() uint16 { return uint16(c) }

// CQR says that queues must be contiguous: 1 on fabrics.
func (c Capabilities) CQR() bool { return bitsOf(c, 16, 1) != 0 }

// AMS is the set of optional arbitration mechanisms.
func (c Capabilities) AMS() uint8 { return uint8(bitsOf(c, 17, 2)) }

// TO is the worst time for CSTS.RDY to follow CC.EN, in units of 500 ms.
func (c Capabilities) TO() uint8 { return uint8(bitsOf(c, 24, 8)) }

// Timeout is TO as a duration.
func (c Capabilities) Timeout() time.Duration { return time.Duration(c.TO()) * timeoutUnit }

// DSTRD is the doorbell stride: 0 on fabrics.
func (c Capabilities) DSTRD() uint8 { return uint8(bitsOf(c, 32, 4)) }

// NSSRS says that NVM subsystem reset is supported.
func (c Capabilities) NSSRS() bool { return bitsOf(c, 36, 1) != 0 }

// CSS is the set of command sets supported.
func (c Capabilities) CSS() uint8 { return uint8(bitsOf(c, 37, 8)) }

// MPSMIN is the minimum memory page size, as 2^(12+n) bytes.
func (c Capabilities) MPSMIN() uint8 { return uint8(bitsOf(c, 48, 4)) }

// MPSMAX is the maximum memory page size, as 2^(12+n) bytes.
func (c Capabilities) MPSMAX() uint8 { return uint8(bitsOf(c, 52, 4)) }

// CRMS is the set of controller ready modes supported.
func (c Capabilities) CRMS() uint8 { return uint8(bitsOf(c, 59, 2)) }

// WithMQES sets MQES, 0-based.
func (c Capabilities) WithMQES(n uint16) Capabilities { return withBits(c, 0, 16, Capabilities(n)) }

// WithCQR sets CQR.
func (c Capabilities) WithCQR(on bool) Capabilities { return withBit(c, 16, on) }

// WithAMS sets AMS.
func (c Capabilities) WithAMS(n uint8) Capabilities { return withBits(c, 17, 2, Capabilities(n)) }

// WithTO sets TO in units of 500 ms.
func (c Capabilities) WithTO(n uint8) Capabilities { return withBits(c, 24, 8, Capabilities(n)) }

// WithNSSRS sets NSSRS.
func (c Capabilities) WithNSSRS(on bool) Capabilities { return withBit(c, 36, on) }

// WithCSS sets CSS.
func (c Capabilities) WithCSS(set uint8) Capabilities { return withBits(c, 37, 8, Capabilities(set)) }

// WithMPSMIN sets MPSMIN.
func (c Capabilities) WithMPSMIN(n uint8) Capabilities { return withBits(c, 48, 4, Capabilities(n)) }

// WithMPSMAX sets MPSMAX.
func (c Capabilities) WithMPSMAX(n uint8) Capabilities { return withBits(c, 52, 4, Capabilities(n)) }

// WithCRMS sets CRMS.
func (c Capabilities) WithCRMS(set uint8) Capabilities { return withBits(c, 59, 2, Capabilities(set)) }

// Version is the value of VS and of VER in Identify: major, minor, tertiary.
type Version uint32

// MakeVersion makes a version.
func MakeVersion(major uint16, minor, tertiary uint8) Version {
	return Version(major)<<16 | Version(minor)<<8 | Version(tertiary)
}

// Major is bits 31:16.
func (v Version) Major() uint16 { return uint16(v >> 16) }

// Minor is bits 15:8.
func (v Version) Minor() uint8 { return uint8(v >> 8) }

// Tertiary is bits 7:0.
func (v Version) Tertiary() uint8 { return uint8(v) }

func (v Version) String() string {
	if v.Tertiary() == 0 {
		return fmt.Sprintf("%d.%d", v.Major(), v.Minor())
	}
	return fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Tertiary())
}

// Configuration is the value of CC, offset 14h (Base 3.1.3.5).
type Configuration uint32

// Values of CC.CSS.
const (
	CCCSSNVM   uint8 = 0 // NVM command set
	CCCSSAll   uint8 = 6 // all supported I/O command sets
	CCCSSAdmin uint8 = 7 // admin command set only
)

// ShutdownNotification is CC.SHN.
type ShutdownNotification uint8

// Values of CC.SHN.
const (
	ShutdownNone   ShutdownNotification = 0
	ShutdownNormal ShutdownNotification = 1
	ShutdownAbrupt ShutdownNotification = 2
)

// EN is enable.
func (c Configuration) EN() bool { return c&1 != 0 }

// CSS is the I/O command set selected.
func (c Configuration) CSS() uint8 { return uint8(bitsOf(c, 4, 3)) }

// MPS is the memory page size, as 2^(12+n) bytes.
func (c Configuration) MPS() uint8 { return uint8(bitsOf(c, 7, 4)) }

// AMS is the arbitration mechanism selected.
func (c Configuration) AMS() uint8 { return uint8(bitsOf(c, 11, 3)) }

// SHN is the shutdown notification.
func (c Configuration) SHN() ShutdownNotification { return ShutdownNotification(bitsOf(c, 14, 2)) }

// IOSQES is the size of an I/O SQE, as 2^n bytes.
func (c Configuration) IOSQES() uint8 { return uint8(bitsOf(c, 16, 4)) }

// IOCQES is the size of an I/O CQE, as 2^n bytes.
func (c Configuration) IOCQES() uint8 { return uint8(bitsOf(c, 20, 4)) }

// CRIME is controller ready independent of media enable.
func (c Configuration) CRIME() bool { return bitsOf(c, 24, 1) != 0 }

// WithEN sets EN.
func (c Configuration) WithEN(on bool) Configuration { return withBit(c, 0, on) }

// WithCSS sets CSS.
func (c Configuration) WithCSS(n uint8) Configuration { return withBits(c, 4, 3, Configuration(n)) }

// WithMPS sets MPS.
func (c Configuration) WithMPS(n uint8) Configuration { return withBits(c, 7, 4, Configuration(n)) }

// WithAMS sets AMS.
func (c Configuration) WithAMS(n uint8) Configuration { return withBits(c, 11, 3, Configuration(n)) }

// WithSHN sets SHN.
func (c Configuration) WithSHN(n ShutdownNotification) Configuration {
	return withBits(c, 14, 2, Configuration(n))
}

// WithIOSQES sets IOSQES.
func (c Configuration) WithIOSQES(n uint8) Configuration {
	return withBits(c, 16, 4, Configuration(n))
}

// WithIOCQES sets IOCQES.
func (c Configuration) WithIOCQES(n uint8) Configuration {
	return withBits(c, 20, 4, Configuration(n))
}

// WithCRIME sets CRIME.
func (c Configuration) WithCRIME(on bool) Configuration { return withBit(c, 24, on) }

// ControllerStatus is the value of CSTS, offset 1Ch (Base 3.1.3.6).
type ControllerStatus uint32

// ShutdownStatus is CSTS.SHST.
type ShutdownStatus uint8

// Values of CSTS.SHST.
const (
	ShutdownNotRequested ShutdownStatus = 0
	ShutdownOccurring    ShutdownStatus = 1
	ShutdownComplete     ShutdownStatus = 2
)

// RDY says that the controller is ready.
func (s ControllerStatus) RDY() bool { return s&1 != 0 }

// CFS says that the controller had a fatal error.
func (s ControllerStatus) CFS() bool { return s&2 != 0 }

// SHST is the shutdown status.
func (s ControllerStatus) SHST() ShutdownStatus { return ShutdownStatus(bitsOf(s, 2, 2)) }

// NSSRO says that an NVM subsystem reset occurred.
func (s ControllerStatus) NSSRO() bool { return bitsOf(s, 4, 1) != 0 }

// PP says that processing is paused.
func (s ControllerStatus) PP() bool { return bitsOf(s, 5, 1) != 0 }

// WithRDY sets RDY.
func (s ControllerStatus) WithRDY(on bool) ControllerStatus { return withBit(s, 0, on) }

// WithCFS sets CFS.
func (s ControllerStatus) WithCFS(on bool) ControllerStatus { return withBit(s, 1, on) }

// WithSHST sets SHST.
func (s ControllerStatus) WithSHST(n ShutdownStatus) ControllerStatus {
	return withBits(s, 2, 2, ControllerStatus(n))
}

// WithNSSRO sets NSSRO.
func (s ControllerStatus) WithNSSRO(on bool) ControllerStatus { return withBit(s, 4, on) }

// WithPP sets PP.
func (s ControllerStatus) WithPP(on bool) ControllerStatus { return withBit(s, 5, on) }

// ReadyTimeouts is the value of CRTO, offset 68h (Base 3.1.3).
type ReadyTimeouts uint32

// MakeReadyTimeouts makes CRTO of its two times in units of 500 ms.
func MakeReadyTimeouts(withMedia, independent uint16) ReadyTimeouts {
	return ReadyTimeouts(independent)<<16 | ReadyTimeouts(withMedia)
}

// CRWMT is the time to become ready with media, in units of 500 ms.
func (r ReadyTimeouts) CRWMT() uint16 { return uint16(r) }

// CRIMT is the time to become ready independent of media, in units of 500 ms.
func (r ReadyTimeouts) CRIMT() uint16 { return uint16(r >> 16) }

// WithMedia is CRWMT as a duration.
func (r ReadyTimeouts) WithMedia() time.Duration { return time.Duration(r.CRWMT()) * timeoutUnit }

// Independent is CRIMT as a duration.
func (r ReadyTimeouts) Independent() time.Duration { return time.Duration(r.CRIMT()) * timeoutUnit }
