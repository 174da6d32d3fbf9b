package rdmap

import (
	"math"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// segmentBegins holds a segment's header against what may come, before a byte of
// its payload is placed.
func (q *QP) segmentBegins() {
	x := &q.rx
	switch x.h.Op {
	case mpa.OpWrite:
		q.beginWrite()
	case mpa.OpReadResponse:
		q.beginResponse()
	case mpa.OpSend, mpa.OpSendInv, mpa.OpSendSE, mpa.OpSendSEInv:
		q.beginSend()
	case mpa.OpReadRequest:
		q.beginControl(mpa.ReadRequestLen, mpa.ReadRequestLen)
	case mpa.OpAtomicRequest:
		q.beginControl(mpa.AtomicRequestLen, mpa.AtomicRequestLen)
	case mpa.OpAtomicResponse:
		q.beginControl(mpa.AtomicResponseLen, mpa.AtomicResponseLen)
	case mpa.OpTerminate:
		q.beginControl(1, len(x.control))
	default: // immediate data
		if x.inMsg {
			q.terminate(mpa.UnexpectedOpcode, "immediate data in the middle of a SEND")
			return
		}
		q.beginControl(mpa.ImmediateLen, mpa.ImmediateLen)
	}
}

// beginWrite checks the whole range of the segment.
func (q *QP) beginWrite() {
	x := &q.rx
	if !x.again {
		x.again, x.wrote = true, 0
	}
	if x.left == 0 {
		return // such a WRITE needs no key
	}
	if x.h.TO > math.MaxUint64-uint64(x.left) {
		q.terminate(mpa.TaggedWrap, "a WRITE")
		return
	}
	if _, f := q.CheckRemote(x.h.STag, x.h.TO, uint32(x.left), fabric.AccessRemoteWrite); f != core.FaultNone {
		q.terminate(taggedCause(f), "a WRITE: "+f.String())
	}
}

// beginSend takes a receive for the first segment, and sees that the others
// follow on.
func (q *QP) beginSend() {
	x := &q.rx
	switch {
	case x.h.MSN != x.msn[mpa.QueueSend]:
		q.terminate(mpa.BadMSN, "a SEND out of order")
		return
	case x.h.MO != x.got:
		q.terminate(mpa.BadMO, "a SEND with a gap")
		return
	case x.inMsg && x.h.Op != x.send:
		q.terminate(mpa.UnexpectedOpcode, "a SEND that changes its kind")
		return
	case !q.TakeRecv():
		q.terminate(mpa.NoBuffer, "a SEND met no receive")
		return
	}
	x.inMsg, x.send = true, x.h.Op
	if uint64(x.got)+uint64(x.left) > min(q.Recv().Room(), math.MaxUint32) {
		q.CompleteRecv(fabric.Completion{Status: fabric.StatusLocalLength, Op: fabric.OpRecv})
		q.terminate(mpa.MessageTooLong, "a SEND is longer than its receive")
	}
}

// beginControl checks a message of one segment whose payload RDMAP reads.
func (q *QP) beginControl(least, most int) {
	x := &q.rx
	switch {
	case x.h.MSN != x.msn[x.h.QN]:
		q.terminate(mpa.BadMSN, x.h.Op.String())
	case x.h.MO != 0:
		q.terminate(mpa.BadMO, x.h.Op.String())
	case x.left < least:
		q.terminate(mpa.BadFrame, x.h.Op.String())
	case x.left > most || !x.h.Last:
		q.terminate(mpa.MessageTooLong, x.h.Op.String())
	}
}

// segmentEnds is called when the trailer has come: the payload is placed.
func (q *QP) segmentEnds() {
	x := &q.rx
	if !x.h.Op.Tagged() && x.h.Last {
		x.msn[x.h.QN]++
	}
	switch x.h.Op {
	case mpa.OpWrite:
		x.wrote += uint64(x.placed)
		x.again = !x.h.Last
	case mpa.OpReadResponse:
		q.endResponse()
	case mpa.OpSend, mpa.OpSendInv, mpa.OpSendSE, mpa.OpSendSEInv:
		q.endSend()
	case mpa.OpReadRequest, mpa.OpAtomicRequest:
		q.takeRequest()
	case mpa.OpAtomicResponse:
		q.endAtomic()
	case mpa.OpTerminate:
		q.terminated()
	default:
		q.endImmediate()
	}
	if x.h.Op != mpa.OpWrite && !x.again {
		x.wrote = 0
	}
	x.phase, x.have, x.need = inHeader, 0, firstNeed
}

// endSend completes the receive with the last segment.
func (q *QP) endSend() {
	x := &q.rx
	if x.got += uint32(x.placed); !x.h.Last {
		return
	}
	c := fabric.Completion{Op: fabric.OpRecv, ByteLen: x.got}
	x.inMsg, x.got = false, 0
	if x.h.Op.Invalidates() {
		if !q.table.Invalidate(q.Num(), x.h.STag) {
			q.CompleteRecv(fabric.Completion{Status: fabric.StatusRemoteInvalidReq, Op: fabric.OpRecv})
			q.terminate(mpa.CannotInvalidate, "the key to invalidate is not one of this queue pair")
			return
		}
		c.Imm, c.Flags = x.h.STag, fabric.CompletionInvalidated
	}
	q.CompleteRecv(c)
}

// endImmediate completes a receive with immediate data: of the WRITE that came
// right before, or of a SEND without payload.
func (q *QP) endImmediate() {
	imm, ofSend := mpa.ParseImmediate(q.rx.control[:])
	if !q.TakeRecv() {
		q.terminate(mpa.NoBuffer, "immediate data met no receive")
		return
	}
	c := fabric.Completion{Op: fabric.OpRecvWriteImm, Imm: imm, Flags: fabric.CompletionImm, ByteLen: uint32(min(q.rx.wrote, math.MaxUint32))}
	if ofSend {
		c.Op, c.ByteLen = fabric.OpRecv, 0
	}
	q.CompleteRecv(c)
}
