package rc

import (
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

func TestWindow(t *testing.T) {
	w := newWindow(16, 2, 256)
	w.arrived(16)
	w.arrived(32)
	if w.size != 64 {
		t.Errorf("after 48 packets: %d", w.size)
	}
	w.lost(50)
	if w.size != 25 || w.thresh != 25 {
		t.Errorf("after a loss: %+v", w)
	}
	w.arrived(24)
	if w.size != 25 {
		t.Errorf("it grew too soon: %+v", w)
	}
	w.arrived(1)
	if w.size != 26 {
		t.Errorf("after a window of packets: %+v", w)
	}
	w.collapse(26)
	if w.size != 1 || w.thresh != 13 {
		t.Errorf("after a timeout: %+v", w)
	}
	w.arrived(5)
	if w.size != 6 {
		t.Errorf("it doubles again: %+v", w)
	}
	for range 100_000 {
		w.arrived(1)
	}
	if w.size != 256 {
		t.Errorf("at most: %+v", w)
	}
	for range 10 {
		w.lost(3)
	}
	if w.size != 2 {
		t.Errorf("at least: %+v", w)
	}
	if w := newWindow(16, 8, 4); w.size != 4 || w.least != 4 {
		t.Errorf("a small one: %+v", w)
	}
}

// READs of many packets are asked for a window at a time, small ones as many as
// ORD allows.
func TestReadWindow(t *testing.T) {
	cfg := defaultConfig()
	cfg.MTU, cfg.ORD, cfg.IRD, cfg.mem = 256, 16, 16, 8<<20
	w := newWorld(t, cfg)
	a, b := w.ends[0], w.ends[1]
	for i := range 16 {
		w.post(0, fabric.SendWR{ID: uint64(i), Op: fabric.OpRead, RemoteAddr: b.mem.Addr(), RKey: b.mr.RKey(), Flags: fabric.FlagSignaled}, a.sge(0, 64))
	}
	asked := 0
	w.router = func(from int, op wire.Opcode, _ int) []time.Duration {
		if op == wire.OpReadRequest {
			asked++
		}
		return []time.Duration{w.delay}
	}
	w.pump()
	if asked != 16 {
		t.Errorf("%d READs of one packet were asked for at once", asked)
	}
	w.run(time.Second)
	most := 0
	w.router = func(from int, op wire.Opcode, _ int) []time.Duration {
		most = max(most, a.qp.req.asked)
		return []time.Duration{w.delay}
	}
	for range 16 {
		w.post(0, fabric.SendWR{Op: fabric.OpRead, RemoteAddr: b.mem.Addr(), RKey: b.mr.RKey(), Flags: fabric.FlagSignaled}, a.sge(0, 200_000))
	}
	w.run(time.Second)
	if len(a.wcs) != 32 || a.wcs[31].Status != 0 {
		t.Fatalf("%v", statuses(a))
	}
	if limit := a.qp.cfg.Window; most > limit || most < limit/2 {
		t.Errorf("%d packets were asked for at once, the window is %d", most, limit)
	}
}

// write256 posts a WRITE of 256 packets from the first end to the other.
func (w *world) write256() {
	a, b := w.ends[0], w.ends[1]
	w.post(0, fabric.SendWR{Op: fabric.OpWrite, RemoteAddr: b.mem.Addr(), RKey: b.mr.RKey(), Flags: fabric.FlagSignaled}, a.sge(0, 64<<10))
}

// A mark of the network halves the windows once a round trip, and costs no
// packet.
func TestCongested(t *testing.T) {
	cfg := defaultConfig()
	cfg.Window = 256 // one WRITE fills it
	w := newWorld(t, cfg)
	a := w.ends[0]
	w.write256()
	w.run(time.Second)
	before := a.qp.req.pace.data.size
	w.write256()
	w.pump() // under way
	a.qp.Congested()
	a.qp.Congested()
	if got := a.qp.req.pace.data.size; got != before/2 {
		t.Errorf("the window is %d of %d", got, before)
	}
	w.run(time.Second)
	a.qp.Congested()
	if a.qp.stats.Resent != 0 || len(a.wcs) != 2 {
		t.Errorf("%+v, %d completions", a.qp.stats, len(a.wcs))
	}
	if got := a.qp.req.pace.data.size; got >= before {
		t.Errorf("the window is %d", got)
	}
}

// A mark that closes the window over packets none of which asked for an
// acknowledgement must not leave the requester waiting for one: nothing was lost.
func TestCongestedUnasked(t *testing.T) {
	for n := 1; n < ackEvery; n++ { // packets of the message that are under way when the mark comes
		w := newWorld(t, defaultConfig())
		a := w.ends[0]
		w.write256() // opens the window
		w.run(time.Second)
		w.write256()
		for range n {
			if !a.qp.Next(&a.pkt, w.now, true) {
				t.Fatalf("the window is %d", a.qp.req.pace.data.size)
			}
			w.launch(0, a)
		}
		a.qp.Congested()
		w.run(time.Second)
		if s := a.qp.stats; s.Resent != 0 || s.Timeouts != 0 || len(a.wcs) != 2 {
			t.Errorf("mark after %d packets: %+v, %d completions", n, s, len(a.wcs))
		}
	}
}
