package show

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/nvmf-go/nvmf/nvme"
)

// Effects shows log page 05h of a command set.
func Effects(csi nvme.CSI, l nvme.EffectsLog, o Options) *Doc {
	admin, io := Object{}, Object{}
	for i := range 256 {
		op := nvme.Opcode(i)
		if e := l.Admin(op); e&nvme.EffectSupported != 0 {
			admin.Add(fmt.Sprintf("ACS_%d (%s)", i, nvme.OpcodeName(op, true)), e)
		}
		if e := l.IO(op); e&nvme.EffectSupported != 0 {
			io.Add(fmt.Sprintf("IOCS_%d (%s)", i, nvme.OpcodeName(op, false)), e)
		}
	}
	j := []Object{{{"command_set_identifier", csi}, {"admin_cmd_set", admin}, {"io_cmd_set", io}}}
	return &Doc{raw: l, json: j, text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "%v Command Set Log Page\n%s\n", csi, strings.Repeat("-", 80))
		effectsText(w, "Admin Commands", "ACS%-6d[%-32s] %08x", true, l.Admin, o.Human)
		effectsText(w, "I/O Commands", "IOCS%-5d[%-32s] %08x", false, l.IO, o.Human)
	}}
}

func effectsText(w *bytes.Buffer, title, format string, admin bool, at func(nvme.Opcode) nvme.Effects, human bool) {
	n := 0
	for i := range 256 {
		op := nvme.Opcode(i)
		e := at(op)
		if e&nvme.EffectSupported == 0 {
			continue
		}
		if n++; n == 1 {
			fmt.Fprintln(w, title)
		}
		fmt.Fprintf(w, format, i, nvme.OpcodeName(op, admin), uint32(e))
		if human {
			w.WriteString(effectsNote(e))
		}
		fmt.Fprintln(w)
	}
	if n > 0 {
		fmt.Fprintln(w)
	}
}

func effectsNote(e nvme.Effects) string {
	var b strings.Builder
	for _, f := range []struct {
		bit  nvme.Effects
		name string
	}{
		{nvme.EffectSupported, "CSUPP"}, {nvme.EffectContentChange, "LBCC"}, {nvme.EffectNamespaceChange, "NCC"},
		{nvme.EffectInventoryChange, "NIC"}, {nvme.EffectControllerCap, "CCC"}, {nvme.EffectUUIDSelection, "USS"},
	} {
		sign := "-"
		if e&f.bit != 0 {
			sign = "+"
		}
		b.WriteString("  " + f.name + sign)
	}
	switch e & nvme.EffectExclusiveMask {
	case 0:
		b.WriteString("  beside any other command")
	case nvme.EffectExclusiveNS:
		b.WriteString("  alone in the namespace")
	case nvme.EffectExclusiveAll:
		b.WriteString("  alone in all namespaces")
	default:
		b.WriteString("  reserved CSE")
	}
	return b.String()
}

// SupportedLogs shows log page 00h.
func SupportedLogs(l nvme.SupportedPages, o Options) *Doc {
	list := []Object{}
	for i := range 256 {
		if s := l.At(nvme.LogPage(i)); s&nvme.LogPageSupported != 0 {
			list = append(list, Object{{fmt.Sprintf("lid_0x%x ", i), s}}) // nvme-cli's key, its blank included
		}
	}
	return &Doc{raw: l, json: Object{{"supported_logs", list}}, text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "Support Log Pages Details for %s:\n", o.Device)
		for i := range 256 {
			p := nvme.LogPage(i)
			if s := l.At(p); s&nvme.LogPageSupported != 0 {
				fmt.Fprintf(w, "LID %s (%v), supports %s\n", hexText(p), p, hexText(s))
			}
		}
	}}
}

// SupportedFeatures shows log page 12h.
func SupportedFeatures(l nvme.FeatureEffects, o Options) *Doc {
	list := []Object{}
	for i := range 256 {
		if e := l.At(nvme.FeatureID(i)); e&nvme.FeatureSupported != 0 {
			list = append(list, Object{{fmt.Sprintf("fid_%d", i), e}})
		}
	}
	return &Doc{raw: l, json: Object{{"fid_support", list}}, text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "FID Supports Effects Log for device: %s\nAdmin Command Set\n", o.Device)
		for i := range 256 {
			id := nvme.FeatureID(i)
			if e := l.At(id); e&nvme.FeatureSupported != 0 {
				fmt.Fprintf(w, "FID %02x -> Support Effects Log: %08x", i, uint32(e))
				if o.Human {
					fmt.Fprintf(w, "  %v", id)
				}
				fmt.Fprintln(w)
			}
		}
	}}
}
