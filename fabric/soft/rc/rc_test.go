package rc

import (
	"bytes"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// statuses lists how the WRs of an end completed: id and status.
func statuses(e *end) (s []uint64) {
	for _, c := range e.wcs {
		s = append(s, c.ID, uint64(c.Status))
	}
	return s
}

func TestTransfers(t *testing.T) {
	for _, mtu := range []int{256, 1024, 4096} {
		for _, n := range []int{0, 1, 3, 255, 256, 257, 4096, 4097, 300_000} {
			cfg := defaultConfig()
			cfg.MTU = mtu
			w := newWorld(t, cfg)
			a, b := w.ends[0], w.ends[1]
			fill(a.mem.Bytes()[:n], 1)
			fill(b.mem.Bytes()[1<<20:1<<20+n], 2)
			w.recv(1, 9, b.sge(0, n))
			w.post(0, fabric.SendWR{ID: 1, Op: fabric.OpSend, Flags: fabric.FlagSignaled}, a.sge(0, n))
			w.post(0, fabric.SendWR{ID: 2, Op: fabric.OpWrite, RemoteAddr: b.mem.Addr() + 500_000, RKey: b.mr.RKey(), Flags: fabric.FlagSignaled}, a.sge(0, n))
			w.post(0, fabric.SendWR{ID: 3, Op: fabric.OpRead, RemoteAddr: b.mem.Addr() + 1<<20, RKey: b.mr.RKey(), Flags: fabric.FlagSignaled}, a.sge(500_000, n/2), a.sge(500_000+n/2, n-n/2))
			w.run(time.Second)
			if len(a.wcs) != 3 || len(b.wcs) != 1 || a.wcs[0].Status|a.wcs[1].Status|a.wcs[2].Status|b.wcs[0].Status != 0 {
				t.Fatalf("mtu %d, %d bytes: %v and %v", mtu, n, statuses(a), statuses(b))
			}
			if b.wcs[0].ByteLen != uint32(n) || a.wcs[2].ByteLen != uint32(n) {
				t.Errorf("mtu %d: %d received, %d read, of %d", mtu, b.wcs[0].ByteLen, a.wcs[2].ByteLen, n)
			}
			if !bytes.Equal(b.mem.Bytes()[:n], a.mem.Bytes()[:n]) || !bytes.Equal(b.mem.Bytes()[500_000:500_000+n], a.mem.Bytes()[:n]) ||
				!bytes.Equal(a.mem.Bytes()[500_000:500_000+n], b.mem.Bytes()[1<<20:1<<20+n]) {
				t.Errorf("mtu %d, %d bytes: data differ", mtu, n)
			}
		}
	}
}

// Packets overtook each other and come in one batch: what was dropped is asked
// for, and not what has come meanwhile.
func TestReorderedInBatch(t *testing.T) {
	w := newWorld(t, defaultConfig())
	a, b := w.ends[0], w.ends[1]
	w.post(0, fabric.SendWR{ID: 1, Op: fabric.OpWrite, Flags: fabric.FlagSignaled, RemoteAddr: b.mem.Addr(), RKey: b.mr.RKey()}, a.sge(0, 768))
	w.pump()
	for i, place := range []int{0, 2, 1} { // the last before the middle one
		w.sky[i].seq = place
	}
	w.run(time.Second)
	// Three packets, a NAK for the last, the last again, an ACK.
	if got := w.count; got != [2]int{4, 2} || b.qp.stats.NAKSent != 1 || a.qp.stats.Timeouts != 0 || len(a.wcs) != 1 {
		t.Errorf("packets sent by each end: %v, %+v, %d completions", got, *b.qp.stats, len(a.wcs))
	}
}

// A region that is closed while the first answer to a READ leaves it ends the
// QP: the peer cannot have all of its data.
func TestReadBrokenOff(t *testing.T) {
	w := newWorld(t, defaultConfig())
	a, b := w.ends[0], w.ends[1]
	w.post(0, fabric.SendWR{ID: 1, Op: fabric.OpRead, RemoteAddr: b.mem.Addr(), RKey: b.mr.RKey(), Flags: fabric.FlagSignaled}, a.sge(0, 32<<10))
	move := func(from int) { // one packet
		t.Helper()
		if e := w.ends[from]; !e.qp.Next(&e.pkt, w.now, true) {
			t.Fatal("no packet")
		}
		w.launch(from, w.ends[from])
		w.now += w.delay
		w.deliver()
	}
	move(0) // the request
	move(1) // the first packet of the answer
	w.must(b.mr.Close())
	move(1) // the NAK
	w.run(time.Second)
	if len(a.wcs) != 1 || a.wcs[0].Status != fabric.StatusRemoteAccess {
		t.Errorf("the READ ended with %v", statuses(a))
	}
}
