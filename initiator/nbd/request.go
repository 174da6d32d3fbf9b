package nbd

import (
	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

// headMax is room for what stands before the data of a reply, or for an error
// with its message.
const headMax = 160

// request is a request of a client, in a slot of its connection. It is
//
//	received   its header is there, its payload comes        (conn.rx)
//	issued     commands are sent, one by one                 (queued)
//	running    commands are in flight
//	answered   its reply goes out                            (conn.out)
//
// and waits between two attempts in lane.delayed when the target was not ready.
type request struct {
	header
	errno   uint32 // of the first command that failed, or of the request itself
	message string // for people

	chunks   []chunk
	received uint32 // bytes of payload

	next    uint64 // the first byte of the range that no command is about
	flush   bool   // a Flush is to come
	queued  bool   // in lane.issue or lane.delayed
	again   bool   // a command failed for a while
	running int    // commands
	retries uint8

	head       [headMax]byte
	headLen    int
	data, sent int // bytes of the reply: after head; that are out
}

// reset makes the slot that of h.
func (r *request) reset(h header) {
	r.header = h
	r.errno, r.message = 0, ""
	r.chunks, r.received = r.chunks[:0], 0
	r.queued, r.again, r.running, r.retries = false, false, 0, 0
	r.headLen, r.data, r.sent = 0, 0, 0
	r.rewind()
}

// rewind has all commands sent, again.
func (r *request) rewind() {
	r.next = r.offset
	r.flush = r.typ == cmdFlush || r.typ == cmdTrim && r.flags&cmdFlagFUA != 0 && r.length > 0
}

func (r *request) end() uint64 {
	if r.typ == cmdBlockStatus || r.typ == cmdFlush {
		return r.offset
	}
	return r.offset + uint64(r.length)
}

// more says whether a command can be sent now. The Flush that makes a trim
// durable waits for the trim.
func (r *request) more() bool {
	if r.errno != 0 || r.again {
		return false
	}
	return r.next < r.end() || r.flush && r.running == 0
}

// finished says whether nothing is left to be sent.
func (r *request) finished() bool {
	return r.errno != 0 || r.again || r.next >= r.end() && !r.flush
}

// span is the payload of n bytes at most from pos on, as far as it lies in one
// chunk.
func (r *request) span(pos, n int) (k chunk, skip, size int) {
	if int(r.length) <= smallSize {
		return r.chunks[0], pos, min(n, int(r.length)-pos)
	}
	skip = pos % slabSize
	return r.chunks[pos/slabSize], skip, min(n, int(r.length)-pos, slabSize-skip)
}

// limits are what one command may be about, bytes.
type limits struct {
	block    int
	transfer int
	discard  int64
	zeroes   int64
}

// command fills io with the request's next command.
func (r *request) command(io *initiator.IO, l *limits) {
	if r.next >= r.end() {
		r.flush = false
		*io = initiator.IO{Op: nvme.CmdFlush}
		return
	}
	left := int64(r.end() - r.next)
	*io = initiator.IO{LBA: r.next / uint64(l.block)}
	if r.flags&cmdFlagFUA != 0 && r.typ != cmdRead {
		io.Flags = initiator.FUA
	}
	size := left
	switch r.typ {
	case cmdRead, cmdWrite:
		io.Op = nvme.CmdRead
		if r.typ == cmdWrite {
			io.Op = nvme.CmdWrite
		}
		k, skip, n := r.span(int(r.next-r.offset), min(int(left), l.transfer))
		io.Buf, io.Offset, size = k.buf, k.off+skip, int64(n)
	case cmdTrim:
		io.Op, io.Flags, size = nvme.CmdDatasetManagement, 0, min(left, l.discard)
	case cmdWriteZeroes:
		io.Op, size = nvme.CmdWriteZeroes, min(left, l.zeroes)
		if r.flags&cmdFlagNoHole == 0 {
			io.Flags |= initiator.Deallocate
		}
	}
	io.Blocks = uint32(size / int64(l.block))
	r.next += uint64(size)
}

// opcode is the command that the request is made of.
func (r *request) opcode() nvme.Opcode {
	switch r.typ {
	case cmdRead:
		return nvme.CmdRead
	case cmdWrite:
		return nvme.CmdWrite
	case cmdTrim:
		return nvme.CmdDatasetManagement
	case cmdWriteZeroes:
		return nvme.CmdWriteZeroes
	}
	return nvme.CmdFlush
}

// refuse is an error before any command was sent.
func (r *request) refuse(errno uint32, message string) {
	if r.errno == 0 {
		r.errno, r.message = errno, message
	}
}

// reply fills head with the reply. Where replies are structured, so are those of
// reads and errors ("Structured reply chunk message").
func (r *request) reply(structured bool) {
	switch {
	case !structured:
		r.headLen = putSimple(r.head[:], r.cookie, r.errno)
	case r.errno != 0:
		r.headLen = putError(r.head[:], r.cookie, r.errno, r.message)
	case r.typ == cmdRead && r.length == 0:
		r.headLen = putChunk(r.head[:], replyNone, r.cookie, 0)
	case r.typ == cmdRead:
		r.headLen = putData(r.head[:], r.cookie, r.offset, r.length)
	case r.typ == cmdBlockStatus:
		r.headLen = putStatus(r.head[:], r.cookie, r.length)
	default:
		r.headLen = putSimple(r.head[:], r.cookie, 0)
	}
	if r.typ == cmdRead && r.errno == 0 {
		r.data = int(r.length)
	}
}
