package core_test

import (
	"slices"
	"testing"

	"github.com/nvmf-go/nvmf/fabric/soft/core"
)

func TestRing(t *testing.T) {
	var r core.Ring[int]
	var want []int
	next := 0
	for round := range 200 { // grows while it wraps around
		for range round%7 + 1 {
			next++
			r.Push(next)
			want = append(want, next)
		}
		if round%5 == 0 {
			gone := want[len(want)/2]
			r.Remove(gone)
			want = slices.DeleteFunc(want, func(v int) bool { return v == gone })
			r.Remove(-1)
		}
		for range min(round%6, len(want)) {
			if v := r.Pop(); v != want[0] {
				t.Fatalf("round %d: %d, want %d", round, v, want[0])
			}
			want = want[1:]
		}
		if round%11 == 0 {
			want = want[:len(want)/2]
			r.Cut(len(want))
		}
		for i, v := range want {
			if *r.At(i) != v {
				t.Fatalf("round %d: %d at %d, want %d", round, *r.At(i), i, v)
			}
		}
		if r.Len() != len(want) {
			t.Fatalf("round %d: %d, want %d", round, r.Len(), len(want))
		}
	}
}
