package rc

import (
	"time"

	"github.com/nvmf-go/nvmf/fabric/soft/psn"
)

const (
	readChunk   = 128 << 10 // bytes that one READ request asks for at most
	firstWindow = 16        // packets
	firstReads  = 64        // packets asked for
	leastReads  = 8
	// mostReads bounds the packets asked for. The peer answers a READ in one
	// burst; a Linux receiver queues 1000 packets for a processor
	// (net.core.netdev_max_backlog) and drops the rest, and rxe counts them
	// against its own queue as well.
	mostReads  = 256
	maxBackoff = 8                      // doublings
	noTimeout  = 500 * time.Millisecond // longest wait when AckTimeout is 0
)

// pace decides how much the requester may have under way and when it gives an
// answer up. It has the packets' sequence numbers for names only.
type pace struct {
	cfg *Config

	data  window // packets of SENDs and WRITEs
	reads window // packets of READ responses

	// The loss that was reacted to last, until una passes it.
	lossAt  psn.Value
	loss    bool
	stutter int // losses in a row with one packet of progress between them
	// The congestion mark reacted to last: not again before una passes it.
	markAt psn.Value
	mark   bool

	// Round trip time: of one packet at a time.
	timed     bool
	timedPSN  psn.Value
	timedAt   time.Duration
	srtt, dev time.Duration

	due      time.Duration // of the oldest packet; Never when none is out
	since    time.Duration // of the last progress
	backoff  uint
	heldTo   time.Duration // until then an RNR NAK wants silence
	isHeld   bool
	rnrTries uint8
}

func (p *pace) init(cfg *Config) {
	*p = pace{
		cfg: cfg, due: Never,
		data: newWindow(firstWindow, 2, cfg.Window), reads: newWindow(firstReads, leastReads, min(cfg.Window, mostReads)),
	}
}

// chunk is how many packets a READ request asks for at most.
func (p *pace) chunk() int { return min(readChunk/p.cfg.MTU, max(p.reads.size, leastReads)) }

// begin is called when the first packet leaves with none under way.
func (p *pace) begin(now time.Duration) {
	p.since, p.backoff = now, 0
	p.due = now + p.rto()
}

// rto is how long the oldest packet is waited for.
func (p *pace) rto() time.Duration {
	limit := p.cfg.AckTimeout
	if limit == 0 {
		limit = noTimeout
	}
	d := max(p.cfg.MinTimeout, p.srtt+4*p.dev) << min(p.backoff, maxBackoff)
	return min(d, limit)
}

// time begins a measurement of the round trip with that packet, sent for the
// first time, if none is running.
func (p *pace) time(seq psn.Value, now time.Duration) {
	if !p.timed {
		p.timed, p.timedPSN, p.timedAt = true, seq, now
	}
}

// progress is called when una has moved. outstanding says whether
// anything is still under way.
func (p *pace) progress(una psn.Value, outstanding bool, now time.Duration) {
	if p.timed && p.timedPSN.Less(una) {
		p.timed = false
		p.measure(now - p.timedAt)
	}
	p.loss = p.loss && una == p.lossAt
	p.mark = p.mark && una.Less(p.markAt)
	p.since, p.backoff = now, 0
	if p.due = Never; outstanding {
		p.due = now + p.rto()
	}
	p.rnrTries = 0
}

// measure takes a round trip into the estimate (RFC 6298).
func (p *pace) measure(d time.Duration) {
	if p.srtt == 0 {
		p.srtt, p.dev = d, d/2
		return
	}
	diff := p.srtt - d
	if diff < 0 {
		diff = -diff
	}
	p.dev += (diff - p.dev) / 4
	p.srtt += (d - p.srtt) / 8
}

// flight is what is under way: data packets, and READ responses asked for.
type flight struct{ data, reads int }

// lost reacts to the loss of the packet una, and says whether to go back to it:
// not when that was done already.
func (p *pace) lost(una psn.Value, f flight, now time.Duration) bool {
	if p.loss {
		return false
	}
	if p.stutter++; una != p.lossAt.Next() {
		p.stutter = 0
	}
	p.loss, p.lossAt, p.timed = true, una, false
	p.shrink(f)
	p.due = now + p.rto()
	return true
}

// shrink halves the windows of what is under way.
func (p *pace) shrink(f flight) {
	if f.data > 0 {
		p.data.lost(f.data)
	}
	if f.reads > 0 {
		p.reads.lost(f.reads)
	}
}

// timeout reacts to the end of the wait for una. It is false when the retries
// are used up.
func (p *pace) timeout(una psn.Value, f flight, now time.Duration) bool {
	if t := p.cfg.AckTimeout; t > 0 && now-p.since >= time.Duration(p.cfg.RetryCount+1)*t {
		return false
	}
	if p.backoff == 0 && f.data > 0 {
		p.data.collapse(f.data)
	}
	if p.backoff == 0 && f.reads > 0 {
		p.reads.collapse(f.reads)
	}
	p.loss, p.lossAt, p.timed = true, una, false
	p.backoff++
	p.due = now + p.rto()
	return true
}

// congested reacts to a mark of the network, once a window.
func (p *pace) congested(una, nxt psn.Value, f flight) {
	if p.mark {
		return
	}
	p.mark, p.markAt = una != nxt, nxt
	p.shrink(f)
}

// hold begins the silence after an RNR NAK. It is false when there were too
// many in a row.
func (p *pace) hold(now, d time.Duration) bool {
	const forEver = 7
	if p.cfg.RNRRetry != forEver {
		if p.rnrTries >= p.cfg.RNRRetry {
			return false
		}
		p.rnrTries++
	}
	p.isHeld, p.heldTo = true, now+d
	p.loss, p.timed = false, false
	return true
}

// held says whether the silence lasts.
func (p *pace) held(now time.Duration) bool { return p.isHeld && now < p.heldTo }

// release ends the silence and says whether there was one.
func (p *pace) release(outstanding bool, now time.Duration) bool {
	if !p.isHeld {
		return false
	}
	p.isHeld = false
	p.since, p.backoff = now, 0
	if p.due = Never; outstanding {
		p.due = now + p.rto()
	}
	return true
}

func (p *pace) deadline() time.Duration {
	if p.isHeld {
		return p.heldTo
	}
	return p.due
}
