package initiator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// once is a script that answers the first command that is says with a, and all
// others as usual.
func once(is func(fc *fakeConn, cmd nvme.Command) bool, a answer) func(*fakeConn, nvme.Command) *answer {
	var done atomic.Bool
	return func(fc *fakeConn, cmd nvme.Command) *answer {
		if is(fc, cmd) && done.CompareAndSwap(false, true) {
			if a.status == answerUsual {
				u := *fc.usual(cmd, fc.capsule)
				a.status, a.data, a.result = u.status, u.data, u.result
			}
			return &a
		}
		return nil
	}
}

// answerUsual as a status stands for what the command would get.
const answerUsual nvme.Status = 0xFFFF

func ioOp(o nvme.Opcode) func(*fakeConn, nvme.Command) bool {
	return func(fc *fakeConn, cmd nvme.Command) bool { return fc.req.QID != 0 && cmd.Opcode() == o }
}

// A bad answer to an I/O ends the association; the I/O is sent anew on the next
// and its caller sees nothing of it. No bad answer is taken for success.
func TestIOHostile(t *testing.T) {
	for _, tt := range []struct {
		name   string
		a      answer
		text   string // of the cause
		window Choice
	}{
		{"an unknown CID", answer{status: nvme.Success, cid: 0x0FFF}, "not in flight", Auto},
		{"another generation", answer{status: nvme.Success, cid: 0xF000}, "not in flight", Auto},
		{"a free slot", answer{status: nvme.Success, cid: 0x1009}, "not in flight", Auto},
		{"a short CQE", answer{status: nvme.Success, short: 15}, "15 bytes", Auto},
		{"an empty message", answer{status: nvme.Success, short: -1}, "0 bytes", Auto},
		{"too long a message", answer{status: nvme.Success, short: 65}, "", Auto},
		{"no answer", answer{silent: true}, "not answered in time", Auto},
		{"a disconnect", answer{cut: true}, "disconnected", Auto},
		{"an unasked invalidation", answer{status: nvme.Success, inv: true}, "", Off},
		{"the wrong key", answer{status: nvme.Success, inv: true, key: 1}, "", On},
		{"data to the wrong place, no answer", answer{silent: true, data: make([]byte, 8192)}, "", On},
	} {
		for _, op := range []nvme.Opcode{nvme.CmdRead, nvme.CmdWrite} {
			t.Run(fmt.Sprintf("%s, %s", nvme.OpcodeName(op, false), tt.name), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := newFake(t)
					a := tt.a
					if op == nvme.CmdWrite {
						a.data = nil
					}
					f.obey(once(ioOp(op), a))
					c := f.connect(still, func(c *Config) { c.Invalidate, c.NoInCapsule = tt.window, true })
					n, err := c.Namespace(f.ctx, 1)
					f.must(err)
					p := make([]byte, 8192)
					fill(p, 5)
					if op == nvme.CmdRead {
						copy(f.disk, p)
						_, err = n.ReadAt(p, 0)
					} else {
						_, err = n.WriteAt(p, 0)
					}
					if err != nil {
						t.Error(err)
					}
					if want := make([]byte, 8192); true {
						fill(want, 5)
						if !bytes.Equal(p, want) || !bytes.Equal(f.disk[:8192], want) {
							t.Error("not the data")
						}
					}
					if k := f.connects.Load(); k != 2 {
						t.Errorf("connected %d times", k)
					}
					if !f.log.has(tt.text) {
						t.Errorf("the log does not say %q:\n%s", tt.text, f.log.b.String())
					}
				})
			})
		}
	}
}

// An answer that comes twice is noticed: the second is of no command.
func TestIODoubledAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.obey(once(ioOp(nvme.CmdRead), answer{status: answerUsual, times: 2}))
		c := f.connect(still)
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		for range 3 {
			_, err = n.ReadAt(make([]byte, 512), 0)
			f.must(err)
		}
		time.Sleep(time.Second)
		if k := f.connects.Load(); k != 2 || !f.log.has("not in flight") {
			t.Errorf("connected %d times", k)
		}
	})
}

// An answer that comes after the command was given up reaches nobody: the
// connection it was for is gone.
func TestIOLateAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.obey(once(ioOp(nvme.CmdRead), answer{status: nvme.InternalError | nvme.StatusDNR, late: 5 * time.Second}))
		c := f.connect(still) // IOTimeout is 2 s
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		start := time.Now()
		if _, err = n.ReadAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d < 2*time.Second || d > 2*time.Second+100*time.Millisecond {
			t.Errorf("took %v of virtual time", d)
		}
		time.Sleep(10 * time.Second)
		if k := f.connects.Load(); k != 2 {
			t.Errorf("connected %d times", k)
		}
	})
}

// Commands that change data and may be under way are held for ReplayDelay; the
// others go at once.
func TestReplayDelay(t *testing.T) {
	for _, tt := range []struct {
		name      string
		op        func(n *Namespace) error
		kato      time.Duration
		delay     time.Duration
		tbkas     bool
		least     time.Duration
		commanded int32 // I/O commands the target saw, Connects included
	}{
		{"write", write4k, 4 * time.Second, 0, false, 4 * time.Second, 4},
		{"write, traffic based keep alive", write4k, 4 * time.Second, 0, true, 8 * time.Second, 4},
		{"write, no keep alive", write4k, -1, 0, false, DefaultReplayDelay, 4},
		{"write, delay set", write4k, 4 * time.Second, time.Second, false, time.Second, 4},
		{"write, no delay", write4k, 4 * time.Second, -1, false, 0, 4},
		{"discard", func(n *Namespace) error { return n.Discard(context.Background(), 0, 4096) }, 4 * time.Second, 0, false, 4 * time.Second, 4},
		{"read", func(n *Namespace) error { _, err := n.ReadAt(make([]byte, 4096), 0); return err }, 4 * time.Second, 0, false, 0, 4},
		{"flush", func(n *Namespace) error { return n.Flush(context.Background()) }, 4 * time.Second, 0, false, 0, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFake(t)
				if tt.tbkas {
					f.id = func(i *nvme.IdentifyController) { i.CTRATT = nvme.CTRATTTBKAS }
				}
				f.obey(once(func(fc *fakeConn, cmd nvme.Command) bool { return fc.req.QID != 0 && !isConnect(cmd) }, answer{cut: true}))
				c := f.connect(still, func(c *Config) { c.KeepAlive, c.ReplayDelay = tt.kato, tt.delay })
				n, err := c.Namespace(f.ctx, 1)
				f.must(err)
				start := time.Now()
				if err := tt.op(n); err != nil {
					t.Fatal(err)
				}
				if d := time.Since(start); d < tt.least || d > tt.least+100*time.Millisecond {
					t.Errorf("took %v, want %v", d, tt.least)
				}
				if k := f.commands.Load(); k != tt.commanded {
					t.Errorf("%d commands", k)
				}
			})
		})
	}
}

func write4k(n *Namespace) error { _, err := n.WriteAt(make([]byte, 4096), 0); return err }

// A command whose caller has gone is not sent anew.
func TestAbandonedIsNotReplayed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.obey(once(ioOp(nvme.CmdWrite), answer{silent: true}))
		c := f.connect(still)
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		ctx, cancel := context.WithTimeout(f.ctx, time.Second)
		defer cancel()
		if _, err := n.WriteAtContext(ctx, make([]byte, 512), 0, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(10 * time.Second) // its time limit passes, the controller reconnects
		f.must(n.Flush(f.ctx))
		if k := f.commands.Load(); k != 4 { // Connect, Write, Connect, Flush
			t.Errorf("%d commands", k)
		}
		if k := f.connects.Load(); k != 2 {
			t.Errorf("connected %d times", k)
		}
	})
}

// A dead target is noticed within the keep alive timeout, with I/O in flight or
// without, and I/O fails FastIOFail later.
func TestKeepAliveNotices(t *testing.T) {
	for _, tbkas := range []bool{false, true} {
		for _, kato := range []time.Duration{time.Second, 5 * time.Second} {
			t.Run(fmt.Sprintf("%v, traffic based %v", kato, tbkas), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := newFake(t)
					if tbkas {
						f.id = func(i *nvme.IdentifyController) { i.CTRATT = nvme.CTRATTTBKAS }
					}
					c := f.connect(still, func(c *Config) {
						c.KeepAlive, c.IOTimeout, c.FastIOFail = kato, time.Hour, 3*time.Second
					})
					n, err := c.Namespace(f.ctx, 1)
					f.must(err)
					time.Sleep(10*kato + 10*time.Millisecond) // it is alive
					if c.State() != StateLive {
						t.Fatalf("%v: %v", c.State(), c.Status().LastError)
					}
					f.obey(func(*fakeConn, nvme.Command) *answer { return &answer{silent: true} })
					start := time.Now()
					_, err = n.ReadAt(make([]byte, 512), 0)
					d := time.Since(start)
					if !errors.Is(err, ErrPathLost) || !errors.Is(err, ErrKeepAlive) {
						t.Error(err)
					}
					if limit := kato + 3*time.Second; d > limit || d < 3*time.Second {
						t.Errorf("failed after %v: want at most %v", d, limit)
					}
				})
			})
		}
	}
}

// With traffic based keep alive a busy host sends none; without, it does.
func TestKeepAliveTraffic(t *testing.T) {
	for _, tbkas := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			f := newFake(t)
			var sent atomic.Int32
			f.obey(func(_ *fakeConn, cmd nvme.Command) *answer {
				if cmd.Opcode() == nvme.AdminKeepAlive {
					sent.Add(1)
				}
				return nil
			})
			if tbkas {
				f.id = func(i *nvme.IdentifyController) { i.CTRATT = nvme.CTRATTTBKAS }
			}
			c := f.connect(still, func(c *Config) { c.KeepAlive = time.Second })
			n, err := c.Namespace(f.ctx, 1)
			f.must(err)
			for range 100 {
				time.Sleep(100 * time.Millisecond)
				f.must(n.Flush(f.ctx))
			}
			busy := sent.Swap(0)
			time.Sleep(10 * time.Second)
			idle := sent.Load()
			if idle < 19 || idle > 21 {
				t.Errorf("traffic based %v: %d keep alives in 10 s of silence", tbkas, idle)
			}
			if tbkas && busy != 0 || !tbkas && busy < 19 {
				t.Errorf("traffic based %v: %d keep alives in 10 s of traffic", tbkas, busy)
			}
		})
	}
}

// Keep alive passes an admin queue that is full of commands nobody answers.
func TestKeepAliveIsNotStarved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		c := f.connect(still, func(c *Config) { c.KeepAlive, c.AdminTimeout = time.Second, time.Hour })
		f.obey(func(_ *fakeConn, cmd nvme.Command) *answer {
			if cmd.Opcode() == nvme.AdminGetFeatures {
				return &answer{silent: true}
			}
			return nil
		})
		ctx, cancel := context.WithCancel(f.ctx)
		done := make(chan error, 100)
		for range cap(done) {
			go func() {
				_, err := c.GetFeature(ctx, nvme.FeatKeepAlive, 0, 0, 0, nil)
				done <- err
			}()
		}
		time.Sleep(time.Minute / 6)
		if c.State() != StateLive || f.connects.Load() != 1 {
			t.Errorf("%v: %v", c.State(), c.Status().LastError)
		}
		cancel()
		for range cap(done) {
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
}

// The time limits as they are set, whatever the target does.
func TestGivingUp(t *testing.T) {
	for _, tt := range []struct {
		name      string
		change    func(*Config)
		fails     time.Duration // of an I/O that is in flight
		lost      time.Duration // until the controller is given up; 0: it is not
		permanent bool
	}{
		{"both", func(c *Config) { c.FastIOFail, c.CtrlLossTimeout = 2*time.Second, 5*time.Second }, 2 * time.Second, 5 * time.Second, false},
		{"fast fail off", func(c *Config) { c.FastIOFail, c.CtrlLossTimeout = -1, 5*time.Second }, 5 * time.Second, 5 * time.Second, false},
		{"fail at once", func(c *Config) { c.FastIOFail, c.CtrlLossTimeout = 1, -1 }, 0, 0, false},
		{"for ever", func(c *Config) { c.FastIOFail, c.CtrlLossTimeout = 7*time.Second, -1 }, 7 * time.Second, 0, false},
		{"no reconnect", func(c *Config) { c.NoReconnect = true }, 0, 1, false},
		{"ctrl-loss of no time", func(c *Config) { c.CtrlLossTimeout = 1 }, leastAttempt, leastAttempt, false},
		{"refused for good", func(c *Config) {}, 0, 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFake(t)
				c := f.connect(still, func(c *Config) { c.KeepAlive = -1 }, tt.change)
				n, err := c.Namespace(f.ctx, 1)
				f.must(err)
				f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
					if tt.permanent && isConnect(cmd) {
						return &answer{status: nvme.ConnectInvalidHost | nvme.StatusDNR}
					}
					if fc.req.QID != 0 && !isConnect(cmd) {
						return &answer{cut: true}
					}
					return &answer{silent: true}
				})
				start := time.Now()
				_, err = n.ReadAt(make([]byte, 512), 0)
				d := time.Since(start)
				const slack = 300 * time.Millisecond // one attempt
				if !errors.Is(err, ErrPathLost) || d < tt.fails || d > tt.fails+slack {
					t.Errorf("in flight: %v after %v, want %v", err, d, tt.fails)
				}
				if tt.lost == 0 {
					time.Sleep(time.Second)
					if c.State() != StateReconnecting {
						t.Errorf("state %v", c.State())
					}
					return
				}
				for c.State() != StateLost {
					time.Sleep(time.Millisecond)
				}
				if d := time.Since(start); d < tt.lost-1 || d > tt.lost+slack {
					t.Errorf("given up after %v, want %v", d, tt.lost)
				}
				start = time.Now()
				if _, err = n.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrControllerLost) || time.Since(start) > 0 {
					t.Errorf("after that: %v after %v", err, time.Since(start))
				}
				if _, err = c.GetFeature(f.ctx, nvme.FeatKeepAlive, 0, 0, 0, nil); !errors.Is(err, ErrControllerLost) {
					t.Errorf("admin after that: %v", err)
				}
			})
		})
	}
}

// What waits in a queue for room is not forgotten when the connection goes.
func TestFastIOFailOfWaitingIO(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.set(func(s *script) { s.cap = s.cap.WithMQES(2) })
		c := f.connect(still, func(c *Config) { c.FastIOFail, c.QueueDepth = 2*time.Second, 8 })
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if fc.req.QID != 0 && !isConnect(cmd) {
				return &answer{silent: true}
			}
			return nil
		})
		errs := make(chan error, 20)
		for range cap(errs) {
			go func() {
				_, err := n.ReadAt(make([]byte, 512), 0)
				errs <- err
			}()
		}
		time.Sleep(time.Second)
		f.judge(func(nvme.CMRequest) []byte { return []byte{} })
		f.cutAll()
		start := time.Now()
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, ErrPathLost) {
				t.Error(err)
			}
		}
		if d := time.Since(start); d > 2*time.Second+10*time.Millisecond {
			t.Errorf("took %v", d)
		}
	})
}

// New I/O while the controller is away waits as long as old I/O does.
func TestFastIOFailOfNewIO(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		c := f.connect(still, func(c *Config) { c.FastIOFail = 5 * time.Second })
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		f.judge(func(nvme.CMRequest) []byte { return []byte{} })
		f.cutAll()
		time.Sleep(3 * time.Second)
		start := time.Now()
		_, err = n.ReadAt(make([]byte, 512), 0)
		if d := time.Since(start); !errors.Is(err, ErrPathLost) || d > 2*time.Second || d < 1900*time.Millisecond {
			t.Errorf("%v after %v", err, d)
		}
		start = time.Now()
		if _, err = n.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrPathLost) || time.Since(start) > 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		s := c.Status()
		if s.State != StateReconnecting || s.Attempts < 3 || s.LastError == nil || s.Next.IsZero() {
			t.Errorf("%+v", s)
		}
		f.judge(nil)
		time.Sleep(time.Second)
		if _, err = n.ReadAt(make([]byte, 512), 0); err != nil {
			t.Errorf("after it came back: %v", err)
		}
	})
}

// Attempts come more and more slowly, up to the limit, and not all at one time.
func TestBackOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.connect(still, func(c *Config) { c.ReconnectDelay, c.MaxReconnectDelay = time.Second, 10*time.Second })
		var mu sync.Mutex
		var at []time.Duration
		start := time.Now()
		f.judge(func(nvme.CMRequest) []byte {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(start))
			return []byte{}
		})
		f.cutAll()
		time.Sleep(2 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		want := []time.Duration{0, 1, 2, 4, 8, 10, 10, 10}
		exact := true
		for i := 1; i < len(want); i++ {
			d, w := at[i]-at[i-1], want[i]*time.Second
			if d < w*8/10 || d > w*12/10 {
				t.Errorf("attempt %d came %v after the one before, want about %v", i+1, d, w)
			}
			exact = exact && d == w
		}
		if exact {
			t.Error("delays do not vary")
		}
	})
}

// Close ends everything at any moment, within its time limit.
func TestClose(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*fake)
		max  time.Duration
	}{
		{"idle", func(*fake) {}, 0},
		{"busy", func(f *fake) { f.obey(once(ioOp(nvme.CmdRead), answer{silent: true})) }, 10 * time.Millisecond},
		{"dead", func(f *fake) { f.obey(func(*fakeConn, nvme.Command) *answer { return &answer{silent: true} }) }, 110 * time.Millisecond},
		{"never shut down", func(f *fake) {
			f.obey(func(_ *fakeConn, cmd nvme.Command) *answer {
				if cmd.Opcode() == nvme.CmdFabrics && cmd.FCType() == nvme.FabricsPropertySet {
					return &answer{}
				}
				return nil
			})
		}, 110 * time.Millisecond},
		{"reconnecting", func(f *fake) {
			f.judge(func(nvme.CMRequest) []byte { return []byte{} })
			f.cutAll()
			time.Sleep(time.Second)
		}, 0},
		{"dialling", func(f *fake) {
			f.net.Cut(hostIP, targetIPs[0])
			time.Sleep(2 * DefaultKeepAlive)
		}, 0},
		{"lost", func(f *fake) {
			f.obey(func(_ *fakeConn, cmd nvme.Command) *answer {
				return &answer{status: nvme.ConnectInvalidHost | nvme.StatusDNR}
			})
			f.cutAll()
			time.Sleep(time.Second)
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFake(t)
				c := f.connect(still)
				n, err := c.Namespace(f.ctx, 1)
				f.must(err)
				tt.set(f)
				errs := make(chan error, 2)
				for range cap(errs) {
					go func() {
						_, err := n.ReadAt(make([]byte, 512), 0)
						errs <- err
					}()
				}
				time.Sleep(time.Millisecond)
				start := time.Now()
				f.must(c.Close())
				if d := time.Since(start); d > tt.max+5*time.Millisecond {
					t.Errorf("took %v", d)
				}
				for range cap(errs) {
					if err := <-errs; err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, ErrControllerLost) {
						t.Error(err)
					}
				}
				if _, err := n.ReadAt(make([]byte, 512), 0); !errors.Is(err, net.ErrClosed) {
					t.Errorf("read after Close: %v", err)
				}
				if _, err := c.Admin(f.ctx, newCommand(), nil); !errors.Is(err, net.ErrClosed) {
					t.Errorf("admin after Close: %v", err)
				}
				f.must(c.Close())
				f.net.Heal(hostIP, targetIPs[0])
			})
		})
	}
}

// Disconnects at the instant of each keep alive, over and over.
func TestDisconnectAtKeepAlive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		var n atomic.Int32
		f.obey(func(_ *fakeConn, cmd nvme.Command) *answer {
			if cmd.Opcode() == nvme.AdminKeepAlive {
				return &answer{cut: n.Add(1)%3 != 0, times: 1 + int(n.Load())%2}
			}
			return nil
		})
		c := f.connect(still, func(c *Config) { c.KeepAlive = 10 * time.Millisecond })
		ns, err := c.Namespace(f.ctx, 1)
		f.must(err)
		for range 300 {
			time.Sleep(3 * time.Millisecond)
			if _, err := ns.ReadAt(make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
		}
		if f.connects.Load() < 20 {
			t.Errorf("connected %d times", f.connects.Load())
		}
	})
}

// Close at the instant of a keep alive, over and over.
func TestCloseAtKeepAlive(t *testing.T) {
	loops := 300
	if testing.Short() {
		loops = 50
	}
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		for i := range loops {
			c, err := Connect(f.ctx, f.hosts, f.config(still, func(c *Config) { c.KeepAlive = 10 * time.Millisecond }))
			f.must(err)
			time.Sleep(5 * time.Millisecond * time.Duration(1+i%3))
			if i%2 == 0 {
				f.cutAll()
			}
			f.must(c.Close())
		}
	})
}

// A controller goes without remote invalidation when targets die of it.
func TestSuspectsInvalidation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
			if fc.req.QID != 0 && cmd.SGL1().Keyed() && cmd.SGL1().Invalidate() {
				return &answer{cut: true}
			}
			return nil
		})
		c := f.connect(still)
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		if _, err := n.ReadAt(make([]byte, 4096), 0); err != nil {
			t.Error(err)
		}
		if k := f.connects.Load(); k != 3 || c.Status().Windows {
			t.Errorf("connected %d times, windows %v", k, c.Status().Windows)
		}
	})
}

func TestReset(t *testing.T) {
	r := newRig(t, rigOptions{})
	c := r.connect()
	n := r.namespace(c, memNS)
	was := c.ID()
	r.must(c.Reset(r.ctx))
	if c.ID() == was || c.Status().Reconnects != 1 {
		t.Errorf("controller %d after %d, %+v", c.ID(), was, c.Status())
	}
	_, err := n.ReadAt(make([]byte, 4096), 0)
	r.must(err)
}
