package icrc

import "time"

// Receiver checks the packets that come in on one flow. A UDP socket does not
// show the IPv4 identification, which the ICRC covers: it is recovered from
// the ICRC, and so that this costs no protection, it must be one that the peer
// could have sent now. Peers count (Linux rxe, most hardware) or begin each
// send at 0 (a UDP socket with segmentation offload).
//
// Time is that of any monotonic clock. A Receiver belongs to one goroutine. The zero value with Flow set is ready.
type Receiver struct {
	Flow Flow

	solve solver
	next  uint16        // expected identification
	doubt uint16        // what would follow the one that was refused last
	known bool          // next was learned
	at    time.Duration // when next was learned
}

const (
	// maxSegments is how many packets one send with segmentation offload makes.
	maxSegments = 128
	// maxSkip is how far a counting peer's identification may be ahead of the
	// expected one, maxBehind how far behind (packets reordered). A counter is
	// one for all that goes between two addresses (Linux hashes them), so
	// between two packets of a flow lies whatever the other queue pairs sent: a
	// megabyte in reply to a READ is a thousand packets. To refuse what is
	// genuine costs more than the bits of protection: a host whose packet is
	// dropped has to send again, and rxe of 6.1 loses requests over that.
	maxSkip   = 8192
	maxBehind = 1024
)

// Check says whether the ICRC of the packet b is right. index is its place in
// the datagram that receive offload glued together, 0 for a single one.
func (r *Receiver) Check(b []byte, index int, now time.Duration) bool {
	if r.Flow.v6 {
		return r.Flow.residue(b, 0) == 0
	}
	guess := r.next
	if index == 0 && guess < maxSegments {
		guess = 0 // a peer that begins at 0 does so with each datagram
	}
	d := r.Flow.residue(b, guess)
	if d == 0 {
		r.learn(guess, now)
		return true
	}
	return r.recover(len(b), d, guess, now)
}

// recover finds the identification of a packet of n bytes for which guess left
// d, and says whether to believe it.
func (r *Receiver) recover(n int, d uint32, guess uint16, now time.Duration) bool {
	id, ok := r.solve.id(n, d)
	fragment := false
	if !ok {
		if id, ok = r.solve.id(n, d^mul(pow(uint32(8*(n-Len))), fragmentEffect)); !ok {
			return false
		}
		fragment = true
	}
	if id ^= guess; !r.plausible(id, now) {
		return false
	}
	if fragment {
		r.Flow.seed ^= fragmentEffect // the peer sets don't-fragment, or does not, always
	}
	if behind := r.next - id; behind > maxBehind || behind == 0 {
		r.learn(id, now)
	}
	return true
}

// plausible says whether the peer may have sent that identification now. One
// that is not is believed when its successor comes.
func (r *Receiver) plausible(id uint16, now time.Duration) bool {
	skip := maxSkip + (now - r.at).Milliseconds() // Linux skips up to one per tick
	switch ahead := int64(id - r.next); {
	case !r.known, id < maxSegments, ahead < skip, r.next-id <= maxBehind, id-r.doubt < maxBehind:
		return true
	}
	r.doubt = id + 1
	return false
}

func (r *Receiver) learn(id uint16, now time.Duration) {
	r.next, r.known, r.at = id+1, true, now
}

// fragmentEffect is what a missing don't-fragment bit changes in the CRC behind
// the headers.
var fragmentEffect = mul(pow(8*(v4Total-v4ID-2)), dontFragment)
