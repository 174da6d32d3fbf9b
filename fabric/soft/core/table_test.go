package core

import (
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

const allRights = fabric.AccessLocalWrite | fabric.AccessRemoteRead | fabric.AccessRemoteWrite |
	fabric.AccessRemoteAtomic | fabric.AccessWindowBind

func memory(t testing.TB, size int) *fabric.Memory {
	t.Helper()
	m, err := fabric.AllocMemory(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func register(t testing.TB, tab *Table, m *fabric.Memory, a fabric.Access) *Region {
	t.Helper()
	r, err := tab.Register(m, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestLookup(t *testing.T) {
	tab := NewTable(new(Guards), 0)
	m := memory(t, 4096)
	all := register(t, tab, m, allRights)
	ro := register(t, tab, m, fabric.AccessRemoteRead)
	dead := register(t, tab, m, allRights)
	dead.Close()
	size := uint32(m.Len())
	const w, r, aw = fabric.AccessRemoteWrite, fabric.AccessRemoteRead, fabric.AccessRemoteAtomic
	for _, c := range []struct {
		name string
		key  uint32
		addr uint64
		n    uint32
		need fabric.Access
		want Fault
	}{
		{"whole", all.RKey(), m.Addr(), size, w, FaultNone},
		{"first byte", all.RKey(), m.Addr(), 1, r, FaultNone},
		{"last byte", all.RKey(), m.Addr() + uint64(size) - 1, 1, r, FaultNone},
		{"nothing at the end", all.RKey(), m.Addr() + uint64(size), 0, r, FaultNone},
		{"one too many", all.RKey(), m.Addr(), size + 1, r, FaultRange},
		{"across the end", all.RKey(), m.Addr() + uint64(size) - 1, 2, r, FaultRange},
		{"below", all.RKey(), m.Addr() - 1, 1, r, FaultRange},
		{"below by all", all.RKey(), m.Addr() - uint64(size), size, r, FaultRange},
		{"address 0", all.RKey(), 0, 1, r, FaultRange},
		{"last address", all.RKey(), math.MaxUint64, 1, r, FaultRange},
		{"wraps around into the region", all.RKey(), m.Addr() - 16, math.MaxUint32, r, FaultRange},
		{"longest", all.RKey(), m.Addr(), math.MaxUint32, r, FaultRange},
		{"no write right", ro.RKey(), m.Addr(), 1, w, FaultRights},
		{"no atomic right", ro.RKey(), m.Addr(), 8, aw, FaultRights},
		{"read right", ro.RKey(), m.Addr(), 1, r, FaultNone},
		{"two rights, one missing", ro.RKey(), m.Addr(), 1, r | w, FaultRights},
		{"dead", dead.RKey(), m.Addr(), 1, r, FaultKey},
		{"zero", 0, m.Addr(), 1, r, FaultKey},
		{"other tag", all.RKey() ^ 1, m.Addr(), 1, r, FaultKey},
		{"other slot", all.RKey() ^ 1<<tagBits, m.Addr(), 1, r, FaultKey},
		{"other chunk", all.RKey() ^ 1<<31, m.Addr(), 1, r, FaultKey},
	} {
		b, f := tab.Remote(7, c.key, c.addr, c.n, c.need)
		if f != c.want {
			t.Errorf("%s: %v, want %v", c.name, f, c.want)
		}
		if f == FaultNone && (len(b) != int(c.n) || cap(b) != int(c.n)) {
			t.Errorf("%s: %d bytes with room for %d, want %d", c.name, len(b), cap(b), c.n)
		}
	}
	if _, f := tab.Local(ro.LKey(), m.Addr(), 1, fabric.AccessLocalWrite); f != FaultRights {
		t.Errorf("local write without the right: %v", f)
	}
	if _, f := tab.Local(ro.LKey(), m.Addr(), 1, 0); f != FaultNone {
		t.Errorf("local read: %v", f)
	}
}

func TestRegisterErrors(t *testing.T) {
	tab := NewTable(new(Guards), 2)
	m := memory(t, 1)
	closed := memory(t, 1)
	closed.Close()
	for name, err := range map[string]error{
		"nil":           second(tab.Register(nil, 0)),
		"closed":        second(tab.Register(closed, 0)),
		"remote write":  second(tab.Register(m, fabric.AccessRemoteWrite)),
		"remote atomic": second(tab.Register(m, fabric.AccessRemoteAtomic)),
	} {
		if !errors.Is(err, fabric.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	register(t, tab, m, 0)
	last := register(t, tab, m, 0)
	if _, err := tab.Register(m, 0); !errors.Is(err, fabric.ErrQueueFull) {
		t.Errorf("third of two: %v", err)
	}
	if err := last.Close(); err != nil || tab.Len() != 1 {
		t.Errorf("close: %v, %d left", err, tab.Len())
	}
	if err := last.Close(); err != nil || tab.Len() != 1 {
		t.Errorf("second close: %v, %d left", err, tab.Len())
	}
	register(t, tab, m, 0)
}

func second[T any](_ T, err error) error { return err }

// Keys are spread, never 0, and do not come back while others are taken.
func TestKeysAreNotReused(t *testing.T) {
	tab := NewTable(new(Guards), 0)
	m := memory(t, 1)
	const rounds = 20000
	seen := make(map[uint32]int, rounds)
	top := make(map[uint32]bool)
	for i := range rounds {
		r, err := tab.Register(m, 0)
		if err != nil {
			t.Fatal(err)
		}
		key := r.RKey()
		if key == 0 {
			t.Fatal("key 0")
		}
		if at, ok := seen[key]; ok && i-at < minFree {
			t.Fatalf("key %#x of registration %d came back at %d", key, at, i)
		}
		seen[key] = i
		top[key>>tagBits] = true
		r.Close()
	}
	if len(top) <= minFree {
		t.Errorf("only %d slots were used", len(top))
	}
	if len(seen) < rounds*9/10 {
		t.Errorf("%d different keys in %d registrations", len(seen), rounds)
	}
}

func TestManyKeys(t *testing.T) {
	tab := NewTable(new(Guards), 0)
	m := memory(t, 1)
	keys := make(map[uint32]*Region)
	for range 3000 {
		r := register(t, tab, m, fabric.AccessRemoteRead)
		if keys[r.RKey()] != nil {
			t.Fatalf("key %#x twice", r.RKey())
		}
		keys[r.RKey()] = r
	}
	for key := range keys {
		if _, f := tab.Remote(0, key, m.Addr(), 1, fabric.AccessRemoteRead); f != FaultNone {
			t.Fatalf("key %#x: %v", key, f)
		}
	}
}

// A region closed under a reader: the memory may be unmapped at once.
func TestCloseUnderReader(t *testing.T) {
	guards := new(Guards)
	tab := NewTable(guards, 0)
	var (
		stop atomic.Bool
		key  atomic.Uint32
		addr atomic.Uint64
		hits atomic.Int64
		wg   sync.WaitGroup
	)
	g := guards.New()
	wg.Go(func() {
		for !stop.Load() {
			g.Enter()
			if b, f := tab.Remote(0, key.Load(), addr.Load(), 4096, fabric.AccessRemoteRead); f == FaultNone {
				for i := 0; i < len(b); i += 512 {
					b[i]++ // a fault of the process if it was unmapped
				}
				hits.Add(1)
			}
			g.Leave()
			runtime.Gosched()
		}
	})
	for range 100 {
		m, err := fabric.AllocMemory(4096)
		if err != nil {
			t.Fatal(err)
		}
		r := register(t, tab, m, fabric.AccessRemoteRead)
		before := hits.Load()
		addr.Store(m.Addr())
		key.Store(r.RKey())
		for hits.Load() == before {
			runtime.Gosched()
		}
		r.Close() // while the readers go on reading
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
}

func TestLookupAllocates(t *testing.T) {
	tab := NewTable(new(Guards), 0)
	m := memory(t, 4096)
	r := register(t, tab, m, allRights)
	sges := []fabric.SGE{{Addr: m.Addr(), Length: 100, LKey: r.LKey()}, {Addr: m.Addr() + 1000, Length: 100, LKey: r.LKey()}}
	buf := make([]byte, 200)
	if n := testing.AllocsPerRun(100, func() {
		tab.Remote(0, r.RKey(), m.Addr(), 100, fabric.AccessRemoteRead)
		tab.Gather(buf, sges, 0)
		tab.Scatter(sges, 0, buf)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRemote(b *testing.B) {
	tab := NewTable(new(Guards), 0)
	m := memory(b, 4096)
	r := register(b, tab, m, allRights)
	b.ReportAllocs()
	for b.Loop() {
		if _, f := tab.Remote(0, r.RKey(), m.Addr(), 4096, fabric.AccessRemoteWrite); f != FaultNone {
			b.Fatal(f)
		}
	}
}

func BenchmarkGuard(b *testing.B) {
	g := new(Guards).New()
	for b.Loop() {
		g.Enter()
		g.Leave()
	}
}
