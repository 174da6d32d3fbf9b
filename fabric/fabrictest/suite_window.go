package fabrictest

import (
	"slices"

	"github.com/nvmf-go/nvmf/fabric"
)

// window is a memory window of b and the QP that binds it.
type window struct {
	ch   *channel
	w    fabric.MemoryWindow
	bind fabric.WindowBinder
}

// window makes one on a connection, or skips.
func (s *suite) window(ch *channel) *window {
	s.Helper()
	m, ok := s.b.dev.(fabric.MemoryWindower)
	s.need(ok && s.b.dev.Limits().MemoryWindows, "memory windows")
	w, err := m.NewMemoryWindow()
	skipIfUnsupported(s.T, err)
	s.must(err)
	s.Cleanup(func() { s.closed("window", w.Close()) })
	bind, ok := ch.b.qp.(fabric.WindowBinder)
	if !ok {
		s.Fatal("the device has memory windows, but its queue pairs do not implement fabric.WindowBinder")
	}
	return &window{ch: ch, w: w, bind: bind}
}

// to binds the window and returns the new key.
func (w *window) to(off, n int, a fabric.Access) uint32 {
	s := w.ch.a.s
	s.Helper()
	key := w.post(w.ch.b.mr, off, n, a)
	w.ch.b.ok(fabric.Completion{ID: sendID + 700, Op: fabric.OpBind})
	if key != w.w.RKey() {
		s.Errorf("PostBind returned key %#x, RKey is %#x", key, w.w.RKey())
	}
	return key
}

func (w *window) post(mr fabric.MemoryRegion, off, n int, a fabric.Access) uint32 {
	w.ch.a.s.Helper()
	key, err := w.bind.PostBind(w.w, mr, off, n, a, sendID+700, fabric.FlagSignaled)
	skipIfUnsupported(w.ch.a.s.T, err)
	w.ch.a.s.must(err)
	return key
}

// testWindow binds, uses, invalidates and binds again.
func testWindow(s *suite) {
	ch := s.connect()
	w := s.window(ch)
	seen := make(map[uint32]bool)
	for r := range 5 {
		off := 4096*r + 8
		key := w.to(off, 100, fabric.AccessRemoteRead|fabric.AccessRemoteWrite)
		if key == ch.b.mr.RKey() || seen[key] {
			s.Fatalf("key %#x is not new", key)
		}
		seen[key] = true
		fill(ch.a.bytes(0, 100), uint32(r))
		wr := fabric.SendWR{ID: sendID, Op: fabric.OpWrite, RemoteAddr: ch.b.mem.Addr() + uint64(off), RKey: key}
		ch.a.send(wr, ch.a.sge(0, 100))
		ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpWrite})
		wr.ID, wr.Op = sendID+1, fabric.OpRead
		ch.a.send(wr, ch.a.sge(1<<20, 100))
		ch.a.ok(fabric.Completion{ID: sendID + 1, Op: fabric.OpRead, ByteLen: 100})
		same(s, "read back", ch.a.bytes(1<<20, 100), ch.a.bytes(0, 100))
		ch.b.send(fabric.SendWR{ID: sendID + 2, Op: fabric.OpLocalInv, RKey: key})
		ch.b.ok(fabric.Completion{ID: sendID + 2, Op: fabric.OpLocalInv})
	}
	// The last key is dead.
	s.refused(ch, "a key that was invalidated", fabric.SendWR{Op: fabric.OpWrite, RemoteAddr: ch.b.mem.Addr() + 4096*4 + 8, RKey: w.w.RKey()})
}

// refused posts a WRITE or READ of 8 bytes that the peer must not run.
func (s *suite) refused(ch *channel, what string, wr fabric.SendWR) {
	s.Helper()
	before := slices.Clone(ch.b.bytes(0, 65536))
	wr.ID = sendID
	ch.a.send(wr, ch.a.sge(2<<20, 8))
	if wr.Op == fabric.OpRead || !s.unacknowledged() {
		checkIDs(s, what, ch.a.take(1), fabric.StatusRemoteAccess, sendID)
	}
	ch.dies(what)
	same(s, what+": memory of the peer", ch.b.bytes(0, 65536), before)
}

// testSendInvalidate: the key that a SEND with invalidate names is reported and
// is dead.
func testSendInvalidate(s *suite) {
	s.need(s.a.dev.Limits().SendInvalidate, "SEND with invalidate")
	ch := s.connect()
	w := s.window(ch)
	for r := range 3 {
		key := w.to(0, 4096, fabric.AccessRemoteWrite)
		ch.b.recv(r, 1, 1<<20, 64)
		fill(ch.a.bytes(0, 16), uint32(r))
		ch.a.post([]fabric.SGE{ch.a.sge(0, 16)},
			fabric.SendWR{Op: fabric.OpWrite, NumSGE: 1, RemoteAddr: ch.b.mem.Addr(), RKey: key},
			fabric.SendWR{ID: sendID, Op: fabric.OpSendInv, NumSGE: 1, RKey: key, Flags: fabric.FlagSignaled})
		ch.b.ok(fabric.Completion{ID: recvID + uint64(r), Op: fabric.OpRecv, ByteLen: 16, Imm: key, Flags: fabric.CompletionInvalidated})
		ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpSendInv})
		same(s, "written through the window", ch.b.bytes(0, 16), ch.a.bytes(0, 16))
		same(s, "sent", ch.b.bytes(1<<20, 16), ch.a.bytes(0, 16))
	}
	s.refused(ch, "a key that was invalidated remotely", fabric.SendWR{Op: fabric.OpWrite, RemoteAddr: ch.b.mem.Addr(), RKey: w.w.RKey()})
}

// testWindowErrors: what a bind, an invalidate or a window must not allow.
func testWindowErrors(s *suite) {
	const rw = fabric.AccessRemoteRead | fabric.AccessRemoteWrite
	probe := s.connect()
	s.window(probe) // skips without windows
	probe.close()

	noBind, readOnly := s.region(s.b, fabric.AccessLocalWrite), s.region(s.b, fabric.AccessWindowBind)
	for name, bind := range map[string]func(w *window){
		"bind to a region without the right": func(w *window) { w.post(noBind, 0, 64, rw) },
		"remote write without local write":   func(w *window) { w.post(readOnly, 0, 64, rw) },
		"bind of a bound window": func(w *window) {
			w.to(0, 64, rw)
			w.post(w.ch.b.mr, 0, 64, rw)
		},
	} {
		ch := s.connect()
		bind(s.window(ch))
		checkIDs(s, name, ch.b.take(1), fabric.StatusWindowBind, sendID+700)
		ch.dies(name)
	}
	for name, key := range map[string]uint32{"local invalidate of a region": s.b.mr.RKey(), "local invalidate of an unknown key": s.unknownKey()} {
		ch := s.connect()
		ch.b.send(fabric.SendWR{ID: sendID, Op: fabric.OpLocalInv, RKey: key})
		checkIDs(s, name, ch.b.take(1), fabric.StatusLocalQPOp, sendID)
		ch.dies(name)
	}
	ch := s.connect()
	w := s.window(ch)
	for _, r := range [][2]int{{-1, 8}, {0, 0}, {0, memorySize + 1}, {memorySize, 1}, {8, -1}} {
		if _, err := w.bind.PostBind(w.w, ch.b.mr, r[0], r[1], rw, sendID, 0); err == nil {
			s.Errorf("a bind to [%d, +%d) was posted", r[0], r[1])
		}
	}
	key := w.to(4096, 64, fabric.AccessRemoteRead)
	at := func(off int) fabric.SendWR {
		return fabric.SendWR{Op: fabric.OpRead, RemoteAddr: ch.b.mem.Addr() + uint64(off), RKey: key}
	}
	if s.cfg.WindowsUnbounded == "" {
		s.refused(ch, "a READ beside the window", at(4096+57))
	}

	ch = s.connect()
	w = s.window(ch)
	key = w.to(4096, 64, fabric.AccessRemoteRead)
	wr := at(4096)
	wr.Op = fabric.OpWrite
	s.refused(ch, "a WRITE through a window for READs", wr)

	ch, other := s.connect(), s.connect()
	key = s.window(ch).to(4096, 64, fabric.AccessRemoteRead)
	s.refused(other, "another connection's window", at(4096))
	ch.alive("after a window's misuse by another connection")
	s.wrongInvalidate()
}

// region makes a region of the end with rights of its own.
func (s *suite) region(e *end, a fabric.Access) fabric.MemoryRegion {
	_, mr := e.alloc(4096, a)
	return mr
}

// wrongInvalidate: a peer may end only the windows that are bound for it.
func (s *suite) wrongInvalidate() {
	if !s.a.dev.Limits().SendInvalidate {
		return
	}
	for name, key := range map[string]uint32{"the region's key": s.b.mr.RKey(), "an unknown key": s.unknownKey()} {
		ch := s.connect()
		ch.b.recv(0, 2, 0, 64)
		ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSendInv, RKey: key}, ch.a.sge(0, 8))
		c := ch.b.take(1)[0]
		if c.ID != recvID || c.Status == fabric.StatusSuccess {
			s.Errorf("SEND with invalidate of %s: the receive completed as %+v", name, c)
		}
		ch.dies("SEND with invalidate of " + name)
	}
	s.connect().alive("after wrong invalidates")
}
