package show

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/nvmf-go/nvmf/nvme"
)

// Discovery shows log page 70h.
func Discovery(genctr uint64, entries []nvme.DiscoveryEntry) *Doc {
	list := []Object{}
	raw := make([]byte, nvme.DiscoveryHeaderSize+len(entries)*nvme.DiscoveryEntrySize)
	h := nvme.DiscoveryHeader{GENCTR: genctr, NUMREC: uint64(len(entries))}
	h.MarshalTo(raw[:nvme.DiscoveryHeaderSize])
	for i := range entries {
		off := nvme.DiscoveryHeaderSize + i*nvme.DiscoveryEntrySize
		entries[i].MarshalTo(raw[off : off+nvme.DiscoveryEntrySize])
		list = append(list, entryFields(&entries[i]).object())
	}
	return &Doc{raw: raw, json: Object{{"genctr", genctr}, {"records", list}}, text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "\nDiscovery Log Number of Records %d, Generation counter %d\n", len(entries), genctr)
		for i := range entries {
			fmt.Fprintf(w, "=====Discovery Log Entry %d======\n", i)
			for _, f := range entryFields(&entries[i]) {
				fmt.Fprintf(w, "%-*s %s\n", entryWidth(f.name), f.name+":", f.text)
			}
		}
	}}
}

// entryWidth is the width of a field's name as nvme-cli aligns it.
func entryWidth(name string) int {
	switch {
	case name == "rdma_pkey":
		return 0
	case strings.HasPrefix(name, "rdma_"):
		return 12
	}
	return 8
}

func entryFields(e *nvme.DiscoveryEntry) fields {
	nqn, err := nvme.DecodeNQN(e.SUBNQN[:])
	if err != nil {
		nqn = nvme.NQN(nvme.Text(e.SUBNQN[:]))
	}
	f := fields{
		str("trtype", e.TRTYPE.String()), str("adrfam", familyName(e.ADRFAM)), str("subtype", e.SUBTYPE.String()),
		str("treq", requirements(e.TREQ)), dec("portid", e.PORTID), str("trsvcid", nvme.Text(e.TRSVCID[:])),
		str("subnqn", nvme.Text([]byte(nqn))), str("traddr", nvme.Text(e.TRADDR[:])), str("eflags", entryFlags(e.EFLAGS)),
	}
	if e.TRTYPE == nvme.TransportRDMA {
		t := e.RDMA()
		f = append(f, str("rdma_prtype", t.PRTYPE.String()), str("rdma_qptype", t.QPTYPE.String()), str("rdma_cms", t.CMS.String()),
			field{"rdma_pkey", fmt.Sprintf("0x%04x", t.PKEY), t.PKEY, nil})
	}
	return f
}

// familyName is the address family as nvme-cli writes it.
func familyName(f nvme.AddressFamily) string {
	switch f {
	case nvme.FamilyIB:
		return "infiniband"
	case nvme.FamilyFC:
		return "fibre-channel"
	}
	return f.String()
}

func requirements(t nvme.TREQ) string {
	s := [...]string{"not specified", "required", "not required", "reserved"}[t&nvme.TREQSecureMask]
	if t&nvme.TREQDisableSQFlow != 0 {
		s += ", sq flow control disable supported"
	}
	return s
}

func entryFlags(f uint16) string {
	var list []string
	for _, x := range []struct {
		bit  uint16
		name string
	}{
		{nvme.EFLAGSEPCSD, "explicit discovery connections"}, {nvme.EFLAGSDupInfo, "duplicate discovery information"},
		{nvme.EFLAGSNoCDC, "no cdc connectivity"},
	} {
		if f&x.bit != 0 {
			list = append(list, x.name)
		}
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
