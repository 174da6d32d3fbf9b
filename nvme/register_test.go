package nvme

import (
	"testing"
	"time"
)

// TestRegisterFields: each builder sets the bits of its field and no other, cuts
// what is too wide, and the getter reads them.
func TestRegisterFields(t *testing.T) {
	for _, c := range []struct {
		name string
		lo   int
		w    int
		with func(v, x uint64) uint64
		get  func(v uint64) uint64
	}{
		{"CAP.MQES", 0, 16, func(v, x uint64) uint64 { return uint64(Capabilities(v).WithMQES(uint16(x))) }, func(v uint64) uint64 { return uint64(Capabilities(v).MQES()) }},
		{"CAP.CQR", 16, 1, func(v, x uint64) uint64 { return uint64(Capabilities(v).WithCQR(x&1 != 0)) }, func(v uint64) uint64 { return bit(Capabilities(v).CQR()) }},
		{"CAP.AMS", 17, 2, func(v, x uint64) uint64 { return uint64(Capabilities(v).WithAMS(uint8(x))) }, func(v uint64) uint64 { return uint64(Capabilities(v).AMS()) }},
		{"CAP.TO", 24, 8, func(v, x uint64) uint64 { return uint64(Capabilities(v).WithTO(uint8(x))) }, func(v uint64) uint64 { return uint64(Capabilities(v).TO()) }},
		{"CAP.NSSRS", 36, 1, func(v, x uint64) uint64 { return uint64(Capabilities(v).WithNSSRS(x&1 != 0)) }, func(v uint64) uint64 { return bit(Capabilities(v).NSSRS()) }},
		{"CAP.CSS", 37, 8, func(v, x uint64) uint64 { return uint64(Capabilities(v).WithCSS(uint8(x))) }, func(v uint64) uint64 { return uint64(Capabilities(v).CSS()) }},
		{"CAP.MPSMIN", 48, 4, func(v, x uint64) uint64 { return uint64(Capabilities(v).WithMPSMIN(uint8(x))) }, func(v uint64) uint64 { return uint64(Capabilities(v).MPSMIN()) }},
		{"CAP.MPSMAX", 52, 4, func(v, x uint64) uint64 { return uint64(Capabilities(v).WithMPSMAX(uint8(x))) }, func(v uint64) uint64 { return uint64(Capabilities(v).MPSMAX()) }},
		{"CAP.CRMS", 59, 2, func(v, x uint64) uint64 { return uint64(Capabilities(v).WithCRMS(uint8(x))) }, func(v uint64) uint64 { return uint64(Capabilities(v).CRMS()) }},
		{"CC.EN", 0, 1, func(v, x uint64) uint64 { return uint64(Configuration(v).WithEN(x&1 != 0)) }, func(v uint64) uint64 { return bit(Configuration(v).EN()) }},
		{"CC.CSS", 4, 3, func(v, x uint64) uint64 { return uint64(Configuration(v).WithCSS(uint8(x))) }, func(v uint64) uint64 { return uint64(Configuration(v).CSS()) }},
		{"CC.MPS", 7, 4, func(v, x uint64) uint64 { return uint64(Configuration(v).WithMPS(uint8(x))) }, func(v uint64) uint64 { return uint64(Configuration(v).MPS()) }},
		{"CC.AMS", 11, 3, func(v, x uint64) uint64 { return uint64(Configuration(v).WithAMS(uint8(x))) }, func(v uint64) uint64 { return uint64(Configuration(v).AMS()) }},
		{"CC.SHN", 14, 2, func(v, x uint64) uint64 { return uint64(Configuration(v).WithSHN(ShutdownNotification(x))) }, func(v uint64) uint64 { return uint64(Configuration(v).SHN()) }},
		{"CC.IOSQES", 16, 4, func(v, x uint64) uint64 { return uint64(Configuration(v).WithIOSQES(uint8(x))) }, func(v uint64) uint64 { return uint64(Configuration(v).IOSQES()) }},
		{"CC.IOCQES", 20, 4, func(v, x uint64) uint64 { return uint64(Configuration(v).WithIOCQES(uint8(x))) }, func(v uint64) uint64 { return uint64(Configuration(v).IOCQES()) }},
		{"CC.CRIME", 24, 1, func(v, x uint64) uint64 { return uint64(Configuration(v).WithCRIME(x&1 != 0)) }, func(v uint64) uint64 { return bit(Configuration(v).CRIME()) }},
		{"CSTS.RDY", 0, 1, func(v, x uint64) uint64 { return uint64(ControllerStatus(v).WithRDY(x&1 != 0)) }, func(v uint64) uint64 { return bit(ControllerStatus(v).RDY()) }},
		{"CSTS.CFS", 1, 1, func(v, x uint64) uint64 { return uint64(ControllerStatus(v).WithCFS(x&1 != 0)) }, func(v uint64) uint64 { return bit(ControllerStatus(v).CFS()) }},
		{"CSTS.SHST", 2, 2, func(v, x uint64) uint64 { return uint64(ControllerStatus(v).WithSHST(ShutdownStatus(x))) }, func(v uint64) uint64 { return uint64(ControllerStatus(v).SHST()) }},
		{"CSTS.NSSRO", 4, 1, func(v, x uint64) uint64 { return uint64(ControllerStatus(v).WithNSSRO(x&1 != 0)) }, func(v uint64) uint64 { return bit(ControllerStatus(v).NSSRO()) }},
		{"CSTS.PP", 5, 1, func(v, x uint64) uint64 { return uint64(ControllerStatus(v).WithPP(x&1 != 0)) }, func(v uint64) uint64 { return bit(ControllerStatus(v).PP()) }},
	} {
		mask := (uint64(1)<<c.w - 1) << c.lo
		width := ^uint64(0)
		if c.name[:3] != "CAP" {
			width = 0xFFFFFFFF
		}
		if got := c.with(0, ^uint64(0)); got != mask {
			t.Errorf("%s: set in 0: %#x, want %#x", c.name, got, mask)
		}
		if got := c.with(width, 0); got != width&^mask {
			t.Errorf("%s: cleared in all: %#x, want %#x", c.name, got, width&^mask)
		}
		if got := c.get(width); got != mask>>c.lo {
			t.Errorf("%s: read %#x", c.name, got)
		}
		if got := c.get(width &^ mask); got != 0 {
			t.Errorf("%s: read %#x of other bits", c.name, got)
		}
	}
}

func bit(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}

func TestVersion(t *testing.T) {
	for v, want := range map[Version]string{
		MakeVersion(1, 3, 0): "1.3", MakeVersion(1, 2, 1): "1.2.1", MakeVersion(2, 0, 0): "2.0", 0: "0.0",
	} {
		if v.String() != want {
			t.Errorf("%#x: %s, want %s", uint32(v), v, want)
		}
	}
	if v := MakeVersion(2, 1, 3); v != 0x00020103 || v.Major() != 2 || v.Minor() != 1 || v.Tertiary() != 3 {
		t.Errorf("%#x", uint32(v))
	}
}

func TestReadyTimeouts(t *testing.T) {
	r := MakeReadyTimeouts(2, 1)
	if r != 0x00010002 || r.CRWMT() != 2 || r.CRIMT() != 1 || r.WithMedia() != time.Second || r.Independent() != time.Second/2 {
		t.Errorf("%#x", uint32(r))
	}
}

func TestProperties(t *testing.T) {
	for p, size := range map[Property]int{PropCAP: 8, PropVS: 4, PropCC: 4, PropCSTS: 4, PropNSSR: 4, PropCRTO: 4} {
		if p.Size() != size {
			t.Errorf("%v: %d bytes", p, p.Size())
		}
	}
	if NSSRReset != uint32('N')<<24|'V'<<16|'M'<<8|'e' {
		t.Errorf("%#x", NSSRReset)
	}
}
