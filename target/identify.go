package target

import (
	"math/bits"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// Identify (Base 5.17). Everything it says is derived from what there is.

// identifier fills page, IdentifySize zeroes, with a data structure.
type identifier struct {
	fill func(q *Queue, r *Request, page []byte) nvme.Status
	// discovery says that discovery controllers have it.
	discovery bool
}

var identifiers [256]identifier

func init() {
	identifiers[nvme.CNSNamespace] = identifier{fill: identifyNamespace}
	identifiers[nvme.CNSController] = identifier{fill: identifyController, discovery: true}
	identifiers[nvme.CNSActiveList] = identifier{fill: identifyActiveList}
	identifiers[nvme.CNSDescriptors] = identifier{fill: identifyDescriptors}
	identifiers[nvme.CNSNamespaceCS] = identifier{fill: identifyNamespaceNVM}
	identifiers[nvme.CNSControllerCS] = identifier{fill: identifyControllerNVM}
	identifiers[nvme.CNSActiveListCS] = identifier{fill: identifyActiveListNVM}
	identifiers[nvme.CNSNamespaceIndep] = identifier{fill: identifyNamespaceIndependent}
	identifiers[nvme.CNSCommandSetCombos] = identifier{fill: identifyCommandSets}
}

func prepareIdentify(q *Queue, r *Request) (Transfer, nvme.Status) {
	i := &identifiers[r.Cmd.Identify().CNS()]
	switch {
	case i.fill == nil || q.ctrl.discovery && !i.discovery:
		return Transfer{}, r.bad(nvme.InvalidField, locCDW10, 0)
	case r.SGLLength != nvme.IdentifySize:
		return Transfer{}, r.bad(nvme.DataSGLLengthInvalid, locSGL, 0)
	}
	return Transfer{Dir: ControllerToHost, Length: nvme.IdentifySize}, nvme.Success
}

func executeIdentify(q *Queue, r *Request) {
	page := q.group.page[:nvme.IdentifySize]
	clear(page)
	st := identifiers[r.Cmd.Identify().CNS()].fill(q, r, page)
	if st.OK() {
		scatter(r.Bufs, page)
		r.DataLength = nvme.IdentifySize
	}
	q.finish(r, st)
}

// identified is the namespace of an Identify. An inactive NSID is no error:
// its structure is zeroes. FFFFFFFFh is one, without namespace management.
func identified(q *Queue, r *Request) (*Namespace, nvme.Status) {
	id := r.Cmd.NSID()
	if id == 0 || id > MaxNSID {
		return nil, r.bad(nvme.InvalidNamespace, locNSID, 0)
	}
	return q.ctrl.sub.table.Load().get(id), nvme.Success
}

func identifyController(q *Queue, _ *Request, page []byte) nvme.Status {
	c := q.ctrl
	id := nvme.IdentifyController{
		CMIC:      nvme.CMICMultiPort | nvme.CMICMultiController,
		CNTLID:    c.id,
		VER:       version,
		OAES:      c.notices(),
		CTRATT:    nvme.CTRATTHostID128 | nvme.CTRATTTBKAS,
		CNTRLTYPE: nvme.ControllerIO,
		ACL:       maxAborts - 1,
		AERL:      maxEvents - 1,
		FRMW:      nvme.FRMWSlot1ReadOnly | nvme.FRMWSlots(1),
		LPA:       c.logAttributes(),
		ELPE:      errorEntries - 1,
		KAS:       1,
		MAXCMD:    uint16(c.port.Caps.MaxQueueDepth),
	}
	nvme.PutText(id.SN[:], c.sub.serial)
	nvme.PutText(id.MN[:], c.sub.model)
	nvme.PutText(id.FR[:], c.target.cfg.Version)
	nvme.PutNQN(id.SUBNQN[:], c.sub.nqn)
	c.identifyTransport(&id)
	if c.discovery {
		id.CNTRLTYPE = nvme.ControllerDiscovery
		id.ACL, id.FRMW = 0, 0
	} else {
		c.identifyNVM(&id)
	}
	id.MarshalTo(page)
	return nvme.Success
}

// identifyTransport fills in what the port's transport can do.
func (c *Controller) identifyTransport(id *nvme.IdentifyController) {
	caps := c.port.Caps
	id.MDTS = uint8(bits.Len32(caps.MaxTransfer) - 1 - 12)
	id.IOCCSZ = uint32(nvme.SQESize+caps.InCapsule) / 16
	id.IORCSZ = nvme.CQESize / 16
	id.FCATT = nvme.FCATTDynamic
	id.MSDBD = uint8(min(caps.MaxSGL, 255))
	id.SGLS = nvme.SGLSSupported
	if caps.KeyedSGL {
		id.SGLS |= nvme.SGLSKeyed
	}
	if caps.InCapsule > 0 {
		id.SGLS |= nvme.SGLSOffset
	}
}

// identifyNVM fills in what I/O controllers have.
func (c *Controller) identifyNVM(id *nvme.IdentifyController) {
	const entrySizes = 0x66 // SQES: 2^6 required and most
	id.SQES, id.CQES = entrySizes, 0x44
	id.NN, id.MNAN = MaxNSID, MaxNSID
	id.OFCS = nvme.OFCSDisconnect
	id.WCTEMP, id.CCTEMP = warningTemperature, criticalTemperature
	id.HCTMA, id.MNTMT, id.MXTMT = 1, minThermal, maxThermal
	id.ONCS = nvme.ONCSCompare | nvme.ONCSVerify | nvme.ONCSSaveSelect
	if c.sub.supports(nvme.CmdDatasetManagement) {
		id.ONCS |= nvme.ONCSDSM
	}
	if c.sub.supports(nvme.CmdWriteZeroes) {
		id.ONCS |= nvme.ONCSWriteZeroes
	}
	id.VWC = nvme.VWCFlushAll
	if c.hasWriteCache() {
		id.VWC |= nvme.VWCPresent
	}
	const idlePower = 2500 // units of 10 mW: 25 W, a nominal figure
	id.PowerState[0].MP = idlePower
}

// anyHas says whether a namespace of s has an operation. A subsystem without
// namespaces says what can be had.
func (s *Subsystem) anyHas(k backend.Kind) bool {
	t := s.table.Load()
	return len(t.active) == 0 || t.any(func(n *Namespace) bool { return n.has(k) })
}

func identifyNamespace(q *Queue, r *Request, page []byte) nvme.Status {
	n, st := identified(q, r)
	if n == nil {
		return st
	}
	blocks := n.blocks.Load()
	id := nvme.IdentifyNamespace{
		NSZE: blocks, NCAP: blocks, NUSE: blocks,
		NMIC: nvme.NMICShared, NVMCAP: nvme.Uint128Of(blocks << n.shift),
		NGUID: n.id.nguid, EUI64: n.id.eui64, NSATTR: n.attributes(), DLFEAT: n.deallocation(),
	}
	id.LBAF[0] = nvme.MakeLBAFormat(n.shift, 0, 0)
	if g := n.info.Granularity >> n.shift; g > 0 && g <= 1<<16 {
		unit := uint16(g - 1)
		id.NSFEAT |= nvme.NSFEATOptimalFields
		id.NPWG, id.NPWA, id.NPDG, id.NPDA, id.NOWS = unit, unit, unit, unit, unit
	}
	id.MarshalTo(page)
	return nvme.Success
}

// attributes is NSATTR.
func (n *Namespace) attributes() uint8 {
	if n.ro {
		return nvme.NSATTRWriteProtected
	}
	return 0
}

// deallocation is DLFEAT.
func (n *Namespace) deallocation() (v uint8) {
	if n.info.ZeroAfterDiscard {
		v = nvme.DLFEATZeroes
	}
	if n.has(backend.WriteZeroes) && n.has(backend.Discard) {
		v |= nvme.DLFEATWriteZeroes
	}
	return v
}

// identifyActiveList lists the active NSIDs above that of the command.
func identifyActiveList(q *Queue, r *Request, page []byte) nvme.Status {
	after := r.Cmd.NSID()
	if after >= nvme.NSIDBroadcast-1 {
		return r.bad(nvme.InvalidNamespace, locNSID, 0)
	}
	table := q.ctrl.sub.table.Load()
	if after == 0 { // a page holds all that there can be
		q.ctrl.setListed(table.version)
	}
	active := table.active
	for len(active) > 0 && active[0] <= after {
		active = active[1:]
	}
	nvme.NSList(page).Put(active)
	return nvme.Success
}

// setListed notes which namespaces the host knows now.
func (c *Controller) setListed(version uint64) {
	if c.listed.Swap(version) == version {
		return
	}
	c.target.mu.Lock()
	defer c.target.mu.Unlock()
	c.target.changedLocked()
}

// checkCSI demands the NVM command set.
func checkCSI(r *Request) nvme.Status {
	if r.Cmd.Identify().CSI() != nvme.CSINVM {
		return r.bad(nvme.InvalidField, locCDW11+3, 0)
	}
	return nvme.Success
}

func identifyActiveListNVM(q *Queue, r *Request, page []byte) nvme.Status {
	if st := checkCSI(r); !st.OK() {
		return st
	}
	return identifyActiveList(q, r, page)
}

func identifyDescriptors(q *Queue, r *Request, page []byte) nvme.Status {
	n, st := identified(q, r)
	if !st.OK() {
		return st
	}
	if n == nil {
		return noNamespace(r, r.Cmd.NSID())
	}
	d := nvme.NSDescriptors{EUI64: n.id.eui64, NGUID: n.id.nguid, UUID: n.id.uuid, CSI: nvme.CSINVM, HasCSI: true}
	d.MarshalTo(page)
	return nvme.Success
}

// identifyNamespaceNVM has nothing to say: there is no protection information.
func identifyNamespaceNVM(q *Queue, r *Request, _ []byte) nvme.Status {
	if st := checkCSI(r); !st.OK() {
		return st
	}
	_, st := identified(q, r)
	return st
}

func identifyControllerNVM(_ *Queue, r *Request, page []byte) nvme.Status {
	if st := checkCSI(r); !st.OK() {
		return st
	}
	id := nvme.IdentifyControllerNVM{VSL: sizeLimitLog, WZSL: sizeLimitLog}
	id.MarshalTo(page)
	return nvme.Success
}

func identifyNamespaceIndependent(q *Queue, r *Request, page []byte) nvme.Status {
	n, st := identified(q, r)
	if n == nil {
		return st
	}
	id := nvme.IdentifyNamespaceIndependent{NMIC: nvme.NMICShared, NSATTR: n.attributes(), NSTAT: nvme.NSTATReady}
	id.MarshalTo(page)
	return nvme.Success
}

// identifyCommandSets has one combination: the NVM command set alone.
func identifyCommandSets(q *Queue, r *Request, page []byte) nvme.Status {
	if id := r.Cmd.Identify().CNTID(); id != 0xFFFF && id != q.ctrl.id {
		return r.bad(nvme.InvalidField, locCDW10+2, 0)
	}
	nvme.CommandSetCombinations(page).Put(1 << nvme.CSINVM)
	return nvme.Success
}
