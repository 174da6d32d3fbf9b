package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

// One pass touches every place once, whatever the mode, depth and jobs.
func TestOnePass(t *testing.T) {
	for _, jobs := range []int{1, 3} {
		for _, mode := range []Mode{Read, Write, Trim} {
			o := Options{Mode: mode, Depth: 5, Jobs: jobs}
			l := newLoad(t, o, 300<<10, nil)
			seen := map[uint64]int{}
			for _, d := range l.disks {
				d.before = func(_ *disk, io *initiator.IO) (nvme.Status, bool) {
					seen[io.LBA]++
					if io.Op != opcodes[map[Mode]int{Read: opRead, Write: opWrite, Trim: opTrim}[mode]] || io.Blocks != 8 {
						t.Errorf("%v: %+v", mode, io)
					}
					return 0, true
				}
				if d.most > 5 {
					t.Errorf("%d I/Os in flight", d.most)
				}
			}
			if jobs > 1 { // the map has one owner
				for _, j := range l.run.jobs {
					if err := j.run(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if got := l.run.report(meter{}); got.Ops[map[Mode]int{Read: opRead, Write: opWrite, Trim: opTrim}[mode]].IOs != 75 {
					t.Errorf("%v: %+v", mode, got)
				}
			} else if ios, bytes := l.do().Total(); ios != 75 || bytes != 300<<10 {
				t.Errorf("%v: %d I/Os, %d bytes", mode, ios, bytes)
			}
			if len(seen) != 75 {
				t.Errorf("%v, %d jobs: %d places", mode, jobs, len(seen))
			}
			for lba, n := range seen {
				if n != 1 || lba%8 != 0 {
					t.Errorf("%v: LBA %d %d times", mode, lba, n)
				}
			}
		}
	}
}

func TestRange(t *testing.T) {
	l := newLoad(t, Options{Mode: RandWrite, Depth: 4, Offset: 64 << 10, Size: 32 << 10}, 256<<10, nil)
	l.do()
	for i, b := range l.disks[0].data {
		if in := i >= 64<<10 && i < 96<<10; !in && b != 0 {
			t.Fatalf("byte %d was written", i)
		}
	}
}

// Shares of a mixed load, and that random means all places.
func TestMix(t *testing.T) {
	l := newLoad(t, Options{Mode: RandRW, Depth: 8, ReadPercent: 70, BlockSize: 512}, 4<<20, nil)
	touched := map[uint64]bool{}
	l.disks[0].before = func(_ *disk, io *initiator.IO) (nvme.Status, bool) { touched[io.LBA] = true; return 0, true }
	l.do()
	d := l.disks[0]
	reads, all := d.count[nvme.CmdRead], d.count[nvme.CmdRead]+d.count[nvme.CmdWrite]
	if all != 8192 || reads < all*65/100 || reads > all*75/100 {
		t.Errorf("%d reads of %d", reads, all)
	}
	// 1-1/e of the places are met when each has its chance.
	if n := len(touched); n < 8192*60/100 || n > 8192*66/100 {
		t.Errorf("%d of 8192 places", n)
	}
}

// What each job has done is what all have done, of every kind that its mode
// does.
func TestPerJob(t *testing.T) {
	for mode := Read; mode <= RandTrim; mode++ {
		rep := newLoad(t, Options{Mode: mode, Depth: 4, Jobs: 3, ReadPercent: 50, BlockSize: 512}, 96<<10, nil).do()
		all, _ := rep.Total()
		if len(rep.PerJob) != 3 || rep.PerJob[0] != 64 || rep.PerJob[1] != 64 || rep.PerJob[2] != 64 || all != 192 {
			t.Errorf("%v: %v of %d", mode, rep.PerJob, all)
		}
	}
}

func TestNoNamespace(t *testing.T) {
	if _, err := RunOn(t.Context(), nil, Options{}); !errors.Is(err, ErrOptions) {
		t.Error(err)
	}
}

func TestVerified(t *testing.T) {
	for _, mode := range []Mode{Write, RandWrite, ReadWrite, RandRW} {
		l := newLoad(t, Options{Mode: mode, Depth: 16, Jobs: 2, ReadPercent: 50, Verify: true, BlockSize: 2048}, 1<<20, nil)
		rep := l.do()
		if mode == Write && (rep.Reread != 512 || rep.Ops[opRead].IOs != 0) {
			t.Errorf("%v: %d places read again, %d reads", mode, rep.Reread, rep.Ops[opRead].IOs)
		}
		if rep.Reread == 0 || rep.Verified+rep.Unknown != rep.Ops[opRead].IOs {
			t.Errorf("%v: %+v", mode, rep)
		}
	}
}

// A later run can check what an earlier one has written, and finds what was not.
func TestVerifyLater(t *testing.T) {
	l := newLoad(t, Options{Mode: Write, Depth: 8, Verify: true}, 1<<20, nil)
	l.do()
	again := l.again(Options{Mode: Read, Depth: 8, Verify: true})
	if rep := again.do(); rep.Verified != 256 {
		t.Errorf("%d verified", rep.Verified)
	}
	l.disks[0].data[5*4096+100] ^= 1
	_, err := l.again(Options{Mode: Read, Depth: 8, Verify: true}).run.do(t.Context())
	wantFault(t, err, BadContent, 5*4096)
	_, err = l.again(Options{Mode: Read, Depth: 8, Verify: true, BlockSize: 8192}).run.do(t.Context())
	wantFault(t, err, BadLength, -1)
}

func wantFault(t *testing.T, err error, f Fault, offset int64) {
	t.Helper()
	var v *VerifyError
	if !errors.As(err, &v) || v.Fault != f || offset >= 0 && v.Offset != offset {
		t.Errorf("fault %d at %d: %v", f, offset, err)
	}
}

// Every way in which a target can be wrong is noticed, at the first chance.
func TestFaults(t *testing.T) {
	const unit = 4096
	for name, c := range map[string]struct {
		fault  Fault
		before func(d *disk, io *initiator.IO) (nvme.Status, bool)
	}{
		"a write is lost": {Stale, func(d *disk, io *initiator.IO) (nvme.Status, bool) {
			return 0, io.Op == nvme.CmdWrite && d.data[int(io.LBA)*testBlock] != 0
		}},
		"a write goes to another place too": {Misplaced, func(d *disk, io *initiator.IO) (nvme.Status, bool) {
			if io.Op == nvme.CmdWrite && io.LBA == 0 {
				copy(d.data[unit:], io.Buf.Bytes()[io.Offset:][:unit])
			}
			return 0, false
		}},
		"a write is torn": {BadContent, func(d *disk, io *initiator.IO) (nvme.Status, bool) {
			if io.Op != nvme.CmdWrite {
				return 0, false
			}
			copy(d.data[int(io.LBA)*testBlock:], io.Buf.Bytes()[io.Offset:][:unit/2])
			return 0, true
		}},
		"a bit flips": {BadContent, func(d *disk, io *initiator.IO) (nvme.Status, bool) {
			if io.Op == nvme.CmdRead {
				d.data[int(io.LBA)*testBlock+unit-1] ^= 0x10
			}
			return 0, false
		}},
		"reads are zero": {NoHeader, func(d *disk, io *initiator.IO) (nvme.Status, bool) {
			if io.Op == nvme.CmdRead {
				clear(io.Buf.Bytes()[io.Offset:][:unit])
			}
			return 0, io.Op == nvme.CmdRead
		}},
	} {
		l := newLoad(t, Options{Mode: RandRW, Depth: 4, ReadPercent: 50, Verify: true, Size: 16 * unit}, 1<<20, func(d *disk) { d.before = c.before })
		l.run.jobs[0].o.Runtime = time.Minute // more than one pass
		l.run.jobs[0].ctl.measure.Store(true)
		_, err := l.run.do(t.Context())
		var v *VerifyError
		if !errors.As(err, &v) || v.Fault != c.fault {
			t.Errorf("%s: %v", name, err)
		}
		if n := len(l.disks[0].queue); n != 0 {
			t.Errorf("%s: %d I/Os left in flight", name, n)
		}
	}
}

// What the words of a fault are about.
func TestVerifyError(t *testing.T) {
	b := make([]byte, 1024)
	s := stamp{run: 1, offset: 4096, gen: 3}
	fillData(b, s)
	for _, c := range []struct {
		want stamp
		has  string
	}{
		{stamp{run: 1, offset: 8192, gen: 3}, "the data of offset 4096"},
		{stamp{run: 2, offset: 4096, gen: 3}, "another run"},
		{stamp{run: 1, offset: 4096, gen: 4}, "an old write"},
		{stamp{run: 1, offset: 4096, gen: 2}, "generation 3 is here, but 2"},
	} {
		if err := checkData(b, c.want); err == nil || !strings.Contains(err.Error(), c.has) {
			t.Errorf("%q: %v", c.has, err)
		}
	}
	for _, want := range []stamp{s, {offset: 4096}} {
		if err := checkData(b, want); err != nil {
			t.Error(err)
		}
	}
	for i := range b {
		b[i] ^= 4
		if checkData(b, s) == nil {
			t.Fatalf("a change of byte %d is not noticed", i)
		}
		b[i] ^= 4
	}
	for f := NoHeader; f <= BadContent; f++ {
		if e := (&VerifyError{Fault: f}).Error(); len(e) < 40 {
			t.Errorf("fault %d: %q", f, e)
		}
	}
}

// No two I/Os are on one place at a time, so that each read has one answer.
func TestNoOverlap(t *testing.T) {
	l := newLoad(t, Options{Mode: RandRW, Depth: 16, ReadPercent: 50, Verify: true, Size: 8 * 4096}, 1<<20, func(d *disk) { d.batch = 1 })
	l.disks[0].before = func(d *disk, _ *initiator.IO) (nvme.Status, bool) {
		seen := map[uint64]bool{}
		for _, io := range d.queue {
			if seen[io.LBA] {
				t.Fatalf("two I/Os at LBA %d", io.LBA)
			}
			seen[io.LBA] = true
		}
		return 0, false
	}
	l.run.o.Runtime = time.Hour
	j := l.run.jobs[0]
	for range 10000 {
		if more, err := j.turn(t.Context()); !more || err != nil {
			t.Fatal(more, err)
		}
	}
	j.drain(t.Context())
	if m := l.disks[0].most; m != 8 {
		t.Errorf("%d in flight on 8 places", m)
	}
}

func TestFailedIO(t *testing.T) {
	l := newLoad(t, Options{Mode: Read, Depth: 4}, 1<<20, func(d *disk) {
		d.before = func(_ *disk, io *initiator.IO) (nvme.Status, bool) {
			if io.LBA == 80 {
				return nvme.UnrecoveredReadError, false
			}
			return 0, true
		}
	})
	rep, err := l.run.do(t.Context())
	var status *nvme.StatusError
	if !errors.As(err, &status) || !errors.Is(err, nvme.UnrecoveredReadError) || !strings.Contains(err.Error(), "offset 40960") {
		t.Errorf("%v", err)
	}
	if rep == nil || rep.Ops[opRead].IOs == 0 || len(l.disks[0].queue) != 0 {
		t.Errorf("%+v, %d in flight", rep, len(l.disks[0].queue))
	}
}

// A queue that fails ends the load.
func TestFailedQueue(t *testing.T) {
	broken := errors.New("broken")
	l := newLoad(t, Options{Mode: Read, Depth: 4}, 1<<20, func(d *disk) { d.waitErr, d.batch = broken, 0 })
	if _, err := l.run.do(t.Context()); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

// Time is what ends a load, and an interrupted one waits for what is in flight.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lives []Live
		o := Options{Mode: RandRead, Depth: 4, Runtime: 3 * time.Second, Ramp: 2 * time.Second, Live: func(l Live) { lives = append(lives, l) }}
		l := newLoad(t, o, 1<<20, func(d *disk) { d.batch = 4 })
		l.disks[0].before = func(*disk, *initiator.IO) (nvme.Status, bool) { time.Sleep(time.Millisecond); return 0, true }
		rep := l.do()
		if rep.Elapsed < 2900*time.Millisecond || rep.Elapsed > 3100*time.Millisecond {
			t.Errorf("%v measured", rep.Elapsed)
		}
		if n := rep.Ops[opRead].IOs; n < 2900 || n > 3100 {
			t.Errorf("%d I/Os in 3 s at 1 ms each", n)
		}
		if len(lives) < 4 || lives[0].Phase != "ramp" || lives[3].Phase != "run" || lives[3].IOPS[opRead] < 900 || lives[3].Done <= lives[0].Done {
			t.Errorf("%+v", lives)
		}
		for _, l := range lives {
			if !strings.Contains(l.Text(), "IOPS=") {
				t.Error(l.Text())
			}
		}
	})
}

// Without a ramp the time begins with the first I/O, not with its end.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoad(t, Options{Mode: Read, Size: 40 << 10}, 1<<20, nil)
		l.disks[0].before = func(*disk, *initiator.IO) (nvme.Status, bool) { time.Sleep(time.Second); return 0, true }
		if rep := l.do(); rep.Elapsed != 10*time.Second || rep.Ops[opRead].IOs != 10 {
			t.Errorf("%v, %d I/Os", rep.Elapsed, rep.Ops[opRead].IOs)
		}
	})
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := newLoad(t, Options{Mode: RandWrite, Depth: 4, Runtime: time.Hour, Verify: true}, 1<<20, nil)
	n := 0
	l.disks[0].before = func(*disk, *initiator.IO) (nvme.Status, bool) {
		if n++; n == 1000 {
			cancel()
			l.disks[0].batch = 0 // has to wait, and meets the end of the context
			time.AfterFunc(time.Millisecond, func() {})
		}
		return 0, false
	}
	l.disks[0].waitErr = nil
	q := &patient{disk: l.disks[0]}
	l.run.jobs[0].q = q
	rep, err := l.run.do(ctx)
	if err != nil || !rep.Interrupted || rep.Reread != 0 || len(l.disks[0].queue) != 0 {
		t.Errorf("%+v, %v, %d in flight", rep, err, len(l.disks[0].queue))
	}
}

// patient is a disk that answers again once somebody has waited for it in
// earnest.
type patient struct{ *disk }

func (p *patient) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.batch = 8
	return nil
}

func TestOptions(t *testing.T) {
	space := Space{Size: 1 << 20, BlockSize: 4096, MaxTransfer: 128 << 10}
	for name, o := range map[string]Options{
		"less than a block":   {BlockSize: 512},
		"not whole blocks":    {BlockSize: 6144},
		"more than a command": {BlockSize: 256 << 10},
		"offset":              {Offset: 512},
		"negative offset":     {Offset: -4096},
		"offset too far":      {Offset: 2 << 20},
		"size":                {Size: 2 << 20},
		"offset and size":     {Offset: 4096, Size: 1 << 20},
		"shares":              {ReadPercent: 101},
		"time":                {Runtime: -1},
		"ramp alone":          {Ramp: time.Second},
		"trim and verify":     {Mode: RandTrim, Verify: true},
		"too many jobs":       {Jobs: 300},
		"mode":                {Mode: 99},
	} {
		if err := o.complete(space); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := Options{}
	if err := o.complete(space); err != nil || o.BlockSize != 4096 || o.Size != 1<<20 || o.Depth != 1 || o.Jobs != 1 {
		t.Errorf("%+v, %v", o, err)
	}
	o = Options{Verify: true}
	if err := o.complete(Space{Size: 1 << 50, BlockSize: 512, MaxTransfer: 1 << 20}); !errors.Is(err, ErrOptions) {
		t.Errorf("a ledger of a petabyte: %v", err)
	}
	for i, n := range modeNames {
		if m, err := ParseMode(n); m != Mode(i) || err != nil || m.String() != n {
			t.Errorf("%s: %v, %v", n, m, err)
		}
	}
	if m, _ := ParseMode("readwrite"); m != ReadWrite {
		t.Error(m)
	}
	if _, err := ParseMode("randomly"); err == nil {
		t.Error("an unknown load")
	}
}

// The data path allocates nothing.
func TestAllocations(t *testing.T) {
	for _, verify := range []bool{false, true} {
		l := newLoad(t, Options{Mode: RandRW, Depth: 32, ReadPercent: 50, Verify: verify, BlockSize: 512}, 1<<20, nil)
		l.run.o.Runtime = time.Hour
		j := l.run.jobs[0]
		ctx := t.Context()
		turn := func() {
			if _, err := j.turn(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			turn()
		}
		if n := testing.AllocsPerRun(1000, turn); n != 0 {
			t.Errorf("verify %t: %g allocations a turn", verify, n)
		}
		j.drain(ctx)
	}
}

// The clock is read once for a batch.
func TestClock(t *testing.T) {
	l := newLoad(t, Options{Mode: Read, Depth: 32, BlockSize: 512}, 1<<20, func(d *disk) { d.batch = 16 })
	reads := 0
	clock := l.run.ctl.clock
	l.run.ctl.clock = func() int64 { reads++; return clock() }
	if err := l.run.jobs[0].run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if most := 2048/16 + 2; reads > most {
		t.Errorf("%d times for 2048 I/Os in batches of 16", reads)
	}
}

func TestReport(t *testing.T) {
	rep := &Report{Options: Options{Mode: RandRW, BlockSize: 4096, Depth: 128, Jobs: 2, Verify: true, Process: 1}, Depth: 127, Elapsed: 2 * time.Second}
	for i := range rep.Ops {
		rep.Ops[i].Latency = newHistogram()
	}
	for i := range 1000 {
		_ = rep.Ops[opRead].Latency.RecordValue(int64(i+1) * 1000)
	}
	rep.Ops[opRead].IOs, rep.Ops[opRead].Bytes = 1000, 4096000
	rep.CPU, rep.Target = CPU{time.Second, time.Second / 2}, CPU{time.Second / 4, 0}
	rep.Verified, rep.Unknown, rep.Reread = 900, 100, 50
	text := rep.Text()
	for _, want := range []string{
		"randrw: bs=4KiB, iodepth=127, numjobs=2, 2.00 s", "grants a depth of 127, not 128", "read: IOPS=500, BW=2MiB/s",
		"min=1.00, avg=501", "50th=500", "99th=990", "<=   10 us", "<=    1 ms", "50.0", "this host: 1500.00 us an I/O, usr=50.0%, sys=25.0%",
		"the target: 250.00 us", "900 reads checked during the load, 50 places read again afterwards; 100 reads of places not written yet",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "write:") {
		t.Error("writes that there were none of")
	}
	b, err := json.Marshal(rep.JSON())
	if err != nil {
		t.Fatal(err)
	}
	var j struct {
		Read struct {
			IOPS  float64 `json:"iops"`
			Total int     `json:"total_ios"`
			LatNS struct {
				N          int
				Percentile map[string]int64
			} `json:"lat_ns"`
		}
		CPU int64 `json:"cpu_ns_per_io"`
	}
	if err := json.Unmarshal(b, &j); err != nil {
		t.Fatal(err)
	}
	if j.Read.IOPS != 500 || j.Read.Total != 1000 || j.Read.LatNS.N != 1000 || j.CPU != 1_500_000 {
		t.Errorf("%+v", j)
	}
	if p := j.Read.LatNS.Percentile["99.000000"]; p < 985_000 || p > 995_000 {
		t.Errorf("99th percentile %d", p)
	}
	if p := rep.Percentile(50); p < 495*time.Microsecond || p > 505*time.Microsecond {
		t.Errorf("median %v", p)
	}
}

// A load that did nothing has a report that can be printed.
func TestEmptyReport(t *testing.T) {
	rep := &Report{Options: Options{Process: 1}}
	for i := range rep.Ops {
		rep.Ops[i].Latency = newHistogram()
	}
	if s := rep.Text(); strings.Contains(s, "NaN") || strings.Contains(s, "Inf") {
		t.Error(s)
	}
	if _, err := json.Marshal(rep.JSON()); err != nil {
		t.Error(err)
	}
}

func TestBuckets(t *testing.T) {
	h := newHistogram()
	for _, v := range []int64{900, 1000, 1001, 4999, 30_000, 30_000} {
		_ = h.RecordValue(v)
	}
	var got []string
	for _, b := range buckets(h) {
		got = append(got, fmt.Sprintf("%s:%d", limitText(b.limit), b.n))
	}
	if want := "1 us:2 2 us:1 5 us:1 10 us:0 20 us:0 50 us:2"; strings.Join(got, " ") != want {
		t.Errorf("%s, want %s", strings.Join(got, " "), want)
	}
}

func TestCPU(t *testing.T) {
	m := newMeter(0)
	for s := time.Now(); ownCPU().sub(m.own).Total() == 0; {
		if time.Since(s) > 5*time.Second {
			t.Fatal("no CPU time in 5 s of work")
		}
	}
	if own, target := m.used(); own.Total() <= 0 || target != (CPU{}) {
		t.Errorf("%v, %v", own, target)
	}
	if _, err := processCPU(1); err != nil {
		t.Errorf("process 1: %v", err)
	}
	if _, err := processCPU(1 << 30); err == nil {
		t.Error("a process that is not there has used CPU")
	}
}
