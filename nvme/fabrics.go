package nvme

import "fmt"

// The command views of this package are all a Command with names for what its
// dwords hold. They are made by a method of Command, which does not check the
// opcode: who dispatches has.

// Offsets in bytes of the parameters of Connect, for its error location.
const (
	ConnectOffRecFmt = 40
	ConnectOffQID    = 42
	ConnectOffSQSize = 44
	ConnectOffCATTR  = 46
	ConnectOffKATO   = 48

	ConnectDataOffHostID  = 0
	ConnectDataOffCNTLID  = 16
	ConnectDataOffSubNQN  = 256
	ConnectDataOffHostNQN = 512
)

// Controller IDs with a meaning in Connect data (NVMe-oF 3.3).
const (
	CNTLIDDynamic uint16 = 0xFFFF // any controller, allocated by the subsystem
	CNTLIDStatic  uint16 = 0xFFFE // any controller of the static model
	CNTLIDMax     uint16 = 0xFFEF // the greatest that a controller may have
)

// ConnectAttr is CATTR of Connect.
type ConnectAttr uint8

// Connect attributes. Bits 1:0 are the priority class of the queue.
const (
	ConnectPriority      ConnectAttr = 3
	ConnectDisableSQFlow ConnectAttr = 1 << 2 // no SQ flow control: SQHD is not used
	ConnectQueueDeletion ConnectAttr = 1 << 3 // the host may delete this I/O queue alone
)

// ConnectCommand is the SQE of Connect (Base 6.3, NVMe-oF 3.3).
type ConnectCommand struct{ Command }

// Connect views c as Connect.
func (c Command) Connect() ConnectCommand { return ConnectCommand{c} }

// RecFmt is the record format: 0.
func (c ConnectCommand) RecFmt() uint16 { return le.Uint16(c.Command[ConnectOffRecFmt:]) }

// QID is the queue to create: 0 is the admin queue.
func (c ConnectCommand) QID() uint16 { return le.Uint16(c.Command[ConnectOffQID:]) }

// SQSize is the number of entries of the queue, 0-based; 0 is not allowed.
func (c ConnectCommand) SQSize() uint16 { return le.Uint16(c.Command[ConnectOffSQSize:]) }

// CATTR is the connect attributes.
func (c ConnectCommand) CATTR() ConnectAttr { return ConnectAttr(c.Command[ConnectOffCATTR]) }

// KATO is the keep alive timeout in milliseconds, 0 for none; admin queue only.
func (c ConnectCommand) KATO() uint32 { return le.Uint32(c.Command[ConnectOffKATO:]) }

// Init makes the SQE a Connect of queue qid with sqsize entries, 0-based. The
// command identifier and the SGL are the caller's to set.
func (c ConnectCommand) Init(qid, sqsize uint16, attr ConnectAttr, katoMS uint32) {
	c.initFabrics(FabricsConnect)
	le.PutUint16(c.Command[ConnectOffQID:], qid)
	le.PutUint16(c.Command[ConnectOffSQSize:], sqsize)
	c.Command[ConnectOffCATTR] = byte(attr)
	le.PutUint32(c.Command[ConnectOffKATO:], katoMS)
}

// ConnectDataSize is the size of Connect data in bytes.
const ConnectDataSize = 1024

// ConnectData is a view of the data of Connect, ConnectDataSize bytes.
type ConnectData []byte

// HostID is the 128-bit host identifier.
func (d ConnectData) HostID() HostID { return HostID(d[ConnectDataOffHostID:]) }

// CNTLID is the controller asked for.
func (d ConnectData) CNTLID() uint16 { return le.Uint16(d[ConnectDataOffCNTLID:]) }

// SubNQN is the subsystem's name; see DecodeNQN for its errors.
func (d ConnectData) SubNQN() (NQN, error) {
	return DecodeNQN(d[ConnectDataOffSubNQN : ConnectDataOffSubNQN+NQNFieldSize])
}

// HostNQN is the host's name; see DecodeNQN for its errors.
func (d ConnectData) HostNQN() (NQN, error) {
	return DecodeNQN(d[ConnectDataOffHostNQN : ConnectDataOffHostNQN+NQNFieldSize])
}

// Put fills all of the data.
func (d ConnectData) Put(host HostID, cntlid uint16, sub, hostNQN NQN) {
	clear(d[:ConnectDataSize])
	copy(d[ConnectDataOffHostID:], host[:])
	le.PutUint16(d[ConnectDataOffCNTLID:], cntlid)
	PutNQN(d[ConnectDataOffSubNQN:], sub)
	PutNQN(d[ConnectDataOffHostNQN:], hostNQN)
}

// ConnectResult is CQE dwords 0 and 1 of a Connect that succeeded.
type ConnectResult uint64

// Authentication requirements of a ConnectResult (Base 6.3, bits 31:16).
const (
	ConnectATR  ConnectResult = 1 << 17 // authentication transaction required
	ConnectASCR ConnectResult = 1 << 18 // ... over a secure channel
)

// CNTLID is the controller that the host is connected to.
func (r ConnectResult) CNTLID() uint16 { return uint16(r) }

// AuthRequired says that the host must authenticate before it goes on.
func (r ConnectResult) AuthRequired() bool { return r&(ConnectATR|ConnectASCR) != 0 }

// InvalidParameter is the result that goes with ConnectInvalidParameters: off
// is the byte in the SQE, or in the data when inData (IPO and IATTR).
func InvalidParameter(off uint16, inData bool) uint64 {
	if inData {
		return 1<<16 | uint64(off)
	}
	return uint64(off)
}

// ParseInvalidParameter is the reverse of InvalidParameter.
func ParseInvalidParameter(result uint64) (off uint16, inData bool) {
	return uint16(result), result&(1<<16) != 0
}

var connectSQEFields = map[uint16]string{
	ConnectOffRecFmt: "record format", ConnectOffQID: "queue id", ConnectOffSQSize: "SQ size",
	ConnectOffCATTR: "connect attributes", ConnectOffKATO: "keep alive timeout",
}

var connectDataFields = map[uint16]string{
	ConnectDataOffHostID: "host id", ConnectDataOffCNTLID: "controller id",
	ConnectDataOffSubNQN: "subsystem NQN", ConnectDataOffHostNQN: "host NQN",
}

// ConnectParameter names the parameter that the result of a Connect with
// ConnectInvalidParameters points at.
func ConnectParameter(result uint64) string {
	off, inData := ParseInvalidParameter(result)
	fields, where := connectSQEFields, "command"
	if inData {
		fields, where = connectDataFields, "data"
	}
	if name, ok := fields[off]; ok {
		return name
	}
	return fmt.Sprintf("byte %d of the %s", off, where)
}

// PropertyCommand is the SQE of Property Get and Property Set (Base 6.5, 6.6).
type PropertyCommand struct{ Command }

// Property views c as Property Get or Property Set.
func (c Command) Property() PropertyCommand { return PropertyCommand{c} }

// Size is the size asked for in bytes, 4 or 8; 0 when ATTRIB is reserved.
func (c PropertyCommand) Size() int {
	switch c.Command[40] & 7 {
	case 0:
		return 4
	case 1:
		return 8
	}
	return 0
}

// Offset is the property.
func (c PropertyCommand) Offset() Property { return Property(c.CDW(11)) }

// Value is what Property Set writes; of a 4-byte property the low half counts.
func (c PropertyCommand) Value() uint64 { return le.Uint64(c.Command[48:]) }

// InitGet makes the SQE a Property Get of p.
func (c PropertyCommand) InitGet(p Property) {
	c.initFabrics(FabricsPropertyGet)
	c.setProperty(p)
}

// InitSet makes the SQE a Property Set of p to v.
func (c PropertyCommand) InitSet(p Property, v uint64) {
	c.initFabrics(FabricsPropertySet)
	c.setProperty(p)
	le.PutUint64(c.Command[48:], v)
}

func (c PropertyCommand) setProperty(p Property) {
	if p.Size() == 8 {
		c.Command[40] = 1
	}
	c.SetCDW(11, uint32(p))
}

// DisconnectCommand is the SQE of Disconnect (Base 6.4).
type DisconnectCommand struct{ Command }

// Disconnect views c as Disconnect.
func (c Command) Disconnect() DisconnectCommand { return DisconnectCommand{c} }

// RecFmt is the record format: 0.
func (c DisconnectCommand) RecFmt() uint16 { return le.Uint16(c.Command[40:]) }

// Init makes the SQE a Disconnect.
func (c DisconnectCommand) Init() { c.initFabrics(FabricsDisconnect) }

// SecurityNVMe is SECP of authentication: the protocol that NVMe defines itself.
const SecurityNVMe uint8 = 0xE9

// AuthCommand is the SQE of Authentication Send and Receive (Base 6.1, 6.2).
type AuthCommand struct{ Command }

// Auth views c as Authentication Send or Authentication Receive.
func (c Command) Auth() AuthCommand { return AuthCommand{c} }

// SPSP0 is security protocol specific field 0: 1 for authentication.
func (c AuthCommand) SPSP0() uint8 { return c.Command[41] }

// SPSP1 is security protocol specific field 1: 1 for authentication.
func (c AuthCommand) SPSP1() uint8 { return c.Command[42] }

// SECP is the security protocol: SecurityNVMe.
func (c AuthCommand) SECP() uint8 { return c.Command[43] }

// Length is the transfer length (Send) or allocation length (Receive) in bytes.
func (c AuthCommand) Length() uint32 { return c.CDW(11) }

// Init makes the SQE an Authentication Send or Receive of n bytes.
func (c AuthCommand) Init(t FabricsType, n uint32) {
	c.initFabrics(t)
	c.Command[41], c.Command[42], c.Command[43] = 1, 1, SecurityNVMe
	c.SetCDW(11, n)
}

// initFabrics clears the SQE and makes it a fabrics command with the keyed
// descriptor of no data, as Linux sends it.
func (c Command) initFabrics(t FabricsType) {
	c.Init(CmdFabrics, 0)
	c[4] = byte(t)
}
