package rdmap

import (
	"fmt"
	"net"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// Config is what the two ends agreed on, and what this end does by itself.
type Config struct {
	ORD int // READs and atomics we may have outstanding
	IRD int // READs and atomics we answer; 0 refuses them
	CRC bool
	// ULPDU is the longest ULPDU we send.
	ULPDU int
	// Passive: nothing is sent before the peer's first FPDU, as MPA wants of
	// the responder.
	Passive bool
	// RTR is the frame that we, the initiator, begin with: RTRWrite, RTRRead
	// (which needs an ORD) or none.
	RTR mpa.RTR
	// Pool has buffers for CRC; needed with it.
	Pool *Pool
	// Stats counts, shared by the QPs of one owner; nil counts for nobody.
	Stats *Stats
}

// Stats count what went on between the two ends. One goroutine owns them.
type Stats struct {
	Sent       uint64 // FPDUs, of messages that were sent to their end
	Received   uint64 // FPDUs
	BadCRC     uint64
	Terminates uint64 // sent
	Terminated uint64 // received
}

// QP is a queue pair on a byte stream. Everything but what core.QP lets any
// goroutine do belongs to the owner; Fill, Last, Want, Placed and Feed touch
// registered memory and are called inside its guard.
type QP struct {
	core.QP
	cfg   Config
	table *core.Table
	stats *Stats
	tx    sender
	rx    receiver
	reads requester
	rsp   responder
	err   error // why the QP failed by itself
}

// Start prepares a QP made by Init for traffic, before its state becomes RTS.
func (q *QP) Start(cfg Config) {
	if q.stats = cfg.Stats; q.stats == nil {
		q.stats = new(Stats)
	}
	q.cfg, q.table = cfg, q.Device().Table()
	q.SetORD(cfg.ORD)
	q.rx.init()
	q.reads.init(cfg.ORD)
	q.rsp.init(cfg.IRD)
	q.tx.init(q)
}

// errSendImm is why a SEND with immediate and payload is refused.
var errSendImm = fmt.Errorf("%w: RDMAP has immediate data with a WRITE or alone (RFC 7306)", fabric.ErrNotSupported)

// EnqueueSend is core.QP's, but for a SEND with immediate that has a payload:
// there is no such message, and the error wraps fabric.ErrNotSupported.
func (q *QP) EnqueueSend(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	for n := range wrs {
		if wrs[n].Op == fabric.OpSendImm && payload(&wrs[n], sges) {
			done, err := q.QP.EnqueueSend(wrs[:n], sges)
			if err == nil {
				err = &fabric.OpError{Op: "post send", Device: q.Device().Name(), QPN: q.Num(), Err: errSendImm}
			}
			return done, err
		}
	}
	return q.QP.EnqueueSend(wrs, sges)
}

// payload says whether a WR has any, as far as its SGEs are there.
func payload(wr *fabric.SendWR, sges []fabric.SGE) bool {
	first := min(uint64(wr.FirstSGE), uint64(len(sges)))
	return core.Total(sges[first:min(first+uint64(wr.NumSGE), uint64(len(sges)))]) > 0
}

// Config is what Start was given.
func (q *QP) Config() *Config { return &q.cfg }

// Err is why the QP went to the error state by itself: nil while it is well,
// and when somebody else ended it.
func (q *QP) Err() error { return q.err }

// fail ends the QP with its cause; only the first counts.
func (q *QP) fail(why error) {
	q.rx.dead = true
	if q.States().Set(fabric.QPError) {
		q.err = &fabric.OpError{Op: "connection", Device: q.Device().Name(), QPN: q.Num(), Err: why}
	}
}

// failStatus ends the QP after a WR failed with s.
func (q *QP) failStatus(s fabric.Status) { q.fail(fmt.Errorf("%w: %v", fabric.ErrQPError, s)) }

// Lost ends the QP because the connection is gone; err matches net.ErrClosed
// when its peer has ended it in order.
func (q *QP) Lost(err error) {
	if q.rx.inside() {
		err = fmt.Errorf("in the middle of a message: %w", err)
	}
	q.fail(err)
}

// EOF ends the QP because the peer has ended its stream.
func (q *QP) EOF() { q.Lost(fmt.Errorf("disconnected by the peer: %w", net.ErrClosed)) }

// Flush gives back what the QP holds and ends every posted WR, in the error
// state.
func (q *QP) Flush() {
	q.tx.clear(q)
	q.rx.clear(q)
	q.QP.Flush()
	q.tx.pos = q.Sends().Next()
}

// terminate ends the QP for what the peer did, and has the peer told. The
// segment that was being received goes with the cause, and the Read Request it
// was with those of RDMAP.
func (q *QP) terminate(c mpa.Cause, why string) {
	t := mpa.Terminate{Cause: c}
	if h := q.rx.raw(); h != nil {
		t.Header, t.Length = h, uint16(q.rx.length)
		if q.rx.h.Op == mpa.OpReadRequest && q.rx.controlDone() && c.Layer() == mpa.LayerRDMAP {
			t.Request = q.rx.control[:mpa.ReadRequestLen]
		}
	}
	q.refuse(&t, why)
}

// refuse is terminate with a message already made.
func (q *QP) refuse(t *mpa.Terminate, why string) {
	if q.tx.term == 0 {
		q.tx.term = len(t.Append(q.tx.termData[:0]))
		q.stats.Terminates++
	}
	q.fail(fmt.Errorf("%w: the peer was refused: %v (%s)", fabric.ErrQPError, t, why))
}
