package rdma

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// pieces is a list of n keyed descriptors with odd lengths that add up to size
// bytes of q's memory from off, scattered backwards with gaps.
func pieces(q *rdmatest.Queue, n, size, off int) (descs []byte, parts [][2]int) {
	left := size
	for i := range n {
		k := size/n + (i%3-1)*7
		if i == n-1 {
			k = left
		}
		at := off + (n-1-i)*(size/n+64)
		descs = append(descs, keyed(q.Addr()+uint64(at), uint32(k), q.RKey(), 0)...)
		parts = append(parts, [2]int{at, k})
		left -= k
	}
	return descs, parts
}

// Data in up to 16 pieces of odd lengths arrives complete, whatever the limits
// of the device, and READs stay within what the host can answer.
func TestLists(t *testing.T) {
	for _, c := range []struct {
		name   string
		ird    int
		limits func(*fabric.Limits)
	}{
		{"generous", 16, nil},
		{"one READ at a time", 1, nil},
		{"one SGE", 4, func(l *fabric.Limits) { l.MaxSGE, l.MaxReadSGE = 1, 1 }},
		{"one SGE of READs, as iWARP", 2, func(l *fabric.Limits) { l.MaxReadSGE, l.ReadNeedsRemoteWrite = 1, true }},
		{"small messages", 16, func(l *fabric.Limits) { l.MaxMessage = 4096 }},
		{"nothing inline", 16, func(l *fabric.Limits) { l.MaxInline = 0 }},
		{"small queues", 16, func(l *fabric.Limits) { l.MaxQPDepth = 64 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t, envOptions{
				device: fabrictest.DeviceOptions{Limits: c.limits},
				cfg:    func(c *Config) { c.InCapsule = 4096 },
			})
			q := e.queue(rdmatest.Options{IRD: c.ird, DataSize: 4 << 20}, rdmatest.ConnectParams{})
			for _, n := range []int{1, 2, 3, 16} {
				for _, size := range []int{4096, 64 << 10, 1 << 20} {
					checkList(e, q, n, size)
				}
			}
			if s := e.snapshot(); s.sum().Stale != 0 {
				t.Errorf("%+v", s.sum())
			}
		})
	}
}

func checkList(e *env, q *rdmatest.Queue, n, size int) {
	e.t.Helper()
	cmd := make(nvme.Command, nvme.SQESize)
	descs, parts := pieces(q, n, size, 0)
	fill(q.Data()[:2<<20], byte(n*size>>9))
	var want []byte
	for _, p := range parts {
		want = append(want, q.Data()[p[0]:p[0]+p[1]]...)
	}
	q.IO(cmd, nvme.CmdWrite, 1, memNS, 64, uint32(size/blockLen), 0, 0)
	cmd.SGL1().SetSegment(nvme.SGLLastSegment, 0, uint32(len(descs)), nvme.SGLOffset)
	r, err := q.Do(e.ctx, cmd, descs)
	e.status(r.Status, err, 0)

	clear(q.Data())
	q.IO(cmd, nvme.CmdRead, 2, memNS, 64, uint32(size/blockLen), 0, 0)
	cmd.SGL1().SetSegment(nvme.SGLLastSegment, 0, uint32(len(descs)), nvme.SGLOffset)
	r, err = q.Do(e.ctx, cmd, descs)
	e.status(r.Status, err, 0)
	var got []byte
	for _, p := range parts {
		got = append(got, q.Data()[p[0]:p[0]+p[1]]...)
		clear(q.Data()[p[0] : p[0]+p[1]])
	}
	if !bytes.Equal(got, want) {
		e.t.Errorf("%d pieces of %d bytes: not what was written", n, size)
	}
	for i, b := range q.Data() {
		if b != 0 {
			e.t.Errorf("%d pieces of %d bytes: byte %d was written outside the pieces", n, size, i)
			break
		}
	}
}

// With ORD 1 many writes go on together, and no READ goes beyond it. IgnoreORD
// of the provider would let it.
func TestManyWritesOneRead(t *testing.T) {
	e := newEnv(t, envOptions{})
	q := e.queue(rdmatest.Options{IRD: 1}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 32 {
		q.IO(cmd, nvme.CmdWrite, uint16(i), memNS, uint64(i)*128, 128, i<<10, 64<<10)
		e.must(q.SendCommand(cmd, nil))
	}
	for range 32 {
		r, err := q.Wait(e.ctx)
		e.status(r.Status, err, 0)
	}
	s := e.snapshot()
	if got := s.sum().ReadWaits; got == 0 {
		t.Error("nothing waited for a READ")
	}
	for _, g := range s.Groups {
		for _, c := range g.Connections {
			if c.QID == 1 && c.ORD != 1 {
				t.Errorf("ORD %d", c.ORD)
			}
		}
	}
}

// SQHD counts modulo the queue size, or not at all when the host says so.
func TestSQFlowControl(t *testing.T) {
	e := newEnv(t, envOptions{})
	for _, off := range []bool{false, true} {
		var attr nvme.ConnectAttr
		if off {
			attr = nvme.ConnectDisableSQFlow
		}
		q := e.queue(rdmatest.Options{HSQSize: 3}, rdmatest.ConnectParams{Attr: attr})
		cmd := make(nvme.Command, nvme.SQESize)
		for i := range 10 {
			q.IO(cmd, nvme.CmdRead, uint16(i), memNS, 0, 1, 0, blockLen)
			r, err := q.Do(e.ctx, cmd)
			e.status(r.Status, err, 0)
			want := uint16(i+2) % 4 // Connect was the first
			if off {
				want = 0xFFFF
			}
			if r.SQHD != want {
				t.Errorf("flow control off %v: SQHD %#x after %d commands, want %#x", off, r.SQHD, i+1, want)
			}
		}
	}
}

// A queue of 1024 entries, all of them in use, many times over.
func TestDepth1024(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) { c.MaxQueueDepth = 1024 }})
	q := e.queue(rdmatest.Options{HSQSize: 1023}, rdmatest.ConnectParams{})
	const total = 10 * 1024
	cmd := make(nvme.Command, nvme.SQESize)
	var busy [1024]bool
	sent, done := 0, 0
	send := func(cid uint16) {
		q.IO(cmd, nvme.CmdRead, cid, nullNS, uint64(sent), 1, 0, 4096)
		busy[cid] = true
		sent++
		e.must(q.SendCommand(cmd, nil))
	}
	for cid := range uint16(1024) {
		send(cid)
	}
	for done < total {
		if n, err := q.Poll(); err != nil {
			t.Fatal(err)
		} else if n == 0 {
			e.must(e.ctx.Err())
			continue
		}
		for _, r := range q.Take() {
			if !r.Status.OK() || !busy[r.CID] {
				t.Fatalf("response %+v, busy %v", r, busy[r.CID])
			}
			busy[r.CID] = false
			if done++; sent < total {
				send(r.CID)
			}
		}
	}
}

// With few receives at the host, responses wait for them rather than fail.
func TestFewHostReceives(t *testing.T) {
	e := newEnv(t, envOptions{})
	q := e.queue(rdmatest.Options{HRQSize: 2}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 32 {
		q.IO(cmd, nvme.CmdRead, uint16(i), memNS, 0, 8, 0, 4096)
		e.must(q.SendCommand(cmd, nil))
	}
	for range 32 {
		r, err := q.Wait(e.ctx)
		e.status(r.Status, err, 0)
	}
	s := e.snapshot()
	if s.sum().SendWaits == 0 {
		t.Error("no response waited")
	}
}

// Buffers for two large commands serve any number of large and small ones,
// first come first served: none fails and none is passed by for ever.
func TestBufferExhaustion(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) { c.PollGroups, c.Buffers = 1, 2<<20 }})
	s := e.admin()
	large := e.queueOf(s, rdmatest.Options{QID: 1, DataSize: 1 << 20}, rdmatest.ConnectParams{})
	small := e.queueOf(s, rdmatest.Options{QID: 2}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	sendLarge := func(i int) {
		op := nvme.CmdRead
		if i%2 == 0 {
			op = nvme.CmdWrite
		}
		large.IO(cmd, op, uint16(i), memNS, 0, 2048, 0, 1<<20)
		e.must(large.SendCommand(cmd, nil))
	}
	for i := range 32 {
		sendLarge(i)
	}
	smallDone, largeDone := 0, 0
	for i := range 32 {
		small.IO(cmd, nvme.CmdRead, uint16(i), memNS, 0, 8, 0, 4096)
		e.must(small.SendCommand(cmd, nil))
	}
	for largeDone < 64 {
		for _, q := range []*rdmatest.Queue{small, large} {
			if _, err := q.Poll(); err != nil {
				t.Fatal(err)
			}
			for _, r := range q.Take() {
				if !r.Status.OK() {
					t.Fatal(r.Status)
				}
				if q == large {
					if largeDone++; largeDone <= 32 {
						sendLarge(int(r.CID))
					}
					continue
				}
				smallDone++ // and the next at once: small ones press on
				q.IO(cmd, nvme.CmdRead, r.CID, memNS, 0, 8, 0, 4096)
				e.must(q.SendCommand(cmd, nil))
			}
		}
		e.must(e.ctx.Err())
	}
	snap := e.snapshot()
	if sum := snap.sum(); sum.BufferWaits == 0 {
		t.Errorf("nothing waited: %+v", sum)
	}
	if smallDone == 0 {
		t.Error("no small command ended")
	}
}

// Compare takes its data and its scratch memory together.
func TestScratch(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) { c.PollGroups, c.Buffers = 1, 2<<20 }})
	q := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
	fill(q.Data()[:1<<20], 5)
	e.must(q.Write(e.ctx, memNS, 0, 2048, 0, 1<<20))
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 16 {
		q.IO(cmd, nvme.CmdCompare, uint16(i), memNS, 0, 2048, 0, 1<<20)
		e.must(q.SendCommand(cmd, nil))
	}
	for range 16 {
		r, err := q.Wait(e.ctx)
		e.status(r.Status, err, 0)
	}
	q.Data()[1<<20-1]++
	q.IO(cmd, nvme.CmdCompare, 1, memNS, 0, 2048, 0, 1<<20)
	r, err := q.Do(e.ctx, cmd)
	e.status(r.Status, err, nvme.CompareFailure)
	s := e.snapshot()
	for _, g := range s.Groups {
		if g.BuffersFree != g.BuffersSize {
			t.Errorf("%d of %d bytes are back", g.BuffersFree, g.BuffersSize)
		}
	}
}

// A backend that answers nothing keeps its commands' buffers, and nobody else
// from connecting and being answered (spdk#2180, #3646).
func TestStuckBackend(t *testing.T) {
	stuck := newGate(1 << 30)
	e := newEnv(t, envOptions{extra: stuck, cfg: func(c *Config) { c.PollGroups, c.Buffers = 1, 2<<20 }})
	q := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 32 { // more than there are buffers for
		q.IO(cmd, nvme.CmdWrite, uint16(i), extraNS, 0, 64, 0, 256<<10)
		e.must(q.SendCommand(cmd, nil))
	}
	e.until("its share is used up", func() bool {
		_, _ = q.Poll()
		snap := e.snapshot()
		return stuck.inFlight() == 8 && snap.Groups[0].Waiting == 24
	})
	s := e.admin()
	if _, err := s.Admin.Identify(e.ctx, 1, 0); err != nil {
		t.Error(err)
	}
	other := e.queueOf(s, rdmatest.Options{}, rdmatest.ConnectParams{}) // its Connect is keyed
	e.must(other.WriteInCapsule(e.ctx, memNS, 0, 8, make([]byte, 4096)))
	stuck.open()
	for range 32 {
		r, err := q.Wait(e.ctx)
		e.status(r.Status, err, 0)
	}
	e.must(other.Read(e.ctx, memNS, 0, 8, 0, 4096))
}

// Abort finds the command that waits for a buffer; the one in the backend goes
// on.
func TestAbortWaiting(t *testing.T) {
	stuck := newGate(1 << 30)
	e := newEnv(t, envOptions{extra: stuck, cfg: func(c *Config) { c.PollGroups, c.Buffers = 1, 2<<20 }})
	s := e.admin()
	q := e.queueOf(s, rdmatest.Options{}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 3 { // two fill the pool, the third waits
		q.IO(cmd, nvme.CmdRead, uint16(100+i), extraNS, 0, 256, 0, 1<<20)
		e.must(q.SendCommand(cmd, nil))
	}
	e.until("one waits", func() bool { snap := e.snapshot(); return snap.Groups[0].Waiting == 1 })
	abort := func(cid uint16) (notAborted bool) {
		a := make(nvme.Command, nvme.SQESize)
		a.Init(nvme.AdminAbort, 0)
		a.SetCID(7)
		a.SetCDW(10, uint32(cid)<<16|1)
		r, err := s.Admin.Do(e.ctx, a)
		e.status(r.Status, err, 0)
		return r.Result&1 != 0
	}
	if abort(102) {
		t.Error("the waiting command was not aborted")
	}
	r, err := q.WaitCID(e.ctx, 102)
	e.status(r.Status, err, nvme.AbortRequested)
	if !abort(100) {
		t.Error("a command in the backend was aborted")
	}
	if !abort(999) {
		t.Error("a command that does not exist was aborted")
	}
	stuck.open()
	for range 2 {
		r, err := q.Wait(e.ctx)
		e.status(r.Status, err, 0)
	}
}

// Keys are ended with the response when the command asks for it and moves data,
// where the device can.
func TestSendInvalidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		choice Choice
		limits func(*fabric.Limits)
		want   bool
	}{
		{"auto", Auto, nil, true},
		{"auto, not offered", Auto, func(l *fabric.Limits) { l.SendInvalidate = false }, false},
		{"off", Off, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t, envOptions{
				device: fabrictest.DeviceOptions{Limits: c.limits}, cfg: func(cfg *Config) { cfg.SendInvalidate = c.choice },
			})
			q := e.queue(rdmatest.Options{Access: allAccess}, rdmatest.ConnectParams{})
			for i, op := range []nvme.Opcode{nvme.CmdRead, nvme.CmdWrite, nvme.CmdFlush} {
				w, key, err := q.BindWindow(e.ctx, 0, 4096)
				e.must(err)
				cmd := make(nvme.Command, nvme.SQESize)
				q.IO(cmd, op, uint16(i), memNS, 0, 8, 0, 4096)
				n := uint32(4096)
				if op == nvme.CmdFlush {
					cmd.Init(op, memNS)
					n = 0
				}
				cmd.SGL1().SetKeyed(q.Addr(), n, key, nvme.SGLInvalidate)
				r, err := q.Do(e.ctx, cmd)
				e.status(r.Status, err, 0)
				want := c.want && n > 0
				if r.Invalidated != want || want && r.Key != key {
					t.Errorf("opcode %#x: invalidated %v %#x, want %v %#x", op, r.Invalidated, r.Key, want, key)
				}
				e.must(w.Close())
			}
		})
	}
}

// A device that claims SEND with invalidate and cannot do it costs one queue,
// is remembered, and is served without it from then on (spdk#3926).
func TestBrokenSendInvalidate(t *testing.T) {
	e := newEnv(t, envOptions{device: fabrictest.DeviceOptions{BrokenSendInvalidate: true}})
	bystander := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
	for i := range 3 {
		q := e.queue(rdmatest.Options{Access: allAccess}, rdmatest.ConnectParams{})
		_, key, err := q.BindWindow(e.ctx, 0, 4096)
		e.must(err)
		cmd := make(nvme.Command, nvme.SQESize)
		q.IO(cmd, nvme.CmdRead, 1, memNS, 0, 8, 0, 4096)
		cmd.SGL1().SetKeyed(q.Addr(), 4096, key, nvme.SGLInvalidate)
		r, err := q.Do(e.ctx, cmd)
		if i == 0 {
			if err == nil {
				t.Errorf("the first was answered: %+v", r)
			}
			continue
		}
		e.status(r.Status, err, 0)
		if r.Invalidated {
			t.Error("invalidated by a device that cannot")
		}
	}
	e.must(bystander.Read(e.ctx, memNS, 0, 8, 0, 4096))
	if lines := e.log.lines("cannot do SEND with invalidate"); len(lines) != 1 {
		t.Errorf("log %q", lines)
	}
}

const allAccess = fabric.AccessLocalWrite | fabric.AccessRemoteRead | fabric.AccessRemoteWrite | fabric.AccessWindowBind

// Shared receives serve many queues, and stay with none: not with those of a
// namespace whose backend hangs, and not when that has used up its buffers.
func TestSharedReceives(t *testing.T) {
	data := func(_ *rdmatest.Queue, cmd nvme.Command) []byte {
		cmd.SGL1().SetInCapsule(0, 4096)
		return make([]byte, 4096)
	}
	list := func(q *rdmatest.Queue, cmd nvme.Command) []byte {
		descs, _ := pieces(q, 8, 4096, 0)
		cmd.SGL1().SetSegment(nvme.SGLLastSegment, 0, uint32(len(descs)), nvme.SGLOffset)
		return descs
	}
	for _, c := range []struct {
		name   string
		cfg    func(*Config)
		behind func(q *rdmatest.Queue, cmd nvme.Command) []byte // what comes behind the SQEs that hang
	}{
		{"data", func(*Config) {}, data},
		{"data, few buffers", smallPool, data},
		{"lists, few buffers", smallPool, list},
	} {
		t.Run(c.name, func(t *testing.T) { testSharedReceives(t, c.cfg, c.behind) })
	}
}

func testSharedReceives(t *testing.T, cfg func(*Config), behind func(q *rdmatest.Queue, cmd nvme.Command) []byte) {
	const hogs, each = 8, 128 // many times as many as there are receives
	stuck := newGate(1 << 30)
	e := newEnv(t, envOptions{extra: stuck, cfg: func(c *Config) {
		cfg(c)
		c.PollGroups, c.SRQ, c.SRQDepth = 1, On, 64
	}})
	s := e.admin()
	q := e.queueOf(s, rdmatest.Options{QID: 1}, rdmatest.ConnectParams{InCapsule: true})
	before := e.tr.memory.used.Load()
	cmd := make(nvme.Command, nvme.SQESize)
	var stand []*rdmatest.Queue
	for i := range hogs {
		hog := e.queueOf(s, rdmatest.Options{QID: uint16(2 + i), HSQSize: each - 1}, rdmatest.ConnectParams{InCapsule: true})
		stand = append(stand, hog)
		for i := range each {
			hog.IO(cmd, nvme.CmdWrite, uint16(i), extraNS, 0, 1, 0, 0)
			b := behind(hog, cmd)
			e.must(hog.SendCommand(cmd, b))
		}
	}
	for i := range 100 {
		n := 4096
		fill(q.Data()[:n], byte(i))
		want := bytes.Clone(q.Data()[:n])
		if i%2 == 0 {
			e.must(q.WriteInCapsule(e.ctx, memNS, 8, 8, want))
		} else {
			e.must(q.Write(e.ctx, memNS, 8, 8, 0, n))
		}
		clear(q.Data()[:n])
		e.must(q.Read(e.ctx, memNS, 8, 8, 0, n))
		if !bytes.Equal(q.Data()[:n], want) {
			t.Fatalf("round %d: not what was written", i)
		}
	}
	descs, _ := pieces(q, 8, 8192, 0)
	q.IO(cmd, nvme.CmdWrite, 1, memNS, 0, 16, 0, 0)
	cmd.SGL1().SetSegment(nvme.SGLLastSegment, 0, uint32(len(descs)), nvme.SGLOffset)
	r, err := q.Do(e.ctx, cmd, descs)
	e.status(r.Status, err, 0)

	stuck.open()
	var all sync.WaitGroup // each has to answer READs while others wait for buffers
	for _, hog := range stand {
		all.Go(func() {
			for range each {
				if r, err := hog.Wait(e.ctx); !r.Status.OK() || err != nil {
					t.Errorf("%v, %v", r.Status, err)
					return
				}
			}
		})
	}
	all.Wait()
	for _, hog := range stand {
		e.must(hog.Close())
	}
	e.until("what the hogs had is free", func() bool { return e.tr.memory.used.Load() == before })
	e.must(q.Close())
	e.until("all receives are posted again", func() bool {
		ok := false
		e.tr.groups[0].call(func() {
			gd := e.tr.groups[0].cqs[0].dev
			ok = gd.srq.posted == gd.srq.recvs.n && len(gd.qpns) == 0
		})
		return ok
	})
}

// Auto shares receives once half of the memory is in use.
func TestSharedReceivesAuto(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) {
		c.PollGroups, c.Buffers, c.SRQDepth, c.MemoryLimit = 1, 2<<20, 128, 12<<20
	}})
	s := e.admin()
	var shared, own int
	for qid := uint16(1); qid <= 12; qid++ {
		q := e.queueOf(s, rdmatest.Options{QID: qid, HSQSize: 31, DataSize: 8192}, rdmatest.ConnectParams{})
		e.must(q.WriteInCapsule(e.ctx, memNS, 0, 8, make([]byte, 4096)))
	}
	for _, c := range e.snapshot().Groups[0].Connections {
		if c.SharedRecv {
			shared++
		} else {
			own++
		}
	}
	if shared == 0 || own < 2 {
		t.Errorf("%d with shared receives, %d with their own", shared, own)
	}
}

// The memory of one whole command in shared receives: a bad capsule ends its
// queue only.
func TestSharedReceivesBadCapsule(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) { c.PollGroups, c.SRQ, c.SRQDepth = 1, On, 64 }})
	q := e.queueOf(e.admin(), rdmatest.Options{}, rdmatest.ConnectParams{})
	other := e.queueOf(e.admin(), rdmatest.Options{}, rdmatest.ConnectParams{})
	for range 100 {
		bad := e.queueOf(e.admin(), rdmatest.Options{}, rdmatest.ConnectParams{})
		e.must(bad.Send(make([]byte, 64+4096+1)))
		if err := bad.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		e.must(bad.Close())
		e.must(other.Read(e.ctx, memNS, 0, 8, 0, 4096))
	}
	e.must(q.Send(make([]byte, 10)))
	if err := q.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	e.must(other.Read(e.ctx, memNS, 0, 8, 0, 4096))
}

// A host that takes no responses loses its connection when others wait for the
// buffers that it keeps, and not before.
func TestStalledHost(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) {
		c.PollGroups, c.Buffers, c.StallTimeout = 1, 2<<20, 50*time.Millisecond
	}})
	s := e.admin()
	idle := e.queueOf(s, rdmatest.Options{QID: 2}, rdmatest.ConnectParams{})
	hog := e.queueOf(s, rdmatest.Options{QID: 1, HSQSize: 7, HRQSize: 8, Receives: 1, HoldReceives: true}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 3 {
		nlb := []uint32{2048, 2048, 8}[i] // the share, and what more is allowed of the reserve
		hog.IO(cmd, nvme.CmdRead, uint16(i), memNS, 0, nlb, 0, int(nlb)*blockLen)
		e.must(hog.SendCommand(cmd, nil))
	}
	e.until("the share is used up", func() bool {
		_, _ = hog.Poll()
		return e.slots(1)[slotWantSend.String()]+e.slots(1)[slotSending.String()] == 3
	})
	time.Sleep(150 * time.Millisecond)
	if hog.Conn().Err() != nil {
		t.Error("ended while nobody waited")
	}
	got := make(chan error, 1)
	go func() { got <- idle.Read(e.ctx, memNS, 0, 8, 0, 4096) }()
	if err := hog.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	e.must(<-got)
	if lines := e.log.lines("has not taken a response"); len(lines) != 1 {
		t.Errorf("log %q", lines)
	}
}

// So does one that keeps what a namespace waits for that has none of it.
func TestStalledHostOfOthers(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) {
		c.PollGroups, c.Buffers, c.StallTimeout = 1, 2<<20, 50*time.Millisecond
	}})
	e.addNulls(2)
	s := e.admin()
	other := e.queueOf(s, rdmatest.Options{QID: 2, DataSize: 1 << 20}, rdmatest.ConnectParams{})
	hog := e.queueOf(s, rdmatest.Options{QID: 1, HSQSize: 7, HRQSize: 8, Receives: 1, HoldReceives: true}, rdmatest.ConnectParams{})
	cmd := make(nvme.Command, nvme.SQESize)
	for i, nsid := range []uint32{memNS, memNS, nullNS, lateNS} {
		size := uint32(blockLen)
		if nsid != memNS {
			size = 4096
		}
		hog.IO(cmd, nvme.CmdRead, uint16(i), nsid, 0, 1<<20/size, 0, 1<<20)
		e.must(hog.SendCommand(cmd, nil))
	}
	e.until("the buffers are used up", func() bool {
		_, _ = hog.Poll()
		return e.slots(1)[slotWantSend.String()]+e.slots(1)[slotSending.String()] == 4
	})
	got := make(chan error, 1)
	go func() { got <- other.Read(e.ctx, lateNS+1, 0, 256, 0, 1<<20) }()
	if err := hog.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	e.must(<-got)
	if lines := e.log.lines("has not taken a response"); len(lines) != 1 {
		t.Errorf("log %q", lines)
	}
}

// A host that floods the shared receives loses its connection, and the CQ has
// room for all that it did.
func TestSharedReceivesFlood(t *testing.T) {
	e := newEnv(t, envOptions{cfg: func(c *Config) { c.PollGroups, c.SRQ, c.SRQDepth = 1, On, 8192 }})
	other := e.queueOf(e.admin(), rdmatest.Options{}, rdmatest.ConnectParams{})
	flood := e.queueOf(e.admin(), rdmatest.Options{HSQSize: 1, Sends: 6000, CapsuleSize: 64}, rdmatest.ConnectParams{})
	release := e.tr.groups[0].byHand() // so that it does not look before all is there
	cmd := make(nvme.Command, nvme.SQESize)
	for i := range 6000 {
		flood.IO(cmd, nvme.CmdRead, uint16(i), memNS, 0, 8, 0, 4096)
		if err := flood.SendCommand(cmd, nil); err != nil {
			break
		}
	}
	release()
	if err := flood.WaitClosed(e.ctx); errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	e.must(other.Read(e.ctx, memNS, 0, 8, 0, 4096))
	if lines := e.log.lines("more command capsules outstanding"); len(lines) != 1 {
		t.Errorf("log %q", lines)
	}
}
