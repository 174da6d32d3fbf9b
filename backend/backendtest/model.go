package backendtest

import (
	"encoding/binary"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// model is what a device should hold. A block's content is made from a seed;
// seed 0 is zeroes. After a discard a block may hold one of two.
type model struct {
	info   backend.Info
	blocks [][2]uint32
	seed   uint32 // the last one used
	forget bool   // writes vanish
}

func newModel(info backend.Info, forget bool) *model {
	return &model{info: info, blocks: make([][2]uint32, info.Blocks), forget: forget}
}

// fill makes the content of block lba from seed.
func fill(b []byte, lba uint64, seed uint32) {
	if seed == 0 {
		clear(b)
		return
	}
	v := (uint64(seed)<<32 | lba) * 0x9E3779B97F4A7C15
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], v+uint64(i))
	}
}

// span is op's range in blocks.
func (m *model) span(op *backend.Op) (first, n uint64) {
	return op.Offset / uint64(m.info.BlockSize), op.Length / uint64(m.info.BlockSize)
}

// data is new content for op's range; the blocks hold it after apply.
func (m *model) data(op *backend.Op) []byte {
	m.seed++
	bs := int(m.info.BlockSize)
	first, n := m.span(op)
	b := make([]byte, int(n)*bs)
	for i := range n {
		fill(b[int(i)*bs:][:bs], first+i, m.seed)
	}
	return b
}

// apply makes the model hold what op leaves. seed is that of a write.
func (m *model) apply(op *backend.Op, seed uint32) {
	first, n := m.span(op)
	for i := range n {
		b := &m.blocks[first+i]
		switch op.Kind {
		case backend.Write:
			*b = [2]uint32{seed, seed}
		case backend.WriteZeroes:
			*b = [2]uint32{}
		case backend.Discard:
			b[1] = 0
			if m.info.ZeroAfterDiscard {
				b[0] = 0
			}
		}
		if m.forget {
			*b = [2]uint32{}
		}
	}
}

// check compares what a read gave.
func (m *model) check(op *backend.Op) error {
	bs := int(m.info.BlockSize)
	got := join(op.Bufs)
	want := make([]byte, bs)
	first, n := m.span(op)
	for i := range n {
		block := got[int(i)*bs:][:bs]
		ok := false
		for _, seed := range m.blocks[first+i] {
			fill(want, first+i, seed)
			ok = ok || string(block) == string(want)
		}
		if !ok {
			return fmt.Errorf("%s: block %d begins with %x, want content of seeds %v", Describe(op), first+i, block[:16], m.blocks[first+i])
		}
	}
	return nil
}

func join(bufs [][]byte) (all []byte) {
	for _, b := range bufs {
		all = append(all, b...)
	}
	return all
}

// scatter copies b over bufs.
func scatter(bufs [][]byte, b []byte) {
	for _, to := range bufs {
		b = b[copy(to, b):]
	}
}

// layouts are the ways buffers may be cut.
var layouts = []string{"one", "sectors", "odd"}

// cut takes n bytes from mem in pieces of a layout: one aligned buffer;
// several of whole sectors; several of any length at any address.
func cut(t *rapid.T, mem []byte, n int, layout string) (bufs [][]byte, rest []byte) {
	unit, gap := n, 0
	switch layout {
	case "sectors":
		unit = 512
	case "odd":
		unit, gap = 1, rapid.IntRange(0, 100).Draw(t, "gap")
	}
	mem = mem[gap:]
	for n > 0 {
		piece := n
		if layout != "one" && len(bufs) < 12 {
			piece = rapid.IntRange(1, n/unit).Draw(t, "piece") * unit
		}
		bufs = append(bufs, mem[:piece:piece])
		mem, n = mem[piece:], n-piece
	}
	const page = 4096
	return bufs, mem[len(mem)%page:] // mem ends at a page: begin at one again
}

// testModel runs random operations, several at a time, and compares every
// block read with the model.
func testModel(t *testing.T, h Harness, spec Spec) {
	d := h.open(t, spec)
	r := NewRig(t, d, 8)
	mem := Memory(t, 4<<20)
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(d.Info(), h.Forgets)
		whole := backend.Op{Kind: backend.WriteZeroes, Length: m.info.Blocks * uint64(m.info.BlockSize), Dealloc: true}
		r.MustDo(whole)
		for range rapid.IntRange(1, 12).Draw(rt, "batches") {
			runBatch(rt, r, m, mem)
		}
		all := backend.Op{Kind: backend.Read, Length: whole.Length, Bufs: [][]byte{mem[:whole.Length]}}
		r.MustDo(all)
		if err := m.check(&all); err != nil {
			rt.Fatal(err)
		}
	})
}

// runBatch runs up to eight operations in flight together, none of which
// conflicts with another.
func runBatch(rt *rapid.T, r *Rig, m *model, mem []byte) {
	ops, seeds := []backend.Op{}, []uint32{}
	for range rapid.IntRange(1, 8).Draw(rt, "ops") {
		op := drawOp(rt, m)
		if conflicts(ops, &op) {
			continue
		}
		if op.Kind == backend.Read || op.Kind == backend.Write {
			op.Bufs, mem = cut(rt, mem, int(op.Length), rapid.SampledFrom(layouts).Draw(rt, "layout"))
			for _, b := range op.Bufs {
				fill(b[:len(b)&^7], 0, 0xDEAD) // what a read must replace
			}
		}
		if op.Kind == backend.Write {
			scatter(op.Bufs, m.data(&op))
		}
		ops, seeds = append(ops, op), append(seeds, m.seed)
	}
	for i, st := range r.DoAll(ops) {
		if st != nvme.Success {
			rt.Fatalf("%s: %v", Describe(&ops[i]), st)
		}
		if ops[i].Kind != backend.Read {
			m.apply(&ops[i], seeds[i])
		} else if err := m.check(&ops[i]); err != nil {
			rt.Fatal(err)
		}
	}
}

// drawnKinds weighs kinds: syncing is slow on real media.
var drawnKinds = []backend.Kind{
	backend.Read, backend.Write, backend.Read, backend.Write, backend.Read, backend.Write,
	backend.Discard, backend.WriteZeroes, backend.Discard, backend.WriteZeroes, backend.Flush,
}

func drawOp(rt *rapid.T, m *model) backend.Op {
	op := backend.Op{
		Kind:    rapid.SampledFrom(drawnKinds).Draw(rt, "kind"),
		FUA:     rapid.IntRange(0, 15).Draw(rt, "fua") == 15,
		Dealloc: rapid.Bool().Draw(rt, "dealloc"),
	}
	if op.Kind != backend.Flush {
		first := rapid.Uint64Range(0, m.info.Blocks-1).Draw(rt, "lba")
		n := rapid.Uint64Range(1, min(m.info.Blocks-first, 16)).Draw(rt, "blocks")
		op.Offset, op.Length = first*uint64(m.info.BlockSize), n*uint64(m.info.BlockSize)
	}
	return op
}

// conflicts says whether op overlaps one of ops and either changes data.
func conflicts(ops []backend.Op, op *backend.Op) bool {
	for i := range ops {
		o := &ops[i]
		apart := o.Offset+o.Length <= op.Offset || op.Offset+op.Length <= o.Offset
		if !apart && (o.Kind != backend.Read || op.Kind != backend.Read) {
			return true
		}
	}
	return false
}
