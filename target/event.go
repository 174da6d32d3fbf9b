package target

import (
	"github.com/nvmf-go/nvmf/nvme"
)

// Asynchronous events (Base 5.2). An event is raised by whoever notices it,
// kept until a request is there to report it, and then masked until the host
// has read its log page: one report for any number of changes.

// eventKind is an event that this controller can have.
type eventKind uint8

const (
	eventNamespace eventKind = iota
	eventDiscovery
	eventTemperature
	numEvents
)

// eventKinds says for each kind what is reported and which bit of feature 0Bh
// lets it through.
var eventKinds = [numEvents]struct {
	report nvme.AsyncEvent
	enable nvme.AsyncEventConfig
}{
	eventNamespace:   {nvme.NSAttributeChanged, nvme.EventNSAttribute},
	eventDiscovery:   {nvme.DiscoveryChanged, nvme.EventDiscovery},
	eventTemperature: {nvme.MakeAsyncEvent(nvme.EventSMART, nvme.SMARTTemperature, nvme.LogSMART), nvme.AsyncEventConfig(nvme.WarningTemperature)},
}

// notices are the events of OAES.
func (c *Controller) notices() nvme.AsyncEventConfig {
	if c.discovery {
		return nvme.EventDiscovery
	}
	return nvme.EventNSAttribute
}

// eventState is which events wait to be reported, and which were. It is
// guarded by Controller.mu.
type eventState struct {
	pending, masked uint8 // bit is the eventKind
}

// raiseLocked makes an event pending unless the host has not asked for it or
// has yet to read about the last, and says whether to deliver.
func (c *Controller) raiseLocked(k eventKind) bool {
	bit := uint8(1) << k
	if c.features.asyncEvents&eventKinds[k].enable == 0 || c.events.masked&bit != 0 {
		return false
	}
	c.events.pending |= bit
	return true
}

// raise raises an event from any goroutine.
func (c *Controller) raise(k eventKind) {
	c.mu.Lock()
	deliver := c.raiseLocked(k)
	c.mu.Unlock()
	if deliver {
		c.admin.cfg.Link.Run(c.deliverEvents)
	}
}

// clearEventLocked is the host's reading of the event's log page, under the
// same lock as the page is read, lest a change in between goes unreported.
func (c *Controller) clearEventLocked(k eventKind) {
	c.events.pending &^= 1 << k
	c.events.masked &^= 1 << k
}

// deliverEvents reports pending events to parked requests. The owner of the
// admin queue calls it.
func (c *Controller) deliverEvents() {
	for c.npark > 0 {
		k, ok := c.nextEvent()
		if !ok {
			return
		}
		r := c.unpark(0)
		r.Result = uint64(eventKinds[k].report)
		c.admin.finish(r, nvme.Success)
	}
}

// nextEvent takes a pending event and masks it.
func (c *Controller) nextEvent() (eventKind, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range numEvents {
		if bit := uint8(1) << k; c.events.pending&bit != 0 {
			c.events.pending &^= bit
			c.events.masked |= bit
			return k, true
		}
	}
	return 0, false
}

// unpark takes parked request i out.
func (c *Controller) unpark(i int) *Request {
	r := c.parked[i]
	copy(c.parked[i:], c.parked[i+1:c.npark])
	c.npark--
	c.parked[c.npark] = nil
	return r
}

// executeAsyncEvent parks the request until there is something to report.
func executeAsyncEvent(q *Queue, r *Request) {
	c := q.ctrl
	if c.npark == maxEvents {
		q.finish(r, nvme.AsyncEventLimitExceeded|nvme.StatusDNR)
		return
	}
	c.parked[c.npark] = r
	c.npark++
	c.deliverEvents()
}

// abortEvents ends all parked requests with st.
func (c *Controller) abortEvents(st nvme.Status) {
	for c.npark > 0 {
		c.admin.finish(c.unpark(0), st)
	}
}

// namespaceChanged enters a namespace into the changed list and raises the
// event. It may be called with Target.mu held.
func (c *Controller) namespaceChanged(nsid uint32) {
	c.mu.Lock()
	c.changed.add(nsid)
	deliver := c.raiseLocked(eventNamespace)
	c.mu.Unlock()
	if deliver {
		c.admin.cfg.Link.Run(c.deliverEvents)
	}
}
