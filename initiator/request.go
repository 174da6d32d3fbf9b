package initiator

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/nvme"
)

// Where a request is, for the race of its end with its caller's patience.
const (
	requestPending = iota
	requestDone
	requestAbandoned // the caller has left: who ends it discards it
)

// request is a command on its way through an engine: what the blocking calls
// are made of.
type request struct {
	// Set by who makes it.

	sqe     [nvme.SQESize]byte
	buf     *Buffer // nil: no data
	off, n  int
	timeout int64 // ns
	changes bool
	nsid    uint32
	ns      *Namespace     // nil: none that is looked after
	route   *dispatcher    // where it goes when its association is lost; nil: it fails
	then    func(*request) // instead of waking a caller
	discard func(*request) // for a request whose caller has left

	// Outcome.

	status nvme.Status
	result uint64
	qid    uint16 // of the queue that the status came from
	err    error

	// The dispatcher's.

	held    int64 // when it was first held; 0: never
	until   int64 // not to be sent before
	retries uint8

	next  *request
	state atomic.Int32
	done  chan struct{} // one place
}

// cmd is the request's SQE.
func (r *request) cmd() nvme.Command { return r.sqe[:] }

// prepare makes a request fit for use again.
func (r *request) prepare() {
	r.status, r.result, r.err = 0, 0, nil
	r.held, r.until, r.retries = 0, 0, 0
	r.state.Store(requestPending)
}

// abandoned says whether nobody waits for the outcome any more.
func (r *request) abandoned() bool { return r.state.Load() == requestAbandoned }

// fail ends the request with err.
func (r *request) fail(err error) {
	r.err = err
	r.finish()
}

// finish hands the outcome over.
func (r *request) finish() {
	switch {
	case r.then != nil:
		r.then(r)
	case r.state.CompareAndSwap(requestPending, requestDone):
		r.done <- struct{}{}
	default:
		r.discard(r)
	}
}

// wait waits for the outcome. When ctx ends before, the request is abandoned:
// it is not the caller's any more.
func (r *request) wait(ctx context.Context) error {
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.state.CompareAndSwap(requestPending, requestAbandoned) {
			return ctxError(ctx)
		}
		<-r.done
	}
	return r.outcome()
}

// outcome is the request's end as an error.
func (r *request) outcome() error {
	switch {
	case r.err != nil:
		return r.err
	case !r.status.OK():
		return statusError(r.cmd(), r.qid, r.status, r.result)
	}
	return nil
}

// requestList is a queue of requests, first in, first out.
type requestList struct{ head, tail *request }

func (l *requestList) push(r *request) {
	r.next = nil
	if l.head == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

func (l *requestList) pop() *request {
	r := l.head
	l.head, r.next = r.next, nil
	if l.head == nil {
		l.tail = nil
	}
	return r
}

// join moves all of o to the end of l.
func (l *requestList) join(o *requestList) {
	switch {
	case o.head == nil:
		return
	case l.head == nil:
		l.head = o.head
	default:
		l.tail.next = o.head
	}
	l.tail = o.tail
	*o = requestList{}
}

// Sizes of the pieces of bounce memory. Data goes through the network in
// commands of at most a large one.
const (
	smallChunk = 4 << 10
	largeChunk = 128 << 10
	slabSize   = 1 << 20
	bareChunks = 1024 // commands without data, or with a caller's Buffer
)

// chunk is a request with its piece of bounce memory.
type chunk struct {
	request
	home *chunkPool
	mem  *Buffer
	base int // in mem
	size int
}

// data is the first n bytes of the chunk's memory.
func (c *chunk) data(n int) []byte { return c.mem.Bytes()[c.base:][:n:n] }

// chunkPool are the chunks of one size. They are made as they are needed, up to
// a limit; then callers wait.
type chunkPool struct {
	size int // 0: without memory
	free chan *chunk
	gone chan struct{} // closed when the pool is

	mu     sync.Mutex
	made   int
	slabs  []*Buffer
	closed bool
}

func newChunkPool(size, limit int) *chunkPool {
	return &chunkPool{size: size, free: make(chan *chunk, max(limit, 1)), gone: make(chan struct{})}
}

// tryGet is a chunk, or nil when all are in use.
func (p *chunkPool) tryGet() (*chunk, error) {
	select {
	case c := <-p.free:
		return c, nil
	default:
	}
	if err := p.grow(); err != nil {
		return nil, err
	}
	select {
	case c := <-p.free:
		return c, nil
	default:
		return nil, nil
	}
}

// get is a chunk; it waits for one.
func (p *chunkPool) get(ctx context.Context) (*chunk, error) {
	c, err := p.tryGet()
	if c != nil || err != nil {
		return c, err
	}
	select {
	case c := <-p.free:
		return c, nil
	case <-p.gone:
		return nil, errClosed
	case <-ctx.Done():
		return nil, ctxError(ctx)
	}
}

// put gives a chunk back.
func (p *chunkPool) put(c *chunk) { p.free <- c }

// grow makes a slab of chunks if the limit allows.
func (p *chunkPool) grow() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	n := min(16, cap(p.free)-p.made)
	var mem *Buffer
	if p.size > 0 {
		n = min(slabSize/p.size, cap(p.free)-p.made)
	}
	if n <= 0 {
		return nil
	}
	if p.size > 0 {
		var err error
		if mem, err = NewBuffer(n * p.size); err != nil {
			return err
		}
		p.slabs = append(p.slabs, mem)
	}
	p.made += n
	for i := range n {
		c := &chunk{home: p, mem: mem, base: i * p.size, size: p.size}
		c.done = make(chan struct{}, 1)
		c.discard = func(*request) { p.put(c) }
		p.free <- c
	}
	return nil
}

// close waits until every chunk is home, which the end of its command makes it,
// and frees the memory.
func (p *chunkPool) close() {
	p.mu.Lock()
	p.closed = true
	close(p.gone)
	made := p.made
	p.mu.Unlock()
	for range made {
		<-p.free
	}
	for _, b := range p.slabs {
		_ = b.Close() // nothing is registered any more
	}
}

// bounce is the memory for plain byte slices.
type bounce struct {
	bare, small, large *chunkPool
}

func newBounce(size int) *bounce {
	return &bounce{
		bare:  newChunkPool(0, bareChunks),
		small: newChunkPool(smallChunk, size/4/smallChunk),
		large: newChunkPool(largeChunk, size*3/4/largeChunk),
	}
}

// pool is the pool for n bytes of data.
func (b *bounce) pool(n int) *chunkPool {
	switch {
	case n == 0:
		return b.bare
	case n <= smallChunk:
		return b.small
	}
	return b.large
}

func (b *bounce) close() {
	b.bare.close()
	b.small.close()
	b.large.close()
}
