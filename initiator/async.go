package initiator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// IO is an I/O for a Queue.
type IO struct {
	// Op is CmdRead, CmdWrite, CmdCompare, CmdWriteZeroes, CmdVerify, CmdFlush
	// or CmdDatasetManagement (which deallocates the range).
	Op     nvme.Opcode
	Flags  Flags
	Blocks uint32 // 1 to what Namespace.MaxTransfer allows; not for Flush
	LBA    uint64
	Buf    *Buffer // of Read, Write and Compare
	Offset int     // of the data in Buf, bytes
	Tag    uint64  // the caller's; the Result has it
}

// Result is the outcome of an IO.
type Result struct {
	Tag    uint64
	Status nvme.Status // of the controller, when Err is nil
	Err    error       // why there is no status: ErrPathLost, net.ErrClosed
}

// OK says whether the I/O succeeded.
func (r *Result) OK() bool { return r.Err == nil && r.Status.OK() }

// Who is using a Queue.
const (
	queueIdle = iota
	queueBusy
)

// Queue is an I/O queue of a controller for one goroutine: asynchronous, without
// copies, allocations or locks. It is taken from those that serve ReadAt and
// the like, and goes back to them with Close.
//
//	for more {
//		n, err := q.Submit(ios) // as many as there is room for, in one post
//		k, err := q.Reap(results)
//		if k == 0 {
//			err = q.Wait(ctx)
//		}
//	}
//
// While nothing is to be done for long, Rest looks after the queue. Ring and
// Watch end either for what else the goroutine has to do.
//
// The Buffer of an I/O is the device's from Submit until its Result was reaped.
// When the controller reconnects, I/O in flight is sent anew or fails, as the
// package comment says; the Queue goes on. Statuses are not retried.
type Queue struct {
	// Constant.

	n      *Namespace
	c      *Controller
	q      *queue
	ranges *Buffer // a range for each slot, for Dataset Management
	timer  *time.Timer

	user   atomic.Int32
	failed atomic.Pointer[error] // what waits for an association fails with this
	rung   atomic.Bool           // the present or the next Wait or Rest is to end

	// The user's: the caller's in a method, else the manager's for a moment.

	doubts   []uint16 // sent once; not to be sent again before their time
	polls    uint
	spin     fabric.Spin
	ctx      context.Context // whose end wakes the queue
	unheed   func() bool     // ends that
	watched  int             // the descriptor of Watch
	stand    func()          // stands in for the kernel; nil: nothing is watched
	closed   bool            // takes no more
	returned bool            // q is an engine's again
}

// Queue takes an I/O queue of the namespace's controller for the caller alone.
// It waits until the I/O that is on it has ended. The error matches ErrNoQueue
// when none is left, ErrNotSupported for the namespace of a Multipath.
func (n *Namespace) Queue(ctx context.Context) (*Queue, error) {
	if n.shared {
		return nil, fmt.Errorf("a queue of its own over several paths: %w", ErrNotSupported)
	}
	if err := n.check(); err != nil {
		return nil, err
	}
	ranges, err := newPlainBuffer(n.c.cfg.QueueDepth * nvme.DSMRangeSize)
	if err != nil {
		return nil, err
	}
	p := &Queue{n: n, c: n.c, ranges: ranges, timer: time.NewTimer(math.MaxInt64), spin: fabric.NewSpin(n.c.cfg.Spin)}
	p.user.Store(queueBusy) // until the engine has ended
	e, err := n.c.take(p)
	if err != nil {
		return nil, errors.Join(err, ranges.Close())
	}
	e.stop()
	select {
	case <-e.ended:
		p.own()
		return p, nil
	case <-ctx.Done():
		go func() { // it is ours, only too late
			<-e.ended
			p.own()
			_ = p.Close() // nothing is in it
		}()
		return nil, ctxError(ctx)
	}
}

// own makes the queue the caller's, after its engine has ended.
func (p *Queue) own() {
	p.doubts = make([]uint16, 0, len(p.q.slots))
	p.q.orphan = p.orphan
	p.leave()
}

// take gives p the last queue that has an engine, and returns the engine, which
// is to be stopped.
func (c *Controller) take(p *Queue) (*engine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	for i := min(len(c.ioEngines), c.latest().ioQueues) - 1; i >= 0; i-- {
		if e := c.ioEngines[i]; e != nil {
			p.q = e.q
			c.ioEngines[i], c.taken[i] = nil, p
			c.publishLocked()
			return e, nil
		}
	}
	return nil, ErrNoQueue
}

// giveBack has an engine serve q again. When the controller is being closed the
// queue stays where it is, for the manager to sweep.
func (c *Controller) giveBack(q *queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		q.w.Close()
		return
	}
	c.taken[q.qid-1] = nil
	c.ioEngines[q.qid-1] = newEngine(c, q)
	c.publishLocked()
}

func (c *Controller) takenQueues() (list []*Queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.taken {
		if p != nil {
			list = append(list, p)
		}
	}
	return list
}

// failQueues fails what waits in Queues for an association.
func (c *Controller) failQueues(err error) {
	for _, p := range c.takenQueues() {
		p.fail(err)
	}
}

// fail fails what waits for an association, until there is one.
func (p *Queue) fail(err error) {
	p.failed.Store(&err)
	p.trySweep()
	p.q.w.Wake()
}

// enter makes the caller the user.
func (p *Queue) enter() {
	for !p.user.CompareAndSwap(queueIdle, queueBusy) {
		runtime.Gosched() // the manager is sweeping
	}
}

func (p *Queue) leave() { p.user.Store(queueIdle) }

// trySweep does what the loss of an association asks for, unless a method is
// running, which will do so itself.
func (p *Queue) trySweep() {
	if p.user.CompareAndSwap(queueIdle, queueBusy) {
		if p.q.needsCheck() || p.failed.Load() != nil {
			p.check()
		}
		p.leave()
	}
}

// check follows the fate of the association.
func (p *Queue) check() {
	q := p.q
	q.check()
	err := p.failed.Load()
	switch {
	case err == nil:
	case q.qc != nil:
		p.failed.Store(nil)
	default:
		for q.pending.len() > 0 {
			q.abort(q.pending.pop(), *err)
		}
		for _, i := range p.doubts {
			q.abort(i, *err)
		}
		p.doubts = p.doubts[:0]
	}
}

// orphan keeps a command that a lost association took with it.
func (p *Queue) orphan(i uint16, a *association) {
	s := &p.q.slots[i]
	if !s.changes {
		p.q.pending.push(i)
		return
	}
	s.until = a.quietAt()
	p.doubts = append(p.doubts, i)
}

// release makes the commands ready whose time has come.
func (p *Queue) release(now int64) {
	kept := p.doubts[:0]
	for _, i := range p.doubts {
		if p.q.slots[i].until <= now {
			p.q.pending.push(i)
		} else {
			kept = append(kept, i)
		}
	}
	p.doubts = kept
}

// Depth is the number of I/Os that can be in flight.
func (p *Queue) Depth() int { return min(int(p.q.depth.Load()), len(p.q.slots)) }

// Submit sends I/Os, in one post, and returns how many it took: fewer than all
// without an error when the queue is full. An error is of the I/O behind the
// last that was taken. Over a software RNIC they leave in the next Reap, Wait or
// Rest, many in two parts.
func (p *Queue) Submit(ios []IO) (n int, err error) {
	p.enter()
	defer p.leave()
	if p.closed {
		return 0, errClosed
	}
	q := p.q
	p.check()
	for ; n < len(ios); n++ {
		s, i := q.alloc()
		if s == nil {
			break
		}
		if err = p.fill(s, i, &ios[n]); err != nil {
			q.release(i)
			break
		}
		q.enqueue(i)
	}
	if q.qc != nil {
		q.flush(monotonic())
	} else {
		p.check() // may have to fail
	}
	return n, err
}

// fill makes slot i the command of io.
func (p *Queue) fill(s *slot, i uint16, io *IO) error {
	info := p.n.info.Load()
	s.tag, s.timeout, s.buf, s.changes = io.Tag, int64(p.c.cfg.IOTimeout), nil, false
	cmd := nvme.Command(s.sqe[:])
	most := info.transfer
	switch io.Op {
	case nvme.CmdFlush:
		cmd.Init(nvme.CmdFlush, p.n.nsid)
		return p.n.check()
	case nvme.CmdRead, nvme.CmdCompare, nvme.CmdWrite:
		s.changes = io.Op == nvme.CmdWrite
		s.buf, s.off, s.n = io.Buf, io.Offset, int(io.Blocks)*info.block
		if io.Buf == nil || s.off < 0 || s.off > io.Buf.Len() || s.n > io.Buf.Len()-s.off {
			return errBuffer(io)
		}
	case nvme.CmdWriteZeroes:
		s.changes, most = true, info.zeroes
	case nvme.CmdVerify:
		most = info.verify
	case nvme.CmdDatasetManagement:
		s.changes, most = true, info.discard
		s.buf, s.off, s.n = p.ranges, int(i)*nvme.DSMRangeSize, nvme.DSMRangeSize
		nvme.DSMRanges(p.ranges.Bytes()[s.off:]).Set(0, nvme.DSMRange{SLBA: io.LBA, Blocks: io.Blocks})
		cmd.DSM().Init(p.n.nsid, 1, nvme.DSMDeallocate)
	default:
		return fmt.Errorf("%s: %w by Queue", nvme.OpcodeName(io.Op, false), ErrNotSupported)
	}
	if io.Blocks == 0 || uint64(io.Blocks) > most {
		return fmt.Errorf("%s of %d blocks: %w: 1 to %d", nvme.OpcodeName(io.Op, false), io.Blocks, ErrTooLarge, most)
	}
	if io.Op != nvme.CmdDatasetManagement {
		cmd.InitIO(io.Op, p.n.nsid, io.LBA, io.Blocks, io.Flags.dword())
	}
	return p.n.check()
}

func errBuffer(io *IO) error {
	if io.Buf == nil {
		return fmt.Errorf("%s: no buffer", nvme.OpcodeName(io.Op, false))
	}
	return fmt.Errorf("%s: %d blocks at %d of a buffer of %d bytes", nvme.OpcodeName(io.Op, false), io.Blocks, io.Offset, io.Buf.Len())
}

// turn takes what has arrived and sends what can be sent.
func (p *Queue) turn() {
	q := p.q
	p.check()
	if len(p.doubts) > 0 {
		p.release(monotonic())
	}
	// A provider in software sends in Poll, and sleeps with what was posted since:
	// each flush has a poll behind it.
	n := 0
	for again := true; again; {
		more := q.pending.len() > 0 && q.flush(monotonic())
		n = q.poll()
		again = more || n > 0 && q.pending.len() > 0
	}
	// The clock is not free: it is read when there is nothing else to do, and
	// now and then.
	if p.polls++; n == 0 || p.polls%64 == 0 {
		q.expire(monotonic())
	}
}

// Reap takes the results that are there, up to len(done), and never blocks. The
// error matches net.ErrClosed when the queue is closed and no result is left.
func (p *Queue) Reap(done []Result) (n int, err error) {
	p.enter()
	defer p.leave()
	q := p.q
	if p.returned {
		return 0, errClosed
	}
	if q.finished.len() < len(done) {
		p.turn()
	}
	for n < len(done) && q.finished.len() > 0 {
		i := q.finished.pop()
		s := &q.slots[i]
		done[n] = Result{Tag: s.tag, Status: s.status, Err: s.err}
		q.release(i)
		n++
	}
	if n == 0 && p.closed {
		return 0, errClosed
	}
	return n, nil
}

// Close waits until nothing is in flight, drops the results, and gives the queue
// back. Closing twice is nil.
func (p *Queue) Close() error {
	var done [64]Result
	for {
		n, err := p.Reap(done[:])
		if err != nil {
			break
		}
		if n > 0 {
			continue
		}
		if p.drained() {
			break
		}
		if err := p.Wait(context.Background()); err != nil {
			return err
		}
	}
	p.enter()
	defer p.leave()
	if p.returned {
		return nil
	}
	p.closed, p.returned = true, true
	p.timer.Stop()
	p.heed(context.Background())
	p.unwatch()
	p.c.giveBack(p.q)
	return p.ranges.Close()
}

func (p *Queue) drained() bool {
	p.enter()
	defer p.leave()
	return p.q.idle()
}

// shut ends the queue for its controller: what is in it fails.
func (p *Queue) shut(err error) {
	p.enter()
	defer p.leave()
	p.failed.Store(&err)
	p.check()
	p.closed = true
	p.q.w.Wake()
}
