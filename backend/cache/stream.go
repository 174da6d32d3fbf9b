package cache

// streams notices sequential readers among the reads of a queue. A read that
// begins where another ended continues its stream. New ones are on probation,
// in turn, so that random reads do not push out a stream that goes on.
type streams struct {
	next   [numStreams]uint64 // where each goes on, nowhere if none does
	all    [numStreams]stream
	lane   lane
	oldest int // of those on probation
	clock  uint64
}

// stream is a sequential reader.
type stream struct {
	id     uint64 // of this stream alone
	run    uint64 // bytes read in sequence
	barren uint64 // pages looked for in vain, see found and unknown
	ahead  uint64 // bytes from the device's start up to which was read ahead
	used   uint64 // clock of the last read
}

const (
	numStreams  = 8
	established = 4 // those before are established, the others on probation

	// A stream that went so far and met hardly a page that anyone had read
	// before is cold: it is a scan, and only every probeEvery-th page is looked
	// for, the same ones for each scan, so that a second one is noticed.
	coldRun    = 1 << 20 // bytes
	coldPages  = 256     // not fewer than probeEvery, so that nothing of a known run is left out
	probeEvery = 256     // a power of two

	foundWeighs = 64 // a page found makes up for so many that were not

	nowhere = 1<<64 - 1 // no operation begins there
)

// lane is where a cold stream goes on, so that its reads pass with a look at
// nothing else. Reads are offered to Lend before they are submitted, several
// before the first of them is: Lend has its own place in the stream.
type lane struct {
	stream       int
	submit, lend place
}

// place is how far a lane has come, and the page it is to look for next, in
// bytes from the device's start.
type place struct{ next, until uint64 }

// passes says that a read goes on here and is not to be looked for, and moves
// on.
func (p *place) passes(offset, length uint64) bool {
	if offset != p.next || length > p.until-offset {
		return false
	}
	p.next += length
	return true
}

// after is the place after a page that was looked for in vain.
func after(next uint64, pageShift uint) place {
	probe := (next>>pageShift + probeEvery) &^ (probeEvery - 1)
	return place{next, probe << pageShift}
}

// open has a cold stream go on in the lane up to the next probe. Lend goes on
// where it is, if that is some reads further on.
func (s *streams) open(i int, pageShift uint) {
	s.lane.stream, s.lane.submit = i, after(s.next[i], pageShift)
	if s.lane.lend.next-s.next[i] > coldRun {
		s.lane.lend = s.lane.submit
	}
}

// leave takes over how far the lane has gone.
func (s *streams) leave() {
	if s.lane.submit.next == nowhere {
		return
	}
	i := s.lane.stream
	s.all[i].run += s.lane.submit.next - s.next[i]
	s.next[i] = s.lane.submit.next
}

// close ends the lane if it is of stream i.
func (s *streams) close(i int) {
	if s.lane.stream == i {
		s.lane.submit, s.lane.lend = place{next: nowhere}, place{next: nowhere}
	}
}

func newStreams() (s streams) {
	for i := range s.next {
		s.next[i] = nowhere
	}
	s.close(0)
	return s
}

// find is the stream that a read at offset continues, or -1.
func (s *streams) find(offset uint64) int {
	for i, next := range s.next {
		if next == offset {
			return i
		}
	}
	return -1
}

// note moves a stream, found for its offset, on by a read, and returns it with
// its index.
func (s *streams) note(i int, offset, length uint64) (int, *stream) {
	s.clock++
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
	s.close(to)
	s.all[to], s.all[from] = s.all[from], stream{}
	s.next[from] = nowhere
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

// found notes a read from memory.
func (s *stream) found() { s.barren -= min(s.barren, foundWeighs) }

// unknown notes a page that nobody has read of late.
func (s *stream) unknown() { s.barren = min(s.barren+1, coldPages) }

// known notes a page that is not in memory, but was read not long ago: this
// may be a scan that comes again.
func (s *stream) known() { s.barren = 0 }

// cold says whether looking for the stream's pages is in vain.
func (s *stream) cold() bool { return s.run >= coldRun && s.barren >= coldPages }

// probes says whether one of n pages is looked for even so.
func probes(first, n uint64) bool { return -first&(probeEvery-1) < n }
