package nvme

import "fmt"

// IdentifySize is the size in bytes of every Identify data structure.
const IdentifySize = 4096

// CNS is the controller or namespace structure of Identify (Base 5.17.1).
type CNS uint8

// Identify data structures.
const (
	CNSNamespace         CNS = 0x00 // IdentifyNamespace
	CNSController        CNS = 0x01 // IdentifyController
	CNSActiveList        CNS = 0x02 // NSList
	CNSDescriptors       CNS = 0x03 // NSDescriptors
	CNSNVMSetList        CNS = 0x04
	CNSNamespaceCS       CNS = 0x05 // IdentifyNamespaceNVM when CSI is NVM
	CNSControllerCS      CNS = 0x06 // IdentifyControllerNVM when CSI is NVM
	CNSActiveListCS      CNS = 0x07 // NSList
	CNSNamespaceIndep    CNS = 0x08 // IdentifyNamespaceIndependent
	CNSAllocatedList     CNS = 0x10 // NSList
	CNSAllocated         CNS = 0x11 // IdentifyNamespace
	CNSAttachedCtrlList  CNS = 0x12
	CNSControllerList    CNS = 0x13
	CNSPrimaryController CNS = 0x14
	CNSSecondaryList     CNS = 0x15
	CNSGranularityList   CNS = 0x16
	CNSUUIDList          CNS = 0x17
	CNSDomainList        CNS = 0x18
	CNSEnduranceGroups   CNS = 0x19
	CNSCommandSetCombos  CNS = 0x1C // CommandSetCombinations
)

var cnsNames = map[CNS]string{
	CNSNamespace: "namespace", CNSController: "controller", CNSActiveList: "active namespace list",
	CNSDescriptors: "namespace identification descriptors", CNSNamespaceCS: "command set specific namespace",
	CNSControllerCS: "command set specific controller", CNSActiveListCS: "command set specific active namespace list",
	CNSNamespaceIndep: "command set independent namespace", CNSAllocatedList: "allocated namespace list",
	CNSAllocated: "allocated namespace", CNSAttachedCtrlList: "attached controller list",
	CNSControllerList: "controller list", CNSCommandSetCombos: "command set combinations",
	CNSNVMSetList: "NVM set list", CNSPrimaryController: "primary controller", CNSSecondaryList: "secondary controller list",
	CNSGranularityList: "namespace granularity list", CNSUUIDList: "UUID list", CNSDomainList: "domain list",
	CNSEnduranceGroups: "endurance group list",
}

func (c CNS) String() string { return nameOf(cnsNames, c, "CNS") }

// CSI is a command set identifier (Base 5.17.1).
type CSI uint8

// Command sets.
const (
	CSINVM CSI = 0
	CSIKV  CSI = 1
	CSIZNS CSI = 2
)

var csiNames = map[CSI]string{CSINVM: "NVM", CSIKV: "Key Value", CSIZNS: "Zoned Namespace"}

func (c CSI) String() string { return nameOf(csiNames, c, "command set") }

// NSIDBroadcast names all namespaces.
const NSIDBroadcast uint32 = 0xFFFFFFFF

// IdentifyCommand is the SQE of Identify (Base 5.17).
type IdentifyCommand struct{ Command }

// Identify views c as Identify.
func (c Command) Identify() IdentifyCommand { return IdentifyCommand{c} }

// CNS is the structure asked for.
func (c IdentifyCommand) CNS() CNS { return CNS(c.Command[40]) }

// CNTID is the controller that some structures are of.
func (c IdentifyCommand) CNTID() uint16 { return le.Uint16(c.Command[42:]) }

// CNSSID is the CNS specific identifier.
func (c IdentifyCommand) CNSSID() uint16 { return le.Uint16(c.Command[44:]) }

// CSI is the command set that some structures are of.
func (c IdentifyCommand) CSI() CSI { return CSI(c.Command[47]) }

// UUIDIndex is the UUID index.
func (c IdentifyCommand) UUIDIndex() uint8 { return c.Command[56] & 0x7F }

// Init makes the SQE an Identify.
func (c IdentifyCommand) Init(cns CNS, nsid uint32, csi CSI, cntid uint16) {
	c.Command.Init(AdminIdentify, nsid)
	c.Command[40] = byte(cns)
	le.PutUint16(c.Command[42:], cntid)
	c.Command[47] = byte(csi)
}

// NSListMax is the number of namespaces of an NSList.
const NSListMax = 1024

// NSList is a view of a namespace list: IdentifySize bytes that hold ascending
// NSIDs, ended by 0 when there are fewer than 1024. CNS 02h and 07h
// and log page 04h are of this form.
type NSList []byte

// ParseNSList checks the length of a list.
func ParseNSList(b []byte) (NSList, error) {
	if err := checkLength("namespace list", b, IdentifySize); err != nil {
		return nil, err
	}
	return b, nil
}

// Len is the number of NSIDs, at most NSListMax.
func (l NSList) Len() int {
	n := 0
	for n < NSListMax && le.Uint32(l[4*n:]) != 0 {
		n++
	}
	return n
}

// At is the i-th NSID.
func (l NSList) At(i int) uint32 { return le.Uint32(l[4*i:]) }

// All yields the NSIDs.
func (l NSList) All() func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for i := range l.Len() {
			if !yield(l.At(i)) {
				return
			}
		}
	}
}

// Put fills the list with the first NSListMax of nsids, which ascend, and
// returns how many it took.
func (l NSList) Put(nsids []uint32) int {
	clear(l[:IdentifySize])
	n := min(len(nsids), NSListMax)
	for i, id := range nsids[:n] {
		le.PutUint32(l[4*i:], id)
	}
	return n
}

// PutOverflow fills a changed namespace list (log page 04h) of which more than
// 1024 namespaces changed.
func (l NSList) PutOverflow() { l.Put([]uint32{NSIDBroadcast}) }

// Overflow says that more than 1024 namespaces changed.
func (l NSList) Overflow() bool { return l.At(0) == NSIDBroadcast }

// DescriptorType is NIDT of a namespace identification descriptor.
type DescriptorType uint8

// Namespace identifier types (Base 5.17.2, CNS 03h).
const (
	DescriptorEUI64 DescriptorType = 1
	DescriptorNGUID DescriptorType = 2
	DescriptorUUID  DescriptorType = 3
	DescriptorCSI   DescriptorType = 4
)

var descriptorNames = map[DescriptorType]string{
	DescriptorEUI64: "EUI-64", DescriptorNGUID: "NGUID", DescriptorUUID: "UUID", DescriptorCSI: "CSI",
}

func (t DescriptorType) String() string { return nameOf(descriptorNames, t, "identifier type") }

// size is the length in bytes an identifier of the type must have.
func (t DescriptorType) size() (int, bool) {
	switch t {
	case DescriptorEUI64:
		return 8, true
	case DescriptorNGUID, DescriptorUUID:
		return 16, true
	case DescriptorCSI:
		return 1, true
	}
	return 0, false
}

// NSDescriptors is what CNS 03h says of a namespace. A zero identifier is not
// reported, except CSI, which has HasCSI.
type NSDescriptors struct {
	EUI64  EUI64
	NGUID  NGUID
	UUID   UUID
	CSI    CSI
	HasCSI bool
}

// MarshalTo fills b, IdentifySize bytes.
func (d *NSDescriptors) MarshalTo(b []byte) {
	encoder("namespace descriptors", b, IdentifySize)
	off := 0
	put := func(t DescriptorType, id []byte) {
		b[off], b[off+1] = byte(t), byte(len(id))
		copy(b[off+4:], id)
		off += 4 + len(id)
	}
	if !d.UUID.IsZero() {
		put(DescriptorUUID, d.UUID[:])
	}
	if !d.NGUID.IsZero() {
		put(DescriptorNGUID, d.NGUID[:])
	}
	if !d.EUI64.IsZero() {
		put(DescriptorEUI64, d.EUI64[:])
	}
	if d.HasCSI {
		put(DescriptorCSI, []byte{byte(d.CSI)})
	}
}

// Unmarshal reads b, IdentifySize bytes. Descriptors of unknown types are
// skipped; of several of one type the last counts.
func (d *NSDescriptors) Unmarshal(b []byte) error {
	if err := checkLength("namespace descriptors", b, IdentifySize); err != nil {
		return err
	}
	*d = NSDescriptors{}
	for off := 0; off+4 <= len(b) && b[off+1] != 0; {
		t, n := DescriptorType(b[off]), int(b[off+1])
		if n > len(b)-off-4 {
			return fmt.Errorf("nvme: %v of %d bytes at %d exceeds the list", t, n, off)
		}
		if want, known := t.size(); known && n != want {
			return fmt.Errorf("nvme: %v of %d bytes, want %d", t, n, want)
		}
		d.take(t, b[off+4:off+4+n])
		off += 4 + n
	}
	return nil
}

func (d *NSDescriptors) take(t DescriptorType, id []byte) {
	switch t {
	case DescriptorEUI64:
		copy(d.EUI64[:], id)
	case DescriptorNGUID:
		copy(d.NGUID[:], id)
	case DescriptorUUID:
		copy(d.UUID[:], id)
	case DescriptorCSI:
		d.CSI, d.HasCSI = CSI(id[0]), true
	}
}

// CommandSetCombinations is a view of CNS 1Ch: 512 vectors of 64 bits, in each a
// bit for every command set (by CSI) that can be enabled together (Base
// 5.17.2). Feature 19h selects a vector by its index.
type CommandSetCombinations []byte

// Vector is combination i, 0 to 511; 0 when there is none.
func (c CommandSetCombinations) Vector(i int) uint64 { return le.Uint64(c[8*i:]) }

// Put fills the IdentifySize bytes with vectors.
func (c CommandSetCombinations) Put(vectors ...uint64) {
	clear(c[:IdentifySize])
	for i, v := range vectors {
		le.PutUint64(c[8*i:], v)
	}
}
