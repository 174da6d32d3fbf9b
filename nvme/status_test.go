package nvme

import (
	"errors"
	"fmt"
	"testing"
)

func TestStatusBits(t *testing.T) {
	s := (ConnectInvalidParameters | StatusDNR | StatusMore).WithCRD(2)
	if s != 0x7182 {
		t.Errorf("%#x", uint16(s))
	}
	if s.Code() != ConnectInvalidParameters || s.SC() != 0x82 || s.SCT() != 1 || !s.DNR() || !s.More() || s.CRD() != 2 || s.OK() {
		t.Errorf("%#x: code %#x SC %#x SCT %d CRD %d", uint16(s), uint16(s.Code()), s.SC(), s.SCT(), s.CRD())
	}
	if s.WithCRD(0).CRD() != 0 || s.WithCRD(7).CRD() != 3 || s.WithCRD(3).Code() != s.Code() {
		t.Error("WithCRD")
	}
	if !Success.OK() || Success.DNR() || Success.More() || !(Success | StatusMore).OK() {
		t.Error("success")
	}
}

func TestStatusText(t *testing.T) {
	for _, c := range []struct {
		s    Status
		o    Opcode
		want string
	}{
		{Success, CmdRead, "success (0x0)"},
		{InvalidField | StatusDNR, CmdRead, "invalid field in command (0x2, do not retry)"},
		{0x180, CmdFabrics, "connect incompatible format (0x180)"},
		{0x180, CmdDatasetManagement, "conflicting attributes (0x180)"},
		{0x181, CmdFabrics, "connect controller busy (0x181)"},
		{0x181, CmdWrite, "invalid protection information (0x181)"},
		{0x182, CmdFabrics, "connect invalid parameters (0x182)"},
		{0x182, CmdWrite, "attempted write to read only range (0x182)"},
		{0x183, CmdFabrics, "connect restart discovery (0x183)"},
		{0x183, CmdWriteZeroes, "command size limit exceeded (0x183)"},
		{0x184, CmdFabrics, "connect invalid host (0x184)"},
		{0x185, CmdFabrics, "invalid queue type (0x185)"},
		{0x190, AdminGetLogPage, "discover restart (0x190)"},
		{0x191, CmdFabrics, "authentication required (0x191)"},
		{0x0FF, CmdRead, "unknown generic status (0xff)"},
		{0x1FF, CmdRead, "unknown command specific status (0x1ff)"},
		{0x2FF, CmdRead, "unknown media or data integrity error (0x2ff)"},
		{0x3FF, CmdRead, "unknown path error (0x3ff)"},
		{0x4FF, CmdRead, "unknown status (0x4ff)"},
		{0x701 | StatusDNR, CmdFabrics, "vendor specific status (0x701, do not retry)"},
	} {
		if got := StatusText(c.s, c.o); got != c.want {
			t.Errorf("%#x of %#x: %q, want %q", uint16(c.s), uint8(c.o), got, c.want)
		}
	}
}

// TestStatusString: without a command, a code of two meanings is told with both.
func TestStatusString(t *testing.T) {
	for s, want := range map[Status]string{
		0x182:                    "connect invalid parameters, or attempted write to read only range (0x182)",
		0x184:                    "connect invalid host (0x184)",
		LBAOutOfRange:            "LBA out of range (0x80)",
		LBAOutOfRange.WithCRD(1): "LBA out of range (0x80)",
		0x1FE:                    "unknown command specific status (0x1fe)",
	} {
		if s.String() != want || s.Error() != want {
			t.Errorf("%q, want %q", s.String(), want)
		}
	}
}

func TestStatusError(t *testing.T) {
	for _, c := range []struct {
		err  StatusError
		want string
	}{
		{StatusError{Status: LBAOutOfRange | StatusDNR, Opcode: CmdRead}, "Read: LBA out of range (0x80, do not retry)"},
		{StatusError{Status: InvalidLogPage, Opcode: AdminGetLogPage, Admin: true}, "Get Log Page: invalid log page (0x109)"},
		{StatusError{Status: InvalidOpcode, Opcode: 0xC1}, "opcode 0xc1: invalid command opcode (0x1)"},
		{
			StatusError{Status: ConnectInvalidParameters, Opcode: CmdFabrics, FCType: FabricsConnect, Result: InvalidParameter(ConnectDataOffSubNQN, true)},
			"Connect: connect invalid parameters (0x182): subsystem NQN",
		},
		{
			StatusError{Status: ConnectInvalidParameters, Opcode: CmdFabrics, FCType: FabricsConnect, Result: 42},
			"Connect: connect invalid parameters (0x182): queue id",
		},
		{StatusError{Status: InvalidField, Opcode: CmdFabrics, FCType: FabricsPropertySet}, "Property Set: invalid field in command (0x2)"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestStatusErrorIs(t *testing.T) {
	err := fmt.Errorf("reading: %w", &StatusError{Status: LBAOutOfRange | StatusDNR, Opcode: CmdRead})
	if !errors.Is(err, LBAOutOfRange) || errors.Is(err, CapacityExceeded) || errors.Is(err, errors.ErrUnsupported) {
		t.Error("errors.Is")
	}
}

func TestOpcodeName(t *testing.T) {
	for _, c := range []struct {
		o     Opcode
		admin bool
		want  string
	}{
		{0x02, true, "Get Log Page"}, {0x02, false, "Read"}, {0x01, true, "opcode 0x01"},
		{0x7F, true, "Fabrics command"}, {0x7F, false, "Fabrics command"},
	} {
		if got := OpcodeName(c.o, c.admin); got != c.want {
			t.Errorf("%#x: %q, want %q", uint8(c.o), got, c.want)
		}
	}
}

func TestDirection(t *testing.T) {
	for o, want := range map[Opcode]DataDirection{
		CmdFlush: DataNone, CmdWrite: DataToController, CmdRead: DataToHost, CmdCompare: DataToController,
		CmdWriteZeroes: DataNone, CmdDatasetManagement: DataToController, CmdVerify: DataNone, AdminIdentify: DataToHost,
	} {
		if o.Direction() != want {
			t.Errorf("%#x: %d", uint8(o), o.Direction())
		}
	}
	for f, want := range map[FabricsType]DataDirection{
		FabricsConnect: DataToController, FabricsPropertyGet: DataNone, FabricsPropertySet: DataNone,
		FabricsAuthSend: DataToController, FabricsAuthReceive: DataToHost, FabricsDisconnect: DataNone,
	} {
		if f.Direction() != want {
			t.Errorf("%v: %d", f, f.Direction())
		}
	}
}

// TestNames: values that have no name are told by their number, never as
// nothing.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		v    fmt.Stringer
		want string
	}{
		{TransportRDMA, "rdma"}, {TransportTCP, "tcp"}, {TransportType(9), "transport 0x09"},
		{FamilyIPv6, "ipv6"}, {AddressFamily(0), "address family 0x00"},
		{SubsystemNVM, "nvme subsystem"}, {SubsystemType(7), "subsystem type 0x07"},
		{RDMAConnected, "connected"}, {RDMARoCEv2, "roce-v2"}, {RDMAProvider(99), "RDMA provider 0x63"},
		{RDMACMIP, "rdma-cm"}, {RDMACM(2), "connection management 2"},
		{CNSController, "controller"}, {CNS(0xFF), "CNS 0xff"}, {CSINVM, "NVM"}, {CSI(0x30), "command set 0x30"},
		{LogDiscovery, "Discovery"}, {LogPage(0xC0), "log page 0xc0"},
		{FeatKeepAlive, "Keep Alive Timer"}, {FeatureID(0xC0), "feature 0xc0"}, {SelectSaved, "saved"},
		{FabricsConnect, "Connect"}, {FabricsType(0x77), "fabrics command 0x77"},
		{SGLKeyedDataBlock, "keyed data block"}, {SGLType(0xE), "SGL type 0x0e"},
		{ANAOptimized, "optimized"}, {ANAState(0), "ANA state 0x00"}, {ControllerDiscovery, "discovery"},
		{PropCSTS, "CSTS"}, {Property(0x30), "property 0x30"}, {WriteProtectOn, "write protect"},
		{ReservationWriteExclusive, "write exclusive"}, {ReservationReleased, "reservation released"},
		{DescriptorUUID, "UUID"}, {DescriptorType(9), "identifier type 0x09"},
	} {
		if got := c.v.String(); got != c.want {
			t.Errorf("%T: %q, want %q", c.v, got, c.want)
		}
	}
}
