package rc

import (
	"fmt"
	"math"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// Never is the deadline of a QP that waits for nothing.
const Never time.Duration = math.MaxInt64

// Config is what the two ends agreed on, and what this end does by itself.
type Config struct {
	MTU     int // path MTU in bytes: 256, 512, 1024, 2048 or 4096
	DestQPN uint32
	SendPSN psn.Value // of our first request
	RecvPSN psn.Value // of the peer's first request
	ORD     int       // READs and atomics we may have outstanding
	IRD     int       // READs and atomics we answer; 0 refuses them
	// RetryCount is how many times AckTimeout may pass again without progress
	// before the QP fails, RNRRetry how many RNR NAKs in a row are borne; 7 of
	// the latter is for ever. AckTimeout 0 is for ever; less than MinTimeout is
	// MinTimeout.
	RetryCount uint8
	RNRRetry   uint8
	AckTimeout time.Duration
	// MinTimeout is the shortest time until a retransmission; 0 means 4 ms.
	MinTimeout time.Duration
	// RNRTimer is the timer code of our RNR NAKs (wire.RNRTime).
	RNRTimer uint8
	// Window is how many request packets may be unacknowledged at most; 0
	// means 256.
	Window int
	// Stats counts, shared by the QPs of one owner; nil counts for nobody.
	Stats *Stats
}

// Stats count what went on between the two ends. One goroutine owns them.
type Stats struct {
	Sent        uint64 // packets
	Received    uint64 // packets that were for a QP
	Resent      uint64 // request packets that were sent before
	Timeouts    uint64
	SequenceNAK uint64 // received
	RNRNAK      uint64 // received
	NAKSent     uint64 // of every kind, RNR too
	ReadGaps    uint64 // READ responses missed
	Duplicates  uint64 // requests that came again
	Dropped     uint64 // packets for a QP that made no sense to it
}

// QP is a reliable connected QP. Everything but what core.QP lets any
// goroutine do belongs to the owner; Receive, Next and Expire touch registered
// memory and are called inside its guard.
type QP struct {
	core.QP
	cfg   Config
	req   requester
	rsp   responder
	err   error // why the QP failed by itself
	stats *Stats
}

// Start prepares a QP made by Init for traffic, before its state becomes RTS.
func (q *QP) Start(cfg Config) {
	if cfg.MinTimeout == 0 {
		cfg.MinTimeout = 4 * time.Millisecond
	}
	if cfg.Window == 0 {
		cfg.Window = 256
	}
	if cfg.AckTimeout > 0 { // it may be the peer's choice
		cfg.AckTimeout = max(cfg.AckTimeout, cfg.MinTimeout)
	}
	if q.stats = cfg.Stats; q.stats == nil {
		q.stats = new(Stats)
	}
	q.cfg = cfg
	q.SetORD(cfg.ORD)
	q.req.init(q)
	q.rsp.init(q)
}

// Config is what Start was given, defaults filled in.
func (q *QP) Config() *Config { return &q.cfg }

// Err is why the QP went to the error state by itself: nil while it is well,
// and when somebody else ended it.
func (q *QP) Err() error { return q.err }

// Receive takes a packet for this QP, whose ICRC was right. Nothing of it is
// referred to afterwards.
func (q *QP) Receive(p *wire.Packet, now time.Duration) {
	q.stats.Received++
	switch {
	case q.State() != fabric.QPReadyToSend || p.Op.Service() != 0:
		q.stats.Dropped++
	case p.Info.Has(wire.Request):
		q.rsp.receive(p)
	default:
		q.req.receive(p, now)
	}
}

// Congested says that the network has marked a packet of this QP (a CNP, or
// BECN): the requester slows down.
func (q *QP) Congested() {
	if q.State() == fabric.QPReadyToSend {
		q.req.congested()
	}
}

// Packet is a packet to send.
type Packet struct {
	// Header has room for wire.MaxHeader bytes; Next sets its length.
	Header []byte
	// Data is the payload, as parts of registered memory or of the send queue:
	// valid inside the guard. Next reuses its room.
	Data [][]byte
	Size int // bytes of Data; the pad is wire.PadLen of it
}

// Len is the length of the packet from the BTH to the ICRC.
func (p *Packet) Len() int {
	return len(p.Header) + p.Size + wire.PadLen(p.Size) + wire.ICRCLen
}

// Gather points Data to size bytes of the message of q's WR at pos, from off on.
// It is false when they are not accessible. It is for QPs of every service.
func (p *Packet) Gather(q *core.QP, pos uint32, off uint64, size int) bool {
	p.Size = size
	if size == 0 {
		return true
	}
	sq := q.Sends()
	if sq.At(pos).Flags&fabric.FlagInline != 0 {
		p.Data = append(p.Data, sq.Inline(pos)[off:off+uint64(size)])
		return true
	}
	for t, sges := q.Device().Table(), sq.SGEs(pos); size > 0; {
		b, fault := t.Slice(sges, off, uint32(size), 0)
		if fault != core.FaultNone || len(b) == 0 {
			return false
		}
		p.Data = append(p.Data, b)
		off, size = off+uint64(len(b)), size-len(b)
	}
	return true
}

// Next makes the next packet that is due: answers that must not wait, then
// requests, then, if all is set, the acknowledgement that others could still
// join. It is false when there is none now. Local operations of the send queue
// run in here.
func (q *QP) Next(p *Packet, now time.Duration, all bool) bool {
	p.Data, p.Size = p.Data[:0], 0
	ready := q.State() == fabric.QPReadyToSend
	answers := ready || q.rsp.refused
	if answers && q.rsp.urgent() && q.rsp.next(p) || ready && q.req.next(p, now) || answers && all && q.rsp.next(p) {
		q.stats.Sent++
		return true
	}
	return false
}

// Urgent says whether Next may have something to give without all.
func (q *QP) Urgent() bool { return q.rsp.urgent() || q.req.waiting() }

// Owes says whether an acknowledgement is owed.
func (q *QP) Owes() bool { return q.rsp.ack }

// Suspect says whether the last packets were lost without an answer: what is
// sent now should avoid whatever may have lost them.
func (q *QP) Suspect() bool { return q.req.pace.backoff > 0 }

// Stutters says that of what is sent at once the first packet arrives and the
// others do not, time and again: something on the way treats those differently.
func (q *QP) Stutters() bool { return max(q.req.pace.stutter, q.rsp.log.stutter) >= maxStutter }

const maxStutter = 3

// Deadline is when Expire wants to be called; Never when there is nothing to
// wait for.
func (q *QP) Deadline() time.Duration {
	if q.State() != fabric.QPReadyToSend {
		return Never
	}
	return q.req.deadline()
}

// Expire is called when the deadline has come; Next may have something then.
func (q *QP) Expire(now time.Duration) {
	if q.State() == fabric.QPReadyToSend && now >= q.req.deadline() {
		q.req.expire(now)
	}
}

// fail ends the QP with its cause.
func (q *QP) fail(why error) {
	if q.States().Set(fabric.QPError) {
		q.err = &fabric.OpError{Op: "connection", Device: q.Device().Name(), QPN: q.Num(), Err: why}
	}
}

// failStatus ends the QP after a WR failed with s.
func (q *QP) failStatus(s fabric.Status) { q.fail(fmt.Errorf("%w: %v", fabric.ErrQPError, s)) }
