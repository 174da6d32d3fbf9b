package iwarp

// ring is a queue of QPs that grows as needed and is reused.
type ring struct {
	q    []*queuePair
	head int
	n    int
}

func (r *ring) len() int { return r.n }

func (r *ring) push(q *queuePair) {
	if r.n == len(r.q) {
		bigger := make([]*queuePair, max(16, 2*len(r.q)))
		for i := range r.n {
			bigger[i] = r.q[(r.head+i)%len(r.q)]
		}
		r.q, r.head = bigger, 0
	}
	r.q[(r.head+r.n)%len(r.q)] = q
	r.n++
}

func (r *ring) pop() *queuePair {
	q := r.q[r.head]
	r.q[r.head] = nil
	r.head = (r.head + 1) % len(r.q)
	r.n--
	return q
}

// remove takes q out, wherever it is.
func (r *ring) remove(q *queuePair) {
	for range r.n {
		if o := r.pop(); o != q {
			r.push(o)
		}
	}
}
