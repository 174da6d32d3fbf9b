package rdmap

import (
	"encoding/binary"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// source is where the payload of a message comes from.
type source uint8

const (
	sourceNone      source = iota
	sourceSGEs             // of the WR
	sourceInline           // of the WR
	sourceControl          // made by control
	sourceRegion           // what a Read Request of the peer names
	sourceTerminate        // sender.termData
)

// outcome is what happens when the last byte of a message is written.
type outcome uint8

const (
	endNothing  outcome = iota
	endWR               // the WR is done
	endAsked            // an answer to the WR is awaited
	endReady            // an answer to the RTR frame is awaited
	endResponse         // the peer's request is done
)

// message is one that is being sent or will be next.
type message struct {
	op     mpa.Opcode
	source source
	end    outcome
	pos    uint32 // of the WR, or of the peer's request
	msn    uint32 // untagged
	stag   uint32
	to     uint64 // tagged
	length uint32 // of the payload
	bytes  uint64 // of the stream
}

// maxMessages is how many messages are under way to the socket at a time: what
// one system call can take should not need two. Of 4 KiB NVMe reads, each a WRITE
// and a SEND, a batch takes 64.
const maxMessages = 256

// auxDone is core.Send.Aux of a WR that only waits for those before it; 0 is
// that of one that was begun.
const auxDone = 1

// sender turns WRs and answers into messages and those into bytes.
//
//	         pos          sent
//	WRs  ---> | messages ---> | socket
//	answers ->|
//
// A message's bytes follow from its place and from how many were sent, so that
// nothing has to be kept of one that the socket took in part.
type sender struct {
	messages core.Ring[message]
	sent     uint64 // bytes of the first message that were written
	rest     []byte // with CRC: what was left of an FPDU that was sent in part
	gone     int    // bytes of rest that were sent since

	pos     uint32 // the next WR to become a message
	msn     [mpa.QueueAtomicResponse + 1]uint32
	stopped bool // the WR at pos fails, once its turn comes
	status  fabric.Status
	turn    bool // the last message was an answer

	termData [mpa.MaxTerminate]byte
	term     int // its length; 0: there is none to send
}

func (t *sender) init(q *QP) {
	*t = sender{pos: q.Sends().Next()}
	for i := range t.msn {
		t.msn[i] = 1
	}
	switch q.cfg.RTR {
	case mpa.RTRWrite:
		t.push(q, message{op: mpa.OpWrite, stag: 1})
	case mpa.RTRRead:
		q.reads.count++
		t.push(q, message{op: mpa.OpReadRequest, source: sourceControl, end: endReady, length: mpa.ReadRequestLen})
	}
}

func (t *sender) clear(q *QP) {
	t.messages.Cut(0)
	t.sent, t.term = 0, 0
	if t.rest != nil {
		t.dropRest(q)
	}
}

// perFPDU is the payload and the length of an FPDU of m that is not its last.
func (q *QP) perFPDU(m *message) (payload uint32, fpdu int) {
	h := mpa.UntaggedLen
	if m.op.Tagged() {
		h = mpa.TaggedLen
	}
	payload = uint32(q.cfg.ULPDU - h)
	return payload, mpa.FPDULen(q.cfg.ULPDU)
}

// push queues a message. There must be room.
func (t *sender) push(q *QP, m message) {
	if !m.op.Tagged() {
		m.msn = t.msn[m.op.Queue()]
		t.msn[m.op.Queue()]++
	}
	per, fpdu := q.perFPDU(&m)
	full := uint64(0)
	if m.length > per {
		full = uint64((m.length - 1) / per)
	}
	last := int(m.length - uint32(full)*per)
	m.bytes = full*uint64(fpdu) + uint64(mpa.FPDULen(q.cfg.ULPDU-int(per)+last))
	t.messages.Push(m)
}

// Fill adds to an empty batch what there is to send, as far as it has room.
// Local operations of the send queue run in here.
func (q *QP) Fill(b *Batch) {
	t := &q.tx
	from := t.sent
	if t.rest != nil {
		b.add(t.rest[t.gone:])
		from += uint64(len(t.rest) - t.gone)
	}
	for i := 0; q.State() == fabric.QPReadyToSend; {
		if i == t.messages.Len() && !q.next() {
			break
		}
		if from < t.messages.At(i).bytes {
			if r := q.emit(b, i, from, false); r == emitFull {
				break
			} else if r == emitLost {
				continue // there is something else to do instead
			}
		}
		from = 0
		i++
	}
	b.seal()
}

// Last adds to an empty batch what is to be sent in the error state: the rest
// of the FPDU that the peer has a part of, and a Terminate if there is one.
// What the socket does not take of it is lost.
func (q *QP) Last(b *Batch) {
	t := &q.tx
	whole := true
	switch {
	case t.rest != nil:
		b.add(t.rest[t.gone:])
	case t.messages.Len() > 0 && t.sent > 0:
		if _, fpdu := q.perFPDU(t.messages.At(0)); t.sent%uint64(fpdu) != 0 {
			whole = q.emit(b, 0, t.sent, true) == emitDone
		}
	}
	if t.term > 0 && whole && t.messages.Len() < maxMessages {
		m := message{op: mpa.OpTerminate, source: sourceTerminate, length: uint32(t.term)}
		t.push(q, m)
		q.emit(b, t.messages.Len()-1, 0, true)
	}
	b.seal()
}

// What became of emit.
const (
	emitDone = iota
	emitFull // the batch
	emitLost // the memory is not there any more: lostMemory was called
)

// emit adds message i from byte from of its stream on, or one FPDU of it.
func (q *QP) emit(b *Batch, i int, from uint64, one bool) int {
	m := q.tx.messages.At(i)
	per, fpdu := q.perFPDU(m)
	start, skip := b.mark(), int(from%uint64(fpdu))
	for off := uint32(from/uint64(fpdu)) * per; ; off += per {
		n := min(per, m.length-off)
		last := off+n == m.length
		switch ok, fault := q.fpdu(b, m, off, n, last); {
		case fault != core.FaultNone:
			if from == 0 {
				b.back(start) // as if it had never begun
			}
			q.lostMemory(i, from, fault)
			return emitLost
		case !ok:
			return emitFull
		}
		if skip > 0 {
			b.drop(skip) // the batch was empty
			skip = 0
		}
		if last || one {
			return emitDone
		}
	}
}

// fpdu adds one FPDU: the n bytes at off of m's payload. It adds nothing when
// it returns false.
func (q *QP) fpdu(b *Batch, m *message, off, n uint32, last bool) (bool, core.Fault) {
	h := mpa.Header{Op: m.op, Last: last, STag: m.stag, TO: m.to + uint64(off), MSN: m.msn, MO: off}
	hl := mpa.LengthLen + h.Len()
	inRoom := q.cfg.CRC || n <= copyMax || m.source == sourceControl || m.source == sourceTerminate
	need := hl + mpa.MaxTrailer
	if inRoom {
		need += int(n)
	}
	if !b.fits(need) {
		return false, core.FaultNone
	}
	before, start := b.mark(), b.used
	p := b.grow(hl)
	binary.BigEndian.PutUint16(p, uint16(hl-mpa.LengthLen)+uint16(n))
	h.Put(p[mpa.LengthLen:])
	var fault core.Fault
	if inRoom {
		fault = q.fetch(b.grow(int(n)), m, off)
	} else {
		fault = q.gather(b, m, off, n)
	}
	if fault != core.FaultNone {
		b.back(before)
		return false, fault
	}
	b.trailer(mpa.Pad(hl-mpa.LengthLen+int(n)), start, q.cfg.CRC)
	return true, core.FaultNone
}

// slice is the payload of m from off on, as far as it is in one piece.
func (q *QP) slice(m *message, off, n uint32) ([]byte, core.Fault) {
	switch m.source {
	case sourceSGEs:
		return q.table.Slice(q.Sends().SGEs(m.pos), uint64(off), n, 0)
	case sourceInline:
		return q.Sends().Inline(m.pos)[off:][:n], core.FaultNone
	case sourceRegion:
		r := &q.rsp.at(m.pos).read
		return q.CheckRemote(r.SourceSTag, r.SourceTO+uint64(off), n, fabric.AccessRemoteRead)
	case sourceTerminate:
		return q.tx.termData[off:][:n], core.FaultNone
	}
	return nil, core.FaultNone
}

// fetch copies payload to dst.
func (q *QP) fetch(dst []byte, m *message, off uint32) core.Fault {
	if m.source == sourceControl {
		q.control(dst, m)
		return core.FaultNone
	}
	for len(dst) > 0 {
		p, fault := q.slice(m, off, uint32(len(dst)))
		if fault != core.FaultNone || len(p) == 0 {
			return fault
		}
		off += uint32(copy(dst, p))
		dst = dst[len(p):]
	}
	return core.FaultNone
}

// gather adds payload where it is.
func (q *QP) gather(b *Batch, m *message, off, n uint32) core.Fault {
	for n > 0 {
		p, fault := q.slice(m, off, n)
		if fault != core.FaultNone {
			return fault
		}
		b.add(p)
		off, n = off+uint32(len(p)), n-uint32(len(p))
	}
	return core.FaultNone
}

// lostMemory handles payload that cannot be reached any more, though it could
// when message i was begun. Messages before it will be sent; from it on nothing
// but a Terminate can be.
func (q *QP) lostMemory(i int, from uint64, fault core.Fault) {
	t := &q.tx
	m := t.messages.At(i)
	if q.State() != fabric.QPReadyToSend {
		return
	}
	switch answer := m.source == sourceRegion; {
	case answer && from == 0:
		t.messages.Cut(i)
		q.rsp.refuse(m.pos, remoteCause(fault))
	case answer:
		q.refuse(&mpa.Terminate{Cause: remoteCause(fault)}, "a region ended while it was read")
	case from == 0:
		t.messages.Cut(i)
		q.stop(m.pos, fabric.StatusLocalProtection)
	default:
		q.failWR(m.pos, fabric.StatusLocalProtection)
	}
}

// Wrote says that the socket took the first n bytes of the batch that Fill has
// filled.
func (q *QP) Wrote(b *Batch, n int) {
	t := &q.tx
	if t.rest != nil {
		if t.gone += min(n, len(t.rest)-t.gone); t.gone == len(t.rest) {
			t.dropRest(q)
		}
	}
	t.sent += uint64(n)
	for t.messages.Len() > 0 && t.sent >= t.messages.At(0).bytes {
		m := t.messages.Pop()
		_, fpdu := q.perFPDU(&m)
		q.stats.Sent += (m.bytes + uint64(fpdu) - 1) / uint64(fpdu)
		t.sent -= m.bytes
		q.finish(&m)
	}
	if q.cfg.CRC && n < b.Bytes && t.rest == nil {
		q.keepRest(b, n)
	}
	q.reap()
}

func (t *sender) dropRest(q *QP) {
	q.cfg.Pool.put(t.rest)
	t.rest, t.gone = nil, 0
}

// keepRest copies what is left of the FPDU that was written up to byte n of the
// batch: made anew it might differ from what its CRC was computed of.
func (q *QP) keepRest(b *Batch, n int) {
	t := &q.tx
	if t.messages.Len() == 0 {
		return
	}
	m := t.messages.At(0)
	_, fpdu := q.perFPDU(m)
	in := t.sent % uint64(fpdu)
	if in == 0 {
		return
	}
	size := min(uint64(fpdu), m.bytes-(t.sent-in))
	t.rest = b.appendTo(q.cfg.Pool.get(), n, int(size-in))
}

// finish is called when the socket has taken the last byte of a message.
func (q *QP) finish(m *message) {
	switch m.end {
	case endWR:
		q.Sends().At(m.pos).Aux = auxDone
	case endAsked:
		q.reads.push(asked{pos: m.pos})
	case endReady:
		q.reads.push(asked{ready: true})
	case endResponse:
		q.rsp.pop()
	}
}

// reap completes the WRs that are done, in order, and the one that has failed
// when its turn has come.
func (q *QP) reap() {
	sq, t := q.Sends(), &q.tx
	for sq.Next() != t.pos {
		if sq.At(sq.Next()).Aux&auxDone == 0 {
			return
		}
		q.CompleteSend(fabric.StatusSuccess, 0)
	}
	if t.stopped && t.messages.Len() == 0 && q.State() == fabric.QPReadyToSend {
		t.stopped = false
		t.pos++
		q.failWR(sq.Next(), t.status)
	}
}

// failWR ends the QP for a fault at this end that the WR at pos has, and
// completes it with s if those before it have completed.
func (q *QP) failWR(pos uint32, s fabric.Status) {
	if q.Sends().Next() == pos {
		q.CompleteSend(s, 0)
	}
	if q.tx.term == 0 {
		t := mpa.Terminate{Cause: mpa.RDMAPCatastrophic}
		q.tx.term = len(t.Append(q.tx.termData[:0]))
		q.stats.Terminates++
	}
	q.failStatus(s)
}

// stop has the WR at pos fail in its turn, and none behind it begin.
func (q *QP) stop(pos uint32, s fabric.Status) {
	q.tx.pos, q.tx.stopped, q.tx.status = pos, true, s
}
