package core

// Ring is a queue that grows as needed and is reused: the QPs that an engine has
// to look at. It is the owner's.
type Ring[T comparable] struct {
	q    []T
	head int
	n    int
}

// Len is how many there are.
func (r *Ring[T]) Len() int { return r.n }

// Push appends v.
func (r *Ring[T]) Push(v T) {
	if r.n == len(r.q) {
		bigger := make([]T, max(16, 2*len(r.q)))
		for i := range r.n {
			bigger[i] = r.q[(r.head+i)%len(r.q)]
		}
		r.q, r.head = bigger, 0
	}
	r.q[(r.head+r.n)%len(r.q)] = v
	r.n++
}

// Pop takes the oldest; there must be one.
func (r *Ring[T]) Pop() T {
	var none T
	v := r.q[r.head]
	r.q[r.head] = none
	r.head = (r.head + 1) % len(r.q)
	r.n--
	return v
}

// Remove takes v out, wherever it is.
func (r *Ring[T]) Remove(v T) {
	for range r.n {
		if o := r.Pop(); o != v {
			r.Push(o)
		}
	}
}
