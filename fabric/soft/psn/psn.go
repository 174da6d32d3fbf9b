// Package psn has the 24-bit sequence numbers of the InfiniBand transport:
// packet sequence numbers (PSN) and message sequence numbers (MSN), IBTA
// vol 1, 9.7.1. They wrap, so they are compared by distance, never with <.
package psn

import "fmt"

// Bits is the width of a sequence number.
const Bits = 24

// Mask is the largest sequence number.
const Mask = 1<<Bits - 1

// Value is a sequence number, always in [0, Mask].
type Value uint32

// New takes the low 24 bits of v.
func New(v uint32) Value { return Value(v & Mask) }

// Add is the sequence number n behind v.
func (v Value) Add(n int) Value { return Value((uint32(v) + uint32(n)) & Mask) }

// Next is the sequence number behind v.
func (v Value) Next() Value { return v.Add(1) }

// Prev is the sequence number before v.
func (v Value) Prev() Value { return v.Add(-1) }

// Diff is how far v is ahead of w: in [-1<<23, 1<<23), negative when v is
// behind.
func (v Value) Diff(w Value) int { return int(int32(uint32(v-w)<<(32-Bits)) >> (32 - Bits)) }

// Less says whether v is behind w.
func (v Value) Less(w Value) bool { return v.Diff(w) < 0 }

// InWindow says whether v is one of the size numbers that begin with first;
// size is at most 1<<23.
func (v Value) InWindow(first Value, size int) bool {
	d := v.Diff(first)
	return d >= 0 && d < size
}

func (v Value) String() string { return fmt.Sprintf("%06x", uint32(v)) }
