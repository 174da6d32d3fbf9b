package nvme

// Bits of CMIC, byte 76.
const (
	CMICMultiPort       uint8 = 1 << 0
	CMICMultiController uint8 = 1 << 1
	CMICSRIOV           uint8 = 1 << 2
	CMICANA             uint8 = 1 << 3
)

// Bits of CTRATT, byte 96.
const (
	CTRATTHostID128     uint32 = 1 << 0
	CTRATTNonOpPower    uint32 = 1 << 1
	CTRATTNVMSets       uint32 = 1 << 2
	CTRATTReadRecovery  uint32 = 1 << 3
	CTRATTEndurance     uint32 = 1 << 4
	CTRATTPredLatency   uint32 = 1 << 5
	CTRATTTBKAS         uint32 = 1 << 6 // traffic based keep alive
	CTRATTGranularity   uint32 = 1 << 7
	CTRATTSQAssoc       uint32 = 1 << 8
	CTRATTUUIDList      uint32 = 1 << 9
	CTRATTMultiDomain   uint32 = 1 << 10
	CTRATTFixedCapacity uint32 = 1 << 11
	CTRATTVarCapacity   uint32 = 1 << 12
	CTRATTDeleteEG      uint32 = 1 << 13
	CTRATTDeleteSet     uint32 = 1 << 14
	CTRATTExtLBAFormats uint32 = 1 << 15
)

// ControllerType is CNTRLTYPE, byte 111.
type ControllerType uint8

// Controller types.
const (
	ControllerUnreported ControllerType = 0
	ControllerIO         ControllerType = 1
	ControllerDiscovery  ControllerType = 2
	ControllerAdmin      ControllerType = 3
)

var controllerTypeNames = map[ControllerType]string{
	ControllerUnreported: "not reported", ControllerIO: "I/O", ControllerDiscovery: "discovery",
	ControllerAdmin: "administrative",
}

func (t ControllerType) String() string { return nameOf(controllerTypeNames, t, "controller type") }

// Bits of OACS, byte 256.
const (
	OACSSecurity     uint16 = 1 << 0
	OACSFormat       uint16 = 1 << 1
	OACSFirmware     uint16 = 1 << 2
	OACSNSManagement uint16 = 1 << 3
	OACSSelfTest     uint16 = 1 << 4
	OACSDirectives   uint16 = 1 << 5
	OACSMI           uint16 = 1 << 6
	OACSVirtual      uint16 = 1 << 7
	OACSDoorbell     uint16 = 1 << 8
	OACSLBAStatus    uint16 = 1 << 9
	OACSLockdown     uint16 = 1 << 10
)

// Bits of FRMW, byte 260. Bits 3:1 are the number of firmware slots.
const (
	FRMWSlot1ReadOnly uint8 = 1 << 0
	FRMWNoReset       uint8 = 1 << 4
)

// FRMWSlots makes bits 3:1 of FRMW.
func FRMWSlots(n uint8) uint8 { return n & 7 << 1 }

// Bits of LPA, byte 261.
const (
	LPASmartPerNS     uint8 = 1 << 0
	LPAEffects        uint8 = 1 << 1 // log page 05h
	LPAExtended       uint8 = 1 << 2 // 32-bit NUMD and LPO
	LPATelemetry      uint8 = 1 << 3
	LPAPersistent     uint8 = 1 << 4
	LPASupportedPages uint8 = 1 << 5 // log pages 00h, 12h and 13h
	LPATelemetryArea4 uint8 = 1 << 6
)

// Bits of ANACAP, byte 343.
const (
	ANACAPOptimized      uint8 = 1 << 0
	ANACAPNonOptimized   uint8 = 1 << 1
	ANACAPInaccessible   uint8 = 1 << 2
	ANACAPPersistentLoss uint8 = 1 << 3
	ANACAPChange         uint8 = 1 << 4
	ANACAPGroupConstant  uint8 = 1 << 6 // ANAGRPID does not change while attached
	ANACAPGroupID        uint8 = 1 << 7 // a non-zero ANAGRPID is supported by namespace management
)

// Bits of ONCS, byte 520.
const (
	ONCSCompare            uint16 = 1 << 0
	ONCSWriteUncorrectable uint16 = 1 << 1
	ONCSDSM                uint16 = 1 << 2
	ONCSWriteZeroes        uint16 = 1 << 3
	ONCSSaveSelect         uint16 = 1 << 4 // the SV and SEL fields of features
	ONCSReservations       uint16 = 1 << 5
	ONCSTimestamp          uint16 = 1 << 6
	ONCSVerify             uint16 = 1 << 7
	ONCSCopy               uint16 = 1 << 8
	ONCSNamespaceZeroes    uint16 = 1 << 12 // NSZ of Write Zeroes
)

// FUSESCompareWrite is bit 0 of FUSES, byte 522.
const FUSESCompareWrite uint16 = 1 << 0

// Bits of VWC, byte 525. Bits 2:1 say what Flush does with NSID FFFFFFFFh.
const (
	VWCPresent          uint8 = 1 << 0
	VWCFlushAllRejected uint8 = 2 << 1 // Flush of all namespaces is not supported
	VWCFlushAll         uint8 = 3 << 1 // Flush of all namespaces is supported
)

// Bits of SGLS, byte 536.
const (
	SGLSSupported        uint32 = 1 << 0 // without alignment; 2 means dword aligned
	SGLSDwordAligned     uint32 = 2 << 0
	SGLSKeyed            uint32 = 1 << 2
	SGLSBitBucket        uint32 = 1 << 16
	SGLSMetaByteAligned  uint32 = 1 << 17
	SGLSOversized        uint32 = 1 << 18 // an SGL longer than the data is accepted
	SGLSMetaInSGL        uint32 = 1 << 19
	SGLSOffset           uint32 = 1 << 20 // data in the capsule by offset
	SGLSTransportData    uint32 = 1 << 21
	SGLSSupportedMask    uint32 = 3
	SGLSDescriptorsShift        = 8 // bits 15:8: greatest number of descriptors recommended
)

// FCATTDynamic is bit 0 of FCATT, byte 1802, clear: the controller model is
// dynamic. FCATTStatic is the bit set.
const (
	FCATTDynamic uint8 = 0
	FCATTStatic  uint8 = 1
)

// OFCSDisconnect is bit 0 of OFCS, byte 1804: the Disconnect command.
const OFCSDisconnect uint16 = 1 << 0

// DiscoveryType is DCTYPE, byte 1806.
type DiscoveryType uint8

// Discovery controller types.
const (
	DiscoveryUnreported DiscoveryType = 0
	DiscoveryDirect     DiscoveryType = 1 // DDC
	DiscoveryCentral    DiscoveryType = 2 // CDC
)

// IdentifyController is CNS 01h (Base 5.17.2.1). Field names are the
// specification's.
type IdentifyController struct {
	// Controller capabilities and features.

	VID, SSVID   uint16
	SN           [20]byte // PutText
	MN           [40]byte // PutText
	FR           [8]byte  // PutText
	RAB          uint8    // 2^n commands
	IEEE         [3]byte  // OUI, least significant byte first
	CMIC         uint8
	MDTS         uint8 // 2^n units of CAP.MPSMIN, 0 for no limit
	CNTLID       uint16
	VER          Version
	RTD3R, RTD3E uint32 // microseconds
	OAES         AsyncEventConfig
	CTRATT       uint32
	RRLS         uint16
	CNTRLTYPE    ControllerType
	FGUID        NGUID
	CRDT         [3]uint16 // CRDT1 to 3, units of 100 ms
	NVMSR        uint8
	VWCI         uint8
	MEC          uint8

	// Admin command set attributes.

	OACS       uint16
	ACL        uint8 // concurrent Aborts, 0-based
	AERL       uint8 // concurrent Asynchronous Event Requests, 0-based
	FRMW       uint8
	LPA        uint8
	ELPE       uint8 // error log entries, 0-based
	NPSS       uint8 // power states, 0-based
	AVSCC      uint8
	APSTA      uint8
	WCTEMP     uint16 // kelvins
	CCTEMP     uint16 // kelvins
	MTFA       uint16 // units of 100 ms
	HMPRE      uint32
	HMMIN      uint32
	TNVMCAP    Uint128 // bytes
	UNVMCAP    Uint128 // bytes
	RPMBS      uint32
	EDSTT      uint16
	DSTO       uint8
	FWUG       uint8
	KAS        uint16 // units of 100 ms
	HCTMA      uint16
	MNTMT      uint16 // kelvins
	MXTMT      uint16 // kelvins
	SANICAP    uint32
	HMMINDS    uint32
	HMMAXD     uint16
	NSETIDMAX  uint16
	ENDGIDMAX  uint16
	ANATT      uint8 // seconds
	ANACAP     uint8
	ANAGRPMAX  uint32
	NANAGRPID  uint32
	PELS       uint32
	DOMAINID   uint16
	MEGCAP     Uint128
	TMPTHHA    uint8
	PowerState [32]PowerState

	// NVM command set attributes.

	SQES, CQES uint8 // bits 3:0 required, 7:4 maximum, as 2^n bytes
	MAXCMD     uint16
	NN         uint32
	ONCS       uint16
	FUSES      uint16
	FNA        uint8
	VWC        uint8
	AWUN       uint16 // blocks, 0-based
	AWUPF      uint16 // blocks, 0-based
	ICSVSCC    uint8
	NWPC       uint8
	ACWU       uint16 // blocks, 0-based
	CDFS       uint16 // copy descriptor formats
	SGLS       uint32
	MNAN       uint32
	MAXDNA     Uint128
	MAXCNA     uint32
	SUBNQN     [NQNFieldSize]byte // PutNQN, DecodeNQN

	// Fabrics attributes.

	IOCCSZ uint32 // command capsule, units of 16 bytes
	IORCSZ uint32 // response capsule, units of 16 bytes
	ICDOFF uint16 // offset of in-capsule data, units of 16 bytes
	FCATT  uint8
	MSDBD  uint8 // data blocks in an SGL
	OFCS   uint16
	DCTYPE DiscoveryType
}

// MarshalTo fills b, IdentifySize bytes; reserved and vendor bytes are zero.
func (c *IdentifyController) MarshalTo(b []byte) {
	c.visit(encoder("identify controller", b, IdentifySize))
}

// Unmarshal reads b, IdentifySize bytes.
func (c *IdentifyController) Unmarshal(b []byte) error {
	if err := checkLength("identify controller", b, IdentifySize); err != nil {
		return err
	}
	c.visit(decoder(b))
	return nil
}

func (c *IdentifyController) visit(l layout) {
	c.visitCapabilities(l)
	c.visitAdmin(l)
	c.visitNVM(l)
	c.visitFabrics(l)
	for i := range c.PowerState {
		c.PowerState[i].visit(layout{l.b[2048+32*i:][:32], l.put})
	}
}

func (c *IdentifyController) visitCapabilities(l layout) {
	u16(l, 0, &c.VID)
	u16(l, 2, &c.SSVID)
	raw(l, 4, c.SN[:])
	raw(l, 24, c.MN[:])
	raw(l, 64, c.FR[:])
	u8(l, 72, &c.RAB)
	raw(l, 73, c.IEEE[:])
	u8(l, 76, &c.CMIC)
	u8(l, 77, &c.MDTS)
	u16(l, 78, &c.CNTLID)
	u32(l, 80, &c.VER)
	u32(l, 84, &c.RTD3R)
	u32(l, 88, &c.RTD3E)
	u32(l, 92, &c.OAES)
	u32(l, 96, &c.CTRATT)
	u16(l, 100, &c.RRLS)
	u8(l, 111, &c.CNTRLTYPE)
	raw(l, 112, c.FGUID[:])
	for i := range c.CRDT {
		u16(l, 128+2*i, &c.CRDT[i])
	}
	u8(l, 253, &c.NVMSR)
	u8(l, 254, &c.VWCI)
	u8(l, 255, &c.MEC)
}

func (c *IdentifyController) visitAdmin(l layout) {
	u16(l, 256, &c.OACS)
	u8(l, 258, &c.ACL)
	u8(l, 259, &c.AERL)
	u8(l, 260, &c.FRMW)
	u8(l, 261, &c.LPA)
	u8(l, 262, &c.ELPE)
	u8(l, 263, &c.NPSS)
	u8(l, 264, &c.AVSCC)
	u8(l, 265, &c.APSTA)
	u16(l, 266, &c.WCTEMP)
	u16(l, 268, &c.CCTEMP)
	u16(l, 270, &c.MTFA)
	u32(l, 272, &c.HMPRE)
	u32(l, 276, &c.HMMIN)
	u128(l, 280, &c.TNVMCAP)
	u128(l, 296, &c.UNVMCAP)
	u32(l, 312, &c.RPMBS)
	u16(l, 316, &c.EDSTT)
	u8(l, 318, &c.DSTO)
	u8(l, 319, &c.FWUG)
	u16(l, 320, &c.KAS)
	u16(l, 322, &c.HCTMA)
	u16(l, 324, &c.MNTMT)
	u16(l, 326, &c.MXTMT)
	u32(l, 328, &c.SANICAP)
	u32(l, 332, &c.HMMINDS)
	u16(l, 336, &c.HMMAXD)
	u16(l, 338, &c.NSETIDMAX)
	u16(l, 340, &c.ENDGIDMAX)
	u8(l, 342, &c.ANATT)
	u8(l, 343, &c.ANACAP)
	u32(l, 344, &c.ANAGRPMAX)
	u32(l, 348, &c.NANAGRPID)
	u32(l, 352, &c.PELS)
	u16(l, 356, &c.DOMAINID)
	u128(l, 368, &c.MEGCAP)
	u8(l, 384, &c.TMPTHHA)
}

func (c *IdentifyController) visitNVM(l layout) {
	u8(l, 512, &c.SQES)
	u8(l, 513, &c.CQES)
	u16(l, 514, &c.MAXCMD)
	u32(l, 516, &c.NN)
	u16(l, 520, &c.ONCS)
	u16(l, 522, &c.FUSES)
	u8(l, 524, &c.FNA)
	u8(l, 525, &c.VWC)
	u16(l, 526, &c.AWUN)
	u16(l, 528, &c.AWUPF)
	u8(l, 530, &c.ICSVSCC)
	u8(l, 531, &c.NWPC)
	u16(l, 532, &c.ACWU)
	u16(l, 534, &c.CDFS)
	u32(l, 536, &c.SGLS)
	u32(l, 540, &c.MNAN)
	u128(l, 544, &c.MAXDNA)
	u32(l, 560, &c.MAXCNA)
	raw(l, 768, c.SUBNQN[:])
}

func (c *IdentifyController) visitFabrics(l layout) {
	u32(l, 1792, &c.IOCCSZ)
	u32(l, 1796, &c.IORCSZ)
	u16(l, 1800, &c.ICDOFF)
	u8(l, 1802, &c.FCATT)
	u8(l, 1803, &c.MSDBD)
	u16(l, 1804, &c.OFCS)
	u8(l, 1806, &c.DCTYPE)
}

// Flags of a PowerState.
const (
	PowerScale          uint8 = 1 << 0 // MP is in units of 0.1 mW, not 10 mW
	PowerNonOperational uint8 = 1 << 1
)

// PowerState is a power state descriptor (Base 5.17.2.1).
type PowerState struct {
	MP           uint16 // maximum power
	Flags        uint8
	ENLAT, EXLAT uint32 // microseconds
	RRT, RRL     uint8
	RWT, RWL     uint8
	IDLP         uint16
	IPS          uint8
	ACTP         uint16
	APW          uint8 // bits 2:0 workload, 7:6 scale
}

func (p *PowerState) visit(l layout) {
	u16(l, 0, &p.MP)
	u8(l, 3, &p.Flags)
	u32(l, 4, &p.ENLAT)
	u32(l, 8, &p.EXLAT)
	u8(l, 12, &p.RRT)
	u8(l, 13, &p.RRL)
	u8(l, 14, &p.RWT)
	u8(l, 15, &p.RWL)
	u16(l, 16, &p.IDLP)
	u8(l, 18, &p.IPS)
	u16(l, 20, &p.ACTP)
	u8(l, 22, &p.APW)
}

// IdentifyControllerNVM is CNS 06h of the NVM command set (NVM 4.1.5). A
// size limit of 0 means that MDTS or the command's own field is the limit.
type IdentifyControllerNVM struct {
	VSL   uint8  // Verify: 2^n units of CAP.MPSMIN
	WZSL  uint8  // Write Zeroes: likewise
	WUSL  uint8  // Write Uncorrectable: likewise
	DMRL  uint8  // Dataset Management: ranges
	DMRSL uint32 // blocks of one range
	DMSL  uint64 // blocks in all
}

// MarshalTo fills b, IdentifySize bytes.
func (c *IdentifyControllerNVM) MarshalTo(b []byte) {
	c.visit(encoder("NVM controller", b, IdentifySize))
}

// Unmarshal reads b, IdentifySize bytes.
func (c *IdentifyControllerNVM) Unmarshal(b []byte) error {
	if err := checkLength("NVM controller", b, IdentifySize); err != nil {
		return err
	}
	c.visit(decoder(b))
	return nil
}

func (c *IdentifyControllerNVM) visit(l layout) {
	u8(l, 0, &c.VSL)
	u8(l, 1, &c.WZSL)
	u8(l, 2, &c.WUSL)
	u8(l, 3, &c.DMRL)
	u32(l, 4, &c.DMRSL)
	u64(l, 8, &c.DMSL)
}
