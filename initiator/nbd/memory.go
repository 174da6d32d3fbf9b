package nbd

import "github.com/nvmf-go/nvmf/initiator"

// Memory of requests, bytes. A slab is registered as a whole; it is one chunk of
// a large request or chunksPerSlab of small ones.
const (
	slabSize      = 256 << 10
	smallSize     = 16 << 10
	chunksPerSlab = slabSize / smallSize
	// What one connection has at most.
	maxSmallSlabs = 8
	maxLargeSlabs = MaxPayload / slabSize
)

// chunk is a piece of registered memory.
type chunk struct {
	buf *initiator.Buffer
	off int
}

// bytes is n bytes from skip on.
func (k chunk) bytes(skip, n int) []byte { return k.buf.Bytes()[k.off+skip:][:n:n] }

// slabs are a lane's registered memory that nobody uses.
type slabs struct{ free []*initiator.Buffer }

func (s *slabs) get() (*initiator.Buffer, error) {
	if n := len(s.free); n > 0 {
		b := s.free[n-1]
		s.free = s.free[:n-1]
		return b, nil
	}
	return initiator.NewBuffer(slabSize)
}

func (s *slabs) put(b *initiator.Buffer) { s.free = append(s.free, b) }

// drop gives the memory back to the system.
func (s *slabs) drop() {
	for _, b := range s.free {
		_ = b.Close() // no I/O is in it, and it is not used again
	}
	clear(s.free)
	s.free = s.free[:0]
}

// account is the memory of a connection.
type account struct {
	slabs *slabs
	own   []*initiator.Buffer // of small chunks
	small []chunk             // free
	large int                 // chunks in use
}

// take adds chunks for n bytes to list. It is false when the connection has as
// much as it may have, and will be true some time later.
func (a *account) take(list []chunk, n int) ([]chunk, bool, error) {
	if n <= smallSize {
		return a.takeSmall(list)
	}
	need := (n + slabSize - 1) / slabSize
	if a.large+need > maxLargeSlabs {
		return list, false, nil
	}
	for range need {
		b, err := a.slabs.get()
		if err != nil {
			a.give(list)
			return list[:0], false, err
		}
		a.large++
		list = append(list, chunk{buf: b})
	}
	return list, true, nil
}

func (a *account) takeSmall(list []chunk) ([]chunk, bool, error) {
	if len(a.small) == 0 {
		if len(a.own) == maxSmallSlabs {
			return list, false, nil
		}
		b, err := a.slabs.get()
		if err != nil {
			return list, false, err
		}
		a.own = append(a.own, b)
		for off := slabSize - smallSize; off >= 0; off -= smallSize {
			a.small = append(a.small, chunk{b, off})
		}
	}
	last := len(a.small) - 1
	list = append(list, a.small[last])
	a.small = a.small[:last]
	return list, true, nil
}

// give takes chunks back. Chunks of one request are all small or all large.
func (a *account) give(list []chunk) {
	for _, k := range list {
		if a.owns(k.buf) {
			a.small = append(a.small, k)
		} else {
			a.large--
			a.slabs.put(k.buf)
		}
	}
}

func (a *account) owns(b *initiator.Buffer) bool {
	for _, o := range a.own {
		if o == b {
			return true
		}
	}
	return false
}

// close gives all slabs back; no chunk is in use.
func (a *account) close() {
	for _, b := range a.own {
		a.slabs.put(b)
	}
	a.own, a.small = nil, nil
}
