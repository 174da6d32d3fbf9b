package rdmap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// segment makes an FPDU by hand.
func segment(h mpa.Header, payload ...byte) []byte {
	b := make([]byte, mpa.LengthLen+h.Len(), 128)
	h.Put(b[mpa.LengthLen:])
	return finishFPDU(append(b, payload...))
}

// finishFPDU fills in the length and appends pad and CRC.
func finishFPDU(b []byte) []byte {
	binary.BigEndian.PutUint16(b, uint16(len(b)-mpa.LengthLen))
	b = append(b, make([]byte, mpa.Pad(len(b)-mpa.LengthLen))...)
	return binary.LittleEndian.AppendUint32(b, mpa.CRC(b))
}

// rawControl is an FPDU whose two control bytes are not what Put writes.
func rawControl(c0, c1 byte, rest string, payload ...byte) []byte {
	b := append([]byte{0, 0, c0, c1}, rest...)
	return finishFPDU(append(b, payload...))
}

func sendHeader(msn, mo uint32, last bool) mpa.Header {
	return mpa.Header{Op: mpa.OpSend, MSN: msn, MO: mo, Last: last}
}

func readRequest(msn uint32, r mpa.ReadRequest) []byte {
	p := make([]byte, mpa.ReadRequestLen)
	r.Put(p)
	return segment(mpa.Header{Op: mpa.OpReadRequest, MSN: msn, Last: true}, p...)
}

func atomicRequest(msn uint32, r mpa.AtomicRequest) []byte {
	p := make([]byte, mpa.AtomicRequestLen)
	r.Put(p)
	return segment(mpa.Header{Op: mpa.OpAtomicRequest, MSN: msn, Last: true}, p...)
}

// attack is what a hostile peer sends to b, which has one receive of 16 bytes
// and whose region allows everything.
type attack struct {
	name   string
	stream []byte
	cause  mpa.Cause
	recv   fabric.Status // how the receive ends
	header bool          // the Terminate has the segment's header
}

func attacks(b *end, noWrite, noRead, noAtomic fabric.MemoryRegion) []attack {
	const ok, flushed = fabric.StatusSuccess, fabric.StatusFlushed
	key, base, size := b.mr.RKey(), b.mem.Addr(), uint64(memSize)
	write := func(key uint32, to uint64, n int) []byte {
		return segment(mpa.Header{Op: mpa.OpWrite, Last: true, STag: key, TO: to}, make([]byte, n)...)
	}
	read := func(key uint32, to uint64, n uint32) []byte {
		return readRequest(1, mpa.ReadRequest{Size: n, SourceSTag: key, SourceTO: to})
	}
	add := func(key uint32, to uint64, op mpa.AtomicOp) []byte {
		return atomicRequest(1, mpa.AtomicRequest{Op: op, STag: key, TO: to, Data: 1})
	}
	unknown := key ^ 0x12345
	imm := mpa.Header{Op: mpa.OpImmediate, MSN: 1, Last: true}
	zeros := func(n int) []byte { return make([]byte, n) }
	join := func(bs ...[]byte) []byte { return bytes.Join(bs, nil) }
	var over []byte
	for i := range uint32(5) {
		over = append(over, readRequest(i+1, mpa.ReadRequest{Size: 4, SourceSTag: key, SourceTO: base})...)
	}
	return []attack{
		{"tagged version", rawControl(0xc0, 0x40, "stag88888888"), mpa.TaggedVersion, flushed, true},
		{"untagged version", rawControl(0x43, 0x43, "stag\x00\x00\x00\x00msn.mo.."), mpa.UntaggedVersion, flushed, true},
		{"RDMAP version", rawControl(0x41, 0x03, "stag\x00\x00\x00\x00msn.mo.."), mpa.RDMAPVersion, flushed, true},
		{"opcode 15", rawControl(0x41, 0x4f, "stag\x00\x00\x00\x00msn.mo.."), mpa.UnexpectedOpcode, flushed, true},
		{"tagged Send", rawControl(0xc1, 0x43, "stag88888888"), mpa.UnexpectedOpcode, flushed, true},
		{"Send on queue 2", rawControl(0x41, 0x43, "stag\x00\x00\x00\x02msn.mo.."), mpa.BadQueue, flushed, true},
		{"ULPDU of 2 bytes", rawControl(0x41, 0x43, ""), mpa.BadFrame, flushed, false},
		{"ULPDU of 17 bytes", rawControl(0x41, 0x43, strings.Repeat("x", 15)), mpa.BadFrame, flushed, false},
		{"late empty FPDU", join(write(key, base, 0), finishFPDU(zeros(2))), mpa.BadFrame, flushed, false},

		{"WRITE to an unknown key", write(unknown, base, 8), mpa.TaggedInvalidSTag, flushed, true},
		{"WRITE to key 0", write(0, base, 8), mpa.TaggedInvalidSTag, flushed, true},
		{"WRITE in front", write(key, base-1, 8), mpa.TaggedBounds, flushed, true},
		{"WRITE across the end", write(key, base+size-7, 8), mpa.TaggedBounds, flushed, true},
		{"WRITE far away", write(key, 0, 8), mpa.TaggedBounds, flushed, true},
		{"WRITE that wraps", write(key, math.MaxUint64-3, 8), mpa.TaggedWrap, flushed, true},
		{"WRITE without the right", write(noWrite.RKey(), noWrite.Memory().Addr(), 8), mpa.RemoteAccess, flushed, true},

		{"Send with MSN 2", segment(sendHeader(2, 0, true), 1), mpa.BadMSN, flushed, true},
		{"Send with MSN 0", segment(sendHeader(0, 0, true), 1), mpa.BadMSN, flushed, true},
		{"Send that starts later", segment(sendHeader(1, 4, true), 1), mpa.BadMO, flushed, true},
		{"Send with a gap", join(segment(sendHeader(1, 0, false), zeros(4)...), segment(sendHeader(1, 5, true), 1)), mpa.BadMO, flushed, true},
		{"Send that goes back", join(segment(sendHeader(1, 0, false), zeros(4)...), segment(sendHeader(1, 0, true), 1)), mpa.BadMO, flushed, true},
		{"Send of 17 bytes", segment(sendHeader(1, 0, true), zeros(17)...), mpa.MessageTooLong, fabric.StatusLocalLength, true},
		{"Send of 17 bytes in two", join(segment(sendHeader(1, 0, false), zeros(12)...), segment(sendHeader(1, 12, true), zeros(5)...)), mpa.MessageTooLong, fabric.StatusLocalLength, true},
		{"Send without a receive", join(segment(sendHeader(1, 0, true), 1), segment(sendHeader(2, 0, true), 1)), mpa.NoBuffer, ok, true},
		{"Send that changes its kind", join(segment(sendHeader(1, 0, false), 1), segment(mpa.Header{Op: mpa.OpSendSE, MSN: 1, MO: 1, Last: true}, 1)), mpa.UnexpectedOpcode, flushed, true},
		{"Send with Invalidate of a region", segment(mpa.Header{Op: mpa.OpSendInv, MSN: 1, Last: true, STag: key}, 1), mpa.CannotInvalidate, fabric.StatusRemoteInvalidReq, true},
		{"Send with Invalidate of nothing", segment(mpa.Header{Op: mpa.OpSendSEInv, MSN: 1, Last: true, STag: unknown}, 1), mpa.CannotInvalidate, fabric.StatusRemoteInvalidReq, true},

		{"Read of an unknown key", read(unknown, base, 8), mpa.RemoteInvalidSTag, flushed, true},
		{"Read across the end", read(key, base+size-7, 8), mpa.RemoteBounds, flushed, true},
		{"Read of 4 GiB", read(key, base, math.MaxUint32), mpa.RemoteBounds, flushed, true},
		{"Read that wraps", read(key, math.MaxUint64-3, 8), mpa.RemoteBounds, flushed, true},
		{"Read without the right", read(noRead.RKey(), noRead.Memory().Addr(), 8), mpa.RemoteAccess, flushed, true},
		{"Read with MSN 2", readRequest(2, mpa.ReadRequest{}), mpa.BadMSN, flushed, true},
		{"Read with MO 4", segment(mpa.Header{Op: mpa.OpReadRequest, MSN: 1, MO: 4, Last: true}, zeros(28)...), mpa.BadMO, flushed, true},
		{"Read in two", segment(mpa.Header{Op: mpa.OpReadRequest, MSN: 1}, zeros(28)...), mpa.MessageTooLong, flushed, true},
		{"short Read", segment(mpa.Header{Op: mpa.OpReadRequest, MSN: 1, Last: true}, zeros(27)...), mpa.BadFrame, flushed, true},
		{"long Read", segment(mpa.Header{Op: mpa.OpReadRequest, MSN: 1, Last: true}, zeros(60000)...), mpa.MessageTooLong, flushed, true},
		{"more Reads than IRD", over, mpa.NoBuffer, flushed, true},

		{"atomic on an unknown key", add(unknown, base, mpa.FetchAdd), mpa.RemoteInvalidSTag, flushed, true},
		{"atomic across the end", add(key, base+size, mpa.FetchAdd), mpa.RemoteBounds, flushed, true},
		{"atomic without the right", add(noAtomic.RKey(), noAtomic.Memory().Addr(), mpa.FetchAdd), mpa.RemoteAccess, flushed, true},
		{"atomic that is not aligned", add(key, base+4, mpa.CmpSwap), mpa.StreamCatastrophic, flushed, true},
		{"unknown atomic", add(key, base, 1), mpa.UnexpectedOpcode, flushed, true},
		{"atomic of a wrong length", segment(mpa.Header{Op: mpa.OpAtomicRequest, MSN: 1, Last: true}, zeros(53)...), mpa.MessageTooLong, flushed, true},

		{"Read Response without a READ", segment(mpa.Header{Op: mpa.OpReadResponse, Last: true, STag: key, TO: base}, 1, 2, 3, 4), mpa.TaggedInvalidSTag, flushed, true},
		{"Atomic Response without an atomic", segment(mpa.Header{Op: mpa.OpAtomicResponse, MSN: 1, Last: true}, zeros(12)...), mpa.OperationUnspecific, flushed, true},
		{"short Atomic Response", segment(mpa.Header{Op: mpa.OpAtomicResponse, MSN: 1, Last: true}, zeros(8)...), mpa.BadFrame, flushed, true},

		{"immediate without a receive", join(segment(imm, zeros(8)...), segment(mpa.Header{Op: mpa.OpImmediateSE, MSN: 2, Last: true}, zeros(8)...)), mpa.NoBuffer, ok, true},
		{"immediate of 9 bytes", segment(imm, zeros(9)...), mpa.MessageTooLong, flushed, true},
		{"immediate of 4 bytes", segment(imm, zeros(4)...), mpa.BadFrame, flushed, true},
		{"immediate in a Send", join(segment(sendHeader(1, 0, false), 1), segment(imm, zeros(8)...)), mpa.UnexpectedOpcode, flushed, true},
		{"Terminate of no use", segment(mpa.Header{Op: mpa.OpTerminate, MSN: 1, Last: true}, 1), mpa.BadFrame, flushed, true},
		{"Terminate with MSN 9", segment(mpa.Header{Op: mpa.OpTerminate, MSN: 9, Last: true}, zeros(4)...), mpa.BadMSN, flushed, true},
		{"an HTTP client", []byte("GET / HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("x", 30000)), mpa.UntaggedVersion, flushed, true},
		{"zeros", zeros(300), mpa.BadFrame, flushed, false},
	}
}

// Each attack ends that QP with the right Terminate, flushes it, and changes
// nothing; whether the stream comes in one piece or byte by byte, and with CRC
// as well.
func TestHostilePeers(t *testing.T) {
	for _, crc := range []bool{false, true} {
		for _, piece := range []int{0, 3} {
			probe := newWorld(t, defaultConfig)
			n := len(attacks(probe.b, probe.b.mr, probe.b.mr, probe.b.mr))
			for i := range n {
				cfg := defaultConfig
				cfg.CRC = crc
				w := newWorld(t, cfg)
				w.piece = piece
				_, noWrite := w.b.region(4096, fabric.AccessLocalWrite|fabric.AccessRemoteRead)
				_, noRead := w.b.region(4096, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
				a := attacks(w.b, noWrite, noRead, noRead)[i]
				if crc && (a.name == "an HTTP client" || a.name == "zeros") {
					a.cause = mpa.BadCRC
					a.header = false
				}
				t.Run(fmt.Sprintf("%s/crc=%v/piece=%d", a.name, crc, piece), func(t *testing.T) {
					w.TB = t
					w.attack(&a)
				})
			}
		}
	}
}

func (w *world) attack(at *attack) {
	b := w.b
	b.fill(0, memSize, 1)
	before := append([]byte(nil), b.mem.Bytes()...)
	b.recv(1, b.sge(100, 16))
	w.a.out = at.stream
	for b.qp.State() == fabric.QPReadyToSend && len(w.a.out) > 0 {
		b.receive()
	}
	for range 8 { // what was right before it is answered
		b.send()
	}
	if !errors.Is(b.qp.Err(), fabric.ErrQPError) || b.stats.Terminates != 1 || b.qp.State() != fabric.QPError {
		w.Fatalf("state %v, error %v, %d Terminates", b.qp.State(), b.qp.Err(), b.stats.Terminates)
	}
	got := b.poll()
	if len(got) != 1 || got[0].Status != at.recv {
		w.Errorf("the receive ended as %+v, want %v", got, at.recv)
	}
	if at.recv != fabric.StatusSuccess && !strings.Contains(at.name, "Send") {
		w.same("memory", b.mem.Bytes(), before)
	}
	w.same("memory around the receive", append(append([]byte(nil), b.bytes(0, 100)...), b.bytes(116, memSize-116)...),
		append(append([]byte(nil), before[:100]...), before[116:]...))
	term := lastTerminate(w, b.out)
	if term.Cause != at.cause || (term.Header != nil) != at.header {
		w.Errorf("Terminate %v with header % x, want %v", &term, term.Header, at.cause)
	}
}

// lastTerminate is the Terminate at the end of a stream.
func lastTerminate(w *world, stream []byte) (t mpa.Terminate) {
	w.Helper()
	for len(stream) > 0 {
		n := int(binary.BigEndian.Uint16(stream))
		var h mpa.Header
		if cause := h.Parse(stream[mpa.LengthLen:]); cause != 0 {
			w.Fatalf("sent % x", stream)
		}
		if h.Op == mpa.OpTerminate && (!t.Parse(stream[mpa.LengthLen+mpa.UntaggedLen:mpa.LengthLen+n]) || len(stream) != mpa.FPDULen(n)) {
			w.Fatalf("Terminate % x", stream)
		}
		stream = stream[mpa.FPDULen(n):]
	}
	if t.Cause == 0 {
		w.Fatal("no Terminate")
	}
	return t
}

// What siw and others say of a READ when they refuse it.
func TestTerminateEndsRead(t *testing.T) {
	request := segment(mpa.Header{Op: mpa.OpReadRequest, MSN: 1, Last: true})[mpa.LengthLen:][:mpa.UntaggedLen]
	write := segment(mpa.Header{Op: mpa.OpWrite, Last: true})[mpa.LengthLen:][:mpa.TaggedLen]
	std := func(c mpa.Cause, header []byte) []byte { return (&mpa.Terminate{Cause: c, Header: header}).Append(nil) }
	for name, c := range map[string]struct {
		payload []byte
		want    fabric.Status
	}{
		"unknown key":        {std(mpa.RemoteInvalidSTag, request), fabric.StatusRemoteAccess},
		"bounds, no header":  {std(mpa.RemoteBounds, nil), fabric.StatusRemoteAccess},
		"siw's IRD overrun":  {append([]byte{0x20, 0x07, 0x03, 0, 0, 28}, request...), fabric.StatusRemoteInvalidReq},
		"IRD overrun":        {std(mpa.NoBuffer, request), fabric.StatusRemoteInvalidReq},
		"operation":          {std(mpa.OperationUnspecific, request), fabric.StatusRemoteOp},
		"a WRITE before":     {std(mpa.TaggedInvalidSTag, write), fabric.StatusFlushed},
		"a fault over there": {std(mpa.RDMAPCatastrophic, nil), fabric.StatusFlushed},
		"no invalidate":      {std(mpa.CannotInvalidate, nil), fabric.StatusFlushed},
		"a CRC error":        {std(mpa.BadCRC, nil), fabric.StatusFlushed},
	} {
		w := newWorld(t, defaultConfig)
		b := w.b
		b.post(b.remote(fabric.OpWrite, 1, 0), b.sge(0, 8))
		b.post(b.remote(fabric.OpRead, 2, 0), b.sge(0, 8))
		b.post(b.remote(fabric.OpRead, 3, 0), b.sge(0, 8))
		b.send()
		b.receive()
		w.a.out = segment(mpa.Header{Op: mpa.OpTerminate, MSN: 1, Last: true}, c.payload...)
		b.receive()
		b.send()
		b.expect(name, sent(1, fabric.OpWrite), ended(2, fabric.OpRead, c.want), ended(3, fabric.OpRead, fabric.StatusFlushed))
		if err := b.qp.Err(); err == nil || !strings.Contains(err.Error(), "terminated") || b.stats.Terminates != 0 {
			t.Errorf("%s: %v, %d Terminates sent in return", name, err, b.stats.Terminates)
		}
	}
}

// Read Responses that are not what was asked for fail the READ.
func TestBadResponses(t *testing.T) {
	response := func(b *end, change func(h *mpa.Header), n int) []byte {
		stag, to := b.qp.sink(0)
		h := mpa.Header{Op: mpa.OpReadResponse, Last: true, STag: stag, TO: to}
		change(&h)
		return segment(h, make([]byte, n)...)
	}
	for name, c := range map[string]struct {
		change func(h *mpa.Header)
		n      int
	}{
		"other STag":    {func(h *mpa.Header) { h.STag++ }, 100},
		"other TO":      {func(h *mpa.Header) { h.TO++ }, 100},
		"too short":     {func(*mpa.Header) {}, 99},
		"too long":      {func(*mpa.Header) {}, 101},
		"does not end":  {func(h *mpa.Header) { h.Last = false }, 100},
		"much too long": {func(h *mpa.Header) { h.Last = false }, 60000},
		"empty":         {func(*mpa.Header) {}, 0},
	} {
		w := newWorld(t, defaultConfig)
		b := w.b
		b.fill(0, 4096, 1)
		before := append([]byte(nil), b.bytes(0, 4096)...)
		b.post(b.remote(fabric.OpRead, 1, 0), b.sge(64, 100))
		b.post(b.remote(fabric.OpRead, 2, 0), b.sge(64, 100))
		b.send()
		w.a.out = response(b, c.change, c.n)
		b.receive()
		b.send()
		b.expect(name, ended(1, fabric.OpRead, fabric.StatusBadResponse), ended(2, fabric.OpRead, fabric.StatusFlushed))
		w.same(name, b.bytes(0, 4096), before)
		if term := lastTerminate(w, b.out); term.Cause.Layer() != mpa.LayerDDP {
			t.Errorf("%s: %v", name, &term)
		}
	}
	w := newWorld(t, defaultConfig)
	b := w.b
	b.atomic(fabric.AtomicWR{ID: 1, Op: fabric.OpFetchAdd, SwapAdd: 1}, b.sge(0, 8))
	b.send()
	p := make([]byte, mpa.AtomicResponseLen)
	mpa.PutAtomicResponse(p, 77, 5)
	w.a.out = segment(mpa.Header{Op: mpa.OpAtomicResponse, MSN: 1, Last: true}, p...)
	b.receive()
	b.send()
	b.expect("another atomic's response", ended(1, fabric.OpFetchAdd, fabric.StatusBadResponse))
}

// A flipped bit anywhere in an FPDU with CRC is noticed before anything is
// placed.
func TestFlippedBits(t *testing.T) {
	for bit := 0; ; bit += 3 {
		cfg := defaultConfig
		cfg.CRC = true
		w := newWorld(t, cfg)
		a, b := w.a, w.b
		a.fill(0, 64, 5)
		b.fill(0, 4096, 6)
		before := append([]byte(nil), b.bytes(0, 4096)...)
		a.post(a.remote(fabric.OpWrite, 1, 100), a.sge(0, 64))
		a.send()
		if bit >= 8*len(a.out) {
			return
		}
		a.out[bit/8] ^= 1 << (bit % 8)
		// A length that has grown waits for more: here it is.
		a.out = append(a.out, make([]byte, 1<<16+16)...)
		w.piece = 1000
		for b.qp.State() == fabric.QPReadyToSend && len(a.out) > 0 {
			b.receive()
		}
		w.same("memory", b.bytes(0, 4096), before)
		if b.stats.BadCRC != 1 {
			t.Fatalf("bit %d: %d CRC errors, %v", bit, b.stats.BadCRC, b.qp.Err())
		}
	}
}
