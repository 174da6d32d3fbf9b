package target

import (
	"errors"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/nvme"
)

// Controller properties (Base 3.1.3, NVMe-oF 3.4 and 3.5).

func prepareProperty(q *Queue, r *Request) (Transfer, nvme.Status) {
	p := r.Cmd.Property()
	switch {
	case q.state != queueAdmin:
		return Transfer{}, r.bad(nvme.InvalidOpcode, locFCType, 0)
	case !known(p.Offset()) && r.Cmd.FCType() == nvme.FabricsPropertyGet:
		// Tools ask for every register there is. nvme-cli takes a bare Invalid
		// Field, without DNR and More, for one that this controller lacks, and
		// everything else for the end of its inquiry.
		r.core.inquiry = true
		return Transfer{}, nvme.InvalidField
	case !known(p.Offset()):
		return Transfer{}, r.bad(nvme.InvalidField, locCDW11, 0)
	case p.Size() != p.Offset().Size():
		return Transfer{}, r.bad(nvme.InvalidField, locCDW10, 0)
	}
	return Transfer{}, nvme.Success
}

// known says which properties there are. NSSR is not: CAP.NSSRS is 0.
func known(p nvme.Property) bool {
	switch p {
	case nvme.PropCAP, nvme.PropVS, nvme.PropCC, nvme.PropCSTS, nvme.PropCRTO:
		return true
	}
	return false
}

// capabilities is CAP for hosts that come through p.
func (p *Port) capabilities() nvme.Capabilities {
	return nvme.Capabilities(0).
		WithMQES(uint16(p.Caps.MaxQueueDepth - 1)).
		WithCQR(true).
		WithTO(readyUnits).
		WithCSS(nvme.CapCSSNVM | nvme.CapCSSIOCS).
		WithCRMS(nvme.CapCRWMS)
}

func executePropertyGet(q *Queue, r *Request) {
	c := q.ctrl
	c.mu.Lock()
	defer func() {
		c.mu.Unlock()
		q.finish(r, nvme.Success)
	}()
	switch r.Cmd.Property().Offset() {
	case nvme.PropCAP:
		r.Result = uint64(c.port.capabilities())
	case nvme.PropVS:
		r.Result = uint64(version)
	case nvme.PropCC:
		r.Result = uint64(c.cc)
	case nvme.PropCSTS:
		r.Result = uint64(c.csts)
	case nvme.PropCRTO:
		r.Result = uint64(nvme.MakeReadyTimeouts(readyUnits, 0))
	}
}

func executePropertySet(q *Queue, r *Request) {
	p := r.Cmd.Property()
	if p.Offset() != nvme.PropCC {
		q.finish(r, r.bad(nvme.InvalidField, locCDW11, 0)) // read-only
		return
	}
	q.ctrl.configure(nvme.Configuration(p.Value()))
	q.finish(r, nvme.Success)
}

// quiescing is what a controller does whose I/O queues are ending.
type quiescing uint8

const (
	notQuiescing quiescing = iota
	resetting              // CSTS.RDY becomes 0
	shuttingDown           // CSTS.SHST becomes 10b
)

// configure is a write of CC.
//
//	disabled -EN 1-> ready -SHN-> shutting down -> shut down -EN 0-> resetting
//	         -bad-> failed        ready -EN 0-> resetting -> disabled
//
// A reset and a shutdown end the I/O queues, and both are complete (CSTS.RDY,
// CSTS.SHST) when the last command of those has left its backend: a write that
// lands later than the host was told could meet what the host does next. A
// shutdown flushes nothing: what a Flush has acknowledged is on the medium, and
// the subsystem goes on for its other hosts.
func (c *Controller) configure(cc nvme.Configuration) {
	c.mu.Lock()
	was := c.cc
	c.cc = cc
	var ended error
	if reset := !cc.EN() && was.EN(); reset {
		c.resetLocked()
		ended = ErrReset
	} else if cc.EN() && !was.EN() {
		c.enableLocked()
	}
	switch asked, before := cc.SHN() != nvme.ShutdownNone, was.SHN() != nvme.ShutdownNone; {
	case asked && !before && ended == nil:
		c.csts, c.pending = c.csts.WithSHST(nvme.ShutdownOccurring), shuttingDown
		ended = ErrShutdown
	case asked && !before: // with a reset, which does all of it
		c.csts = c.csts.WithSHST(nvme.ShutdownComplete)
	case !asked && before && !cc.EN():
		c.csts = c.csts.WithSHST(nvme.ShutdownNotRequested)
	}
	s := c.csts
	c.ready.Store(s.RDY() && !s.CFS() && s.SHST() == nvme.ShutdownNotRequested && c.pending == notQuiescing && !c.ending.Load())
	c.mu.Unlock()
	if ended == nil {
		return
	}
	c.dropQueues(ended)
	if errors.Is(ended, ErrReset) {
		c.abortEvents(nvme.AbortedSQDeletion)
	}
	c.mu.Lock()
	c.settleLocked()
	c.mu.Unlock()
}

// resetLocked forgets what a reset forgets. Controller.mu is held.
func (c *Controller) resetLocked() {
	c.csts = c.csts.WithCFS(false).WithSHST(nvme.ShutdownNotRequested)
	c.pending = resetting
	c.features.reset()
	c.granted = c.target.cfg.MaxQueues
	c.writeThrough.Store(false)
	c.events = eventState{}
}

// settleLocked completes a reset or shutdown once the I/O queues have ended.
// Controller.mu is held.
func (c *Controller) settleLocked() {
	if c.live > 0 {
		return
	}
	switch c.pending {
	case resetting:
		c.csts = c.csts.WithRDY(false)
	case shuttingDown:
		c.csts = c.csts.WithSHST(nvme.ShutdownComplete)
	}
	c.pending = notQuiescing
}

// enableLocked makes the controller ready, or failed when the host has chosen
// what there is not. Controller.mu is held.
func (c *Controller) enableLocked() {
	c.pending = notQuiescing // a host that did not wait for the end of a reset does without it
	if why := c.misconfigured(); why != "" {
		c.csts = c.csts.WithCFS(true)
		c.target.log.peer(logrus.WarnLevel, c.who(), "controller %d cannot be enabled: %s (CC %#x)", c.id, why, uint32(c.cc))
		return
	}
	c.csts = c.csts.WithCFS(false).WithRDY(true)
}

// misconfigured says what is wrong with CC, "" when nothing is. Discovery
// controllers have no I/O queues, hence no entry sizes.
func (c *Controller) misconfigured() string {
	switch cc := c.cc; {
	case cc.MPS() != 0:
		return "memory page size"
	case cc.AMS() != 0:
		return "arbitration mechanism"
	case cc.CSS() != nvme.CCCSSNVM && cc.CSS() != nvme.CCCSSAll:
		return "command set"
	case !c.discovery && cc.IOSQES() != 6:
		return "I/O submission queue entry size"
	case !c.discovery && cc.IOCQES() != 4:
		return "I/O completion queue entry size"
	}
	return ""
}
