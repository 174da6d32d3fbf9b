package rdma

import (
	"math/rand/v2"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

func TestIDs(t *testing.T) {
	for _, c := range []struct{ gen, conn, slot uint32 }{{0, 0, 0}, {^uint32(0), maxConns - 1, maxSlots - 1}, {7, 300, 1000}} {
		id := makeID(c.gen, c.conn, c.slot) | uint64(wrReadLast)
		if idGen(id) != c.gen || idConn(id) != c.conn || idSlot(id) != c.slot || idKind(id) != wrReadLast {
			t.Errorf("%+v -> %#x -> %d %d %d %d", c, id, idGen(id), idConn(id), idSlot(id), idKind(id))
		}
	}
	shared := uint64(1<<28-1)<<kindBits | uint64(wrSharedRecv)
	if idShared(shared) != 1<<28-1 || idKind(shared) != wrSharedRecv {
		t.Errorf("shared %#x -> %d", shared, idShared(shared))
	}
}

func TestSlotOf(t *testing.T) {
	slots := make([]slot, 3)
	for i := range slots {
		if slotOf(&slots[i].Request) != &slots[i] {
			t.Error(i)
		}
	}
}

// A transfer of odd pieces arrives complete and in order, whatever the limits.
func TestSegments(t *testing.T) {
	type d struct {
		addr uint64
		n    uint32
	}
	memory := make([]byte, 256<<10)
	for _, c := range []struct {
		name   string
		descs  []d
		orders []int // of blocks
		left   uint32
		maxSGE int
		maxMsg uint32
		want   int // segments
	}{
		{"one of each", []d{{0x1000, 4096}}, []int{0}, 4096, 16, 1 << 31, 1},
		{"less than the descriptor", []d{{0x1000, 8192}}, []int{0}, 512, 16, 1 << 31, 1},
		{"511 and 513 in one block", []d{{0x1000, 511}, {0x9001, 513}}, []int{0}, 1024, 16, 1 << 31, 2},
		{"one descriptor over three blocks", []d{{0x1000, 12288}}, []int{0, 0, 0}, 12288, 16, 1 << 31, 1},
		{"the same with one SGE", []d{{0x1000, 12288}}, []int{0, 0, 0}, 12288, 1, 1 << 31, 3},
		{"the same with two SGEs", []d{{0x1000, 12288}}, []int{0, 0, 0}, 12288, 2, 1 << 31, 2},
		{"small messages", []d{{0x1000, 10000}}, []int{2}, 10000, 16, 4096, 3},
		{"empty descriptors between", []d{{5, 0}, {0x1000, 100}, {6, 0}, {7, 0}, {0x2000, 412}}, []int{0}, 512, 16, 1 << 31, 2},
		{"16 of 256 bytes", func() (ds []d) {
			for i := range uint64(16) {
				ds = append(ds, d{i << 20, 256})
			}
			return ds
		}(), []int{0}, 4096, 16, 1 << 31, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s slot
			var remote, local []uint64 // the address of each byte
			for i, d := range c.descs {
				s.sgl.keyed = append(s.sgl.keyed, keyed(d.addr, d.n, uint32(i), 0)...)
				for b := range uint64(d.n) {
					remote = append(remote, uint64(i)<<56|d.addr+b)
				}
			}
			var pieces [][]byte
			free := memory
			for _, o := range c.orders {
				piece := free[:pageSize<<o]
				pieces, free = append(pieces, piece), free[2*len(piece):] // not adjacent
				for b := range uint64(len(piece)) {
					local = append(local, addressOf(piece)+b)
				}
			}
			cur, done, segs := cursor{left: c.left}, uint32(0), 0
			for cur.left > 0 {
				addr, key, n, sges := s.segment(&cur, pieces, 99, c.maxSGE, c.maxMsg, nil)
				checkSegment(t, sges, n, c.maxSGE, c.maxMsg)
				k := done
				for b := range uint64(n) {
					if remote[done+uint32(b)] != uint64(key)<<56|addr+b {
						t.Fatalf("byte %d: at %#x of key %d", done+uint32(b), addr+b, key)
					}
				}
				for _, sge := range sges {
					for b := range uint64(sge.Length) {
						if local[k] != sge.Addr+b || sge.LKey != 99 {
							t.Fatalf("byte %d: from %#x", k, sge.Addr+b)
						}
						k++
					}
				}
				done += n
				segs++
			}
			if done != c.left || segs != c.want {
				t.Errorf("%d bytes in %d segments, want %d in %d", done, segs, c.left, c.want)
			}
		})
	}
}

func checkSegment(t *testing.T, sges []fabric.SGE, n uint32, maxSGE int, maxMsg uint32) {
	t.Helper()
	sum := uint32(0)
	for _, s := range sges {
		sum += s.Length
	}
	if n == 0 || sum != n || len(sges) > maxSGE || n > maxMsg {
		t.Fatalf("segment of %d bytes, %d in %d SGEs", n, sum, len(sges))
	}
}

func TestFIFO(t *testing.T) {
	var f fifo
	s := make([]slot, 5)
	for i := range s {
		s[i].index = uint32(i)
		f.push(&s[i])
	}
	f.removeIf(func(s *slot) bool { return s.index == 0 || s.index == 3 || s.index == 4 })
	if f.n != 2 || f.pop().index != 1 || f.pop().index != 2 || f.head != nil || f.tail != nil || f.n != 0 {
		t.Errorf("%+v", f)
	}
	f.push(&s[3])
	if f.head != f.tail || f.head.index != 3 {
		t.Errorf("%+v", f)
	}
}

func TestRing(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	r := newRing[int](5, ^uint32(0)-2) // positions wrap at once
	in, out := 0, 0
	for range 1000 {
		if r.len() < 5 && rng.IntN(2) == 0 {
			r.push(in)
			in++
		} else if r.len() > 0 {
			if r.at(r.head) != out || r.pop() != out {
				t.Fatalf("not %d", out)
			}
			out++
		}
	}
	if len(newRing[int](1, 0).buf) != 1 || len(newRing[int](8, 0).buf) != 8 || len(newRing[int](9, 0).buf) != 16 {
		t.Error("sizes")
	}
}

// No two receives share a byte, all lie within the memory, and data is on a
// page when it is whole pages.
func TestRecvArea(t *testing.T) {
	for _, c := range []struct{ n, data, maxSGE, sges int }{
		{33, 0, 2, 1}, {33, 4096, 16, 2}, {33, 4096, 1, 1}, {5, 16, 2, 2}, {5, 8192 + 16, 1, 1},
	} {
		const addr = 0x10000
		mem := make([]byte, recvSize(c.n, c.data))
		a := newRecvArea(mem, addr, 7, c.n, c.data, c.maxSGE)
		var b batch
		used := make([]int, len(mem))
		for i := range int32(c.n) {
			a.append(&b, uint64(i), i)
			wr := b.recvs[i]
			if int(wr.NumSGE) != c.sges {
				t.Fatalf("%+v: %d SGEs", c, wr.NumSGE)
			}
			size := uint32(0)
			for _, sge := range b.recvSGEs[wr.FirstSGE:][:wr.NumSGE] {
				size += sge.Length
				for off := sge.Addr - addr; off < sge.Addr-addr+uint64(sge.Length); off++ {
					used[off]++
				}
			}
			if int(size) != nvme.SQESize+c.data {
				t.Fatalf("%+v: receive of %d bytes", c, size)
			}
			first := b.recvSGEs[wr.FirstSGE].Addr - addr
			if &a.sqe(i)[0] != &mem[first] {
				t.Fatalf("%+v: SQE %d is not where it arrives", c, i)
			}
			if c.data == 0 {
				if a.capsuleData(i, 64) != nil {
					t.Fatal("data without room for it")
				}
				continue
			}
			last := b.recvSGEs[int(wr.FirstSGE)+c.sges-1]
			off := last.Addr - addr
			if c.sges == 1 {
				off += nvme.SQESize
			} else if c.data%4096 == 0 && off%4096 != 0 {
				t.Fatalf("%+v: data at %#x", c, off)
			}
			if got := a.capsuleData(i, uint32(nvme.SQESize+c.data)); len(got) != c.data || &got[0] != &mem[off] {
				t.Fatalf("%+v: data %d is not where it arrives", c, i)
			}
			if got := a.capsuleData(i, nvme.SQESize+9); len(got) != 9 || cap(got) != 9 {
				t.Fatalf("%d bytes, %d at most", len(got), cap(got))
			}
		}
		for off, n := range used {
			if n != 1 {
				t.Fatalf("%+v: byte %d is in %d receives", c, off, n)
			}
		}
	}
}
