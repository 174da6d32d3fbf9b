package rdma

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func testPool(t *testing.T, size, largest int) *pool {
	t.Helper()
	p, err := newPool(size, 0, largest)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.mem.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestPoolPieces(t *testing.T) {
	const k, m = 1 << 10, 1 << 20
	for _, c := range []struct {
		n     uint32
		sizes []uint32
	}{
		{1, []uint32{4 * k}},
		{512, []uint32{4 * k}},
		{4 * k, []uint32{4 * k}},
		{4*k + 1, []uint32{8 * k}},
		{64 * k, []uint32{64 * k}},
		{68 * k, []uint32{64 * k, 4 * k}},
		{m, []uint32{m}},
		{m - 1, []uint32{m}},
		{m - 4*k, []uint32{512 * k, 256 * k, 128 * k, 64 * k, 32 * k, 16 * k, 8 * k, 4 * k}},
		{2 * m, []uint32{m, m}},
	} {
		p := testPool(t, 4*m, m)
		var out [maxPieces]block
		got := p.get(c.n, out[:])
		var sizes []uint32
		for _, b := range out[:got] {
			sizes = append(sizes, b.size())
		}
		if !slices.Equal(sizes, c.sizes) {
			t.Errorf("%d bytes: blocks %v, want %v", c.n, sizes, c.sizes)
		}
		total := 0
		for _, v := range p.views(nil, out[:got], c.n) {
			total += len(v)
		}
		if total != int(c.n) {
			t.Errorf("%d bytes: views of %d", c.n, total)
		}
	}
}

// Two pages short of two blocks, the rest rounds up rather than fail.
func TestPoolRoundsTheLastPieceUp(t *testing.T) {
	p := testPool(t, 1<<20, 1<<20)
	var out [2]block
	if got := p.get(7*pageSize, out[:]); got != 2 || out[0].order() != 2 || out[1].order() != 2 {
		t.Errorf("7 pages in 2 pieces: %d, orders %d %d", got, out[0].order(), out[1].order())
	}
}

func TestPoolExhaustedAndBack(t *testing.T) {
	p := testPool(t, 1<<20, 1<<20)
	var small []block
	for {
		var out [1]block
		if p.get(pageSize, out[:]) == 0 {
			break
		}
		small = append(small, out[0])
	}
	if len(small) != 256 || p.free != 0 {
		t.Fatalf("%d pages handed out, %d free", len(small), p.free)
	}
	var out [maxPieces]block
	for i, b := range small { // every other page: 128 free, no two together
		if i%2 == 0 {
			p.put(b)
		}
	}
	if got := p.get(16*pageSize, out[:]); got != 0 {
		t.Errorf("16 pages in %d pieces out of single pages", got)
	}
	if p.free != 128 {
		t.Errorf("a failed get left %d pages free, want 128", p.free)
	}
	for i, b := range small {
		if i%2 == 1 {
			p.put(b)
		}
	}
	if got := p.get(1<<20, out[:]); got != 1 {
		t.Errorf("the whole pool in %d pieces", got)
	}
}

// What is handed out never overlaps, and all of it comes back as one block.
func TestPoolRandom(t *testing.T) {
	const size, largest = 8 << 20, 1 << 20
	p := testPool(t, size, largest)
	rng := rand.New(rand.NewPCG(1, 2))
	owner := make([]int, size/pageSize)
	type held struct{ bs []block }
	var live []held
	mark := func(bs []block, from, to int) {
		for _, b := range bs {
			for i := range 1 << b.order() {
				page := int(b.page()) + i
				if owner[page] != from {
					t.Fatalf("page %d is owned by %d, want %d", page, owner[page], from)
				}
				owner[page] = to
			}
		}
	}
	for id := 1; id < 20000; id++ {
		if len(live) > 0 && rng.IntN(100) < 48 {
			i := rng.IntN(len(live))
			mark(live[i].bs, owner[live[i].bs[0].page()], 0)
			p.putAll(live[i].bs)
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		n := uint32(1 + rng.IntN(largest>>rng.IntN(9)))
		var out [maxPieces]block
		if got := p.get(n, out[:]); got > 0 {
			mark(out[:got], 0, id)
			live = append(live, held{slices.Clone(out[:got])})
		}
	}
	for _, h := range live {
		p.putAll(h.bs)
	}
	p.merge()
	for o, head := range p.heads {
		if (head != noPage) != (o == p.topOrder) {
			t.Errorf("order %d: free list head %#x after everything came back", o, head)
		}
	}
	if p.free != p.pages {
		t.Errorf("%d of %d pages free", p.free, p.pages)
	}
}

func BenchmarkPool(b *testing.B) {
	for _, c := range []struct {
		name string
		n    uint32
	}{{"4K", 4 << 10}, {"128K", 128 << 10}, {"1M", 1 << 20}, {"1M-4K", 1<<20 - 4<<10}} {
		b.Run(c.name, func(b *testing.B) {
			p, err := newPool(16<<20, 0, 1<<20)
			if err != nil {
				b.Fatal(err)
			}
			defer p.mem.Close()
			var out [maxPieces]block
			b.ReportAllocs()
			for b.Loop() {
				p.putAll(out[:p.get(c.n, out[:])])
			}
		})
	}
}
