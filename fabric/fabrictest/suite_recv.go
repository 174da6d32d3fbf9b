package fabrictest

import (
	"errors"
	"fmt"

	"github.com/nvmf-go/nvmf/fabric"
)

// testSRQ has two connections receive from one queue.
func testSRQ(s *suite) {
	srq, err := s.b.dev.NewSharedReceiveQueue(32, 1)
	skipIfUnsupported(s.T, err)
	s.must(err)
	s.Cleanup(func() { s.closed("SRQ", srq.Close()) })
	useSRQ := func(_, b *fabric.ConnConfig) { b.SRQ, b.RecvDepth = srq, 0 }
	chs := []*channel{s.connect(useSRQ), s.connect(useSRQ)}

	const size = 256
	posted := 0
	post := func(n int) {
		for range n {
			wr := fabric.RecvWR{ID: recvID + uint64(posted), NumSGE: 1}
			if n, err := srq.PostRecv([]fabric.RecvWR{wr}, []fabric.SGE{s.b.sge(posted%32*size, size)}); n != 1 || err != nil {
				s.Fatalf("SRQ PostRecv: %d, %v", n, err)
			}
			posted++
		}
	}
	post(32)
	if n, err := srq.PostRecv([]fabric.RecvWR{{NumSGE: 2}}, s.b.sges(0, 0, 1, 1)); n != 0 || err == nil {
		s.Errorf("a receive of 2 SGEs on an SRQ of 1: %d, %v", n, err)
	}
	if n, err := chs[0].b.qp.PostRecv([]fabric.RecvWR{{NumSGE: 1}}, []fabric.SGE{s.b.sge(0, 8)}); n != 0 || err == nil {
		s.Errorf("PostRecv on a queue pair with an SRQ: %d, %v", n, err)
	}
	used := make(map[uint64]bool)
	for i := range 100 {
		ch := chs[i%2]
		n := 1 + i
		fill(ch.a.bytes(0, n), uint32(i))
		ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, n))
		c := ch.b.take(1)[0]
		ch.a.ok(fabric.Completion{ID: sendID, Op: fabric.OpSend})
		if c.Status != fabric.StatusSuccess || c.Op != fabric.OpRecv || int(c.ByteLen) != n || used[c.ID] || c.ID >= recvID+uint64(posted) {
			s.Fatalf("message %d: %+v", i, c)
		}
		used[c.ID] = true
		same(s, fmt.Sprintf("message %d", i), s.b.bytes(int(c.ID-recvID)%32*size, n), ch.a.bytes(0, n))
		post(1)
	}
	if err := srq.Close(); !errors.Is(err, fabric.ErrBusy) {
		s.Errorf("close of an SRQ in use: %v", err)
	}
	// The end of one connection takes nothing from the other.
	chs[0].b.conn.Disconnect()
	s.until("the end of the first connection", func() bool { return chs[0].a.isDone() && chs[0].b.isDone() })
	if n, _ := chs[0].b.qp.PostSend([]fabric.SendWR{{ID: sendID, Op: fabric.OpSend}}, nil); n == 1 {
		checkIDs(s, "a send in the error state", chs[0].b.take(1), fabric.StatusFlushed, sendID)
	}
	for i := range 32 {
		chs[1].a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, s.a.sge(0, 8))
		c := chs[1].b.take(1)[0]
		if c.Status != fabric.StatusSuccess || used[c.ID] {
			s.Fatalf("message %d after the end of the other connection: %+v", i, c)
		}
		used[c.ID] = true
		chs[1].a.ok(fabric.Completion{ID: sendID, Op: fabric.OpSend})
	}
	chs[0].b.none("of a shared receive")
}

// testRNRRetried sends before there is a receive: it arrives when there is one,
// and what is behind it stays behind.
func testRNRRetried(s *suite) {
	s.need(s.a.dev.Limits().RNR && s.b.dev.Limits().RNR, "RNR retry")
	ch := s.connect()
	fill(ch.a.bytes(0, 1024), 8)
	ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 1000))
	ch.a.send(fabric.SendWR{ID: sendID + 1, Op: fabric.OpSend}, ch.a.sge(0, 10))
	s.pause()
	ch.a.none("before a receive was posted")
	for i, n := range []int{1000, 10} {
		ch.b.recv(i, 1, 1<<20, 1024)
		ch.b.ok(fabric.Completion{ID: recvID + uint64(i), Op: fabric.OpRecv, ByteLen: uint32(n)})
		ch.a.ok(fabric.Completion{ID: sendID + uint64(i), Op: fabric.OpSend})
		same(s, "message", ch.b.bytes(1<<20, n), ch.a.bytes(0, n))
	}
	ch.alive("after RNR")
}

// testRNRExceeded never posts a receive: the sender gives up after the retries
// that the receiver's end asked for.
func testRNRExceeded(s *suite) {
	s.need(s.a.dev.Limits().RNR && s.b.dev.Limits().RNR, "RNR retry")
	for _, retries := range []uint8{0, 1} {
		ch := s.connect(func(_, b *fabric.ConnConfig) { b.RNRRetry = retries })
		ch.a.recv(0, 2, 0, 64)
		ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 10))
		ch.a.send(fabric.SendWR{ID: sendID + 1, Op: fabric.OpSend}, ch.a.sge(0, 10))
		sends, recvs := split(ch.a.take(4))
		what := fmt.Sprintf("%d RNR retries", retries)
		checkIDs(s, what, sends[:1], fabric.StatusRNRRetryExceeded, sendID)
		checkIDs(s, what, sends[1:], fabric.StatusFlushed, sendID+1)
		checkIDs(s, what, recvs, fabric.StatusFlushed, recvID, recvID+1)
		ch.dies(what)
	}
}

// testNoReceiveFatal is for wires without RNR: a SEND that meets no receive
// ends the connection, at both ends.
func testNoReceiveFatal(s *suite) {
	if s.b.dev.Limits().RNR {
		s.Skip("the limits of the device offer RNR, which is tested instead")
	}
	ch := s.connect()
	ch.a.send(fabric.SendWR{ID: sendID, Op: fabric.OpSend}, ch.a.sge(0, 10))
	s.until("the end of the connection", func() bool { return ch.a.isDone() && ch.b.isDone() })
	ch.dies("a SEND without a receive")
}
