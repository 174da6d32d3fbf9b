package fabrictest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nvmf-go/nvmf/fabric"
)

const suiteQKey = 0x11111111

// dgram is a side whose QP is for datagrams.
type dgram struct {
	*side
	qp fabric.DatagramQP
}

// datagrams makes a UD QP, or skips.
func (s *suite) datagrams(e *end, qkey uint32) *dgram {
	s.Helper()
	d := e.datagramDevice()
	sd := &side{end: e}
	qp, err := d.NewDatagramQP(sd.unreliableConfig(), qkey)
	s.must(err)
	sd.closeWith(qp)
	if st := qp.State(); st != fabric.QPReadyToSend {
		s.Fatalf("a new queue pair is in state %v", st)
	}
	if n := qp.MaxDatagram(); n < unreliableMTU || n > 4096 {
		s.Fatalf("MaxDatagram is %d", n)
	}
	return &dgram{sd, qp}
}

func (e *end) datagramDevice() fabric.DatagramDevice {
	e.s.Helper()
	e.s.need(e.dev.Limits().Datagrams, "datagrams")
	d, ok := e.dev.(fabric.DatagramDevice)
	if !ok {
		e.s.Fatal("Limits.Datagrams is set, but the device does not implement fabric.DatagramDevice")
	}
	return d
}

// handle is the way to an address.
func (e *end) handle(to netip.Addr) fabric.AddressHandle {
	e.s.Helper()
	h, err := e.datagramDevice().NewAddressHandle(to, 0)
	e.s.must(err)
	if h.Addr() != to || h.Num() == 0 {
		e.s.Errorf("handle of %v: address %v, number %d", to, h.Addr(), h.Num())
	}
	e.s.Cleanup(func() { e.s.closed(e.name+": address handle", h.Close()) })
	return h
}

// sendsTo is a datagram that completes at its sender.
func (d *dgram) sendsTo(wr fabric.DatagramWR, sges ...fabric.SGE) func() {
	return func() {
		d.s.Helper()
		d.postTo(sges, wr)
		d.ok(fabric.Completion{ID: wr.ID, Op: wr.Op})
	}
}

// postTo posts datagrams with all of sges each, signaled.
func (d *dgram) postTo(sges []fabric.SGE, wrs ...fabric.DatagramWR) {
	d.s.Helper()
	for i := range wrs {
		wrs[i].Flags |= fabric.FlagSignaled
		wrs[i].NumSGE = uint8(len(sges))
	}
	if n, err := d.qp.PostDatagrams(wrs, sges); n != len(wrs) || err != nil {
		d.s.Fatalf("%s: PostDatagrams posted %d of %d: %v", d.name, n, len(wrs), err)
	}
}

// to is a datagram for another QP.
func (d *dgram) to(peer *dgram, h fabric.AddressHandle) fabric.DatagramWR {
	return fabric.DatagramWR{ID: sendID, Op: fabric.OpSend, Handle: h.Num(), QPN: peer.qp.Num(), QKey: suiteQKey}
}

// source checks the header in front of a datagram and returns where it is from.
func (d *dgram) source(off int, from *end) netip.Addr {
	d.s.Helper()
	src, dst, ok := fabric.ParseGRH(d.bytes(off, fabric.GRHLen))
	if !ok || !slices.Contains(from.dev.Info().Addrs, src) && src != from.addr || dst != d.addr {
		d.s.Fatalf("header %x: from %v to %v, %v", d.bytes(off, fabric.GRHLen), src, dst, ok)
	}
	return src
}

// testDatagramSend: datagrams of every size, with what stands in front of them,
// and an answer by it.
func testDatagramSend(s *suite) {
	a, b := s.datagrams(s.a, suiteQKey), s.datagrams(s.b, suiteQKey)
	there := s.a.handle(s.b.addr)
	const at, room = 1 << 20, 8192
	for i, n := range []int{0, 1, 2, 3, 64, unreliableMTU - 1, unreliableMTU, a.qp.MaxDatagram()} {
		n = min(n, b.qp.MaxDatagram())
		b.recv(i, 1, at, room)
		fill(b.bytes(at, room), 99)
		fill(a.bytes(0, n), uint32(n))
		wr := a.to(b, there)
		want := fabric.Completion{ID: recvID + uint64(i), Op: fabric.OpRecv, ByteLen: uint32(fabric.GRHLen + n), SrcQPN: a.qp.Num(), Flags: fabric.CompletionGRH}
		if i%2 == 1 {
			wr.Op, wr.Imm = fabric.OpSendImm, 0xabcd0000+uint32(i)
			want.Imm, want.Flags = wr.Imm, want.Flags|fabric.CompletionImm
		}
		behind := slices.Clone(b.bytes(at+fabric.GRHLen+n, 8))
		b.arrives(a.sendsTo(wr, a.sge(0, n)), want)
		same(s, fmt.Sprintf("datagram of %d bytes", n), b.bytes(at+fabric.GRHLen, n), a.bytes(0, n))
		same(s, "behind it", b.bytes(at+fabric.GRHLen+n, 8), behind)
		src := b.source(at, s.a)

		a.recv(i, 1, at, room)
		answer := b.to(a, s.b.handle(src))
		a.arrives(b.sendsTo(answer, b.sge(at+fabric.GRHLen, n)),
			fabric.Completion{ID: recvID + uint64(i), Op: fabric.OpRecv, ByteLen: uint32(fabric.GRHLen + n), SrcQPN: b.qp.Num(), Flags: fabric.CompletionGRH})
		same(s, "the answer", a.bytes(at+fabric.GRHLen, n), a.bytes(0, n))
	}
}

// testDatagramScatter: header and message are one string of bytes to the SGEs of
// a receive, and inline data is copied at the post.
func testDatagramScatter(s *suite) {
	a, b := s.datagrams(s.a, suiteQKey), s.datagrams(s.b, suiteQKey)
	s.need(s.b.dev.Limits().MaxSGE > 2, "three SGEs")
	there := s.a.handle(s.b.addr)
	sges := b.sges(0, 100, 30, 20, 500)
	if n, err := b.qp.PostRecv([]fabric.RecvWR{{ID: recvID, NumSGE: 3}}, sges); n != 1 || err != nil {
		s.Fatalf("PostRecv: %d, %v", n, err)
	}
	fill(a.bytes(0, 500), 5)
	b.arrives(a.sendsTo(a.to(b, there), a.sge(0, 500)),
		fabric.Completion{ID: recvID, Op: fabric.OpRecv, ByteLen: 540, SrcQPN: a.qp.Num(), Flags: fabric.CompletionGRH})
	grh := slices.Concat(b.bytes(0, 30), b.bytes(130, 10))
	if _, dst, ok := fabric.ParseGRH(grh); !ok || dst != s.b.addr {
		s.Errorf("scattered header %x", grh)
	}
	same(s, "scattered message", slices.Concat(b.bytes(140, 10), b.bytes(250, 490)), a.bytes(0, 500))

	k := min(a.qp.MaxInline(), 32)
	if k == 0 {
		return
	}
	b.recv(1, 1, 1<<20, 256)
	want := slices.Clone(a.bytes(0, k))
	b.arrives(func() {
		copy(a.bytes(0, k), want)
		wr := a.to(b, there)
		wr.Flags = fabric.FlagInline
		a.postTo([]fabric.SGE{a.sge(0, k)}, wr)
		clear(a.bytes(0, k))
		a.ok(fabric.Completion{ID: sendID, Op: fabric.OpSend})
	}, fabric.Completion{ID: recvID + 1, Op: fabric.OpRecv, ByteLen: uint32(fabric.GRHLen + k), SrcQPN: a.qp.Num(), Flags: fabric.CompletionGRH})
	same(s, "inline datagram", b.bytes(1<<20+fabric.GRHLen, k), want)
}

// testDatagramDrops: a wrong Q_Key, no receive and too small a receive drop the
// message and nothing else.
func testDatagramDrops(s *suite) {
	a, b := s.datagrams(s.a, suiteQKey), s.datagrams(s.b, suiteQKey)
	other := s.datagrams(s.b, suiteQKey+1)
	there := s.a.handle(s.b.addr)
	works := func(what string) {
		s.Helper()
		b.recv(9, 1, 1<<20, 256)
		b.arrives(a.sendsTo(a.to(b, there), a.sge(0, 64)),
			fabric.Completion{ID: recvID + 9, Op: fabric.OpRecv, ByteLen: 104, SrcQPN: a.qp.Num(), Flags: fabric.CompletionGRH})
	}
	other.recv(0, 1, 0, 256)
	other.dropped("a wrong Q_Key", a.sendsTo(a.to(other, there), a.sge(0, 64)), func(d fabric.Drops) uint64 { return d.QKey })
	b.dropped("no receive", a.sendsTo(a.to(b, there), a.sge(0, 64)), func(d fabric.Drops) uint64 { return d.NoReceive })
	works("after a datagram without a receive")

	tooLong := func(d fabric.Drops) uint64 { return d.TooLong }
	for i, n := range []int{fabric.GRHLen - 1, fabric.GRHLen + 63} {
		b.recv(i, 1, 1<<20, n)
		if s.cfg.FailsLongMessages != "" {
			b.failsLong(a.sendsTo(a.to(b, there), a.sge(0, 64)), recvID+uint64(i))
			b = s.datagrams(s.b, suiteQKey)
			continue
		}
		b.dropped(fmt.Sprintf("a receive of %d bytes", n), a.sendsTo(a.to(b, there), a.sge(0, 64)), tooLong)
		// The receive is still there and takes what fits; the smaller one not even
		// the header.
		if n < fabric.GRHLen {
			b.stops(1)
			b = s.datagrams(s.b, suiteQKey)
			continue
		}
		b.arrives(a.sendsTo(a.to(b, there), a.sge(0, 63)),
			fabric.Completion{ID: recvID + uint64(i), Op: fabric.OpRecv, ByteLen: 103, SrcQPN: a.qp.Num(), Flags: fabric.CompletionGRH})
	}
	// The sender's own Q_Key goes when the upper bit says so.
	own := a.to(b, there)
	own.QKey = 1 << 31
	b.recv(3, 1, 1<<20, 256)
	b.arrives(a.sendsTo(own, a.sge(0, 64)),
		fabric.Completion{ID: recvID + 3, Op: fabric.OpRecv, ByteLen: 104, SrcQPN: a.qp.Num(), Flags: fabric.CompletionGRH})
	a.none("of the sender")
}

// testDatagramMany: one QP receives from several, told apart by their numbers,
// and from an SRQ where there are some.
func testDatagramMany(s *suite) {
	b, post := s.sharedDatagrams()
	if b == nil {
		b = s.datagrams(s.b, suiteQKey)
		post = func(i int) { b.recv(i, 1, 1<<20, 512) }
	}
	there := s.a.handle(s.b.addr)
	for i := range 4 {
		a := s.datagrams(s.a, suiteQKey+uint32(i)) // that of the sender does not matter
		post(i)
		fill(a.bytes(0, 100), uint32(i))
		b.arrives(a.sendsTo(a.to(b, there), a.sge(0, 100)),
			fabric.Completion{ID: recvID + uint64(i), Op: fabric.OpRecv, ByteLen: 140, SrcQPN: a.qp.Num(), Flags: fabric.CompletionGRH})
		same(s, "message", b.bytes(1<<20+fabric.GRHLen, 100), a.bytes(0, 100))
	}
}

// sharedDatagrams makes a UD QP of b with an SRQ and says how to post to that; nil
// when the device has none for datagrams.
func (s *suite) sharedDatagrams() (b *dgram, post func(i int)) {
	d := s.b.datagramDevice()
	if s.b.dev.Limits().MaxSRQ == 0 {
		return nil, nil
	}
	srq, err := s.b.dev.NewSharedReceiveQueue(16, 1)
	s.must(err)
	s.Cleanup(func() { s.closed("SRQ", srq.Close()) })
	sd := &side{end: s.b}
	cfg := sd.unreliableConfig()
	cfg.SRQ = srq
	qp, err := d.NewDatagramQP(cfg, suiteQKey)
	if errors.Is(err, fabric.ErrNotSupported) {
		s.Logf("without an SRQ: %v", err)
		return nil, nil
	}
	s.must(err)
	sd.closeWith(qp)
	return &dgram{sd, qp}, func(i int) {
		if n, err := srq.PostRecv([]fabric.RecvWR{{ID: recvID + uint64(i), NumSGE: 1}}, []fabric.SGE{sd.sge(1<<20, 512)}); n != 1 || err != nil {
			s.Fatalf("PostRecv: %d, %v", n, err)
		}
	}
}

// testDatagramErrors: what is refused at the post, and SQE and ERR.
func testDatagramErrors(s *suite) {
	a, b := s.datagrams(s.a, suiteQKey), s.datagrams(s.b, suiteQKey)
	there := s.a.handle(s.b.addr)
	gone := s.a.handle(s.b.addr)
	s.must(gone.Close())
	s.must(gone.Close())
	for name, change := range map[string]func(*fabric.DatagramWR, *fabric.SGE){
		"longer than MaxDatagram": func(_ *fabric.DatagramWR, sge *fabric.SGE) { sge.Length = uint32(a.qp.MaxDatagram()) + 1 },
		"RDMA WRITE":              func(wr *fabric.DatagramWR, _ *fabric.SGE) { wr.Op = fabric.OpWrite },
		"a closed handle":         func(wr *fabric.DatagramWR, _ *fabric.SGE) { wr.Handle = gone.Num() },
		"no handle":               func(wr *fabric.DatagramWR, _ *fabric.SGE) { wr.Handle = 0 },
		"QP 1":                    func(wr *fabric.DatagramWR, _ *fabric.SGE) { wr.QPN = 1 },
		"SGEs out of the list":    func(wr *fabric.DatagramWR, _ *fabric.SGE) { wr.FirstSGE = 1 },
	} {
		wr, sge := a.to(b, there), a.sge(0, 64)
		wr.NumSGE = 1
		change(&wr, &sge)
		if n, err := a.qp.PostDatagrams([]fabric.DatagramWR{wr}, []fabric.SGE{sge}); n != 0 || !errors.Is(err, fabric.ErrInvalid) {
			s.Errorf("%s: %d, %v", name, n, err)
		}
	}
	if n, err := a.qp.PostSend([]fabric.SendWR{{Op: fabric.OpSend}}, nil); n != 0 || !errors.Is(err, fabric.ErrInvalid) {
		s.Errorf("PostSend: %d, %v", n, err)
	}
	s.refusedDatagramObjects()

	wrs := []fabric.DatagramWR{a.to(b, there), a.to(b, there)}
	wrs[0].ID, wrs[1].ID = sendID+1, sendID+2
	bad := a.sge(0, 64)
	bad.LKey = s.unknownKey()
	a.postTo([]fabric.SGE{bad}, wrs...)
	a.sqe("datagram from memory of nobody", fabric.StatusLocalProtection)
	if s.cfg.NoSQE == "" {
		a.recv(0, 1, 1<<20, 256)
		a.arrives(b.sendsTo(b.to(a, s.b.handle(s.a.addr)), b.sge(0, 64)),
			fabric.Completion{ID: recvID, Op: fabric.OpRecv, ByteLen: 104, SrcQPN: b.qp.Num(), Flags: fabric.CompletionGRH})
		a.recover()
	} else {
		a = s.datagrams(s.a, suiteQKey)
	}
	b.recv(0, 1, 1<<20, 256)
	b.arrives(a.sendsTo(a.to(b, there), a.sge(0, 64)),
		fabric.Completion{ID: recvID, Op: fabric.OpRecv, ByteLen: 104, SrcQPN: a.qp.Num(), Flags: fabric.CompletionGRH})

	bad = b.sge(0, 256)
	bad.LKey = s.unknownKey()
	if n, err := b.qp.PostRecv([]fabric.RecvWR{{ID: recvID, NumSGE: 1}}, []fabric.SGE{bad}); n != 1 || err != nil {
		s.Fatalf("PostRecv: %d, %v", n, err)
	}
	s.fails(b.side, a.sendsTo(a.to(b, there), a.sge(0, 64)))
	a.recv(0, 3, 0, 64)
	a.stops(3)
}

// refusedDatagramObjects: QPs and handles that cannot be.
func (s *suite) refusedDatagramObjects() {
	d := s.a.datagramDevice()
	if qp, err := d.NewDatagramQP((&side{end: s.a}).unreliableConfig(), 1<<31|7); !errors.Is(err, fabric.ErrInvalid) {
		s.Errorf("a privileged Q_Key: %v, %v", qp, err)
	}
	if qp, err := d.NewDatagramQP(fabric.UnreliableConfig{}, suiteQKey); err == nil {
		s.Errorf("without completion queues: %v", qp)
	}
	nowhere := []netip.Addr{{}, netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	for _, other := range []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1")} {
		if !slices.ContainsFunc(s.a.dev.Info().Addrs, func(a netip.Addr) bool { return a.Is4() == other.Is4() }) {
			nowhere = append(nowhere, other)
		}
	}
	for _, to := range nowhere {
		if h, err := d.NewAddressHandle(to, 0); !errors.Is(err, fabric.ErrUnreachable) {
			s.Errorf("address handle of %v: %v, %v", to, h, err)
		}
	}
}
