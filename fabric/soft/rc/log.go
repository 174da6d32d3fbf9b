package rc

import (
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// entry is a READ or an atomic of the peer: what is needed to answer it, and
// to answer it again.
type entry struct {
	first  psn.Value
	count  int // responses
	msn    psn.Value
	atomic bool

	original uint64 // atomic

	va     uint64 // READ
	rkey   uint32
	length uint32

	// The answer under way: packets [from, to) of the response, the next one
	// is at. It is done when at is to.
	from, at, to int
	answered     bool // once to the end: what is under way is a repetition
}

// owed says whether part of the answer is to be sent.
func (e *entry) owed() bool { return e.at != e.to }

// log keeps the READs and atomics of the peer, as many as it may have
// outstanding, in the order they came. The oldest make room for new ones.
type log struct {
	ring []entry
	n    int // entries in use
	last int // place of the newest
	owed int // entries that are owed an answer

	replayed psn.Value // where the last repetition of a READ began
	stutter  int       // repetitions in a row, each a packet behind the last
}

func (l *log) init(depth int) { l.ring = make([]entry, depth) }

// at is the i-th oldest entry.
func (l *log) at(i int) *entry {
	return &l.ring[(l.last-(l.n-1-i)+len(l.ring))%len(l.ring)]
}

// full says whether the next add will fail: the peer has more outstanding than
// was agreed. It has not when the oldest is a repetition under way: the peer
// would not ask for more if it still wanted that.
func (l *log) full() bool {
	return len(l.ring) == 0 || l.n == len(l.ring) && l.at(0).owed() && !l.at(0).answered
}

// add appends an entry that is owed all of its answer.
func (l *log) add(e entry) bool {
	if l.full() {
		return false
	}
	if l.n == len(l.ring) && l.at(0).owed() {
		l.owed--
	}
	e.from, e.at, e.to = 0, 0, e.count
	l.last = (l.last + 1) % len(l.ring)
	l.n = min(l.n+1, len(l.ring))
	*l.at(l.n - 1) = e
	l.owed++
	return true
}

// find is the entry that answers with that sequence number, or nil.
func (l *log) find(seq psn.Value) *entry {
	for i := l.n - 1; i >= 0; i-- {
		if e := l.at(i); seq.InWindow(e.first, e.count) {
			return e
		}
	}
	return nil
}

// replayRead answers a part of a READ again. The part must lie in the original
// and begin at the packet that seq names. It is false when there is no such
// READ any more.
func (l *log) replayRead(seq psn.Value, va uint64, rkey, length uint32, mtu int) bool {
	e := l.find(seq)
	if e == nil || e.atomic {
		return false
	}
	from := seq.Diff(e.first)
	off := uint64(from) * uint64(mtu)
	n := wire.Segments(length, mtu)
	if rkey != e.rkey || va != e.va+off || off > uint64(e.length) || uint64(length) > uint64(e.length)-off || n > e.count-from {
		return false
	}
	l.replay(e, from, from+n)
	if l.stutter++; seq != l.replayed.Next() {
		l.stutter = 0
	}
	l.replayed = seq
	return true
}

// replayAtomic answers an atomic again with the result it had.
func (l *log) replayAtomic(seq psn.Value) bool {
	e := l.find(seq)
	if e == nil || !e.atomic {
		return false
	}
	l.replay(e, 0, 1)
	return true
}

func (l *log) replay(e *entry, from, to int) {
	if !e.owed() {
		l.owed++
	}
	e.from, e.at, e.to = from, from, to
}

// next is the oldest entry that is owed an answer, or nil.
func (l *log) next() *entry {
	if l.owed == 0 {
		return nil
	}
	for i := range l.n {
		if e := l.at(i); e.owed() {
			return e
		}
	}
	return nil
}

// advance counts one packet of the answer as sent.
func (l *log) advance(e *entry) {
	if e.at++; !e.owed() {
		e.answered = true
		l.owed--
	}
}

// drop leaves a repetition at what it is. The memory may go once the READ was
// answered: the peer has its data, often told so by a message that ends the key
// (SEND with invalidate), and this is an old request that arrives late. A peer
// that did lose the answer asks again until it gives up.
func (l *log) drop(e *entry) {
	e.at = e.to
	l.owed--
}

// clear forgets what is owed.
func (l *log) clear() { l.n, l.owed = 0, 0 }
