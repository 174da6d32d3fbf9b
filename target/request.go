package target

import (
	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// requestState is what the core keeps in a Request. The group's owner owns it.
type requestState struct {
	q     *Queue
	cmd   *command
	ns    *Namespace  // of commands on one namespace
	att   *attachment // that op goes to
	next  *Request    // in a FIFO
	start int64       // time of Prepare's turn
	op    backend.Op  // the operation under way or to come
	size  uint64      // bytes of blocks that the command is on
	at    uint64      // progress of commands of several operations
	loc   uint16      // parameter error location, for the error log
	phase uint8       // of commands with unlike steps

	lent    bool // Request.Loan is the data, and att has it on loan
	inquiry bool // failing is an answer: it is no entry of the error log
}

// Namespace numbers the namespace that the command is on, from 1; 0 is none. It
// is known after Prepare. The numbers are small; one is given again some time
// after GroupConfig.Removed. Transports share their buffers out by it, so that no
// backend that hangs gets hold of all.
func (r *Request) Namespace() uint32 {
	if r.core.ns == nil {
		return 0
	}
	return r.core.ns.number()
}

// bad is st with DNR, and byte off (bit) of the SQE as its cause.
func (r *Request) bad(st nvme.Status, off, bit uint8) nvme.Status {
	r.core.loc = nvme.ErrorLocation(off, bit)
	return st | nvme.StatusDNR
}

// Bytes of the SQE that errors point to.
const (
	locOpcode = 0
	locFlags  = 1
	locNSID   = 4
	locFCType = 4
	locSGL    = 24
	locCDW10  = 40
	locCDW11  = 44
	locCDW12  = 48
	locCDW14  = 56
)

// fifo is a queue of requests, linked through themselves.
type fifo struct {
	head, tail *Request
	n          int
}

func (f *fifo) empty() bool { return f.head == nil }

func (f *fifo) push(r *Request) {
	r.core.next = nil
	if f.tail == nil {
		f.head = r
	} else {
		f.tail.core.next = r
	}
	f.tail = r
	f.n++
}

// pop takes the first; the FIFO is not empty.
func (f *fifo) pop() *Request {
	r := f.head
	f.head = r.core.next
	if f.head == nil {
		f.tail = nil
	}
	r.core.next = nil
	f.n--
	return r
}

// remove takes the first that matches out, nil when none does.
func (f *fifo) remove(match func(*Request) bool) *Request {
	var prev *Request
	for r := f.head; r != nil; prev, r = r, r.core.next {
		if !match(r) {
			continue
		}
		if prev == nil {
			return f.pop()
		}
		prev.core.next = r.core.next
		if f.tail == r {
			f.tail = prev
		}
		r.core.next = nil
		f.n--
		return r
	}
	return nil
}

// scatter copies src into bufs and fills what is left of them with zeroes.
func scatter(bufs [][]byte, src []byte) {
	for _, b := range bufs {
		n := copy(b, src)
		src = src[n:]
		clear(b[n:])
	}
}

// gather copies from bufs into dst until either ends, and returns dst's part.
func gather(dst []byte, bufs [][]byte) []byte {
	n := 0
	for _, b := range bufs {
		n += copy(dst[n:], b)
	}
	return dst[:n]
}
