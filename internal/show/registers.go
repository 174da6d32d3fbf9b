package show

import (
	"bytes"
	"fmt"

	"github.com/nvmf-go/nvmf/nvme"
)

// Register is a property of a controller and its value.
type Register struct {
	Property nvme.Property
	Value    uint64
}

// registerNames are the names in text and in JSON.
var registerNames = map[nvme.Property][2]string{
	nvme.PropCAP: {"cap", "cap"}, nvme.PropVS: {"version", "vs"}, nvme.PropCC: {"cc", "cc"}, nvme.PropCSTS: {"csts", "csts"},
	nvme.PropNSSR: {"nssr", "nssr"}, nvme.PropCRTO: {"crto", "crto"},
}

// Registers shows the properties that a fabrics controller has.
func Registers(list []Register, o Options) *Doc {
	j := Object{}
	for _, r := range list {
		j.Add(registerName(r.Property)[1], r.Value)
	}
	return &Doc{json: j, raw: registerBytes(list), text: func(w *bytes.Buffer) {
		for _, r := range list {
			fmt.Fprintf(w, "%-8s: %x\n", registerName(r.Property)[0], r.Value)
			if o.Human {
				for _, n := range registerNotes(r) {
					fmt.Fprintf(w, "\t%s\n", n)
				}
				fmt.Fprintln(w)
			}
		}
	}}
}

// OneRegister shows one property, as get-property does.
func OneRegister(r Register, o Options) *Doc {
	j := Object{{"property", fmt.Sprintf("0x%02x", uint32(r.Property))}, {"name", r.Property.String()}, {"value", fmt.Sprintf("%x", r.Value)}}
	return &Doc{json: j, text: func(w *bytes.Buffer) {
		if !o.Human {
			fmt.Fprintf(w, "property: 0x%02x (%v), value: %x\n", uint32(r.Property), r.Property, r.Value)
			return
		}
		fmt.Fprintf(w, "%-8s: %x\n", registerName(r.Property)[0], r.Value)
		for _, n := range registerNotes(r) {
			fmt.Fprintf(w, "\t%s\n", n)
		}
	}}
}

func registerName(p nvme.Property) [2]string {
	if n, ok := registerNames[p]; ok {
		return n
	}
	return [2]string{fmt.Sprintf("%#x", uint32(p)), fmt.Sprintf("%#x", uint32(p))}
}

// registerBytes is the register file up to the last property that was read.
func registerBytes(list []Register) (b []byte) {
	for _, r := range list {
		end := int(r.Property) + r.Property.Size()
		for len(b) < end {
			b = append(b, 0)
		}
		for i := range r.Property.Size() {
			b[int(r.Property)+i] = byte(r.Value >> (8 * i))
		}
	}
	return b
}

func registerNotes(r Register) []string {
	say := fmt.Sprintf
	switch r.Property {
	case nvme.PropCAP:
		return capabilitiesNotes(nvme.Capabilities(r.Value))
	case nvme.PropVS:
		return []string{"NVMe specification " + nvme.Version(r.Value).String()}
	case nvme.PropCC:
		return configurationNotes(nvme.Configuration(r.Value))
	case nvme.PropCSTS:
		return statusNotes(nvme.ControllerStatus(r.Value))
	case nvme.PropNSSR:
		return []string{say("NVM Subsystem Reset Control (NSSRC): %d", r.Value)}
	case nvme.PropCRTO:
		c := nvme.ReadyTimeouts(r.Value)
		return []string{say("Controller Ready Independent of Media Timeout (CRIMT): %v", c.Independent()),
			say("Controller Ready With Media Timeout           (CRWMT): %v", c.WithMedia())}
	}
	return nil
}

func yes(v bool) string { return onOff(v, "Yes", "No") }

func capabilitiesNotes(c nvme.Capabilities) []string {
	say := fmt.Sprintf
	return []string{
		"Controller Ready With Media       (CRWMS): " + yes(c.CRMS()&nvme.CapCRWMS != 0),
		"Controller Ready Without Media    (CRIMS): " + yes(c.CRMS()&nvme.CapCRIMS != 0),
		say("Memory Page Size Maximum         (MPSMAX): %d bytes", 4096<<c.MPSMAX()),
		say("Memory Page Size Minimum         (MPSMIN): %d bytes", 4096<<c.MPSMIN()),
		say("Command Sets                        (CSS): NVM %s, several at once %s, none %s", yes(c.CSS()&nvme.CapCSSNVM != 0),
			yes(c.CSS()&nvme.CapCSSIOCS != 0), yes(c.CSS()&nvme.CapCSSNoIOC != 0)),
		"NVM Subsystem Reset Supported     (NSSRS): " + yes(c.NSSRS()),
		say("Doorbell Stride                   (DSTRD): %d bytes", 4<<c.DSTRD()),
		say("Timeout                              (TO): %d ms", c.Timeout().Milliseconds()),
		say("Arbitration Mechanism Supported     (AMS): %d", c.AMS()),
		"Contiguous Queues Required          (CQR): " + yes(c.CQR()),
		say("Maximum Queue Entries Supported    (MQES): %d", int(c.MQES())+1),
	}
}

func configurationNotes(c nvme.Configuration) []string {
	say := fmt.Sprintf
	return []string{
		"Ready Independent of Media Enable (CRIME): " + yes(c.CRIME()),
		say("I/O Completion Queue Entry Size  (IOCQES): %d bytes", 1<<c.IOCQES()),
		say("I/O Submission Queue Entry Size  (IOSQES): %d bytes", 1<<c.IOSQES()),
		say("Shutdown Notification               (SHN): %d", c.SHN()),
		say("Arbitration Mechanism Selected      (AMS): %d", c.AMS()),
		say("Memory Page Size                    (MPS): %d bytes", 4096<<c.MPS()),
		say("I/O Command Set Selected            (CSS): %d", c.CSS()),
		"Enable                               (EN): " + yes(c.EN()),
	}
}

func statusNotes(s nvme.ControllerStatus) []string {
	shutdown := [...]string{"normal operation", "occurring", "complete", "reserved"}[s.SHST()&3]
	return []string{
		"Processing Paused                    (PP): " + yes(s.PP()),
		"NVM Subsystem Reset Occurred      (NSSRO): " + yes(s.NSSRO()),
		"Shutdown Status                    (SHST): " + shutdown,
		"Controller Fatal Status             (CFS): " + yes(s.CFS()),
		"Ready                               (RDY): " + yes(s.RDY()),
	}
}
