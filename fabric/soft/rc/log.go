package rc

import (
	"math/bits"

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
//
// Entries have numbers, counted up as they come; those from tail-n to tail are
// there. None before head is owed an answer.
type log struct {
	ring  []entry // a power of two
	depth int     // how many are kept
	tail  uint32
	n     int
	head  uint32
	owed  int // entries that are owed an answer

	replayed psn.Value // where the last repetition of a READ began
	stutter  int       // repetitions in a row, each a packet behind the last
}

func (l *log) init(depth int) {
	l.depth = depth
	l.ring = make([]entry, 1<<bits.Len(uint(max(depth-1, 0))))
}

// at is the entry of that number.
func (l *log) at(no uint32) *entry { return &l.ring[no&uint32(len(l.ring)-1)] }

func (l *log) oldest() uint32 { return l.tail - uint32(l.n) }

// full says whether the next add will fail: the peer has more outstanding than
// was agreed. It has not when the oldest is a repetition under way: the peer
// would not ask for more if it still wanted that.
func (l *log) full() bool {
	if l.n < l.depth {
		return false
	}
	return l.depth == 0 || l.at(l.oldest()).owed() && !l.at(l.oldest()).answered
}

// add appends an entry that is owed all of its answer.
func (l *log) add(e entry) bool {
	if l.full() {
		return false
	}
	if l.n == l.depth {
		if l.at(l.oldest()).owed() {
			l.owed--
		}
		if l.head == l.oldest() {
			l.head++
		}
		l.n--
	}
	e.from, e.at, e.to = 0, 0, e.count
	*l.at(l.tail) = e
	if l.owed == 0 {
		l.head = l.tail
	}
	l.tail++
	l.n++
	l.owed++
	return true
}

// find is the number of the entry that answers with that sequence number. It is
// false when there is none.
func (l *log) find(seq psn.Value) (no uint32, ok bool) {
	for no = l.tail; no != l.oldest(); {
		no--
		if e := l.at(no); seq.InWindow(e.first, e.count) {
			return no, true
		}
	}
	return 0, false
}

// replayRead answers a part of a READ again. The part must lie in the original
// and begin at the packet that seq names. It is false when there is no such
// READ any more.
func (l *log) replayRead(seq psn.Value, va uint64, rkey, length uint32, mtu int) bool {
	no, ok := l.find(seq)
	e := l.at(no)
	if !ok || e.atomic {
		return false
	}
	from := seq.Diff(e.first)
	off := uint64(from) * uint64(mtu)
	n := wire.Segments(length, mtu)
	if rkey != e.rkey || va != e.va+off || off > uint64(e.length) || uint64(length) > uint64(e.length)-off || n > e.count-from {
		return false
	}
	l.replay(no, from, from+n)
	if l.stutter++; seq != l.replayed.Next() {
		l.stutter = 0
	}
	l.replayed = seq
	return true
}

// replayAtomic answers an atomic again with the result it had.
func (l *log) replayAtomic(seq psn.Value) bool {
	no, ok := l.find(seq)
	if !ok || !l.at(no).atomic {
		return false
	}
	l.replay(no, 0, 1)
	return true
}

func (l *log) replay(no uint32, from, to int) {
	if l.owed == 0 || int32(no-l.head) < 0 {
		l.head = no
	}
	e := l.at(no)
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
	for !l.at(l.head).owed() {
		l.head++
	}
	return l.at(l.head)
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
