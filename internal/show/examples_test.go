package show

import "github.com/nvmf-go/nvmf/nvme"

// documents are examples in which every field has a value of its own.
func documents() map[string]func(Options) *Doc {
	return map[string]func(Options) *Doc{
		"id-ctrl":          func(o Options) *Doc { return Controller(exampleController(), nil, o) },
		"id-ns":            func(o Options) *Doc { return Namespace(1, exampleNamespace(), nil, o) },
		"cmdset-ind-id-ns": func(o Options) *Doc { return NamespaceIndependent(1, exampleIndependent(), nil, o) },
		"list-ns":          func(Options) *Doc { return NamespaceList(nsList(1, 2, 7)) },
		"ns-descs":         func(Options) *Doc { return Descriptors(1, exampleDescriptors()) },
		"smart-log":        func(o Options) *Doc { return SMART(nvme.NSIDBroadcast, exampleSMART(), nil, o) },
		"error-log":        func(o Options) *Doc { return ErrorLog(exampleErrors(), nil, o) },
		"fw-log":           func(o Options) *Doc { return Firmware(exampleFirmware(), nil, o) },
		"effects-log":      func(o Options) *Doc { return Effects(nvme.CSINVM, exampleEffects(), o) },
		"ana-log":          func(o Options) *Doc { return ANA(9, exampleANA(), nil, o) },
		"changed-ns-list-log": func(o Options) *Doc {
			return ChangedNamespaces(nsList(3, 9), o)
		},
		"changed-ns-overflow": func(o Options) *Doc {
			l := make(nvme.NSList, nvme.IdentifySize)
			l.PutOverflow()
			return ChangedNamespaces(l, o)
		},
		"supported-log-pages":     func(o Options) *Doc { return SupportedLogs(exampleLogs(), o) },
		"fid-support-effects-log": func(o Options) *Doc { return SupportedFeatures(exampleFeatures(), o) },
		"discover":                func(Options) *Doc { return Discovery(5, exampleEntries()) },
		"show-regs":               func(o Options) *Doc { return Registers(exampleRegisters(), o) },
		"get-property":            func(o Options) *Doc { return OneRegister(exampleRegisters()[0], o) },
		"list":                    func(Options) *Doc { return List(exampleList()) },
		"connect-all":             func(Options) *Doc { return Subsystems("nqn.host", "0-0", exampleSubsystems()) },
	}
}

func exampleController() *nvme.IdentifyController {
	id := &nvme.IdentifyController{
		VID: 0x1b36, SSVID: 0x1af4, RAB: 6, IEEE: [3]byte{0x0d, 0x54, 0x52}, CMIC: 0xb, MDTS: 8, CNTLID: 0x1234,
		VER: nvme.MakeVersion(1, 4, 0), RTD3R: 5000, RTD3E: 6000,
		OAES: nvme.EventNSAttribute | nvme.EventANA | nvme.EventDiscovery, CTRATT: 0x8041, RRLS: 1, CNTRLTYPE: nvme.ControllerIO,
		CRDT: [3]uint16{1, 2, 3}, NVMSR: 3, VWCI: 0x85, MEC: 7,
		OACS: 0x56, ACL: 3, AERL: 3, FRMW: 3, LPA: 0x2f, ELPE: 127, APSTA: 1, WCTEMP: 343, CCTEMP: 353, MTFA: 5,
		HMPRE: 100, HMMIN: 50, TNVMCAP: nvme.Uint128{Lo: 1 << 40, Hi: 1}, UNVMCAP: nvme.Uint128Of(1 << 39), RPMBS: 0x40,
		EDSTT: 10, DSTO: 1, FWUG: 2, KAS: 10, HCTMA: 1, MNTMT: 273, MXTMT: 373, SANICAP: 3, HMMINDS: 20, HMMAXD: 2,
		NSETIDMAX: 4, ENDGIDMAX: 5, ANATT: 10, ANACAP: 0x1f, ANAGRPMAX: 128, NANAGRPID: 6, DOMAINID: 7,
		SQES: 0x66, CQES: 0x44, MAXCMD: 1024, NN: 256, ONCS: 0x19d, FUSES: 1, FNA: 4, VWC: 7, AWUN: 0xffff, AWUPF: 1, NWPC: 7,
		ACWU: 2, CDFS: 3, SGLS: 0x100005, MNAN: 8, MAXDNA: nvme.Uint128Of(9), MAXCNA: 10,
		IOCCSZ: 4, IORCSZ: 1, MSDBD: 16, OFCS: 1,
	}
	for i := range id.FGUID {
		id.FGUID[i] = byte(i)
	}
	nvme.PutText(id.SN[:], "SN0123456789")
	nvme.PutText(id.MN[:], "A model of nothing")
	nvme.PutText(id.FR[:], "1.2.3")
	nvme.PutNQN(id.SUBNQN[:], "nqn.2026-11.io.nvmf:example")
	id.PowerState[0] = nvme.PowerState{
		MP: 2500, Flags: nvme.PowerNonOperational, ENLAT: 10, EXLAT: 20, RRT: 1, RRL: 2, RWT: 3, RWL: 4,
		IDLP: 50, ACTP: 60, APW: 0x42,
	}
	return id
}

func exampleNamespace() *nvme.IdentifyNamespace {
	id := &nvme.IdentifyNamespace{
		NSZE: 1 << 21, NCAP: 1 << 21, NUSE: 1 << 20, NSFEAT: 0x1f, NLBAF: 1, FLBAS: 1, MC: 3, DPC: 0x1f, DPS: 9, NMIC: 1,
		RESCAP: 0xff, FPI: 0x80, DLFEAT: 9, NAWUN: 7, NAWUPF: 8, NACWU: 9, NABSN: 10, NABO: 11, NABSPF: 12, NOIOB: 13,
		NVMCAP: nvme.Uint128Of(1 << 33), NPWG: 1, NPWA: 2, NPDG: 3, NPDA: 4, NOWS: 5, MSSRL: 6, MCL: 7, MSRC: 8,
		NULBAF: 2, ANAGRPID: 3, NSATTR: 1, NVMSETID: 2, ENDGID: 3,
	}
	for i := range id.NGUID {
		id.NGUID[i] = 0xa0 + byte(i)
	}
	id.EUI64 = nvme.EUI64{0, 1, 2, 3, 4, 5, 6, 7}
	id.LBAF[0], id.LBAF[1] = nvme.MakeLBAFormat(9, 0, 2), nvme.MakeLBAFormat(12, 8, 0)
	return id
}

func exampleIndependent() *nvme.IdentifyNamespaceIndependent {
	return &nvme.IdentifyNamespaceIndependent{NSFEAT: 8, NMIC: 1, RESCAP: 0x7f, FPI: 0x80, ANAGRPID: 1, NSATTR: 1, NVMSETID: 2, ENDGID: 3, NSTAT: 1}
}

func nsList(nsids ...uint32) nvme.NSList {
	l := make(nvme.NSList, nvme.IdentifySize)
	l.Put(nsids)
	return l
}

func exampleDescriptors() []byte {
	d := nvme.NSDescriptors{EUI64: nvme.EUI64{0, 1, 2, 3, 4, 5, 6, 7}, HasCSI: true}
	for i := range d.NGUID {
		d.NGUID[i], d.UUID[i] = byte(i), byte(16+i)
	}
	b := make([]byte, nvme.IdentifySize)
	d.MarshalTo(b)
	return b
}

func exampleSMART() *nvme.SMARTLog {
	n := func(i uint64) nvme.Uint128 { return nvme.Uint128Of(1000*i + i - 1) }
	return &nvme.SMARTLog{
		CriticalWarning: 5, Temperature: 300, AvailableSpare: 100, SpareThreshold: 10, PercentageUsed: 3,
		DataUnitsRead: n(1), DataUnitsWritten: n(2), HostReadCommands: nvme.Uint128{Lo: 3002, Hi: 1}, HostWriteCommands: n(4),
		ControllerBusyTime: n(5), PowerCycles: n(6), PowerOnHours: n(7), UnsafeShutdowns: n(8), MediaErrors: n(9),
		ErrorLogEntries: n(10), WarningTempTime: 7, CriticalTempTime: 8, TemperatureSensor: [8]uint16{300, 301, 302},
		ThermalTransitions1: 1, ThermalTransitions2: 2, ThermalTime1: 3, ThermalTime2: 4,
	}
}

func exampleErrors() []nvme.ErrorEntry {
	return []nvme.ErrorEntry{
		{Count: 5, SQID: 1, CID: 0x12, Status: nvme.InvalidField | nvme.StatusDNR, Location: 0x128, LBA: 0x1234, NSID: 1,
			TRTYPE: nvme.TransportRDMA, Opcode: nvme.CmdRead, Specific: 0xdead, TTSI: 7, Version: 1},
		{Count: 4, CID: 0x13, Status: nvme.InvalidOpcode | nvme.StatusMore, Location: nvme.ErrorLocationNone, NSID: nvme.NSIDBroadcast,
			TRTYPE: nvme.TransportRDMA},
		{},
	}
}

func exampleFirmware() *nvme.FirmwareLog {
	l := &nvme.FirmwareLog{AFI: 0x11}
	nvme.PutText(l.FRS[0][:], "1.0.3")
	copy(l.FRS[1][:], "ABCDEFGH")
	return l
}

func exampleEffects() nvme.EffectsLog {
	l := make(nvme.EffectsLog, nvme.EffectsLogSize)
	l.SetAdmin(nvme.AdminIdentify, nvme.EffectSupported)
	l.SetAdmin(nvme.AdminSetFeatures, nvme.EffectSupported|nvme.EffectControllerCap|nvme.EffectScopeNamespace)
	l.SetAdmin(nvme.AdminFormatNVM, nvme.EffectSupported|nvme.EffectContentChange|nvme.EffectExclusiveAll)
	l.SetIO(nvme.CmdRead, nvme.EffectSupported)
	l.SetIO(nvme.CmdWrite, nvme.EffectSupported|nvme.EffectContentChange|nvme.EffectExclusiveNS)
	l.SetIO(nvme.CmdVerify, nvme.EffectContentChange) // not supported
	return l
}

func exampleANA() []nvme.ANAGroup {
	return []nvme.ANAGroup{
		{ID: 1, Count: 3, State: nvme.ANAOptimized, NSIDs: []uint32{1, 2}},
		{ID: 2, Count: 3, State: nvme.ANAStateChange},
	}
}

func exampleLogs() nvme.SupportedPages {
	l := make(nvme.SupportedPages, nvme.SupportedPagesSize)
	for _, p := range []nvme.LogPage{nvme.LogError, nvme.LogSMART, nvme.LogDiscovery} {
		l.Set(p, nvme.LogPageSupported)
	}
	l.Set(nvme.LogANA, nvme.LogPageIndexSupported) // not supported
	return l
}

func exampleFeatures() nvme.FeatureEffects {
	l := make(nvme.FeatureEffects, nvme.FeatureEffectsSize)
	l.Set(nvme.FeatNumQueues, nvme.FeatureSupported|nvme.FeatureScopeController)
	l.Set(nvme.FeatWriteProtect, nvme.FeatureSupported|nvme.FeatureScopeNamespace)
	return l
}

func exampleEntries() []nvme.DiscoveryEntry {
	list := make([]nvme.DiscoveryEntry, 3)
	for i := range list {
		e := &list[i]
		e.TRTYPE, e.ADRFAM, e.PORTID, e.CNTLID, e.ASQSZ = nvme.TransportRDMA, nvme.FamilyIPv4, uint16(i), nvme.CNTLIDDynamic, 32
		e.SetRDMA(nvme.TSASRDMA{QPTYPE: nvme.RDMAConnected, PRTYPE: nvme.RDMAProvider(i + 1), CMS: nvme.RDMACMIP})
		nvme.PutText(e.TRADDR[:], "192.0.2.1")
		nvme.PutText(e.TRSVCID[:], "4420")
		nvme.PutNQN(e.SUBNQN[:], "nqn.2026-11.io.nvmf:disk0")
		e.SUBTYPE = nvme.SubsystemNVM
	}
	nvme.PutNQN(list[0].SUBNQN[:], nvme.DiscoveryNQN)
	list[0].SUBTYPE, list[0].EFLAGS, list[0].TREQ = nvme.SubsystemDiscovery, nvme.EFLAGSEPCSD|nvme.EFLAGSDupInfo, nvme.TREQSecureNotRequired|nvme.TREQDisableSQFlow
	list[2].TRTYPE, list[2].ADRFAM, list[2].TREQ = nvme.TransportTCP, nvme.FamilyIB, nvme.TREQSecureRequired
	list[2].SUBTYPE = nvme.SubsystemReferral
	return list
}

func exampleRegisters() []Register {
	return []Register{
		{nvme.PropCAP, 0x1000_0020_2801_3fff}, {nvme.PropVS, 0x10400}, {nvme.PropCC, 0x460001}, {nvme.PropCSTS, 1},
		{nvme.PropNSSR, 0}, {nvme.PropCRTO, 0x20010},
	}
}

func exampleList() []NamespaceItem {
	return []NamespaceItem{
		{Node: "rdma://192.0.2.1:4420/nqn.2026-11.io.nvmf:disk0/1", NQN: "nqn.2026-11.io.nvmf:disk0", NSID: 1, Serial: "NVMF0001", Model: "nvmf",
			Firmware: "1.0", BlockSize: 512, Blocks: 1 << 21, UsedBytes: 1 << 20},
		{Node: "x", NQN: "nqn.2026-11.io.nvmf:disk1", NSID: 20, BlockSize: 4096, Metadata: 8, Blocks: 1 << 40, UsedBytes: 1 << 52},
	}
}

func exampleSubsystems() []SubsystemItem {
	return []SubsystemItem{
		{Name: "subsystem 1", NQN: "nqn.2026-11.io.nvmf:disk0", Paths: []Path{
			{Name: "path 1", Transport: "rdma", TrAddr: "192.0.2.1", TrSvcID: "4420", HostTrAddr: "192.0.2.9", State: "live", Device: "roce-eth0",
				CNTLID: 7, Queues: 2, Depth: 128, Namespaces: []uint32{1, 2}},
			{Name: "path 2", Transport: "rdma", TrAddr: "192.0.2.2", TrSvcID: "4420", State: "no answer"},
		}},
	}
}
