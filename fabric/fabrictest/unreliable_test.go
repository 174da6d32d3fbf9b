package fabrictest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// The suite's parts for unreliable services bear that much is lost, and most of
// a long message is.
func TestUnreliableLoss(t *testing.T) {
	for name, run := range map[string]func(*suite){
		"UC/Send": testUnreliableSend, "UC/Write": testUnreliableWrite, "UC/Drops": testUnreliableDrops,
		"UD/Send": testDatagramSend, "UD/Drops": testDatagramDrops,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Timeout: 200 * time.Millisecond}
			cfg.setDefaults()
			s := newSuite(t, openWith(Options{Seed: 3}, Faults{Drop: 0.15}, nil), &cfg)
			run(s)
		})
	}
}

// A cut link says nothing; a device that is removed ends its QPs.
func TestUnreliableCut(t *testing.T) {
	cfg := Config{}
	cfg.setDefaults()
	n := NewNetwork(Options{})
	open := func(*testing.T) (a, b fabric.Provider, _, _ netip.Addr) {
		return n.NewProvider(DeviceOptions{Addrs: []netip.Addr{addr1}}), n.NewProvider(DeviceOptions{Addrs: []netip.Addr{addr2}}), addr1, addr2
	}
	s := newSuite(t, open, &cfg)
	ch := s.unreliable()
	works("before", ch.a, ch.b)
	n.Cut(addr1, addr2)
	ch.b.recv(0, 1, 0, 64)
	ch.a.sends(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 8))()
	s.pause()
	ch.b.none("over a cut link")
	if d := ch.b.drops(); d != (fabric.Drops{}) {
		t.Errorf("counted what never came: %+v", d)
	}
	n.Heal(addr1, addr2)
	ch.b.arrives(ch.a.sends(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 8)), fabric.Completion{ID: recvID, Op: fabric.OpRecv, ByteLen: 8})

	ch.b.recv(1, 1, 0, 64)
	s.b.p.(*Provider).Device(s.b.dev.Name()).Remove()
	if c := ch.b.take(1)[0]; c.Status != fabric.StatusFlushed || c.ID != recvID+1 {
		t.Errorf("after the device was removed: %+v", c)
	}
	ch.a.sends(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 8))()
	if st := ch.a.qp.State(); st != fabric.QPReadyToSend {
		t.Errorf("the other end is in state %v", st)
	}
}

// A packet for which nobody polls does not cost memory without bound.
func TestUnreliableBacklog(t *testing.T) {
	cfg := Config{}
	cfg.setDefaults()
	s := newSuite(t, openWith(Options{}, Faults{}, nil), &cfg)
	a, b := s.datagrams(s.a, suiteQKey), s.datagrams(s.b, suiteQKey)
	h := s.a.handle(s.b.addr)
	for range maxFrames + 100 {
		wr := a.to(b, h)
		wr.Flags, wr.NumSGE = fabric.FlagSignaled, 1
		if n, err := a.qp.PostDatagrams([]fabric.DatagramWR{wr}, []fabric.SGE{a.sge(0, 8)}); n != 1 {
			t.Fatal(err)
		}
		s.a.poll()
	}
	s.until("what has arrived", func() bool { return b.drops().NoReceive > 0 })
	if n := b.drops().NoReceive; n != maxFrames {
		t.Errorf("%d packets were kept, want %d", n, maxFrames)
	}
}

// What is delayed arrives later, in the order it was sent, and nothing of it is
// repeated or waits for an answer.
func TestUnreliableDelay(t *testing.T) {
	const delay = 3 * time.Millisecond
	inBubble(t, Options{}, nil, func(r *rig) {
		r.n.SetFaults(addr1, addr2, Faults{Delay: delay, Duplicate: 1, DropAck: 1})
		ch := r.unreliable()
		a, b := r.datagrams(r.a, suiteQKey), r.datagrams(r.b, suiteQKey)
		wr := a.to(b, r.a.handle(r.b.addr))
		ch.b.recv(0, 9, 0, 64)
		b.recv(0, 9, 4096, 64)
		start := time.Now()
		for i := range 8 {
			ch.a.sends(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, i))()
			a.sendsTo(wr, a.sge(0, i))()
			if i == 3 {
				r.n.Heal(addr1, addr2) // and those behind do not pass by
			}
		}
		if d := time.Since(start); d >= delay {
			t.Errorf("a send completes after %v", d)
		}
		for i := range 8 {
			for _, c := range []struct {
				sd   *side
				want uint32
			}{{ch.b, uint32(i)}, {b.side, uint32(fabric.GRHLen + i)}} {
				if got := c.sd.take(1)[0]; got.ByteLen != c.want || got.Status != fabric.StatusSuccess {
					t.Errorf("message %d: %+v", i, got)
				}
			}
			if d := time.Since(start); d < delay {
				t.Fatalf("message %d after %v", i, d)
			}
		}
		r.pause()
		ch.b.none("behind the last")
		b.none("behind the last")
	})
}

// A QP that is closed with packets on their way to it is not run for them.
func TestUnreliableDelayClose(t *testing.T) {
	inBubble(t, Options{}, nil, func(r *rig) {
		r.n.SetFaults(addr1, addr2, Faults{Delay: time.Minute})
		r.scoped(func() {
			ch := r.unreliable()
			ch.a.sends(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 8))()
			r.pause()
		})
		time.Sleep(time.Hour)
		r.pause()
	})
}
