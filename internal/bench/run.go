package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/nvmf-go/nvmf/initiator"
)

// Stats are the I/Os of one kind.
type Stats struct {
	IOs, Bytes uint64
	Latency    *hdrhistogram.Histogram // nanoseconds
}

// Report is the outcome of a run.
type Report struct {
	Options Options // complete
	// Depth is how many I/Os each job had in flight at most: fewer than
	// Options.Depth when the target grants no more.
	Depth   int
	Elapsed time.Duration
	// Ops are reads, writes and trims.
	Ops [opKinds]Stats
	// CPU is what this program used, Target what Options.Process did.
	CPU, Target CPU
	// Verified is how many reads were checked while the load ran, Unknown how
	// many found a place that was not written yet, Reread how many were
	// checked afterwards.
	Verified, Unknown, Reread uint64
	Interrupted               bool
	// PerJob are the I/Os of each job in Elapsed, to see whether all got as
	// much.
	PerJob []uint64
}

// Total are the I/Os of all kinds.
func (r *Report) Total() (ios, bytes uint64) {
	for i := range r.Ops {
		ios += r.Ops[i].IOs
		bytes += r.Ops[i].Bytes
	}
	return ios, bytes
}

// Run loads a namespace. A context that ends ends the load early, which is no
// error; what was in flight is waited for. The report is there even with an
// error of an I/O, as far as it came.
func Run(ctx context.Context, ns *initiator.Namespace, o Options) (*Report, error) {
	return RunOn(ctx, []*initiator.Namespace{ns}, o)
}

// RunOn is Run on several namespaces of one size, or on one through several
// controllers: the jobs take them in turns.
func RunOn(ctx context.Context, list []*initiator.Namespace, o Options) (*Report, error) {
	if len(list) == 0 {
		return nil, badOption("no namespace")
	}
	space := Space{Size: list[0].Size(), BlockSize: list[0].BlockSize(), MaxTransfer: list[0].MaxTransfer()}
	for _, ns := range list {
		if ns.Size() < space.Size || ns.BlockSize() != space.BlockSize || ns.MaxTransfer() < space.MaxTransfer {
			return nil, badOption("namespaces that differ")
		}
	}
	if err := o.complete(space); err != nil {
		return nil, err
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64() | 1
	}
	r := &run{o: &o, ctl: newControl()}
	defer r.close()
	for i := range o.Jobs {
		if err := r.add(ctx, list[i%len(list)], i, space.BlockSize); err != nil {
			return nil, err
		}
	}
	return r.do(ctx)
}

// run is a load while it runs.
type run struct {
	o       *Options
	ctl     *control
	jobs    []*job
	closers []func() error
	last    [opKinds]uint64 // live I/Os at the last tick
	ticked  time.Time
}

// add makes job i.
func (r *run) add(ctx context.Context, ns *initiator.Namespace, i, blockSize int) error {
	q, err := ns.Queue(ctx)
	if err != nil {
		return fmt.Errorf("queue %d of %d: %w", i+1, r.o.Jobs, err)
	}
	r.closers = append(r.closers, q.Close)
	buf, err := initiator.NewBuffer(min(r.o.Depth, q.Depth()) * r.o.BlockSize)
	if err != nil {
		return err
	}
	r.closers = append(r.closers, buf.Close)
	r.addJob(q, buf, i, blockSize)
	return nil
}

// addJob makes job i on a queue, with its part of the range.
func (r *run) addJob(q queue, buf *initiator.Buffer, i, blockSize int) {
	units := uint64(r.o.Size) / uint64(r.o.BlockSize) / uint64(r.o.Jobs)
	first := r.o.Offset + int64(uint64(i)*units)*int64(r.o.BlockSize)
	j := newJob(r.o, r.ctl, q, buf, first, units, blockSize)
	switch {
	case r.o.Verify:
		j.ledger = newLedger(r.o.Seed, int64(units))
	case r.o.Mode.changes():
		for off := 0; off < len(j.data); off += r.o.BlockSize {
			fillData(j.data[off:off+r.o.BlockSize], stamp{run: r.o.Seed, offset: int64(off)})
		}
	}
	r.jobs = append(r.jobs, j)
}

// close gives everything back, queues after what uses their memory.
func (r *run) close() {
	for i := len(r.closers) - 1; i >= 0; i-- {
		_ = r.closers[i]() // nothing is in flight any more
	}
}

// do runs the load, and then the second look at what it has written.
func (r *run) do(ctx context.Context) (*Report, error) {
	meter := newMeter(r.o.Process)
	r.ctl.measure.Store(r.o.Ramp == 0)
	stop := r.watch(schedule{
		phase: "run", ramp: r.o.Ramp, runtime: r.o.Runtime, units: r.units(),
		measured: func() { meter = newMeter(r.o.Process) },
	})
	err := r.all(ctx)
	stop()
	rep := r.report(meter)
	rep.Interrupted = ctx.Err() != nil
	if err != nil || rep.Interrupted || !r.o.Verify || !r.o.Mode.changes() {
		return rep, err
	}
	err = r.readAgain(ctx, rep)
	rep.Interrupted = ctx.Err() != nil
	return rep, err
}

// all runs every job to its end, and returns the first error.
func (r *run) all(ctx context.Context) error {
	errs := make([]error, len(r.jobs))
	var wg sync.WaitGroup
	for i, j := range r.jobs {
		wg.Go(func() {
			if errs[i] = j.run(ctx); errs[i] != nil {
				j.drain(ctx)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// schedule is what happens while the jobs of a phase run.
type schedule struct {
	phase         string
	ramp, runtime time.Duration // a runtime of 0 does not end the phase
	measured      func()        // called when the ramp is over
	units         uint64        // I/Os there are to do when there is no runtime
}

// watch ends the ramp and the phase in time and tells how it goes. The function
// that it returns ends the watching.
func (r *run) watch(s schedule) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	var end, ramp <-chan time.Time
	if s.ramp > 0 {
		ramp = time.After(s.ramp)
	}
	if s.runtime > 0 {
		end = time.After(s.ramp + s.runtime)
	}
	start := time.Now()
	r.ticked, r.last = start, [opKinds]uint64{}
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-ramp:
				s.measured()
				r.ctl.measure.Store(true)
			case <-end:
				r.ctl.ending.Store(true)
			case now := <-tick.C:
				r.tell(&s, now, now.Sub(start))
			}
		}
	}()
	return func() { close(done); <-ended }
}

// tell says how a phase goes.
func (r *run) tell(s *schedule, now time.Time, elapsed time.Duration) {
	if r.o.Live == nil {
		return
	}
	l := Live{Phase: s.phase, Elapsed: elapsed}
	if !r.ctl.measure.Load() {
		l.Phase = "ramp"
	}
	var total uint64
	seconds := now.Sub(r.ticked).Seconds()
	for op := range opKinds {
		var n uint64
		for _, j := range r.jobs {
			n += j.live[op].Load()
		}
		l.IOPS[op] = float64(n-r.last[op]) / seconds
		l.Bandwidth[op] = l.IOPS[op] * float64(r.o.BlockSize)
		r.last[op] = n
		total += n
	}
	r.ticked = now
	if s.runtime > 0 {
		l.Done = min(elapsed.Seconds()/(s.ramp+s.runtime).Seconds(), 1)
	} else {
		l.Done = float64(total) / float64(max(s.units, 1))
	}
	r.o.Live(l)
}

func (r *run) units() (n uint64) {
	for _, j := range r.jobs {
		n += j.units
	}
	return n
}

// report sums up the jobs.
func (r *run) report(m meter) *Report {
	rep := &Report{Options: *r.o, Depth: r.jobs[0].depth}
	rep.CPU, rep.Target = m.used()
	begin, end := r.jobs[0].begin, r.jobs[0].now
	for i := range rep.Ops {
		rep.Ops[i].Latency = newHistogram()
	}
	for _, j := range r.jobs {
		begin, end = min(begin, j.begin), max(end, j.now)
		rep.Depth = min(rep.Depth, j.depth)
		rep.Verified += j.verified
		rep.Unknown += j.unknown
		var ios uint64
		for op, h := range j.hist {
			if h != nil {
				rep.Ops[op].Latency.Merge(h)
				ios += uint64(h.TotalCount())
			}
		}
		rep.PerJob = append(rep.PerJob, ios)
	}
	for i := range rep.Ops {
		rep.Ops[i].IOs = uint64(rep.Ops[i].Latency.TotalCount())
		rep.Ops[i].Bytes = rep.Ops[i].IOs * uint64(r.o.BlockSize)
	}
	rep.Elapsed = time.Duration(end - begin)
	return rep
}

// readAgain reads and checks all that was written.
func (r *run) readAgain(ctx context.Context, rep *Report) error {
	r.ctl.ending.Store(false)
	written := uint64(0)
	for _, j := range r.jobs {
		j.again()
		for _, g := range j.ledger.gens {
			if g != 0 {
				written++
			}
		}
	}
	stop := r.watch(schedule{phase: "verify", units: written})
	err := r.all(ctx)
	stop()
	for _, j := range r.jobs {
		rep.Reread += j.verified
	}
	rep.Reread -= rep.Verified
	return err
}
