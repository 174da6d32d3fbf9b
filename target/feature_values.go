package target

import (
	"github.com/nvmf-go/nvmf/nvme"
)

// Temperatures in kelvins. A program has none; it reports a comfortable one,
// below every threshold unless the host sets one.
const (
	temperature         = 303
	warningTemperature  = 343
	criticalTemperature = 353
	// Host controlled thermal management takes thresholds between these.
	minThermal = 313
	maxThermal = 353
)

// featureValues are the features of a controller. They are guarded by
// Controller.mu.
type featureValues struct {
	arbitration    uint32
	workload       uint32 // of power management
	overTemp       uint16
	underTemp      uint16
	errorRecovery  uint32
	irqCoalescing  uint32
	irqDisabled    [maxIOQueues/64 + 1]uint64 // coalescing disabled, by vector
	writeAtomicity uint32
	asyncEvents    nvme.AsyncEventConfig
	hostThermal    nvme.HostThermal
	behavior       nvme.HostBehavior
}

// noBurstLimit is AB of Arbitration.
const noBurstLimit = 7

// reset puts the defaults in place.
func (f *featureValues) reset() {
	*f = featureValues{arbitration: noBurstLimit, overTemp: warningTemperature}
}

func defaultFeatures() *featureValues {
	f := new(featureValues)
	f.reset()
	return f
}

// features are those there are; see Controller.feature for which a controller
// has.
var features [256]feature

func init() {
	features[nvme.FeatArbitration] = stored(0xFFFFFF07, func(f *featureValues) *uint32 { return &f.arbitration })
	features[nvme.FeatPowerManagement] = feature{get: getPower, set: setPower}
	features[nvme.FeatTemperature] = feature{get: getTemperature, set: setTemperature}
	features[nvme.FeatErrorRecovery] = feature{get: getErrorRecovery, set: setErrorRecovery}
	features[nvme.FeatWriteCache] = feature{get: getWriteCache, set: setWriteCache}
	features[nvme.FeatNumQueues] = feature{get: getNumQueues, set: setNumQueues}
	features[nvme.FeatIRQCoalescing] = stored(0xFFFF, func(f *featureValues) *uint32 { return &f.irqCoalescing })
	features[nvme.FeatIRQConfig] = feature{get: getIRQConfig, set: setIRQConfig}
	features[nvme.FeatWriteAtomicity] = stored(1, func(f *featureValues) *uint32 { return &f.writeAtomicity })
	features[nvme.FeatAsyncEvent] = feature{get: getAsyncEvent, set: setAsyncEvent, discovery: true}
	features[nvme.FeatKeepAlive] = feature{get: getKeepAlive, set: setKeepAlive, discovery: true}
	features[nvme.FeatHostThermal] = feature{get: getHostThermal, set: setHostThermal}
	features[nvme.FeatHostBehavior] = feature{data: nvme.HostBehaviorSize, put: putBehavior, set: setBehavior}
	features[nvme.FeatHostID] = feature{data: nvme.HostIDSize, put: putHostID}
}

// stored is a feature whose value is kept and given back.
func stored(mask uint32, at func(*featureValues) *uint32) feature {
	return feature{
		get: func(v featureView, _ uint32) (uint64, bool) { return uint64(*at(v.f)), true },
		set: func(c *Controller, r *Request) nvme.Status {
			*at(&c.features) = r.Cmd.Features().Value() & mask
			return nvme.Success
		},
	}
}

// There is one power state, 0.
func getPower(v featureView, _ uint32) (uint64, bool) { return uint64(v.f.workload), true }

func setPower(c *Controller, r *Request) nvme.Status {
	p := nvme.PowerManagement(r.Cmd.Features().Value())
	if p.State() != 0 {
		return r.bad(nvme.InvalidField, locCDW11, 0)
	}
	c.features.workload = uint32(p) & 0xE0
	return nvme.Success
}

// getTemperature knows the composite temperature only.
func getTemperature(v featureView, cdw11 uint32) (uint64, bool) {
	t := nvme.TemperatureThreshold(cdw11)
	if t.Sensor() != nvme.SensorComposite {
		return 0, false
	}
	switch t.THSEL() {
	case 0:
		return uint64(v.f.overTemp), true
	case 1:
		return uint64(v.f.underTemp), true
	}
	return 0, false
}

func setTemperature(c *Controller, r *Request) nvme.Status {
	t := nvme.TemperatureThreshold(r.Cmd.Features().Value())
	if s := t.Sensor(); s != nvme.SensorComposite && s != nvme.SensorAll || t.THSEL() > 1 {
		return r.bad(nvme.InvalidField, locCDW11+2, 0)
	}
	if t.THSEL() == 0 {
		c.features.overTemp = t.Kelvins()
	} else {
		c.features.underTemp = t.Kelvins()
	}
	if c.features.temperatureWarning() {
		c.raiseLocked(eventTemperature)
	}
	return nvme.Success
}

// temperatureWarning says whether the temperature is at a threshold or beyond.
func (f *featureValues) temperatureWarning() bool {
	return temperature >= f.overTemp || temperature <= f.underTemp
}

func getErrorRecovery(v featureView, _ uint32) (uint64, bool) { return uint64(v.f.errorRecovery), true }

// setErrorRecovery refuses DULBE, which NSFEAT does not offer.
func setErrorRecovery(c *Controller, r *Request) nvme.Status {
	e := nvme.ErrorRecovery(r.Cmd.Features().Value())
	if e.DULBE() {
		return r.bad(nvme.InvalidField, locCDW11+2, 0)
	}
	c.features.errorRecovery = uint32(e.TLER())
	return nvme.Success
}

func getWriteCache(v featureView, _ uint32) (uint64, bool) {
	if v.defaults || !v.c.writeThrough.Load() {
		return 1, true
	}
	return 0, true
}

// setWriteCache makes every write of this controller FUA, or not.
func setWriteCache(c *Controller, r *Request) nvme.Status {
	c.writeThrough.Store(r.Cmd.Features().Value()&1 == 0)
	return nvme.Success
}

func getNumQueues(v featureView, _ uint32) (uint64, bool) {
	n := v.c.granted
	if v.defaults {
		n = v.c.target.cfg.MaxQueues
	}
	return uint64(nvme.MakeNumQueues(n, n)), true
}

// setNumQueues grants what is asked for, up to the limit. A submission queue
// has its completion queue, so the lesser number counts.
func setNumQueues(c *Controller, r *Request) nvme.Status {
	n := nvme.NumQueues(r.Cmd.Features().Value())
	if n.SQ() > 0xFFFF || n.CQ() > 0xFFFF {
		return r.bad(nvme.InvalidField, locCDW11, 0)
	}
	if len(c.queues) > 0 {
		return nvme.CommandSequenceError | nvme.StatusDNR
	}
	c.granted = min(n.SQ(), n.CQ(), c.target.cfg.MaxQueues)
	r.Result = uint64(nvme.MakeNumQueues(c.granted, c.granted))
	return nvme.Success
}

// There are no interrupts on fabrics; a vector for each queue is remembered.
func getIRQConfig(v featureView, cdw11 uint32) (uint64, bool) {
	iv := int(nvme.IRQConfig(cdw11).Vector())
	if iv > v.c.target.cfg.MaxQueues {
		return 0, false
	}
	return uint64(iv) | v.f.irqDisabled[iv/64]>>(iv%64)&1<<16, true
}

func setIRQConfig(c *Controller, r *Request) nvme.Status {
	i := nvme.IRQConfig(r.Cmd.Features().Value())
	iv := int(i.Vector())
	if iv > c.target.cfg.MaxQueues {
		return r.bad(nvme.InvalidField, locCDW11, 0)
	}
	c.features.irqDisabled[iv/64] &^= 1 << (iv % 64)
	if i.CoalescingDisabled() {
		c.features.irqDisabled[iv/64] |= 1 << (iv % 64)
	}
	return nvme.Success
}

func getAsyncEvent(v featureView, _ uint32) (uint64, bool) { return uint64(v.f.asyncEvents), true }

// setAsyncEvent takes the notices of OAES, and all critical warnings.
func setAsyncEvent(c *Controller, r *Request) nvme.Status {
	const warnings = nvme.AsyncEventConfig(nvme.WarningSpare | nvme.WarningTemperature | nvme.WarningReliability |
		nvme.WarningReadOnly | nvme.WarningBackup | nvme.WarningPMR)
	v := nvme.AsyncEventConfig(r.Cmd.Features().Value())
	offered := c.notices()
	if !c.discovery {
		offered |= warnings
	}
	if v&^offered != 0 {
		return r.bad(nvme.InvalidField, locCDW11, 0)
	}
	c.features.asyncEvents = v
	if c.features.temperatureWarning() {
		c.raiseLocked(eventTemperature)
	}
	return nvme.Success
}

func getHostThermal(v featureView, _ uint32) (uint64, bool) { return uint64(v.f.hostThermal), true }

// setHostThermal takes 0 for none, else temperatures between MNTMT and MXTMT,
// the light one being below the heavy one.
func setHostThermal(c *Controller, r *Request) nvme.Status {
	h := nvme.HostThermal(r.Cmd.Features().Value())
	inRange := func(t uint16) bool { return t == 0 || t >= minThermal && t <= maxThermal }
	if !inRange(h.TMT1()) || !inRange(h.TMT2()) || h.TMT1() != 0 && h.TMT2() != 0 && h.TMT1() >= h.TMT2() {
		return r.bad(nvme.InvalidField, locCDW11, 0)
	}
	c.features.hostThermal = h
	return nvme.Success
}

func putBehavior(v featureView, b []byte) { v.f.behavior.MarshalTo(b) }

// setBehavior takes the flags of the base specification that are 0 or 1.
func setBehavior(c *Controller, r *Request) nvme.Status {
	var buf [nvme.HostBehaviorSize]byte
	var h nvme.HostBehavior
	if err := h.Unmarshal(gather(buf[:], r.Bufs)); err != nil || h.ACRE > 1 || h.ETDAS > 1 || h.LBAFEE > 1 {
		return r.bad(nvme.InvalidField, locSGL, 0)
	}
	c.features.behavior = nvme.HostBehavior{ACRE: h.ACRE, ETDAS: h.ETDAS, LBAFEE: h.LBAFEE}
	return nvme.Success
}

func putHostID(v featureView, b []byte) { copy(b, v.c.hostID[:]) }
