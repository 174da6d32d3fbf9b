package show

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// NamespaceItem is a line of List.
type NamespaceItem struct {
	Node      string // how to name it to this program
	NQN       string
	NSID      uint32
	Serial    string
	Model     string
	Firmware  string
	BlockSize int
	Metadata  int
	Blocks    uint64
	UsedBytes uint64
}

func (n *NamespaceItem) size() uint64 { return n.Blocks * uint64(n.BlockSize) }

// List shows namespaces as nvme list does; Node takes the place of the device
// file that there is none of.
func List(items []NamespaceItem) *Doc {
	devices := []Object{}
	rows := [][]string{{"Node", "SN", "Model", "Namespace", "Usage", "Format", "FW Rev"}}
	for i := range items {
		n := &items[i]
		devices = append(devices, Object{
			{"NameSpace", n.NSID}, {"DevicePath", n.Node}, {"Firmware", n.Firmware}, {"ModelNumber", n.Model}, {"SerialNumber", n.Serial},
			{"UsedBytes", n.UsedBytes}, {"MaximumLBA", n.Blocks}, {"PhysicalSize", n.size()}, {"SectorSize", n.BlockSize}, {"SubsystemNQN", n.NQN},
		})
		rows = append(rows, []string{
			n.Node, n.Serial, n.Model, fmt.Sprintf("0x%x", n.NSID),
			fmt.Sprintf("%9s / %9s", si(float64(n.UsedBytes)), si(float64(n.size()))),
			fmt.Sprintf("%s + %2d B", blockText(n.BlockSize), n.Metadata), n.Firmware,
		})
	}
	return &Doc{json: Object{{"Devices", devices}}, text: func(w *bytes.Buffer) { table(w, rows, []int{21, 20, 40, 10, 26, 16, 8}) }}
}

// blockText is a block size as nvme list shows it.
func blockText(n int) string {
	if n >= 1024 {
		return fmt.Sprintf("%3d KiB", n/1024)
	}
	return fmt.Sprintf("%3d   B", n)
}

// table writes rows, the first of them the header, in columns of at least the
// given widths.
func table(w *bytes.Buffer, rows [][]string, widths []int) {
	for _, r := range rows {
		for i, c := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	line := func(r []string) {
		for i, c := range r {
			if i > 0 {
				w.WriteByte(' ')
			}
			fmt.Fprintf(w, "%-*s", widths[i], c)
		}
		w.WriteByte('\n')
	}
	line(rows[0])
	rules := make([]string, len(widths))
	for i, n := range widths {
		rules[i] = strings.Repeat("-", n)
	}
	line(rules)
	for _, r := range rows[1:] {
		line(r)
	}
}

// Path is a controller of a subsystem.
type Path struct {
	Name       string
	Transport  string
	TrAddr     string
	TrSvcID    string
	HostTrAddr string
	State      string // "live", or why there is no connection
	Device     string
	CNTLID     uint16
	Queues     int
	Depth      int
	Namespaces []uint32
}

func (p *Path) address() string {
	s := fmt.Sprintf("traddr=%s,trsvcid=%s", p.TrAddr, p.TrSvcID)
	if p.HostTrAddr != "" {
		s += ",src_addr=" + p.HostTrAddr
	}
	return s
}

// SubsystemItem is a subsystem with its controllers.
type SubsystemItem struct {
	Name  string
	NQN   string
	Paths []Path
}

// Subsystems shows subsystems and the controllers connected to, as nvme
// list-subsys does.
func Subsystems(hostNQN, hostID string, items []SubsystemItem) *Doc {
	list := []Object{}
	for i := range items {
		paths := []Object{}
		for j := range items[i].Paths {
			p := &items[i].Paths[j]
			paths = append(paths, Object{
				{"Name", p.Name}, {"Transport", p.Transport}, {"Address", p.address()}, {"State", p.State},
				{"Cntlid", p.CNTLID}, {"Device", p.Device}, {"Queues", p.Queues}, {"QueueDepth", p.Depth}, {"Namespaces", p.Namespaces},
			})
		}
		list = append(list, Object{{"Name", items[i].Name}, {"NQN", items[i].NQN}, {"Paths", paths}})
	}
	j := []Object{{{"HostNQN", hostNQN}, {"HostID", hostID}, {"Subsystems", list}}}
	return &Doc{json: j, text: func(w *bytes.Buffer) {
		for i := range items {
			fmt.Fprintf(w, "%s - NQN=%s\n%*s   hostnqn=%s\n\\\n", items[i].Name, items[i].NQN, len(items[i].Name), "", hostNQN)
			for j := range items[i].Paths {
				pathText(w, &items[i].Paths[j])
			}
		}
	}}
}

func pathText(w *bytes.Buffer, p *Path) {
	fmt.Fprintf(w, " +- %s %s %s %s\n", p.Name, p.Transport, p.address(), p.State)
	if p.Queues > 0 {
		fmt.Fprintf(w, "    cntlid %d, device %s, %d I/O queues of %d, namespaces %s\n", p.CNTLID, p.Device, p.Queues, p.Depth, nsidText(p.Namespaces))
	}
}

func nsidText(list []uint32) string {
	if len(list) == 0 {
		return "none"
	}
	s := make([]string, len(list))
	for i, n := range list {
		s[i] = fmt.Sprint(n)
	}
	return strings.Join(s, ", ")
}
