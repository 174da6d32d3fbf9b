package nvme

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nvmf-go/nvmf/internal/captures"
)

// fuzzFixed fuzzes the decoder of a structure of size bytes. What it takes is
// encoded and decoded again to the same value.
func fuzzFixed(f *testing.F, size int, longer bool, fresh func() fixed) {
	f.Add(make([]byte, size))
	f.Add(bytes.Repeat([]byte{0xFF}, size))
	f.Add(make([]byte, size-1))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := fresh()
		in := bytes.Clone(b)
		err := s.Unmarshal(b)
		if !bytes.Equal(in, b) {
			t.Fatal("the input changed")
		}
		if fits := len(b) == size || longer && len(b) > size; err != nil {
			if fits {
				t.Fatal(err)
			}
			return
		} else if !fits && !longer {
			t.Fatalf("%d bytes are taken", len(b))
		}
		once, twice := make([]byte, size), make([]byte, size)
		s.MarshalTo(once)
		again := fresh()
		if err := again.Unmarshal(once); err != nil || !reflect.DeepEqual(s, again) {
			t.Fatalf("%+v is decoded as %+v: %v", s, again, err)
		}
		if again.MarshalTo(twice); !bytes.Equal(once, twice) {
			t.Fatal("encodings differ")
		}
	})
}

// addIdentify seeds a fuzz target with the Identify data of the captures.
func addIdentify(f *testing.F, cns CNS) {
	for _, name := range roceCaptures {
		for _, e := range readSession(f, name).admin(AdminIdentify) {
			if e.cmd.Identify().CNS() == cns {
				f.Add(e.data)
			}
		}
	}
}

func FuzzIdentifyController(f *testing.F) {
	addIdentify(f, CNSController)
	fuzzFixed(f, IdentifySize, false, func() fixed { return new(IdentifyController) })
}

func FuzzIdentifyControllerNVM(f *testing.F) {
	fuzzFixed(f, IdentifySize, false, func() fixed { return new(IdentifyControllerNVM) })
}

func FuzzIdentifyNamespace(f *testing.F) {
	addIdentify(f, CNSNamespace)
	fuzzFixed(f, IdentifySize, false, func() fixed { return new(IdentifyNamespace) })
}

func FuzzIdentifyNamespaceNVM(f *testing.F) {
	fuzzFixed(f, IdentifySize, false, func() fixed { return new(IdentifyNamespaceNVM) })
}

func FuzzIdentifyNamespaceIndependent(f *testing.F) {
	fuzzFixed(f, IdentifySize, false, func() fixed { return new(IdentifyNamespaceIndependent) })
}

func FuzzErrorEntry(f *testing.F) {
	fuzzFixed(f, ErrorEntrySize, false, func() fixed { return new(ErrorEntry) })
}

func FuzzSMARTLog(f *testing.F) {
	fuzzFixed(f, SMARTLogSize, false, func() fixed { return new(SMARTLog) })
}

func FuzzFirmwareLog(f *testing.F) {
	fuzzFixed(f, FirmwareLogSize, false, func() fixed { return new(FirmwareLog) })
}

func FuzzReservationNotification(f *testing.F) {
	fuzzFixed(f, ReservationNotificationSize, false, func() fixed { return new(ReservationNotification) })
}

func FuzzDiscoveryEntry(f *testing.F) {
	log := readSession(f, captures.RoCEv2MTU1024).admin(AdminGetLogPage)[1].data
	f.Add(log[DiscoveryHeaderSize:][:DiscoveryEntrySize])
	fuzzFixed(f, DiscoveryEntrySize, false, func() fixed { return new(DiscoveryEntry) })
}

// FuzzDiscoveryText reads the texts of an entry, which a host shows and dials.
func FuzzDiscoveryText(f *testing.F) {
	log := readSession(f, captures.RoCEv2MTU1024).admin(AdminGetLogPage)[1].data
	f.Add(log[DiscoveryHeaderSize:][:DiscoveryEntrySize])
	f.Fuzz(func(t *testing.T, b []byte) {
		var e DiscoveryEntry
		if e.Unmarshal(b) != nil {
			return
		}
		checkText(t, Text(e.TRADDR[:]), len(e.TRADDR))
		checkText(t, Text(e.TRSVCID[:]), len(e.TRSVCID))
		if a, err := e.Addr(); err == nil {
			var n DiscoveryEntry
			n.SetAddr(a)
			if back, err := n.Addr(); err != nil || back.Port() != a.Port() || back.Addr() != a.Addr().Unmap().WithZone("") {
				t.Errorf("%v comes back as %v, %v", a, back, err)
			}
		}
		e.SetRDMA(e.RDMA())
	})
}

func checkText(t *testing.T, s string, size int) {
	t.Helper()
	if len(s) > size || strings.HasSuffix(s, " ") {
		t.Errorf("%q", s)
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7E {
			t.Errorf("%q", s)
		}
	}
}

func FuzzDiscoveryHeader(f *testing.F) {
	f.Add(make([]byte, DiscoveryHeaderPart))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again DiscoveryHeader
		if err := h.Unmarshal(b); (err == nil) != (len(b) >= DiscoveryHeaderPart) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		n := make([]byte, DiscoveryHeaderSize)
		h.MarshalTo(n)
		if err := again.Unmarshal(n); err != nil || h != again {
			t.Fatalf("%+v %+v %v", h, again, err)
		}
	})
}

func FuzzHostBehavior(f *testing.F) {
	fuzzFixed(f, HostBehaviorSize, false, func() fixed { return new(HostBehavior) })
}

func FuzzTimestamp(f *testing.F) {
	fuzzFixed(f, TimestampSize, false, func() fixed { return new(Timestamp) })
}

func FuzzCMRequest(f *testing.F) {
	f.Add(readSession(f, captures.RoCEv2MTU1024).conns[2].request)
	fuzzFixed(f, CMRequestSize, true, func() fixed { return new(CMRequest) })
}

func FuzzCMAccept(f *testing.F) {
	f.Add(readSession(f, captures.RoCEv2MTU1024).conns[2].accept)
	fuzzFixed(f, CMAcceptSize, true, func() fixed { return new(CMAccept) })
}

func FuzzCMReject(f *testing.F) {
	fuzzFixed(f, CMRejectSize, true, func() fixed { return new(CMReject) })
}

// FuzzNSDescriptors: what is taken is encoded and decoded again to the same
// value.
func FuzzNSDescriptors(f *testing.F) {
	addIdentify(f, CNSDescriptors)
	f.Add(bytes.Repeat([]byte{0x7F, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, IdentifySize/12+1)[:IdentifySize])
	f.Fuzz(func(t *testing.T, b []byte) {
		// The fuzzer need not find the length.
		b = append(bytes.Clone(b), make([]byte, IdentifySize)...)[:IdentifySize]
		var d, again NSDescriptors
		if d.Unmarshal(b) != nil {
			return
		}
		n := make([]byte, IdentifySize)
		d.MarshalTo(n)
		if err := again.Unmarshal(n); err != nil || d != again {
			t.Fatalf("%+v %+v %v", d, again, err)
		}
	})
}

func FuzzNSList(f *testing.F) {
	addIdentify(f, CNSActiveList)
	f.Add(bytes.Repeat([]byte{1}, IdentifySize))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseNSList(b)
		if err != nil {
			return
		}
		var ids []uint32
		for id := range l.All() {
			ids = append(ids, id)
		}
		n := NSList(make([]byte, IdentifySize))
		if len(ids) != l.Len() || n.Put(ids) != l.Len() || !bytes.Equal(n[:4*l.Len()], l[:4*l.Len()]) {
			t.Fatalf("%d of %d", len(ids), l.Len())
		}
	})
}

// FuzzANALog: lists are no longer than the bytes, and come back as they were.
func FuzzANALog(f *testing.F) {
	f.Add(AppendANALog(nil, 3, []ANAGroup{{ID: 1, State: ANAOptimized, NSIDs: []uint32{1, 2}}, {ID: 2}}))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		change, groups, err := ParseANALog(b)
		if err != nil {
			return
		}
		n := 0
		for _, g := range groups {
			n += len(g.NSIDs)
		}
		size := ANALogSize(len(groups), n)
		if size > len(b) {
			t.Fatalf("%d groups and %d namespaces of %d bytes", len(groups), n, len(b))
		}
		again := AppendANALog(nil, change, groups)
		c2, g2, err := ParseANALog(again)
		if len(again) != size || c2 != change || err != nil || !reflect.DeepEqual(groups, g2) {
			t.Fatalf("%v %v %v", groups, g2, err)
		}
	})
}

func FuzzDecodeNQN(f *testing.F) {
	f.Add([]byte("nqn.2014-08.org.nvmexpress.discovery\x00"))
	f.Add(bytes.Repeat([]byte{'A'}, NQNFieldSize))
	f.Add([]byte("nqn.\xff\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < NQNFieldSize {
			b = append(bytes.Clone(b), make([]byte, NQNFieldSize-len(b))...)
		}
		n, err := DecodeNQN(b)
		if err != nil {
			if n != "" {
				t.Fatalf("%q with %v", n, err)
			}
			return
		}
		if len(n) == 0 || len(n) > MaxNQN || !utf8.ValidString(string(n)) || b[len(n)] != 0 {
			t.Fatalf("%q", n)
		}
		again := make([]byte, NQNFieldSize)
		PutNQN(again, n)
		if !bytes.Equal(again[:len(n)+1], b[:len(n)+1]) {
			t.Fatalf("%q", again)
		}
	})
}

func FuzzParseNQN(f *testing.F) {
	for _, s := range []string{"nqn.2026-11.io.nvmf:disk0", string(DiscoveryNQN), "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "t1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseNQN(s)
		if err != nil {
			return
		}
		if string(n) != s || n.Check() != nil {
			t.Fatalf("%q of %q", n, s)
		}
		b := make([]byte, NQNFieldSize)
		PutNQN(b, n)
		if back, err := DecodeNQN(b); back != n || err != nil {
			t.Fatalf("%q comes back as %q, %v", n, back, err)
		}
	})
}

func FuzzIdentifiers(f *testing.F) {
	for _, s := range []string{"7e13c854-b746-437e-b369-680c2fef14b4", "00112233445566778899aabbccddeeff", "0011223344556677", "-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		same := func(got string, err error) {
			if err == nil && got != strings.ToLower(s) {
				t.Fatalf("%q of %q", got, s)
			}
		}
		u, err := ParseUUID(s)
		same(u.String(), err)
		n, err := ParseNGUID(s)
		same(n.String(), err)
		e, err := ParseEUI64(s)
		same(e.String(), err)
		h, err := ParseHostID(s)
		same(h.String(), err)
	})
}

func FuzzText(f *testing.F) {
	f.Add([]byte("4420                            "))
	f.Add([]byte("\x1b[2J\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := Text(b)
		checkText(t, s, len(b))
		again := make([]byte, len(b))
		if PutText(again, s); Text(again) != s {
			t.Fatalf("%q comes back as %q", s, Text(again))
		}
	})
}

func FuzzConnectData(f *testing.F) {
	for _, e := range readSession(f, captures.RoCEv2MTU1024).all(isConnect) {
		f.Add(append(bytes.Clone(e.capsule), e.data...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d := ConnectData(append(bytes.Clone(b), make([]byte, ConnectDataSize)...)[:ConnectDataSize])
		sub, err1 := d.SubNQN()
		host, err2 := d.HostNQN()
		if len(sub) > MaxNQN || len(host) > MaxNQN {
			t.Fatalf("%q %q", sub, host)
		}
		if err1 != nil || err2 != nil {
			return
		}
		n := ConnectData(make([]byte, ConnectDataSize))
		n.Put(d.HostID(), d.CNTLID(), sub, host)
		s2, err1 := n.SubNQN()
		h2, err2 := n.HostNQN()
		if err := errors.Join(err1, err2); err != nil || s2 != sub || h2 != host || n.HostID() != d.HostID() || n.CNTLID() != d.CNTLID() {
			t.Fatalf("%q %q: %v", s2, h2, err)
		}
	})
}

// FuzzCommand reads an SQE with every view, and makes admin commands anew: the
// fields that a builder has are those that the view read.
func FuzzCommand(f *testing.F) {
	for _, e := range readSession(f, captures.RoCEv2MTU1024).all(func(Command) bool { return true }) {
		f.Add([]byte(e.cmd))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := Command(append(bytes.Clone(b), make([]byte, SQESize)...)[:SQESize])
		if n := rebuild(c); n != nil {
			again := rebuild(n)
			if !bytes.Equal(n, again) {
				t.Fatalf("%x is made again as %x", []byte(n), []byte(again))
			}
			if n.Opcode() != c.Opcode() || n.PSDT() != PSDTSGL {
				t.Fatalf("%x of %x", []byte(n), []byte(c))
			}
		}
		if r := c.GetLogPage().Request(); r.Length < 4 || r.Length > 1<<34 || r.Length%4 != 0 {
			t.Fatalf("log request %+v", r)
		}
		if n := c.DSM().Ranges(); n < 1 || n > DSMMaxRanges {
			t.Fatalf("%d ranges", n)
		}
		if n := c.NLB(); n < 1 || n > 65536 {
			t.Fatalf("%d blocks", n)
		}
		if n := c.Property().Size(); n != 0 && n != 4 && n != 8 {
			t.Fatalf("property of %d bytes", n)
		}
		useAll(c)
	})
}

// useAll calls what a decoder of SQEs calls, for its panics.
func useAll(c Command) {
	_ = OpcodeName(c.Opcode(), true) + OpcodeName(c.Opcode(), false) + c.FCType().String()
	_ = c.SGL1().String()
	_ = c.Identify().CNS().String() + c.Identify().CSI().String()
	_ = c.Features().FID().String() + c.Features().SEL().String()
	_ = c.GetLogPage().Request().LID.String()
	_ = c.Reservation().Type().String()
	_ = c.Property().Offset().String()
	_, _, _ = c.Abort().SQID(), c.Abort().TargetCID(), c.Auth().Length()
	_, _, _ = c.FUA(), c.DEAC(), c.PRINFO()
}

func FuzzSGL(f *testing.F) {
	for _, e := range readSession(f, captures.RoCEv2MTU1024).all(func(Command) bool { return true }) {
		f.Add([]byte(e.cmd.SGL1()))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := SGL(append(bytes.Clone(b), make([]byte, SGLSize)...)[:SGLSize])
		if s.String() == "" || s.Keyed() && s.Size() >= 1<<24 {
			t.Fatalf("%x", []byte(s))
		}
		n := SGL(make([]byte, SGLSize))
		switch {
		case s.InCapsule():
			n.SetInCapsule(s.Address(), s.Length())
		case s.Keyed():
			n.SetKeyed(s.Address(), s.KeyedLength(), s.Key(), s.SubType())
			if !bytes.Equal(n, s) {
				t.Fatalf("%x made as %x", []byte(s), []byte(n))
			}
		default:
			return
		}
		if n.String() != s.String() || n.Validate() != s.Validate() || n.IsNull() != s.IsNull() {
			t.Fatalf("%v made as %v", s, n)
		}
	})
}

func FuzzCompletion(f *testing.F) {
	f.Add(make([]byte, CQESize))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := Completion(append(bytes.Clone(b), make([]byte, CQESize)...)[:CQESize])
		n := Completion(make([]byte, CQESize))
		n.Put(c.Result(), c.SQHD(), c.SQID(), c.CID(), c.Status())
		c[14] &^= 1 // phase tag
		if !bytes.Equal(n, c) {
			t.Fatalf("%x made as %x", []byte(c), []byte(n))
		}
		if c.Status().String() == "" || AsyncEvent(c.Result()).String() == "" || ConnectParameter(c.Result()) == "" {
			t.Fatal("no text")
		}
	})
}

func FuzzDSMRanges(f *testing.F) {
	f.Add(make([]byte, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, n := DSMRanges(b), DSMRanges(make([]byte, len(b)))
		for i := range r.Len() {
			n.Set(i, r.At(i))
		}
		if whole := r.Len() * DSMRangeSize; !bytes.Equal(n[:whole], r[:whole]) {
			t.Fatalf("%x made as %x", []byte(r), []byte(n))
		}
	})
}
