package nvme

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConnectResults(t *testing.T) {
	for _, c := range []struct {
		off    uint16
		inData bool
		want   uint64
		name   string
	}{
		{ConnectDataOffSubNQN, true, 0x10100, "subsystem NQN"},
		{ConnectDataOffCNTLID, true, 0x10010, "controller id"},
		{ConnectDataOffHostNQN, true, 0x10200, "host NQN"},
		{ConnectDataOffHostID, true, 0x10000, "host id"},
		{ConnectOffQID, false, 42, "queue id"},
		{ConnectOffSQSize, false, 44, "SQ size"},
		{ConnectOffKATO, false, 48, "keep alive timeout"},
		{1023, true, 0x103FF, "byte 1023 of the data"},
		{1, false, 1, "byte 1 of the command"},
	} {
		r := InvalidParameter(c.off, c.inData)
		off, inData := ParseInvalidParameter(r)
		if r != c.want || off != c.off || inData != c.inData || ConnectParameter(r) != c.name {
			t.Errorf("%+v: %#x, %d %v, %q", c, r, off, inData, ConnectParameter(r))
		}
	}
	for r, want := range map[ConnectResult]bool{7: false, 7 | ConnectATR: true, 7 | ConnectASCR: true, 7 | 1<<16: false} {
		if r.CNTLID() != 7 || r.AuthRequired() != want {
			t.Errorf("%#x: %d %v", uint64(r), r.CNTLID(), r.AuthRequired())
		}
	}
}

func TestCMStatus(t *testing.T) {
	for s, want := range map[CMStatus]string{
		CMInvalidLength: "invalid private data length (1)", CMInvalidHSQSize: "invalid host SQ size (4)",
		CMNoResources: "no resources (6)", CMInvalidCNTLID: "invalid controller id (9)",
		0: "reject status 0", 10: "reject status 10", 0xFFFF: "reject status 65535",
	} {
		if s.String() != want || s.Error() != want {
			t.Errorf("%q, want %q", s.String(), want)
		}
	}
	for s := CMInvalidLength; s <= CMInvalidCNTLID; s++ {
		if strings.HasPrefix(s.String(), "reject status") {
			t.Errorf("%d has no name", s)
		}
	}
}

func TestAsyncEvents(t *testing.T) {
	for _, c := range []struct {
		e      AsyncEvent
		raw    uint32
		enable AsyncEventConfig
		text   string
	}{
		{NSAttributeChanged, 0x040002, EventNSAttribute, "notice: namespace attribute changed"},
		{ANAChanged, 0x0C0302, EventANA, "notice: asymmetric namespace access change"},
		{DiscoveryChanged, 0x70F002, EventDiscovery, "notice: discovery log page changed"},
		{ReservationLogged, 0x800006, 0, "I/O command set: reservation log page available"},
		{MakeAsyncEvent(EventSMART, SMARTSpare, LogSMART), 0x020201, 0, "SMART / health status: spare below threshold"},
		{MakeAsyncEvent(EventNotice, NoticeShutdown, 0), 0x000702, EventShutdown, "notice: normal NVM subsystem shutdown"},
		{MakeAsyncEvent(EventNotice, NoticeZone, 0xBF), 0xBFEF02, EventZone, "notice: zone descriptor changed"},
		{MakeAsyncEvent(EventNotice, 0x55, 0), 0x005502, 0, "notice: information 0x55"},
		{MakeAsyncEvent(5, 1, 0), 0x000105, 0, "event type 0x05: information 0x01"},
	} {
		if uint32(c.e) != c.raw || c.e.Enable() != c.enable || c.e.String() != c.text {
			t.Errorf("%#x enable %#x %q", uint32(c.e), uint32(c.e.Enable()), c.e)
		}
		if MakeAsyncEvent(c.e.Type(), c.e.Info(), c.e.LogPage()) != c.e {
			t.Errorf("%#x is not made again", uint32(c.e))
		}
	}
}

func TestNSList(t *testing.T) {
	l := NSList(bytes.Repeat([]byte{0xFF}, IdentifySize))
	if n := l.Put([]uint32{1, 2, 0x01020304}); n != 3 || l.Len() != 3 || l.At(2) != 0x01020304 || l[8] != 4 {
		t.Errorf("%d of %d", n, l.Len())
	}
	if got := slices.Collect(l.All()); !slices.Equal(got, []uint32{1, 2, 0x01020304}) {
		t.Errorf("%v", got)
	}
	for range l.All() {
		break
	}
	many := make([]uint32, NSListMax+5)
	for i := range many {
		many[i] = uint32(i + 1)
	}
	if n := l.Put(many); n != NSListMax || l.Len() != NSListMax || l.At(NSListMax-1) != NSListMax || l.Overflow() {
		t.Errorf("%d of %d", n, l.Len())
	}
	l.PutOverflow()
	if !l.Overflow() || l.Len() != 1 {
		t.Error("overflow")
	}
	if n := l.Put(nil); n != 0 || l.Len() != 0 || l.Overflow() {
		t.Error("empty")
	}
	for _, n := range []int{0, 4095, 4097} {
		if l, err := ParseNSList(make([]byte, n)); err == nil || l != nil {
			t.Errorf("%d bytes taken", n)
		}
	}
}

func TestNSDescriptors(t *testing.T) {
	for _, d := range []NSDescriptors{
		{},
		{HasCSI: true},
		{UUID: UUID{1, 2}, HasCSI: true, CSI: CSIZNS},
		{UUID: UUID{1}, NGUID: NGUID{2}, EUI64: EUI64{3}, HasCSI: true, CSI: CSIKV},
		{EUI64: EUI64{7: 9}},
	} {
		b := bytes.Repeat([]byte{0xFF}, IdentifySize)
		d.MarshalTo(b)
		got := NSDescriptors{UUID: UUID{9}, HasCSI: true}
		if err := got.Unmarshal(b); err != nil || got != d {
			t.Errorf("%+v: %+v %v", d, got, err)
		}
	}
	b := make([]byte, IdentifySize)
	(&NSDescriptors{UUID: UUID{1}, HasCSI: true}).MarshalTo(b)
	if want := parse(t, "03100000 01000000000000000000000000000000 04010000 00 0000"); !bytes.HasPrefix(b, want) {
		t.Errorf("%x", b[:40])
	}
}

func TestNSDescriptorsBad(t *testing.T) {
	list := func(s string) []byte {
		b := parse(t, s)
		return append(b, make([]byte, IdentifySize-len(b))...)
	}
	// A full list ends without a descriptor of length 0.
	full := bytes.Repeat(parse(t, "7f080000 0000000000000000"), IdentifySize/12+1)[:IdentifySize]
	for _, c := range []struct {
		name string
		b    []byte
		ok   bool
		want NSDescriptors
	}{
		{"unknown types", list("7f020000 ffff 04010000 02"), true, NSDescriptors{HasCSI: true, CSI: CSIZNS}},
		{"twice", list("04010000 01 04010000 02"), true, NSDescriptors{HasCSI: true, CSI: CSIZNS}},
		{"ends at length 0", list("03000000 04010000 02"), true, NSDescriptors{}},
		{"UUID of 8 bytes", list("03080000 0000000000000000"), false, NSDescriptors{}},
		{"EUI-64 of 16 bytes", list("01100000"), false, NSDescriptors{}},
		{"CSI of 2 bytes", list("04020000"), false, NSDescriptors{}},
		{"beyond the end", full, false, NSDescriptors{}},
		{"short", make([]byte, 100), false, NSDescriptors{}},
	} {
		var d NSDescriptors
		err := d.Unmarshal(c.b)
		if (err == nil) != c.ok || c.ok && d != c.want {
			t.Errorf("%s: %+v %v", c.name, d, err)
		}
	}
}

func TestCommandSetCombinations(t *testing.T) {
	c := CommandSetCombinations(bytes.Repeat([]byte{0xFF}, IdentifySize))
	c.Put(1<<CSINVM, 1<<CSINVM|1<<CSIZNS)
	if c.Vector(0) != 1 || c.Vector(1) != 5 || c.Vector(2) != 0 || c.Vector(511) != 0 || c[8] != 5 {
		t.Errorf("%x", []byte(c[:24]))
	}
}

func TestLBAFormat(t *testing.T) {
	f := MakeLBAFormat(12, 8, 2)
	if f != 0x020C0008 || f.LBADS() != 12 || f.MS() != 8 || f.RP() != 2 || f.BlockSize() != 4096 {
		t.Errorf("%#x", uint32(f))
	}
	for lbads, want := range map[uint8]uint32{0: 0, 8: 0, 9: 512, 31: 1 << 31, 32: 0, 255: 0} {
		if got := MakeLBAFormat(lbads, 0, 0).BlockSize(); got != want {
			t.Errorf("LBADS %d: %d", lbads, got)
		}
	}
	n := IdentifyNamespace{}
	for i := range n.LBAF {
		n.LBAF[i] = LBAFormat(i)
	}
	for flbas, want := range map[uint8]int{0: 0, 0x0F: 15, 0x10: 0, 0x23: 19, 0x6F: 63, 0x80: 0, 0xFF: 63} {
		n.FLBAS = flbas
		if n.FormatIndex() != want || n.Format() != LBAFormat(want) {
			t.Errorf("FLBAS %#x: format %d", flbas, n.FormatIndex())
		}
	}
}

// TestPowerState: the last of the 32 descriptors ends at the vendor's bytes.
func TestPowerState(t *testing.T) {
	c := IdentifyController{NPSS: 31}
	c.PowerState[31] = PowerState{
		MP: 0x0102, Flags: 3, ENLAT: 0x03040506, EXLAT: 0x0708090A, RRT: 11, RRL: 12, RWT: 13, RWL: 14,
		IDLP: 0x0F10, IPS: 17, ACTP: 0x1213, APW: 20,
	}
	b := make([]byte, IdentifySize)
	c.MarshalTo(b)
	want := parse(t, "0201 00 03 06050403 0a090807 0b 0c 0d 0e 100f 11 00 1312 14 00 0000000000000000")
	if got := b[2048+31*32 : 3072]; !bytes.Equal(got, want) {
		t.Errorf("%x", got)
	}
}

func TestErrorEntry(t *testing.T) {
	e := ErrorEntry{
		Count: 7, SQID: 1, CID: 0x1012, Status: LBAOutOfRange | StatusDNR, Location: ErrorLocation(40, 3),
		LBA: 99, NSID: 1, TRTYPE: TransportRDMA, Opcode: CmdRead, Version: 1,
	}
	b := make([]byte, ErrorEntrySize)
	e.MarshalTo(b)
	want := parse(t, "0700000000000000 0100 1210 0081 2803 6300000000000000 01000000 00 01 00 02")
	if !bytes.HasPrefix(b, want) || b[63] != 1 {
		t.Errorf("%x", b)
	}
	b[12] |= 1 // phase tag
	var got ErrorEntry
	if err := got.Unmarshal(b); err != nil || got != e {
		t.Errorf("%+v %v", got, err)
	}
}

func TestSMARTDataUnits(t *testing.T) {
	for n, want := range map[uint64]uint64{0: 0, 1: 1, 512000: 1, 512001: 2, 1 << 63: 18014398509482, ^uint64(0): 36028797018964} {
		if got := SMARTDataUnits(n); got != want {
			t.Errorf("%d: %d, want %d", n, got, want)
		}
	}
}

// TestTables: the dword of a page, feature or command is where its number says.
func TestTables(t *testing.T) {
	pages := SupportedPages(make([]byte, SupportedPagesSize))
	pages.Set(LogDiscovery, LogPageSupported|LogPageIndexSupported)
	pages.Set(0xFF, LogPageSupported)
	if le.Uint32(pages[0x70*4:]) != 3 || pages.At(LogDiscovery) != 3 || pages.At(0xFF) != 1 || pages.At(LogSMART) != 0 {
		t.Error("supported log pages")
	}
	features := FeatureEffects(make([]byte, FeatureEffectsSize))
	features.Set(FeatHostID, FeatureSupported|FeatureScopeController)
	if le.Uint32(features[0x81*4:]) != 0x200001 || features.At(FeatHostID) != 0x200001 || features.At(FeatKeepAlive) != 0 {
		t.Error("features supported")
	}
	effects := EffectsLog(make([]byte, EffectsLogSize))
	effects.SetAdmin(0xFF, EffectSupported|EffectExclusiveAll)
	effects.SetIO(CmdWrite, EffectSupported|EffectContentChange)
	effects.SetIO(0xFF, EffectSupported)
	if le.Uint32(effects[255*4:]) != 0x20001 || le.Uint32(effects[1024+4:]) != 3 || le.Uint32(effects[2044:]) != 1 {
		t.Error("effects")
	}
	if effects.Admin(0xFF)&EffectExclusiveMask != EffectExclusiveAll || effects.IO(CmdWrite) != 3 || effects.Admin(CmdWrite) != 0 {
		t.Error("effects read")
	}
}

func TestANALog(t *testing.T) {
	groups := []ANAGroup{
		{ID: 1, Count: 5, State: ANAOptimized, NSIDs: []uint32{1, 2, 3}},
		{ID: 2, State: ANAStateInaccessible, NSIDs: []uint32{}},
		{ID: 9, State: ANAStateChange, NSIDs: []uint32{7}},
	}
	b := AppendANALog(nil, 42, groups)
	if len(b) != ANALogSize(3, 4) {
		t.Errorf("%d bytes, want %d", len(b), ANALogSize(3, 4))
	}
	change, got, err := ParseANALog(append(b, 1, 2, 3))
	if d := cmp.Diff(groups, got); change != 42 || err != nil || d != "" {
		t.Errorf("%d %v %s", change, err, d)
	}
	for n := range b {
		if _, _, err := ParseANALog(b[:n]); err == nil {
			t.Errorf("%d of %d bytes are taken", n, len(b))
		}
	}
	huge := bytes.Clone(b)
	le.PutUint32(huge[ANAHeaderSize+4:], 0xFFFFFFFF)
	if _, _, err := ParseANALog(huge); err == nil {
		t.Error("4294967295 namespaces are taken")
	}
	le.PutUint16(huge[8:], 0xFFFF)
	if _, _, err := ParseANALog(huge); err == nil {
		t.Error("65535 groups are taken")
	}
}

func TestDiscoveryHeaderPart(t *testing.T) {
	var h DiscoveryHeader
	b := binary.LittleEndian.AppendUint64(nil, 5)
	b = append(binary.LittleEndian.AppendUint64(b, 1<<54+1), 1, 0, 0, 0)
	if err := h.Unmarshal(b); err != nil || h != (DiscoveryHeader{5, 1<<54 + 1, 1}) || len(b) != DiscoveryHeaderPart {
		t.Errorf("%+v %v", h, err)
	}
	var le *LengthError
	if err := h.Unmarshal(b[:19]); !errors.As(err, &le) {
		t.Errorf("19 bytes: %v", err)
	}
}

func TestDiscoveryAddr(t *testing.T) {
	for s, want := range map[string]struct {
		family        AddressFamily
		addr, service string
	}{
		"10.9.0.2:4420":          {FamilyIPv4, "10.9.0.2", "4420"},
		"[::ffff:10.9.0.2]:4420": {FamilyIPv4, "10.9.0.2", "4420"},
		"[fd09::2]:65535":        {FamilyIPv6, "fd09::2", "65535"},
		"[fe80::1%eth0]:1":       {FamilyIPv6, "fe80::1", "1"},
	} {
		var e DiscoveryEntry
		e.SetAddr(netip.MustParseAddrPort(s))
		if e.ADRFAM != want.family || Text(e.TRADDR[:]) != want.addr || Text(e.TRSVCID[:]) != want.service || e.TRADDR[255] != ' ' {
			t.Errorf("%s: %v %q %q", s, e.ADRFAM, Text(e.TRADDR[:]), Text(e.TRSVCID[:]))
		}
		if got, err := e.Addr(); err != nil || got.String() != netip.MustParseAddrPort(strings.Replace(strings.Replace(s, "%eth0", "", 1), "[::ffff:10.9.0.2]", "10.9.0.2", 1)).String() {
			t.Errorf("%s: %v %v", s, got, err)
		}
	}
	for _, c := range []struct {
		family        AddressFamily
		addr, service string
	}{
		{FamilyIPv4, "host.example", "4420"}, {FamilyIPv4, "", "4420"}, {FamilyIPv4, "fd09::2", "4420"},
		{FamilyIPv6, "10.9.0.2", "4420"}, {FamilyIB, "10.9.0.2", "4420"}, {FamilyIPv4, "10.9.0.2", "0"},
		{FamilyIPv4, "10.9.0.2", ""}, {FamilyIPv4, "10.9.0.2", "65536"}, {FamilyIPv4, "10.9.0.2", "-1"},
	} {
		e := DiscoveryEntry{ADRFAM: c.family}
		PutText(e.TRADDR[:], c.addr)
		PutText(e.TRSVCID[:], c.service)
		if got, err := e.Addr(); err == nil {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestTSAS(t *testing.T) {
	var e DiscoveryEntry
	e.TSAS[100] = 1
	want := TSASRDMA{RDMADatagram, RDMAiWARP, RDMACMIP, 0xFFFF}
	e.SetRDMA(want)
	if !bytes.Equal(e.TSAS[:10], parse(t, "02 05 01 0000000000 ffff")) || e.RDMA() != want || e.TSAS[100] != 0 {
		t.Errorf("%x %+v", e.TSAS, e.RDMA())
	}
}

func TestParseTransportType(t *testing.T) {
	for _, want := range []TransportType{TransportRDMA, TransportTCP, TransportFC, TransportLocal} {
		if got, err := ParseTransportType(want.String()); got != want || err != nil {
			t.Errorf("%v: %v %v", want, got, err)
		}
	}
	for _, s := range []string{"", "none", "RDMA", "pcie"} {
		if got, err := ParseTransportType(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func TestFeatureValues(t *testing.T) {
	a := MakeArbitration(7, 1, 2, 3)
	low, medium, high := a.Weights()
	if a != 0x03020107 || a.Burst() != 7 || low != 1 || medium != 2 || high != 3 {
		t.Errorf("arbitration %#x", uint32(a))
	}
	if p := PowerManagement(0x45); p.State() != 5 || p.Workload() != 2 {
		t.Errorf("power %d %d", p.State(), p.Workload())
	}
	if v := MakeTemperatureThreshold(0x157, SensorAll, true); v != 0x1F0157 || v.Kelvins() != 0x157 || v.Sensor() != SensorAll || v.THSEL() != 1 {
		t.Errorf("temperature %#x", uint32(v))
	}
	if v := MakeTemperatureThreshold(0, SensorComposite, false); v != 0 || v.THSEL() != 0 {
		t.Errorf("temperature %#x", uint32(v))
	}
	if v := ErrorRecovery(0x1000A); v.TLER() != 10 || !v.DULBE() || ErrorRecovery(0xFFFEFFFF).DULBE() {
		t.Error("error recovery")
	}
	for _, n := range []int{1, 2, 128, 65535, 65536} {
		if v := MakeNumQueues(n, 3); v.SQ() != n || v.CQ() != 3 {
			t.Errorf("queues %d: %#x", n, uint32(v))
		}
	}
	if v := IRQCoalescing(0x0A07); v.Threshold() != 7 || v.Time() != 10 {
		t.Error("coalescing")
	}
	if v := IRQConfig(0x10003); v.Vector() != 3 || !v.CoalescingDisabled() || IRQConfig(3).CoalescingDisabled() {
		t.Error("vector")
	}
	if v := MakeHostThermal(300, 310); v != 300<<16|310 || v.TMT1() != 300 || v.TMT2() != 310 {
		t.Errorf("thermal %#x", uint32(v))
	}
}

func TestTimestamp(t *testing.T) {
	b := bytes.Repeat([]byte{0xFF}, TimestampSize)
	ts := Timestamp{Milliseconds: 0x010203040506, Stopped: true, Origin: TimestampSet}
	ts.MarshalTo(b)
	if !bytes.Equal(b, parse(t, "060504030201 03 00")) {
		t.Errorf("%x", b)
	}
	var got Timestamp
	if err := got.Unmarshal(b); err != nil || got != ts {
		t.Errorf("%+v %v", got, err)
	}
	(&Timestamp{Milliseconds: ^uint64(0)}).MarshalTo(b)
	if !bytes.Equal(b, parse(t, "ffffffffffff 00 00")) {
		t.Errorf("%x", b)
	}
	if err := got.Unmarshal(b[:7]); err == nil {
		t.Error("7 bytes are taken")
	}
}

func TestDSMRanges(t *testing.T) {
	r := DSMRanges(make([]byte, 3*DSMRangeSize+5))
	want := DSMRange{Attributes: 0x01020304, Blocks: 0xFFFFFFFF, SLBA: 0x1112131415161718}
	r.Set(2, want)
	if r.Len() != 3 || r.At(2) != want || r.At(1) != (DSMRange{}) || DSMRanges(nil).Len() != 0 {
		t.Errorf("%d ranges, %+v", r.Len(), r.At(2))
	}
	if !bytes.Equal(r[32:48], parse(t, "04030201 ffffffff 1817161514131211")) {
		t.Errorf("%x", []byte(r))
	}
	c := sqe()
	for _, n := range []int{1, 2, DSMMaxRanges} {
		c.DSM().Init(1, n, DSMIntegralRead|DSMIntegralWrite)
		if d := c.DSM(); d.Ranges() != n || d.Deallocate() || d.Attributes() != 3 {
			t.Errorf("%d: %x", n, []byte(c))
		}
	}
}

func TestReservationKeys(t *testing.T) {
	k := ReservationKeys(make([]byte, ReservationRegisterSize))
	k.SetCurrent(0x0102030405060708)
	k.SetOther(9)
	if k.Current() != 0x0102030405060708 || k.Other() != 9 || k[0] != 8 || k[8] != 9 {
		t.Errorf("%x", []byte(k))
	}
}

func TestLengthError(t *testing.T) {
	err := new(SMARTLog).Unmarshal(make([]byte, 100))
	if err == nil || err.Error() != "nvme: SMART log of 100 bytes, want 512" {
		t.Errorf("%v", err)
	}
}
