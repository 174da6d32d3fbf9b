package initiator

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// A CID is the slot of the command and a generation, so that a late or doubled
// answer is told from one that is awaited.
const (
	slotBits = 12
	slotMask = 1<<slotBits - 1
)

// slotState is where a command is.
//
//	free -> ready -> sent -> answered -> done -> free
//	          ^        |        \___________^
//	          |________| the association was lost
//
// Ready: waits to be sent. Answered: the response is there, and the device may
// still have to do with the command's memory: the SEND that carried it is not
// known to be complete, or its key is being ended. Done: the outcome waits to be
// taken.
type slotState uint8

const (
	slotFree slotState = iota
	slotReady
	slotSent
	slotAnswered
	slotDone
)

// slot is a place for a command in flight.
type slot struct {
	sqe      [nvme.SQESize]byte // CID, address and key are filled in when it is sent
	req      *request           // of an engine
	buf      *Buffer            // nil: no data
	tag      uint64             // of a Queue
	result   uint64
	err      error // why there is no status
	off, n   int   // the data in buf
	timeout  int64 // ns
	deadline int64 // when sent
	until    int64 // not to be sent before
	need     uint32
	key      uint32 // of the slot's window
	status   nvme.Status
	state    slotState
	gen      uint8
	windowed bool // key is bound and not known to be ended
	changes  bool // the command changes data
}

// queue is an NVMe queue: its commands, which outlive the RDMA connections that
// carry them. An engine or a Queue owns it.
type queue struct {
	// Constant.

	ctrl *Controller
	qid  uint16
	w    *fabric.Waker

	// From the builder of associations to the owner.

	next atomic.Pointer[qconn]

	// For anybody to read.

	completions atomic.Uint64 // commands answered
	depth       atomic.Int32  // commands in flight that the connection allows

	// Owner.

	qc       *qconn // nil while not connected
	slots    []slot
	free     []uint16
	pending  fifo // ready
	answered []uint16
	finished fifo  // done
	inflight int   // sent
	unpolled int   // of them: since the last poll
	earliest int64 // no sent command's deadline is before it
	batch    []uint16
	// orphan is told of each command that a lost association took with it.
	orphan func(i uint16, a *association)
}

// fifo is a ring of slots.
type fifo struct {
	ring       []uint16
	head, tail uint32
}

func (f *fifo) len() int      { return int(f.tail - f.head) }
func (f *fifo) push(i uint16) { f.ring[f.tail%uint32(len(f.ring))] = i; f.tail++ }
func (f *fifo) peek() uint16  { return f.ring[f.head%uint32(len(f.ring))] }
func (f *fifo) pop() uint16   { i := f.peek(); f.head++; return i }

// epoch is what times on the data path count from.
var epoch = time.Now()

// monotonic is the time in nanoseconds since epoch.
func monotonic() int64 { return int64(time.Since(epoch)) }

func newQueue(c *Controller, qid uint16, depth int) *queue {
	ring := 1
	for ring < depth {
		ring *= 2 // so that free-running positions may wrap
	}
	q := &queue{ctrl: c, qid: qid, w: fabric.NewWaker(), earliest: math.MaxInt64, slots: make([]slot, depth)}
	q.free = make([]uint16, 0, depth)
	for i := depth - 1; i >= 0; i-- {
		q.free = append(q.free, uint16(i))
	}
	q.pending.ring, q.finished.ring = make([]uint16, ring), make([]uint16, ring)
	q.answered, q.batch = make([]uint16, 0, depth), make([]uint16, 0, depth)
	return q
}

// alloc takes a free slot; nil when there is none.
func (q *queue) alloc() (*slot, uint16) {
	if len(q.free) == 0 {
		return nil, 0
	}
	i := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	return &q.slots[i], i
}

// enqueue makes a filled slot ready.
func (q *queue) enqueue(i uint16) {
	s := &q.slots[i]
	s.state, s.err, s.until = slotReady, nil, 0
	q.pending.push(i)
}

// release frees a slot whose outcome was taken.
func (q *queue) release(i uint16) {
	s := &q.slots[i]
	s.state, s.buf, s.req, s.err = slotFree, nil, nil, nil
	q.free = append(q.free, i)
}

// settle makes the slot's outcome ready to be taken.
func (q *queue) settle(i uint16) {
	q.slots[i].state = slotDone
	q.finished.push(i)
}

// abort ends a slot that is not sent, with err.
func (q *queue) abort(i uint16, err error) {
	q.slots[i].err = err
	q.settle(i)
}

// idle says whether no command is anywhere in the queue.
func (q *queue) idle() bool { return len(q.free) == len(q.slots) }

// check follows the fate of the association: it leaves one that is lost and
// takes up a new one.
func (q *queue) check() {
	if q.qc != nil && q.qc.ended() {
		q.lose()
	}
	if q.qc == nil && q.next.Load() != nil {
		if qc := q.next.Swap(nil); qc != nil {
			q.adopt(qc)
		}
	}
}

// adopt takes over a connection.
func (q *queue) adopt(qc *qconn) {
	q.qc = qc
	qc.w.Store(q.w)
}

// lose takes the answers that came before the end, destroys the connection, and
// gives what is left to orphan.
func (q *queue) lose() {
	qc := q.qc
	qc.disconnect()
	if qc.assoc.trusted() {
		for range len(q.slots) {
			if qc.poll(q) == 0 {
				break
			}
		}
	}
	qc.close()
	q.qc, q.inflight, q.unpolled, q.earliest = nil, 0, 0, math.MaxInt64
	for _, i := range q.answered {
		q.settle(i) // nothing can reach its memory any more
	}
	q.answered = q.answered[:0]
	for i := range q.slots {
		if s := &q.slots[i]; s.state == slotSent {
			if s.windowed {
				qc.assoc.keyed.Store(true)
			}
			s.state, s.windowed = slotReady, false
			q.orphan(uint16(i), qc.assoc)
		}
	}
}

// leastPart is as many commands as are always sent together: less is not worth
// a system call at each end.
const leastPart = 8

// part is how many commands may be sent between two polls. Where the device
// sends in the poll it is half of those that will be in flight: were they all
// sent at once the target would answer them at once, and one end would always
// wait for the other. Host and target fall into that step at any hiccup, and
// this gets them out of it.
func (q *queue) part() int {
	if !q.qc.inPoll {
		return math.MaxInt
	}
	return max(leastPart, (min(q.inflight+q.pending.len(), q.qc.depth)+1)/2)
}

// flush sends what is ready, as far as there is room. It is true when more can be
// sent, after a poll.
func (q *queue) flush(now int64) (more bool) {
	qc := q.qc
	if qc == nil || q.pending.len() == 0 {
		return false
	}
	q.batch = q.batch[:0]
	part := q.part() - q.unpolled
	for q.pending.len() > 0 && q.inflight+len(q.batch) < qc.depth && qc.room(3*(len(q.batch)+1)+q.inflight) {
		if more = len(q.batch) >= part; more {
			break
		}
		if i := q.pending.pop(); q.prepare(i) {
			q.batch = append(q.batch, i)
		}
		if qc.ended() {
			break
		}
	}
	signal := false
	for _, i := range q.batch {
		s := &q.slots[i]
		s.state, s.deadline, s.need = slotSent, now+s.timeout, qc.done
		q.earliest = min(q.earliest, s.deadline)
		data := q.inCapsule(s)
		if data.Length > 0 {
			signal = true
			s.need = qc.next() + 1
		}
		qc.gather(int(i), data)
	}
	q.inflight += len(q.batch)
	q.unpolled += len(q.batch)
	if err := qc.flush(signal); err != nil {
		qc.assoc.fail(err)
	}
	return more
}

// prepare makes the SQE of slot i as it is to be sent on this connection. It is
// false when the command ends here.
func (q *queue) prepare(i uint16) bool {
	qc, s := q.qc, &q.slots[i]
	sqe := qc.sqe(int(i))
	copy(sqe, s.sqe[:])
	s.gen++
	sqe.SetCID(cidOf(i, s.gen))
	if s.buf == nil {
		return true
	}
	r, err := s.buf.register(qc.dom)
	if err != nil {
		q.abort(i, fmt.Errorf("register the buffer: %w", err))
		return false
	}
	if q.fitsCapsule(s) {
		sqe.SGL1().SetInCapsule(0, uint32(s.n))
		return true
	}
	addr := s.buf.addr() + uint64(s.off)
	if qc.windows == nil || s.buf.plain {
		sqe.SGL1().SetKeyed(addr, uint32(s.n), r.rkey, nvme.SGLAddress)
		return true
	}
	key, err := qc.bind(int(i), r, s.off, s.n, windowAccess(sqe.Opcode()))
	if err != nil {
		qc.assoc.fail(fmt.Errorf("queue %d: %w", q.qid, err))
		q.pending.push(i) // it was not sent
		return false
	}
	s.key, s.windowed = key, true
	sqe.SGL1().SetKeyed(addr, uint32(s.n), key, nvme.SGLInvalidate)
	return true
}

func cidOf(i uint16, gen uint8) uint16 { return i | uint16(gen)<<slotBits }

// windowAccess is what the target may do with the data of a command.
func windowAccess(o nvme.Opcode) (a fabric.Access) {
	d := o.Direction()
	if d&nvme.DataToController != 0 {
		a |= fabric.AccessRemoteRead
	}
	if d&nvme.DataToHost != 0 {
		a |= fabric.AccessRemoteWrite
	}
	return a
}

// fitsCapsule says whether the data of a command goes in its capsule.
func (q *queue) fitsCapsule(s *slot) bool {
	return s.n <= q.qc.assoc.inCapsule && q.qid != 0 && nvme.Command(s.sqe[:]).Opcode().Direction() == nvme.DataToController
}

// inCapsule is the data of a slot that goes in its capsule, of length 0 when it
// does not.
func (q *queue) inCapsule(s *slot) fabric.SGE {
	if s.buf == nil || !q.fitsCapsule(s) {
		return fabric.SGE{}
	}
	return fabric.SGE{Addr: s.buf.addr() + uint64(s.off), Length: uint32(s.n), LKey: s.buf.region(q.qc.dom).lkey}
}

// poll takes what has arrived. It returns how many completions there were.
func (q *queue) poll() int {
	qc := q.qc
	if qc == nil {
		return 0
	}
	n := qc.poll(q)
	q.unpolled = 0
	if len(qc.wrs) > 0 {
		if err := qc.flush(true); err != nil {
			qc.assoc.fail(err)
		}
	}
	if len(q.answered) > 0 {
		q.settleAnswered()
	}
	return n
}

// answer takes a response (answerer).
func (q *queue) answer(cqe nvme.Completion, wc *fabric.Completion) {
	qc, cid := q.qc, cqe.CID()
	i := cid & slotMask
	if int(i) >= len(q.slots) || q.slots[i].state != slotSent || cidOf(i, q.slots[i].gen) != cid {
		qc.violated("a response to command %#x, which is not in flight", cid)
		return
	}
	s := &q.slots[i]
	s.status, s.result = cqe.Status(), cqe.Result()
	if s.windowed && !q.ctrl.keysWork.Load() {
		q.ctrl.keysWork.Store(true)
	}
	switch {
	case wc.Flags&fabric.CompletionInvalidated != 0:
		if !s.windowed || wc.Imm != s.key {
			qc.violated("the response to command %#x ends key %#x, which is not its own", cid, wc.Imm)
			return
		}
		s.windowed = false
	case s.windowed: // the target did not end the key: we do
		s.windowed = false
		qc.gatherInvalidate(s.key)
		s.need = qc.next()
	}
	q.inflight--
	q.completions.Add(1)
	if int32(s.need-qc.done) > 0 {
		s.state = slotAnswered
		q.answered = append(q.answered, i)
		return
	}
	q.settle(i)
}

// settleAnswered ends the slots whose memory the device is done with.
func (q *queue) settleAnswered() {
	kept := q.answered[:0]
	for _, i := range q.answered {
		if int32(q.slots[i].need-q.qc.done) > 0 {
			kept = append(kept, i)
		} else {
			q.settle(i)
		}
	}
	q.answered = kept
}

// expire ends the association when a command was not answered in time.
func (q *queue) expire(now int64) {
	if now < q.earliest || q.qc == nil {
		return
	}
	q.earliest = math.MaxInt64
	for i := range q.slots {
		s := &q.slots[i]
		if s.state != slotSent {
			continue
		}
		if now >= s.deadline {
			cmd := nvme.Command(s.sqe[:])
			q.qc.assoc.fail(fmt.Errorf("queue %d: %s (command %#x): %w: %v have passed", q.qid,
				nvme.OpcodeName(cmd.Opcode(), q.qid == 0), cidOf(uint16(i), s.gen), q.late(cmd), time.Duration(s.timeout)))
			return
		}
		q.earliest = min(q.earliest, s.deadline)
	}
}

// late is the error of a command that was not answered.
func (q *queue) late(cmd nvme.Command) error {
	if q.qid == 0 && cmd.Opcode() == nvme.AdminKeepAlive {
		return ErrKeepAlive
	}
	return ErrTimeout
}
