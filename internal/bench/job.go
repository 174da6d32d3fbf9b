package bench

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

// queue is what a job wants of an initiator.Queue.
type queue interface {
	Depth() int
	Submit(ios []initiator.IO) (int, error)
	Reap(done []initiator.Result) (int, error)
	Wait(ctx context.Context) error
}

// Operations, as Stats and Live index them.
const (
	opRead = iota
	opWrite
	opTrim
	opKinds
)

var opcodes = [opKinds]nvme.Opcode{nvme.CmdRead, nvme.CmdWrite, nvme.CmdDatasetManagement}

// Latencies are recorded in nanoseconds to three digits.
const (
	minLatency = 1
	maxLatency = int64(100 * time.Second)
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(minLatency, maxLatency, 3) }

// place is where a slot's I/O goes.
type place struct {
	unit uint64 // counted from the job's first
	gen  uint32 // a write's generation; the one a read wants, 0 for any
	op   uint8
	// check says that a read's data is known.
	check bool
}

// job is a load of one queue. One goroutine owns it; live is read by others.
type job struct {
	// Constant.

	o      *Options
	q      queue
	buf    *initiator.Buffer
	data   []byte // of buf
	first  int64  // offset in bytes of the first unit
	units  uint64
	blocks uint32 // of an I/O
	shift  uint   // of bytes to blocks of the namespace
	ledger *ledger
	depth  int
	ctl    *control

	// The owner's.

	rng      rand.PCG
	next     uint64 // the next unit of a sequential load
	issued   uint64
	phase    phase
	free     []uint32
	starts   []int64 // by slot
	places   []place // by slot
	ios      []initiator.IO
	results  []initiator.Result
	now      int64 // as last read
	begin    int64 // of what is measured
	measured bool
	hist     [opKinds]*hdrhistogram.Histogram // nil for what the mode does not do
	count    [opKinds]uint64                  // I/Os completed
	verified uint64
	unknown  uint64 // reads of places that were not written yet

	// Atomic.

	live [opKinds]atomic.Uint64 // count, as of the last turn
}

// control is what all jobs of a run obey.
type control struct {
	clock   func() int64 // nanoseconds since some instant
	ending  atomic.Bool  // nothing more is to be submitted
	measure atomic.Bool  // the ramp is over
}

func newControl() *control {
	start := time.Now()
	return &control{clock: func() int64 { return int64(time.Since(start)) }}
}

// phase is what a job is doing.
type phase uint8

const (
	phaseRun    phase = iota
	phaseVerify       // reads again all that was written
)

// newJob makes a job for units I/Os from the offset first on.
func newJob(o *Options, ctl *control, q queue, buf *initiator.Buffer, first int64, units uint64, blockSize int) *job {
	depth := min(o.Depth, q.Depth())
	j := &job{
		o: o, q: q, buf: buf, data: buf.Bytes(), first: first, units: units, depth: depth,
		blocks: uint32(o.BlockSize / blockSize), shift: uint(bits.TrailingZeros(uint(blockSize))),
		free: make([]uint32, depth), starts: make([]int64, depth), places: make([]place, depth),
		ios: make([]initiator.IO, 0, depth), results: make([]initiator.Result, depth),
		ctl: ctl, rng: *rand.NewPCG(o.Seed, uint64(first)),
	}
	for i := range j.free {
		j.free[i] = uint32(i)
	}
	for op := range j.hist {
		if o.Mode.does(op) {
			j.hist[op] = newHistogram()
		}
	}
	return j
}

// run works until there is nothing more to do.
func (j *job) run(ctx context.Context) error {
	j.now = j.ctl.clock()
	j.begin, j.measured = j.now, j.ctl.measure.Load()
	for {
		more, err := j.turn(ctx)
		if err != nil || !more {
			return err
		}
	}
}

// turn fills the queue and takes what is done. It is false when nothing is in
// flight and nothing more to come.
func (j *job) turn(ctx context.Context) (bool, error) {
	if !j.ctl.ending.Load() {
		j.fill()
	}
	if err := j.submit(); err != nil {
		return false, err
	}
	n, err := j.q.Reap(j.results)
	if err != nil {
		return false, err
	}
	if n == 0 {
		if j.inFlight() == 0 {
			return false, nil
		}
		return true, j.wait(ctx)
	}
	j.now = j.ctl.clock()
	if !j.measured && j.ctl.measure.Load() {
		j.startMeasuring()
	}
	for i := range j.results[:n] {
		if err := j.done(&j.results[i]); err != nil {
			return false, err
		}
	}
	for op := range j.count {
		j.live[op].Store(j.count[op])
	}
	return true, nil
}

// inFlight is how many I/Os the target has, or wait to be submitted.
func (j *job) inFlight() int { return j.depth - len(j.free) }

// wait sleeps until something is done. A context that has ended means that no
// more is wanted, not that I/Os may be left behind.
func (j *job) wait(ctx context.Context) error {
	err := j.q.Wait(ctx)
	if err != nil && ctx.Err() != nil {
		j.ctl.ending.Store(true)
		return j.q.Wait(context.WithoutCancel(ctx))
	}
	return err
}

// startMeasuring forgets the ramp.
func (j *job) startMeasuring() {
	j.measured, j.begin = true, j.now
	for op, h := range j.hist {
		if h != nil {
			j.hist[op] = newHistogram() // a Reset writes all of it, which thousands of jobs have no memory for
		}
	}
}

// fill makes an I/O for every free slot, as long as there are places.
func (j *job) fill() {
	for len(j.free) > 0 {
		slot := j.free[len(j.free)-1]
		p, ok := j.choose()
		if !ok {
			return
		}
		j.free = j.free[:len(j.free)-1]
		j.places[slot], j.starts[slot] = p, j.now
		off := int(slot) * j.o.BlockSize
		if p.op == opWrite && j.ledger != nil {
			fillData(j.data[off:off+j.o.BlockSize], j.stampOf(p))
		}
		j.ios = append(j.ios, initiator.IO{
			Op: opcodes[p.op], LBA: uint64(j.offset(p.unit)) >> j.shift, Blocks: j.blocks, Buf: j.buf, Offset: off, Tag: uint64(slot),
		})
		j.issued++
	}
}

func (j *job) offset(unit uint64) int64 { return j.first + int64(unit)*int64(j.o.BlockSize) }

func (j *job) stampOf(p place) stamp {
	return stamp{run: j.ledger.run, offset: j.offset(p.unit), gen: p.gen}
}

// submit posts what fill has made; what the queue has no room for waits.
func (j *job) submit() error {
	if len(j.ios) == 0 {
		return nil
	}
	n, err := j.q.Submit(j.ios)
	j.ios = j.ios[:copy(j.ios, j.ios[n:])]
	return err
}

// done takes the outcome of an I/O.
func (j *job) done(r *initiator.Result) error {
	slot := uint32(r.Tag)
	p := j.places[slot]
	j.free = append(j.free, slot)
	if !r.OK() {
		return j.failed(p, r)
	}
	if j.phase == phaseRun {
		_ = j.hist[p.op].RecordValue(min(max(j.now-j.starts[slot], minLatency), maxLatency)) // is within its bounds
	}
	j.count[p.op]++
	if j.ledger == nil {
		return nil
	}
	return j.account(p, j.data[int(slot)*j.o.BlockSize:][:j.o.BlockSize])
}

// account writes down what was written and checks what was read.
func (j *job) account(p place, data []byte) error {
	j.ledger.setBusy(p.unit, false)
	switch {
	case p.op == opWrite:
		j.ledger.gens[p.unit] = p.gen
	case !p.check:
		j.unknown++
	default:
		if err := checkData(data, j.stampOf(p)); err != nil {
			return err
		}
		j.verified++
	}
	return nil
}

// failed is the error of an I/O that failed.
func (j *job) failed(p place, r *initiator.Result) error {
	err := r.Err
	if err == nil {
		err = &nvme.StatusError{Status: r.Status, Opcode: opcodes[p.op], QID: 1}
	}
	return fmt.Errorf("%d bytes at offset %d: %w", j.o.BlockSize, j.offset(p.unit), err)
}

// drain takes what is still in flight after an error, whatever comes of it: the
// buffer is the device's until then.
func (j *job) drain(ctx context.Context) {
	j.ctl.ending.Store(true)
	for {
		n, err := j.q.Reap(j.results)
		if err == nil && n == 0 {
			if err = j.q.Wait(context.WithoutCancel(ctx)); err == nil {
				n, err = j.q.Reap(j.results)
			}
		}
		if n == 0 || err != nil {
			return
		}
	}
}

// again makes the job read all that it has written.
func (j *job) again() {
	j.phase, j.next, j.count = phaseVerify, 0, [opKinds]uint64{}
	for op := range j.live {
		j.live[op].Store(0)
	}
}
