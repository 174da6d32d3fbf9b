package nvme

import "fmt"

// Opcode is byte 0 of an SQE. Its bits 1:0 tell the direction of the data:
// 1 host to controller, 2 controller to host, 0 none (Base figure 87).
type Opcode uint8

// Admin opcodes (Base figure 138).
const (
	AdminGetLogPage   Opcode = 0x02
	AdminIdentify     Opcode = 0x06
	AdminAbort        Opcode = 0x08
	AdminSetFeatures  Opcode = 0x09
	AdminGetFeatures  Opcode = 0x0A
	AdminAsyncEvent   Opcode = 0x0C
	AdminNSManagement Opcode = 0x0D
	AdminNSAttachment Opcode = 0x15
	AdminKeepAlive    Opcode = 0x18
	AdminFormatNVM    Opcode = 0x80
)

// NVM command set opcodes (NVM figure 14).
const (
	CmdFlush              Opcode = 0x00
	CmdWrite              Opcode = 0x01
	CmdRead               Opcode = 0x02
	CmdWriteUncorrectable Opcode = 0x04
	CmdCompare            Opcode = 0x05
	CmdWriteZeroes        Opcode = 0x08
	CmdDatasetManagement  Opcode = 0x09
	CmdVerify             Opcode = 0x0C
	CmdResvRegister       Opcode = 0x0D
	CmdResvReport         Opcode = 0x0E
	CmdResvAcquire        Opcode = 0x11
	CmdResvRelease        Opcode = 0x15
	CmdCopy               Opcode = 0x19
)

// CmdFabrics is the opcode of every fabrics command on any queue.
const CmdFabrics Opcode = 0x7F

// FabricsType is byte 4 of a fabrics SQE.
type FabricsType uint8

// Fabrics command types (NVMe-oF figure 15).
const (
	FabricsPropertySet FabricsType = 0x00
	FabricsConnect     FabricsType = 0x01
	FabricsPropertyGet FabricsType = 0x04
	FabricsAuthSend    FabricsType = 0x05
	FabricsAuthReceive FabricsType = 0x06
	FabricsDisconnect  FabricsType = 0x08
)

var fabricsTypeNames = map[FabricsType]string{
	FabricsPropertySet: "Property Set", FabricsConnect: "Connect", FabricsPropertyGet: "Property Get",
	FabricsAuthSend: "Authentication Send", FabricsAuthReceive: "Authentication Receive",
	FabricsDisconnect: "Disconnect",
}

func (t FabricsType) String() string { return nameOf(fabricsTypeNames, t, "fabrics command") }

// DataDirection is the direction of the data that a command may have: bits 1:0
// of its opcode, or of its fabrics command type.
type DataDirection uint8

// Data directions.
const (
	DataNone         DataDirection = 0
	DataToController DataDirection = 1
	DataToHost       DataDirection = 2
	DataBoth         DataDirection = 3
)

// Direction is bits 1:0 of the opcode. A fabrics command has the direction of
// its FabricsType.
func (o Opcode) Direction() DataDirection { return DataDirection(o & 3) }

// Direction is bits 1:0 of the type.
func (t FabricsType) Direction() DataDirection { return DataDirection(t & 3) }

var adminNames = map[Opcode]string{
	AdminGetLogPage: "Get Log Page", AdminIdentify: "Identify", AdminAbort: "Abort",
	AdminSetFeatures: "Set Features", AdminGetFeatures: "Get Features",
	AdminAsyncEvent: "Asynchronous Event Request", AdminNSManagement: "Namespace Management",
	AdminNSAttachment: "Namespace Attachment", AdminKeepAlive: "Keep Alive", AdminFormatNVM: "Format NVM",
}

var cmdNames = map[Opcode]string{
	CmdFlush: "Flush", CmdWrite: "Write", CmdRead: "Read", CmdWriteUncorrectable: "Write Uncorrectable",
	CmdCompare: "Compare", CmdWriteZeroes: "Write Zeroes", CmdDatasetManagement: "Dataset Management",
	CmdVerify: "Verify", CmdResvRegister: "Reservation Register", CmdResvReport: "Reservation Report",
	CmdResvAcquire: "Reservation Acquire", CmdResvRelease: "Reservation Release", CmdCopy: "Copy",
}

// OpcodeName is the specification's name of an opcode of the admin set or of
// the NVM command set.
func OpcodeName(o Opcode, admin bool) string {
	names := cmdNames
	if admin {
		names = adminNames
	}
	if o == CmdFabrics {
		return "Fabrics command"
	}
	if s, ok := names[o]; ok {
		return s
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}
