// Package fifo is the completions of a queue that wait for Reap.
package fifo

import "github.com/nvmf-go/nvmf/backend"

// Completions is a ring of completions, oldest first. The zero value has no
// room. Its owner is its queue's.
type Completions struct {
	ring    []backend.Completion
	head, n int
}

// New is room for depth completions.
func New(depth int) Completions { return Completions{ring: make([]backend.Completion, depth)} }

// Len is the number of completions.
func (f *Completions) Len() int { return f.n }

// Room is how many more there may be.
func (f *Completions) Room() int { return len(f.ring) - f.n }

// Push appends a completion; there is room.
func (f *Completions) Push(c backend.Completion) {
	at := f.head + f.n
	if at >= len(f.ring) {
		at -= len(f.ring)
	}
	f.ring[at] = c
	f.n++
}

// Pop takes the oldest, up to len(done), and returns how many.
func (f *Completions) Pop(done []backend.Completion) int {
	n := min(len(done), f.n)
	for i := range done[:n] {
		done[i] = f.ring[f.head]
		if f.head++; f.head == len(f.ring) {
			f.head = 0
		}
	}
	f.n -= n
	return n
}

// Clear drops all.
func (f *Completions) Clear() { f.n = 0 }
