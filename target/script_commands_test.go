package target

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing/synctest"
	"time"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

var scriptCommands map[string]func(*script, *scriptArgs)

func init() {
	scriptCommands = map[string]func(*script, *scriptArgs){
		"target": (*script).cmdTarget, "port": (*script).cmdPort, "remove-port": (*script).cmdRemovePort,
		"subsystem": (*script).cmdSubsystem, "remove-subsystem": (*script).cmdRemoveSubsystem,
		"namespace": (*script).cmdNamespace, "remove-namespace": (*script).cmdRemoveNamespace,
		"resize": (*script).cmdResize, "hosts": (*script).cmdHosts, "ports": (*script).cmdPorts,
		"referral": (*script).cmdReferral, "device": (*script).cmdDevice,
		"queue": (*script).cmdQueue, "connect": (*script).cmdConnect, "close": (*script).cmdClose,
		"session": (*script).cmdSession, "get": (*script).cmdGet, "set": (*script).cmdSet,
		"identify": (*script).cmdIdentify, "log": (*script).cmdLog,
		"get-feature": (*script).cmdGetFeature, "set-feature": (*script).cmdSetFeature,
		"aer": (*script).cmdAER, "abort": (*script).cmdAbort, "keep-alive": (*script).cmdKeepAlive,
		"io": (*script).cmdIO, "flush": (*script).cmdFlush, "dsm": (*script).cmdDSM, "disconnect": (*script).cmdDisconnect,
		"raw": (*script).cmdRaw, "hold": (*script).cmdHold, "release": (*script).cmdRelease,
		"sleep": (*script).cmdSleep,
	}
}

func (s *script) cmdTarget(a *scriptArgs) {
	s.close()
	s.rig = newRig(s.tb, Config{
		CntlidMin: uint16(a.num("min", 0)), CntlidMax: uint16(a.num("max", 0)), MaxQueues: int(a.num("queues", 0)),
		MaxControllers: int(a.num("controllers", 0)), DiscoveryNQN: nvme.NQN(a.str("discovery", "")), Version: a.str("version", ""),
	})
}

func (s *script) cmdPort(a *scriptArgs) {
	p := &Port{
		ID: uint16(a.num("id", uint64(len(s.ports)+1))), Name: a.word(0), Type: nvme.TransportRDMA,
		Addr: netip.MustParseAddrPort(a.str("addr", "192.0.2.1:4420")), Provider: a.str("provider", "roce"), Caps: testCaps(),
	}
	p.Caps.InCapsule = int(a.num("incapsule", 4096))
	if err := s.t.AddPort(p); err != nil {
		s.result(err)
		return
	}
	s.ports[p.Name] = p
}

func (s *script) cmdRemovePort(a *scriptArgs) { s.t.RemovePort(s.ports[a.word(0)]) }

func (s *script) cmdSubsystem(a *scriptArgs) {
	_, err := s.t.AddSubsystem(SubsystemConfig{
		NQN: nvme.NQN(a.word(0)), Serial: a.str("serial", ""), Hosts: parseHosts(a.str("hosts", "any")), Ports: parsePorts(a),
	})
	s.result(err)
}

func parseHosts(list string) HostPolicy {
	if list == "any" {
		return AnyHost()
	}
	var p HostPolicy
	for h := range strings.SplitSeq(list, ",") {
		if h != "none" {
			p.List = append(p.List, nvme.NQN(h))
		}
	}
	return p
}

func parsePorts(a *scriptArgs) []string {
	if list := a.str("ports", ""); list != "" {
		return strings.Split(list, ",")
	}
	return nil
}

func (s *script) subsystem(a *scriptArgs) *Subsystem {
	sub := s.t.Subsystem(nvme.NQN(a.word(0)))
	if sub == nil {
		s.tb.Fatalf("no subsystem %s", a.word(0))
	}
	return sub
}

func (s *script) cmdRemoveSubsystem(a *scriptArgs) {
	s.background(func(ctx context.Context) error { return s.t.RemoveSubsystem(ctx, nvme.NQN(a.word(0))) })
}

// background runs fn while the groups take turns, for at most a second.
func (s *script) background(fn func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	for {
		synctest.Wait()
		s.step()
		select {
		case err := <-done:
			s.flush()
			s.result(err)
			return
		default:
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func (s *script) cmdNamespace(a *scriptArgs) {
	d := newFakeDevice(uint32(a.num("bs", 512)), a.num("blocks", 1024))
	if k := a.str("kinds", ""); k != "" {
		d.info.Kinds = backend.KindSet(a.parse(k))
	}
	d.info.WriteCache = !a.has("nocache")
	d.info.Identity = a.str("identity", "fake:"+a.word(0)+"/"+a.word(1))
	n, err := s.subsystem(a).AddNamespace(NamespaceConfig{
		NSID: uint32(a.parse(a.word(1))), Device: d, Name: a.str("name", "disk"), ReadOnly: a.has("ro"), UUID: parseUUID(a.str("uuid", "")),
	})
	if err != nil {
		s.result(err)
		return
	}
	s.devices[a.word(0)+"/"+a.word(1)+" "+n.UUID().String()] = d
	s.devices[a.word(0)+"/"+a.word(1)] = d
}

func parseUUID(s string) (u nvme.UUID) {
	if s != "" {
		u, _ = nvme.ParseUUID(s)
	}
	return u
}

func (s *script) cmdRemoveNamespace(a *scriptArgs) {
	sub, nsid := s.subsystem(a), uint32(a.parse(a.word(1)))
	s.background(func(ctx context.Context) error { return sub.RemoveNamespace(ctx, nsid) })
}

func (s *script) cmdResize(a *scriptArgs) {
	d := s.devices[a.word(0)+"/"+a.word(1)]
	d.medium = a.parse(a.word(2))
	if a.has("quietly") {
		return
	}
	changed, err := s.subsystem(a).Namespace(uint32(a.parse(a.word(1)))).Refresh()
	s.result(err)
	s.printf("changed: %v\n", changed)
}

func (s *script) cmdHosts(a *scriptArgs) { s.result(s.subsystem(a).SetHosts(parseHosts(a.word(1)))) }
func (s *script) cmdPorts(a *scriptArgs) { s.subsystem(a).SetPorts(parsePorts(a)) }

func (s *script) cmdReferral(a *scriptArgs) {
	s.result(s.t.SetReferrals([]Referral{{Addr: netip.MustParseAddrPort(a.word(0))}}))
}

// cmdDevice: device NQN/NSID hold | release | fail KIND STATUS | trace.
func (s *script) cmdDevice(a *scriptArgs) {
	d := s.devices[a.word(0)]
	switch a.word(1) {
	case "hold", "release":
		d.hold(a.word(1) == "hold")
	case "fail":
		for k := range backend.NumKinds {
			if strings.ReplaceAll(k.String(), " ", "-") == a.word(2) {
				d.failWith(k, nvme.Status(a.parse(a.word(3))))
			}
		}
	case "trace":
		for _, op := range d.takeTrace() {
			s.printf("%v %d+%d fua=%v dealloc=%v\n", op.Kind, op.Offset, op.Length, op.FUA, op.Dealloc)
		}
	case "queues":
		s.printf("%d open\n", d.openQueues())
	}
}

func (s *script) cmdQueue(a *scriptArgs) {
	qid := -1
	if v := a.str("qid", ""); v != "" {
		qid = int(a.parse(v))
	}
	s.link(a.word(0), s.ports[a.word(1)], int(a.num("group", 0)), qid, int(a.num("depth", 128)), func(l *fakeLink) {
		l.addr = netip.MustParseAddrPort(a.str("local", l.addr.String()))
	})
}

func (s *script) cmdConnect(a *scriptArgs) {
	c := connectSpec{
		sub: nvme.NQN(a.str("sub", "")), host: nvme.NQN(a.str("host", "")), qid: uint16(a.num("qid", 0)),
		cntlid: uint16(a.num("cntlid", 0)), attr: nvme.ConnectAttr(a.num("attr", 0)), kato: uint32(a.num("kato", 0)),
		hostID: nvme.HostID{15: byte(a.num("hostid", 1))},
	}
	sqe, data := c.build()
	if v := a.str("size", ""); v != "" {
		sqe[44], sqe[45] = byte(a.parse(v)), byte(a.parse(v)>>8)
	}
	sqe[40] = byte(a.num("recfmt", 0))
	if a.num("hostid", 1) == 0 {
		clear(data[:16])
	}
	if at := a.num("fill", 0); at != 0 {
		copy(data[at:], bytes.Repeat([]byte{'A'}, 256))
	}
	s.do(a.link(), sqe, data, int(a.num("sgl", nvme.ConnectDataSize)))
}

// cmdSession connects the queues of standard: admin, and I/O queues io1...
func (s *script) cmdSession(a *scriptArgs) {
	s.rig.session(s.ports[a.word(0)], int(a.num("io", 1)))
	for _, l := range s.links {
		l.take()
	}
}

func (s *script) cmdClose(a *scriptArgs) { a.link().q.Close(fmt.Errorf("the host went away")) }

var propertyNames = map[string]nvme.Property{
	"CAP": nvme.PropCAP, "VS": nvme.PropVS, "CC": nvme.PropCC, "CSTS": nvme.PropCSTS, "NSSR": nvme.PropNSSR, "CRTO": nvme.PropCRTO,
}

func (s *script) cmdGet(a *scriptArgs) {
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Property().InitGet(propertyNames[a.word(1)])
	if v := a.str("attrib", ""); v != "" {
		sqe[40] = byte(a.parse(v))
	}
	if v := a.str("offset", ""); v != "" {
		sqe.SetCDW(11, uint32(a.parse(v)))
	}
	s.do(a.link(), sqe, nil, 0)
}

func (s *script) cmdSet(a *scriptArgs) {
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Property().InitSet(propertyNames[a.word(1)], a.parse(a.word(2)))
	s.do(a.link(), sqe, nil, 0)
}

func (s *script) cmdIdentify(a *scriptArgs) {
	sqe := make(nvme.Command, nvme.SQESize)
	cns := nvme.CNS(a.num("cns", 0))
	sqe.Identify().Init(cns, uint32(a.num("nsid", 0)), nvme.CSI(a.num("csi", 0)), uint16(a.num("cntid", 0)))
	f := s.do(a.link(), sqe, nil, int(a.num("sgl", nvme.IdentifySize)))
	s.flush()
	if len(f.in) == nvme.IdentifySize {
		s.printIdentify(cns, f.in)
	}
}

func (s *script) printIdentify(cns nvme.CNS, page []byte) {
	switch cns {
	case nvme.CNSNamespace:
		s.dump(new(nvme.IdentifyNamespace), page)
	case nvme.CNSController:
		s.dump(new(nvme.IdentifyController), page)
	case nvme.CNSActiveList, nvme.CNSActiveListCS:
		for id := range nvme.NSList(page).All() {
			s.printf("  nsid %d\n", id)
		}
	case nvme.CNSDescriptors:
		s.dump(new(nvme.NSDescriptors), page)
	case nvme.CNSControllerCS:
		s.dump(new(nvme.IdentifyControllerNVM), page)
	case nvme.CNSNamespaceIndep:
		s.dump(new(nvme.IdentifyNamespaceIndependent), page)
	case nvme.CNSCommandSetCombos:
		s.printf("  %#x %#x\n", nvme.CommandSetCombinations(page).Vector(0), nvme.CommandSetCombinations(page).Vector(1))
	}
}

// dump decodes b into v and prints the fields that are not zero.
func (s *script) dump(v interface{ Unmarshal([]byte) error }, b []byte) {
	s.must(v.Unmarshal(b))
	rv := reflect.ValueOf(v).Elem()
	for i := range rv.NumField() {
		f := rv.Field(i)
		if f.IsZero() {
			continue
		}
		name := rv.Type().Field(i).Name
		s.printf("  %s\n", describe(name, f))
	}
}

// describe is a field in words: texts as such, and of other arrays the first
// element.
func describe(name string, f reflect.Value) string {
	array := f.Kind() == reflect.Array
	switch x := f.Interface().(type) {
	case fmt.Stringer:
		return fmt.Sprintf("%s %v", name, x)
	case bool:
		return fmt.Sprintf("%s %v", name, x)
	}
	switch {
	case array && f.Type().Elem().Kind() == reflect.Uint8:
		return fmt.Sprintf("%s %q", name, strings.TrimRight(string(bytesOf(f)), " \x00"))
	case array && f.Type().Elem().Kind() == reflect.Array:
		return fmt.Sprintf("%s[0] %q", name, bytesOf(f.Index(0)))
	case array:
		return fmt.Sprintf("%s[0] %v", name, f.Index(0).Interface())
	}
	return fmt.Sprintf("%s %#x", name, f.Interface())
}

func bytesOf(v reflect.Value) []byte {
	b := make([]byte, v.Len())
	reflect.Copy(reflect.ValueOf(b), v)
	return b
}

func (s *script) cmdLog(a *scriptArgs) {
	sqe := make(nvme.Command, nvme.SQESize)
	r := nvme.LogRequest{
		LID: nvme.LogPage(a.num("lid", 0)), RAE: a.has("rae"), Length: a.num("len", 512), Offset: a.num("off", 0),
		OT: a.has("ot"), CSI: nvme.CSI(a.num("csi", 0)), LSP: uint8(a.num("lsp", 0)),
	}
	sqe.GetLogPage().Init(uint32(a.num("nsid", uint64(nvme.NSIDBroadcast))), r)
	f := s.do(a.link(), sqe, nil, int(a.num("sgl", r.Length)))
	s.flush()
	if len(f.in) > 0 {
		s.printLog(r, f.in)
	}
}

func (s *script) printLog(r nvme.LogRequest, b []byte) {
	whole := r.Offset == 0
	switch {
	case r.LID == nvme.LogSMART && whole && len(b) == nvme.SMARTLogSize:
		s.dump(new(nvme.SMARTLog), b)
	case r.LID == nvme.LogFirmware && whole && len(b) == nvme.FirmwareLogSize:
		s.dump(new(nvme.FirmwareLog), b)
	case r.LID == nvme.LogChangedNS && whole:
		for i := 0; i+4 <= len(b) && b[i]+b[i+1] != 0; i += 4 {
			s.printf("  nsid %d\n", uint32(b[i])|uint32(b[i+1])<<8)
		}
	case r.LID == nvme.LogError && whole:
		for ; len(b) >= nvme.ErrorEntrySize && b[0] != 0; b = b[nvme.ErrorEntrySize:] {
			var e nvme.ErrorEntry
			s.must(e.Unmarshal(b[:nvme.ErrorEntrySize]))
			s.printf("  %d: sqid %d cid %d status %s location %#x lba %#x nsid %#x trtype %d\n", e.Count, e.SQID, e.CID, statusText(e.Status), e.Location, e.LBA, e.NSID, e.TRTYPE)
		}
	case r.LID == nvme.LogDiscovery && whole && len(b) >= nvme.DiscoveryHeaderPart:
		s.printDiscovery(b)
	case r.LID == nvme.LogDiscovery:
		s.printEntries(b)
	default:
		s.printDwords(b)
	}
}

func (s *script) printDiscovery(b []byte) {
	var h nvme.DiscoveryHeader
	s.must(h.Unmarshal(b))
	s.printf("  generation %d, %d entries\n", h.GENCTR, h.NUMREC)
	if len(b) > nvme.DiscoveryHeaderSize {
		s.printEntries(b[nvme.DiscoveryHeaderSize:])
	}
}

func (s *script) printEntries(b []byte) {
	for ; len(b) >= nvme.DiscoveryEntrySize; b = b[nvme.DiscoveryEntrySize:] {
		var e nvme.DiscoveryEntry
		s.must(e.Unmarshal(b[:nvme.DiscoveryEntrySize]))
		if e.TRTYPE == 0 {
			return
		}
		s.printf("  %v %v %v treq %d portid %d cntlid %#x asqsz %d eflags %d %s:%s %s %v\n", e.TRTYPE, e.ADRFAM, e.SUBTYPE, e.TREQ,
			e.PORTID, e.CNTLID, e.ASQSZ, e.EFLAGS, nvme.Text(e.TRADDR[:]), nvme.Text(e.TRSVCID[:]), nvme.Text(e.SUBNQN[:]), e.RDMA().PRTYPE)
	}
}

// printDwords prints the dwords that are not zero, by offset.
func (s *script) printDwords(b []byte) {
	for i := 0; i+4 <= len(b); i += 4 {
		if v := uint32(b[i]) | uint32(b[i+1])<<8 | uint32(b[i+2])<<16 | uint32(b[i+3])<<24; v != 0 {
			s.printf("  %#03x: %#x\n", i, v)
		}
	}
}

func (s *script) cmdGetFeature(a *scriptArgs) {
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Features().InitGet(nvme.FeatureID(a.num("fid", 0)), nvme.FeatureSelect(a.num("sel", 0)), uint32(a.num("nsid", 0)), uint32(a.num("v", 0)))
	f := s.do(a.link(), sqe, nil, int(a.num("sgl", 0)))
	s.flush()
	s.printDwords(f.in)
}

func (s *script) cmdSetFeature(a *scriptArgs) {
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Features().InitSet(nvme.FeatureID(a.num("fid", 0)), uint32(a.num("nsid", 0)), uint32(a.num("v", 0)), a.has("save"))
	data, err := hex.DecodeString(a.str("data", ""))
	s.must(err)
	s.do(a.link(), sqe, data, int(a.num("sgl", 0)))
}

// simple sends an SQE of nothing but its opcode.
func (s *script) simple(a *scriptArgs, o nvme.Opcode) {
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Init(o, 0)
	s.do(a.link(), sqe, nil, 0)
}

func (s *script) cmdAER(a *scriptArgs)       { s.simple(a, nvme.AdminAsyncEvent) }
func (s *script) cmdKeepAlive(a *scriptArgs) { s.simple(a, nvme.AdminKeepAlive) }

func (s *script) cmdAbort(a *scriptArgs) {
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Abort().Init(uint16(a.num("sqid", 0)), uint16(a.num("cid", 0)))
	s.do(a.link(), sqe, nil, 0)
}

var ioNames = map[string]nvme.Opcode{
	"read": nvme.CmdRead, "write": nvme.CmdWrite, "compare": nvme.CmdCompare, "verify": nvme.CmdVerify, "zero": nvme.CmdWriteZeroes,
}

// cmdIO: io QUEUE read|write|... nsid= slba= nlb= sgl= data=CHARACTER [fua] [deac].
func (s *script) cmdIO(a *scriptArgs) {
	o, nlb, bs := ioNames[a.word(1)], a.num("nlb", 1), a.num("bs", 512)
	var flags uint32
	if a.has("fua") {
		flags |= nvme.IOFUA
	}
	if a.has("deac") {
		flags |= nvme.IODeallocate
	}
	data := bytes.Repeat([]byte(a.str("data", "x")), int(nlb*bs))
	sqe := blockCmd(o, uint32(a.num("nsid", 1)), a.num("slba", 0), uint32(nlb), flags)
	f := s.do(a.link(), sqe, data, int(a.num("sgl", nlb*bs)))
	s.flush()
	if len(f.in) > 0 {
		s.printf("  %q...%q\n", f.in[0], f.in[len(f.in)-1])
	}
}

func (s *script) cmdFlush(a *scriptArgs) {
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Init(nvme.CmdFlush, uint32(a.num("nsid", 1)))
	s.do(a.link(), sqe, nil, 0)
}

// cmdDSM: dsm QUEUE nsid= attr= sgl= SLBA+BLOCKS ...
func (s *script) cmdDSM(a *scriptArgs) {
	ranges := a.words[1:]
	data := make(nvme.DSMRanges, len(ranges)*nvme.DSMRangeSize)
	for i, w := range ranges {
		slba, n, _ := strings.Cut(w, "+")
		data.Set(i, nvme.DSMRange{SLBA: a.parse(slba), Blocks: uint32(a.parse(n))})
	}
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.DSM().Init(uint32(a.num("nsid", 1)), len(ranges), uint32(a.num("attr", uint64(nvme.DSMDeallocate))))
	s.do(a.link(), sqe, data, int(a.num("sgl", 4096)))
}

func (s *script) cmdDisconnect(a *scriptArgs) {
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Disconnect().Init()
	sqe[40] = byte(a.num("recfmt", 0))
	s.do(a.link(), sqe, nil, 0)
}

// cmdRaw: raw QUEUE opc= flags= fctype= nsid= cdw10= ... sgl=.
func (s *script) cmdRaw(a *scriptArgs) {
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Init(nvme.Opcode(a.num("opc", 0)), uint32(a.num("nsid", 0)))
	sqe.SetFlags(uint8(a.num("flags", uint64(nvme.FlagsSGL))))
	if v := a.str("fctype", ""); v != "" {
		sqe[4] = byte(a.parse(v))
	}
	for n := 10; n <= 15; n++ {
		sqe.SetCDW(n, uint32(a.num(fmt.Sprintf("cdw%d", n), 0)))
	}
	s.do(a.link(), sqe, nil, int(a.num("sgl", 0)))
}

func (s *script) cmdHold(a *scriptArgs)    { a.link().hold = true }
func (s *script) cmdRelease(a *scriptArgs) { a.link().release() }

func (s *script) cmdSleep(a *scriptArgs) {
	d, err := time.ParseDuration(a.word(0))
	s.must(err)
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(min(100*time.Millisecond, time.Until(end)))
		synctest.Wait()
		s.step()
	}
}
