package fabrictest

import (
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// streamMemory is how much of the memory of each end a stream goes round in:
// more than the processor keeps near.
const streamMemory = 4 << 20

const (
	streamRecvs = 200 // receives of the end that is sent to
	streamAhead = 128 // SENDs that are on the way at most; a device may have no RNR
)

// Stream is operations of one kind and size from one end of a connection to the
// other, for benchmarks.
type Stream struct {
	x, y  *End
	op    fabric.Opcode
	size  int
	depth int
	sent  int // SENDs, as took counts them
	off   int
	wrs   []fabric.SendWR
	sges  []fabric.SGE
	took  atomic.Int64 // SENDs that y has received
	stop  atomic.Bool
	done  chan struct{}
}

// NewStream begins a stream of operations of size bytes from x to y, depth of
// which are outstanding: OpWrite, OpRead or OpSend. Each end has 4 MiB of memory
// at least. Close ends it.
func NewStream(x, y *End, op fabric.Opcode, size, depth int) *Stream {
	s := &Stream{x: x, y: y, op: op, size: size, depth: depth, done: make(chan struct{})}
	s.wrs, s.sges = make([]fabric.SendWR, depth), make([]fabric.SGE, depth)
	go s.serve()
	return s
}

// serve is the end of y: it posts receives and polls.
func (s *Stream) serve() {
	defer close(s.done)
	recvs := make([]fabric.RecvWR, 64)
	for i := range recvs {
		recvs[i].NumSGE = 1
	}
	sge := []fabric.SGE{s.y.SGE(0, s.size)}
	for owed := streamRecvs; !s.stop.Load(); {
		for owed > 32 && s.op == fabric.OpSend {
			n, err := s.y.QP.PostRecv(recvs[:min(owed, len(recvs))], sge)
			if err != nil {
				s.y.Error(err)
				return
			}
			owed -= n
		}
		for _, c := range s.y.Wait() {
			if c.Op == fabric.OpRecv {
				owed++
				s.took.Add(1)
			}
		}
	}
}

// Run does n operations and returns when all that was sent has come.
func (s *Stream) Run(n int) {
	posted, completed := 0, 0
	for completed < n {
		free := s.depth - (posted - completed)
		k := min(free, n-posted)
		if s.op == fabric.OpSend { // over iWARP it completes before there is a receive for it
			k = min(k, streamAhead-(s.sent-int(s.took.Load())))
		}
		if k > 0 && (free >= s.depth/4 || posted == completed) {
			posted += s.post(s.op, k)
		}
		if posted == completed { // nothing will wake us: the receives are awaited
			time.Sleep(time.Microsecond)
			continue
		}
		completed += len(s.x.Wait())
	}
	for posted += s.post(fabric.OpRead, 1); completed < posted; {
		completed += len(s.x.Wait())
	}
}

// post posts n operations, each at the next place of the memories.
func (s *Stream) post(op fabric.Opcode, n int) int {
	for i := range n {
		if s.off += s.size; s.off+s.size > streamMemory {
			s.off = 0
		}
		s.sges[i] = s.x.SGE(s.off, s.size)
		s.wrs[i] = fabric.SendWR{Op: op, NumSGE: 1, FirstSGE: uint32(i), Flags: fabric.FlagSignaled, RemoteAddr: s.y.Mem.Addr() + uint64(s.off), RKey: s.y.MR.RKey()}
	}
	k, err := s.x.QP.PostSend(s.wrs[:n], s.sges)
	s.x.Must(err)
	if op == fabric.OpSend {
		s.sent += k
	}
	return k
}

// Close ends the stream; the connection stays.
func (s *Stream) Close() {
	s.stop.Store(true)
	s.y.Wake()
	<-s.done
}
