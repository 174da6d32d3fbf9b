package rc

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// world is two connected QPs, the link between them and a clock that only the
// test moves.
type world struct {
	t     testing.TB
	now   time.Duration
	ends  [2]*end
	sky   []flying // packets on the way
	seq   int
	trace io.Writer // nil: no trace
	// router decides on each packet: when it arrives, each time it does. nil
	// delivers all after delay.
	router func(from int, op wire.Opcode, n int) []time.Duration
	delay  time.Duration
	count  [2]int // packets sent by each end
}

type flying struct {
	at  time.Duration
	seq int
	to  int
	b   []byte
}

// end is one side: a device with one region, one CQ and one QP.
type end struct {
	name string
	dev  *core.Device
	cq   core.CQ
	mem  *fabric.Memory
	mr   fabric.MemoryRegion
	qp   *testQP
	pkt  Packet
	wcs  []fabric.Completion // polled
}

type testQP struct{ QP }

func (q *testQP) CQError(err error) { q.fail(err) }

const memSize = 2 << 20

var testLimits = fabric.Limits{
	MaxQPDepth: 1024, MaxCQDepth: 8192, MaxSRQ: 10, MaxSRQDepth: 1024, MaxSGE: 16, MaxInline: 256, MaxMessage: 1 << 30,
	Atomics: true, MemoryWindows: true, SendInvalidate: true, RNR: true,
}

type worldConfig struct {
	Config
	depth, sge int
	access     fabric.Access
	psn        psn.Value
	mem        int
}

func defaultConfig() worldConfig {
	return worldConfig{
		Config: Config{
			MTU: 256, ORD: 4, IRD: 4, RetryCount: 3, RNRRetry: 7,
			AckTimeout: 64 * time.Millisecond, RNRTimer: 14,
		},
		depth: 64, sge: 4, psn: 0x100, mem: memSize,
		access: fabric.AccessLocalWrite | fabric.AccessRemoteRead | fabric.AccessRemoteWrite | fabric.AccessRemoteAtomic | fabric.AccessWindowBind,
	}
}

func newWorld(t testing.TB, cfg worldConfig) *world {
	t.Helper()
	w := &world{t: t, delay: 10 * time.Microsecond}
	for i, name := range []string{"a", "b"} {
		e := &end{name: name, dev: core.NewDevice(name, testLimits, nil, nil)}
		e.pkt.Header = make([]byte, 0, wire.MaxHeader)
		w.must(e.cq.Init(e.dev, 4*cfg.depth, nil, nil))
		mem, err := fabric.AllocMemory(cfg.mem)
		w.must(err)
		e.mem = mem
		e.mr, err = e.dev.Register(mem, cfg.access)
		w.must(err)
		e.qp = &testQP{}
		w.must(e.qp.Init(e.dev, e.qp, core.QPConfig{SendCQ: &e.cq, RecvCQ: &e.cq, Conn: &fabric.ConnConfig{
			SendDepth: cfg.depth, RecvDepth: cfg.depth, MaxSendSGE: cfg.sge, MaxRecvSGE: cfg.sge, MaxInline: 256,
		}}))
		w.ends[i] = e
	}
	for i, e := range w.ends {
		c := cfg.Config
		c.DestQPN, c.SendPSN, c.RecvPSN = w.ends[1-i].qp.Num(), cfg.psn.Add(i*0x1000), cfg.psn.Add((1-i)*0x1000)
		e.qp.Start(c)
		if !e.qp.States().Connect() {
			t.Fatal("no connection")
		}
	}
	t.Cleanup(w.close)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) close() {
	for _, e := range w.ends {
		e.qp.Destroy()
		_ = e.cq.Close()
		_ = e.mr.Close()
		_ = e.mem.Close()
	}
}

func (w *world) printf(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%8.3fms ", float64(w.now)/1e6)
		fmt.Fprintf(w.trace, format+"\n", args...)
	}
}

// describe is a packet in one line, sequence numbers as they are.
func describe(p *wire.Packet) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s psn=%v", strings.TrimPrefix(p.Op.String(), "RC "), p.BTH.PSN())
	i := p.Info
	if i.Has(wire.Payload) {
		fmt.Fprintf(&s, " %dB", len(p.Payload))
	}
	if i.Has(wire.HasRETH) {
		fmt.Fprintf(&s, " len=%d", p.RETH().Length())
	}
	if i.Has(wire.HasAETH) {
		fmt.Fprintf(&s, " msn=%d", uint32(p.AETH().MSN()))
		if i.Kind == wire.KindAck {
			fmt.Fprintf(&s, " %v", p.AETH().Syndrome())
		}
	}
	if i.Has(wire.HasAtomicAck) {
		fmt.Fprintf(&s, " original=%d", p.AtomicOriginal())
	}
	if i.Has(wire.HasImm) {
		fmt.Fprintf(&s, " imm=%d", p.Imm())
	}
	if p.BTH.AckReq() {
		s.WriteString(" A")
	}
	if p.BTH.Solicited() {
		s.WriteString(" SE")
	}
	return s.String()
}

// pump lets both ends send what they can and shows what they completed.
func (w *world) pump() {
	for i, e := range w.ends {
		g := e.cq.Guard()
		g.Enter()
		for e.qp.Next(&e.pkt, w.now, true) {
			w.launch(i, e)
		}
		if e.qp.State() == fabric.QPError {
			e.qp.Flush()
		}
		g.Leave()
		w.poll(e)
	}
}

func (w *world) poll(e *end) {
	var wc [64]fabric.Completion
	for {
		n, err := e.cq.Poll(wc[:])
		w.must(err)
		for _, c := range wc[:n] {
			e.wcs = append(e.wcs, c)
			s := fmt.Sprintf("%s: completion %d %v, %v", e.name, c.ID, c.Op, strings.SplitN(c.Status.String(), ":", 2)[0])
			if c.Op >= fabric.OpRecv && c.Status == 0 || c.ByteLen > 0 {
				s += fmt.Sprintf(", %d bytes", c.ByteLen)
			}
			if c.Flags&fabric.CompletionImm != 0 {
				s += fmt.Sprintf(", imm %d", c.Imm)
			}
			if c.Flags&fabric.CompletionInvalidated != 0 {
				s += ", key invalidated"
			}
			w.printf("%s", s)
		}
		if n == 0 {
			return
		}
	}
}

// launch puts the packet of an end on its way.
func (w *world) launch(from int, e *end) {
	b := slices.Concat(append([][]byte{e.pkt.Header}, e.pkt.Data...)...)
	if len(b) != len(e.pkt.Header)+e.pkt.Size {
		w.t.Fatalf("packet of %d bytes says it has %d", len(b), len(e.pkt.Header)+e.pkt.Size)
	}
	b = append(b, make([]byte, wire.PadLen(e.pkt.Size)+wire.ICRCLen)...)
	if len(b) != e.pkt.Len() {
		w.t.Fatalf("packet of %d bytes has Len %d", len(b), e.pkt.Len())
	}
	var p wire.Packet
	w.must(p.Parse(b))
	w.count[from]++
	arrivals := []time.Duration{w.delay}
	if w.router != nil {
		arrivals = w.router(from, p.Op, w.count[from])
	}
	fate := ""
	switch len(arrivals) {
	case 0:
		fate = "  LOST"
	case 1:
		if arrivals[0] != w.delay {
			fate = fmt.Sprintf("  LATE %v", arrivals[0])
		}
	default:
		fate = "  TWICE"
	}
	w.printf("%s> %s%s", e.name, describe(&p), fate)
	for _, d := range arrivals {
		w.seq++
		w.sky = append(w.sky, flying{w.now + d, w.seq, 1 - from, b})
	}
}

// step moves the clock to the next event and handles it. It is false when
// nothing will happen any more before until.
func (w *world) step(until time.Duration) bool {
	w.pump()
	next := Never
	if len(w.sky) > 0 {
		next = slices.MinFunc(w.sky, func(a, b flying) int { return cmp.Compare(a.at, b.at) }).at
	}
	for _, e := range w.ends {
		next = min(next, e.qp.Deadline())
	}
	if next == Never || next > until {
		return false
	}
	w.now = max(w.now, next)
	w.deliver()
	for _, e := range w.ends {
		if d := e.qp.Deadline(); d <= w.now {
			e.qp.Expire(w.now)
		}
	}
	return true
}

// deliver hands over what has arrived by now, in order.
func (w *world) deliver() {
	slices.SortStableFunc(w.sky, func(a, b flying) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq))
	})
	for len(w.sky) > 0 && w.sky[0].at <= w.now {
		f := w.sky[0]
		w.sky = w.sky[1:]
		e := w.ends[f.to]
		var p wire.Packet
		w.must(p.Parse(f.b))
		e.cq.Guard().Enter()
		e.qp.Receive(&p, w.now)
		e.cq.Guard().Leave()
	}
}

// run goes on until nothing happens any more, or the time is over.
func (w *world) run(limit time.Duration) {
	w.t.Helper()
	for steps, until := 0, w.now+limit; w.step(until); steps++ {
		if steps > 1_000_000 {
			w.t.Fatal("does not come to rest")
		}
	}
}

// sge names bytes of an end's memory.
func (e *end) sge(off, n int) fabric.SGE {
	return fabric.SGE{Addr: e.mem.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

// post posts one WR with one SGE.
func (w *world) post(from int, wr fabric.SendWR, sges ...fabric.SGE) {
	w.t.Helper()
	wr.NumSGE = uint8(len(sges))
	if n, err := w.ends[from].qp.EnqueueSend([]fabric.SendWR{wr}, sges); n != 1 {
		w.t.Fatal(err)
	}
}

func (w *world) recv(at int, id uint64, sges ...fabric.SGE) {
	w.t.Helper()
	if n, err := w.ends[at].qp.PostRecv([]fabric.RecvWR{{ID: id, NumSGE: uint8(len(sges))}}, sges); n != 1 {
		w.t.Fatal(err)
	}
}

// fill writes a pattern that differs in each byte's place.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + seed)
	}
}
