package initiator

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// multipath connects a Multipath over the fake's two portals, which is closed
// with the test.
func (f *fake) multipath(cfg MultipathConfig, change ...func(*Config)) *Multipath {
	f.t.Helper()
	cfg.Log = f.log.logger()
	m, err := ConnectMultipath(f.ctx, f.paths(change...), cfg)
	f.must(err)
	f.t.Cleanup(func() { f.must(m.Close()) })
	return m
}

func (f *fake) paths(change ...func(*Config)) (list []PathConfig) {
	for i := range targetIPs {
		cfg := f.config(change...)
		cfg.Addr = targetAddr(i)
		list = append(list, PathConfig{Provider: f.hosts, Config: cfg})
	}
	return list
}

// perPortal counts I/O commands by the portal they came through.
type perPortal [2]atomic.Int32

func (p *perPortal) count(fc *fakeConn, cmd nvme.Command) {
	if fc.req.QID != 0 && !isConnect(cmd) {
		p[fc.portal].Add(1)
	}
}

func (p *perPortal) take() [2]int32 { return [2]int32{p[0].Swap(0), p[1].Swap(0)} }

func TestPolicies(t *testing.T) {
	for _, tt := range []struct {
		policy Policy
		want   [2]int32 // of 20 reads, one after another
	}{{RoundRobin, [2]int32{10, 10}}, {Failover, [2]int32{20, 0}}, {QueueDepth, [2]int32{20, 0}}} {
		t.Run(tt.policy.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFake(t)
				var seen perPortal
				f.obey(func(fc *fakeConn, cmd nvme.Command) *answer { seen.count(fc, cmd); return nil })
				m := f.multipath(MultipathConfig{Policy: tt.policy})
				n, err := m.Namespace(f.ctx, 1)
				f.must(err)
				for range 20 {
					_, err := n.ReadAt(make([]byte, 512), 0)
					f.must(err)
				}
				if got := seen.take(); got != tt.want {
					t.Errorf("%v, want %v", got, tt.want)
				}
				if p, err := ParsePolicy(m.Policy().String()); err != nil || p != tt.policy {
					t.Errorf("%v, %v", p, err)
				}
			})
		})
	}
	if _, err := ParsePolicy("numa"); err == nil {
		t.Error("an unknown policy was taken")
	}
}

// A path that answers late gets less under queue-depth.
func TestQueueDepthPolicy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		var seen perPortal
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			seen.count(fc, cmd)
			if fc.req.QID == 0 || isConnect(cmd) {
				return nil
			}
			a := *fc.usual(cmd, fc.capsule)
			a.late = time.Duration(1+9*fc.portal) * time.Millisecond
			return &a
		})
		m := f.multipath(MultipathConfig{Policy: QueueDepth}, still)
		n, err := m.Namespace(f.ctx, 1)
		f.must(err)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					if _, err := n.ReadAt(make([]byte, 512), 0); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if got := seen.take(); got[0] < 3*got[1] || got[1] == 0 {
			t.Errorf("%v", got)
		}
	})
}

// When a path goes, what was on it goes on: at once on the other path, but for
// writes, which wait until the old controller has given up.
func TestPathLost(t *testing.T) {
	for _, op := range []nvme.Opcode{nvme.CmdRead, nvme.CmdWrite} {
		t.Run(nvme.OpcodeName(op, false), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFake(t)
				m := f.multipath(MultipathConfig{Policy: Failover}, still, func(c *Config) { c.ReplayDelay = 3 * time.Second })
				n, err := m.Namespace(f.ctx, 1)
				f.must(err)
				var seen perPortal
				f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
					if seen.count(fc, cmd); fc.portal == 0 {
						return &answer{cut: true}
					}
					return nil
				})
				f.judge(func(nvme.CMRequest) []byte { return []byte{} }) // no way back
				start, p := time.Now(), make([]byte, 4096)
				want := time.Duration(0)
				if op == nvme.CmdRead {
					_, err = n.ReadAt(p, 0)
				} else {
					want = 3 * time.Second
					_, err = n.WriteAt(p, 0)
				}
				if d := time.Since(start); err != nil || d < want || d > want+10*time.Millisecond {
					t.Errorf("%v after %v, want %v", err, d, want)
				}
				if got := seen.take(); got != [2]int32{1, 1} {
					t.Errorf("commands %v", got)
				}
				// Another goes to the path that is left, with no delay.
				start = time.Now()
				if _, err = n.WriteAt(p, 0); err != nil || time.Since(start) > 10*time.Millisecond {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		})
	}
}

// With all paths lost I/O is held for FastIOFail, and goes on when one comes
// back before.
func TestAllPathsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		m := f.multipath(MultipathConfig{FastIOFail: 5 * time.Second}, still)
		n, err := m.Namespace(f.ctx, 1)
		f.must(err)
		f.judge(func(nvme.CMRequest) []byte { return []byte{} })
		f.cutAll()
		time.Sleep(time.Second)
		start := time.Now()
		if _, err := n.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrPathLost) || time.Since(start) > 4*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		f.judge(nil)
		time.Sleep(time.Second)
		f.judge(func(nvme.CMRequest) []byte { return []byte{} })
		f.cutAll()
		time.AfterFunc(2*time.Second, func() { f.judge(nil) })
		start = time.Now()
		if _, err := n.WriteAt(make([]byte, 512), 0); err != nil || time.Since(start) < 2*time.Second || time.Since(start) > 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// ANA decides before the policy does.
func TestANA(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		var mu sync.Mutex
		states := [2]nvme.ANAState{nvme.ANAOptimized, nvme.ANANonOptimized}
		var change uint64
		set := func(a, b nvme.ANAState) {
			mu.Lock()
			states = [2]nvme.ANAState{a, b}
			change++
			mu.Unlock()
			for i := range states {
				f.emit(i, nvme.ANAChanged)
			}
			time.Sleep(10 * time.Millisecond)
		}
		f.set(func(s *script) {
			s.id = func(i *nvme.IdentifyController) {
				i.CMIC, i.MNAN, i.NANAGRPID, i.ANAGRPMAX, i.OAES = nvme.CMICANA|nvme.CMICMultiController, 16, 4, 4, nvme.EventANA
			}
		})
		var seen perPortal
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			seen.count(fc, cmd)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case cmd.Opcode() == nvme.AdminGetLogPage && fc.req.QID == 0 && cmd.GetLogPage().Request().LID == nvme.LogANA:
				return &answer{data: nvme.AppendANALog(nil, change, []nvme.ANAGroup{{ID: 1, State: states[fc.portal], NSIDs: []uint32{1}}})}
			case fc.req.QID != 0 && !isConnect(cmd) && states[fc.portal] == nvme.ANAStateInaccessible:
				return &answer{status: nvme.ANAInaccessible}
			case fc.req.QID != 0 && !isConnect(cmd) && states[fc.portal] == nvme.ANAStateChange:
				return &answer{status: nvme.ANATransition}
			}
			return nil
		})
		m := f.multipath(MultipathConfig{Policy: RoundRobin, FastIOFail: 5 * time.Second}, still)
		n, err := m.Namespace(f.ctx, 1)
		f.must(err)
		read := func(want [2]int32) {
			t.Helper()
			seen.take()
			for range 10 {
				if _, err := n.ReadAt(make([]byte, 512), 0); err != nil {
					t.Fatal(err)
				}
			}
			if got := seen.take(); got != want {
				t.Errorf("%v, want %v", got, want)
			}
		}
		read([2]int32{10, 0})
		set(nvme.ANANonOptimized, nvme.ANANonOptimized)
		read([2]int32{5, 5})
		set(nvme.ANAStateInaccessible, nvme.ANAOptimized)
		read([2]int32{0, 10})
		if s := m.Controllers()[0].ANAState(1); s != nvme.ANAStateInaccessible {
			t.Errorf("%v", s)
		}

		// Without an event the status tells, once.
		mu.Lock()
		states = [2]nvme.ANAState{nvme.ANAOptimized, nvme.ANAStateInaccessible}
		mu.Unlock()
		if _, err := n.ReadAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		read([2]int32{10, 0})

		// While everything changes, I/O waits.
		set(nvme.ANAStateChange, nvme.ANAStateChange)
		time.AfterFunc(2*time.Second, func() { set(nvme.ANAOptimized, nvme.ANAStateChange) })
		start := time.Now()
		if _, err := n.ReadAt(make([]byte, 512), 0); err != nil || time.Since(start) < 2*time.Second || time.Since(start) > 4*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		set(nvme.ANAStateInaccessible, nvme.ANAStatePersistentLoss)
		start = time.Now()
		if _, err := n.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrPathLost) || time.Since(start) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// ANA logs that make no sense do not stop the connection.
func TestANAHostile(t *testing.T) {
	for name, set := range map[string]func(*script){
		"2^32 groups": func(s *script) {
			s.id = func(i *nvme.IdentifyController) { i.CMIC, i.NANAGRPID = nvme.CMICANA, 1<<32-1 }
		},
		"2^32 namespaces": func(s *script) {
			s.id = func(i *nvme.IdentifyController) { i.CMIC, i.NN, i.MNAN = nvme.CMICANA, 1<<32-1, 1<<32-1 }
		},
		"more groups than bytes": func(s *script) {
			s.id = func(i *nvme.IdentifyController) { i.CMIC, i.NANAGRPID = nvme.CMICANA, 2 }
			s.logs = func(r nvme.LogRequest) []byte {
				b := nvme.AppendANALog(nil, 1, []nvme.ANAGroup{{ID: 1, State: 1}})
				b[8] = 0xFF
				return b
			}
		},
		"a status": func(s *script) {
			s.id = func(i *nvme.IdentifyController) { i.CMIC, i.NANAGRPID = nvme.CMICANA, 2 }
			s.command = func(fc *fakeConn, cmd nvme.Command) *answer {
				if fc.req.QID == 0 && cmd.Opcode() == nvme.AdminGetLogPage {
					return &answer{status: nvme.InvalidLogPage | nvme.StatusDNR}
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFake(t)
				f.set(set)
				n, err := f.connect().Namespace(f.ctx, 1)
				f.must(err)
				if _, err := n.ReadAt(make([]byte, 512), 0); err != nil {
					t.Error(err)
				}
				if !f.log.has("without asymmetric access") {
					t.Error("nobody was told")
				}
			})
		})
	}
}

// Paths that are down at first are taken when they come; a Multipath of none is
// an error.
func TestMultipathConnect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.net.Cut(hostIP, targetIPs[0])
		m := f.multipath(MultipathConfig{}, still)
		n, err := m.Namespace(f.ctx, 1)
		f.must(err)
		_, err = n.ReadAt(make([]byte, 512), 0)
		f.must(err)
		down := m.Controllers()[0]
		if s := down.Status(); s.State != StateReconnecting || s.LastError == nil || down.ID() != 0 || down.Identity().CNTLID != 0 {
			t.Errorf("%+v", s)
		}
		if _, err := down.Admin(f.ctx, keepAliveCommand(), nil); !errors.Is(err, errNotLive) {
			t.Errorf("admin on a path that is down: %v", err)
		}
		f.net.Heal(hostIP, targetIPs[0])
		time.Sleep(time.Second)
		if down.State() != StateLive {
			t.Errorf("%+v", down.Status())
		}
		if _, err := n.Queue(f.ctx); !errors.Is(err, ErrNotSupported) {
			t.Errorf("a queue over paths: %v", err)
		}
		own, err := down.Namespace(f.ctx, 1)
		f.must(err)
		q, err := own.Queue(f.ctx)
		f.must(err)
		f.must(q.Close())

		f.judge(func(nvme.CMRequest) []byte { return []byte{} })
		_, err = ConnectMultipath(f.ctx, f.paths(still), MultipathConfig{})
		var reject *fabric.RejectError
		if !errors.As(err, &reject) {
			t.Error(err)
		}
		if _, err = ConnectMultipath(f.ctx, nil, MultipathConfig{}); err == nil {
			t.Error("no path, no error")
		}
		two := f.paths(still)
		two[1].Config.Subsystem = "nqn.2026-11.io.nvmf:other"
		f.judge(nil)
		if _, err = ConnectMultipath(f.ctx, two, MultipathConfig{}); err == nil {
			t.Error("two subsystems, no error")
		}
	})
}

// Paths come and go while it runs.
func TestMultipathAddRemove(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		list := f.paths()
		m, err := ConnectMultipath(f.ctx, list[:1], MultipathConfig{})
		f.must(err)
		n, err := m.Namespace(f.ctx, 1)
		f.must(err)
		f.must(m.Add(f.ctx, list[1]))
		f.must(m.Remove(targetAddr(0)))
		if err := m.Remove(targetAddr(0)); err == nil {
			t.Error("removed twice")
		}
		p, q := make([]byte, 64<<10), make([]byte, 64<<10)
		fill(p, 4)
		_, err = n.WriteAt(p, 0)
		f.must(err)
		_, err = n.ReadAt(q, 0)
		f.must(err)
		if !bytes.Equal(p, q) || len(m.Controllers()) != 1 {
			t.Error("not what was written, or not one path")
		}
		f.must(m.Close())
		f.must(m.Close())
		if _, err = n.ReadAt(q, 0); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if err = m.Add(context.Background(), list[0]); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

// A path that shows another namespace is not used for it.
func TestMultipathOtherNamespace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		var seen perPortal
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			seen.count(fc, cmd)
			if fc.portal == 1 && cmd.Opcode() == nvme.AdminIdentify && cmd.Identify().CNS() == nvme.CNSDescriptors {
				data := make([]byte, nvme.IdentifySize)
				(&nvme.NSDescriptors{UUID: nvme.UUID{8, 8}}).MarshalTo(data)
				return &answer{data: data}
			}
			return nil
		})
		m := f.multipath(MultipathConfig{Policy: RoundRobin})
		n, err := m.Namespace(f.ctx, 1)
		f.must(err)
		for range 10 {
			_, err := n.ReadAt(make([]byte, 512), 0)
			f.must(err)
		}
		if got := seen.take(); got != [2]int32{10, 0} {
			t.Errorf("%v", got)
		}
	})
}
