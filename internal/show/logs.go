package show

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/nvmf-go/nvmf/nvme"
)

// SMART shows log page 02h of a namespace, or of the controller.
func SMART(nsid uint32, l *nvme.SMARTLog, raw []byte, o Options) *Doc {
	j := Object{
		{"critical_warning", l.CriticalWarning}, {"temperature", l.Temperature}, {"avail_spare", l.AvailableSpare},
		{"spare_thresh", l.SpareThreshold}, {"percent_used", l.PercentageUsed},
		{"endurance_grp_critical_warning_summary", l.EnduranceWarning},
		{"data_units_read", l.DataUnitsRead}, {"data_units_written", l.DataUnitsWritten},
		{"host_read_commands", l.HostReadCommands}, {"host_write_commands", l.HostWriteCommands},
		{"controller_busy_time", l.ControllerBusyTime}, {"power_cycles", l.PowerCycles}, {"power_on_hours", l.PowerOnHours},
		{"unsafe_shutdowns", l.UnsafeShutdowns}, {"media_errors", l.MediaErrors}, {"num_err_log_entries", l.ErrorLogEntries},
		{"warning_temp_time", l.WarningTempTime}, {"critical_comp_time", l.CriticalTempTime},
	}
	for i, k := range l.TemperatureSensor {
		if k != 0 {
			j.Add(fmt.Sprintf("temperature_sensor_%d", i+1), k)
		}
	}
	j = append(j, Object{
		{"thm_temp1_trans_count", l.ThermalTransitions1}, {"thm_temp2_trans_count", l.ThermalTransitions2},
		{"thm_temp1_total_time", l.ThermalTime1}, {"thm_temp2_total_time", l.ThermalTime2},
	}...)
	return &Doc{raw: raw, json: j, text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "Smart Log for NVME device:%s namespace-id:%x\n", o.Device, nsid)
		smartText(w, l, o.Human)
	}}
}

func smartText(w *bytes.Buffer, l *nvme.SMARTLog, human bool) {
	line := func(name string, tabs int, format string, a ...any) {
		fmt.Fprintf(w, "%s%.*s: "+format+"\n", append([]any{name, tabs, "\t\t\t\t"}, a...)...)
	}
	line("critical_warning", 3, "%s", hexText(l.CriticalWarning))
	if human {
		for _, b := range bits(l.CriticalWarning, warningBits...) {
			fmt.Fprintf(w, "  %s\n", b)
		}
	}
	line("temperature", 4, "%s", celsius(l.Temperature))
	line("available_spare", 4, "%d%%", l.AvailableSpare)
	line("available_spare_threshold", 2, "%d%%", l.SpareThreshold)
	line("percentage_used", 4, "%d%%", l.PercentageUsed)
	line("endurance group critical warning summary", 0, "%s", hexText(l.EnduranceWarning))
	line("Data Units Read", 4, "%v (%s)", l.DataUnitsRead, si(512000*l.DataUnitsRead.Float64()))
	line("Data Units Written", 3, "%v (%s)", l.DataUnitsWritten, si(512000*l.DataUnitsWritten.Float64()))
	line("host_read_commands", 3, "%v", l.HostReadCommands)
	line("host_write_commands", 3, "%v", l.HostWriteCommands)
	line("controller_busy_time", 3, "%v", l.ControllerBusyTime)
	line("power_cycles", 4, "%v", l.PowerCycles)
	line("power_on_hours", 4, "%v", l.PowerOnHours)
	line("unsafe_shutdowns", 3, "%v", l.UnsafeShutdowns)
	line("media_errors", 4, "%v", l.MediaErrors)
	line("num_err_log_entries", 3, "%v", l.ErrorLogEntries)
	line("Warning Temperature Time", 2, "%d", l.WarningTempTime)
	line("Critical Composite Temperature Time", 1, "%d", l.CriticalTempTime)
	for i, k := range l.TemperatureSensor {
		if k != 0 {
			fmt.Fprintf(w, "Temperature Sensor %d           : %s\n", i+1, celsius(k))
		}
	}
	line("Thermal Management T1 Trans Count", 1, "%d", l.ThermalTransitions1)
	line("Thermal Management T2 Trans Count", 1, "%d", l.ThermalTransitions2)
	line("Thermal Management T1 Total Time", 1, "%d", l.ThermalTime1)
	line("Thermal Management T2 Total Time", 1, "%d", l.ThermalTime2)
}

var warningBits = []bit{
	choice(5, 5, "persistent memory region", "well", "unreliable or read-only"), choice(4, 4, "volatile memory backup", "well", "failed"),
	choice(3, 3, "media", "writable", "read-only"), choice(2, 2, "reliability", "well", "degraded"),
	choice(1, 1, "temperature", "well", "beyond a threshold"), choice(0, 0, "spare capacity", "well", "below the threshold"),
}

// ErrorLog shows entries of log page 01h; raw is all of the page that was read.
func ErrorLog(entries []nvme.ErrorEntry, raw []byte, o Options) *Doc {
	list := []Object{}
	for i := range entries {
		list = append(list, errorObject(&entries[i]))
	}
	return &Doc{raw: raw, json: Object{{"errors", list}}, text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "Error Log Entries for device:%s entries:%d\n", o.Device, len(entries))
		fmt.Fprintln(w, rule)
		for i := range entries {
			fmt.Fprintf(w, " Entry[%2d]   \n%s\n", i, rule)
			errorText(w, &entries[i])
			fmt.Fprintln(w, rule)
		}
	}}
}

// errorObject is an entry as JSON. The phase tag is not part of a fabrics CQE.
func errorObject(e *nvme.ErrorEntry) Object {
	return Object{
		{"error_count", e.Count}, {"sqid", e.SQID}, {"cmdid", e.CID}, {"status_field", e.Status}, {"phase_tag", 0},
		{"parm_error_location", e.Location}, {"lba", e.LBA}, {"nsid", e.NSID}, {"vs", e.VSIA}, {"trtype", e.TRTYPE},
		{"csi", e.CSI}, {"opcode", e.Opcode}, {"cs", e.Specific}, {"trtype_spec_info", e.TTSI}, {"log_page_version", e.Version},
	}
}

func errorText(w *bytes.Buffer, e *nvme.ErrorEntry) {
	fmt.Fprintf(w, "error_count\t: %d\nsqid\t\t: %d\ncmdid\t\t: %s\n", e.Count, e.SQID, hexText(e.CID))
	fmt.Fprintf(w, "status_field\t: %s(%s)\n", hexText(e.Status), nvme.StatusText(e.Status, e.Opcode))
	fmt.Fprintf(w, "phase_tag\t: 0\nparm_err_loc\t: %s\n", hexText(e.Location))
	fmt.Fprintf(w, "lba\t\t: %s\nnsid\t\t: %s\nvs\t\t: %d\n", hexText(e.LBA), hexText(e.NSID), e.VSIA)
	fmt.Fprintf(w, "trtype\t\t: %s\n", errorTransport(e.TRTYPE))
	fmt.Fprintf(w, "csi\t\t: %d\nopcode\t\t: %s\n", e.CSI, hexText(e.Opcode))
	fmt.Fprintf(w, "cs\t\t: %s\ntrtype_spec_info: %s\nlog_page_version: %d\n", hexText(e.Specific), hexText(e.TTSI), e.Version)
}

func errorTransport(t nvme.TransportType) string {
	if t == nvme.TransportNone {
		return "not of a transport"
	}
	return t.String() + " transport"
}

// Firmware shows log page 03h.
func Firmware(l *nvme.FirmwareLog, raw []byte, o Options) *Doc {
	j := Object{{"Active Firmware Slot (afi)", l.AFI}}
	type slot struct {
		n    int
		rev  uint64
		text string
	}
	var slots []slot
	for i, r := range l.FRS {
		if r[0] != 0 {
			s := slot{i + 1, binary.LittleEndian.Uint64(r[:]), nvme.Text(r[:])}
			slots = append(slots, s)
			j.Add(fmt.Sprintf("Firmware Rev Slot %d", s.n), fmt.Sprintf("%d (%s)", s.rev, s.text))
		}
	}
	return &Doc{raw: raw, json: Object{{o.Device, j}}, text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "Firmware Log for device:%s\nafi  : %s\n", o.Device, hexText(l.AFI))
		for _, s := range slots {
			fmt.Fprintf(w, "frs%d : 0x%016x (%s)\n", s.n, s.rev, s.text)
		}
	}}
}

// ChangedNamespaces shows log page 04h.
func ChangedNamespaces(list nvme.NSList, o Options) *Doc {
	changed := Object{}
	if list.Overflow() {
		changed.Add("overflow", true)
	} else {
		for i := range list.Len() {
			changed.Add(fmt.Sprintf("[%4d]", i+1), hexText(list.At(i)))
		}
	}
	return &Doc{raw: list, json: Object{{"Changed Namespace List Log", o.Device}, {o.Device, changed}}, text: func(w *bytes.Buffer) {
		if list.Overflow() {
			fmt.Fprintf(w, "more than %d namespaces changed\n", nvme.NSListMax)
			return
		}
		for i := range list.Len() {
			fmt.Fprintf(w, "[%4d]:%s\n", i, hexText(list.At(i)))
		}
	}}
}

// ANA shows log page 0Ch.
func ANA(change uint64, groups []nvme.ANAGroup, raw []byte, o Options) *Doc {
	list := []Object{}
	for i := range groups {
		g := &groups[i]
		nsids := []Object{}
		for _, n := range g.NSIDs {
			nsids = append(nsids, Object{{"nsid", n}})
		}
		list = append(list, Object{{"grpid", g.ID}, {"nnsids", len(g.NSIDs)}, {"chgcnt", g.Count}, {"state", g.State.String()}, {"NSIDS", nsids}})
	}
	j := Object{
		{"Asymmetric Namespace Access Log for NVMe device", o.Device}, {"chgcnt", change}, {"ngrps", len(groups)},
		{"ANA DESC LIST ", list}, // nvme-cli's key, its blank included
	}
	return &Doc{raw: raw, json: j, text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "Asymmetric Namespace Access Log for NVMe device: %s\nANA LOG HEADER :-\n", o.Device)
		fmt.Fprintf(w, "chgcnt\t:\t%d\nngrps\t:\t%d\nANA Log Desc :-\n", change, len(groups))
		for i := range groups {
			g := &groups[i]
			fmt.Fprintf(w, "grpid\t:\t%d\nnnsids\t:\t%d\nchgcnt\t:\t%d\nstate\t:\t%v\n", g.ID, len(g.NSIDs), g.Count, g.State)
			for _, n := range g.NSIDs {
				fmt.Fprintf(w, "\tnsid\t:\t%d\n", n)
			}
			fmt.Fprintln(w)
		}
	}}
}
