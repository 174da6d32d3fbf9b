package show

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/nvmf-go/nvmf/nvme"
)

// Namespace shows Identify Namespace of the NVM command set.
func Namespace(nsid uint32, id *nvme.IdentifyNamespace, raw []byte, o Options) *Doc {
	all := append(namespaceFields(id), optimalFields(id)...)
	all = append(all, identifierFields(id)...)
	formats := id.LBAF[:min(int(id.NLBAF)+int(id.NULBAF)+1, len(id.LBAF))]
	j := all.object()
	var list []Object
	for _, f := range formats {
		list = append(list, Object{{"ms", f.MS()}, {"ds", f.LBADS()}, {"rp", f.RP()}})
	}
	j.Add("lbafs", list)
	return &Doc{raw: raw, json: j, text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "NVME Identify Namespace %d:\n", nsid)
		all.text(w, 8, o.Human)
		for i, f := range formats {
			formatText(w, i, f, i == id.FormatIndex(), o.Human)
		}
	}}
}

// namespaceFields are bytes 0 to 63.
func namespaceFields(id *nvme.IdentifyNamespace) fields {
	size := uint64(id.Format().BlockSize())
	bytes := func(blocks uint64) string { return si(float64(blocks) * float64(size)) }
	return fields{
		hex("nsze", id.NSZE, bytes(id.NSZE)), hex("ncap", id.NCAP, bytes(id.NCAP)), hex("nuse", id.NUSE, bytes(id.NUSE)),
		hex("nsfeat", id.NSFEAT, bits(id.NSFEAT, ability(4, "NPWG, NPWA, NPDG, NPDA and NOWS"),
			choice(3, 3, "NGUID and EUI64", "may be used again", "are never used again"),
			ability(2, "error of deallocated or unwritten blocks"), ability(1, "NAWUN, NAWUPF and NACWU"), ability(0, "thin provisioning"))...),
		dec("nlbaf", id.NLBAF),
		hex("flbas", id.FLBAS, bits(id.FLBAS, number(6, 5, "format in use, high bits"),
			choice(4, 4, "metadata", "in a buffer of its own", "behind the data"), number(3, 0, "format in use, low bits"))...),
		hex("mc", id.MC, bits(id.MC, ability(1, "metadata in a buffer of its own"), ability(0, "metadata behind the data"))...),
		hex("dpc", id.DPC, bits(id.DPC, ability(4, "protection information in the last bytes of metadata"),
			ability(3, "protection information in the first bytes of metadata"), ability(2, "protection type 3"),
			ability(1, "protection type 2"), ability(0, "protection type 1"))...),
		hex("dps", id.DPS, bits(id.DPS, choice(3, 3, "protection information", "in the last bytes of metadata", "in the first bytes of metadata"),
			choice(2, 0, "protection", "off", "type 1", "type 2", "type 3"))...),
		hex("nmic", id.NMIC, bits(id.NMIC, choice(0, 0, "controllers that may attach it", "one", "several"))...),
		hex("rescap", id.RESCAP, bits(id.RESCAP, reservationBits...)...),
		hex("fpi", id.FPI, bits(id.FPI, ability(7, "format progress indicator"), number(6, 0, "percent left of a format"))...),
		dec("dlfeat", id.DLFEAT, bits(id.DLFEAT, choice(4, 4, "guard of deallocated blocks", "FFFFh", "a valid CRC"),
			ability(3, "deallocating Write Zeroes"), choice(2, 0, "deallocated blocks read as", "not reported", "zeroes", "ones"))...),
		dec("nawun", id.NAWUN), dec("nawupf", id.NAWUPF), dec("nacwu", id.NACWU),
		dec("nabsn", id.NABSN), dec("nabo", id.NABO), dec("nabspf", id.NABSPF), dec("noiob", id.NOIOB),
		big("nvmcap", id.NVMCAP, si(id.NVMCAP.Float64())),
	}
}

var reservationBits = []bit{
	choice(7, 7, "ignoring the existing key", "as of revision 1.2.1", "as of revision 1.3"),
	ability(6, "exclusive access, all registrants"), ability(5, "write exclusive, all registrants"),
	ability(4, "exclusive access, registrants only"), ability(3, "write exclusive, registrants only"),
	ability(2, "exclusive access"), ability(1, "write exclusive"), ability(0, "persistence through power loss"),
}

// optimalFields are the sizes that are best for the namespace, when NSFEAT says
// that they are there, and the limits of Copy.
func optimalFields(id *nvme.IdentifyNamespace) fields {
	var f fields
	if id.NSFEAT&nvme.NSFEATOptimalFields != 0 {
		f = fields{dec("npwg", id.NPWG), dec("npwa", id.NPWA), dec("npdg", id.NPDG), dec("npda", id.NPDA), dec("nows", id.NOWS)}
	}
	return append(f, dec("mssrl", id.MSSRL), dec("mcl", id.MCL), dec("msrc", id.MSRC))
}

func identifierFields(id *nvme.IdentifyNamespace) fields {
	return fields{
		dec("nulbaf", id.NULBAF), dec("anagrpid", id.ANAGRPID),
		dec("nsattr", id.NSATTR, bits(id.NSATTR, choice(0, 0, "write protection", "off", "on"))...),
		dec("nvmsetid", id.NVMSETID), dec("endgid", id.ENDGID),
		str("nguid", id.NGUID.String()), str("eui64", id.EUI64.String()),
	}
}

var performance = [...]string{"Best", "Better", "Good", "Degraded"}

func formatText(w *bytes.Buffer, i int, f nvme.LBAFormat, used, human bool) {
	mark := ""
	if used {
		mark = "(in use)"
	}
	if human {
		fmt.Fprintf(w, "LBA Format %2d : Metadata Size: %-3d bytes - Data Size: %d bytes - Relative Performance: %s %s %s\n",
			i, f.MS(), f.BlockSize(), hexText(f.RP()), performance[f.RP()&3], mark)
		return
	}
	fmt.Fprintf(w, "lbaf %2d : ms:%-3d lbads:%-2d rp:%s %s\n", i, f.MS(), f.LBADS(), hexText(f.RP()), mark)
}

// NamespaceIndependent shows CNS 08h.
func NamespaceIndependent(nsid uint32, id *nvme.IdentifyNamespaceIndependent, raw []byte, o Options) *Doc {
	list := fields{
		hex("nsfeat", id.NSFEAT), hex("nmic", id.NMIC, bits(id.NMIC, choice(0, 0, "controllers that may attach it", "one", "several"))...),
		hex("rescap", id.RESCAP, bits(id.RESCAP, reservationBits...)...), hex("fpi", id.FPI), dec("anagrpid", id.ANAGRPID),
		dec("nsattr", id.NSATTR), dec("nvmsetid", id.NVMSETID), dec("endgid", id.ENDGID),
		hex("nstat", id.NSTAT, bits(id.NSTAT, choice(0, 0, "namespace", "not ready", "ready"))...),
	}
	return &Doc{raw: raw, json: list.object(), text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "NVME Identify Command Set Independent Namespace %d:\n", nsid)
		list.text(w, 8, o.Human)
	}}
}

// NamespaceList shows CNS 02h.
func NamespaceList(list nvme.NSList) *Doc {
	nsids := []Object{}
	for n := range list.All() {
		nsids = append(nsids, Object{{"nsid", n}})
	}
	return &Doc{raw: list, json: Object{{"nsid_list", nsids}}, text: func(w *bytes.Buffer) {
		for i := range list.Len() {
			fmt.Fprintf(w, "[%4d]:%s\n", i, hexText(list.At(i)))
		}
	}}
}

// descriptor is an entry of CNS 03h.
type descriptor struct {
	loc  int
	nidt nvme.DescriptorType
	nid  []byte
}

// descriptors reads the list of CNS 03h, which ends at a length of zero.
func descriptors(b []byte) (list []descriptor) {
	for off := 0; off+4 <= len(b) && b[off+1] != 0; {
		n := int(b[off+1])
		if n > len(b)-off-4 {
			break
		}
		list = append(list, descriptor{off, nvme.DescriptorType(b[off]), b[off+4 : off+4+n]})
		off += 4 + n
	}
	return list
}

// value is the identifier as text, under the name of its type; empty for a type
// or a length that is not known.
func (d *descriptor) value() (name, text string) {
	switch {
	case d.nidt == nvme.DescriptorEUI64 && len(d.nid) == 8:
		return "eui64", nvme.EUI64(d.nid).String()
	case d.nidt == nvme.DescriptorNGUID && len(d.nid) == 16:
		return "nguid", nvme.NGUID(d.nid).String()
	case d.nidt == nvme.DescriptorUUID && len(d.nid) == 16:
		return "uuid", nvme.UUID(d.nid).String()
	case d.nidt == nvme.DescriptorCSI && len(d.nid) == 1:
		return "csi", strconv.Itoa(int(d.nid[0]))
	}
	return "", ""
}

// Descriptors shows CNS 03h: raw is the data.
func Descriptors(nsid uint32, raw []byte) *Doc {
	list := []Object{}
	var known fields
	for _, d := range descriptors(raw) {
		name, text := d.value()
		if name == "" {
			continue
		}
		list = append(list, Object{{"loc", d.loc}, {"nidt", d.nidt}, {"nidl", len(d.nid)}, {"type", name}, {name, text}})
		known = append(known, str(name, text))
	}
	return &Doc{raw: raw, json: Object{{"ns-descs", list}}, text: func(w *bytes.Buffer) {
		fmt.Fprintf(w, "NVME Namespace Identification Descriptors NS %d:\n", nsid)
		known.text(w, 8, false)
	}}
}
