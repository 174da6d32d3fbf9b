package mpa

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parseFrame(b []byte, reply bool) (f Frame, err error) {
	n, err := f.ParseHeader(b, reply)
	if err == nil {
		err = f.ParsePrivate(b[FrameLen : FrameLen+n])
	}
	return f, err
}

func TestFrame(t *testing.T) {
	for name, c := range map[string]struct {
		reply bool
		tail  string // behind the key
		want  Frame
	}{
		"bare":         {false, "00 01 0000", Frame{Revision: 1}},
		"host":         {false, "10 02 0006 | 0080 0000 | 0102", Frame{Flags: FlagEnhanced, Revision: 2, IRD: 128, Private: []byte{1, 2}}},
		"CRC":          {true, "50 02 0004 | 0000 0080", Frame{Flags: FlagEnhanced | FlagCRC, Revision: 2, ORD: 128}},
		"reject":       {true, "30 02 0008 | 0010 0000 | 0000 0200", Frame{Flags: FlagEnhanced | FlagReject, Revision: 2, IRD: 16, Private: []byte{0, 0, 2, 0}}},
		"old reject":   {true, "20 01 0004 | 0000 0200", Frame{Flags: FlagReject, Revision: 1, Private: []byte{0, 0, 2, 0}}},
		"empty RTR":    {false, "10 02 0004 | c001 0002", Frame{Flags: FlagEnhanced, Revision: 2, IRD: 1, ORD: 2, PeerToPeer: true, RTR: RTREmpty}},
		"every RTR":    {false, "18 02 0004 | ffff ffff", Frame{Flags: FlagEnhanced | FlagLarge, Revision: 2, IRD: NoNegotiation, ORD: NoNegotiation, PeerToPeer: true, RTR: RTREmpty | RTRWrite | RTRRead}},
		"write RTR":    {true, "10 02 0004 | 8010 8010", Frame{Flags: FlagEnhanced, Revision: 2, IRD: 16, ORD: 16, PeerToPeer: true, RTR: RTRWrite}},
		"read RTR":     {true, "10 02 0004 | 8010 4010", Frame{Flags: FlagEnhanced, Revision: 2, IRD: 16, ORD: 16, PeerToPeer: true, RTR: RTRRead}},
		"flag of rev2": {false, "10 01 0002 | 0102", Frame{Flags: FlagEnhanced, Revision: 1, Private: []byte{1, 2}}},
		"markers":      {false, "80 02 0000", Frame{Flags: FlagMarkers, Revision: 2}},
	} {
		key := keyRequest
		if c.reply {
			key = keyReply
		}
		b := append([]byte(key), unhex(t, c.tail)...)
		got, err := parseFrame(b, c.reply)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		private := got.Private
		got.Private = c.want.Private
		if !bytes.Equal(private, c.want.Private) || !sameFrame(got, c.want) {
			t.Errorf("%s: %+v, private % x, want %+v", name, got, private, c.want)
		}
		if built := got.Append([]byte("x"), c.reply); !bytes.Equal(built[1:], b) {
			t.Errorf("%s: built % x, want % x", name, built[1:], b)
		}
	}
}

func sameFrame(a, b Frame) bool {
	a.Private, b.Private = nil, nil
	return a.Flags == b.Flags && a.Revision == b.Revision && a.IRD == b.IRD && a.ORD == b.ORD && a.PeerToPeer == b.PeerToPeer && a.RTR == b.RTR
}

func TestFrameErrors(t *testing.T) {
	good := "MPA ID Req Frame"
	for name, c := range map[string]struct {
		b    string
		want error
	}{
		"empty":              {"", ErrKey},
		"short":              {good + "\x00\x01\x00", ErrKey},
		"reply":              {"MPA ID Rep Frame\x00\x01\x00\x00", ErrKey},
		"HTTP":               {"GET / HTTP/1.1\r\n\r\n  ", ErrKey},
		"case":               {"MPA ID req Frame\x00\x01\x00\x00", ErrKey},
		"revision 0":         {good + "\x00\x00\x00\x00", ErrRevision},
		"revision 3":         {good + "\x00\x03\x00\x00", ErrRevision},
		"private data":       {good + "\x00\x01\x02\x01", ErrPrivate},
		"no IRD and ORD":     {good + "\x10\x02\x00\x03", ErrPrivate},
		"much private data":  {good + "\x00\x01\xff\xff", ErrPrivate},
		"enhanced and empty": {good + "\x10\x02\x00\x00", ErrPrivate},
	} {
		var f Frame
		if n, err := f.ParseHeader([]byte(c.b), false); !errors.Is(err, c.want) || n != 0 {
			t.Errorf("%s: %d, %v, want %v", name, n, err, c.want)
		}
	}
	f := Frame{Flags: FlagEnhanced, Revision: 2}
	if err := f.ParsePrivate([]byte{1, 2, 3}); !errors.Is(err, ErrPrivate) {
		t.Errorf("3 bytes of private data: %v", err)
	}
	var max Frame
	if n, err := max.ParseHeader([]byte(good+"\x00\x01\x02\x00"), false); n != MaxPrivate || err != nil {
		t.Errorf("most private data: %d, %v", n, err)
	}
}

func FuzzFrame(f *testing.F) {
	for _, frame := range []Frame{
		{Revision: 1}, {Flags: FlagEnhanced, Revision: 2, IRD: 128, ORD: 3, Private: make([]byte, 32)},
		{Flags: FlagEnhanced | FlagCRC | FlagLarge, Revision: 2, IRD: 16, ORD: 16, PeerToPeer: true, RTR: RTRWrite | RTRRead},
		{Flags: FlagReject, Revision: 1, Private: []byte{0, 0, 2, 0}},
	} {
		f.Add(frame.Append(nil, false), false)
		f.Add(frame.Append(nil, true), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, reply bool) {
		var frame Frame
		n, err := frame.ParseHeader(b, reply)
		if err != nil || n > len(b)-FrameLen {
			return
		}
		if err := frame.ParsePrivate(b[FrameLen : FrameLen+n]); err != nil {
			t.Fatalf("private data of the length that was said: %v", err)
		}
		if got := frame.Append(nil, reply); !bytes.Equal(got, b[:FrameLen+n]) {
			t.Errorf("built % x of % x", got, b[:FrameLen+n])
		}
	})
}
