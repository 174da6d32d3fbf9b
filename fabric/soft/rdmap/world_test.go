package rdmap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// end is one side: a device with a region, a CQ and a QP.
type end struct {
	w     *world
	name  string
	dev   *core.Device
	cq    core.CQ
	mem   *fabric.Memory
	mr    fabric.MemoryRegion
	qp    *testQP
	batch *Batch
	pool  Pool
	stats Stats
	out   []byte // sent and not yet received by the peer
	eof   bool   // nothing follows out
}

type testQP struct{ QP }

func (q *testQP) CQError(err error) { q.fail(err) }

// world is two connected QPs and the byte streams between them. Everything
// that a network chooses is chosen by rng: how much the socket takes, in what
// pieces bytes come.
type world struct {
	testing.TB
	rng  *rand.Rand
	a, b *end
	// take is the most that a socket takes at a time; 0 takes all.
	take int
	// piece is the most that is received at a time; 0 is all.
	piece int
}

const memSize = 1 << 18

var testLimits = fabric.Limits{
	MaxQPDepth: 1024, MaxCQDepth: 8192, MaxSRQ: 10, MaxSRQDepth: 1024, MaxSGE: 8, MaxReadSGE: 8, MaxInline: 256, MaxMessage: 1 << 30,
	Atomics: true, MemoryWindows: true, SendInvalidate: true,
}

const allRights = fabric.AccessLocalWrite | fabric.AccessRemoteRead | fabric.AccessRemoteWrite | fabric.AccessRemoteAtomic | fabric.AccessWindowBind

var defaultConfig = Config{ORD: 4, IRD: 4, ULPDU: 1442}

func newWorld(t testing.TB, cfg Config) *world {
	t.Helper()
	w := &world{TB: t, rng: rand.New(rand.NewPCG(1, 1))}
	w.a, w.b = w.newEnd("a"), w.newEnd("b")
	passive := cfg
	if cfg.RTR != 0 {
		passive.RTR, passive.Passive = 0, true
	}
	w.a.start(cfg)
	w.b.start(passive)
	t.Cleanup(w.close)
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) newEnd(name string) *end {
	e := &end{w: w, name: name, dev: core.NewDevice(name, testLimits, nil, nil), batch: NewBatch(testLimits.MaxSGE), qp: new(testQP)}
	w.must(e.cq.Init(e.dev, 4096, nil, nil))
	e.mem, e.mr = e.region(memSize, allRights)
	w.must(e.qp.Init(e.dev, e.qp, core.QPConfig{SendCQ: &e.cq, RecvCQ: &e.cq, Conn: &fabric.ConnConfig{
		SendDepth: 64, RecvDepth: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 128,
	}}))
	return e
}

func (e *end) start(cfg Config) {
	cfg.Pool, cfg.Stats = &e.pool, &e.stats
	e.qp.Start(cfg)
	if !e.qp.States().Connect() {
		e.w.Fatal("not connected")
	}
}

func (e *end) region(size int, a fabric.Access) (*fabric.Memory, fabric.MemoryRegion) {
	m, err := fabric.AllocMemory(size)
	e.w.must(err)
	mr, err := e.dev.Register(m, a)
	e.w.must(err)
	e.w.Cleanup(func() {
		mr.Close()
		m.Close()
	})
	return m, mr
}

func (w *world) close() {
	for _, e := range []*end{w.a, w.b} {
		e.qp.States().Set(fabric.QPError)
		e.qp.Flush()
		if n := e.pool.Taken(); n != 0 {
			w.Errorf("%s: %d buffers of the pool are not given back", e.name, n)
		}
	}
}

func (w *world) peer(e *end) *end {
	if e == w.a {
		return w.b
	}
	return w.a
}

// limit is at most n, chosen between 1 and max when that is not 0.
func (w *world) limit(n, most int) int {
	if most > 0 && n > 0 {
		n = min(n, 1+w.rng.IntN(most))
	}
	return n
}

// send has e's socket take bytes once, and says how many.
func (e *end) send() int {
	b := e.batch
	b.Reset()
	g := e.cq.Guard()
	g.Enter()
	defer g.Leave()
	if e.qp.State() == fabric.QPError {
		if !e.eof {
			e.qp.Last(b)
			e.out = b.appendTo(e.out, 0, b.Bytes)
			e.eof = true
			e.qp.Flush()
		}
		return 0
	}
	e.qp.Fill(b)
	if b.Bytes == 0 {
		return 0
	}
	n := e.w.limit(b.Bytes, e.w.take)
	e.out = b.appendTo(e.out, 0, n)
	e.qp.Wrote(b, n)
	return n
}

// receive hands e some of what its peer has sent, and says how much.
func (e *end) receive() int {
	p := e.w.peer(e)
	n := e.w.limit(len(p.out), e.w.piece)
	if e.qp.State() == fabric.QPError {
		p.out = nil
		return 0
	}
	if n == 0 && p.eof {
		e.qp.EOF()
		return 1
	}
	e.feed(p.out[:n])
	p.out = p.out[n:]
	return n
}

// feed is what the provider does with bytes from the socket.
func (e *end) feed(b []byte) {
	g := e.cq.Guard()
	g.Enter()
	defer g.Leave()
	if w := e.qp.Want(); len(w) > 0 {
		k := copy(w, b)
		e.qp.Placed(k)
		b = b[k:]
	}
	e.qp.Feed(b)
}

// run goes on until nothing moves.
func (w *world) run() {
	for idle := 0; idle < 3; {
		moved := 0
		for _, e := range []*end{w.a, w.b} {
			moved += e.send()
			moved += e.receive()
		}
		idle++
		if moved > 0 {
			idle = 0
		}
	}
}

func (e *end) sge(off, n int) fabric.SGE {
	return fabric.SGE{Addr: e.mem.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

func (e *end) bytes(off, n int) []byte { return e.mem.Bytes()[off : off+n : off+n] }

func (e *end) fill(off, n int, seed uint64) { pattern(e.bytes(off, n), seed) }

// pattern fills b with what follows from seed and length.
func pattern(b []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(len(b))))
	for len(b) > 0 {
		var word [8]byte
		binary.NativeEndian.PutUint64(word[:], rng.Uint64())
		b = b[copy(b, word[:]):]
	}
}

// post posts one signaled WR with sges.
func (e *end) post(wr fabric.SendWR, sges ...fabric.SGE) {
	e.w.Helper()
	wr.NumSGE = uint8(len(sges))
	wr.Flags |= fabric.FlagSignaled
	if n, err := e.qp.EnqueueSend([]fabric.SendWR{wr}, sges); n != 1 || err != nil {
		e.w.Fatalf("%s: post: %d, %v", e.name, n, err)
	}
}

// remote is a WR on the peer's memory at off.
func (e *end) remote(op fabric.Opcode, id uint64, off int) fabric.SendWR {
	p := e.w.peer(e)
	return fabric.SendWR{ID: id, Op: op, RemoteAddr: p.mem.Addr() + uint64(off), RKey: p.mr.RKey()}
}

func (e *end) atomic(wr fabric.AtomicWR, sge fabric.SGE) {
	e.w.Helper()
	p := e.w.peer(e)
	wr.RKey, wr.Flags = p.mr.RKey(), fabric.FlagSignaled
	wr.RemoteAddr += p.mem.Addr()
	if n, err := e.qp.EnqueueAtomic([]fabric.AtomicWR{wr}, []fabric.SGE{sge}); n != 1 || err != nil {
		e.w.Fatalf("%s: post atomic: %d, %v", e.name, n, err)
	}
}

// recv posts a receive.
func (e *end) recv(id uint64, sges ...fabric.SGE) {
	e.w.Helper()
	if n, err := e.qp.PostRecv([]fabric.RecvWR{{ID: id, NumSGE: uint8(len(sges))}}, sges); n != 1 || err != nil {
		e.w.Fatalf("%s: post receive: %d, %v", e.name, n, err)
	}
}

// poll takes all completions.
func (e *end) poll() []fabric.Completion {
	e.w.Helper()
	wc := make([]fabric.Completion, 256)
	n, err := e.cq.Poll(wc)
	e.w.must(err)
	return wc[:n]
}

// expect holds e's completions against want: id, operation, status and what a
// success brings.
func (e *end) expect(what string, want ...fabric.Completion) {
	e.w.Helper()
	got := e.poll()
	for i := range got {
		got[i].QPN, got[i].Vendor = 0, 0
	}
	if len(got) != len(want) {
		e.w.Fatalf("%s: %s has %d completions, want %d:\n got %v\nwant %v", what, e.name, len(got), len(want), got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			e.w.Errorf("%s: completion %d at %s:\n got %+v\nwant %+v", what, i, e.name, got[i], want[i])
		}
	}
}

func sent(id uint64, op fabric.Opcode) fabric.Completion { return fabric.Completion{ID: id, Op: op} }

func ended(id uint64, op fabric.Opcode, s fabric.Status) fabric.Completion {
	return fabric.Completion{ID: id, Op: op, Status: s}
}

func received(id uint64, n int) fabric.Completion {
	return fabric.Completion{ID: id, Op: fabric.OpRecv, ByteLen: uint32(n)}
}

func (w *world) same(what string, got, want []byte) {
	w.Helper()
	if !bytes.Equal(got, want) {
		w.Fatalf("%s: %d bytes differ", what, len(want))
	}
}

// configs are what a test of transfers runs with.
func configs() map[string]func() (Config, int, int) {
	m := make(map[string]func() (Config, int, int))
	for _, crc := range []bool{false, true} {
		for _, ulpdu := range []int{80, 1442, 16000, mpa.MaxULPDU} {
			for _, cut := range [][2]int{{0, 0}, {7, 5}, {3000, 5000}} {
				cfg := defaultConfig
				cfg.CRC, cfg.ULPDU = crc, ulpdu
				m[fmt.Sprintf("crc=%v/ulpdu=%d/cut=%v", crc, ulpdu, cut)] = func() (Config, int, int) { return cfg, cut[0], cut[1] }
			}
		}
	}
	return m
}

// nativeWord is the operand of an atomic.
func nativeWord(e *end, off int) uint64 { return binary.NativeEndian.Uint64(e.bytes(off, 8)) }
