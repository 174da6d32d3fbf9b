package mpa

import (
	"bytes"
	"strings"
	"testing"
)

func TestCause(t *testing.T) {
	c := NewCause(LayerDDP, 2, 3)
	if c != BadMSN || c.Layer() != LayerDDP || c.Type() != 2 || c.Code() != 3 || !c.Known() {
		t.Errorf("%v: %d %d %d", c, c.Layer(), c.Type(), c.Code())
	}
	if NewCause(0, 0, 0) != RDMAPCatastrophic || Cause(0).Known() || Cause(0).String() != "none" {
		t.Error("no cause and the first cause are confused")
	}
	if s := NewCause(3, 5, 0x77).String(); s != "layer 3, type 5, code 0x77" {
		t.Error(s)
	}
	for c, name := range causeNames {
		if NewCause(c.Layer(), c.Type(), c.Code()) != c || name == "" {
			t.Errorf("%v does not come back", c)
		}
	}
}

// Terminates as siw sends them and as the standard says.
func TestParseTerminate(t *testing.T) {
	const header = "41 43 00000000 00000000 0000004d 00000000"
	const tagged = "c1 40 00000001 0000000000000000"
	const request = "00000000 0000000100000001 00000400 154e6401 ffff8da703633000"
	for name, c := range map[string]struct {
		b           string
		cause       Cause
		other       Cause
		header, req bool
		ofRequest   bool
	}{
		"siw MSN":          {"21 03 03 00 0040" + header, BadMSN, 0, true, false, false},
		"siw CRC":          {"02 02 00 00", BadCRC, 0, false, false, false},
		"siw STag":         {"11 00 03 00 0010" + tagged, TaggedInvalidSTag, 0, true, false, false},
		"siw IRD":          {"20 07 03 00 001c 41 41 00000000 00000001 00000001 00000000", StreamCatastrophic, 0, true, false, true},
		"siw opcode":       {"20 06 00 00", InsufficientIRD, UnexpectedOpcode, false, false, false},
		"CRC":              {"20 02 00 00", BadCRC, 0, false, false, false},
		"MSN":              {"12 03 c0 00 0040" + header, BadMSN, 0, true, false, false},
		"read protection":  {"01 02 e0 00 002e 41 41 00000000 00000001 00000001 00000000" + request, RemoteAccess, 0, true, true, true},
		"no headers":       {"01 00 00 00", RemoteInvalidSTag, DDPCatastrophic, false, false, true},
		"catastrophic":     {"00 00 00 00", RDMAPCatastrophic, 0, false, false, false},
		"cut header":       {"12 03 c0 00 0040 4143", BadMSN, 0, false, false, false},
		"nothing behind":   {"12 03 e0 00", BadMSN, 0, false, false, false},
		"nonsense":         {"77 77 00 00", NewCause(7, 7, 0x77), 0, false, false, false},
		"siw, all headers": {"10 00 07 00 002e 41 41 00000000 00000001 00000001 00000000" + request, RemoteInvalidSTag, 0, true, true, true},
	} {
		var got Terminate
		if !got.Parse(unhex(t, c.b)) {
			t.Errorf("%s: not parsed", name)
			continue
		}
		if got.Cause != c.cause || got.Other != c.other || (got.Header != nil) != c.header || (got.Request != nil) != c.req || got.OfRequest() != c.ofRequest {
			t.Errorf("%s: %v, header % x, request % x, of a request %v", name, &got, got.Header, got.Request, got.OfRequest())
		}
	}
	for n := range 4 {
		if new(Terminate).Parse(make([]byte, n)) {
			t.Errorf("%d bytes were parsed", n)
		}
	}
	if s := (&Terminate{Cause: InsufficientIRD, Other: UnexpectedOpcode}).String(); !strings.Contains(s, "IRD") || !strings.Contains(s, "opcode") {
		t.Error(s)
	}
}

func TestAppendTerminate(t *testing.T) {
	header, request := make([]byte, UntaggedLen), bytes.Repeat([]byte{7}, ReadRequestLen)
	(&Header{Op: OpReadRequest, Last: true, MSN: 5}).Put(header)
	term := Terminate{Cause: RemoteAccess, Length: 46, Header: header, Request: request}
	b := term.Append(nil)
	if len(b) != MaxTerminate || !bytes.HasPrefix(b, unhex(t, "01 02 e0 00 002e 4141")) {
		t.Errorf("% x", b)
	}
	var got Terminate
	if !got.Parse(b) || got.Cause != term.Cause || got.Length != 46 || !bytes.Equal(got.Header, header) || !bytes.Equal(got.Request, request) {
		t.Errorf("%+v", got)
	}
	if b := (&Terminate{Cause: BadCRC}).Append(nil); !bytes.Equal(b, []byte{0x20, 2, 0, 0}) {
		t.Errorf("% x", b)
	}
}

func FuzzTerminate(f *testing.F) {
	f.Add([]byte{0x21, 3, 3, 0, 0, 0x40, 0x41, 0x43})
	f.Add([]byte{2, 2, 0, 0})
	f.Add((&Terminate{Cause: RemoteAccess, Length: 46, Header: make([]byte, UntaggedLen), Request: make([]byte, ReadRequestLen)}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var term Terminate
		if !term.Parse(b) {
			return
		}
		_, _ = term.OfRequest(), term.String()
		if len(term.Header) != 0 && len(term.Header) != TaggedLen && len(term.Header) != UntaggedLen || len(term.Request) != 0 && len(term.Request) != ReadRequestLen {
			t.Errorf("header % x, request % x", term.Header, term.Request)
		}
	})
}
