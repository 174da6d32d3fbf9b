package initiator

import (
	"bytes"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/nvme"
)

// A card that is pulled is replaced by another that reaches the target, and the
// buffers of the program move with it.
func TestDeviceRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.hosts = f.net.NewProvider(
			fabrictest.DeviceOptions{Name: "host0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.20")}},
			fabrictest.DeviceOptions{Name: "spare", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.21")}})
		c := f.connect(still)
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		q, err := n.Queue(f.ctx)
		f.must(err)
		b, err := NewBuffer(8192)
		f.must(err)
		move := func(tag uint64) {
			t.Helper()
			fill(b.Bytes()[:4096], byte(tag))
			for _, io := range []IO{
				{Op: nvme.CmdWrite, Blocks: 8, Buf: b, Tag: tag},
				{Op: nvme.CmdRead, Blocks: 8, Buf: b, Offset: 4096, Tag: tag},
			} {
				_, err := q.Submit([]IO{io})
				f.must(err)
				f.must(q.Wait(f.ctx))
				done := make([]Result, 1)
				if k, err := q.Reap(done); k != 1 || err != nil || !done[0].OK() || done[0].Tag != tag {
					t.Fatalf("%d, %v, %+v", k, err, done[0])
				}
			}
			if !bytes.Equal(b.Bytes()[:4096], b.Bytes()[4096:]) {
				t.Error("not what was written")
			}
		}
		move(1)
		first := c.Status().Device
		f.hosts.Device(first).Remove()
		move(2)
		if s := c.Status(); s.Device == first || s.Reconnects != 1 {
			t.Errorf("%+v", s)
		}
		f.must(q.Close())
		f.must(b.Close())
		f.must(b.Close())
		f.must(c.Close())
		for _, info := range []string{"host0", "spare"} {
			if dev, err := f.hosts.Open(info); err == nil {
				if k := dev.Counts(); k != (fabric.ObjectCounts{}) {
					t.Errorf("left open on %s: %+v", info, k)
				}
				f.must(dev.Close())
			}
		}
		f.hosts = f.net.NewProvider(fabrictest.DeviceOptions{Name: "host0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.22")}})
	})
}

// One device that several controllers use has each buffer once.
func TestBufferRegistrations(t *testing.T) {
	r := newRig(t, rigOptions{portals: 2})
	m := r.multipath(RoundRobin)
	n, err := m.Namespace(r.ctx, memNS)
	r.must(err)
	b := r.buffer(64 << 10)
	for range 6 {
		r.must(n.ReadBuffer(r.ctx, b, 0, 64<<10, 0))
	}
	if k := len(b.regions()); k != 1 {
		t.Errorf("%d registrations", k)
	}
	r.must(m.Close())
	if k := len(b.regions()); k != 0 {
		t.Errorf("%d registrations after Close", k)
	}
}

// Devices that lack things are used as they are.
func TestPoorDevices(t *testing.T) {
	for name, limits := range map[string]func(*fabric.Limits){
		"no windows":    func(l *fabric.Limits) { l.MemoryWindows = false },
		"no inline":     func(l *fabric.Limits) { l.MaxInline = 0 },
		"small queues":  func(l *fabric.Limits) { l.MaxQPDepth = 64 },
		"small CQs":     func(l *fabric.Limits) { l.MaxCQDepth = 200 },
		"one READ":      func(l *fabric.Limits) { l.MaxIRD = 1 },
		"like siw":      func(l *fabric.Limits) { l.MemoryWindows, l.SendInvalidate, l.RNR, l.MaxInline = false, false, false, 0 },
		"no invalidate": func(l *fabric.Limits) { l.SendInvalidate = false },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{host: fabrictest.DeviceOptions{Limits: limits}})
			n := r.namespace(r.connect(), memNS)
			p, q := make([]byte, 300<<10), make([]byte, 300<<10)
			fill(p, 8)
			for range 3 {
				_, err := n.WriteAt(p, 0)
				r.must(err)
				_, err = n.ReadAt(q, 0)
				r.must(err)
				if !bytes.Equal(p, q) {
					t.Fatal("not what was written")
				}
			}
		})
	}
	for name, limits := range map[string]func(*fabric.Limits){
		"without":            func(l *fabric.Limits) { l.MemoryWindows = false },
		"that does not tell": func(l *fabric.Limits) { l.InvalidateUntold = true },
	} {
		t.Run("windows demanded of a device "+name, func(t *testing.T) {
			r := newRig(t, rigOptions{host: fabrictest.DeviceOptions{Limits: limits}})
			_, err := Connect(r.ctx, r.hosts, r.config(func(c *Config) { c.Invalidate = On }))
			var ce *ConnectError
			if !errors.As(err, &ce) || ce.Stage != StageDevice || !errors.Is(err, fabric.ErrNotSupported) {
				t.Error(err)
			}
			if c, err := Connect(r.ctx, r.hosts, r.config()); err != nil || c.Status().Windows {
				t.Errorf("left to itself: %v", err)
			} else {
				r.must(c.Close())
			}
		})
	}
}

// A controller that grants fewer queues when it comes back fails the Queue that
// has none, and serves the rest.
func TestFewerQueuesAfterReconnect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		c := f.connect(still, func(c *Config) { c.IOQueues = 2 })
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		q, err := n.Queue(f.ctx) // the second
		f.must(err)
		f.set(func(s *script) { s.queues = nvme.MakeNumQueues(1, 1) })
		f.cutAll()
		time.Sleep(time.Second)
		if _, err := n.ReadAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
		b, err := NewBuffer(512)
		f.must(err)
		_, err = q.Submit([]IO{{Op: nvme.CmdRead, Blocks: 1, Buf: b}})
		f.must(err)
		f.must(q.Wait(f.ctx))
		done := make([]Result, 1)
		if k, _ := q.Reap(done); k != 1 || !errors.Is(done[0].Err, ErrNoQueue) {
			t.Errorf("%d, %+v", k, done[0])
		}
		f.must(q.Close())
		f.must(b.Close())
	})
}

// A controller says how long to wait before a retry, and is told that it may.
func TestRetryDelay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		var told atomic.Bool
		f.set(func(s *script) {
			s.id = func(i *nvme.IdentifyController) { i.CRDT = [3]uint16{1, 20, 3} }
			s.command = func(fc *fakeConn, cmd nvme.Command) *answer {
				if cmd.Opcode() == nvme.AdminSetFeatures && fc.req.QID == 0 && cmd.Features().FID() == nvme.FeatHostBehavior {
					var h nvme.HostBehavior
					_ = h.Unmarshal(fc.fetch(cmd, fc.capsule))
					told.Store(h.ACRE == 1)
					return &answer{}
				}
				return nil
			}
		})
		n, err := f.connect(still).Namespace(f.ctx, 1)
		f.must(err)
		if !told.Load() {
			t.Error("the controller was not told that its delays are honoured")
		}
		f.obey(once(ioOp(nvme.CmdRead), answer{status: nvme.CommandInterrupted.WithCRD(2)}))
		start := time.Now()
		_, err = n.ReadAt(make([]byte, 512), 0)
		if d := time.Since(start); err != nil || d < 2*time.Second || d > 2*time.Second+10*time.Millisecond {
			t.Errorf("%v after %v", err, d)
		}
	})
}
