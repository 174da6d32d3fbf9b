package show

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// Feature shows what Get Features returned: value and, for features that have
// it, data.
func Feature(id nvme.FeatureID, sel nvme.FeatureSelect, value uint32, data []byte, o Options) *Doc {
	kind := [...]string{"Current", "Default", "Saved", "Supported capabilities"}[sel&3]
	j := Object{{"name", id.String()}, {kind, fmt.Sprintf("0x%08x", value)}, {"value", value}}
	if len(data) > 0 {
		j.Add("data", fmt.Sprintf("%x", data))
	}
	notes := featureNotes(id, value, data)
	if sel == nvme.SelectSupported {
		notes = capabilityNotes(nvme.FeatureCapabilities(value))
	}
	d := &Doc{raw: data, json: Object{{fmt.Sprintf("feature: 0x%02x", uint8(id)), j}}, text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "get-feature:0x%02x (%v), %s value:0x%08x\n", uint8(id), id, kind, value)
		if o.Human && len(notes) > 0 {
			for _, n := range notes {
				fmt.Fprintf(w, "\t%s\n", n)
			}
		} else if len(data) > 0 {
			Dump(w, data)
		}
	}}
	if len(data) == 0 {
		d.raw = []byte{byte(value), byte(value >> 8), byte(value >> 16), byte(value >> 24)}
	}
	return d
}

func capabilityNotes(c nvme.FeatureCapabilities) []string {
	return bits(c, ability(2, "changing"), ability(1, "values of each namespace"), ability(0, "saving"))
}

// featureNotes are the fields of a value, for people.
func featureNotes(id nvme.FeatureID, v uint32, data []byte) []string {
	say := fmt.Sprintf
	switch id {
	case nvme.FeatArbitration:
		a := nvme.Arbitration(v)
		low, medium, high := a.Weights()
		burst := say("%d", 1<<a.Burst())
		if a.Burst() == 7 {
			burst = "no limit"
		}
		return []string{say("High Priority Weight   (HPW): %d", int(high)+1), say("Medium Priority Weight (MPW): %d", int(medium)+1),
			say("Low Priority Weight    (LPW): %d", int(low)+1), "Arbitration Burst       (AB): " + burst}
	case nvme.FeatPowerManagement:
		p := nvme.PowerManagement(v)
		return []string{say("Workload Hint (WH): %d", p.Workload()), say("Power State   (PS): %d", p.State())}
	case nvme.FeatTemperature:
		t := nvme.TemperatureThreshold(v)
		return []string{"Threshold Type (THSEL): " + onOff(t.THSEL() == 0, "over", "under"), say("Sensor (TMPSEL): %d", t.Sensor()),
			"Threshold (TMPTH): " + celsius(t.Kelvins())}
	case nvme.FeatErrorRecovery:
		e := nvme.ErrorRecovery(v)
		return []string{"Deallocated or Unwritten Block Error (DULBE): " + onOff(e.DULBE(), "Enabled", "Disabled"),
			say("Time Limited Error Recovery (TLER): %d ms", 100*int(e.TLER()))}
	case nvme.FeatWriteCache:
		return []string{"Volatile Write Cache Enable (WCE): " + onOff(v&1 != 0, "Enabled", "Disabled")}
	case nvme.FeatNumQueues:
		n := nvme.NumQueues(v)
		return []string{say("Number of IO Completion Queues Allocated (NCQA): %d", n.CQ()), say("Number of IO Submission Queues Allocated (NSQA): %d", n.SQ())}
	case nvme.FeatIRQCoalescing:
		i := nvme.IRQCoalescing(v)
		return []string{say("Aggregation Time     (TIME): %d usec", 100*int(i.Time())), say("Aggregation Threshold (THR): %d", int(i.Threshold())+1)}
	case nvme.FeatIRQConfig:
		i := nvme.IRQConfig(v)
		return []string{say("Coalescing Disable (CD): %t", i.CoalescingDisabled()), say("Interrupt Vector   (IV): %d", i.Vector())}
	case nvme.FeatWriteAtomicity:
		return []string{say("Disable Normal (DN): %t", v&1 != 0)}
	case nvme.FeatAsyncEvent:
		return bits(v, configured(append(slices.Clone(eventBits), warningEventBits...))...)
	case nvme.FeatTimestamp:
		return timestampNotes(data)
	case nvme.FeatKeepAlive:
		return []string{say("Keep Alive Timeout (KATO) in milliseconds: %d", v)}
	case nvme.FeatHostThermal:
		h := nvme.HostThermal(v)
		return []string{"light throttling (TMT1): " + celsius(h.TMT1()), "heavy throttling (TMT2): " + celsius(h.TMT2())}
	case nvme.FeatHostBehavior:
		return behaviorNotes(data)
	case nvme.FeatHostID:
		return hostIDNotes(data)
	case nvme.FeatReservationMask:
		return bits(v, choice(3, 3, "reservation preempted", "told", "masked"), choice(2, 2, "reservation released", "told", "masked"),
			choice(1, 1, "registration preempted", "told", "masked"))
	case nvme.FeatReservationPersist:
		return []string{say("Persist Through Power Loss (PTPL): %t", v&1 != 0)}
	case nvme.FeatWriteProtect:
		return []string{"Namespace Write Protect: " + nvme.WriteProtect(v).String()}
	}
	return nil
}

var warningEventBits = []bit{
	ability(4, "failed memory backup"), ability(3, "read-only media"), ability(2, "degraded reliability"),
	ability(1, "temperature"), ability(0, "low spare capacity"),
}

// configured are abilities that a host switches on.
func configured(list []bit) []bit {
	for i := range list {
		list[i].values = []string{"not told", "told"}
	}
	return list
}

func behaviorNotes(data []byte) []string {
	var h nvme.HostBehavior
	if h.Unmarshal(data) != nil {
		return nil
	}
	return []string{
		"Advanced Command Retry        (ACRE): " + yes(h.ACRE != 0),
		"Extended Telemetry           (ETDAS): " + yes(h.ETDAS != 0),
		"LBA Format Extension        (LBAFEE): " + yes(h.LBAFEE != 0),
		"Host Dispersed Namespaces   (HDISNS): " + yes(h.HDISNS != 0),
		fmt.Sprintf("Copy Descriptor Formats       (CDFE): %#x", h.CDFE),
	}
}

func onOff(v bool, on, off string) string {
	if v {
		return on
	}
	return off
}

func timestampNotes(data []byte) []string {
	var t nvme.Timestamp
	if t.Unmarshal(data) != nil {
		return nil
	}
	when := time.UnixMilli(int64(t.Milliseconds)).UTC().Format(time.RFC1123)
	return []string{
		fmt.Sprintf("The timestamp is : %d (%s)", t.Milliseconds, when),
		"it counts from " + onOff(t.Origin == nvme.TimestampSet, "what Set Features has set", "the reset of the controller"),
		onOff(t.Stopped, "it may have stood still", "it has not stood still"),
	}
}

func hostIDNotes(data []byte) []string {
	if len(data) == nvme.HostIDSize {
		return []string{"Host Identifier (HOSTID): " + nvme.HostID(data).String()}
	}
	return []string{fmt.Sprintf("Host Identifier (HOSTID): %x", data)}
}
