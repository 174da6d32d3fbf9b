package rdmap

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
	"github.com/nvmf-go/nvmf/internal/captures"
)

// victim is an end with everything a stream can hit: receives, a READ and an
// atomic under way, a window, and memory that is nobody's but its own.
type victim struct {
	*world
	b       *end
	private *fabric.Memory
	before  []byte
	key     uint32 // of the window
	posted  int
}

func newVictim(t testing.TB, crc bool) *victim {
	cfg := defaultConfig
	cfg.CRC = crc
	w := newWorld(t, cfg)
	b := w.b
	v := &victim{world: w, b: b}
	var mr fabric.MemoryRegion
	v.private, mr = b.region(8192, fabric.AccessLocalWrite)
	pattern(v.private.Bytes(), 3)
	v.before = append([]byte(nil), v.private.Bytes()...)
	b.recv(100, b.sge(0, 64), b.sge(4096, 64))
	b.recv(101)
	b.recv(102, b.sge(8192, 5000))
	b.post(b.remote(fabric.OpRead, 1, 0), b.sge(100, 50), b.sge(300, 50))
	b.atomic(fabric.AtomicWR{ID: 2, Op: fabric.OpFetchAdd, SwapAdd: 1}, b.sge(16, 8))
	b.post(b.remote(fabric.OpRead, 3, 0), b.sge(20000, 9000))
	b.post(fabric.SendWR{ID: 4, Op: fabric.OpSend}, fabric.SGE{Addr: v.private.Addr(), Length: 16, LKey: mr.LKey()})
	win, err := b.dev.NewMemoryWindow()
	w.must(err)
	t.Cleanup(func() { win.Close() })
	v.key, err = b.qp.EnqueueBind(win, b.mr, 40000, 100, fabric.AccessRemoteWrite, 5, fabric.FlagSignaled)
	w.must(err)
	v.posted = 8
	b.send()
	return v
}

// swallow has the victim take a stream in pieces and answer, and checks what
// must hold whatever it was.
func (v *victim) swallow(stream []byte, piece int) {
	v.piece = piece
	v.a.out = stream
	for range 10000 {
		if len(v.a.out) == 0 || v.b.qp.State() == fabric.QPError {
			break
		}
		v.b.receive()
		v.b.send()
		v.b.out = v.b.out[:0]
	}
	for range 4 {
		v.b.send()
	}
	v.b.qp.States().Set(fabric.QPError)
	v.b.send()
	if !bytes.Equal(v.private.Bytes(), v.before) {
		v.Fatal("private memory has changed")
	}
	seen := make(map[uint64]bool)
	for _, c := range v.b.poll() {
		if seen[c.ID] {
			v.Fatalf("WR %d completed twice", c.ID)
		}
		seen[c.ID] = true
		if c.Status == fabric.StatusSuccess && c.Op == fabric.OpRecv && c.ID == 100 && c.ByteLen > 128 {
			v.Fatalf("%+v for a receive of 128 bytes", c)
		}
	}
	if len(seen) != v.posted {
		v.Fatalf("%d of %d WRs completed", len(seen), v.posted)
	}
}

// FuzzStream feeds any bytes, as they are.
func FuzzStream(f *testing.F) {
	for _, name := range []string{captures.IWARP, captures.IWARPTerminate} {
		for _, c := range captures.Conns(name)[:2] {
			for _, s := range [][]byte{c.FromClient, c.FromServer} {
				n := mpa.FrameLen + int(binary.BigEndian.Uint16(s[mpa.FrameLen-2:]))
				f.Add(s[n:min(len(s), n+600)], uint16(0), false)
			}
		}
	}
	f.Add(segment(sendHeader(1, 0, true), 1, 2, 3), uint16(2), true)
	f.Fuzz(func(t *testing.T, stream []byte, piece uint16, crc bool) {
		newVictim(t, crc).swallow(stream, int(piece))
	})
}

// segments makes a stream of segments with right lengths and CRCs from a
// script: 8 bytes choose the header of each.
func (v *victim) segments(script []byte) (stream []byte) {
	b := v.b
	readTag, readTO := b.qp.sink(0)
	tags := []uint32{b.mr.RKey(), v.key, readTag, 0, b.mr.RKey() ^ 1}
	places := []uint64{b.mem.Addr(), b.mem.Addr() + 40000, readTO, b.mem.Addr() + memSize - 8, 0, 1<<64 - 8, v.private.Addr(), b.mem.Addr() + 20000}
	msn := map[uint32]uint32{0: 1, 1: 1, 2: 1, 3: 1}
	for ; len(script) >= 8 && len(stream) < 1<<18; script = script[8:] {
		s := script[:8]
		h := mpa.Header{Op: mpa.Opcode(s[0]) % 12, Last: s[0]&0x80 == 0, STag: tags[int(s[1])%len(tags)], TO: places[int(s[2])%len(places)] + uint64(s[3]), MO: uint32(s[3]) * uint32(s[7]&1)}
		n := int(s[4])
		if s[7]&2 != 0 {
			n *= 60
		}
		if !h.Op.Tagged() {
			h.MSN = msn[h.Op.Queue()] + uint32(s[5]>>6)
			if h.Last {
				msn[h.Op.Queue()]++
			}
		}
		payload := make([]byte, n)
		switch h.Op {
		case mpa.OpReadRequest:
			payload = append(payload[:0], make([]byte, mpa.ReadRequestLen)...)
			r := mpa.ReadRequest{Size: uint32(n), SourceSTag: tags[int(s[5]&15)%len(tags)], SourceTO: places[int(s[6])%len(places)]}
			r.Put(payload)
		case mpa.OpAtomicRequest:
			payload = append(payload[:0], make([]byte, mpa.AtomicRequestLen)...)
			r := mpa.AtomicRequest{Op: mpa.AtomicOp(s[5] & 2), STag: tags[int(s[5]&15)%len(tags)], TO: places[int(s[6])%len(places)], Data: 1}
			r.Put(payload)
		case mpa.OpAtomicResponse, mpa.OpImmediate, mpa.OpImmediateSE:
			payload = payload[:min(n, 12-4*int(h.Op&1))]
		}
		fpdu := segment(h, payload...)
		if s[7]&4 != 0 {
			fpdu[int(s[6])%len(fpdu)] ^= 1 << (s[7] >> 5)
		}
		stream = append(stream, fpdu...)
	}
	return stream
}

// FuzzSegments feeds segments that are mostly right in their form.
func FuzzSegments(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0, 60, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0x83, 0, 0, 0, 20, 0, 0, 2}, uint16(0), false)
	f.Add([]byte{2, 2, 2, 0, 100, 0, 0, 0, 11, 0, 0, 0, 12, 0, 0, 0, 0x82, 2, 7, 0, 100, 0, 0, 2, 2, 2, 7, 0, 50, 0, 0, 2}, uint16(3), false)
	f.Add([]byte{1, 0, 0, 0, 99, 0, 0, 0, 10, 0, 0, 0, 8, 0, 0, 0, 4, 1, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0, 4, 0, 0, 0}, uint16(9), true)
	f.Add([]byte{0, 1, 1, 0, 90, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0, 1, 1, 20, 90, 0, 0, 0}, uint16(0), true)
	f.Fuzz(func(t *testing.T, script []byte, piece uint16, crc bool) {
		v := newVictim(t, crc)
		v.swallow(v.segments(script), int(piece))
	})
}

// FuzzPeers has two of our own do what a script says: post, send and receive
// in pieces, end regions, disconnect.
func FuzzPeers(f *testing.F) {
	f.Add([]byte{0, 10, 1, 20, 2, 30, 3, 40, 4, 50, 5, 60, 8, 8, 8, 8, 9, 9, 9, 9}, false)
	f.Add([]byte{2, 255, 10, 200, 8, 9, 8, 9, 11, 0, 8, 9, 8, 9}, true)
	f.Add([]byte{1, 100, 8, 9, 12, 0, 8, 9, 8, 9, 8, 9}, false)
	f.Fuzz(func(t *testing.T, script []byte, crc bool) {
		cfg := defaultConfig
		cfg.CRC, cfg.ULPDU = crc, 300
		w := newWorld(t, cfg)
		w.take, w.piece = 500, 500
		m, mr := w.b.region(65536, allRights)
		posted := map[string]int{}
		for i := 0; i+1 < len(script) && i < 400; i += 2 {
			op, n := script[i], int(script[i+1])*37
			e, p := w.a, w.b
			if op&0x80 != 0 {
				e, p = p, e
			}
			wr := fabric.SendWR{ID: 1, Op: fabric.OpWrite, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: m.Addr(), RKey: mr.RKey()}
			switch op & 15 {
			case 0:
				wr.Op = fabric.OpSend
			case 2:
				wr.Op = fabric.OpRead
			case 3:
				wr.Op = fabric.OpWriteImm
			case 4:
				wr.RKey++
			case 5, 6:
				if k, _ := p.qp.PostRecv([]fabric.RecvWR{{ID: 2, NumSGE: 1}}, []fabric.SGE{p.sge(half, n)}); k == 1 {
					posted[p.name]++
				}
				continue
			case 7, 8:
				e.send()
				continue
			case 9, 10:
				e.receive()
				continue
			case 11:
				mr.Close()
				continue
			case 12:
				e.qp.States().Set(fabric.QPError)
				continue
			}
			if k, _ := e.qp.EnqueueSend([]fabric.SendWR{wr}, []fabric.SGE{e.sge(0, n)}); k == 1 {
				posted[e.name]++
			}
		}
		w.run()
		for _, e := range []*end{w.a, w.b} {
			e.qp.States().Set(fabric.QPError)
			e.eof = false
			e.send()
			if n := len(e.poll()); n != posted[e.name] {
				t.Errorf("%s: %d completions of %d WRs", e.name, n, posted[e.name])
			}
		}
	})
}
