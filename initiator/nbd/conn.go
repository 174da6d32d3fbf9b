package nbd

import (
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// MaxPayload is the number of bytes that one Read or Write may move.
const MaxPayload = 8 << 20

// Bounds of a connection.
const (
	// maxRequests is how many requests of a client are in flight.
	maxRequests = 128
	// maxDrain is how much payload of a refused Write is read and thrown away;
	// a client that means to send more is cut off ("Size constraints").
	maxDrain = 32 << 20
	// readAhead is how many headers one system call reads at most.
	readAhead = 16
	// maxMove is how many bytes one system call moves at most: others want
	// their turn.
	maxMove = 1 << 20
	// maxTurns is how often a client is read in one turn of its lane.
	maxTurns = 8
	// maxVectors is how many pieces of memory one system call moves at most.
	maxVectors = 64
)

// none is no slot.
const none = -1

// conn is a client in the transmission phase ("Transmission"). Its lane owns it.
type conn struct {
	// Constant.

	lane             *lane
	id               int // in lane.conns
	fd               int
	x                export
	structured, meta bool
	name             string // for logs

	requests []request
	free     []int16
	out      ring[int16] // answered, in the order of their replies
	memory   account

	// What was read and not looked at: input[pos:have].

	input     [readAhead * headerSize]byte
	pos, have int
	rx        int  // the request whose payload comes
	ahead     bool // the last request had no payload: read several headers

	readable, writable bool
	hungUp             bool  // the client has shut its side, or all
	stalled            bool  // the next request waits for a slot or memory
	ending             bool  // nothing more is read
	broken             bool  // nothing more is written either
	queued             bool  // in lane.work
	why                error // it is broken
}

func newConn(fd int, h *handshake, name string) *conn {
	c := &conn{
		fd: fd, x: h.x, structured: h.structured, meta: h.meta, name: name,
		requests: make([]request, maxRequests), free: make([]int16, 0, maxRequests), rx: none,
		ahead: true, readable: true, writable: true,
	}
	for i := maxRequests - 1; i >= 0; i-- {
		c.free = append(c.free, int16(i))
	}
	return c
}

// live is how many requests there are, from header to the end of the reply.
func (c *conn) live() int { return len(c.requests) - len(c.free) }

// over says whether the connection has ended in every respect.
func (c *conn) over() bool { return (c.ending || c.broken) && c.live() == 0 }

// receive reads and begins requests.
func (c *conn) receive() {
	for range maxTurns {
		if c.parse(); c.stalled || c.ending || c.broken || !c.readable {
			return
		}
		c.fill()
	}
	c.lane.enqueue(c) // the others first
}

// parse begins the requests that are in input.
func (c *conn) parse() {
	for !c.ending && !c.broken {
		if c.rx != none && !c.absorb() {
			return
		}
		if c.have-c.pos < headerSize {
			c.have = copy(c.input[:], c.input[c.pos:c.have])
			c.pos = 0
			return
		}
		h, ok := parseHeader(c.input[c.pos:])
		if !ok {
			c.fail(fmt.Errorf("a request with magic number %x", c.input[c.pos:][:4]))
			return
		}
		if !c.begin(h) {
			c.stalled = true
			return
		}
		c.pos += headerSize
	}
}

// absorb takes payload that came with headers; it is true when it was the last.
func (c *conn) absorb() bool {
	r := &c.requests[c.rx]
	for c.pos < c.have && r.received < r.length {
		n := min(c.have-c.pos, int(r.length-r.received))
		if r.errno == 0 {
			k, skip, size := r.span(int(r.received), n)
			n = copy(k.bytes(skip, size), c.input[c.pos:c.have])
		}
		c.pos += n
		r.received += uint32(n)
	}
	if r.received < r.length {
		c.pos, c.have = 0, 0
		return false
	}
	i := c.rx
	c.rx = none
	c.ready(i)
	return true
}

// fill reads what the socket has: payload to where it belongs, then headers. With
// payload comes the header behind it, and not more, for what follows that may be
// payload again.
func (c *conn) fill() {
	iovs, want, payload := c.lane.iovs[:0], 0, 0
	if c.rx != none {
		iovs, payload = c.target(iovs)
		want = payload
	}
	if c.rx == none || payload == int(c.requests[c.rx].length-c.requests[c.rx].received) {
		room := c.input[c.have:]
		if c.rx != none || !c.ahead {
			room = c.input[c.have:headerSize]
		}
		iovs = append(iovs, iovec(room))
		want += len(room)
	}
	n, e := readv(c.fd, iovs)
	switch {
	case e == unix.EAGAIN:
		c.readable = false
		return
	case e != 0:
		c.fail(e)
		return
	case n == 0:
		c.leave()
		return
	case n < want && !c.hungUp:
		c.readable = false // the next byte is an event
	}
	if c.rx != none {
		got := min(n, payload)
		c.requests[c.rx].received += uint32(got)
		n -= got
	}
	c.have += n
}

// target is where payload goes: all that is missing, but not too much at once.
func (c *conn) target(iovs []unix.Iovec) ([]unix.Iovec, int) {
	r := &c.requests[c.rx]
	missing := int(r.length - r.received)
	if r.errno != 0 {
		n := min(missing, len(c.lane.scratch))
		return append(iovs, iovec(c.lane.scratch[:n])), n
	}
	total := 0
	for total < missing && total < maxMove {
		k, skip, n := r.span(int(r.received)+total, missing-total)
		iovs = append(iovs, iovec(k.bytes(skip, n)))
		total += n
	}
	return iovs, total
}

// begin begins a request; it is false when that has to wait.
func (c *conn) begin(h header) bool {
	c.ahead = h.typ != cmdWrite
	switch {
	case h.typ == cmdDisc:
		c.ending = true
		return true
	case h.payload() > maxDrain:
		c.fail(fmt.Errorf("a write of %d bytes", h.length))
		return true
	case len(c.free) == 0:
		return false
	}
	i := int(c.free[len(c.free)-1])
	r := &c.requests[i]
	r.reset(h)
	r.refuse(c.judge(&h))
	if (h.typ == cmdRead || h.typ == cmdWrite) && r.errno == 0 && h.length > 0 {
		var ok bool
		var err error
		if r.chunks, ok, err = c.memory.take(r.chunks, int(h.length)); err != nil {
			r.refuse(errnoNoMem, err.Error())
		} else if !ok {
			return false
		}
	}
	c.free = c.free[:len(c.free)-1]
	if h.payload() > 0 {
		c.rx = i
	} else {
		c.ready(i)
	}
	return true
}

// allowed are the flags of each request type. FUA is allowed with all ("Command
// flags").
var allowed = [...]uint16{
	cmdRead: cmdFlagFUA | cmdFlagDF, cmdWrite: cmdFlagFUA, cmdFlush: cmdFlagFUA, cmdTrim: cmdFlagFUA,
	cmdWriteZeroes: cmdFlagFUA | cmdFlagNoHole | cmdFlagFastZero, cmdBlockStatus: cmdFlagFUA | cmdFlagReqOne,
}

// judge is why a request is refused: 0 when it is not ("Error values", "Request
// types").
func (c *conn) judge(h *header) (errno uint32, message string) {
	writes := h.typ == cmdWrite || h.typ == cmdTrim || h.typ == cmdWriteZeroes
	has := func(flag uint16) bool { return c.x.flags&flag != 0 }
	switch {
	case c.lane.stopping:
		return errnoShutdown, "the server is about to end"
	case int(h.typ) >= len(allowed) || allowed[h.typ] == 0, h.typ == cmdBlockStatus && !c.meta,
		h.typ == cmdTrim && !has(flagSendTrim), h.typ == cmdWriteZeroes && !has(flagSendWriteZeroes):
		return errnoInval, "a request that was not negotiated"
	case h.flags&^allowed[h.typ] != 0, h.flags&cmdFlagDF != 0 && !c.structured:
		return errnoInval, "a flag that was not negotiated"
	case writes && c.x.readOnly():
		return errnoPerm, "the export is read-only"
	case h.typ == cmdFlush:
		if h.offset != 0 || h.length != 0 {
			return errnoInval, "a flush of a range"
		}
		return 0, ""
	case h.typ == cmdBlockStatus && h.length == 0:
		return errnoInval, "a block status of nothing"
	case h.typ == cmdRead && h.length > MaxPayload && c.structured:
		return errnoOverflow, "more than the maximum payload"
	case (h.typ == cmdRead || h.typ == cmdWrite) && h.length > MaxPayload:
		return errnoInval, "more than the maximum payload"
	case h.offset > c.x.size || uint64(h.length) > c.x.size-h.offset:
		if h.typ == cmdWrite || h.typ == cmdWriteZeroes {
			return errnoNoSpace, "beyond the end of the export"
		}
		return errnoInval, "beyond the end of the export"
	case (h.offset|uint64(h.length))&uint64(c.x.block-1) != 0:
		return errnoInval, "not aligned to the minimum block size"
	case h.flags&cmdFlagFastZero != 0: // who knows what the backend does
		return errnoNotSup, "not known to be faster than a write"
	}
	return 0, ""
}

// ready issues a request that is there as a whole, or answers it.
func (c *conn) ready(i int) {
	r := &c.requests[i]
	if r.finished() {
		c.answer(i)
		return
	}
	c.lane.send(c, i)
}

// answer queues the reply of a request.
func (c *conn) answer(i int) {
	if c.broken {
		c.release(i)
		return
	}
	r := &c.requests[i]
	r.reply(c.structured)
	if r.data == 0 {
		c.giveBack(r)
	}
	c.out.push(int16(i))
	c.lane.enqueue(c)
}

// giveBack ends the use of a request's memory.
func (c *conn) giveBack(r *request) {
	if len(r.chunks) == 0 {
		return
	}
	c.memory.give(r.chunks)
	r.chunks = r.chunks[:0]
	c.unstall()
}

// release ends a request.
func (c *conn) release(i int) {
	c.giveBack(&c.requests[i])
	c.requests[i].message = ""
	c.free = append(c.free, int16(i))
	c.unstall()
}

// unstall has a request that waits looked at again, and the end of a connection
// noticed.
func (c *conn) unstall() {
	if c.stalled || c.broken {
		c.stalled = false
		c.lane.enqueue(c)
	}
}

// transmit writes replies, as far as the socket takes them.
func (c *conn) transmit() {
	for c.out.len() > 0 && c.writable && !c.broken {
		n, e := writev(c.fd, c.gather(c.lane.iovs[:0]))
		switch {
		case e == unix.EAGAIN:
			c.writable = false
		case e != 0:
			c.fail(e)
		default:
			c.wrote(n)
		}
	}
}

// gather is the replies that one system call writes.
func (c *conn) gather(iovs []unix.Iovec) []unix.Iovec {
	total := 0
	for j := range c.out.len() {
		r := &c.requests[c.out.at(j)]
		if r.sent < r.headLen {
			iovs = append(iovs, iovec(r.head[r.sent:r.headLen]))
		}
		for pos := max(r.sent-r.headLen, 0); pos < r.data; {
			if total >= maxMove || len(iovs) == maxVectors {
				return iovs
			}
			k, skip, n := r.span(pos, r.data-pos)
			iovs = append(iovs, iovec(k.bytes(skip, n)))
			pos += n
			total += n
		}
		if len(iovs) >= maxVectors-1 {
			break
		}
	}
	return iovs
}

// wrote takes note of n bytes that are out.
func (c *conn) wrote(n int) {
	for n > 0 {
		i := int(c.out.at(0))
		r := &c.requests[i]
		some := min(n, r.headLen+r.data-r.sent)
		r.sent += some
		n -= some
		if r.sent == r.headLen+r.data {
			c.out.pop()
			c.release(i)
		}
	}
}

// leave is the client's end of its side: what is in flight is answered.
func (c *conn) leave() {
	c.ending = true
	if c.rx != none {
		c.release(c.rx)
		c.rx = none
	}
}

// fail gives the connection up ("initiating a hard disconnect").
func (c *conn) fail(err error) {
	if c.broken {
		return
	}
	c.leave()
	c.broken, c.why = true, err
	_ = unix.Shutdown(c.fd, unix.SHUT_RDWR) // it is closed when no command is in flight
	for c.out.len() > 0 {
		c.release(int(c.out.pop()))
	}
	c.lane.enqueue(c)
}

// reason is why the connection ended, for logs.
func (c *conn) reason() error {
	if c.why == nil {
		return io.EOF
	}
	return c.why
}

// ring is a queue, first in, first out, that grows.
type ring[T any] struct {
	items      []T
	head, tail uint
}

func (q *ring[T]) len() int   { return int(q.tail - q.head) }
func (q *ring[T]) at(i int) T { return q.items[(q.head+uint(i))&uint(len(q.items)-1)] }

func (q *ring[T]) push(v T) {
	if q.len() == len(q.items) {
		next := make([]T, max(2*len(q.items), 16))
		for i := range q.len() {
			next[i] = q.at(i)
		}
		q.head, q.tail, q.items = 0, uint(q.len()), next
	}
	q.items[q.tail&uint(len(q.items)-1)] = v
	q.tail++
}

func (q *ring[T]) pop() T {
	v := q.at(0)
	var zero T
	q.items[q.head&uint(len(q.items)-1)] = zero
	q.head++
	return v
}
