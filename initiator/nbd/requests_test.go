package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

// pattern is n bytes that no place repeats.
func pattern(seed uint64, n int) []byte {
	b := make([]byte, n+8)
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b[:n]
}

// Every size from a block to the maximum, of one command or many, is moved
// whole, with both forms of replies.
func TestReadWrite(t *testing.T) {
	r := newRig(t, Options{})
	for name, k := range map[string]*client{"structured": r.connect(), "simple": r.plain()} {
		t.Run(name, func(t *testing.T) {
			for i, size := range []int{512, 1024, 4096, smallSize - 512, smallSize, smallSize + 512, 128 << 10, slabSize, slabSize + 512, 1 << 20, 3<<20 + 512, MaxPayload} {
				p, off := pattern(uint64(i), size), uint64(1+i)*512
				k.ok(cmdWrite, 0, off, size, p)
				if !bytes.Equal(r.stored(off, size), p) {
					t.Errorf("%d bytes: written is something else", size)
				}
				got := k.do(cmdRead, 0, off, size, nil)
				if !bytes.Equal(got.data, p) || got.chunk && got.offset != off {
					t.Errorf("%d bytes: read is something else", size)
				}
			}
		})
	}
}

// Many requests are in flight, and all are answered, in whatever order.
func TestPipeline(t *testing.T) {
	r := newRig(t, Options{Queues: 2})
	const requests = 600
	for _, k := range []*client{r.connect(), r.plain(), r.connect()} {
		want := make(map[uint64]uint64)
		// One slot each, so that no two requests are about the same bytes.
		go func() {
			var b []byte
			for i := range requests {
				off := uint64(i) * 32 << 10
				p := pattern(off, 32<<10)[:[]int{512, 4096, 20 << 10}[i%3]]
				b = append(requestHeader(cmdWrite, 0, uint64(i), off, uint32(len(p))), p...)
				if _, err := k.Write(b); err != nil {
					return // the reader finds out
				}
			}
		}()
		for i := range requests {
			want[uint64(i)] = 0
		}
		for range requests {
			got := k.reply(0)
			if _, ok := want[got.cookie]; !ok || got.errno != 0 {
				t.Fatalf("%+v", got)
			}
			delete(want, got.cookie)
		}
		for i := range requests {
			off := uint64(i) * 32 << 10
			if p := pattern(off, 32<<10)[:[]int{512, 4096, 20 << 10}[i%3]]; !bytes.Equal(r.stored(off, len(p)), p) {
				t.Fatalf("request %d has written something else", i)
			}
		}
		r.set(func() { clear(r.data) })
	}
}

// The commands are what the request asks for.
func TestCommands(t *testing.T) {
	r := newRig(t, Options{})
	k := r.connect()
	cmd := func(op nvme.Opcode, flags initiator.Flags, lba uint64, blocks uint32) initiator.IO {
		return initiator.IO{Op: op, Flags: flags, LBA: lba, Blocks: blocks}
	}
	for _, c := range []struct {
		name       string
		typ, flags uint16
		off        uint64
		length     int
		want       []initiator.IO
	}{
		{"read", cmdRead, 0, 1024, 4096, []initiator.IO{cmd(nvme.CmdRead, 0, 2, 8)}},
		{"read, DF and FUA", cmdRead, cmdFlagDF | cmdFlagFUA, 0, 512, []initiator.IO{cmd(nvme.CmdRead, 0, 0, 1)}},
		{"read of two", cmdRead, 0, 0, 192 << 10, []initiator.IO{cmd(nvme.CmdRead, 0, 0, 256), cmd(nvme.CmdRead, 0, 256, 128)}},
		{"write", cmdWrite, 0, 512, 512, []initiator.IO{cmd(nvme.CmdWrite, 0, 1, 1)}},
		{"write, FUA", cmdWrite, cmdFlagFUA, 512, 512, []initiator.IO{cmd(nvme.CmdWrite, initiator.FUA, 1, 1)}},
		{"flush", cmdFlush, 0, 0, 0, []initiator.IO{cmd(nvme.CmdFlush, 0, 0, 0)}},
		{"trim", cmdTrim, 0, 0, 2 << 20, []initiator.IO{cmd(nvme.CmdDatasetManagement, 0, 0, 2048), cmd(nvme.CmdDatasetManagement, 0, 2048, 2048)}},
		{"trim, FUA", cmdTrim, cmdFlagFUA, 0, 4096, []initiator.IO{cmd(nvme.CmdDatasetManagement, 0, 0, 8), cmd(nvme.CmdFlush, 0, 0, 0)}},
		{"write zeroes", cmdWriteZeroes, 0, 0, 96 << 10, []initiator.IO{cmd(nvme.CmdWriteZeroes, initiator.Deallocate, 0, 128), cmd(nvme.CmdWriteZeroes, initiator.Deallocate, 128, 64)}},
		{"write zeroes, no hole", cmdWriteZeroes, cmdFlagNoHole | cmdFlagFUA, 0, 512, []initiator.IO{cmd(nvme.CmdWriteZeroes, initiator.FUA, 0, 1)}},
		{"nothing", cmdRead, 0, 512, 0, nil},
		{"write of nothing", cmdWrite, 0, 512, 0, nil},
		{"trim of nothing", cmdTrim, cmdFlagFUA, 512, 0, nil},
		{"block status", cmdBlockStatus, cmdFlagReqOne, 0, 1 << 20, nil},
	} {
		r.commands()
		var p []byte
		if c.typ == cmdWrite {
			p = pattern(3, c.length)
		}
		got := k.do(c.typ, c.flags, c.off, c.length, p)
		list := r.commands()
		for i := range list {
			list[i].Tag, list[i].Offset = 0, 0
		}
		if got.errno != 0 || !slices.Equal(list, c.want) {
			t.Errorf("%s: error %d, commands %+v", c.name, got.errno, list)
		}
		if c.typ == cmdBlockStatus && (got.typ != replyBlockStatus || !bytes.Equal(got.data, []byte{0, 0, 0, contextID, 0, 16, 0, 0, 0, 0, 0, 0})) {
			t.Errorf("block status %+v", got)
		}
	}
}

// What may not be asked for is refused, and the connection goes on.
func TestRefused(t *testing.T) {
	r := newRig(t, Options{})
	before := r.stored(0, testSize)
	ro := newRig(t, Options{ReadOnly: true})
	k, simple, readOnly := r.connect(), r.plain(), ro.connect()
	for _, c := range []struct {
		name       string
		k          *client
		typ, flags uint16
		off        uint64
		length     int
		errno      uint32
	}{
		{"unknown", k, 9, 0, 0, 512, errnoInval},
		{"unknown, high", k, 0xffff, 0, 0, 512, errnoInval},
		{"cache", k, 5, 0, 0, 512, errnoInval},
		{"block status of nothing", k, cmdBlockStatus, 0, 0, 0, errnoInval},
		{"block status, not negotiated", simple, cmdBlockStatus, 0, 0, 512, errnoInval},
		{"DF, not negotiated", simple, cmdRead, cmdFlagDF, 0, 512, errnoInval},
		{"flag of another request", k, cmdWrite, cmdFlagNoHole, 0, 512, errnoInval},
		{"unknown flag", k, cmdRead, 1 << 5, 0, 512, errnoInval},
		{"fast zero", k, cmdWriteZeroes, cmdFlagFastZero, 0, 512, errnoNotSup},
		{"flush of a range", k, cmdFlush, 0, 0, 512, errnoInval},
		{"unaligned offset", k, cmdRead, 0, 100, 512, errnoInval},
		{"unaligned length", k, cmdWrite, 0, 0, 100, errnoInval},
		{"read beyond the end", k, cmdRead, 0, testSize - 512, 1024, errnoInval},
		{"read far beyond the end", k, cmdRead, 0, math.MaxUint64 - 511, 512, errnoInval},
		{"trim beyond the end", k, cmdTrim, 0, testSize, 512, errnoInval},
		{"write beyond the end", k, cmdWrite, 0, testSize, 512, errnoNoSpace},
		{"write zeroes beyond the end", k, cmdWriteZeroes, 0, math.MaxUint64 - 511, 512, errnoNoSpace},
		{"read of too much", k, cmdRead, 0, 0, MaxPayload + 512, errnoOverflow},
		{"read of all there is", k, cmdRead, 0, 0, math.MaxUint32, errnoOverflow},
		{"simple read of too much", simple, cmdRead, 0, 0, MaxPayload + 512, errnoInval},
		{"write of too much", k, cmdWrite, 0, 0, MaxPayload + 512, errnoInval},
		{"write of far too much", simple, cmdWrite, 0, 0, maxDrain, errnoInval},
		{"write, read-only", readOnly, cmdWrite, 0, 0, 4096, errnoPerm},
		{"trim, read-only", readOnly, cmdTrim, 0, 0, 4096, errnoPerm},
		{"write zeroes, read-only", readOnly, cmdWriteZeroes, 0, 0, 4096, errnoPerm},
	} {
		var p []byte
		if c.typ == cmdWrite {
			p = pattern(7, c.length)
		}
		got := c.k.do(c.typ, c.flags, c.off, c.length, p)
		if got.errno != c.errno || got.chunk != c.k.structured {
			t.Errorf("%s: %+v, want error %d", c.name, got, c.errno)
		}
		c.k.ok(cmdRead, 0, 0, 512, nil)
	}
	if !bytes.Equal(r.stored(0, testSize), before) || !bytes.Equal(ro.stored(0, testSize), before) {
		t.Error("what was refused has changed something")
	}
}

// Statuses and errors of the initiator are told in the protocol's terms.
func TestErrors(t *testing.T) {
	r := newRig(t, Options{})
	k := r.connect()
	for _, c := range []struct {
		typ   uint16
		res   initiator.Result
		errno uint32
	}{
		{cmdWrite, initiator.Result{Status: nvme.CapacityExceeded}, errnoNoSpace},
		{cmdWrite, initiator.Result{Status: nvme.LBAOutOfRange}, errnoNoSpace},
		{cmdRead, initiator.Result{Status: nvme.LBAOutOfRange}, errnoInval},
		{cmdTrim, initiator.Result{Status: nvme.NamespaceWriteProtected}, errnoPerm},
		{cmdWrite, initiator.Result{Status: nvme.ReservationConflict}, errnoPerm},
		{cmdWrite, initiator.Result{Status: nvme.WriteToReadOnlyRange}, errnoPerm},
		{cmdRead, initiator.Result{Status: nvme.AccessDenied}, errnoPerm},
		{cmdRead, initiator.Result{Status: nvme.UnrecoveredReadError}, errnoIO},
		{cmdFlush, initiator.Result{Status: nvme.InternalError}, errnoIO},
		{cmdWriteZeroes, initiator.Result{Status: nvme.InvalidOpcode}, errnoInval},
		{cmdRead, initiator.Result{Status: nvme.NamespaceNotReady | nvme.Status(0x4000)}, errnoIO}, // DNR
		{cmdRead, initiator.Result{Err: initiator.ErrPathLost}, errnoIO},
		{cmdRead, initiator.Result{Err: initiator.ErrControllerLost}, errnoIO},
		{cmdRead, initiator.Result{Err: fmt.Errorf("closed: %w", net.ErrClosed)}, errnoShutdown},
	} {
		r.set(func() { r.judge = func(*initiator.IO) (initiator.Result, bool) { return c.res, false } })
		size := 4096
		var p []byte
		switch c.typ {
		case cmdFlush:
			size = 0
		case cmdWrite:
			p = make([]byte, size)
		}
		if got := k.do(c.typ, 0, 0, size, p); got.errno != c.errno {
			t.Errorf("request %d, %+v: error %d, want %d", c.typ, c.res, got.errno, c.errno)
		}
	}
	// The first of many commands that fails is the error of all, and ends them.
	r.commands()
	r.set(func() {
		r.judge = func(io *initiator.IO) (initiator.Result, bool) {
			return initiator.Result{Status: nvme.WriteFault}, io.LBA != 256
		}
	})
	if got := k.do(cmdWrite, 0, 0, 1<<20, make([]byte, 1<<20)); got.errno != errnoIO || !bytes.Contains(got.data, []byte("Write: ")) {
		t.Errorf("%+v %q", got, got.data)
	}
	r.set(func() { r.judge = nil })
	k.ok(cmdRead, 0, 0, 4096, nil)
}

// What the target is not ready for is sent again, whole; what it never is ready
// for fails.
func TestRetries(t *testing.T) {
	r := newRig(t, Options{})
	k := r.connect()
	for _, st := range []nvme.Status{nvme.AbortedSQDeletion, nvme.NamespaceNotReady, nvme.ANATransition} {
		fail := 3
		r.set(func() {
			r.judge = func(io *initiator.IO) (initiator.Result, bool) {
				fail--
				return initiator.Result{Status: st}, fail < 0 || io.LBA == 0
			}
		})
		p := pattern(uint64(st), 1<<20)
		k.ok(cmdWrite, 0, 0, len(p), p)
		if !bytes.Equal(r.stored(0, len(p)), p) {
			t.Errorf("%v: written is something else", st)
		}
	}
	fail := 1
	r.set(func() {
		r.judge = func(io *initiator.IO) (initiator.Result, bool) {
			fail--
			return initiator.Result{Status: nvme.CommandInterrupted}, fail < 0
		}
	})
	r.commands()
	k.ok(cmdTrim, cmdFlagFUA, 0, 4096, nil)
	var ops []nvme.Opcode
	for _, io := range r.commands() {
		ops = append(ops, io.Op)
	}
	if !slices.Equal(ops, []nvme.Opcode{nvme.CmdDatasetManagement, nvme.CmdDatasetManagement, nvme.CmdFlush}) {
		t.Errorf("commands %v", ops)
	}
}

// The size of an export is that of the moment of negotiation.
func TestResize(t *testing.T) {
	r := newRig(t, Options{})
	k := r.connect()
	r.set(func() { r.data = append(r.data, make([]byte, 1<<20)...) })
	if got := k.do(cmdRead, 0, testSize, 512, nil); got.errno != errnoInval {
		t.Errorf("%+v", got)
	}
	if n := r.connect(); n.size != testSize+1<<20 {
		t.Errorf("%d bytes", n.size)
	} else {
		n.ok(cmdRead, 0, testSize, 512, nil)
	}
	r.set(func() { r.data = r.data[:1<<20] })
	if got := k.do(cmdWrite, 0, 2<<20, 512, make([]byte, 512)); got.errno != errnoNoSpace {
		t.Errorf("%+v", got)
	}
}

// In the end what is in flight is answered, and what comes is refused.
func TestShutdown(t *testing.T) {
	r := newRig(t, Options{})
	k, idle, half := r.connect(), r.connect(), r.connect()
	half.send(requestHeader(cmdWrite, 0, 1, 0, 4096)[:20])
	r.set(func() { r.hold = true })
	p := pattern(1, 4096)
	first := k.request(cmdWrite, 0, 0, len(p), p)
	r.eventually("the write is in flight", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.log) == 1 })
	r.stop()
	idle.gone()
	half.gone()
	second := k.request(cmdRead, 0, 0, 4096, nil)
	if got := k.reply(4096); got.cookie != second || got.errno != errnoShutdown {
		t.Errorf("%+v", got)
	}
	r.set(func() { r.hold = false })
	if got := k.reply(0); got.cookie != first || got.errno != 0 || !bytes.Equal(r.stored(0, 4096), p) {
		t.Errorf("%+v", got)
	}
	k.gone()
	r.end()
	if _, err := net.Dial("unix", r.path); err == nil {
		t.Error("the socket is still there")
	}
}

// A client that negotiates is told of the end too.
func TestShutdownHandshake(t *testing.T) {
	r := newRig(t, Options{})
	k := r.dial(3)
	k.option(optList, nil)
	r.stop()
	r.eventually("the server ends", r.srv.closing.Load)
	if got := last(k.option(optList, nil)); got.typ != repErrShutdown {
		t.Errorf("%+v", got)
	}
	r.end()
}

// When the controller was closed clients are told so, those that come later too;
// and nobody is told in vain of the end.
func TestQueuesClosed(t *testing.T) {
	r := newRig(t, Options{})
	k := r.connect()
	k.ok(cmdRead, 0, 0, 512, nil)
	r.set(func() {
		for _, q := range r.opened {
			q.closed = true
		}
	})
	for _, k := range []*client{k, r.connect(), r.connect(), k} {
		if got := k.do(cmdRead, 0, 0, 512, nil); got.errno != errnoShutdown {
			t.Errorf("%+v", got)
		}
	}
	r.stop()
	k.gone()
	r.end()
}

// A client that takes no replies holds up the end for a while.
func TestGrace(t *testing.T) {
	r := newRig(t, Options{Grace: 10 * time.Millisecond})
	k := r.connect()
	for range 3 {
		k.request(cmdRead, 0, 0, MaxPayload, nil)
	}
	r.eventually("replies are on their way", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.log) >= MaxPayload/(128<<10) })
	r.end()
}

func TestNewErrors(t *testing.T) {
	for _, o := range []Options{{Name: "\xff"}, {Name: string(make([]byte, 5000))}, {Queues: -1}, {Connections: -1}, {Grace: -1}} {
		if _, err := newServer(t.Context(), newDisk(t), o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	d := newDisk(t)
	d.queues = 0
	if _, err := newServer(t.Context(), d, Options{}); !errors.Is(err, initiator.ErrNoQueue) {
		t.Error(err)
	}
	d.queues, d.deaf = 1, errors.New("deaf")
	if _, err := newServer(t.Context(), d, Options{}); !errors.Is(err, d.deaf) || !d.opened[0].closed {
		t.Errorf("%v; the queue is closed: %v", err, d.opened[0].closed)
	}
	d.queues, d.deaf = 1, nil
	s, err := newServer(t.Context(), d, Options{Queues: 9})
	if err != nil || s.Queues() != 1 {
		t.Errorf("%v", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if err := s.Serve(t.Context(), nopListener{}); err == nil {
		t.Error("a closed server serves")
	}
}

type nopListener struct{ net.Listener }

func (nopListener) Close() error { return nil }
