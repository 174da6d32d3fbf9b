package core

import (
	"bytes"
	"sync"
	"testing"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// pieces are SGEs of m of the given lengths with a gap of 3 bytes between.
func pieces(m *fabric.Memory, key uint32, lengths ...uint32) (list []fabric.SGE) {
	addr := m.Addr()
	for _, n := range lengths {
		list = append(list, fabric.SGE{Addr: addr, Length: n, LKey: key})
		addr += uint64(n) + 3
	}
	return list
}

func TestGatherScatter(t *testing.T) {
	tab := NewTable(new(Guards), 0)
	m := memory(t, 4096)
	mr := register(t, tab, m, fabric.AccessLocalWrite)
	sges := pieces(m, mr.LKey(), 5, 0, 7, 1)
	message := []byte("hello, world!")
	if n, f := tab.Scatter(sges, 0, message); n != 13 || f != FaultNone {
		t.Fatalf("scatter: %d, %v", n, f)
	}
	if got := string(m.Bytes()[:24]); got != "hello\x00\x00\x00\x00\x00\x00, world\x00\x00\x00!\x00\x00" {
		t.Errorf("%q", got)
	}
	for off := range len(message) + 2 {
		for n := range len(message) + 3 {
			want := message[min(off, len(message)):min(off+n, len(message))]
			got := make([]byte, n)
			k, f := tab.Gather(got, sges, uint64(off))
			if f != FaultNone || !bytes.Equal(got[:k], want) {
				t.Fatalf("gather %d from %d: %q, %v, want %q", n, off, got[:k], f, want)
			}
			clear(m.Bytes())
			tab.Scatter(sges, 0, message)
			fresh := append([]byte(nil), message...)
			src := bytes.Repeat([]byte{'x'}, n)
			k, f = tab.Scatter(sges, uint64(off), src)
			copy(fresh[min(off, len(fresh)):], src)
			all := make([]byte, len(message))
			tab.Gather(all, sges, 0)
			if f != FaultNone || k != len(want) || !bytes.Equal(all, fresh) {
				t.Fatalf("scatter %d to %d: %d, %v, %q, want %q", n, off, k, f, all, fresh)
			}
			tab.Scatter(sges, 0, message)
		}
	}
	if Total(sges) != 13 {
		t.Errorf("total %d", Total(sges))
	}
}

func TestGatherFaults(t *testing.T) {
	tab := NewTable(new(Guards), 0)
	m := memory(t, 4096)
	mr := register(t, tab, m, 0) // no local write
	sges := pieces(m, mr.LKey(), 8, 8)
	buf := make([]byte, 16)
	if n, f := tab.Scatter(sges, 0, buf); n != 0 || f != FaultRights {
		t.Errorf("scatter: %d, %v", n, f)
	}
	sges[1].LKey ^= 1
	if n, f := tab.Gather(buf, sges, 0); n != 8 || f != FaultKey {
		t.Errorf("gather: %d, %v", n, f)
	}
	if n, f := tab.Gather(buf[:8], sges, 0); n != 8 || f != FaultNone {
		t.Errorf("gather of the good one: %d, %v", n, f)
	}
	sges[1] = fabric.SGE{Addr: m.Addr() + 4090, Length: 8, LKey: mr.LKey()}
	if _, f := tab.Gather(buf, sges, 8); f != FaultRange {
		t.Errorf("gather beyond: %v", f)
	}
	for _, c := range []struct {
		n    uint64
		need fabric.Access
		want Fault
	}{{16, 0, FaultRange}, {9, 0, FaultNone}, {8, 0, FaultNone}, {8, fabric.AccessLocalWrite, FaultRights}, {0, fabric.AccessLocalWrite, FaultNone}} {
		if f := tab.Check(sges, c.n, c.need); f != c.want {
			t.Errorf("check of %d: %v, want %v", c.n, f, c.want)
		}
	}
}

func TestAtomic(t *testing.T) {
	m := memory(t, 4096)
	word := (*uint64)(unsafe.Pointer(&m.Bytes()[8]))
	for _, c := range []struct {
		op                             fabric.Opcode
		before, compare, swapAdd, want uint64
	}{
		{fabric.OpFetchAdd, 1, 0, 2, 3},
		{fabric.OpFetchAdd, 1<<64 - 1, 0, 2, 1},
		{fabric.OpFetchAdd, 5, 0, 1<<64 - 1, 4},
		{fabric.OpCompareSwap, 5, 5, 9, 9},
		{fabric.OpCompareSwap, 5, 6, 9, 5},
	} {
		*word = c.before
		old, ok := Atomic(c.op, m.Bytes()[8:16], c.compare, c.swapAdd)
		if !ok || old != c.before || *word != c.want {
			t.Errorf("%v: old %d, now %d, %v; want %d", c.op, old, *word, ok, c.want)
		}
	}
	for name, b := range map[string][]byte{"misaligned": m.Bytes()[4:12], "short": m.Bytes()[:7], "long": m.Bytes()[:9], "none": nil} {
		if _, ok := Atomic(fabric.OpFetchAdd, b, 0, 1); ok {
			t.Errorf("%s: was run", name)
		}
	}
	*word = 0
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			for range 2000 {
				if g == 0 {
					Atomic(fabric.OpFetchAdd, m.Bytes()[8:16], 0, 1)
					continue
				}
				for old := uint64(0); ; { // an increment by compare and swap
					now, _ := Atomic(fabric.OpCompareSwap, m.Bytes()[8:16], old, old+1)
					if now == old {
						break
					}
					old = now
				}
			}
		})
	}
	wg.Wait()
	if *word != 4000 {
		t.Errorf("sum %d", *word)
	}
	v := uint64(0x0102030405060708)
	if b := HostBytes(&v); *(*uint64)(unsafe.Pointer(&b[0])) != v || len(b) != AtomicSize {
		t.Errorf("% x", b)
	}
}
