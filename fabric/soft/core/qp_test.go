package core

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

func TestStates(t *testing.T) {
	all := []fabric.QPState{fabric.QPReset, fabric.QPInit, fabric.QPReadyToReceive, fabric.QPReadyToSend, fabric.QPSendQueueDrain, fabric.QPSendQueueError, fabric.QPError}
	legal := map[string]bool{
		"RESET-INIT": true, "INIT-RTR": true, "RTR-RTS": true, "RTS-SQD": true, "SQD-RTS": true,
		"RTS-SQE": true, "SQD-SQE": true, "SQE-RTS": true, "ERR-RESET": true,
	}
	for _, from := range all {
		for _, to := range all {
			var s State
			s.v.Store(uint32(from))
			want := legal[fmt.Sprintf("%v-%v", from, to)] || to == fabric.QPError && from != fabric.QPError
			if got := s.Set(to); got != want {
				t.Errorf("%v to %v: %v, want %v", from, to, got, want)
			}
			if now := s.Load(); want && now != to || !want && now != from {
				t.Errorf("%v to %v: now %v", from, to, now)
			}
		}
	}
	for from, want := range map[fabric.QPState]bool{fabric.QPInit: true, fabric.QPReadyToReceive: true, fabric.QPReadyToSend: true, fabric.QPError: false, fabric.QPSendQueueDrain: false} {
		var s State
		s.v.Store(uint32(from))
		if got := s.Connect(); got != want {
			t.Errorf("Connect from %v: %v", from, got)
		}
	}
}

func TestNumbers(t *testing.T) {
	n := NewNumbers()
	seen := make(map[uint32]bool)
	for range 1000 {
		q, err := n.Take(0, 0)
		if err != nil || q < firstQPN || q > lastQPN || seen[q] {
			t.Fatalf("%d, %v", q, err)
		}
		seen[q] = true
		n.Give(q) // a number does not come back at once
	}
	for group := range uint32(8) {
		for range 10 {
			if q, err := n.Take(group, 7); err != nil || q&7 != group {
				t.Errorf("group %d: %d, %v", group, q, err)
			}
		}
	}
	n.next = lastQPN - 1
	var got []uint32
	for range 3 {
		q, _ := n.Take(0, 0)
		got = append(got, q)
	}
	if got[0] != lastQPN || got[1] != firstQPN || got[2] != firstQPN+1 {
		t.Errorf("around the end: %v", got)
	}
	n.next = lastQPN - 1
	if q, err := n.Take(6, 7); err != nil || q&7 != 6 || q > 100 {
		t.Errorf("group around the end: %d, %v", q, err)
	}
}

func TestQPConfigErrors(t *testing.T) {
	d, other := newDevice(t, nil), newDevice(t, nil)
	cq, foreign := newCQ(t, d, 8, nil, nil), newCQ(t, other, 8, nil, nil)
	srq, err := other.NewSRQ(4, 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*QPConfig){
		"no send CQ":      func(c *QPConfig) { c.SendCQ = nil },
		"no receive CQ":   func(c *QPConfig) { c.RecvCQ = nil },
		"foreign CQ":      func(c *QPConfig) { c.RecvCQ = foreign },
		"foreign SRQ":     func(c *QPConfig) { c.SRQ = srq },
		"send depth":      func(c *QPConfig) { c.Conn.SendDepth = 65 },
		"receive depth":   func(c *QPConfig) { c.Conn.RecvDepth = 65 },
		"negative depth":  func(c *QPConfig) { c.Conn.SendDepth = -1 },
		"send SGEs":       func(c *QPConfig) { c.Conn.MaxSendSGE = 5 },
		"receive SGEs":    func(c *QPConfig) { c.Conn.MaxRecvSGE = 5 },
		"retry count":     func(c *QPConfig) { c.Conn.RetryCount = 8 },
		"RNR retry count": func(c *QPConfig) { c.Conn.RNRRetry = 8 },
		"negative ORD":    func(c *QPConfig) { c.Conn.ORD = -1 },
		"negative IRD":    func(c *QPConfig) { c.Conn.IRD = -1 },
	} {
		cfg := QPConfig{SendCQ: cq, RecvCQ: cq, Conn: &fabric.ConnConfig{SendDepth: 1, RecvDepth: 1}}
		change(&cfg)
		q := new(testQP)
		var op *fabric.OpError
		if err := q.Init(d, q, cfg); !errors.Is(err, fabric.ErrInvalid) || !errors.As(err, &op) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := d.Counts().QPs; n != 0 || len(d.numbers.used) != 0 {
		t.Errorf("%d QPs, %d numbers are left", n, len(d.numbers.used))
	}
	for range 4 {
		newQP(t, d, cq, nil)
	}
	q := new(testQP)
	if err := q.Init(d, q, QPConfig{SendCQ: cq, RecvCQ: cq, Conn: &fabric.ConnConfig{}}); !errors.Is(err, fabric.ErrQueueFull) {
		t.Errorf("one more than MaxQP: %v", err)
	}
}

func send(id uint64, flags fabric.SendFlags) fabric.SendWR {
	return fabric.SendWR{ID: id, Op: fabric.OpSend, NumSGE: 1, Flags: flags}
}

func TestPostSendStates(t *testing.T) {
	d := newDevice(t, nil)
	cq := newCQ(t, d, 16, nil, nil)
	q := newQP(t, d, cq, nil)
	post := func() error {
		_, err := q.EnqueueSend([]fabric.SendWR{{Op: fabric.OpSend}}, nil)
		return err
	}
	for _, st := range []fabric.QPState{fabric.QPInit, fabric.QPReadyToReceive} {
		if err := post(); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("post in %v: %v", st, err)
		}
		q.States().Set(st + 1)
	}
	if _, err := q.PostRecv([]fabric.RecvWR{{}}, nil); err != nil {
		t.Errorf("receive: %v", err)
	}
	for _, st := range []fabric.QPState{fabric.QPReadyToSend, fabric.QPSendQueueDrain, fabric.QPError} {
		if q.States().Set(st); post() != nil {
			t.Errorf("post in %v: %v", st, post())
		}
	}
	q.Flush()
	if wc := poll(t, cq); len(wc) != 4 {
		t.Errorf("%d flushed, want 4", len(wc))
	}
	q.Destroy()
	if err := post(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("post after Destroy: %v", err)
	}
	if _, err := q.PostRecv([]fabric.RecvWR{{}}, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("receive after Destroy: %v", err)
	}
}

func TestPostSendErrors(t *testing.T) {
	sges := []fabric.SGE{{Length: 8}, {Length: 8}, {Length: 1 << 17}, {Length: 1<<32 - 1}, {Length: 33}, {Length: 32}}
	for name, c := range map[string]struct {
		wr   fabric.SendWR
		want error
	}{
		"SGE index":            {fabric.SendWR{FirstSGE: 6, NumSGE: 1}, errSGEIndex},
		"SGE index far":        {fabric.SendWR{FirstSGE: 1<<32 - 1, NumSGE: 2}, errSGEIndex},
		"SGEs across the end":  {fabric.SendWR{FirstSGE: 5, NumSGE: 2}, errSGEIndex},
		"too many SGEs":        {fabric.SendWR{NumSGE: 3}, errSGECount},
		"receive operation":    {fabric.SendWR{Op: fabric.OpRecv}, errOpcode},
		"bind":                 {fabric.SendWR{Op: fabric.OpBind}, errOpcode},
		"atomic":               {fabric.SendWR{Op: fabric.OpFetchAdd}, errOpcode},
		"unknown operation":    {fabric.SendWR{Op: 99}, errOpcode},
		"message too long":     {fabric.SendWR{FirstSGE: 2, NumSGE: 1}, errLength},
		"lengths overflow":     {fabric.SendWR{FirstSGE: 3, NumSGE: 2}, errLength},
		"inline too long":      {fabric.SendWR{FirstSGE: 4, NumSGE: 1, Flags: fabric.FlagInline}, errInline},
		"inline READ":          {fabric.SendWR{Op: fabric.OpRead, NumSGE: 1, Flags: fabric.FlagInline}, errInline},
		"SGE index of nothing": {fabric.SendWR{FirstSGE: 7}, errSGEIndex},
		"inline LOCAL_INV":     {fabric.SendWR{Op: fabric.OpLocalInv, Flags: fabric.FlagInline}, errInline},
	} {
		q, cq := connected(t, nil)
		n, err := q.EnqueueSend([]fabric.SendWR{send(1, 0), c.wr, send(3, 0)}, sges)
		if n != 1 || !errors.Is(err, c.want) || q.Sends().Pending() != 1 {
			t.Errorf("%s: %d posted, %v, want %v", name, n, err, c.want)
		}
		if !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("%s: %v is not ErrInvalid", name, err)
		}
		_ = cq
	}
	q, _ := connected(t, func(c *QPConfig) { c.Conn.MaxSendSGE = 4 })
	q.limits.SendInvalidate = false
	for name, c := range map[string]struct {
		wr   fabric.SendWR
		want error
	}{
		"SEND_INV not offered": {fabric.SendWR{Op: fabric.OpSendInv}, fabric.ErrNotSupported},
		"READ of 3 SGEs":       {fabric.SendWR{Op: fabric.OpRead, NumSGE: 3}, errSGECount},
	} {
		if _, err := q.EnqueueSend([]fabric.SendWR{c.wr}, make([]fabric.SGE, 4)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	q.SetORD(0)
	if _, err := q.EnqueueSend([]fabric.SendWR{{Op: fabric.OpRead}}, nil); !errors.Is(err, errNoORD) {
		t.Errorf("READ with ORD 0: %v", err)
	}
	q.States().Set(fabric.QPError)
	if _, err := q.EnqueueSend([]fabric.SendWR{{Op: fabric.OpRead}}, nil); err != nil {
		t.Errorf("READ with ORD 0 in the error state: %v", err)
	}
}

// The queue is full at its depth, not at the ring's size; slots of unsignaled
// WRs come back with the completion of a later one.
func TestSendQueue(t *testing.T) {
	q, cq := connected(t, func(c *QPConfig) { c.Conn.SendDepth = 3 })
	sges := []fabric.SGE{{Addr: 100, Length: 8, LKey: 1}, {Addr: 200, Length: 9, LKey: 2}}
	wrs := []fabric.SendWR{send(0, 0), {ID: 1, Op: fabric.OpWrite, NumSGE: 2, RemoteAddr: 7, RKey: 8}, send(2, fabric.FlagSignaled), send(3, 0)}
	n, err := q.EnqueueSend(wrs, sges)
	if n != 3 || !errors.Is(err, fabric.ErrQueueFull) || !q.Sends().Full() {
		t.Fatalf("%d posted, %v", n, err)
	}
	sges[1].Addr = 0 // the caller's again
	s := q.Sends()
	if wr := s.At(1); wr.ID != 1 || wr.Length != 17 || wr.RemoteAddr != 7 || s.SGEs(1)[1].Addr != 200 {
		t.Errorf("WR 1: %+v, %+v", wr, s.SGEs(1))
	}
	q.CompleteSend(fabric.StatusSuccess, 0)
	q.CompleteSend(fabric.StatusSuccess, 0)
	if s.Next() != 2 || s.Pending() != 1 || !s.Full() || len(poll(t, cq)) != 0 {
		t.Errorf("after two unsignaled: next %d, full %v", s.Next(), s.Full())
	}
	q.CompleteSend(fabric.StatusSuccess, 0)
	if wc := poll(t, cq); len(wc) != 1 || wc[0] != (fabric.Completion{ID: 2, QPN: q.Num(), Op: fabric.OpSend}) {
		t.Errorf("%+v", wc)
	}
	for round := range 20 { // around the ring
		n, err := q.EnqueueSend(wrs[:3], sges)
		if n != 3 || err != nil {
			t.Fatalf("round %d: %d posted, %v", round, n, err)
		}
		for range 3 {
			q.CompleteSend(fabric.StatusSuccess, 0)
		}
		poll(t, cq)
	}
}

func TestCompleteSendFails(t *testing.T) {
	q, cq := connected(t, nil)
	q.EnqueueSend([]fabric.SendWR{send(0, 0), {ID: 1, Op: fabric.OpRead, NumSGE: 1, Flags: fabric.FlagSignaled}, send(2, 0), send(3, 0)}, []fabric.SGE{{Length: 40}})
	q.CompleteSend(fabric.StatusSuccess, 0)
	q.CompleteSend(fabric.StatusSuccess, 0)
	q.CompleteSend(fabric.StatusRemoteAccess, 77)
	q.States().Set(fabric.QPError)
	q.PostRecv([]fabric.RecvWR{{ID: 10}, {ID: 11}}, nil)
	q.TakeRecv()
	if q.Flushed() {
		t.Error("Flushed with WRs posted")
	}
	q.Flush()
	num := q.Num()
	want := []fabric.Completion{
		{ID: 1, QPN: num, Op: fabric.OpRead, ByteLen: 40},
		{ID: 2, QPN: num, Op: fabric.OpSend, Status: fabric.StatusRemoteAccess, Vendor: 77},
		{ID: 3, QPN: num, Op: fabric.OpSend, Status: fabric.StatusFlushed},
		{ID: 10, QPN: num, Op: fabric.OpRecv, Status: fabric.StatusFlushed},
		{ID: 11, QPN: num, Op: fabric.OpRecv, Status: fabric.StatusFlushed},
	}
	wc := poll(t, cq)
	if len(wc) != len(want) {
		t.Fatalf("%+v", wc)
	}
	for i := range want {
		if wc[i] != want[i] {
			t.Errorf("completion %d: %+v, want %+v", i, wc[i], want[i])
		}
	}
	if !q.Flushed() {
		t.Error("not Flushed after Flush")
	}
}

func TestInlineIsCopied(t *testing.T) {
	q, _ := connected(t, nil)
	m := memory(t, 4096)
	copy(m.Bytes(), "hello, world")
	sges := []fabric.SGE{{Addr: m.Addr() + 7, Length: 5}, {Addr: m.Addr(), Length: 6}}
	if _, err := q.EnqueueSend([]fabric.SendWR{{Op: fabric.OpSend, NumSGE: 2, Flags: fabric.FlagInline}}, sges); err != nil {
		t.Fatal(err)
	}
	clear(m.Bytes()[:16])
	if got := string(q.Sends().Inline(0)); got != "worldhello," {
		t.Errorf("%q", got)
	}
}

func TestPostAtomic(t *testing.T) {
	q, cq := connected(t, nil)
	good := fabric.AtomicWR{ID: 5, Op: fabric.OpCompareSwap, RemoteAddr: 16, RKey: 3, Compare: 1, SwapAdd: 2, Flags: fabric.FlagSignaled}
	sges := []fabric.SGE{{Length: 8, Addr: 9}, {Length: 7}}
	for name, change := range map[string]func(*fabric.AtomicWR){
		"SGE of 7 bytes":  func(w *fabric.AtomicWR) { w.FirstSGE = 1 },
		"SGE index":       func(w *fabric.AtomicWR) { w.FirstSGE = 2 },
		"other operation": func(w *fabric.AtomicWR) { w.Op = fabric.OpRead },
		"inline":          func(w *fabric.AtomicWR) { w.Flags |= fabric.FlagInline },
	} {
		bad := good
		change(&bad)
		if n, err := q.EnqueueAtomic([]fabric.AtomicWR{bad}, sges); n != 0 || !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	if n, err := q.EnqueueAtomic([]fabric.AtomicWR{good, good, good, good, good}, sges); n != 4 || !errors.Is(err, fabric.ErrQueueFull) {
		t.Fatalf("%d, %v", n, err)
	}
	if s := q.Sends().At(0); s.Compare != 1 || s.SwapAdd != 2 || s.RemoteAddr != 16 || s.RKey != 3 || s.Length != 8 || q.Sends().SGEs(0)[0].Addr != 9 {
		t.Errorf("%+v", s)
	}
	q.CompleteSend(fabric.StatusSuccess, 0)
	if wc := poll(t, cq); len(wc) != 1 || wc[0] != (fabric.Completion{ID: 5, QPN: q.Num(), Op: fabric.OpCompareSwap, ByteLen: 8}) {
		t.Errorf("%+v", wc)
	}
	q.SetORD(0)
	if _, err := q.EnqueueAtomic([]fabric.AtomicWR{good}, sges); !errors.Is(err, errNoORD) {
		t.Errorf("ORD 0: %v", err)
	}
	q.limits.Atomics = false
	if _, err := q.EnqueueAtomic([]fabric.AtomicWR{good}, sges); !errors.Is(err, fabric.ErrNotSupported) {
		t.Errorf("not offered: %v", err)
	}
}

func TestRecvQueue(t *testing.T) {
	q, cq := connected(t, func(c *QPConfig) { c.Conn.RecvDepth = 3 })
	sges := []fabric.SGE{{Addr: 1, Length: 10}, {Addr: 2, Length: 20}}
	for name, c := range map[string]struct {
		wr   fabric.RecvWR
		want error
	}{"too many SGEs": {fabric.RecvWR{NumSGE: 3}, errSGECount}, "SGE index": {fabric.RecvWR{FirstSGE: 1, NumSGE: 2}, errSGEIndex}} {
		if n, err := q.PostRecv([]fabric.RecvWR{c.wr}, sges); n != 0 || !errors.Is(err, c.want) {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	if q.TakeRecv() {
		t.Fatal("a receive that nobody posted")
	}
	for i := range uint64(10) {
		wrs := []fabric.RecvWR{{ID: i, NumSGE: 2}, {ID: i + 100, FirstSGE: 1, NumSGE: 1}, {ID: i + 200}, {ID: i + 300}}
		if n, err := q.PostRecv(wrs, sges); n != 3 || !errors.Is(err, fabric.ErrQueueFull) {
			t.Fatalf("%d posted, %v", n, err)
		}
		for k, room := range []uint64{30, 20, 0} {
			took := q.TakeRecv()
			if !took || !q.TakeRecv() || q.Recv().ID != i+uint64(k)*100 || q.Recv().Room() != room {
				t.Fatalf("receive %d: %+v", k, q.Recv())
			}
			q.CompleteRecv(fabric.Completion{Op: fabric.OpRecv, ByteLen: 3, Imm: 4, Flags: fabric.CompletionImm})
		}
		for k, c := range poll(t, cq) {
			if c != (fabric.Completion{ID: i + uint64(k)*100, QPN: q.Num(), Op: fabric.OpRecv, ByteLen: 3, Imm: 4, Flags: fabric.CompletionImm}) {
				t.Fatalf("%+v", c)
			}
		}
	}
}

func TestSRQ(t *testing.T) {
	d := newDevice(t, nil)
	cq := newCQ(t, d, 64, nil, nil)
	for _, c := range [][2]int{{0, 1}, {65, 1}, {1, 5}} {
		if _, err := d.NewSRQ(c[0], c[1]); !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("depth %d, %d SGEs: %v", c[0], c[1], err)
		}
	}
	if _, err := newDevice(t, func(l *fabric.Limits) { l.MaxSRQ = 0 }).NewSRQ(1, 1); !errors.Is(err, fabric.ErrNotSupported) {
		t.Errorf("not offered: %v", err)
	}
	srq, err := d.NewSRQ(4, 1)
	if err != nil {
		t.Fatal(err)
	}
	posted := 0
	srq.Posted = func() { posted++ }
	wrs := []fabric.RecvWR{{ID: 1, NumSGE: 1}, {ID: 2}, {ID: 3}, {ID: 4}, {ID: 5}}
	if n, err := srq.PostRecv(wrs, []fabric.SGE{{Length: 6}}); n != 4 || !errors.Is(err, fabric.ErrQueueFull) || posted != 1 {
		t.Fatalf("%d posted, %v, hook %d times", n, err, posted)
	}
	if n, err := srq.PostRecv([]fabric.RecvWR{{NumSGE: 2}}, make([]fabric.SGE, 2)); n != 0 || !errors.Is(err, errSGECount) {
		t.Errorf("2 SGEs: %d, %v", n, err)
	}
	use := func(c *QPConfig) { c.SRQ, c.Conn.RecvDepth = srq, 1000 }
	a, b := newQP(t, d, cq, use), newQP(t, d, cq, use)
	if _, err := a.PostRecv(wrs[1:2], nil); !errors.Is(err, errSRQ) {
		t.Errorf("PostRecv of a QP with an SRQ: %v", err)
	}
	for i, q := range []*testQP{a, b, a} {
		if !q.TakeRecv() || q.Recv().ID != uint64(i+1) {
			t.Fatalf("receive %d: %+v", i, q.Recv())
		}
		if i < 2 {
			q.CompleteRecv(fabric.Completion{Op: fabric.OpRecv})
		}
	}
	if err := srq.Close(); !errors.Is(err, fabric.ErrBusy) {
		t.Errorf("close in use: %v", err)
	}
	// What a holds is flushed, what the SRQ has stays.
	a.States().Set(fabric.QPError)
	a.Flush()
	if wc := poll(t, cq); len(wc) != 3 || wc[2].ID != 3 || wc[2].Status != fabric.StatusFlushed || srq.Len() != 1 {
		t.Errorf("%+v, %d left", wc, srq.Len())
	}
	a.Destroy()
	b.Abandon()
	for range 2 {
		if err := srq.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if n, err := srq.PostRecv(wrs, nil); n != 0 || !errors.Is(err, net.ErrClosed) || d.Counts().SRQs != 0 {
		t.Errorf("after close: %d, %v, %+v", n, err, d.Counts())
	}
}

func TestDestroy(t *testing.T) {
	d := newDevice(t, nil)
	cq := newCQ(t, d, 64, nil, nil)
	q, other := newQP(t, d, cq, nil), newQP(t, d, cq, nil)
	for _, x := range []*testQP{q, other} {
		x.States().Connect()
		x.EnqueueSend([]fabric.SendWR{{Flags: fabric.FlagSignaled}}, nil)
		x.CompleteSend(fabric.StatusSuccess, 0)
	}
	for range 2 {
		q.Destroy()
	}
	if wc := poll(t, cq); len(wc) != 1 || wc[0].QPN != other.Num() {
		t.Errorf("%+v", wc)
	}
	if !q.Closed() || q.State() != fabric.QPError || d.Counts().QPs != 1 || len(d.numbers.used) != 1 {
		t.Errorf("closed %v, state %v, %+v", q.Closed(), q.State(), d.Counts())
	}
}

func TestPostAllocates(t *testing.T) {
	q, cq := connected(t, nil)
	wrs := []fabric.SendWR{send(1, 0), send(2, fabric.FlagSignaled), send(3, 0), send(4, fabric.FlagSignaled), send(5, 0)}
	sges := []fabric.SGE{{Length: 8}}
	recvs := []fabric.RecvWR{{NumSGE: 1}, {}, {}, {}, {}}
	wc := make([]fabric.Completion, 8)
	if n := testing.AllocsPerRun(100, func() {
		q.EnqueueSend(wrs, sges) // the last does not fit
		q.PostRecv(recvs, sges)
		for range 4 {
			q.CompleteSend(fabric.StatusSuccess, 0)
			q.TakeRecv()
			q.CompleteRecv(fabric.Completion{})
		}
		cq.Poll(wc)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
