package target

import "github.com/nvmf-go/nvmf/nvme"

// Get Log Page (Base 5.16). Offsets are honoured to 4 bytes and lengths are
// any; what lies beyond a page reads as zeroes.

// logPage is a log page of a fixed size that fits the group's scratch page.
type logPage struct {
	size uint32
	// fill fills page, size zeroes. Nil for pages that are made otherwise.
	fill func(c *Controller, l nvme.LogRequest, page []byte)
	// discovery and io say which controllers have the page.
	io, discovery bool
	// perNS says that it can be of one namespace.
	perNS bool
	// params are the page specific bits of log page 00h.
	params nvme.LogSupport
}

// logMIEffects is NVMe-MI Commands Supported and Effects (Base 5.16.1.20),
// which LPA bit 5 promises: there are none.
const logMIEffects nvme.LogPage = 0x13

const logMIEffectsSize = 4096

// Bits of LSP of the Discovery log page, and of its entry in log page 00h.
const (
	discoveryPLEO        = 1 << 1 // entries of this port only
	discoveryParamsShift = 16
)

var logPages [256]logPage

func init() {
	logPages[nvme.LogSupported] = logPage{size: nvme.SupportedPagesSize, fill: fillSupported, io: true, discovery: true}
	logPages[nvme.LogError] = logPage{size: errorEntries * nvme.ErrorEntrySize, fill: fillErrors, io: true, discovery: true}
	logPages[nvme.LogSMART] = logPage{size: nvme.SMARTLogSize, io: true, perNS: true}
	logPages[nvme.LogFirmware] = logPage{size: nvme.FirmwareLogSize, fill: fillFirmware, io: true}
	logPages[nvme.LogChangedNS] = logPage{size: nvme.IdentifySize, io: true}
	logPages[nvme.LogEffects] = logPage{size: nvme.EffectsLogSize, fill: fillEffects, io: true, discovery: true}
	logPages[nvme.LogFeatureEffects] = logPage{size: nvme.FeatureEffectsSize, fill: fillFeatures, io: true, discovery: true}
	logPages[logMIEffects] = logPage{size: logMIEffectsSize, fill: func(*Controller, nvme.LogRequest, []byte) {}, io: true, discovery: true}
	logPages[nvme.LogDiscovery] = logPage{discovery: true, params: discoveryPLEO << discoveryParamsShift}
}

// logPage is the page of an identifier, nil when this controller does not have
// it.
func (c *Controller) logPage(id nvme.LogPage) *logPage {
	p := &logPages[id]
	if c.discovery && p.discovery || !c.discovery && p.io {
		return p
	}
	return nil
}

// logAttributes is LPA.
func (c *Controller) logAttributes() uint8 {
	const all = nvme.LPAEffects | nvme.LPAExtended | nvme.LPASupportedPages
	if c.discovery {
		return all
	}
	return all | nvme.LPASmartPerNS
}

func prepareLogPage(q *Queue, r *Request) (Transfer, nvme.Status) {
	l := r.Cmd.GetLogPage().Request()
	p := q.ctrl.logPage(l.LID)
	switch {
	case p == nil:
		return Transfer{}, r.bad(nvme.InvalidLogPage, locCDW10, 0)
	case l.Length > uint64(q.cfg.Port.Caps.MaxTransfer):
		return Transfer{}, r.bad(nvme.InvalidField, locCDW10+2, 0)
	case l.OT:
		return Transfer{}, r.bad(nvme.InvalidField, locCDW14+2, 7)
	case l.Offset%4 != 0 || p.size != 0 && l.Offset > uint64(p.size):
		return Transfer{}, r.bad(nvme.InvalidField, locCDW12, 0)
	}
	if st := q.logScope(r, p); !st.OK() {
		return Transfer{}, st
	}
	if r.SGLLength != l.Length {
		return Transfer{}, r.bad(nvme.DataSGLLengthInvalid, locSGL, 0)
	}
	return Transfer{Dir: ControllerToHost, Length: uint32(l.Length)}, nvme.Success
}

// logScope checks the NSID: none or all, or one where the page can be of one.
func (q *Queue) logScope(r *Request, p *logPage) nvme.Status {
	switch id := r.Cmd.NSID(); {
	case id == 0 || id == nvme.NSIDBroadcast:
		return nvme.Success
	case !p.perNS:
		return r.bad(nvme.InvalidField, locNSID, 0)
	default:
		_, st := q.namespace(r)
		return st
	}
}

func executeLogPage(q *Queue, r *Request) {
	l := r.Cmd.GetLogPage().Request()
	switch l.LID {
	case nvme.LogSMART:
		q.executeSMART(r)
		return
	case nvme.LogDiscovery:
		q.executeDiscoveryLog(r, l)
		return
	case nvme.LogChangedNS:
		q.executeChangedList(r, l)
		return
	}
	p := &logPages[l.LID]
	page := q.group.page[:p.size]
	clear(page)
	p.fill(q.ctrl, l, page)
	q.finishLog(r, page)
}

// finishLog responds with the part of a page that was asked for.
func (q *Queue) finishLog(r *Request, page []byte) {
	l := r.Cmd.GetLogPage().Request()
	if l.Offset > uint64(len(page)) {
		q.finish(r, r.bad(nvme.InvalidField, locCDW12, 0))
		return
	}
	scatter(r.Bufs, page[l.Offset:])
	r.DataLength = uint32(l.Length)
	q.finish(r, nvme.Success)
}

func fillSupported(c *Controller, _ nvme.LogRequest, page []byte) {
	for id := range logPages {
		if p := c.logPage(nvme.LogPage(id)); p != nil {
			nvme.SupportedPages(page).Set(nvme.LogPage(id), nvme.LogPageSupported|p.params)
		}
	}
}

// fillErrors lists the errors, the latest first.
func fillErrors(c *Controller, _ nvme.LogRequest, page []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range errorEntries {
		e := c.errors.latest(i)
		e.MarshalTo(page[i*nvme.ErrorEntrySize:][:nvme.ErrorEntrySize])
	}
}

// fillFirmware has the one slot that FRMW promises.
func fillFirmware(c *Controller, _ nvme.LogRequest, page []byte) {
	f := nvme.FirmwareLog{AFI: 1}
	nvme.PutText(f.FRS[0][:], c.target.cfg.Version)
	f.MarshalTo(page)
}

// fillEffects lists the commands of this controller, those that no namespace
// has left out. Of a command set that it does not have, there are no I/O
// commands: nvme-cli asks for those of ZNS wherever CAP.CSS offers a choice.
func fillEffects(c *Controller, l nvme.LogRequest, page []byte) {
	log := nvme.EffectsLog(page)
	for o := range adminCommands {
		if cmd := &adminCommands[o]; cmd.prepare != nil && (cmd.discovery || !c.discovery) {
			log.SetAdmin(nvme.Opcode(o), cmd.effects)
		}
	}
	if c.discovery || l.CSI != nvme.CSINVM {
		return
	}
	for o := range ioCommands {
		if cmd := &ioCommands[o]; cmd.prepare != nil && c.sub.supports(nvme.Opcode(o)) {
			log.SetIO(nvme.Opcode(o), cmd.effects)
		}
	}
}

// supports says whether some namespace has what an I/O command needs.
func (s *Subsystem) supports(o nvme.Opcode) bool {
	if k, optional := optionalKinds[o]; optional {
		return s.anyHas(k)
	}
	return true
}

func fillFeatures(c *Controller, _ nvme.LogRequest, page []byte) {
	for id := range features {
		if c.feature(nvme.FeatureID(id)) != nil {
			nvme.FeatureEffects(page).Set(nvme.FeatureID(id), nvme.FeatureSupported|nvme.FeatureScopeController)
		}
	}
}
