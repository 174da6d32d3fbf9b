package rdmap

import (
	"encoding/binary"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// minDirect is the least payload that Want asks for: less is cheaper to copy.
const minDirect = 2048

// phase is where in an FPDU the stream is.
//
//	inHeader -> inPayload -> inTrailer -> inHeader
//	    |___________________/^
type phase uint8

const (
	inHeader  phase = iota
	inPayload       // left bytes of it are missing
	inTrailer       // tail bytes of pad and CRC are missing
)

// receiver turns the peer's stream into placed payload and finished messages.
type receiver struct {
	phase  phase
	opened bool // an FPDU has come
	dead   bool // nothing is taken any more

	// The FPDU.
	header [mpa.MaxHeader]byte // as far as it has come
	have   int                 // bytes of header
	need   int                 // how many it has: at first what tells
	h      mpa.Header
	length int // of the ULPDU
	left   int // payload bytes missing
	placed int // payload bytes here
	tail   int
	// control is the payload when RDMAP itself reads it.
	control [64]byte

	// Messages, of which several segments may come.
	msn   [mpa.QueueAtomicResponse + 1]uint32 // expected next
	send  mpa.Opcode                          // of the SEND that has begun, when got says so
	inMsg bool                                // a SEND has begun
	got   uint32                              // bytes of it
	wrote uint64                              // bytes of the WRITE that goes on or came right before
	again bool                                // it goes on

	// stash is, with CRC, what has come of an FPDU.
	stash []byte
}

func (x *receiver) init() {
	*x = receiver{need: firstNeed}
	for i := range x.msn {
		x.msn[i] = 1
	}
}

// firstNeed are the bytes that tell how long the header is: the FPDU's length
// and the control fields.
const firstNeed = mpa.LengthLen + 2

func (x *receiver) clear(q *QP) {
	x.dead = true
	if x.stash != nil {
		q.cfg.Pool.put(x.stash)
		x.stash = nil
	}
}

// inside says whether the stream stands in the middle of a message.
func (x *receiver) inside() bool {
	return x.phase != inHeader || x.have > 0 || x.inMsg || x.again || len(x.stash) > 0
}

// raw is the DDP header of the present segment, or nil.
func (x *receiver) raw() []byte {
	if x.have < x.need || x.need <= firstNeed {
		return nil
	}
	return x.header[mpa.LengthLen:x.need]
}

// controlDone says whether the payload is all in control.
func (x *receiver) controlDone() bool { return x.left == 0 && x.placed > 0 }

// Feed takes bytes of the peer's stream. All of them: behind an error they are
// dropped.
func (q *QP) Feed(b []byte) {
	for x := &q.rx; len(b) > 0 && !x.dead; {
		if q.cfg.CRC {
			b = q.feedChecked(b)
		} else {
			b = q.feed(b)
		}
	}
}

// feedChecked takes what comes until an FPDU is whole, and hands that on when
// its CRC is right.
func (q *QP) feedChecked(b []byte) (rest []byte) {
	x := &q.rx
	if len(x.stash) == 0 {
		if size := fpduSize(b); size > 0 && size <= len(b) {
			q.check(b[:size])
			return b[size:]
		}
		if x.stash == nil {
			x.stash = q.cfg.Pool.get()
		}
	}
	want := mpa.LengthLen
	if size := fpduSize(x.stash); size > 0 {
		want = size
	}
	n := min(want-len(x.stash), len(b))
	x.stash = append(x.stash, b[:n]...)
	q.checkStash()
	return b[n:]
}

// checkStash hands on what is in the stash if that is an FPDU.
func (q *QP) checkStash() {
	x := &q.rx
	if size := fpduSize(x.stash); size == 0 || len(x.stash) < size {
		return
	}
	fpdu := x.stash
	x.stash = nil
	q.check(fpdu)
	q.cfg.Pool.put(fpdu)
}

// fpduSize is the length of the FPDU that b begins with; 0 when that is not
// known yet.
func fpduSize(b []byte) int {
	if len(b) < mpa.LengthLen {
		return 0
	}
	return mpa.FPDULen(int(binary.BigEndian.Uint16(b)))
}

func (q *QP) check(fpdu []byte) {
	if !mpa.CheckCRC(fpdu) {
		q.stats.BadCRC++
		q.terminate(mpa.BadCRC, "a segment")
		return
	}
	for len(fpdu) > 0 && !q.rx.dead {
		fpdu = q.feed(fpdu)
	}
}

// feed takes bytes of the phase the stream is in.
func (q *QP) feed(b []byte) (rest []byte) {
	x := &q.rx
	switch x.phase {
	case inHeader:
		n := copy(x.header[x.have:x.need], b)
		if x.have += n; x.have == x.need {
			q.headerCame()
		}
		return b[n:]
	case inPayload:
		n := min(x.left, len(b))
		q.place(b[:n])
		return b[n:]
	}
	n := min(x.tail, len(b))
	if x.tail -= n; x.tail == 0 {
		q.segmentEnds()
	}
	return b[n:]
}

// headerCame goes on when the bytes that were needed are there: the control
// fields, and then the whole header.
func (q *QP) headerCame() {
	x := &q.rx
	if x.need == firstNeed {
		x.length = int(binary.BigEndian.Uint16(x.header[:]))
		if x.length == 0 {
			q.emptyFPDU()
			return
		}
		n, cause := mpa.HeaderLen(x.header[mpa.LengthLen], x.length)
		if cause != 0 {
			q.terminate(cause, "an FPDU too short for its header")
			return
		}
		x.need = mpa.LengthLen + n
		return
	}
	n := x.need - mpa.LengthLen
	x.left, x.placed, x.tail = x.length-n, 0, mpa.Pad(x.length)+mpa.CRCLen
	if cause := x.h.Parse(x.header[mpa.LengthLen:x.need]); cause != 0 {
		q.terminate(cause, "a segment")
		return
	}
	x.opened = true
	x.phase = inPayload
	q.stats.Received++
	if q.segmentBegins(); x.left == 0 {
		x.phase = inTrailer
	}
}

// emptyFPDU takes an FPDU without ULPDU, of which the pad has come: it is good
// for nothing but to be the first (RFC 6581, 9.1).
func (q *QP) emptyFPDU() {
	x := &q.rx
	if x.opened {
		q.terminate(mpa.BadFrame, "an FPDU without ULPDU")
		return
	}
	x.opened = true
	x.h = mpa.Header{Op: mpa.OpWrite, Last: true} // as good as a WRITE of nothing
	x.left, x.placed, x.tail, x.phase = 0, 0, mpa.CRCLen, inTrailer
}

// Want is where the next bytes of the stream belong, when that is known and
// they are many; else nil. It is valid inside the guard, until Feed is called.
func (q *QP) Want() []byte {
	x := &q.rx
	switch {
	case x.dead:
		return nil
	case q.cfg.CRC:
		if size := fpduSize(x.stash); size-len(x.stash) >= minDirect {
			return x.stash[len(x.stash):size]
		}
		return nil
	case x.phase != inPayload || x.left < minDirect:
		return nil
	}
	p, fault := q.target(uint32(x.left))
	if fault != core.FaultNone {
		q.cannotPlace(fault)
		return nil
	}
	return p
}

// Placed says that the first n bytes of what Want gave were read from the
// stream.
func (q *QP) Placed(n int) {
	x := &q.rx
	if q.cfg.CRC {
		x.stash = x.stash[:len(x.stash)+n]
		q.checkStash()
		return
	}
	q.advance(n)
}

func (q *QP) advance(n int) {
	x := &q.rx
	x.placed += n
	if x.left -= n; x.left == 0 {
		x.phase = inTrailer
	}
}

// place copies payload to where it belongs.
func (q *QP) place(b []byte) {
	for len(b) > 0 {
		p, fault := q.target(uint32(len(b)))
		if fault != core.FaultNone || len(p) == 0 {
			q.cannotPlace(fault)
			return
		}
		n := copy(p, b)
		b = b[n:]
		q.advance(n)
	}
}

// target is where the next payload bytes belong, at most n and as far as they
// are in one piece.
func (q *QP) target(n uint32) ([]byte, core.Fault) {
	x := &q.rx
	off := uint32(x.placed)
	switch x.h.Op {
	case mpa.OpWrite:
		return q.CheckRemote(x.h.STag, x.h.TO+uint64(off), n, fabric.AccessRemoteWrite)
	case mpa.OpReadResponse:
		_, pos, _ := q.reads.readOf(q)
		return q.table.Slice(q.Sends().SGEs(pos), uint64(q.reads.got+off), n, fabric.AccessLocalWrite)
	case mpa.OpSend, mpa.OpSendInv, mpa.OpSendSE, mpa.OpSendSEInv:
		return q.table.Slice(q.Recv().SGEs, uint64(x.got+off), n, fabric.AccessLocalWrite)
	}
	return x.control[off:][:min(n, uint32(len(x.control))-off)], core.FaultNone
}

// cannotPlace ends the QP because memory is out of reach.
func (q *QP) cannotPlace(fault core.Fault) {
	switch x := &q.rx; x.h.Op {
	case mpa.OpWrite:
		q.terminate(taggedCause(fault), "a WRITE: "+fault.String())
	case mpa.OpReadResponse:
		_, pos, _ := q.reads.readOf(q)
		q.failWR(pos, fabric.StatusLocalProtection)
	default:
		q.CompleteRecv(fabric.Completion{Status: fabric.StatusLocalProtection, Op: fabric.OpRecv})
		q.refuse(&mpa.Terminate{Cause: mpa.DDPCatastrophic}, "a receive names memory that is not registered for it")
	}
}

// taggedCause is the cause for a key or range of a WRITE.
func taggedCause(f core.Fault) mpa.Cause {
	switch f {
	case core.FaultRange:
		return mpa.TaggedBounds
	case core.FaultRights:
		return mpa.RemoteAccess
	}
	return mpa.TaggedInvalidSTag
}
