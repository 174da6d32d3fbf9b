package nvme

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// fixedStructures are all structures with a codec, with the offset and length in
// bytes of each field as the specification has them.
var fixedStructures = []struct {
	size   int
	make   func() fixed
	longer bool // bytes behind the structure are padding
	fields string
}{
	{CMRequestSize, func() fixed { return new(CMRequest) }, true, `
		RecFmt 0+2, QID 2+2, HRQSize 4+2, HSQSize 6+2, CNTLID 8+2`},
	{CMAcceptSize, func() fixed { return new(CMAccept) }, true, `
		RecFmt 0+2, CRQSize 2+2`},
	{CMRejectSize, func() fixed { return new(CMReject) }, true, `
		RecFmt 0+2, Status 2+2`},
	{IdentifySize, func() fixed { return new(IdentifyController) }, false, `
		VID 0+2, SSVID 2+2, SN 4+20, MN 24+40, FR 64+8, RAB 72+1, IEEE 73+3, CMIC 76+1, MDTS 77+1, CNTLID
		78+2, VER 80+4, RTD3R 84+4, RTD3E 88+4, OAES 92+4, CTRATT 96+4, RRLS 100+2, CNTRLTYPE 111+1, FGUID
		112+16, CRDT 128+6, NVMSR 253+1, VWCI 254+1, MEC 255+1, OACS 256+2, ACL 258+1, AERL 259+1, FRMW
		260+1, LPA 261+1, ELPE 262+1, NPSS 263+1, AVSCC 264+1, APSTA 265+1, WCTEMP 266+2, CCTEMP 268+2, MTFA
		270+2, HMPRE 272+4, HMMIN 276+4, TNVMCAP 280+16, UNVMCAP 296+16, RPMBS 312+4, EDSTT 316+2, DSTO
		318+1, FWUG 319+1, KAS 320+2, HCTMA 322+2, MNTMT 324+2, MXTMT 326+2, SANICAP 328+4, HMMINDS 332+4,
		HMMAXD 336+2, NSETIDMAX 338+2, ENDGIDMAX 340+2, ANATT 342+1, ANACAP 343+1, ANAGRPMAX 344+4,
		NANAGRPID 348+4, PELS 352+4, DOMAINID 356+2, MEGCAP 368+16, TMPTHHA 384+1, PowerState 2048+1015,
		SQES 512+1, CQES 513+1, MAXCMD 514+2, NN 516+4, ONCS 520+2, FUSES 522+2, FNA 524+1, VWC 525+1, AWUN
		526+2, AWUPF 528+2, ICSVSCC 530+1, NWPC 531+1, ACWU 532+2, CDFS 534+2, SGLS 536+4, MNAN 540+4,
		MAXDNA 544+16, MAXCNA 560+4, SUBNQN 768+256, IOCCSZ 1792+4, IORCSZ 1796+4, ICDOFF 1800+2, FCATT
		1802+1, MSDBD 1803+1, OFCS 1804+2, DCTYPE 1806+1`},
	{IdentifySize, func() fixed { return new(IdentifyControllerNVM) }, false, `
		VSL 0+1, WZSL 1+1, WUSL 2+1, DMRL 3+1, DMRSL 4+4, DMSL 8+8`},
	{IdentifySize, func() fixed { return new(IdentifyNamespace) }, false, `
		NSZE 0+8, NCAP 8+8, NUSE 16+8, NSFEAT 24+1, NLBAF 25+1, FLBAS 26+1, MC 27+1, DPC 28+1, DPS 29+1,
		NMIC 30+1, RESCAP 31+1, FPI 32+1, DLFEAT 33+1, NAWUN 34+2, NAWUPF 36+2, NACWU 38+2, NABSN 40+2, NABO
		42+2, NABSPF 44+2, NOIOB 46+2, NVMCAP 48+16, NPWG 64+2, NPWA 66+2, NPDG 68+2, NPDA 70+2, NOWS 72+2,
		MSSRL 74+2, MCL 76+4, MSRC 80+1, NULBAF 82+1, ANAGRPID 92+4, NSATTR 99+1, NVMSETID 100+2, ENDGID
		102+2, NGUID 104+16, EUI64 120+8, LBAF 128+256`},
	{IdentifySize, func() fixed { return new(IdentifyNamespaceNVM) }, false, `
		LBSTM 0+8, PIC 8+1, ELBAF 12+256`},
	{IdentifySize, func() fixed { return new(IdentifyNamespaceIndependent) }, false, `
		NSFEAT 0+1, NMIC 1+1, RESCAP 2+1, FPI 3+1, ANAGRPID 4+4, NSATTR 8+1, NVMSETID 10+2, ENDGID 12+2,
		NSTAT 14+1`},
	{ErrorEntrySize, func() fixed { return new(ErrorEntry) }, false, `
		Count 0+8, SQID 8+2, CID 10+2, Status 12+2, Location 14+2, LBA 16+8, NSID 24+4, VSIA 28+1, TRTYPE
		29+1, CSI 30+1, Opcode 31+1, Specific 32+8, TTSI 40+2, Version 63+1`},
	{SMARTLogSize, func() fixed { return new(SMARTLog) }, false, `
		CriticalWarning 0+1, Temperature 1+2, AvailableSpare 3+1, SpareThreshold 4+1, PercentageUsed 5+1,
		EnduranceWarning 6+1, DataUnitsRead 32+16, DataUnitsWritten 48+16, HostReadCommands 64+16,
		HostWriteCommands 80+16, ControllerBusyTime 96+16, PowerCycles 112+16, PowerOnHours 128+16,
		UnsafeShutdowns 144+16, MediaErrors 160+16, ErrorLogEntries 176+16, WarningTempTime 192+4,
		CriticalTempTime 196+4, TemperatureSensor 200+16, ThermalTransitions1 216+4, ThermalTransitions2
		220+4, ThermalTime1 224+4, ThermalTime2 228+4`},
	{FirmwareLogSize, func() fixed { return new(FirmwareLog) }, false, `
		AFI 0+1, FRS 8+56`},
	{ReservationNotificationSize, func() fixed { return new(ReservationNotification) }, false, `
		Count 0+8, Type 8+1, Available 9+1, NSID 12+4`},
	{DiscoveryHeaderSize, func() fixed { return new(DiscoveryHeader) }, true, `
		GENCTR 0+8, NUMREC 8+8, RECFMT 16+2`},
	{DiscoveryEntrySize, func() fixed { return new(DiscoveryEntry) }, false, `
		TRTYPE 0+1, ADRFAM 1+1, SUBTYPE 2+1, TREQ 3+1, PORTID 4+2, CNTLID 6+2, ASQSZ 8+2, EFLAGS 10+2,
		TRSVCID 32+32, SUBNQN 256+256, TRADDR 512+256, TSAS 768+256`},
	{HostBehaviorSize, func() fixed { return new(HostBehavior) }, false, `
		ACRE 0+1, ETDAS 1+1, LBAFEE 2+1, HDISNS 3+1, CDFE 4+2`},
}

// fill sets every bit of v.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	default:
		v.SetUint(^uint64(0) >> (64 - v.Type().Bits()))
	}
}

// fieldsOf names the bytes that each field is encoded to.
func fieldsOf(t *testing.T, size int, s fixed) string {
	var out []string
	b := make([]byte, size)
	for i := range reflect.TypeOf(s).Elem().NumField() {
		v := reflect.New(reflect.TypeOf(s).Elem())
		fill(v.Elem().Field(i))
		v.Interface().(fixed).MarshalTo(b)
		first := bytes.IndexFunc(b, func(r rune) bool { return r != 0 })
		if first < 0 {
			t.Fatalf("%T: field %d is not encoded", s, i)
		}
		last := len(bytes.TrimRight(b, "\x00"))
		out = append(out, fmt.Sprintf("%s %d+%d", v.Elem().Type().Field(i).Name, first, last-first))
	}
	return strings.Join(out, ", ")
}

func TestLayout(t *testing.T) {
	for _, c := range fixedStructures {
		want := strings.Join(strings.Fields(c.fields), " ")
		if got := fieldsOf(t, c.size, c.make()); got != want {
			t.Errorf("%T:\n got %s\nwant %s", c.make(), got, want)
		}
	}
}

// TestLengths: a decoder takes its length and no other, or, where padding may
// follow, no shorter one.
func TestLengths(t *testing.T) {
	for _, c := range fixedStructures {
		for _, n := range []int{0, 1, c.size - 1, c.size + 1} {
			if _, ok := c.make().(*DiscoveryHeader); ok && n >= DiscoveryHeaderPart {
				continue // reads what it needs
			}
			err := c.make().Unmarshal(make([]byte, n))
			if c.longer && n > c.size {
				if err != nil {
					t.Errorf("%T of %d bytes: %v", c.make(), n, err)
				}
				continue
			}
			var le *LengthError
			if !errors.As(err, &le) || le.Got != n {
				t.Errorf("%T of %d bytes: %v", c.make(), n, err)
			}
		}
		if err := c.make().Unmarshal(make([]byte, c.size)); err != nil {
			t.Errorf("%T: %v", c.make(), err)
		}
	}
}

// TestEncoderLength: encoding into memory of a wrong size is a mistake of the
// program and does not pass in silence.
func TestEncoderLength(t *testing.T) {
	for _, c := range fixedStructures {
		for _, n := range []int{0, c.size - 1, c.size + 1} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%T: encoded into %d bytes", c.make(), n)
					}
				}()
				c.make().MarshalTo(make([]byte, n))
			}()
		}
	}
}

// TestRoundTrip decodes random bytes and encodes them: the fields come back bit
// by bit, unknown values included, and reserved bytes are zero.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range fixedStructures {
		s := c.make()
		fill(reflect.ValueOf(s).Elem())
		defined := make([]byte, c.size)
		s.MarshalTo(defined)
		for range 20 {
			in, out := make([]byte, c.size), bytes.Repeat([]byte{0xA5}, c.size)
			for i := range in {
				in[i] = byte(r.Uint32())
			}
			if err := s.Unmarshal(in); err != nil {
				t.Fatalf("%T: %v", s, err)
			}
			s.MarshalTo(out)
			for i := range in {
				if out[i] != in[i]&defined[i] {
					t.Fatalf("%T: byte %d: %#02x of %#02x, defined %#02x", s, i, out[i], in[i], defined[i])
				}
			}
		}
	}
}

// TestNoAllocations: fixed structures are encoded and decoded in place.
func TestNoAllocations(t *testing.T) {
	for _, c := range fixedStructures {
		s, b := c.make(), make([]byte, c.size)
		if n := testing.AllocsPerRun(10, func() { s.MarshalTo(b) }); n != 0 {
			t.Errorf("encoding %T: %v allocations", s, n)
		}
		if n := testing.AllocsPerRun(10, func() { _ = s.Unmarshal(b) }); n != 0 {
			t.Errorf("decoding %T: %v allocations", s, n)
		}
	}
}
