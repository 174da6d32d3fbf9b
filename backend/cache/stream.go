package cache

// streams notices sequential readers among the reads of a queue. A read that
// begins where another ended continues its stream. New ones are on probation,
// in turn, so that random reads do not push out a stream that goes on.
type streams struct {
	next   [numStreams]uint64 // where each goes on, 0 if none does
	all    [numStreams]stream
	oldest int // of those on probation
	clock  uint64
}

// stream is a sequential reader.
type stream struct {
	id     uint64 // of this stream alone
	run    uint64 // bytes read in sequence
	barren uint64 // pages looked for since one was found, or known at the door
	ahead  uint64 // bytes from the device's start up to which was read ahead
	used   uint64 // clock of the last read
}

const (
	numStreams  = 8
	established = 4 // those before are established, the others on probation

	// A stream that went so far without a page that anyone had read before is
	// cold: it is a scan, and only every probeEvery-th page is looked for, the
	// same ones for each scan, so that a second one is noticed.
	coldRun    = 256 << 10 // bytes
	coldPages  = 32
	probeEvery = 16 // pages, a power of two
)

// find is the stream that a read at offset continues, or -1.
func (s *streams) find(offset uint64) int {
	for i, next := range s.next {
		if next == offset && next != 0 {
			return i
		}
	}
	return -1
}

// note moves a stream on by a read and returns it with its index.
func (s *streams) note(offset, length uint64) (int, *stream) {
	s.clock++
	i := s.find(offset)
	switch {
	case i < 0:
		i = established + s.oldest
		s.oldest = (s.oldest + 1) % (numStreams - established)
		s.all[i] = stream{id: s.clock}
	case i >= established:
		i = s.establish(i)
	}
	st := &s.all[i]
	st.run, st.used, s.next[i] = st.run+length, s.clock, offset+length
	return i, st
}

// establish puts a stream in the place of the established one that was read
// least lately.
func (s *streams) establish(from int) int {
	to := 0
	for i := range s.all[:established] {
		if s.all[i].used < s.all[to].used {
			to = i
		}
	}
	s.all[to], s.all[from] = s.all[from], stream{}
	s.next[from] = 0
	return to
}

// lives says whether a stream goes on.
func (s *streams) lives(id uint64) bool {
	for i := range s.all {
		if s.all[i].id == id {
			return true
		}
	}
	return false
}

// cold says whether looking for the stream's pages is in vain.
func (s *stream) cold() bool { return s.run >= coldRun && s.barren >= coldPages }

// probes says whether one of n pages is looked for even so.
func probes(first, n uint64) bool { return -first&(probeEvery-1) < n }
