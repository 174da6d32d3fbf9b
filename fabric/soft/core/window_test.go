package core

import (
	"errors"
	"math"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

const testQPN = 77

func newWindow(t testing.TB, tab *Table) *Window {
	t.Helper()
	w, err := tab.NewWindow()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func TestBind(t *testing.T) {
	const rr, rw = fabric.AccessRemoteRead, fabric.AccessRemoteWrite
	tab := NewTable(new(Guards), 0)
	m := memory(t, 4096)
	full := register(t, tab, m, allRights)
	noBind := register(t, tab, m, fabric.AccessLocalWrite)
	noWrite := register(t, tab, m, fabric.AccessWindowBind)
	base := m.Addr()
	for _, c := range []struct {
		name    string
		mr      uint32
		addr, n uint64
		a       fabric.Access
		want    bool
	}{
		{"whole", full.LKey(), base, 4096, rr | rw, true},
		{"last byte", full.LKey(), base + 4095, 1, rr, true},
		{"nothing", full.LKey(), base, 0, rr, false},
		{"one too many", full.LKey(), base, 4097, rr, false},
		{"behind", full.LKey(), base + 4096, 1, rr, false},
		{"before", full.LKey(), base - 1, 1, rr, false},
		{"wraps", full.LKey(), base - 8, math.MaxUint64, rr, false},
		{"unknown region", full.LKey() ^ 1, base, 8, rr, false},
		{"no window right", noBind.LKey(), base, 8, rr, false},
		{"read without local write", noWrite.LKey(), base, 8, rr, true},
		{"write without local write", noWrite.LKey(), base, 8, rw, false},
		{"atomic without local write", noWrite.LKey(), base, 8, fabric.AccessRemoteAtomic, false},
	} {
		w := newWindow(t, tab)
		key := w.NextKey()
		if got := tab.Bind(testQPN, key, c.mr, c.addr, c.n, c.a); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if _, f := tab.Remote(testQPN, key, c.addr, 1, c.a); (f == FaultNone) != c.want {
			t.Errorf("%s: lookup: %v", c.name, f)
		}
	}
	w := newWindow(t, tab)
	if tab.Bind(testQPN, full.RKey(), full.LKey(), base, 8, rr) {
		t.Error("a region was bound as if it were a window")
	}
	first := w.NextKey()
	if !tab.Bind(testQPN, first, full.LKey(), base, 8, rr) || tab.Bind(testQPN, w.NextKey(), full.LKey(), base, 8, rr) {
		t.Error("a bound window was bound again, or the first bind failed")
	}
	if tab.Bind(testQPN, newWindow(t, tab).NextKey(), first, base, 8, rr) {
		t.Error("a window was bound to a window")
	}
}

func TestWindowLookup(t *testing.T) {
	tab := NewTable(new(Guards), 0)
	m := memory(t, 4096)
	mr := register(t, tab, m, allRights)
	w := newWindow(t, tab)
	unbound := w.RKey()
	if _, f := tab.Remote(testQPN, unbound, m.Addr(), 1, 0); f != FaultKey {
		t.Errorf("before any bind: %v", f)
	}
	key := w.NextKey()
	if key == unbound || key>>tagBits != unbound>>tagBits {
		t.Errorf("keys %#x and %#x", unbound, key)
	}
	if !tab.Bind(testQPN, key, mr.LKey(), m.Addr()+100, 50, fabric.AccessRemoteRead) {
		t.Fatal("bind")
	}
	for _, c := range []struct {
		name string
		qpn  uint32
		addr uint64
		n    uint32
		need fabric.Access
		want Fault
	}{
		{"inside", testQPN, m.Addr() + 100, 50, fabric.AccessRemoteRead, FaultNone},
		{"other QP", testQPN + 1, m.Addr() + 100, 50, fabric.AccessRemoteRead, FaultKey},
		{"before", testQPN, m.Addr() + 99, 1, fabric.AccessRemoteRead, FaultRange},
		{"behind", testQPN, m.Addr() + 149, 2, fabric.AccessRemoteRead, FaultRange},
		{"write", testQPN, m.Addr() + 100, 1, fabric.AccessRemoteWrite, FaultRights},
	} {
		if _, f := tab.Remote(c.qpn, key, c.addr, c.n, c.need); f != c.want {
			t.Errorf("%s: %v, want %v", c.name, f, c.want)
		}
	}
	if _, f := tab.Local(key, m.Addr()+100, 1, 0); f != FaultKey {
		t.Errorf("as a local key: %v", f)
	}
	mr.Close()
	if _, f := tab.Remote(testQPN, key, m.Addr()+100, 1, 0); f != FaultKey {
		t.Errorf("after the region was closed: %v", f)
	}
}

func TestInvalidate(t *testing.T) {
	tab := NewTable(new(Guards), 0)
	m := memory(t, 4096)
	mr := register(t, tab, m, allRights)
	w := newWindow(t, tab)
	key := w.NextKey()
	tab.Bind(testQPN, key, mr.LKey(), m.Addr(), 8, fabric.AccessRemoteRead)
	for name, got := range map[string]bool{
		"other QP": tab.Invalidate(testQPN+1, key), "region": tab.Invalidate(testQPN, mr.RKey()),
		"unknown key": tab.Invalidate(testQPN, key^1), "key 0": tab.Invalidate(testQPN, 0),
	} {
		if got {
			t.Errorf("%s: was invalidated", name)
		}
	}
	if !tab.Invalidate(testQPN, key) || tab.Invalidate(testQPN, key) {
		t.Error("not once exactly")
	}
	if _, f := tab.Remote(testQPN, key, m.Addr(), 1, 0); f != FaultKey {
		t.Errorf("after invalidate: %v", f)
	}
	again := w.NextKey()
	if !tab.Bind(testQPN+1, again, mr.LKey(), m.Addr(), 8, fabric.AccessRemoteRead) {
		t.Error("bind for another QP after invalidate")
	}
	if _, f := tab.Remote(testQPN+1, key, m.Addr(), 1, 0); f != FaultKey {
		t.Errorf("the old key: %v", f)
	}
	for range 2 {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, f := tab.Remote(testQPN+1, again, m.Addr(), 1, 0); f != FaultKey || tab.Len() != 1 {
		t.Errorf("after close: %v, %d keys", f, tab.Len())
	}
}

// A window's keys differ for long, and are not one behind the other.
func TestWindowKeys(t *testing.T) {
	tab := NewTable(new(Guards), 0)
	w := newWindow(t, tab)
	last := make(map[uint32]int)
	steps := make(map[uint32]bool)
	for i := range 20000 {
		before := w.RKey()
		key := w.NextKey()
		if key == 0 || key>>tagBits != before>>tagBits {
			t.Fatalf("key %#x after %#x", key, before)
		}
		if at, ok := last[key]; ok && i-at < 273 {
			t.Fatalf("key %#x came back after %d binds", key, i-at)
		}
		last[key] = i
		steps[(key-before)&(1<<tagBits-1)] = true
	}
	if len(steps) < 10 {
		t.Errorf("only the steps %v", steps)
	}
}

func TestNextKeyIsNeverZero(t *testing.T) {
	for tag := range uint32(1 << tagBits) {
		for _, step := range []uint32{0, 1, 1<<tagBits - 2, 1<<tagBits - 1, 5000} {
			if nextKey(tag, step) == 0 {
				t.Fatalf("tag %d, step %d", tag, step)
			}
		}
	}
}

func TestRunLocal(t *testing.T) {
	d := newDevice(t, nil)
	cq := newCQ(t, d, 16, nil, nil)
	q := newQP(t, d, cq, nil)
	q.States().Connect()
	m := memory(t, 4096)
	mr, err := d.Register(m, allRights)
	if err != nil {
		t.Fatal(err)
	}
	w, err := d.NewMemoryWindow()
	if err != nil {
		t.Fatal(err)
	}
	key, err := q.EnqueueBind(w, mr, 8, 16, fabric.AccessRemoteRead, 5, fabric.FlagSignaled)
	if err != nil || key != w.RKey() {
		t.Fatalf("key %#x, RKey %#x, %v", key, w.RKey(), err)
	}
	if _, f := q.CheckRemote(key, m.Addr()+8, 16, fabric.AccessRemoteRead); f != FaultKey {
		t.Errorf("before the bind ran: %v", f)
	}
	if st := q.RunLocal(q.Sends().At(0)); st != fabric.StatusSuccess {
		t.Errorf("bind: %v", st)
	}
	if _, f := q.CheckRemote(key, m.Addr()+8, 16, fabric.AccessRemoteRead); f != FaultNone {
		t.Errorf("after the bind ran: %v", f)
	}
	q.EnqueueSend([]fabric.SendWR{{Op: fabric.OpLocalInv, RKey: key}, {Op: fabric.OpLocalInv, RKey: key}}, nil)
	if first, second := q.RunLocal(q.Sends().At(1)), q.RunLocal(q.Sends().At(2)); first != fabric.StatusSuccess || second != fabric.StatusLocalQPOp {
		t.Errorf("invalidate: %v, again: %v", first, second)
	}
	q.CompleteSend(fabric.StatusSuccess, 0)
	if wc := poll(t, cq); len(wc) != 1 || wc[0] != (fabric.Completion{ID: 5, QPN: q.Num(), Op: fabric.OpBind}) {
		t.Errorf("%+v", wc)
	}
	bindErrors(t, q, w, mr)
}

func bindErrors(t *testing.T, q *testQP, w fabric.MemoryWindow, mr fabric.MemoryRegion) {
	other := newDevice(t, nil)
	foreign, err := other.NewMemoryWindow()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		w      fabric.MemoryWindow
		off, n int
		flags  fabric.SendFlags
		want   error
	}{
		"foreign window":  {foreign, 0, 8, 0, errForeign},
		"no window":       {nil, 0, 8, 0, errForeign},
		"negative offset": {w, -1, 8, 0, errWindow},
		"negative length": {w, 0, -1, 0, errWindow},
		"nothing":         {w, 0, 0, 0, errWindow},
		"too long":        {w, 0, 4097, 0, errWindow},
		"behind":          {w, 4096, 1, 0, errWindow},
		"far behind":      {w, math.MaxInt, math.MaxInt, 0, errWindow},
		"inline":          {w, 0, 8, fabric.FlagInline, errWindow},
	} {
		if _, err := q.EnqueueBind(c.w, mr, c.off, c.n, 0, 0, c.flags); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	q.limits.MemoryWindows = false
	if _, err := q.EnqueueBind(w, mr, 0, 8, 0, 0, 0); !errors.Is(err, fabric.ErrNotSupported) {
		t.Errorf("not offered: %v", err)
	}
	if _, err := newDevice(t, func(l *fabric.Limits) { l.MemoryWindows = false }).NewMemoryWindow(); !errors.Is(err, fabric.ErrNotSupported) {
		t.Errorf("window not offered: %v", err)
	}
}
