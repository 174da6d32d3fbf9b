package rdma

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// Each wrong connection request is refused with its status, leaves nothing
// behind, and the next right one is served.
func TestReject(t *testing.T) {
	raw := func(n int) []byte { return make([]byte, n) }
	for _, padded := range []bool{false, true} {
		e := newEnv(t, envOptions{host: fabrictest.DeviceOptions{PadPrivateData: padded}})
		for _, c := range []struct {
			name string
			o    rdmatest.Options
			want nvme.CMStatus
		}{
			{"no private data", rdmatest.Options{Private: raw(0)}, nvme.CMInvalidLength},
			{"16 bytes", rdmatest.Options{Private: raw(16)}, nvme.CMInvalidLength},
			{"record format 1", rdmatest.Options{RecFmt: 1}, nvme.CMInvalidRecFmt},
			{"queue 65", rdmatest.Options{QID: 65}, nvme.CMInvalidQID},
			{"admin depth 4097", rdmatest.Options{HSQSize: 4096, HRQSize: 1}, nvme.CMInvalidHSQSize},
			{"I/O depth 65536", rdmatest.Options{QID: 1, HSQSize: 65535, HRQSize: 1, Sends: 1}, nvme.CMInvalidHSQSize},
			{"no host receives", rdmatest.Options{QID: 1, Private: request(nvme.CMRequest{QID: 1, HSQSize: 31}, 32)}, nvme.CMInvalidHRQSize},
			{"no READs", rdmatest.Options{IRD: -1}, nvme.CMInvalidIRD},
			{"controller 77", rdmatest.Options{QID: 1, CNTLID: 77}, nvme.CMInvalidCNTLID},
		} {
			want := c.want
			if padded && want == nvme.CMInvalidLength {
				want = nvme.CMInvalidHSQSize // zeroes, for all that can be seen
			}
			if _, err := e.host.Dial(e.ctx, c.o); rdmatest.RejectStatus(err) != want {
				t.Errorf("padded %v: %s: %v, want %v", padded, c.name, err, want)
			}
		}
		for _, ird := range []int{1, 16, 127} {
			for _, ord := range []int{0, 1, 16} {
				q, err := e.host.Dial(e.ctx, rdmatest.Options{IRD: ird, ORD: ord})
				e.must(err)
				if a, err := q.Accepted(); err != nil || a.CRQSize != 32 || a.RecFmt != 0 {
					t.Errorf("accept %+v, %v", a, err)
				}
				if q.Conn().IRD() < 1 {
					t.Errorf("IRD %d: the target may not READ", q.Conn().IRD())
				}
				e.must(q.Close())
			}
		}
		if n := e.snapshot().Rejected; n != 9 {
			t.Errorf("%d rejected", n)
		}
		e.admin()
	}
}

// The memory limit holds however many queues ask, with one line for each
// refusal, and what is freed can be had again.
func TestMemoryLimit(t *testing.T) {
	const limit = 28 << 20
	e := newEnv(t, envOptions{cfg: func(c *Config) {
		c.MemoryLimit, c.Buffers, c.InCapsule, c.MaxQueueDepth = limit, 8<<20, 16384, 1024
		c.SRQ = Off
	}})
	s := e.admin()
	var open []*rdmatest.Queue
	refused := 0
	for qid := uint16(1); qid <= 8; qid++ {
		q, err := e.host.Dial(e.ctx, rdmatest.Options{QID: qid, HSQSize: 255, CNTLID: s.CNTLID})
		switch {
		case err == nil:
			open = append(open, q)
		case rdmatest.RejectStatus(err) == nvme.CMNoResources:
			refused++
		default:
			t.Fatal(err)
		}
	}
	if len(open) == 0 || refused == 0 {
		t.Fatalf("%d open, %d refused", len(open), refused)
	}
	if used := e.snapshot().MemoryUsed; used > limit {
		t.Errorf("%d bytes of %d in use", used, limit)
	}
	if lines := e.log.lines("memory limit"); len(lines) != refused {
		t.Errorf("%d lines for %d refusals: %q", len(lines), refused, lines)
	}
	for _, q := range open {
		e.must(q.Close())
	}
	e.until("the memory is free again", func() bool {
		q, err := e.host.Dial(e.ctx, rdmatest.Options{QID: 1, HSQSize: 255})
		if err == nil {
			e.must(q.Close())
		}
		return err == nil
	})
}

func TestConnectionLimit(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) { c.MaxConnections = 3 }})
	e.admin()
	e.admin()
	e.admin()
	if _, err := e.host.Dial(e.ctx, rdmatest.Options{}); rdmatest.RejectStatus(err) != nvme.CMNoResources {
		t.Errorf("a fourth connection: %v", err)
	}
}

// A capsule that is none ends its queue, with one line that says who and why;
// other hosts notice nothing.
func TestBadCapsule(t *testing.T) {
	for _, c := range []struct {
		name  string
		size  int
		fatal bool // the whole controller ends
		log   string
	}{
		{"empty", 0, true, "shorter than an SQE"},
		{"8 bytes", 8, true, "shorter than an SQE"},
		{"63 bytes", 63, true, "shorter than an SQE"},
		{"one byte too long", 64 + 4096 + 1, false, "longer than 4160 bytes"},
		{"much too long", 64 + 16384, false, "longer than 4160 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t, envOptions{})
			other := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
			s := e.admin()
			q := e.queueOf(s, rdmatest.Options{}, rdmatest.ConnectParams{})
			e.must(q.Send(make([]byte, c.size)))
			if err := q.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			e.until("one line of log", func() bool { return len(e.log.lines(c.log)) > 0 })
			if c.fatal {
				if err := s.Admin.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
					t.Error("the controller lives on")
				}
			} else if _, err := s.Admin.Identify(e.ctx, 1, 0); err != nil {
				t.Errorf("the admin queue: %v", err)
			}
			e.must(other.Write(e.ctx, memNS, 0, 8, 0, 4096))
			if lines := e.log.lines(c.log); !strings.Contains(lines[0], "10.0.0.2") {
				t.Errorf("the log does not name the peer: %q", lines)
			}
		})
	}
}

// A host with more commands outstanding than its queue has entries loses the
// queue.
func TestTooManyOutstanding(t *testing.T) {
	stuck := newGate(1 << 20)
	e := newEnv(t, envOptions{extra: stuck})
	q := e.queue(rdmatest.Options{HSQSize: 3, Sends: 8}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 5 {
		q.IO(cmd, nvme.CmdRead, uint16(i), extraNS, 0, 1, 0, 4096)
		e.must(q.SendCommand(cmd, nil))
	}
	if err := q.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if lines := e.log.lines("more command capsules outstanding"); len(lines) != 1 {
		t.Errorf("log %q", lines)
	}
	stuck.open()
	e.until("the queue is gone", func() bool { return e.snapshot().Connections == 1 })
}

// Bad commands get their status; the queue lives on.
func TestBadCommands(t *testing.T) {
	const dnr = nvme.StatusDNR
	e := newEnv(t, envOptions{cfg: func(c *Config) { c.MaxSGL = 4 }})
	s := e.admin()
	q := e.queueOf(s, rdmatest.Options{}, rdmatest.ConnectParams{})
	key := func(n uint32) []byte { return keyed(q.Addr(), n, q.RKey(), 0) }
	set := func(sgl []byte) func(nvme.Command) {
		return func(c nvme.Command) { copy(c.SGL1(), sgl) }
	}
	for _, c := range []struct {
		name string
		op   nvme.Opcode
		edit func(nvme.Command)
		data []byte
		want nvme.Status
	}{
		{"a good read", nvme.CmdRead, set(key(4096)), nil, 0},
		{"a good flush", nvme.CmdFlush, set(keyed(0, 0, 0, 0)), nil, 0},
		{"flush, all-zero SGL", nvme.CmdFlush, set(desc(0, 0, 0)), nil, 0},
		{"flush, any SGL", nvme.CmdFlush, set(desc(1, 2, 0xF3)), nil, 0},
		{"a good write in the capsule", nvme.CmdWrite, set(desc(0, 4096, 1)), make([]byte, 4096), 0},
		{"a good list", nvme.CmdRead, set(desc(0, 32, 0x31)), list(key(1000), key(3096)), 0},

		{"opcode FFh", 0xFF, set(key(4096)), nil, nvme.InvalidOpcode | dnr},
		{"PRP", nvme.CmdRead, func(c nvme.Command) { c.SetFlags(0) }, nil, nvme.InvalidField | dnr},
		{"PSDT 2", nvme.CmdRead, func(c nvme.Command) { c.SetFlags(0x80) }, nil, nvme.InvalidField | dnr},
		{"nsid 0", nvme.CmdRead, func(c nvme.Command) { c.SetNSID(0) }, nil, nvme.InvalidNamespace | dnr},
		{"nsid broadcast", nvme.CmdRead, func(c nvme.Command) { c.SetNSID(0xFFFFFFFF) }, nil, nvme.InvalidNamespace | dnr},

		{"no SGL for a read", nvme.CmdRead, set(desc(0, 0, 0)), nil, nvme.DataSGLLengthInvalid | dnr},
		{"SGL one byte short", nvme.CmdRead, set(key(4095)), nil, nvme.DataSGLLengthInvalid | dnr},
		{"SGL short for a write", nvme.CmdWrite, set(key(512)), nil, nvme.DataSGLLengthInvalid | dnr},
		{"unknown SGL type", nvme.CmdRead, set(desc(0, 4096, 0x60)), nil, nvme.SGLTypeInvalid | dnr},
		{"data block by address", nvme.CmdWrite, set(desc(0x1000, 4096, 0)), nil, nvme.SGLTypeInvalid | dnr},
		{"in-capsule on a read", nvme.CmdRead, set(desc(0, 4096, 1)), make([]byte, 4096), nvme.InvalidField | dnr},
		{"in-capsule offset beyond", nvme.CmdWrite, set(desc(4097, 0, 1)), make([]byte, 4096), nvme.SGLOffsetInvalid | dnr},
		{"in-capsule offset wraps", nvme.CmdWrite, set(desc(^uint64(0)-511, 4096, 1)), make([]byte, 4096), nvme.SGLOffsetInvalid | dnr},
		{"in-capsule data did not come", nvme.CmdWrite, set(desc(0, 4096, 1)), make([]byte, 512), nvme.SGLOffsetInvalid | dnr},
		{"list of five", nvme.CmdRead, set(desc(0, 80, 0x31)), repeat(5, key(1024)), nvme.InvalidSGLCount | dnr},
		{"list of half a descriptor", nvme.CmdRead, set(desc(0, 8, 0x31)), key(4096), nvme.InvalidSGLSegment | dnr},
		{"list outside the capsule", nvme.CmdRead, set(desc(0, 32, 0x31)), key(4096), nvme.SGLOffsetInvalid | dnr},
		{"segment", nvme.CmdRead, set(desc(0, 16, 0x21)), key(4096), nvme.SGLTypeInvalid | dnr},
	} {
		cmd := make(nvme.Command, nvme.SQESize)
		q.IO(cmd, c.op, 0x1234, memNS, 0, 8, 0, 4096)
		if c.op == nvme.CmdFlush {
			cmd.Init(c.op, memNS)
			cmd.SetCID(0x1234)
		}
		c.edit(cmd)
		r, err := q.Do(e.ctx, cmd, c.data)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if r.Status != c.want && r.Status != c.want|nvme.StatusMore {
			t.Errorf("%s: %v, want %v", c.name, r.Status, c.want)
		}
		if r.CID != 0x1234 || r.SQID != 1 || r.Len != nvme.CQESize {
			t.Errorf("%s: response %+v", c.name, r)
		}
	}
	if used := e.snapshot(); used.sum().Stale != 0 {
		t.Errorf("%+v", used.sum())
	}
}

// Nothing but Connect is served on a queue that is not connected, data or not
// (CVE-2026-22998 at a peer).
func TestCommandBeforeConnect(t *testing.T) {
	e := newEnv(t, envOptions{})
	for _, qid := range []uint16{0, 1} {
		q, err := e.host.Dial(e.ctx, rdmatest.Options{QID: qid})
		e.must(err)
		cmd := make(nvme.Command, nvme.SQESize)
		for i, inCapsule := range []bool{false, true} {
			q.IO(cmd, nvme.CmdWrite, uint16(i), memNS, 0, 8, 0, 4096)
			var data []byte
			if inCapsule {
				data = make([]byte, 4096)
				cmd.SGL1().SetInCapsule(0, 4096)
			}
			e.must(q.SendCommand(cmd, data)) // both at once: the second while the first is there
		}
		for range 2 {
			r, err := q.Wait(e.ctx)
			e.status(r.Status, err, nvme.CommandSequenceError)
		}
		e.must(q.Close())
	}
}

// Connect data of every wrong length, in and out of the capsule.
func TestConnectDataLength(t *testing.T) {
	e := newEnv(t, envOptions{})
	for _, n := range []uint32{0, 1, 512, 1023, 1025, 0xFFFFFF} {
		q, err := e.host.Dial(e.ctx, rdmatest.Options{})
		e.must(err)
		cmd := make(nvme.Command, nvme.SQESize)
		cmd.Connect().Init(0, 31, 0, 0)
		cmd.SGL1().SetKeyed(q.Addr(), n, q.RKey(), 0)
		r, err := q.Do(e.ctx, cmd)
		if err != nil || r.Status.OK() || !r.Status.DNR() {
			t.Errorf("%d bytes: %v, %v", n, r.Status, err)
		}
		e.must(q.Close())
	}
}

// The queue id, depth and controller of Connect have to fit the connection.
func TestConnectMismatch(t *testing.T) {
	e := newEnv(t, envOptions{})
	s := e.admin()
	for _, p := range []rdmatest.ConnectParams{
		{QID: 2, SQSize: 31, CNTLID: s.CNTLID},
		{QID: 1, SQSize: 32, CNTLID: s.CNTLID},
		{QID: 1, SQSize: 31, CNTLID: s.CNTLID + 1},
		{QID: 0, SQSize: 31, CNTLID: nvme.CNTLIDDynamic},
	} {
		q, err := e.host.Dial(e.ctx, rdmatest.Options{QID: 1})
		e.must(err)
		p.Subsys = testNQN
		if r, err := e.host.Connect(e.ctx, q, p); err == nil {
			t.Errorf("%+v was let in: %+v", p, r)
		}
		e.must(q.Close())
	}
	q := e.queueOf(s, rdmatest.Options{}, rdmatest.ConnectParams{})
	twice, err := e.host.Dial(e.ctx, rdmatest.Options{QID: 1})
	e.must(err)
	defer twice.Close()
	r, err := e.host.Connect(e.ctx, twice, rdmatest.ConnectParams{Subsys: testNQN, QID: 1, SQSize: 31, CNTLID: s.CNTLID})
	if err == nil {
		t.Errorf("queue 1 twice: %+v", r)
	}
	e.must(q.Read(e.ctx, memNS, 0, 8, 0, 4096))
}

// The host's memory is gone in the middle of a write: the READ fails, the queue
// ends with one line, and the buffers come home (spdk#1387).
func TestRemoteAccessError(t *testing.T) {
	e := newEnv(t, envOptions{})
	s := e.admin()
	q := e.queueOf(s, rdmatest.Options{}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 8 {
		q.IO(cmd, nvme.CmdWrite, uint16(i), memNS, uint64(i)*256, 256, 0, 128<<10)
		sgl := cmd.SGL1()
		if i == 3 {
			sgl.SetKeyed(q.Addr(), 128<<10, q.RKey()+0x1000, 0)
		}
		e.must(q.SendCommand(cmd, nil))
	}
	if err := q.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	e.until("the buffers are home", func() bool {
		snap := e.snapshot()
		free := true
		for _, g := range snap.Groups {
			free = free && g.BuffersFree == g.BuffersSize && g.AdminBuffersFree == g.AdminBuffersSize
		}
		return free && snap.Connections == 1
	})
	if lines := e.log.lines("RDMA READ"); len(lines) != 1 || !strings.Contains(lines[0], "remote access error") {
		t.Errorf("log %q", lines)
	}
	if _, err := s.Admin.Identify(e.ctx, 1, 0); err != nil {
		t.Errorf("the admin queue: %v", err)
	}
}

// The same towards the host: a WRITE it does not allow.
func TestRemoteAccessErrorOnWrite(t *testing.T) {
	e := newEnv(t, envOptions{})
	q := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	q.IO(cmd, nvme.CmdRead, 1, memNS, 0, 8, 0, 4096)
	cmd.SGL1().SetKeyed(q.Addr()+2<<20-100, 4096, q.RKey(), 0) // beyond the region
	e.must(q.SendCommand(cmd, nil))
	if err := q.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	e.until("one line", func() bool { return len(e.log.lines("RDMA WRITE")) == 1 })
}

// A host that speaks no NVMe at all is cut off in time by the core, and a
// handshake that is never answered holds up no other.
func TestLinesAreLimited(t *testing.T) {
	e := newEnv(t, envOptions{})
	for range 60 {
		q, err := e.host.Dial(e.ctx, rdmatest.Options{})
		e.must(err)
		e.must(q.Send([]byte("hello")))
		if err := q.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		e.must(q.Close())
	}
	if n := len(e.log.lines("shorter than an SQE")); n == 0 || n > 40 {
		t.Errorf("%d lines of 60 faults", n)
	}
}
