package mpa

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/nvmf-go/nvmf/internal/captures"
)

var iwarpCaptures = []string{captures.IWARP, captures.IWARPTerminate, captures.IWARPUserTarget}

// takeFrame parses the frame at the beginning of a stream, builds it again and
// returns what follows.
func takeFrame(t *testing.T, stream []byte, reply bool) (f Frame, rest []byte) {
	t.Helper()
	n, err := f.ParseHeader(stream, reply)
	if err != nil || len(stream) < FrameLen+n {
		t.Fatalf("% x...: %v, %d bytes of private data", stream[:min(32, len(stream))], err, n)
	}
	if err := f.ParsePrivate(stream[FrameLen : FrameLen+n]); err != nil {
		t.Fatal(err)
	}
	if got := f.Append(nil, reply); !bytes.Equal(got, stream[:FrameLen+n]) {
		t.Errorf("built % x, captured % x", got, stream[:FrameLen+n])
	}
	return f, stream[FrameLen+n:]
}

// fpdus calls use with each whole FPDU of a stream.
func fpdus(t *testing.T, stream []byte, use func(fpdu, ulpdu []byte)) {
	t.Helper()
	for len(stream) > 0 {
		n := int(binary.BigEndian.Uint16(stream))
		size := FPDULen(n)
		if size > len(stream) {
			t.Fatalf("the stream ends in an FPDU: %d of %d bytes", len(stream), size)
		}
		use(stream[:size], stream[LengthLen:LengthLen+n])
		stream = stream[size:]
	}
}

// rebuild makes the ULPDU of a segment again, from what was parsed.
func rebuild(t *testing.T, h *Header, payload []byte) []byte {
	b := make([]byte, h.Len(), h.Len()+len(payload))
	h.Put(b)
	switch h.Op {
	case OpReadRequest:
		var r ReadRequest
		r.Parse(payload)
		p := make([]byte, ReadRequestLen)
		r.Put(p)
		return append(b, p...)
	case OpTerminate:
		var term Terminate
		if !term.Parse(payload) {
			t.Fatalf("terminate % x", payload)
		}
	}
	return append(b, payload...)
}

// Each captured frame and FPDU is parsed and built again.
func TestCaptures(t *testing.T) {
	seen, crcs, zeros := map[Opcode]int{}, 0, 0
	for _, name := range iwarpCaptures {
		for i, c := range captures.Conns(name) {
			req, up := takeFrame(t, c.FromClient, false)
			if len(c.FromServer) == 0 {
				continue
			}
			rep, down := takeFrame(t, c.FromServer, true)
			if rep.Has(FlagReject) {
				continue
			}
			crc := req.Has(FlagCRC) || rep.Has(FlagCRC)
			for _, stream := range [][]byte{up, down} {
				fpdus(t, stream, func(fpdu, ulpdu []byte) {
					switch {
					case crc && CheckCRC(fpdu):
						crcs++
					case !crc && binary.BigEndian.Uint32(fpdu[len(fpdu)-CRCLen:]) == 0:
						zeros++
					case name != captures.IWARPTerminate: // has a bad one on purpose
						t.Fatalf("%s: connection %d: CRC of % x", name, i, fpdu)
					}
					n, cause := HeaderLen(ulpdu[0], len(ulpdu))
					var h Header
					if cause == 0 {
						cause = h.Parse(ulpdu[:n])
					}
					if cause != 0 {
						if name != captures.IWARPTerminate {
							t.Fatalf("%s: connection %d: %v of % x", name, i, cause, ulpdu)
						}
						return
					}
					seen[h.Op]++
					if got := rebuild(t, &h, ulpdu[n:]); !bytes.Equal(got, ulpdu) {
						t.Errorf("%s: built % x, captured % x", name, got, ulpdu)
					}
				})
			}
		}
	}
	for _, op := range []Opcode{OpWrite, OpReadRequest, OpReadResponse, OpSend, OpSendInv, OpTerminate} {
		if seen[op] == 0 {
			t.Errorf("no %v in the captures: %v", op, seen)
		}
	}
	if crcs < 20 || zeros < 200 {
		t.Errorf("%d FPDUs with a CRC, %d without", crcs, zeros)
	}
}

// What siw said in its Terminates, in its own layout.
func TestCapturedTerminates(t *testing.T) {
	got := map[Cause]int{}
	for _, c := range captures.Conns(captures.IWARPTerminate) {
		if len(c.FromServer) == 0 {
			continue
		}
		rep, down := takeFrame(t, c.FromServer, true)
		if rep.Has(FlagReject) {
			continue
		}
		fpdus(t, down, func(_, ulpdu []byte) {
			var h Header
			if h.Parse(ulpdu[:UntaggedLen]) == 0 && h.Op == OpTerminate {
				var term Terminate
				if !term.Parse(ulpdu[UntaggedLen:]) {
					t.Fatal("not parsed")
				}
				got[term.Cause]++
				if term.Other != 0 {
					got[term.Other]++
				}
			}
		})
	}
	for _, c := range []Cause{BadMSN, BadCRC, TaggedInvalidSTag, StreamCatastrophic, UnexpectedOpcode, BadQueue, NoBuffer} {
		if got[c] == 0 {
			t.Errorf("no %q among siw's: %v", c, got)
		}
	}
}

// The frames of the kernel's host and target, field by field.
func TestCapturedSetup(t *testing.T) {
	c := captures.Conns(captures.IWARP)[0]
	req, _ := takeFrame(t, c.FromClient, false)
	if req.Flags != FlagEnhanced || req.Revision != 2 || req.IRD != 128 || req.ORD != 0 || req.PeerToPeer || req.RTR != 0 || len(req.Private) != 32 {
		t.Errorf("request %+v", req)
	}
	rep, _ := takeFrame(t, c.FromServer, true)
	if rep.Flags != FlagEnhanced || rep.IRD != 0 || rep.ORD != 128 || len(rep.Private) != 32 {
		t.Errorf("reply %+v", rep)
	}
	var p2p, rejected, old bool
	for _, c := range captures.Conns(captures.IWARPTerminate) {
		if len(c.FromServer) == 0 {
			continue
		}
		req, _ := takeFrame(t, c.FromClient, false)
		rep, _ := takeFrame(t, c.FromServer, true)
		p2p = p2p || req.PeerToPeer && req.RTR == RTRWrite && rep.PeerToPeer && rep.RTR == RTRWrite
		rejected = rejected || rep.Has(FlagReject) && rep.Enhanced() && bytes.Equal(rep.Private, []byte{0, 0, 2, 0})
		old = old || req.Revision == 1 && rep.Revision == 1 && !rep.Enhanced()
	}
	if !p2p || !rejected || !old {
		t.Errorf("peer to peer %v, rejected %v, revision 1 %v", p2p, rejected, old)
	}
}
