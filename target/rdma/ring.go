package rdma

import "math/bits"

// ring is a bounded FIFO of values. Positions count up for ever and wrap.
type ring[T any] struct {
	buf        []T // a power of two
	head, tail uint32
}

// newRing makes a ring for n values whose first position is start.
func newRing[T any](n int, start uint32) ring[T] {
	return ring[T]{buf: make([]T, 1<<bits.Len(uint(n-1))), head: start, tail: start}
}

func (r *ring[T]) len() int        { return int(r.tail - r.head) }
func (r *ring[T]) at(pos uint32) T { return r.buf[pos&uint32(len(r.buf)-1)] }

func (r *ring[T]) push(v T) {
	r.buf[r.tail&uint32(len(r.buf)-1)] = v
	r.tail++
}

func (r *ring[T]) pop() T {
	v := r.at(r.head)
	r.head++
	return v
}
