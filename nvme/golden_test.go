package nvme

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nvmf-go/nvmf/internal/captures"
)

// The golden tests read what Linux hosts (6.1), nvmet and two user programs sent,
// say what it means, and encode it again to the same bytes.

var roceCaptures = []string{
	captures.RoCEv2MTU1024, captures.RoCEv2MTU4096, captures.RoCEv2IPv6,
	captures.RoCEv2UserInitiator, captures.RoCEv2UserTarget,
}

// rebuild makes an admin or fabrics SQE anew of what the views read of c. It is
// nil for a command that is in no capture.
func rebuild(c Command) Command {
	n := Command(make([]byte, SQESize))
	switch c.Opcode() {
	case CmdFabrics:
		if !rebuildFabrics(n, c) {
			return nil
		}
	case AdminIdentify:
		v := c.Identify()
		n.Identify().Init(v.CNS(), v.NSID(), v.CSI(), v.CNTID())
	case AdminGetLogPage:
		n.GetLogPage().Init(c.NSID(), c.GetLogPage().Request())
	case AdminSetFeatures:
		v := c.Features()
		n.Features().InitSet(v.FID(), v.NSID(), v.Value(), v.SV())
	case AdminAsyncEvent, AdminKeepAlive:
		n.Init(c.Opcode(), c.NSID())
	default:
		return nil
	}
	return n
}

func rebuildFabrics(n, c Command) bool {
	switch c.FCType() {
	case FabricsConnect:
		v := c.Connect()
		n.Connect().Init(v.QID(), v.SQSize(), v.CATTR(), v.KATO())
	case FabricsPropertyGet:
		n.Property().InitGet(c.Property().Offset())
	case FabricsPropertySet:
		n.Property().InitSet(c.Property().Offset(), c.Property().Value())
	default:
		return false
	}
	return true
}

// setSGL gives n the descriptor that c has.
func setSGL(n, c Command) {
	switch s := c.SGL1(); {
	case s.InCapsule():
		n.SGL1().SetInCapsule(s.Address(), s.Length())
	case s.Keyed():
		n.SGL1().SetKeyed(s.Address(), s.KeyedLength(), s.Key(), s.SubType())
	}
}

// TestGoldenSQE encodes every SQE of the captures again.
func TestGoldenSQE(t *testing.T) {
	for _, name := range roceCaptures {
		s := readSession(t, name)
		count := 0
		for _, c := range s.conns {
			admin := le.Uint16(c.request[2:]) == 0
			for _, e := range c.exchanges {
				var n Command
				if !admin && e.cmd.Opcode() != CmdFabrics {
					n = rebuildIO(e.cmd)
				} else {
					n = rebuild(e.cmd)
				}
				if n == nil {
					t.Errorf("%s: frame %d: cannot rebuild %x", name, e.frame, []byte(e.cmd))
					continue
				}
				n.SetCID(e.cmd.CID())
				setSGL(n, e.cmd)
				if !bytes.Equal(n, e.cmd) {
					t.Errorf("%s: frame %d:\n got %x\nwant %x", name, e.frame, []byte(n), []byte(e.cmd))
				}
				count++
			}
		}
		if count < 10 {
			t.Errorf("%s: only %d commands", name, count)
		}
	}
}

// rebuildIO is rebuild for I/O queues.
func rebuildIO(c Command) Command {
	n := Command(make([]byte, SQESize))
	switch c.Opcode() {
	case CmdRead, CmdWrite:
		n.InitIO(c.Opcode(), c.NSID(), c.SLBA(), c.NLB(), 0)
	case CmdFlush:
		n.Init(CmdFlush, c.NSID())
	default:
		return nil
	}
	return n
}

// TestGoldenCQE encodes every CQE again, and checks the descriptor against what
// the response did: it invalidates the key exactly when it was asked to and
// there was data.
func TestGoldenCQE(t *testing.T) {
	for _, name := range roceCaptures {
		for _, e := range readSession(t, name).all(func(Command) bool { return true }) {
			if e.cqe == nil {
				if e.cmd.Opcode() != AdminAsyncEvent {
					t.Errorf("%s: frame %d has no response", name, e.frame)
				}
				continue
			}
			n := Completion(make([]byte, CQESize))
			n.Put(e.cqe.Result(), e.cqe.SQHD(), e.cqe.SQID(), e.cqe.CID(), e.cqe.Status())
			if !bytes.Equal(n, e.cqe) {
				t.Errorf("%s: frame %d: got %x want %x", name, e.frame, []byte(n), []byte(e.cqe))
			}
			if !e.cqe.Status().OK() {
				t.Errorf("%s: frame %d: %v", name, e.frame, e.cqe.Status())
			}
			want := uint32(0)
			if sgl := e.cmd.SGL1(); sgl.Invalidate() && sgl.Size() > 0 {
				want = sgl.Key()
			}
			if e.rkey != want {
				t.Errorf("%s: frame %d: response invalidates %#x, descriptor asks for %#x", name, e.frame, e.rkey, want)
			}
		}
	}
}

// TestGoldenIO reads the I/O queue of the first capture.
func TestGoldenIO(t *testing.T) {
	type io struct {
		Op      Opcode
		SLBA    uint64
		NLB     uint32
		SGL     string
		Bytes   int
		Capsule int
	}
	var got []io
	s := readSession(t, captures.RoCEv2MTU1024)
	for _, e := range s.conns[2].exchanges[1:] {
		sgl := e.cmd.SGL1()
		if st := sgl.Validate(); !st.OK() {
			t.Errorf("frame %d: %v: %v", e.frame, sgl, st)
		}
		kind := "keyed"
		switch {
		case sgl.IsNull():
			kind = "null"
		case sgl.InCapsule():
			kind = "in capsule"
		case sgl.Invalidate():
			kind = "keyed, invalidate"
		}
		got = append(got, io{e.cmd.Opcode(), e.cmd.SLBA(), e.cmd.NLB(), kind, len(e.data), len(e.capsule)})
		if e.cmd.PSDT() != PSDTSGL || e.cmd.Fuse() != FuseNone || e.cmd.FUA() || e.cmd.NSID() != 1 {
			t.Errorf("frame %d: %x", e.frame, []byte(e.cmd))
		}
	}
	want := []io{
		{CmdRead, 0, 8, "keyed, invalidate", 4096, 0},
		{CmdRead, 8, 8, "keyed, invalidate", 4096, 0},
		{CmdRead, 24, 8, "keyed, invalidate", 4096, 0},
		{CmdWrite, 0, 8, "in capsule", 0, 4096},
		{CmdRead, 0, 8, "keyed, invalidate", 4096, 0},
		{CmdWrite, 2048, 256, "keyed, invalidate", 131072, 0},
		{CmdRead, 2048, 256, "keyed, invalidate", 131072, 0},
		{CmdFlush, 0, 1, "null", 0, 0},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

const (
	labHostNQN = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001"
	labHostID  = "00000000-0000-0000-0000-000000000001"
)

// TestGoldenConnect reads Connect of the discovery controller, of an admin queue
// and of an I/O queue, its data in the capsule.
func TestGoldenConnect(t *testing.T) {
	s := readSession(t, captures.RoCEv2MTU1024)
	for i, want := range []struct {
		qid, cntlid uint16
		kato        uint32
		sub         NQN
	}{
		{0, CNTLIDDynamic, 0, DiscoveryNQN},
		{0, CNTLIDDynamic, 5000, "t1"},
		{1, 1, 0, "t1"},
	} {
		e := s.conns[i].exchanges[0]
		c := e.cmd.Connect()
		if e.cmd.FCType() != FabricsConnect || c.RecFmt() != 0 || c.QID() != want.qid || c.SQSize() != 31 ||
			c.CATTR() != 0 || c.KATO() != want.kato {
			t.Errorf("%d: %x", i, []byte(e.cmd))
		}
		data := ConnectData(append(bytes.Clone(e.capsule), e.data...))
		if len(data) != ConnectDataSize || data.CNTLID() != want.cntlid || data.HostID().String() != labHostID {
			t.Errorf("%d: %d bytes, cntlid %#x, host %v", i, len(data), data.CNTLID(), data.HostID())
		}
		sub, err1 := data.SubNQN()
		host, err2 := data.HostNQN()
		if err1 != nil || err2 != nil || sub != want.sub || host != labHostNQN {
			t.Errorf("%d: %q %v, %q %v", i, sub, err1, host, err2)
		}
		if r := ConnectResult(e.cqe.Result()); r.CNTLID() != 1 || r.AuthRequired() {
			t.Errorf("%d: result %#x", i, r)
		}
	}
	for _, name := range roceCaptures {
		for _, e := range readSession(t, name).all(isConnect) {
			data := ConnectData(append(bytes.Clone(e.capsule), e.data...))
			sub, _ := data.SubNQN()
			host, _ := data.HostNQN()
			n := ConnectData(bytes.Repeat([]byte{0xEE}, ConnectDataSize))
			n.Put(data.HostID(), data.CNTLID(), sub, host)
			if !bytes.Equal(n, data) {
				t.Errorf("%s: frame %d: Connect data is not reproduced", name, e.frame)
			}
		}
	}
}

func isConnect(c Command) bool { return c.Opcode() == CmdFabrics && c.FCType() == FabricsConnect }

// TestGoldenRegisters reads what a host reads and writes on its way to RDY and to
// shutdown.
func TestGoldenRegisters(t *testing.T) {
	var got []string
	for _, e := range readSession(t, captures.RoCEv2MTU1024).conns[1].exchanges {
		if e.cmd.Opcode() != CmdFabrics || e.cmd.FCType() == FabricsConnect {
			continue
		}
		p := e.cmd.Property()
		if p.Size() != p.Offset().Size() {
			t.Errorf("frame %d: %v of %d bytes", e.frame, p.Offset(), p.Size())
		}
		got = append(got, e.cmd.FCType().String()+" "+p.Offset().String())
		switch v := e.cqe.Result(); p.Offset() {
		case PropCAP:
			checkCAP(t, Capabilities(v))
		case PropVS:
			if Version(v) != MakeVersion(1, 3, 0) || Version(v).String() != "1.3" {
				t.Errorf("VS %v", Version(v))
			}
		}
	}
	want := []string{
		"Property Get CAP", "Property Set CC", "Property Get CC", "Property Get CAP", "Property Set CC",
		"Property Get CSTS", "Property Get VS", "Property Set CC", "Property Get CSTS",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	ready := Configuration(0).WithIOSQES(6).WithIOCQES(4).WithCSS(CCCSSAll)
	if ready != 0x460060 || ready.WithEN(true) != 0x460061 {
		t.Errorf("CC %#x", ready)
	}
	if off := ready.WithEN(true).WithSHN(ShutdownNormal); off != 0x464061 {
		t.Errorf("CC at shutdown %#x", off)
	}
	if s := ControllerStatus(0x8); s.RDY() || s.SHST() != ShutdownComplete || s.CFS() {
		t.Errorf("CSTS %#x", s)
	}
}

// checkCAP checks nvmet's CAP.
func checkCAP(t *testing.T, c Capabilities) {
	t.Helper()
	made := Capabilities(0).WithMQES(127).WithTO(15).WithCSS(CapCSSNVM | CapCSSIOCS).WithNSSRS(false)
	if c != 0x8200F00007F || made != c {
		t.Errorf("CAP %#x, made %#x", uint64(c), uint64(made))
	}
	if c.MQES() != 127 || c.TO() != 15 || c.Timeout().Milliseconds() != 7500 || c.CSS() != CapCSSNVM|CapCSSIOCS {
		t.Errorf("CAP %#x: MQES %d TO %d CSS %#x", uint64(c), c.MQES(), c.TO(), c.CSS())
	}
}

// TestGoldenPrivateData reads and makes the private data of connection
// management, over InfiniBand's MADs and over MPA.
func TestGoldenPrivateData(t *testing.T) {
	for _, name := range roceCaptures {
		for _, c := range readSession(t, name).conns {
			checkRequest(t, name, c.request, c.request[:CMRequestSize])
			checkAccept(t, name, c.accept, c.accept[:CMAcceptSize])
		}
	}
	for _, name := range []string{captures.IWARP, captures.IWARPUserTarget} {
		for _, c := range captures.Conns(name) {
			req, _ := mpaPrivate(c.FromClient)
			rep, rejected := mpaPrivate(c.FromServer)
			if rejected {
				t.Errorf("%s: rejected", name)
			}
			checkRequest(t, name, req, req)
			checkAccept(t, name, rep, rep)
		}
	}
}

// TestGoldenReject reads what nvmet rejected, and why.
func TestGoldenReject(t *testing.T) {
	type reject struct {
		length  int // of the request's private data
		request CMRequest
		status  CMStatus
	}
	var got []reject
	for _, c := range captures.Conns(captures.IWARPTerminate) {
		req, _ := mpaPrivate(c.FromClient)
		rep, rejected := mpaPrivate(c.FromServer)
		if !rejected || len(rep) == 0 { // or MPA refused, not nvmet
			continue
		}
		r := reject{length: len(req), status: checkReject(t, rep)}
		if err := r.request.Unmarshal(req); (err == nil) != (len(req) == CMRequestSize) {
			t.Errorf("%d bytes: %v", len(req), err)
		}
		got = append(got, r)
	}
	badFormat := CMRequest{RecFmt: 1, HRQSize: 32, HSQSize: 31}
	want := []reject{
		{32, badFormat, CMInvalidRecFmt},
		{32, CMRequest{HRQSize: 32, HSQSize: 4096}, CMInvalidHSQSize},
		{4, CMRequest{}, CMInvalidRecFmt},
		{32, badFormat, CMInvalidRecFmt},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(reject{})); d != "" {
		t.Error(d)
	}
}

// mpaPrivate is the consumer's private data of an MPA request or reply, without
// IRD and ORD of the enhanced form.
func mpaPrivate(b []byte) (data []byte, rejected bool) {
	if len(b) < 20 || len(b) < 20+int(be.Uint16(b[18:])) {
		return nil, false
	}
	data = b[20:][:be.Uint16(b[18:])]
	if b[16]&0x10 != 0 && len(data) >= 4 {
		data = data[4:]
	}
	return data, b[16]&0x20 != 0
}

func checkRequest(t *testing.T, name string, b, exact []byte) {
	t.Helper()
	var r CMRequest
	if err := r.Unmarshal(b); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if want := (CMRequest{QID: r.QID, HRQSize: 32, HSQSize: 31}); r != want || r.QID > 1 {
		t.Errorf("%s: request %+v", name, r)
	}
	n := make([]byte, CMRequestSize)
	r.MarshalTo(n)
	if !bytes.Equal(n, exact) {
		t.Errorf("%s: request %x made as %x", name, exact, n)
	}
}

func checkAccept(t *testing.T, name string, b, exact []byte) {
	t.Helper()
	var a CMAccept
	if err := a.Unmarshal(b); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	n := make([]byte, CMAcceptSize)
	a.MarshalTo(n)
	if a.RecFmt != 0 || a.CRQSize != 32 || !bytes.Equal(n, exact) {
		t.Errorf("%s: accept %+v of %x", name, a, exact)
	}
}

func checkReject(t *testing.T, b []byte) CMStatus {
	t.Helper()
	var r CMReject
	if err := r.Unmarshal(b); err != nil {
		t.Fatal(err)
	}
	n := make([]byte, CMRejectSize)
	r.MarshalTo(n)
	if !bytes.Equal(n, b) {
		t.Errorf("reject %x made as %x", b, n)
	}
	return r.Status
}

// identified is the data of the first Identify of a structure over all queues.
func identified(t *testing.T, name string, cns CNS, index int) []byte {
	t.Helper()
	for _, e := range readSession(t, name).admin(AdminIdentify) {
		if e.cmd.Identify().CNS() == cns {
			if index == 0 {
				return e.data
			}
			index--
		}
	}
	t.Fatalf("%s: no Identify of %v", name, cns)
	return nil
}

// TestGoldenIdentifyController reads nvmet's I/O controller; the third Identify
// of the first capture, after two of the discovery controller.
func TestGoldenIdentifyController(t *testing.T) {
	var c IdentifyController
	if err := c.Unmarshal(identified(t, captures.RoCEv2MTU1024, CNSController, 2)); err != nil {
		t.Fatal(err)
	}
	if sn, mn, fr := Text(c.SN[:]), Text(c.MN[:]), Text(c.FR[:]); sn != "7ba3ff4bccc099c1eb2a" || mn != "Linux" || fr != "6.1.0-57" {
		t.Errorf("SN %q MN %q FR %q", sn, mn, fr)
	}
	if nqn, err := DecodeNQN(c.SUBNQN[:]); nqn != "t1" || err != nil {
		t.Errorf("SUBNQN %q %v", nqn, err)
	}
	want := IdentifyController{
		SN: c.SN, MN: c.MN, FR: c.FR, SUBNQN: c.SUBNQN,
		RAB: 6, CMIC: CMICMultiPort | CMICMultiController | CMICANA, MDTS: 8, CNTLID: 1,
		VER: MakeVersion(1, 3, 0), OAES: EventNSAttribute | EventANA,
		CTRATT: CTRATTHostID128 | CTRATTTBKAS, CNTRLTYPE: ControllerIO,
		ACL: 3, AERL: 3, FRMW: FRMWSlot1ReadOnly | FRMWSlots(1),
		LPA:  LPASmartPerNS | LPAEffects | LPAExtended,
		ELPE: 127, KAS: 10, ANATT: 10,
		ANACAP: ANACAPOptimized | ANACAPNonOptimized | ANACAPInaccessible | ANACAPPersistentLoss | ANACAPChange,

		ANAGRPMAX: 128, NANAGRPID: 128,
		SQES: 0x66, CQES: 0x44, MAXCMD: 1024, NN: 1024, MNAN: 1024,
		ONCS: ONCSDSM | ONCSWriteZeroes, VWC: VWCPresent, NWPC: 1,
		SGLS:   SGLSSupported | SGLSKeyed | SGLSOffset,
		IOCCSZ: (SQESize + 4096) / 16, IORCSZ: CQESize / 16, MSDBD: 1,
	}
	want.PowerState[0] = PowerState{MP: 0x9C4, ENLAT: 16, EXLAT: 4}
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
}

// TestGoldenIdentify encodes all Identify data of the captures again.
func TestGoldenIdentify(t *testing.T) {
	seen := map[CNS]int{}
	for _, name := range roceCaptures {
		for _, e := range readSession(t, name).admin(AdminIdentify) {
			cns := e.cmd.Identify().CNS()
			seen[cns]++
			var s fixed
			switch cns {
			case CNSNamespace:
				s = new(IdentifyNamespace)
			case CNSController:
				s = new(IdentifyController)
			case CNSControllerCS:
				s = new(IdentifyControllerNVM)
			case CNSDescriptors:
				s = new(NSDescriptors)
			case CNSActiveList:
				l, err := ParseNSList(e.data)
				if err != nil || l.Len() != 1 || l.At(0) != 1 || l.Overflow() {
					t.Errorf("%s: frame %d: %d namespaces, %v", name, e.frame, l.Len(), err)
				}
				continue
			default:
				t.Errorf("%s: frame %d: %v", name, e.frame, cns)
				continue
			}
			reencode(t, name, e, s)
		}
	}
	for _, cns := range []CNS{CNSNamespace, CNSController, CNSControllerCS, CNSDescriptors, CNSActiveList} {
		if seen[cns] < 2 {
			t.Errorf("%d times %v", seen[cns], cns)
		}
	}
}

// fixed is a structure of this package with a codec of its own.
type fixed interface {
	MarshalTo([]byte)
	Unmarshal([]byte) error
}

func reencode(t *testing.T, name string, e *exchange, s fixed) {
	t.Helper()
	if err := s.Unmarshal(e.data); err != nil {
		t.Errorf("%s: frame %d: %v", name, e.frame, err)
		return
	}
	n := make([]byte, len(e.data))
	s.MarshalTo(n)
	for i := range n {
		if n[i] != e.data[i] {
			t.Errorf("%s: frame %d: %T: byte %d is %#02x, made as %#02x", name, e.frame, s, i, e.data[i], n[i])
			return
		}
	}
}

// TestGoldenNamespace reads nvmet's namespace.
func TestGoldenNamespace(t *testing.T) {
	var n IdentifyNamespace
	if err := n.Unmarshal(identified(t, captures.RoCEv2MTU1024, CNSNamespace, 0)); err != nil {
		t.Fatal(err)
	}
	want := IdentifyNamespace{
		NSZE: 0x20000, NCAP: 0x20000, NUSE: 0x20000, NSFEAT: NSFEATAtomic | NSFEATOptimalFields,
		NMIC: NMICShared, NPDG: 7, NPDA: 7, ANAGRPID: 1,
	}
	want.LBAF[0] = MakeLBAFormat(9, 0, 0)
	if d := cmp.Diff(want, n); d != "" {
		t.Error(d)
	}
	if n.Format().BlockSize() != 512 || n.Format().MS() != 0 || n.FormatIndex() != 0 {
		t.Errorf("format %#x", n.Format())
	}

	var d NSDescriptors
	if err := d.Unmarshal(identified(t, captures.RoCEv2MTU1024, CNSDescriptors, 0)); err != nil {
		t.Fatal(err)
	}
	if d.UUID.String() != "7e13c854-b746-437e-b369-680c2fef14b4" || !d.HasCSI || d.CSI != CSINVM || !d.NGUID.IsZero() || !d.EUI64.IsZero() {
		t.Errorf("%+v", d)
	}
}

// TestGoldenLogs reads the log pages that the Linux host asks for.
func TestGoldenLogs(t *testing.T) {
	seen := map[LogPage]int{}
	for _, name := range roceCaptures {
		for _, e := range readSession(t, name).admin(AdminGetLogPage) {
			r := e.cmd.GetLogPage().Request()
			// The host reads the head of the discovery log first, and keeps the event.
			head := r.LID == LogDiscovery && seen[r.LID] == 0
			want := LogRequest{LID: r.LID, Length: uint64(len(e.data)), RAE: head}
			if r != want {
				t.Errorf("%s: frame %d: %+v for %d bytes", name, e.frame, r, len(e.data))
			}
			seen[r.LID]++
			switch r.LID {
			case LogSMART:
				reencode(t, name, e, new(SMARTLog))
			case LogEffects:
				checkEffects(t, e.data, name == captures.RoCEv2UserTarget)
			case LogANA:
				checkANA(t, name, e.data)
			}
		}
	}
	want := map[LogPage]int{LogSMART: 4, LogEffects: 4, LogANA: 6, LogDiscovery: 2}
	if d := cmp.Diff(want, seen); d != "" {
		t.Error(d)
	}
}

func checkEffects(t *testing.T, b []byte, empty bool) {
	t.Helper()
	if empty {
		return // the user target of that capture sends zeroes
	}
	var admin, io []Opcode
	log := EffectsLog(b)
	for o := range 256 {
		if log.Admin(Opcode(o))&EffectSupported != 0 {
			admin = append(admin, Opcode(o))
		}
		if log.IO(Opcode(o))&EffectSupported != 0 {
			io = append(io, Opcode(o))
		}
	}
	wantAdmin := []Opcode{AdminGetLogPage, AdminIdentify, AdminAbort, AdminSetFeatures, AdminGetFeatures, AdminAsyncEvent, AdminKeepAlive}
	wantIO := []Opcode{CmdFlush, CmdWrite, CmdRead, CmdWriteZeroes, CmdDatasetManagement}
	if d := cmp.Diff(wantAdmin, admin); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(wantIO, io); d != "" {
		t.Error(d)
	}
	made := EffectsLog(make([]byte, EffectsLogSize))
	for _, o := range wantAdmin {
		made.SetAdmin(o, EffectSupported)
	}
	for _, o := range wantIO {
		made.SetIO(o, EffectSupported)
	}
	if !bytes.Equal(made, b) {
		t.Error("effects log is not reproduced")
	}
}

func checkANA(t *testing.T, name string, b []byte) {
	t.Helper()
	change, groups, err := ParseANALog(b)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	want := []ANAGroup{{ID: 1, Count: change, State: ANAOptimized, NSIDs: []uint32{1}}}
	if d := cmp.Diff(want, groups); d != "" {
		t.Errorf("%s: %s", name, d)
	}
	made := AppendANALog(nil, change, groups)
	if len(made) != ANALogSize(1, 1) || !bytes.Equal(made, b[:len(made)]) {
		t.Errorf("%s: made as %x", name, made)
	}
}

// TestGoldenDiscovery reads nvmet's discovery log and encodes it again.
func TestGoldenDiscovery(t *testing.T) {
	logs := readSession(t, captures.RoCEv2MTU1024).admin(AdminGetLogPage)
	b := logs[1].data
	var h DiscoveryHeader
	if err := h.Unmarshal(b[:DiscoveryHeaderPart]); err != nil || h != (DiscoveryHeader{GENCTR: 2, NUMREC: 2}) {
		t.Fatalf("%+v %v", h, err)
	}
	made := make([]byte, len(b))
	h.MarshalTo(made[:DiscoveryHeaderSize])
	for i, want := range []struct {
		kind SubsystemType
		nqn  NQN
	}{{SubsystemDiscovery, DiscoveryNQN}, {SubsystemNVM, "t1"}} {
		off := DiscoveryHeaderSize + i*DiscoveryEntrySize
		var e DiscoveryEntry
		if err := e.Unmarshal(b[off:][:DiscoveryEntrySize]); err != nil {
			t.Fatal(err)
		}
		e.MarshalTo(made[off:][:DiscoveryEntrySize])
		checkEntry(t, e, want.kind, want.nqn)
	}
	if !bytes.Equal(made, b) {
		t.Error("the log is not reproduced")
	}
}

// checkEntry holds an entry against one that is made from nothing. nvmet pads
// addresses with NULs, and not with spaces as the specification has it.
func checkEntry(t *testing.T, e DiscoveryEntry, kind SubsystemType, nqn NQN) {
	t.Helper()
	addr := netip.MustParseAddrPort("10.9.0.2:4420")
	if got, err := e.Addr(); got != addr || err != nil {
		t.Errorf("address %v %v", got, err)
	}
	want := DiscoveryEntry{
		TRTYPE: TransportRDMA, SUBTYPE: kind, TREQ: TREQDisableSQFlow,
		PORTID: 1, CNTLID: CNTLIDDynamic, ASQSZ: ASQSizeMin,
	}
	want.SetAddr(addr)
	want.SetRDMA(TSASRDMA{QPTYPE: RDMAConnected, PRTYPE: RDMAUnspecified, CMS: RDMACMIP})
	PutNQN(want.SUBNQN[:], nqn)
	if Text(want.TRADDR[:]) != Text(e.TRADDR[:]) || Text(want.TRSVCID[:]) != Text(e.TRSVCID[:]) {
		t.Errorf("%q %q", Text(e.TRADDR[:]), Text(e.TRSVCID[:]))
	}
	want.TRADDR, want.TRSVCID = e.TRADDR, e.TRSVCID
	if d := cmp.Diff(want, e); d != "" {
		t.Error(d)
	}
}

// TestGoldenFeatures reads the features that the Linux host sets.
func TestGoldenFeatures(t *testing.T) {
	sets := readSession(t, captures.RoCEv2MTU1024).admin(AdminSetFeatures)
	if len(sets) != 3 {
		t.Fatalf("%d Set Features", len(sets))
	}
	for i, want := range []struct {
		id     FeatureID
		value  uint32
		result uint64
	}{
		{FeatAsyncEvent, uint32(EventDiscovery), uint64(EventDiscovery)},
		{FeatNumQueues, uint32(MakeNumQueues(1, 1)), uint64(MakeNumQueues(128, 128))},
		{FeatAsyncEvent, uint32(EventNSAttribute | EventANA), uint64(EventNSAttribute | EventANA)},
	} {
		f := sets[i].cmd.Features()
		if f.FID() != want.id || f.Value() != want.value || f.SV() || sets[i].cqe.Result() != want.result {
			t.Errorf("%d: %v value %#x result %#x", i, f.FID(), f.Value(), sets[i].cqe.Result())
		}
	}
}
