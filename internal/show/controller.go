package show

import (
	"bytes"
	"fmt"

	"github.com/nvmf-go/nvmf/nvme"
)

// Controller shows Identify Controller: raw is the data, id what it says.
func Controller(id *nvme.IdentifyController, raw []byte, o Options) *Doc {
	list := controllerFields(id)
	states := id.PowerState[:min(int(id.NPSS)+1, len(id.PowerState))]
	j := list.object()
	var psds []Object
	for i := range states {
		psds = append(psds, powerObject(&states[i]))
	}
	j.Add("psds", psds)
	return &Doc{raw: raw, json: j, text: func(w *bytes.Buffer) {
		fmt.Fprintln(w, "NVME Identify Controller:")
		list.text(w, 10, o.Human)
		for i := range states {
			powerText(w, i, &states[i])
		}
	}}
}

func controllerFields(id *nvme.IdentifyController) fields {
	var f fields
	f = append(f, identityFields(id)...)
	f = append(f, adminFields(id)...)
	f = append(f, ioFields(id)...)
	return append(f, fabricsFields(id)...)
}

// identityFields are bytes 0 to 255.
func identityFields(id *nvme.IdentifyController) fields {
	oui := uint32(id.IEEE[2])<<16 | uint32(id.IEEE[1])<<8 | uint32(id.IEEE[0])
	return fields{
		hex("vid", id.VID), hex("ssvid", id.SSVID),
		padded("sn", id.SN[:]), padded("mn", id.MN[:]), padded("fr", id.FR[:]),
		dec("rab", id.RAB),
		{"ieee", fmt.Sprintf("%06x", oui), oui, nil},
		hex("cmic", id.CMIC, bits(id.CMIC, ability(3, "reporting asymmetric namespace access"),
			choice(2, 2, "of", "a PCI function", "an SR-IOV virtual function"),
			choice(1, 1, "controllers of the subsystem", "one", "several"),
			choice(0, 0, "ports of the subsystem", "one", "several"))...),
		dec("mdts", id.MDTS, mdtsNote(id.MDTS)),
		hex("cntlid", id.CNTLID), hex("ver", id.VER, id.VER.String()),
		hex("rtd3r", id.RTD3R), hex("rtd3e", id.RTD3E),
		hex("oaes", id.OAES, bits(id.OAES, eventBits...)...),
		hex("ctratt", id.CTRATT, bits(id.CTRATT, attributeBits...)...),
		hex("rrls", id.RRLS),
		dec("cntrltype", id.CNTRLTYPE, id.CNTRLTYPE.String()),
		str("fguid", nvme.UUID(id.FGUID).String()),
		dec("crdt1", id.CRDT[0]), dec("crdt2", id.CRDT[1]), dec("crdt3", id.CRDT[2]),
		dec("nvmsr", id.NVMSR), dec("vwci", id.VWCI), dec("mec", id.MEC),
	}
}

func mdtsNote(mdts uint8) string {
	if mdts == 0 {
		return "no limit to the data of a command"
	}
	return fmt.Sprintf("a command moves at most 2^%d of the least memory page (CAP.MPSMIN)", mdts)
}

var eventBits = []bit{
	ability(31, "discovery log change notices"), ability(27, "zone descriptor change notices"),
	ability(15, "normal subsystem shutdown event"), ability(14, "endurance group event notices"),
	ability(13, "LBA status information notices"), ability(12, "predictable latency event notices"),
	ability(11, "asymmetric namespace access change notices"), ability(9, "firmware activation notices"),
	ability(8, "namespace attribute notices"),
}

var attributeBits = []bit{
	ability(15, "extended LBA formats"), ability(14, "deleting NVM sets"), ability(13, "deleting endurance groups"),
	ability(12, "variable capacity management"), ability(11, "fixed capacity management"), ability(10, "multiple domains"),
	ability(9, "UUID list"), ability(8, "SQ associations"), ability(7, "namespace granularity"),
	ability(6, "traffic based keep alive"), ability(5, "predictable latency mode"), ability(4, "endurance groups"),
	ability(3, "read recovery levels"), ability(2, "NVM sets"), ability(1, "non-operational power state permissive mode"),
	ability(0, "128-bit host identifier"),
}

// adminFields are bytes 256 to 511.
func adminFields(id *nvme.IdentifyController) fields {
	return fields{
		hex("oacs", id.OACS, bits(id.OACS, adminCommandBits...)...),
		dec("acl", id.ACL), dec("aerl", id.AERL),
		hex("frmw", id.FRMW, bits(id.FRMW, ability(4, "activation without reset"), number(3, 1, "firmware slots"),
			choice(0, 0, "slot 1", "writable", "read-only"))...),
		hex("lpa", id.LPA, bits(id.LPA, logBits...)...),
		dec("elpe", id.ELPE, fmt.Sprintf("%d error log entries", int(id.ELPE)+1)),
		dec("npss", id.NPSS), dec("avscc", id.AVSCC), hex("apsta", id.APSTA),
		dec("wctemp", id.WCTEMP, temperatureNote(id.WCTEMP)...), dec("cctemp", id.CCTEMP, temperatureNote(id.CCTEMP)...),
		dec("mtfa", id.MTFA), dec("hmpre", id.HMPRE), dec("hmmin", id.HMMIN),
		big("tnvmcap", id.TNVMCAP, si(id.TNVMCAP.Float64())), big("unvmcap", id.UNVMCAP, si(id.UNVMCAP.Float64())),
		hex("rpmbs", id.RPMBS), dec("edstt", id.EDSTT), dec("dsto", id.DSTO), dec("fwug", id.FWUG),
		dec("kas", id.KAS, fmt.Sprintf("keep alive timeouts are multiples of %d ms", 100*int(id.KAS))),
		hex("hctma", id.HCTMA), dec("mntmt", id.MNTMT, temperatureNote(id.MNTMT)...), dec("mxtmt", id.MXTMT, temperatureNote(id.MXTMT)...),
		hex("sanicap", id.SANICAP), dec("hmminds", id.HMMINDS), dec("hmmaxd", id.HMMAXD),
		dec("nsetidmax", id.NSETIDMAX), dec("endgidmax", id.ENDGIDMAX),
		dec("anatt", id.ANATT),
		dec("anacap", id.ANACAP, bits(id.ANACAP, ability(7, "non-zero ANAGRPID with namespace management"),
			choice(6, 6, "ANAGRPID of an attached namespace", "may change", "does not change"),
			ability(4, "state change"), ability(3, "state persistent loss"), ability(2, "state inaccessible"),
			ability(1, "state non-optimized"), ability(0, "state optimized"))...),
		dec("anagrpmax", id.ANAGRPMAX), dec("nanagrpid", id.NANAGRPID), dec("pels", id.PELS),
		dec("domainid", id.DOMAINID), big("megcap", id.MEGCAP),
	}
}

func temperatureNote(kelvins uint16) []string {
	if kelvins == 0 {
		return nil
	}
	return []string{celsius(kelvins)}
}

var adminCommandBits = []bit{
	ability(10, "Lockdown"), ability(9, "Get LBA Status"), ability(8, "Doorbell Buffer Config"), ability(7, "Virtualization Management"),
	ability(6, "NVMe-MI Send and Receive"), ability(5, "Directives"), ability(4, "Device Self-test"),
	ability(3, "Namespace Management and Attachment"), ability(2, "Firmware Commit and Download"), ability(1, "Format NVM"),
	ability(0, "Security Send and Receive"),
}

var logBits = []bit{
	ability(6, "telemetry data area 4"), ability(5, "log pages 00h, 12h and 13h"), ability(4, "persistent event log"),
	ability(3, "telemetry logs"), ability(2, "offsets and long lengths of Get Log Page"), ability(1, "commands supported and effects log"),
	ability(0, "SMART log of a namespace"),
}

// ioFields are bytes 512 to 1023.
func ioFields(id *nvme.IdentifyController) fields {
	nqn, _ := nvme.DecodeNQN(id.SUBNQN[:]) // none when it is not one
	return fields{
		hex("sqes", id.SQES), hex("cqes", id.CQES), dec("maxcmd", id.MAXCMD), dec("nn", id.NN),
		hex("oncs", id.ONCS, bits(id.ONCS, commandBits...)...),
		hex("fuses", id.FUSES, bits(id.FUSES, ability(0, "fused Compare and Write"))...),
		hex("fna", id.FNA, bits(id.FNA, choice(3, 3, "Format of all namespaces", "possible", "not possible"),
			ability(2, "cryptographic erase"), choice(1, 1, "secure erase applies to", "one namespace", "all namespaces"),
			choice(0, 0, "Format applies to", "one namespace", "all namespaces"))...),
		hex("vwc", id.VWC, bits(id.VWC, choice(2, 1, "Flush of all namespaces", "not said", "", "not supported", "supported"),
			choice(0, 0, "volatile write cache", "none", "present"))...),
		dec("awun", id.AWUN), dec("awupf", id.AWUPF), dec("icsvscc", id.ICSVSCC), dec("nwpc", id.NWPC), dec("acwu", id.ACWU),
		hex("ocfs", id.CDFS),
		hex("sgls", id.SGLS, bits(id.SGLS, ability(21, "transport data block"), ability(20, "addresses as offsets"),
			ability(19, "metadata in an SGL"), ability(18, "SGLs longer than the data"), ability(17, "byte aligned metadata"),
			ability(16, "bit bucket"), number(15, 8, "descriptors recommended at most"), ability(2, "keyed data block"),
			choice(1, 0, "SGLs", "not supported", "of any alignment", "of dword alignment"))...),
		dec("mnan", id.MNAN), big("maxdna", id.MAXDNA), dec("maxcna", id.MAXCNA),
		str("subnqn", nvme.Text([]byte(nqn))),
	}
}

var commandBits = []bit{
	ability(8, "Copy"), ability(7, "Verify"), ability(6, "Timestamp"), ability(5, "Reservations"),
	ability(4, "saving and selecting features"), ability(3, "Write Zeroes"), ability(2, "Dataset Management"),
	ability(1, "Write Uncorrectable"), ability(0, "Compare"),
}

// fabricsFields are bytes 1792 to 2047.
func fabricsFields(id *nvme.IdentifyController) fields {
	return fields{
		dec("ioccsz", id.IOCCSZ, fmt.Sprintf("command capsules of %d bytes", 16*uint64(id.IOCCSZ))),
		dec("iorcsz", id.IORCSZ, fmt.Sprintf("response capsules of %d bytes", 16*uint64(id.IORCSZ))),
		dec("icdoff", id.ICDOFF),
		dec("fcatt", id.FCATT, bits(id.FCATT, choice(0, 0, "controller model", "dynamic", "static"))...),
		dec("msdbd", id.MSDBD),
		dec("ofcs", id.OFCS, bits(id.OFCS, ability(0, "Disconnect"))...),
	}
}

func powerObject(p *nvme.PowerState) Object {
	return Object{
		{"max_power", p.MP}, {"flags", p.Flags}, {"entry_lat", p.ENLAT}, {"exit_lat", p.EXLAT},
		{"read_tput", p.RRT}, {"read_lat", p.RRL}, {"write_tput", p.RWT}, {"write_lat", p.RWL},
		{"idle_power", p.IDLP}, {"idle_scale", p.IPS >> 6},
		{"active_power", p.ACTP}, {"active_power_work", p.APW & 7}, {"active_scale", p.APW >> 6},
	}
}

func powerText(w *bytes.Buffer, i int, p *nvme.PowerState) {
	power := fmt.Sprintf("%d.%02dW", p.MP/100, p.MP%100)
	if p.Flags&nvme.PowerScale != 0 {
		power = fmt.Sprintf("%d.%04dW", p.MP/10000, p.MP%10000)
	}
	state := "operational"
	if p.Flags&nvme.PowerNonOperational != 0 {
		state = "non-operational"
	}
	workload := "reserved"
	if n := int(p.APW & 7); n < len(workloads) {
		workload = workloads[n]
	}
	fmt.Fprintf(w, "ps %6d : mp:%s %s enlat:%d exlat:%d rrt:%d rrl:%d\n", i, power, state, p.ENLAT, p.EXLAT, p.RRT, p.RRL)
	fmt.Fprintf(w, "            rwt:%d rwl:%d idle_power:%s active_power:%s\n", p.RWT, p.RWL, scaled(p.IDLP, p.IPS>>6), scaled(p.ACTP, p.APW>>6))
	fmt.Fprintf(w, "            active_power_workload:%s\n", workload)
}

var workloads = [...]string{"-", "1MiB 32 RW, 30s idle", "80K 128KiB SW"}

// scaled is a power in units of 10^-4 W (scale 1) or 10^-2 W (scale 2).
func scaled(v uint16, scale uint8) string {
	switch scale {
	case 1:
		return fmt.Sprintf("%d.%04dW", v/10000, v%10000)
	case 2:
		return fmt.Sprintf("%d.%02dW", v/100, v%100)
	}
	return "-"
}
