package fabrictest

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// StreamEnd is an end of a connection that a Stream goes over. Its completion
// queue is for both kinds of completion.
type StreamEnd struct {
	QP  fabric.QueuePair
	Mem *fabric.Memory // streamMemory bytes at least
	MR  fabric.MemoryRegion
	// Wait takes completions, none of them failed; it may sleep. Wake ends that.
	Wait func() []fabric.Completion
	Wake func()
}

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
	b     testing.TB
	x, y  StreamEnd
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
// which are outstanding: OpWrite, OpRead or OpSend. Close ends it.
func NewStream(b testing.TB, x, y StreamEnd, op fabric.Opcode, size, depth int) *Stream {
	s := &Stream{b: b, x: x, y: y, op: op, size: size, depth: depth, done: make(chan struct{})}
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
	sge := []fabric.SGE{{Addr: s.y.Mem.Addr(), Length: uint32(s.size), LKey: s.y.MR.LKey()}}
	for owed := streamRecvs; !s.stop.Load(); {
		for owed > 32 && s.op == fabric.OpSend {
			n, err := s.y.QP.PostRecv(recvs[:min(owed, len(recvs))], sge)
			if err != nil {
				s.b.Error(err)
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
		off := uint64(s.off)
		s.sges[i] = fabric.SGE{Addr: s.x.Mem.Addr() + off, Length: uint32(s.size), LKey: s.x.MR.LKey()}
		s.wrs[i] = fabric.SendWR{Op: op, NumSGE: 1, FirstSGE: uint32(i), Flags: fabric.FlagSignaled, RemoteAddr: s.y.Mem.Addr() + off, RKey: s.y.MR.RKey()}
	}
	k, err := s.x.QP.PostSend(s.wrs[:n], s.sges)
	if err != nil {
		s.b.Fatal(err)
	}
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
