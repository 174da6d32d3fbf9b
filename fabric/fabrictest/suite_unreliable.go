package fabrictest

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/nvmf-go/nvmf/fabric"
)

// unreliableMTU is the path MTU of the suite's unreliable connections, and the
// longest datagram it sends.
const unreliableMTU = 1024

// tries is how often a message is sent that may be lost on the way.
const tries = 30

// stopper is what QPs without a connection have.
type stopper interface {
	fabric.QueuePair
	fabric.Stopper
}

// unreliableConfig is the usual configuration of a QP.
func (sd *side) unreliableConfig() fabric.UnreliableConfig {
	c := sd.config()
	return fabric.UnreliableConfig{
		SendCQ: c.SendCQ, RecvCQ: c.RecvCQ, SendDepth: c.SendDepth, RecvDepth: c.RecvDepth,
		MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE, MaxInline: c.MaxInline,
	}
}

// closeWith destroys the QP with the test.
func (sd *side) closeWith(qp stopper) {
	sd.qp = qp
	sd.s.Cleanup(func() {
		sd.s.closed(sd.name+": queue pair", qp.Close())
		sd.s.closed(sd.name+": queue pair, again", qp.Close())
	})
}

func (sd *side) stopper() stopper { return sd.qp.(stopper) }

// arrives sends a message until it has come, for it may be lost, and holds its
// completion against want.
func (sd *side) arrives(send func(), want fabric.Completion) {
	sd.s.Helper()
	for range tries {
		send()
		if sd.s.within(sd.s.cfg.Timeout/10, func() bool { return len(sd.inbox[sd.qp.Num()]) > 0 }) {
			sd.ok(want)
			return
		}
	}
	sd.s.Fatalf("a message was sent %d times and never came to %s; dropped: %+v", tries, sd.name, sd.drops())
}

// drops is what a QP counts, nothing when it does not.
func (sd *side) drops() fabric.Drops {
	if c, ok := sd.qp.(fabric.DropCounter); ok {
		return c.Drops()
	}
	return fabric.Drops{}
}

// dropped sends a message that the side must not deliver, until it counts it
// where it counts.
func (sd *side) dropped(what string, send func(), count func(fabric.Drops) uint64) {
	sd.s.Helper()
	if _, ok := sd.qp.(fabric.DropCounter); !ok {
		send()
		sd.s.pause()
	} else {
		before := count(sd.drops())
		for n := 0; count(sd.drops()) == before; n++ {
			if n == tries {
				sd.s.Fatalf("%s: not counted: %+v", what, sd.drops())
			}
			send()
			sd.s.within(sd.s.cfg.Timeout/10, func() bool { return count(sd.drops()) != before })
		}
	}
	sd.none(what)
}

// sqe checks that a send of the side has failed with that status, the one behind
// it was flushed, and the QP is in SQE.
func (sd *side) sqe(what string, want fabric.Status) {
	s := sd.s
	s.Helper()
	checkIDs(s, what, sd.take(1), want, sendID+1)
	checkIDs(s, what+": behind it", sd.take(1), fabric.StatusFlushed, sendID+2)
	state := fabric.QPSendQueueError
	if s.cfg.NoSQE != "" {
		state = fabric.QPError
	}
	if st := sd.qp.State(); st != state {
		s.Fatalf("%s: state %v, want %v", what, st, state)
	}
}

// recover takes the side from SQE to RTS.
func (sd *side) recover() {
	sd.s.Helper()
	sd.s.must(sd.stopper().Recover())
	if st := sd.qp.State(); st != fabric.QPReadyToSend {
		sd.s.Errorf("state %v after Recover", st)
	}
	if err := sd.stopper().Recover(); !errors.Is(err, fabric.ErrInvalid) {
		sd.s.Errorf("Recover in RTS: %v", err)
	}
}

// stops checks that Stop flushes count receives.
func (sd *side) stops(count int) {
	s := sd.s
	s.Helper()
	s.must(sd.stopper().Stop())
	s.must(sd.stopper().Stop())
	for i, c := range sd.take(count) {
		if c.Status != fabric.StatusFlushed || c.ID != recvID+uint64(i) {
			s.Errorf("receive %d after Stop: %+v", i, c)
		}
	}
	if st := sd.qp.State(); st != fabric.QPError {
		s.Errorf("state %v after Stop", st)
	}
}

// newUnreliable makes a UC QP in INIT, or skips.
func (s *suite) newUnreliable(e *end) (*side, fabric.UnreliableQP) {
	s.Helper()
	s.need(e.dev.Limits().UnreliableConnections, "unreliable connections")
	d, ok := e.dev.(fabric.UnreliableConnector)
	if !ok {
		s.Fatal("Limits.UnreliableConnections is set, but the device does not implement fabric.UnreliableConnector")
	}
	sd := &side{end: e}
	qp, err := d.NewUnreliableQP(sd.unreliableConfig())
	s.must(err)
	sd.closeWith(qp)
	if st := qp.State(); st != fabric.QPInit {
		s.Errorf("a new queue pair is in state %v", st)
	}
	return sd, qp
}

// unreliable connects two UC QPs.
func (s *suite) unreliable() *channel {
	s.Helper()
	a, qa := s.newUnreliable(s.a)
	b, qb := s.newUnreliable(s.b)
	s.must(qa.Connect(fabric.UnreliablePeer{Addr: s.b.addr, QPN: qb.Num(), SendPSN: 0xfffffe, RecvPSN: 5, MTU: unreliableMTU}))
	s.must(qb.Connect(fabric.UnreliablePeer{Addr: s.a.addr, QPN: qa.Num(), SendPSN: 5, RecvPSN: 0xfffffe, MTU: unreliableMTU}))
	for _, sd := range []*side{a, b} {
		if st := sd.qp.State(); st != fabric.QPReadyToSend {
			s.Fatalf("state %v after Connect", st)
		}
	}
	return &channel{a: a, b: b}
}

// sends is a message of a that completes at a.
func (sd *side) sends(wr fabric.SendWR, sges ...fabric.SGE) func() {
	return func() {
		sd.s.Helper()
		sd.send(wr, sges...)
		sd.ok(fabric.Completion{ID: wr.ID, Op: wr.Op})
	}
}

// works checks that a SEND arrives in one direction.
func works(what string, from, to *side) {
	from.s.Helper()
	to.recv(800, 1, memorySize-64, 64)
	fill(from.bytes(memorySize-128, 64), 0xa11f)
	to.arrives(from.sends(fabric.SendWR{ID: sendID + 800, Op: fabric.OpSend}, from.sge(memorySize-128, 64)),
		fabric.Completion{ID: recvID + 800, Op: fabric.OpRecv, ByteLen: 64})
	same(from.s, what, to.bytes(memorySize-64, 64), from.bytes(memorySize-128, 64))
}

var unreliableSizes = []int{0, 1, 63, unreliableMTU - 1, unreliableMTU, unreliableMTU + 1, 3*unreliableMTU + 5, 8 * unreliableMTU}

// testUnreliableSend: messages of every size, both ways, with immediate and
// without.
func testUnreliableSend(s *suite) {
	ch := s.unreliable()
	for i, n := range unreliableSizes {
		from, to := ch.a, ch.b
		if i%2 == 1 {
			from, to = to, from
		}
		const room = 10 * unreliableMTU
		to.recv(i, 1, 1<<20, room)
		fill(from.bytes(0, n), uint32(n))
		wr := fabric.SendWR{ID: sendID + uint64(i), Op: fabric.OpSend}
		want := fabric.Completion{ID: recvID + uint64(i), Op: fabric.OpRecv, ByteLen: uint32(n)}
		if i%4 > 1 {
			wr.Op, wr.Imm, want.Imm, want.Flags = fabric.OpSendImm, 0xfeedbee0+uint32(i), 0xfeedbee0+uint32(i), fabric.CompletionImm
		}
		sges := from.sges(0, 0, n/3, n-n/3)
		if s.a.dev.Limits().MaxSGE == 1 {
			sges = from.sges(0, 0, n)
		}
		to.arrives(from.sends(wr, sges...), want)
		same(s, fmt.Sprintf("message of %d bytes", n), to.bytes(1<<20, n), from.bytes(0, n))
	}
	if k := min(ch.a.qp.MaxInline(), 32); k > 0 {
		ch.b.recv(50, 1, 0, 64)
		wr := fabric.SendWR{ID: sendID, Op: fabric.OpSend, Flags: fabric.FlagInline}
		ch.b.arrives(ch.a.sends(wr, ch.a.sge(0, k)), fabric.Completion{ID: recvID + 50, Op: fabric.OpRecv, ByteLen: uint32(k)})
	}
}

// testUnreliableWrite: RDMA WRITE goes where it says, and its immediate comes
// behind the data.
func testUnreliableWrite(s *suite) {
	ch := s.unreliable()
	for i, n := range unreliableSizes {
		const at = 1 << 20
		clear(ch.b.bytes(at-8, n+16))
		fill(ch.a.bytes(0, n), uint32(n)+7)
		ch.b.recv(i, 1, 0, 16)
		imm := fabric.SendWR{ID: sendID + uint64(i), Op: fabric.OpWriteImm, Imm: uint32(n), RemoteAddr: ch.b.mem.Addr() + at, RKey: ch.b.mr.RKey()}
		plain := imm
		plain.Op, plain.ID = fabric.OpWrite, sendID+100
		ch.b.arrives(func() {
			ch.a.sends(plain, ch.a.sge(0, n))()
			ch.a.sends(imm, ch.a.sge(0, n))()
		}, fabric.Completion{ID: recvID + uint64(i), Op: fabric.OpRecvWriteImm, ByteLen: uint32(n), Imm: uint32(n), Flags: fabric.CompletionImm})
		same(s, fmt.Sprintf("WRITE of %d bytes", n), ch.b.bytes(at, n), ch.a.bytes(0, n))
		same(s, "in front of it", ch.b.bytes(at-8, 8), make([]byte, 8))
		same(s, "behind it", ch.b.bytes(at+n, 8), make([]byte, 8))
	}
}

// testUnreliableDrops: what the receiver cannot use is dropped, changes nothing,
// and both ends go on. The sender learns nothing.
func testUnreliableDrops(s *suite) {
	ch := s.unreliable()
	_, readOnly := s.b.alloc(4096, fabric.AccessLocalWrite|fabric.AccessRemoteRead)
	access := func(d fabric.Drops) uint64 { return d.Access }
	fill(ch.a.bytes(0, 4096), 3)
	before := make([]byte, 4096)
	copy(before, ch.b.bytes(0, 4096))
	for name, wr := range map[string]fabric.SendWR{
		"unknown key":       {RemoteAddr: ch.b.mem.Addr(), RKey: s.unknownKey()},
		"without the right": {RemoteAddr: readOnly.Memory().Addr(), RKey: readOnly.RKey()},
		"across the end":    {RemoteAddr: ch.b.mem.Addr() + memorySize - 100, RKey: ch.b.mr.RKey()},
		"below":             {RemoteAddr: ch.b.mem.Addr() - 1, RKey: ch.b.mr.RKey()},
	} {
		wr.ID, wr.Op = sendID, fabric.OpWrite
		ch.b.dropped(name, ch.a.sends(wr, ch.a.sge(0, 3000)), access)
		works("after a WRITE "+name, ch.a, ch.b)
	}
	same(s, "memory of the peer", ch.b.bytes(0, 4096), before)
	same(s, "memory for reading", readOnly.Memory().Bytes()[:4096], make([]byte, 4096))

	noRecv := func(d fabric.Drops) uint64 { return d.NoReceive }
	send := fabric.SendWR{ID: sendID, Op: fabric.OpSend}
	ch.b.dropped("SEND without a receive", ch.a.sends(send, ch.a.sge(0, 3000)), noRecv)
	imm := fabric.SendWR{ID: sendID, Op: fabric.OpWriteImm, RemoteAddr: ch.b.mem.Addr() + 1<<20, RKey: ch.b.mr.RKey()}
	ch.b.dropped("WRITE with immediate without a receive", ch.a.sends(imm, ch.a.sge(0, 100)), noRecv)
	works("after messages without a receive", ch.a, ch.b)

	// The receive of a message that is too long serves the next one.
	ch.b.recv(1, 1, 8192, 1500)
	if s.cfg.FailsLongMessages != "" {
		ch.b.failsLong(ch.a.sends(send, ch.a.sge(0, 3000)), recvID+1)
		return
	}
	ch.b.dropped("SEND longer than the receive", ch.a.sends(send, ch.a.sge(0, 3000)), func(d fabric.Drops) uint64 { return d.TooLong })
	ch.b.arrives(ch.a.sends(send, ch.a.sge(0, 1500)), fabric.Completion{ID: recvID + 1, Op: fabric.OpRecv, ByteLen: 1500})
	same(s, "the receive of a message that was too long", ch.b.bytes(8192, 1500), ch.a.bytes(0, 1500))
	works("in the other direction", ch.b, ch.a)
}

// failsLong is what a message too long for its receive does on some devices: the
// receive ends in an error, and the QP in ERR.
func (sd *side) failsLong(send func(), id uint64) {
	sd.s.Helper()
	send()
	checkIDs(sd.s, "message longer than its receive", sd.take(1), fabric.StatusLocalLength, id)
	sd.s.until("the error state", func() bool { return sd.qp.State() == fabric.QPError })
}

// testUnreliableErrors: an error of the sender's own takes its send queue to
// SQE, in which it still receives; one of a receive takes the QP to ERR.
func testUnreliableErrors(s *suite) {
	ch := s.unreliable()
	bad := ch.a.sge(0, 3000)
	bad.LKey = s.unknownKey()
	ch.a.post([]fabric.SGE{bad, ch.a.sge(0, 64)},
		fabric.SendWR{ID: sendID + 1, Op: fabric.OpSend, NumSGE: 1},
		fabric.SendWR{ID: sendID + 2, Op: fabric.OpSend, FirstSGE: 1, NumSGE: 1})
	ch.a.sqe("SEND from memory of nobody", fabric.StatusLocalProtection)
	if s.cfg.NoSQE == "" {
		works("in SQE", ch.b, ch.a)
		ch.a.send(fabric.SendWR{ID: sendID + 3, Op: fabric.OpSend}, ch.a.sge(0, 64))
		checkIDs(s, "posted in SQE", ch.a.take(1), fabric.StatusFlushed, sendID+3)
		ch.a.recover()
	} else {
		ch = s.unreliable()
	}
	works("after an error", ch.a, ch.b)

	for _, op := range []fabric.Opcode{fabric.OpRead, fabric.OpSendInv, fabric.OpLocalInv, fabric.OpRecv} {
		wr := fabric.SendWR{ID: sendID, Op: op, NumSGE: 1, RemoteAddr: ch.b.mem.Addr(), RKey: ch.b.mr.RKey()}
		if n, err := ch.a.qp.PostSend([]fabric.SendWR{wr}, []fabric.SGE{ch.a.sge(0, 8)}); n != 0 || !errors.Is(err, fabric.ErrInvalid) {
			s.Errorf("%v on an unreliable connection: %d, %v", op, n, err)
		}
	}
	ch.a.recv(0, 3, 0, 64)
	ch.a.stops(3)

	sge := ch.b.sge(0, 64)
	sge.LKey = s.unknownKey()
	if n, err := ch.b.qp.PostRecv([]fabric.RecvWR{{ID: recvID, NumSGE: 1}}, []fabric.SGE{sge}); n != 1 || err != nil {
		s.Fatalf("PostRecv: %d, %v", n, err)
	}
	c, qc := s.newUnreliable(s.a)
	s.must(qc.Connect(fabric.UnreliablePeer{Addr: s.b.addr, QPN: ch.b.qp.Num(), MTU: unreliableMTU}))
	// Any first packet begins a message, whatever its number; only b's peer by
	// address matters.
	s.fails(ch.b, c.sends(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, c.sge(0, 8)))
}

// fails sends until a receive of the side has failed for its memory: the QP is
// in ERR.
func (s *suite) fails(sd *side, send func()) {
	s.Helper()
	for n := 0; len(sd.inbox[sd.qp.Num()]) == 0; n++ {
		if n == tries {
			s.Fatal("a message to a receive without memory had no effect")
		}
		send()
		s.within(s.cfg.Timeout/10, func() bool { return len(sd.inbox[sd.qp.Num()]) > 0 })
	}
	checkIDs(s, "receive into memory of nobody", sd.take(1), fabric.StatusLocalProtection, recvID)
	s.until("the error state", func() bool { return sd.qp.State() == fabric.QPError })
}

// testUnreliableStates: what may be done before Connect, and with which
// attributes.
func testUnreliableStates(s *suite) {
	a, qa := s.newUnreliable(s.a)
	if n, err := qa.PostSend([]fabric.SendWR{{Op: fabric.OpSend}}, nil); n != 0 || !errors.Is(err, fabric.ErrInvalid) {
		s.Errorf("PostSend in INIT: %d, %v", n, err)
	}
	if err := qa.Recover(); !errors.Is(err, fabric.ErrInvalid) {
		s.Errorf("Recover in INIT: %v", err)
	}
	good := fabric.UnreliablePeer{Addr: s.b.addr, QPN: 77, MTU: unreliableMTU}
	for name, c := range map[string]struct {
		change func(*fabric.UnreliablePeer)
		want   error
	}{
		"no address":        {func(p *fabric.UnreliablePeer) { p.Addr = netip.Addr{} }, fabric.ErrUnreachable},
		"QP number 1":       {func(p *fabric.UnreliablePeer) { p.QPN = 1 }, fabric.ErrInvalid},
		"long QP number":    {func(p *fabric.UnreliablePeer) { p.QPN = 1 << 24 }, fabric.ErrInvalid},
		"long PSN":          {func(p *fabric.UnreliablePeer) { p.SendPSN = 1 << 24 }, fabric.ErrInvalid},
		"long expected PSN": {func(p *fabric.UnreliablePeer) { p.RecvPSN = 1 << 24 }, fabric.ErrInvalid},
		"MTU 1000":          {func(p *fabric.UnreliablePeer) { p.MTU = 1000 }, fabric.ErrInvalid},
		"MTU 8192":          {func(p *fabric.UnreliablePeer) { p.MTU = 8192 }, fabric.ErrInvalid},
	} {
		p := good
		c.change(&p)
		if err := qa.Connect(p); !errors.Is(err, c.want) {
			s.Errorf("Connect with %s: %v", name, err)
		}
	}
	a.recv(0, 2, 0, 64)
	s.must(qa.Connect(good))
	if err := qa.Connect(good); !errors.Is(err, fabric.ErrInvalid) {
		s.Errorf("Connect twice: %v", err)
	}
	a.stops(2)
	if err := qa.Connect(good); !errors.Is(err, fabric.ErrInvalid) {
		s.Errorf("Connect in ERR: %v", err)
	}
	count := s.a.dev.Counts().QPs
	s.must(qa.Close())
	if n := s.a.dev.Counts().QPs; n != count-1 {
		s.Errorf("%d queue pairs are counted, want %d", n, count-1)
	}
	if n, err := qa.PostSend([]fabric.SendWR{{Op: fabric.OpSend}}, nil); n != 0 || err == nil {
		s.Errorf("PostSend on a closed queue pair: %d, %v", n, err)
	}
}
