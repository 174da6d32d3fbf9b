package target

import (
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// SMART / Health Information (log page 02h): of the subsystem since the target
// was made, or of one namespace. The counters are the groups', so the answer
// comes when all of them have reported.

func (q *Queue) executeSMART(r *Request) {
	n := r.core.ns
	q.group.target.gather(sums, func(sum *groupReport) {
		q.cfg.Link.Run(func() { q.finishSMART(r, sum, n) })
	})
}

func (q *Queue) finishSMART(r *Request, sum *groupReport, n *Namespace) {
	c, l := q.ctrl, r.Cmd.GetLogPage().Request()
	counts := sum.subsystem(c.sub)
	if n != nil {
		counts = namespaceReport{}
		if of := sum.namespaces[n]; of != nil {
			counts = *of
		}
	}
	c.mu.Lock()
	s := c.healthLocked(&counts)
	if !l.RAE {
		c.clearEventLocked(eventTemperature)
	}
	c.mu.Unlock()
	page := q.group.page[:nvme.SMARTLogSize]
	s.MarshalTo(page)
	q.finishLog(r, page)
}

// healthLocked is the log page for counts. What wears a medium is not known of
// files: spare and use are those of a new one.
func (c *Controller) healthLocked(counts *namespaceReport) nvme.SMARTLog {
	u := &counts.Counters
	s := nvme.SMARTLog{
		Temperature:        temperature,
		AvailableSpare:     100,
		SpareThreshold:     10,
		DataUnitsRead:      nvme.Uint128Of(nvme.SMARTDataUnits(u.Bytes[OpRead] + u.Bytes[OpCompare] + u.Bytes[OpVerify])),
		DataUnitsWritten:   nvme.Uint128Of(nvme.SMARTDataUnits(u.Bytes[OpWrite])),
		HostReadCommands:   nvme.Uint128Of(u.Ops[OpRead] + u.Ops[OpCompare] + u.Ops[OpVerify]),
		HostWriteCommands:  nvme.Uint128Of(u.Ops[OpWrite]),
		ControllerBusyTime: nvme.Uint128Of(uint64(time.Duration(counts.busy) / time.Minute)),
		PowerCycles:        nvme.Uint128Of(1),
		PowerOnHours:       nvme.Uint128Of(uint64(time.Since(c.target.epoch) / time.Hour)),
		MediaErrors:        nvme.Uint128Of(u.MediaErrors),
		ErrorLogEntries:    nvme.Uint128Of(c.errors.count),
	}
	if c.features.temperatureWarning() {
		s.CriticalWarning |= nvme.WarningTemperature
	}
	return s
}
