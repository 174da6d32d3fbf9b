package cache

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/nvme"
)

// access is one operation on one block: what was written, or read.
type access struct {
	block uint64
	write bool
	value uint64 // 0: zeroes
}

// register is the model of a block: a read gives what the last write left.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		blocks := map[uint64][]porcupine.Operation{}
		for _, op := range history {
			b := op.Input.(access).block
			blocks[b] = append(blocks[b], op)
		}
		var parts [][]porcupine.Operation
		for _, p := range blocks {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		if a := input.(access); a.write {
			return true, a.value
		}
		return output.(uint64) == state.(uint64), state
	},
}

const linearBlocks = 16 // of two pages

// accesses has clients read and write, overlapping each other, one operation
// each at a time, and returns what happened when.
func accesses(t *testing.T, dev backend.Device, clients, each int) (history []porcupine.Operation) {
	var clock atomic.Int64
	var mu sync.Mutex
	var all sync.WaitGroup
	for id := range clients {
		q, err := dev.NewQueue(1, func() {})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer q.Close()
			c := linearClient{q: q, rng: rand.New(rand.NewPCG(uint64(id), 5)), memory: make([]byte, stressBlock)}
			for n := range each {
				a := access{block: c.rng.Uint64N(linearBlocks), write: c.rng.IntN(3) == 0}
				if a.write && c.rng.IntN(8) > 0 {
					a.value = uint64(id)<<32 | uint64(n+1)
				}
				call := clock.Add(1)
				got := c.do(a)
				op := porcupine.Operation{ClientId: id, Input: a, Call: call, Output: got, Return: clock.Add(1)}
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return history
}

type linearClient struct {
	q      backend.Queue
	rng    *rand.Rand
	memory []byte
}

// do runs one access, reads by Lend when that is possible, and writes of
// zeroes in two ways.
func (c *linearClient) do(a access) uint64 {
	op := backend.Op{Kind: backend.Read, Offset: a.block * stressBlock, Length: stressBlock, Bufs: [][]byte{c.memory}}
	if l, ok := c.q.(backend.Lender); ok && !a.write {
		if lent, ok := l.Lend(op.Offset, op.Length, make([][]byte, 0, 1)); ok {
			v := binary.LittleEndian.Uint64(lent[0][8:])
			l.Return(lent)
			return v
		}
	}
	switch {
	case a.write && a.value == 0:
		op.Kind = []backend.Kind{backend.Discard, backend.WriteZeroes}[c.rng.IntN(2)]
	case a.write:
		op.Kind = backend.Write
		binary.LittleEndian.PutUint64(c.memory[8:], a.value)
	}
	var done [1]backend.Completion
	c.q.Submit([]backend.Op{op})
	for c.q.Reap(done[:]) == 0 {
		runtime.Gosched()
	}
	if done[0].Status != nvme.Success {
		panic(done[0].Status)
	}
	return binary.LittleEndian.Uint64(c.memory[8:])
}

// linearizable says whether the history of so many accesses is.
func linearizable(t *testing.T, dev backend.Device, clients, each int) porcupine.CheckResult {
	history := accesses(t, dev, clients, each)
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	return porcupine.CheckOperationsTimeout(register, history, time.Minute)
}

func linearMedium(t *testing.T) backend.Device {
	m, err := mem.Open(mem.Options{Size: linearBlocks * stressBlock, BlockSize: stressBlock})
	if err != nil {
		t.Fatal(err)
	}
	return &late{Device: m}
}

func TestLinearizable(t *testing.T) {
	for _, o := range []Options{{}, {Admission: AdmitAll}, {Admission: AdmitAll, ReadAhead: 8 << 10}} {
		d := over(t, linearMedium(t), 16, o)
		if r := linearizable(t, d, 6, 3000); r != porcupine.Ok {
			t.Errorf("%s: %v", describe(o), r)
		}
		if s := d.Stats(); s.Lent == 0 || s.Stale == 0 {
			t.Errorf("%s: nothing was lent, or nothing was ever stale: %+v", describe(o), s)
		}
	}
}

// A cache that is not coherent is not linearizable.
func TestLinearizableHasTeeth(t *testing.T) {
	for _, setAfter := range []bool{true, false} {
		r := porcupine.Ok
		for try := 0; try < 20 && r == porcupine.Ok; try++ {
			r = linearizable(t, newNaive(linearMedium(t), 16, setAfter), 6, 1500)
		}
		if r != porcupine.Illegal {
			t.Errorf("Set after write %v: %v", setAfter, r)
		}
	}
}
