package core

// Ring is a queue that grows as needed and is reused: the QPs that an engine has
// to look at, the messages that a QP has begun. It is the owner's.
type Ring[T comparable] struct {
	q    []T // a power of two, or none
	head int // free-running
	n    int
}

// Len is how many there are.
func (r *Ring[T]) Len() int { return r.n }

// At is the place of number i from the oldest on, until the next Push.
func (r *Ring[T]) At(i int) *T { return &r.q[(r.head+i)&(len(r.q)-1)] }

// Push appends v.
func (r *Ring[T]) Push(v T) {
	if r.n == len(r.q) {
		bigger := make([]T, max(16, 2*len(r.q)))
		for i := range r.n {
			bigger[i] = *r.At(i)
		}
		r.q, r.head = bigger, 0
	}
	r.n++
	*r.At(r.n - 1) = v
}

// Pop takes the oldest; there must be one.
func (r *Ring[T]) Pop() T {
	var none T
	p := r.At(0)
	v := *p
	*p = none
	r.head++
	r.n--
	return v
}

// Cut leaves the n oldest. What is left behind stays in memory until others come.
func (r *Ring[T]) Cut(n int) { r.n = n }

// Remove takes v out, wherever it is.
func (r *Ring[T]) Remove(v T) {
	for range r.n {
		if o := r.Pop(); o != v {
			r.Push(o)
		}
	}
}
