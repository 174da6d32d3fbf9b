package rdmap

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// A WR whose own memory is out of reach fails in its turn: what was posted
// before it is done, what is behind it is flushed, and the peer learns of an
// end.
func TestLocalProtection(t *testing.T) {
	for name, bad := range map[string]func(e *end) (fabric.SendWR, fabric.SGE){
		"SEND of an unknown key": func(e *end) (fabric.SendWR, fabric.SGE) {
			s := e.sge(0, 8)
			s.LKey ^= 0x4321
			return fabric.SendWR{Op: fabric.OpSend}, s
		},
		"WRITE from beyond the region": func(e *end) (fabric.SendWR, fabric.SGE) {
			s := e.sge(0, 8)
			s.Addr += memSize - 4
			return e.remote(fabric.OpWrite, 0, 0), s
		},
		"READ to where nothing may be written": func(e *end) (fabric.SendWR, fabric.SGE) {
			m, mr := e.region(4096, fabric.AccessRemoteRead)
			return e.remote(fabric.OpRead, 0, 0), fabric.SGE{Addr: m.Addr(), Length: 8, LKey: mr.LKey()}
		},
	} {
		w := newWorld(t, defaultConfig)
		a, b := w.a, w.b
		a.recv(20, a.sge(0, 8))
		for id := range uint64(3) {
			b.recv(id, b.sge(100, 8))
		}
		a.post(a.remote(fabric.OpRead, 1, 0), a.sge(8, 8))
		a.post(fabric.SendWR{ID: 2, Op: fabric.OpSend}, a.sge(0, 8))
		wr, sge := bad(a)
		wr.ID = 3
		a.post(wr, sge)
		a.post(fabric.SendWR{ID: 4, Op: fabric.OpSend}, a.sge(0, 8))
		w.run()
		a.expect(name, fabric.Completion{ID: 1, Op: fabric.OpRead, ByteLen: 8}, sent(2, fabric.OpSend),
			ended(3, wr.Op, fabric.StatusLocalProtection), ended(4, fabric.OpSend, fabric.StatusFlushed), ended(20, fabric.OpRecv, fabric.StatusFlushed))
		b.expect(name, received(0, 8), ended(1, fabric.OpRecv, fabric.StatusFlushed), ended(2, fabric.OpRecv, fabric.StatusFlushed))
		if err := b.qp.Err(); err == nil || !strings.Contains(err.Error(), "catastrophic") {
			t.Errorf("%s: the peer's error is %v", name, err)
		}
	}
}

// The peer refuses a READ: earlier ones are answered, it gets the status, what
// is behind is flushed at both ends.
func TestRefusedRead(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b *end, wr *fabric.SendWR)
		cause  mpa.Cause
	}{
		"unknown key":       {func(_ *end, wr *fabric.SendWR) { wr.RKey ^= 0x777 }, mpa.RemoteInvalidSTag},
		"beyond the region": {func(_ *end, wr *fabric.SendWR) { wr.RemoteAddr += memSize }, mpa.RemoteBounds},
		"no right": {func(b *end, wr *fabric.SendWR) {
			m, mr := b.region(4096, fabric.AccessLocalWrite)
			wr.RemoteAddr, wr.RKey = m.Addr(), mr.RKey()
		}, mpa.RemoteAccess},
	} {
		w := newWorld(t, defaultConfig)
		a, b := w.a, w.b
		w.take, w.piece = 700, 900
		b.recv(1, b.sge(0, 8))
		a.post(a.remote(fabric.OpRead, 1, 0), a.sge(0, 30000))
		a.post(a.remote(fabric.OpRead, 2, 0), a.sge(0, 3000))
		bad := a.remote(fabric.OpRead, 3, 0)
		c.change(b, &bad)
		a.post(bad, a.sge(0, 8))
		a.post(fabric.SendWR{ID: 4, Op: fabric.OpSend}, a.sge(0, 8))
		w.run()
		a.expect(name, fabric.Completion{ID: 1, Op: fabric.OpRead, ByteLen: 30000}, fabric.Completion{ID: 2, Op: fabric.OpRead, ByteLen: 3000},
			ended(3, fabric.OpRead, fabric.StatusRemoteAccess), ended(4, fabric.OpSend, fabric.StatusFlushed))
		b.expect(name, ended(1, fabric.OpRecv, fabric.StatusFlushed))
		if err := a.qp.Err(); err == nil || !strings.Contains(err.Error(), c.cause.String()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A region that ends while its READ is being answered ends the connection, and
// so does one that ends before its answer was begun.
func TestRegionEnds(t *testing.T) {
	for name, c := range map[string]struct {
		begun bool
		crc   bool
	}{"before": {false, false}, "meanwhile": {true, false}, "meanwhile, CRC": {true, true}} {
		cfg := defaultConfig
		cfg.CRC = c.crc
		w := newWorld(t, cfg)
		a, b := w.a, w.b
		m, mr := b.region(65536, allRights)
		b.fill(0, 4096, 1)
		read := fabric.SendWR{ID: 1, Op: fabric.OpRead, RemoteAddr: m.Addr(), RKey: mr.RKey()}
		a.post(read, a.sge(0, 40000))
		a.send()
		b.receive()
		if c.begun {
			w.take = 500
			b.send()
			b.send()
		}
		mr.Close()
		w.take = 0
		w.run()
		want := fabric.StatusRemoteAccess
		if c.begun && !c.crc {
			want = fabric.StatusFlushed // the stream is cut in a segment: no Terminate can follow
		}
		a.expect(name, ended(1, fabric.OpRead, want))
		if !errors.Is(b.qp.Err(), fabric.ErrQPError) {
			t.Errorf("%s: %v", name, b.qp.Err())
		}
	}
	// Between the moment that an answer was begun and that it is its turn: there
	// is nothing else to send, and nobody will ask again.
	w := newWorld(t, defaultConfig)
	a, b := w.a, w.b
	m, mr := b.region(65536, allRights)
	const fills = 182 * 1428 // a batch, to the last segment
	a.post(a.remote(fabric.OpRead, 1, 0), a.sge(0, fills))
	a.post(fabric.SendWR{ID: 2, Op: fabric.OpRead, RemoteAddr: m.Addr(), RKey: mr.RKey()}, a.sge(0, 5000))
	a.send()
	b.receive()
	if b.send(); b.qp.tx.messages.Len() != 1 || b.qp.tx.sent != 0 {
		t.Fatalf("%d messages are begun, %d bytes of the first are sent", b.qp.tx.messages.Len(), b.qp.tx.sent)
	}
	mr.Close()
	if b.send(); b.qp.State() != fabric.QPError {
		t.Error("an answer whose region has ended is not refused at once")
	}
	w.run()
	a.expect("an answer begun", fabric.Completion{ID: 1, Op: fabric.OpRead, ByteLen: fills}, ended(2, fabric.OpRead, fabric.StatusRemoteAccess))

	// The source of a WRITE of ours.
	for _, begun := range []bool{false, true} {
		w := newWorld(t, defaultConfig)
		a := w.a
		m, mr := a.region(65536, allRights)
		w.take = 100
		a.post(a.remote(fabric.OpWrite, 1, 0), a.sge(0, 3000))
		a.post(a.remote(fabric.OpWrite, 2, 0), fabric.SGE{Addr: m.Addr(), Length: 40000, LKey: mr.LKey()})
		a.post(fabric.SendWR{ID: 3, Op: fabric.OpSend}, a.sge(0, 8))
		a.send()
		if begun {
			for a.qp.tx.messages.Len() == 0 || a.qp.tx.messages.At(0).pos == 0 || a.qp.tx.sent == 0 {
				a.send()
			}
		}
		mr.Close()
		w.run()
		a.expect("WRITE", sent(1, fabric.OpWrite), ended(2, fabric.OpWrite, fabric.StatusLocalProtection), ended(3, fabric.OpSend, fabric.StatusFlushed))
	}
}

// The peer's receive is not what it should be.
func TestReceiveFaults(t *testing.T) {
	w := newWorld(t, defaultConfig)
	a, b := w.a, w.b
	m, mr := b.region(4096, fabric.AccessRemoteRead)
	b.recv(1, fabric.SGE{Addr: m.Addr(), Length: 64, LKey: mr.LKey()})
	b.recv(2, b.sge(0, 64))
	a.post(fabric.SendWR{ID: 1, Op: fabric.OpSend}, a.sge(0, 8))
	w.run()
	b.expect("no local write", ended(1, fabric.OpRecv, fabric.StatusLocalProtection), ended(2, fabric.OpRecv, fabric.StatusFlushed))
	if a.qp.State() != fabric.QPError {
		t.Error("the sender does not know")
	}
	w = newWorld(t, defaultConfig)
	a, b = w.a, w.b
	s := b.sge(0, 70000)
	b.recv(1, s)
	b.mr.Close()
	a.post(fabric.SendWR{ID: 1, Op: fabric.OpSend}, a.sge(0, 60000))
	w.run()
	b.expect("region gone", ended(1, fabric.OpRecv, fabric.StatusLocalProtection))
}

// Windows: bound in order with what is posted behind, ended by the peer's SEND
// or by a LOCAL_INV that waits for everything before it.
func TestWindows(t *testing.T) {
	w := newWorld(t, defaultConfig)
	a, b := w.a, w.b
	win, err := b.dev.NewMemoryWindow()
	w.must(err)
	defer win.Close()
	for range 3 {
		key, err := b.qp.EnqueueBind(win, b.mr, 4096, 100, fabric.AccessRemoteWrite|fabric.AccessRemoteRead, 1, fabric.FlagSignaled)
		w.must(err)
		w.run()
		b.expect("bind", sent(1, fabric.OpBind))
		wr := a.remote(fabric.OpWrite, 2, 4096)
		wr.RKey = key
		a.post(wr, a.sge(0, 100))
		b.recv(3, b.sge(0, 8))
		a.post(fabric.SendWR{ID: 4, Op: fabric.OpSendInv, RKey: key, Flags: fabric.FlagSolicited}, a.sge(0, 8))
		w.run()
		b.expect("SEND with invalidate", fabric.Completion{ID: 3, Op: fabric.OpRecv, ByteLen: 8, Imm: key, Flags: fabric.CompletionInvalidated})
		a.expect("SEND with invalidate", sent(2, fabric.OpWrite), sent(4, fabric.OpSendInv))
	}
	key, err := b.qp.EnqueueBind(win, b.mr, 0, 100, fabric.AccessRemoteRead, 1, 0)
	w.must(err)
	b.post(b.remote(fabric.OpRead, 2, 0), b.sge(200, 8))
	b.post(fabric.SendWR{ID: 3, Op: fabric.OpLocalInv, RKey: key})
	b.send()
	if _, f := b.qp.CheckRemote(key, b.mem.Addr(), 8, fabric.AccessRemoteRead); f != 0 {
		t.Error("the window ended before the READ in front of the LOCAL_INV")
	}
	w.run()
	b.expect("LOCAL_INV", fabric.Completion{ID: 2, Op: fabric.OpRead, ByteLen: 8}, sent(3, fabric.OpLocalInv))
	if _, f := b.qp.CheckRemote(key, b.mem.Addr(), 8, fabric.AccessRemoteRead); f == 0 {
		t.Error("the window outlives its LOCAL_INV")
	}
	b.post(fabric.SendWR{ID: 4, Op: fabric.OpLocalInv, RKey: b.mr.RKey()})
	w.run()
	b.expect("LOCAL_INV of a region", ended(4, fabric.OpLocalInv, fabric.StatusLocalQPOp))
}

// The connection ends between messages and in the middle of one.
func TestLost(t *testing.T) {
	for name, c := range map[string]struct {
		n   int // bytes of the SEND that arrive
		err error
	}{"in order": {0, net.ErrClosed}, "in a header": {9, net.ErrClosed}, "in the payload": {40, net.ErrClosed}, "reset": {40, io.ErrUnexpectedEOF}} {
		for _, crc := range []bool{false, true} {
			cfg := defaultConfig
			cfg.CRC = crc
			w := newWorld(t, cfg)
			a, b := w.a, w.b
			b.recv(1, b.sge(0, 100))
			b.post(b.remote(fabric.OpRead, 2, 0), b.sge(0, 8))
			b.send()
			a.post(fabric.SendWR{ID: 1, Op: fabric.OpSend}, a.sge(0, 80))
			a.send()
			b.feed(a.out[:c.n])
			if errors.Is(c.err, net.ErrClosed) {
				b.qp.EOF()
			} else {
				b.qp.Lost(c.err)
			}
			b.send()
			b.expect(name, ended(2, fabric.OpRead, fabric.StatusFlushed), ended(1, fabric.OpRecv, fabric.StatusFlushed))
			if err := b.qp.Err(); !errors.Is(err, c.err) || strings.Contains(err.Error(), "middle") != (c.n > 0) {
				t.Errorf("%s: %v", name, err)
			}
			if len(b.out) != 2+18+28+4 {
				t.Errorf("%s: %d bytes were sent", name, len(b.out))
			}
		}
	}
}

// An orderly end finishes the segment that the peer has a part of, and no more.
func TestLastFinishesSegment(t *testing.T) {
	for _, crc := range []bool{false, true} {
		cfg := defaultConfig
		cfg.CRC = crc
		w := newWorld(t, cfg)
		a, b := w.a, w.b
		w.take = 1
		a.post(a.remote(fabric.OpWrite, 1, 0), a.sge(0, 5000))
		for len(a.out) < 1500 {
			a.send()
		}
		a.qp.States().Set(fabric.QPError)
		a.send()
		if len(a.out) != 2*1448 {
			t.Errorf("crc %v: the stream ends after %d bytes, want two segments of 1448", crc, len(a.out))
		}
		a.expect("WRITE", ended(1, fabric.OpWrite, fabric.StatusFlushed))
		for b.receive() > 0 && b.qp.State() == fabric.QPReadyToSend {
		}
		if err := b.qp.Err(); !errors.Is(err, net.ErrClosed) || b.stats.Received != 2 {
			t.Errorf("crc %v: %v, %d segments received", crc, err, b.stats.Received)
		}
	}
}
