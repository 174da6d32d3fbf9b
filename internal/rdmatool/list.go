// Package rdmatool has the logic of `nvmf-target rdma list` and `rdma smoke`:
// what RDMA devices there are, with their limits and what is missing, and a
// trial of one of them. It knows package fabric only and so works with every
// provider.
package rdmatool

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/nvmf-go/nvmf/fabric"
)

// Source is a provider, or why there is none of that name.
type Source struct {
	Name     string
	Provider fabric.Provider
	Err      error // set when Provider is nil
}

// diagnoser is implemented by providers that can say why they have no device.
type diagnoser interface{ Diagnose() string }

// Listing is every device of some providers, and why others have none.
type Listing struct {
	Devices []Device `json:"devices"`
	Absent  []Absent `json:"absent,omitempty"`
}

// Device is a device of a Listing.
type Device struct {
	Name      string       `json:"name"`
	Provider  string       `json:"provider"`
	Transport string       `json:"transport"`
	GUID      string       `json:"guid,omitempty"`
	Firmware  string       `json:"firmware,omitempty"`
	Vendor    uint32       `json:"vendor,omitempty"`
	NetDev    string       `json:"netdev,omitempty"`
	Addresses []netip.Addr `json:"addresses"`
	Up        bool         `json:"up"`
	MTU       int          `json:"mtu,omitempty"` // bytes
	Limits    Limits       `json:"limits"`
	Note      string       `json:"note,omitempty"`
}

// Limits are fabric.Limits as JSON names them. Depths count WRs, sizes bytes;
// 0 means "not offered".
type Limits struct {
	QPs            int    `json:"qps"`
	CQs            int    `json:"cqs"`
	SRQs           int    `json:"srqs"`
	MRs            int    `json:"mrs"`
	QPDepth        int    `json:"qp_depth"`
	CQDepth        int    `json:"cq_depth"`
	SRQDepth       int    `json:"srq_depth"`
	SGEs           int    `json:"sges"`
	ReadSGEs       int    `json:"read_sges"`
	Inline         int    `json:"inline"`
	ORD            int    `json:"ord"`
	IRD            int    `json:"ird"`
	MRSize         uint64 `json:"mr_size"`
	Message        uint32 `json:"message"`
	Atomics        bool   `json:"atomics"`
	MemoryWindows  bool   `json:"memory_windows"`
	SendInvalidate bool   `json:"send_invalidate"`
	RNR            bool   `json:"rnr"`
	UC             bool   `json:"uc"`
	UD             bool   `json:"ud"`
}

// Absent is a provider without a device.
type Absent struct {
	Provider string `json:"provider"`
	Reason   string `json:"reason"`
}

// List asks each source for its devices.
func List(sources []Source) Listing {
	l := Listing{Devices: []Device{}}
	for _, s := range sources {
		devices, reason := s.devices()
		l.Devices = append(l.Devices, devices...)
		if reason != "" {
			l.Absent = append(l.Absent, Absent{s.Name, reason})
		}
	}
	return l
}

func (s *Source) devices() (list []Device, reason string) {
	if s.Provider == nil {
		return nil, s.Err.Error()
	}
	infos, err := s.Provider.Devices()
	if err != nil {
		return nil, err.Error()
	}
	for _, i := range infos {
		list = append(list, newDevice(i))
	}
	if len(list) > 0 {
		return list, ""
	}
	if d, ok := s.Provider.(diagnoser); ok {
		return nil, d.Diagnose()
	}
	return nil, fabric.ErrNoDevice.Error()
}

func newDevice(i fabric.DeviceInfo) Device {
	d := Device{
		Name: i.Name, Provider: i.Provider, Transport: i.Transport.String(), Firmware: i.Firmware, Vendor: i.Vendor,
		NetDev: i.NetDev, Addresses: slices.Concat([]netip.Addr{}, i.Addrs), Up: i.PortUp, MTU: i.MTU, Note: i.Note,
		Limits: newLimits(i.Limits),
	}
	if i.GUID != 0 {
		d.GUID = fmt.Sprintf("%016x", i.GUID)
	}
	return d
}

func newLimits(l fabric.Limits) Limits {
	return Limits{
		QPs: l.MaxQP, CQs: l.MaxCQ, SRQs: l.MaxSRQ, MRs: l.MaxMR,
		QPDepth: l.MaxQPDepth, CQDepth: l.MaxCQDepth, SRQDepth: l.MaxSRQDepth,
		SGEs: l.MaxSGE, ReadSGEs: l.MaxReadSGE, Inline: l.MaxInline, ORD: l.MaxORD, IRD: l.MaxIRD,
		MRSize: l.MaxMRSize, Message: l.MaxMessage,
		Atomics: l.Atomics, MemoryWindows: l.MemoryWindows, SendInvalidate: l.SendInvalidate, RNR: l.RNR,
		UC: l.UnreliableConnections, UD: l.Datagrams,
	}
}

// WriteJSON writes the listing as one indented object.
func (l *Listing) WriteJSON(w io.Writer) error { return writeJSON(w, l) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// WriteTable writes a table of the devices, one of their limits, and a line for
// each provider without any.
func (l *Listing) WriteTable(w io.Writer) error {
	var b strings.Builder
	if len(l.Devices) > 0 {
		b.WriteString(l.deviceTable() + "\n")
	} else {
		b.WriteString("no RDMA device\n")
	}
	if limits := l.limitTable(); limits != "" {
		b.WriteString("\n" + limits + "\n")
	}
	if len(l.Absent) > 0 {
		b.WriteByte('\n')
	}
	for _, a := range l.Absent {
		fmt.Fprintf(&b, "%s: none: %s\n", a.Provider, a.Reason)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func newTable(header ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(header)
	return t
}

func (l *Listing) deviceTable() string {
	t := newTable("device", "provider", "transport", "netdev", "state", "mtu", "addresses", "note")
	for _, d := range l.Devices {
		var addrs []string
		for _, a := range d.Addresses {
			addrs = append(addrs, a.String())
		}
		t.AppendRow(table.Row{d.Name, d.Provider, d.Transport, orDash(d.NetDev), state(d.Up), count(d.MTU), orDash(strings.Join(addrs, "\n")), d.Note})
	}
	return t.Render()
}

// limitTable is empty when no device can be opened.
func (l *Listing) limitTable() string {
	t := newTable("device", "qps", "cqs", "srqs", "mrs", "qp depth", "cq depth", "sges", "inline", "reads", "message", "region", "also")
	for _, d := range l.Devices {
		m := d.Limits
		if m == (Limits{}) {
			continue // it cannot be opened
		}
		t.AppendRow(table.Row{d.Name, count(m.QPs), count(m.CQs), count(m.SRQs), count(m.MRs), count(m.QPDepth), count(m.CQDepth),
			count(m.SGEs), count(m.Inline), fmt.Sprintf("%d/%d", m.ORD, m.IRD), size(uint64(m.Message)), size(m.MRSize), features(m)})
	}
	if t.Length() == 0 {
		return ""
	}
	return t.Render()
}

// features are the optional abilities of a device, in words.
func features(m Limits) string {
	var f []string
	for _, x := range []struct {
		has  bool
		name string
	}{{m.Atomics, "atomics"}, {m.SendInvalidate, "invalidate"}, {m.MemoryWindows, "windows"}, {m.RNR, "RNR"}, {m.UC, "UC"}, {m.UD, "UD"}} {
		if x.has {
			f = append(f, x.name)
		}
	}
	return orDash(strings.Join(f, " "))
}

func state(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func count(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// size prints bytes; sizes that no memory reaches are no limit.
func size(n uint64) string {
	switch {
	case n == 0:
		return "-"
	case n >= math.MaxInt64:
		return "any"
	}
	return humanize.IBytes(n)
}
