package initiator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

func TestFakeIsGood(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		c := f.connect()
		n, err := c.Namespace(f.ctx, 1)
		f.must(err)
		p, got := make([]byte, 256<<10), make([]byte, 256<<10)
		fill(p, 9)
		_, err = n.WriteAt(p, 4096)
		f.must(err)
		_, err = n.ReadAt(got, 4096)
		f.must(err)
		if string(p) != string(got) {
			t.Error("not what was written")
		}
		f.must(c.Close())
		if f.shutdowns.Load() != 1 {
			t.Error("the controller was not told to shut down")
		}
	})
}

// A rejection says in words what the target's private data says in numbers.
func TestConnectRejected(t *testing.T) {
	for st := nvme.CMInvalidLength; st <= nvme.CMInvalidCNTLID; st++ {
		for _, qid := range []uint16{0, 1} {
			t.Run(fmt.Sprintf("status %d of queue %d", st, qid), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := newFake(t)
					f.judge(func(r nvme.CMRequest) []byte {
						if r.QID != qid {
							return nil
						}
						b := make([]byte, nvme.CMRejectSize)
						(&nvme.CMReject{Status: st}).MarshalTo(b)
						return b
					})
					_, err := Connect(f.ctx, f.hosts, f.config())
					var ce *ConnectError
					if !errors.As(err, &ce) || ce.Stage != StageCM || ce.CM != st || ce.QID != qid {
						t.Fatalf("%#v: %v", ce, err)
					}
					if !strings.Contains(err.Error(), st.String()) {
						t.Errorf("%v: does not say %q", err, st)
					}
					if ce.Permanent() {
						t.Error("taken for permanent")
					}
				})
			})
		}
	}
	t.Run("no private data", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			f := newFake(t)
			f.judge(func(nvme.CMRequest) []byte { return []byte{} })
			_, err := Connect(f.ctx, f.hosts, f.config())
			var ce *ConnectError
			var re *fabric.RejectError
			if !errors.As(err, &ce) || ce.Stage != StageCM || ce.CM != 0 || !errors.As(err, &re) || re.Reason != fabric.RejectConsumer {
				t.Fatalf("%#v: %v", ce, err)
			}
		})
	})
}

// What the request says of the queue is what RDMA private data is to say.
func TestConnectRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		got := make(map[uint16]nvme.CMRequest)
		f.judge(func(r nvme.CMRequest) []byte { got[r.QID] = r; return nil })
		f.connect(func(c *Config) { c.QueueDepth = 20 })
		want := map[uint16]nvme.CMRequest{
			0: {QID: 0, HRQSize: 32, HSQSize: 31},
			1: {QID: 1, HRQSize: 21, HSQSize: 20, CNTLID: fakeCNTLID},
		}
		for qid, w := range want {
			if got[qid] != w {
				t.Errorf("queue %d: %+v, want %+v", qid, got[qid], w)
			}
		}
	})
}

// Connect is refused with every status there is, and each is told in words.
func TestConnectRefused(t *testing.T) {
	for _, tt := range []struct {
		status    nvme.Status
		result    uint64
		param     string
		permanent bool
	}{
		{nvme.ConnectIncompatibleFormat | nvme.StatusDNR, 0, "", true},
		{nvme.ConnectControllerBusy, 0, "", false},
		{nvme.ConnectInvalidParameters | nvme.StatusDNR, nvme.InvalidParameter(nvme.ConnectDataOffSubNQN, true), "subsystem NQN", false},
		{nvme.ConnectInvalidParameters | nvme.StatusDNR, nvme.InvalidParameter(nvme.ConnectOffQID, false), "queue id", false},
		{nvme.ConnectInvalidParameters | nvme.StatusDNR, nvme.InvalidParameter(777, true), "777", false},
		{nvme.ConnectRestartDiscovery, 0, "", false},
		{nvme.ConnectInvalidHost | nvme.StatusDNR, 0, "", true},
		{nvme.InvalidQueueType, 0, "", false},
		{nvme.AuthenticationRequired | nvme.StatusDNR, 0, "", true},
		{nvme.CommandSequenceError, 0, "", false},
		{nvme.InternalError, 0, "", false},
		{0x7FFF, 0xFFFFFFFFFFFFFFFF, "", false},
	} {
		for _, qid := range []uint16{0, 1} {
			t.Run(fmt.Sprintf("%v of queue %d", tt.status, qid), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := newFake(t)
					f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
						if cmd.Opcode() == nvme.CmdFabrics && cmd.FCType() == nvme.FabricsConnect && fc.req.QID == qid {
							return &answer{status: tt.status, result: tt.result}
						}
						return nil
					})
					_, err := Connect(f.ctx, f.hosts, f.config())
					var ce *ConnectError
					if !errors.As(err, &ce) || ce.Stage != StageFabrics || ce.Status != tt.status || ce.QID != qid {
						t.Fatalf("%#v: %v", ce, err)
					}
					if !strings.Contains(ce.Parameter, tt.param) || !strings.Contains(err.Error(), tt.param) {
						t.Errorf("parameter %q in %v: want %q", ce.Parameter, err, tt.param)
					}
					if !errors.Is(err, tt.status.Code()) {
						t.Errorf("%v does not match %v", err, tt.status.Code())
					}
					if ce.Permanent() != tt.permanent {
						t.Errorf("permanent %v", ce.Permanent())
					}
				})
			})
		}
	}
}

// isConnect says whether cmd is Connect.
func isConnect(cmd nvme.Command) bool {
	return cmd.Opcode() == nvme.CmdFabrics && cmd.FCType() == nvme.FabricsConnect
}

// A target that does something wrong while it is being connected fails the
// attempt, at the stage where it does, in bounded time.
func TestConnectHostile(t *testing.T) {
	on := func(is func(fc *fakeConn, cmd nvme.Command) bool, a answer) func(*fake) {
		return func(f *fake) {
			f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
				if is(fc, cmd) {
					return &a
				}
				return nil
			})
		}
	}
	connect := func(qid uint16) func(fc *fakeConn, cmd nvme.Command) bool {
		return func(fc *fakeConn, cmd nvme.Command) bool { return isConnect(cmd) && fc.req.QID == qid }
	}
	op := func(o nvme.Opcode) func(*fakeConn, nvme.Command) bool {
		return func(_ *fakeConn, cmd nvme.Command) bool { return cmd.Opcode() == o }
	}
	id := func(fn func(*nvme.IdentifyController)) func(*fake) { return func(f *fake) { f.id = fn } }
	for _, tt := range []struct {
		name  string
		set   func(*fake)
		stage Stage
		is    error
		text  string
	}{
		{"no answer to Connect", on(connect(0), answer{silent: true}), StageFabrics, ErrTimeout, ""},
		{"no answer to Connect of an I/O queue", on(connect(1), answer{silent: true}), StageFabrics, ErrTimeout, ""},
		{"Connect answered to another CID", on(connect(0), answer{cid: 0x1234}), StageFabrics, ErrProtocol, "0x1234"},
		{"Connect answered twice", on(connect(0), answer{result: fakeCNTLID, times: 2}), StageEnable, ErrProtocol, ""},
		{"a short CQE", on(connect(0), answer{result: fakeCNTLID, short: 8}), StageFabrics, ErrProtocol, "8 bytes"},
		{"disconnected at Connect", on(connect(0), answer{cut: true}), StageFabrics, nil, "disconnected"},
		{"disconnected at Connect of an I/O queue", on(connect(1), answer{cut: true}), StageFabrics, nil, "disconnected"},
		{"a reserved controller ID", on(connect(0), answer{result: 0xFFFF}), StageFabrics, ErrProtocol, "reserved"},
		{"authentication", on(connect(0), answer{result: fakeCNTLID | uint64(nvme.ConnectATR)}), StageFabrics, errAuthentication, "authentication"},
		{"an I/O queue of another controller", on(connect(1), answer{result: 8}), StageFabrics, ErrProtocol, "controller 8"},
		{"READ depth 0", func(f *fake) { f.accept.ORD = 0 }, StageCM, ErrProtocol, "initiator depth 0"},
		{"CFS", func(f *fake) {
			f.csts = func(int) nvme.ControllerStatus { return nvme.ControllerStatus(0).WithCFS(true) }
		}, StageEnable, nil, "CSTS.CFS"},
		{"never ready, CAP.TO huge", func(f *fake) {
			f.cap = f.cap.WithTO(255)
			f.csts = func(int) nvme.ControllerStatus { return 0 }
		}, StageEnable, ErrTimeout, "CSTS.RDY"},
		{"CAP fails", on(func(_ *fakeConn, cmd nvme.Command) bool {
			return cmd.Opcode() == nvme.CmdFabrics && cmd.FCType() == nvme.FabricsPropertyGet
		}, answer{status: nvme.InvalidField}), StageEnable, nvme.InvalidField, "CAP"},
		{"CC fails", on(func(_ *fakeConn, cmd nvme.Command) bool {
			return cmd.Opcode() == nvme.CmdFabrics && cmd.FCType() == nvme.FabricsPropertySet
		}, answer{status: nvme.InvalidField}), StageEnable, nvme.InvalidField, "CC"},
		{"Identify fails", on(op(nvme.AdminIdentify), answer{status: nvme.InternalError}), StageIdentify, nvme.InternalError, ""},
		{"Identify without data", on(op(nvme.AdminIdentify), answer{}), StageIdentify, ErrProtocol, "mismatching controller ID"},
		{"no answer to Identify", on(op(nvme.AdminIdentify), answer{silent: true}), StageIdentify, ErrTimeout, ""},
		{"mismatching controller ID", id(func(i *nvme.IdentifyController) { i.CNTLID = 8 }), StageIdentify, ErrProtocol, "Connect said 7, Identify says 8"},
		{"no keep alive", id(func(i *nvme.IdentifyController) { i.KAS = 0 }), StageIdentify, ErrProtocol, "KAS"},
		{"IOCCSZ 0", id(func(i *nvme.IdentifyController) { i.IOCCSZ = 0 }), StageIdentify, ErrProtocol, "IOCCSZ"},
		{"IOCCSZ 1", id(func(i *nvme.IdentifyController) { i.IOCCSZ = 1 }), StageIdentify, ErrProtocol, "IOCCSZ"},
		{"IOCCSZ 3", id(func(i *nvme.IdentifyController) { i.IOCCSZ = 3 }), StageIdentify, ErrProtocol, "IOCCSZ"},
		{"MAXCMD 0", id(func(i *nvme.IdentifyController) { i.MAXCMD = 0 }), StageIdentify, ErrProtocol, "MAXCMD"},
		{"no keyed SGLs", id(func(i *nvme.IdentifyController) { i.SGLS = nvme.SGLSSupported }), StageIdentify, ErrProtocol, "keyed"},
		{"MQES 0", func(f *fake) { f.cap = f.cap.WithMQES(0) }, StageIdentify, ErrProtocol, "MQES"},
		{"number of queues fails", on(op(nvme.AdminSetFeatures), answer{status: nvme.InvalidField | nvme.StatusDNR}), StageQueues, nvme.InvalidField, "I/O queues"},
		{"disconnected at Set Features", on(op(nvme.AdminSetFeatures), answer{cut: true}), StageQueues, nil, "disconnected"},
		{"no answer to Set Features", on(op(nvme.AdminSetFeatures), answer{silent: true}), StageQueues, ErrTimeout, "Set Features"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFake(t)
				tt.set(f)
				c, err := Connect(f.ctx, f.hosts, f.config(func(c *Config) { c.AdminTimeout = 200 * time.Millisecond }))
				if err == nil {
					_ = c.Close()
					t.Fatal("connected")
				}
				var ce *ConnectError
				if !errors.As(err, &ce) || ce.Stage != tt.stage {
					t.Errorf("stage %v, want %v: %v", ce.Stage, tt.stage, err)
				}
				if tt.is != nil && !errors.Is(err, tt.is) {
					t.Errorf("%v: does not match %v", err, tt.is)
				}
				if !strings.Contains(err.Error(), tt.text) {
					t.Errorf("%v: does not say %q", err, tt.text)
				}
			})
		})
	}
}

// What is odd and can be worked with is worked with.
func TestConnectTolerant(t *testing.T) {
	for _, tt := range []struct {
		name  string
		set   func(*fake)
		check func(Status) bool
	}{
		{"responder resources 1", func(f *fake) { f.accept.ORD = 1 }, nil},
		{"an accept of another format", func(f *fake) { f.accept.PrivateData = []byte{9, 9, 0, 0} }, nil},
		{"an accept without private data", func(f *fake) { f.accept.PrivateData = []byte{} }, nil},
		{"IOCCSZ 4: no data in capsules", func(f *fake) { f.id = func(i *nvme.IdentifyController) { i.IOCCSZ = 4 } },
			func(s Status) bool { return s.InCapsule == 0 }},
		{"IOCCSZ enormous", func(f *fake) { f.id = func(i *nvme.IdentifyController) { i.IOCCSZ = 1<<32 - 1 } },
			func(s Status) bool { return s.InCapsule == s.Transfer }},
		{"ICDOFF: everything keyed", func(f *fake) { f.id = func(i *nvme.IdentifyController) { i.ICDOFF = 2 } },
			func(s Status) bool { return s.InCapsule == 0 }},
		{"no offset SGLs", func(f *fake) {
			f.id = func(i *nvme.IdentifyController) { i.SGLS = nvme.SGLSSupported | nvme.SGLSKeyed }
		}, func(s Status) bool { return s.InCapsule == 0 }},
		{"MDTS 0: no limit", func(f *fake) { f.id = func(i *nvme.IdentifyController) { i.MDTS = 0 } },
			func(s Status) bool { return s.Transfer == maxKeyed }},
		{"MDTS 255", func(f *fake) { f.id = func(i *nvme.IdentifyController) { i.MDTS = 255 } },
			func(s Status) bool { return s.Transfer == maxKeyed }},
		{"MAXCMD 9", func(f *fake) { f.id = func(i *nvme.IdentifyController) { i.MAXCMD = 9 } },
			func(s Status) bool { return s.Depth == 8 }},
		{"MQES 5", func(f *fake) { f.cap = f.cap.WithMQES(5) }, func(s Status) bool { return s.Depth == 5 }},
		{"one queue granted", func(f *fake) { f.queues = nvme.MakeNumQueues(1, 1) },
			func(s Status) bool { return s.IOQueues == 1 }},
		{"no events", func(f *fake) {
			f.obey(func(_ *fakeConn, cmd nvme.Command) *answer {
				if cmd.Opcode() == nvme.AdminAsyncEvent ||
					cmd.Opcode() == nvme.AdminSetFeatures && cmd.Features().FID() == nvme.FeatAsyncEvent {
					return &answer{status: nvme.InvalidOpcode | nvme.StatusDNR}
				}
				return nil
			})
		}, nil},
		{"CQEs of queue 0", func(f *fake) { // as SPDK sends them
			f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
				a := fc.usual(cmd, fc.capsule)
				if fc.req.QID != 0 && !isConnect(cmd) {
					a.sqid = -fc.req.QID
				}
				return a
			})
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFake(t)
				tt.set(f)
				c := f.connect(func(c *Config) { c.IOQueues = 2 })
				if s := c.Status(); tt.check != nil && !tt.check(s) {
					t.Errorf("%+v", s)
				}
				n, err := c.Namespace(f.ctx, 1)
				f.must(err)
				p := make([]byte, 20<<10)
				if _, err := n.ReadAt(p, 512); err != nil {
					t.Error(err)
				}
				if _, err := n.ReadAt(p[:512], 0); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Connect ends with its context, whatever the target does not do.
func TestConnectCancelled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		f.obey(func(*fakeConn, nvme.Command) *answer { return &answer{silent: true} })
		ctx, cancel := context.WithCancel(f.ctx)
		time.AfterFunc(20*time.Millisecond, cancel)
		_, err := Connect(ctx, f.hosts, f.config(func(c *Config) { c.ConnectTimeout = time.Hour }))
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestConnectUnreachable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		cfg := f.config()
		cfg.Addr = netip.MustParseAddrPort("10.0.0.77:4420")
		_, err := Connect(f.ctx, f.hosts, cfg)
		var ce *ConnectError
		if !errors.As(err, &ce) || ce.Stage != StageDevice || !errors.Is(err, fabric.ErrNoDevice) {
			t.Errorf("address of nobody: %v", err)
		}
		f.net.Cut(hostIP, targetIPs[0])
		_, err = Connect(f.ctx, f.hosts, f.config())
		if !errors.As(err, &ce) || ce.Stage != StageCM || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, fabric.ErrTimeout) {
			t.Errorf("address cut off: %v", err)
		}
	})
}
