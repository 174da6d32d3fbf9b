package nvme

import (
	"bytes"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sqe is a fresh SQE, dirty so that a builder which does not clear is noticed.
func sqe() Command { return bytes.Repeat([]byte{0xA5}, SQESize) }

// parse reads hexadecimal with spaces.
func parse(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBuilders: bytes 0 to 7 and 40 to 63 of what each builder makes. Between are
// MPTR, zero, and the descriptor of no data.
func TestBuilders(t *testing.T) {
	for _, c := range []struct {
		name       string
		make       func(Command)
		head, tail string
	}{
		{"Connect", func(c Command) { c.Connect().Init(3, 127, ConnectDisableSQFlow, 0x01020304) },
			"7f400000 01000000", "0000 0300 7f00 04 00 04030201 00000000 00000000 00000000"},
		{"Property Get CAP", func(c Command) { c.Property().InitGet(PropCAP) },
			"7f400000 04000000", "01000000 00000000 00000000 00000000 00000000 00000000"},
		{"Property Get CSTS", func(c Command) { c.Property().InitGet(PropCSTS) },
			"7f400000 04000000", "00000000 1c000000 00000000 00000000 00000000 00000000"},
		{"Property Set", func(c Command) { c.Property().InitSet(PropCC, 0x460061) },
			"7f400000 00000000", "00000000 14000000 61004600 00000000 00000000 00000000"},
		{"Disconnect", func(c Command) { c.Disconnect().Init() },
			"7f400000 08000000", "00000000 00000000 00000000 00000000 00000000 00000000"},
		{"Authentication Send", func(c Command) { c.Auth().Init(FabricsAuthSend, 0x102) },
			"7f400000 05000000", "00 01 01 e9 02010000 00000000 00000000 00000000 00000000"},
		{"Identify", func(c Command) { c.Identify().Init(CNSNamespaceCS, 7, CSIZNS, 0x0102) },
			"06400000 07000000", "05 00 0201 0000 00 02 00000000 00000000 00000000 00000000"},
		{"Get Log Page", func(c Command) {
			c.GetLogPage().Init(NSIDBroadcast, LogRequest{LID: LogANA, LSP: 0x41, RAE: true, Length: 4 * 0x12345679,
				Offset: 0x0102030405060708, OT: true, LSI: 0xABCD, UUIDIndex: 0x55, CSI: CSIKV})
		}, "02400000 ffffffff", "0c c1 7856 3412 cdab 08070605 04030201 55 00 80 01 00000000"},
		{"Get Features", func(c Command) { c.Features().InitGet(FeatTemperature, SelectSupported, 0, 0x00120000) },
			"0a400000 00000000", "04 03 0000 00001200 00000000 00000000 00000000 00000000"},
		{"Set Features", func(c Command) { c.Features().InitSet(FeatKeepAlive, 0, 15000, true) },
			"09400000 00000000", "0f 00 00 80 983a0000 00000000 00000000 00000000 00000000"},
		{"Abort", func(c Command) { c.Abort().Init(2, 0x1012) },
			"08400000 00000000", "0200 1210 00000000 00000000 00000000 00000000 00000000"},
		{"Read", func(c Command) { c.InitIO(CmdRead, 1, 0x0102030405, 256, IOLimitedRetry) },
			"02400000 01000000", "05040302 01000000 ff000080 00000000 00000000 00000000"},
		{"Write with FUA", func(c Command) { c.InitIO(CmdWrite, 1, 0, 65536, IOFUA) },
			"01400000 01000000", "00000000 00000000 ffff0040 00000000 00000000 00000000"},
		{"Write Zeroes", func(c Command) { c.InitIO(CmdWriteZeroes, 1, 9, 1, IODeallocate) },
			"08400000 01000000", "09000000 00000000 00000002 00000000 00000000 00000000"},
		{"Dataset Management", func(c Command) { c.DSM().Init(1, 256, DSMDeallocate) },
			"09400000 01000000", "ff000000 04000000 00000000 00000000 00000000 00000000"},
		{"Reservation Register", func(c Command) { c.Reservation().InitRegister(1, ReplaceKey, true, PersistSet) },
			"0d400000 01000000", "0a 00 00 c0 00000000 00000000 00000000 00000000 00000000"},
		{"Reservation Acquire", func(c Command) {
			c.Reservation().InitAcquire(1, PreemptAndAbort, false, ReservationExclusiveAccessAllRegistrants)
		}, "11400000 01000000", "02 06 0000 00000000 00000000 00000000 00000000 00000000"},
		{"Reservation Release", func(c Command) {
			c.Reservation().InitRelease(1, ClearKeys, true, ReservationWriteExclusive)
		}, "15400000 01000000", "09 01 0000 00000000 00000000 00000000 00000000 00000000"},
		{"Reservation Report", func(c Command) { c.Reservation().InitReport(1, 64, true) },
			"0e400000 01000000", "0f000000 01000000 00000000 00000000 00000000 00000000"},
	} {
		want := parse(t, c.head+strings.Repeat("00", 31)+"40"+c.tail)
		got := sqe()
		c.make(got)
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", c.name, []byte(got), want)
		}
	}
}

// TestViews: what the views read of SQEs that were built.
func TestViews(t *testing.T) {
	c := sqe()
	c.Connect().Init(3, 127, ConnectQueueDeletion|1, 5000)
	if v := c.Connect(); v.RecFmt() != 0 || v.QID() != 3 || v.SQSize() != 127 || v.KATO() != 5000 || v.CATTR()&ConnectPriority != 1 {
		t.Errorf("Connect %x", []byte(c))
	}
	c.Auth().Init(FabricsAuthReceive, 4096)
	if v := c.Auth(); c.FCType() != FabricsAuthReceive || v.SECP() != SecurityNVMe || v.SPSP0() != 1 || v.SPSP1() != 1 || v.Length() != 4096 {
		t.Errorf("Auth %x", []byte(c))
	}
	c.Property().InitSet(PropCC, 1<<40|7)
	if v := c.Property(); v.Size() != 4 || v.Offset() != PropCC || v.Value() != 1<<40|7 {
		t.Errorf("Property %x", []byte(c))
	}
	if c[40] = 2; c.Property().Size() != 0 {
		t.Error("reserved ATTRIB has a size")
	}
	c.Disconnect().Init()
	if c.Disconnect().RecFmt() != 0 || c.FCType() != FabricsDisconnect {
		t.Errorf("Disconnect %x", []byte(c))
	}
	c.Identify().Init(CNSControllerCS, 0, CSIZNS, 9)
	c[44], c[45], c[56] = 2, 1, 0xFF
	if v := c.Identify(); v.CNS() != CNSControllerCS || v.CSI() != CSIZNS || v.CNTID() != 9 || v.CNSSID() != 0x102 || v.UUIDIndex() != 0x7F {
		t.Errorf("Identify %x", []byte(c))
	}
	c.Features().InitSet(FeatAsyncEvent, 1, 0x900, false)
	c[56] = 0x85
	if v := c.Features(); v.FID() != FeatAsyncEvent || v.SV() || v.Value() != 0x900 || v.UUIDIndex() != 5 {
		t.Errorf("Features %x", []byte(c))
	}
	c.Features().InitGet(FeatAsyncEvent, SelectDefault, 0, 0)
	if v := c.Features(); v.SEL() != SelectDefault || c.Opcode() != AdminGetFeatures {
		t.Errorf("Features %x", []byte(c))
	}
	c.Abort().Init(5, 0x8001)
	if v := c.Abort(); v.SQID() != 5 || v.TargetCID() != 0x8001 || v.CID() != 0 {
		t.Errorf("Abort %x", []byte(c))
	}
	c.Reservation().InitRegister(1, UnregisterKey, true, PersistClear)
	if v := c.Reservation(); v.Action() != UnregisterKey || !v.IEKEY() || v.CPTPL() != PersistClear {
		t.Errorf("Register %x", []byte(c))
	}
	c.Reservation().InitReport(1, 4096, false)
	if v := c.Reservation(); v.ReportLength() != 4096 || v.EDS() {
		t.Errorf("Report %x", []byte(c))
	}
	c.Reservation().InitAcquire(1, Preempt, false, ReservationExclusiveAccess)
	if v := c.Reservation(); v.Action() != Preempt || v.IEKEY() || v.Type() != ReservationExclusiveAccess {
		t.Errorf("Acquire %x", []byte(c))
	}
}

func TestIOFlags(t *testing.T) {
	c := sqe()
	c.InitIO(CmdWriteZeroes, 7, math.MaxUint64, 65536, IOFUA|IODeallocate|IOLimitedRetry|0xA<<26)
	c.SetCID(0xBEEF)
	if c.SLBA() != math.MaxUint64 || c.NLB() != 65536 || c.NSID() != 7 || c.CID() != 0xBEEF {
		t.Errorf("%x", []byte(c))
	}
	if !c.FUA() || !c.DEAC() || !c.LimitedRetry() || c.PRINFO() != 0xA {
		t.Errorf("FUA %v DEAC %v LR %v PRINFO %#x", c.FUA(), c.DEAC(), c.LimitedRetry(), c.PRINFO())
	}
	c.InitIO(CmdWrite, 7, 0, 1, 0)
	if c.FUA() || c.DEAC() || c.LimitedRetry() || c.PRINFO() != 0 || c.NLB() != 1 {
		t.Errorf("%x", []byte(c))
	}
	c.SetFlags(0x80 | FuseSecond)
	c.SetOpcode(CmdCompare)
	c.SetNSID(9)
	c.SetCDW(15, 0xFFFFFFFF)
	if c.Flags() != 0x82 || c.PSDT() != PSDTSGLSegment || c.Fuse() != FuseSecond || c.Opcode() != CmdCompare || c.NSID() != 9 || c.CDW(15) != math.MaxUint32 {
		t.Errorf("%x", []byte(c))
	}
}

func TestCompletion(t *testing.T) {
	c := Completion(bytes.Repeat([]byte{0xFF}, CQESize))
	c.Put(0x0102030405060708, 0x1112, 0x2122, 0x3132, ConnectInvalidParameters|StatusDNR)
	if want := parse(t, "08070605 04030201 1211 2221 3231 0483"); !bytes.Equal(c, want) {
		t.Errorf("%x, want %x", []byte(c), want)
	}
	if c.Result() != 0x0102030405060708 || c.SQHD() != 0x1112 || c.SQID() != 0x2122 || c.CID() != 0x3132 || c.Status() != 0x4182 {
		t.Errorf("%x", []byte(c))
	}
	if c[14] |= 1; c.Status() != 0x4182 {
		t.Error("the phase tag is part of the status")
	}
}

func TestSGL(t *testing.T) {
	s := SGL(bytes.Repeat([]byte{0xEE}, SGLSize))
	for _, c := range []struct {
		name string
		set  func()
		raw  string
		size uint32
		text string
		null bool
	}{
		{"keyed", func() { s.SetKeyed(0x0102030405060708, 0x123456, 0xA1A2A3A4, SGLInvalidate) },
			"0807060504030201 563412 a4a3a2a1 4f", 0x123456, "keyed 0x102030405060708+1193046 key 0xa1a2a3a4 invalidate", false},
		{"keyed, kept", func() { s.SetKeyed(16, 1<<24-1, 7, SGLAddress) },
			"1000000000000000 ffffff 07000000 40", 1<<24 - 1, "keyed 0x10+16777215 key 0x7", false},
		{"in capsule", func() { s.SetInCapsule(8, 0x11223344) },
			"0800000000000000 44332211 000000 01", 0x11223344, "in capsule 8+287454020", false},
		{"data block", func() { s.SetDataBlock(1<<32, 512) },
			"0000000001000000 00020000 000000 00", 512, "data block/0x0 0x100000000+512", false},
		{"bit bucket", func() { s.SetBitBucket(512) },
			"0000000000000000 00020000 000000 10", 512, "bit bucket/0x0 0x0+512", false},
		{"segment", func() { s.SetSegment(SGLSegment, 64, 32, SGLAddress) },
			"4000000000000000 20000000 000000 20", 32, "segment/0x0 0x40+32", false},
		{"last segment", func() { s.SetSegment(SGLLastSegment, 0, 16, SGLOffset) },
			"0000000000000000 10000000 000000 31", 16, "last segment/0x1 0x0+16", false},
		{"transport", func() { s.SetTransportData(4096) },
			"0000000000000000 00100000 000000 5a", 4096, "transport data block/0xa 0x0+4096", false},
		{"null", s.SetNull, "0000000000000000 000000 00000000 40", 0, "keyed 0x0+0 key 0x0", true},
		{"empty", func() { clear(s) }, "0000000000000000 00000000 000000 00", 0, "data block/0x0 0x0+0", true},
	} {
		c.set()
		if want := parse(t, c.raw); !bytes.Equal(s, want) {
			t.Errorf("%s: %x, want %x", c.name, []byte(s), want)
		}
		if s.Size() != c.size || s.String() != c.text || s.IsNull() != c.null || !s.Validate().OK() {
			t.Errorf("%s: %d bytes, %q, null %v, %v", c.name, s.Size(), s, s.IsNull(), s.Validate())
		}
	}
}

// TestSGLTypes: of the 256 types and sub types, those that exist.
func TestSGLTypes(t *testing.T) {
	exists := map[byte]bool{0x00: true, 0x01: true, 0x10: true, 0x20: true, 0x21: true, 0x30: true, 0x31: true, 0x40: true, 0x4F: true}
	for sub := byte(0xA); sub <= 0xF; sub++ {
		exists[0x50|sub] = true
	}
	s := SGL(make([]byte, SGLSize))
	le.PutUint32(s[8:], 32)
	for i := range 256 {
		s[15] = byte(i)
		st := s.Validate()
		if st.OK() != exists[byte(i)] || !st.OK() && st != SGLTypeInvalid {
			t.Errorf("%#02x: %v", i, st)
		}
	}
	for _, n := range []uint32{0, 15, 17, 0xFFFFFFFF} {
		s.SetSegment(SGLLastSegment, 0, n, SGLAddress)
		if st := s.Validate(); st != InvalidSGLSegment {
			t.Errorf("segment of %d bytes: %v", n, st)
		}
		if s.IsNull() {
			t.Errorf("segment of %d bytes is null", n)
		}
	}
}

// TestLogLengths: NUMD is 0-based and of 32 bits, and lengths are rounded up to
// what it can say.
func TestLogLengths(t *testing.T) {
	c := sqe()
	for in, want := range map[uint64]uint64{
		0: 4, 1: 4, 4: 4, 5: 8, 20: 20, 512: 512, 4096: 4096, 1 << 18: 1 << 18, 1<<18 + 4: 1<<18 + 4,
		1 << 34: 1 << 34, 1<<34 + 1: 1 << 34, math.MaxUint64 - 3: 1 << 34,
	} {
		c.GetLogPage().Init(0, LogRequest{LID: LogError, Length: in})
		r := c.GetLogPage().Request()
		if d := cmp.Diff(LogRequest{LID: LogError, Length: want}, r); d != "" {
			t.Errorf("%d: %s", in, d)
		}
	}
}

// TestCommandAllocations: views and builders are free of allocations.
func TestCommandAllocations(t *testing.T) {
	c, cqe := sqe(), Completion(make([]byte, CQESize))
	data := ConnectData(make([]byte, ConnectDataSize))
	sum := uint64(0)
	n := testing.AllocsPerRun(100, func() {
		c.InitIO(CmdRead, 1, 8, 8, 0)
		c.SGL1().SetKeyed(4096, 4096, 1, SGLInvalidate)
		sum += c.SLBA() + uint64(c.NLB()) + uint64(c.SGL1().Size()) + uint64(c.SGL1().Validate())
		c.GetLogPage().Init(0, LogRequest{LID: LogSMART, Length: 512})
		sum += c.GetLogPage().Request().Length
		c.Connect().Init(1, 31, 0, 0)
		sum += uint64(c.Connect().QID())
		data.Put(HostID{1}, CNTLIDDynamic, DiscoveryNQN, DiscoveryNQN)
		sum += uint64(data.CNTLID())
		cqe.Put(1, 2, 3, 4, Success)
		sum += uint64(cqe.CID())
	})
	if n != 0 || sum == 0 {
		t.Errorf("%v allocations", n)
	}
}
