package core

import (
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

func testLimits() fabric.Limits {
	return fabric.Limits{
		MaxQP: 4, MaxCQ: 4, MaxMR: 4, MaxSRQ: 2, MaxQPDepth: 64, MaxCQDepth: 256, MaxSRQDepth: 64, MaxSGE: 4, MaxReadSGE: 2,
		MaxInline: 64, MaxORD: 8, MaxIRD: 8, MaxMRSize: 1 << 20, MaxMessage: 1 << 16, Atomics: true, MemoryWindows: true, SendInvalidate: true, RNR: true,
	}
}

func newDevice(t testing.TB, change func(*fabric.Limits)) *Device {
	t.Helper()
	l := testLimits()
	if change != nil {
		change(&l)
	}
	return NewDevice("dev0", l, nil, nil)
}

func newCQ(t testing.TB, d *Device, depth int, notify, progress func()) *CQ {
	t.Helper()
	q := new(CQ)
	if err := q.Init(d, depth, notify, progress); err != nil {
		t.Fatal(err)
	}
	return q
}

// testQP is a QP whose provider does nothing.
type testQP struct {
	QP
	cqErr error
}

func (q *testQP) CQError(err error) { q.cqErr = err }

func newQP(t testing.TB, d *Device, cq *CQ, change func(*QPConfig)) *testQP {
	t.Helper()
	cfg := QPConfig{SendCQ: cq, RecvCQ: cq, Conn: &fabric.ConnConfig{SendDepth: 4, RecvDepth: 4, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 32}}
	if change != nil {
		change(&cfg)
	}
	q := new(testQP)
	if err := q.Init(d, q, cfg); err != nil {
		t.Fatal(err)
	}
	q.SetORD(1)
	return q
}

// connected is a QP in RTS.
func connected(t testing.TB, change func(*QPConfig)) (*testQP, *CQ) {
	t.Helper()
	d := newDevice(t, nil)
	cq := newCQ(t, d, 64, nil, nil)
	q := newQP(t, d, cq, change)
	if !q.States().Connect() {
		t.Fatal("did not become RTS")
	}
	return q, cq
}

// poll takes all completions.
func poll(t testing.TB, cq *CQ) []fabric.Completion {
	t.Helper()
	wc := make([]fabric.Completion, 100)
	n, err := cq.Poll(wc)
	if err != nil {
		t.Fatal(err)
	}
	return wc[:n]
}
