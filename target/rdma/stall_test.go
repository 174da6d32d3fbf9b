package rdma

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// byHandStall is a StallTimeout that does not come in a test: it looks itself.
const byHandStall = time.Hour

// flight is what a connection has on its way, and the completions it has seen.
type flight struct {
	reads, sends int
	progress     uint64
}

// A connection is stuck when something was on its way when the watch began and
// nothing has moved since. What has set out later gets a watch of its own.
func TestStuck(t *testing.T) {
	cases := []struct {
		name        string
		begin, look flight // when the first watch begins, and when it and the next one look
		first, next bool   // is stuck
	}{
		{"idle", flight{0, 0, 7}, flight{0, 0, 7}, false, false},
		{"a response that is not taken", flight{0, 1, 7}, flight{0, 1, 7}, true, true},
		{"a READ that is not answered", flight{1, 0, 0}, flight{1, 0, 0}, true, true},
		{"more behind it", flight{1, 0, 7}, flight{2, 3, 7}, true, true},
		{"the response is taken", flight{0, 1, 7}, flight{0, 0, 8}, false, false},
		{"the READ is answered, and the response on its way", flight{1, 0, 7}, flight{0, 1, 8}, false, true},
		{"one of two", flight{0, 2, 7}, flight{0, 1, 8}, false, true},
		{"as many others", flight{3, 2, 7}, flight{3, 2, 12}, false, true},
		{"a response since", flight{0, 0, 7}, flight{0, 1, 7}, false, true},
		{"a READ since", flight{0, 0, 7}, flight{1, 0, 7}, false, true},
	}
	g := sharedGroup(t, 2*largest)
	g.cfg.StallTimeout = byHandStall
	for range cases {
		g.conns = append(g.conns, &conn{}, nil) // some have left
	}
	set := func(c *conn, f flight) { c.reads, c.sends, c.progress = f.reads, f.sends, f.progress }
	for i, c := range cases {
		set(g.conns[2*i], c.begin)
	}
	g.watchStall()
	for i, c := range cases {
		set(g.conns[2*i], c.look)
		if got := g.conns[2*i].stuck(); got != c.first {
			t.Errorf("%s: stuck %v, want %v", c.name, got, c.first)
		}
	}
	g.watchStall() // it is there already, and does not begin again
	for i, c := range cases {
		if got := g.conns[2*i].stuck(); got != c.first {
			t.Errorf("%s, with more who wait: stuck %v, want %v", c.name, got, c.first)
		}
	}
	g.stall.armed = false
	g.watchStall()
	for i, c := range cases {
		if got := g.conns[2*i].stuck(); got != c.next {
			t.Errorf("%s, next watch: stuck %v, want %v", c.name, got, c.next)
		}
	}
	late := &conn{reads: 1}
	if late.stuck() {
		t.Error("one that has connected since is stuck")
	}
}

// Of the hosts that keep buffers which others wait for, the one is ended that has
// not taken a response all the time: not one that takes them slowly, nor one whose
// response has set out meanwhile, nor one whose buffers the backend has.
func TestStallEndsTheStuck(t *testing.T) {
	slow, shut := newGate(1<<30), newGate(1<<30)
	e := newEnv(t, envOptions{extra: slow, cfg: func(c *Config) {
		smallPool(c)
		c.StallTimeout = byHandStall
	}})
	e.addNulls(2)
	const shutNS = lateNS + 2
	e.add(shutNS, shut)
	s := e.admin()
	host := func(qid uint16) *rdmatest.Queue { // that takes a response when it is told to
		return e.queueOf(s, rdmatest.Options{QID: qid, HSQSize: 7, HRQSize: 8, Receives: 1, HoldReceives: true}, rdmatest.ConnectParams{})
	}
	since, taking, executing, stuck := host(1), host(2), host(3), host(4)
	e.keep(since, 1, slotExecuting, extraNS, 4096)
	e.keep(taking, 2, slotSending, memNS, 4096)
	e.keep(taking, 2, slotSending, memNS, 4096)
	e.keep(executing, 3, slotExecuting, shutNS, 4096)
	e.keep(executing, 3, slotSending, memNS, 0)
	e.keep(stuck, 4, slotSending, memNS, largest)
	e.keep(stuck, 4, slotSending, nullNS, largest)
	e.keep(stuck, 4, slotSending, lateNS, largest)
	waiting := e.queueOf(s, rdmatest.Options{QID: 5, DataSize: largest}, rdmatest.ConnectParams{})
	got := make(chan error, 1)
	go func() { got <- waiting.Read(e.ctx, lateNS+1, 0, largest/4096, 0, largest) }()
	e.until("one waits", func() bool { return e.slots(5)[slotWantBuffer.String()] == 1 })

	slow.open()
	e.must(taking.PostHeld(1))
	e.until("a response is taken, another on its way", func() bool {
		_, _ = taking.Poll()
		return e.slots(2)[slotSending.String()] == 1 && e.slots(1)[slotSending.String()] == 1
	})
	if e.slots(5)[slotWantBuffer.String()] != 1 {
		t.Fatal("nobody waits any more")
	}
	e.tr.groups[0].call(e.tr.groups[0].checkStall)
	if err := stuck.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	e.must(<-got)
	for name, q := range map[string]*rdmatest.Queue{"since": since, "taking": taking, "executing": executing} {
		if err := q.Conn().Err(); err != nil {
			t.Errorf("%s is ended, too: %v", name, err)
		}
	}
	if lines := e.log.lines("has not taken a response"); len(lines) != 1 {
		t.Errorf("log %q", lines)
	}
	shut.open()
}

// keep has q read size bytes of a namespace, or flush it, and waits until the
// command is in that state, where it stays with what it holds.
func (e *env) keep(q *rdmatest.Queue, qid uint16, state slotState, nsid uint32, size int) {
	e.t.Helper()
	before, busy := e.slots(qid), 0
	for _, n := range before {
		busy += n
	}
	cmd := make(nvme.Command, nvme.SQESize)
	if size == 0 {
		cmd.Init(nvme.CmdFlush, nsid)
	} else {
		block := 4096
		if nsid == memNS {
			block = blockLen
		}
		q.IO(cmd, nvme.CmdRead, 0, nsid, 0, uint32(size/block), 0, size)
	}
	cmd.SetCID(uint16(busy))
	e.must(q.SendCommand(cmd, nil))
	e.until("the command keeps what it holds", func() bool {
		_, _ = q.Poll()
		return e.slots(qid)[state.String()] == before[state.String()]+1
	})
}
