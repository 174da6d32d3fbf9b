package bench

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/dustin/go-humanize"

	"github.com/nvmf-go/nvmf/internal/show"
)

var opNames = [opKinds]string{"read", "write", "trim"}

// percentiles are those that fio prints.
var percentiles = []float64{1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99}

// perSecond is n in the time of the report.
func (r *Report) perSecond(n uint64) float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(n) / r.Elapsed.Seconds()
}

// perIO is a processor time for each I/O.
func (r *Report) perIO(c CPU) time.Duration {
	ios, _ := r.Total()
	if ios == 0 {
		return 0
	}
	return c.Total() / time.Duration(ios)
}

// Percentile is a latency of the I/Os of all kinds; q is 0 to 100.
func (r *Report) Percentile(q float64) time.Duration {
	h := newHistogram()
	for i := range r.Ops {
		h.Merge(r.Ops[i].Latency)
	}
	return time.Duration(h.ValueAtPercentile(q))
}

// Text is the report for people.
func (r *Report) Text() string {
	var b bytes.Buffer
	o := &r.Options
	fmt.Fprintf(&b, "%v: bs=%s, iodepth=%d, numjobs=%d, %.2f s\n", o.Mode, sizeText(uint64(o.BlockSize)), r.Depth, o.Jobs, r.Elapsed.Seconds())
	if r.Depth < o.Depth {
		fmt.Fprintf(&b, "  the target grants a depth of %d, not %d\n", r.Depth, o.Depth)
	}
	for i := range r.Ops {
		if r.Ops[i].IOs > 0 {
			r.statsText(&b, opNames[i], &r.Ops[i])
		}
	}
	r.cpuText(&b)
	r.verifyText(&b)
	return b.String()
}

func (r *Report) statsText(b *bytes.Buffer, name string, s *Stats) {
	bw := r.perSecond(s.Bytes)
	fmt.Fprintf(b, "  %s: IOPS=%s, BW=%s/s (%s/s), %s in %s I/Os\n", name, count(r.perSecond(s.IOs)),
		sizeText(uint64(bw)), humanize.Bytes(uint64(bw)), sizeText(s.Bytes), humanize.Comma(int64(s.IOs)))
	h := s.Latency
	unit, div := timeUnit(h.Mean())
	fmt.Fprintf(b, "    latency (%s): min=%s, avg=%s, max=%s, stdev=%s\n", unit,
		number(float64(h.Min())/div), number(h.Mean()/div), number(float64(h.Max())/div), number(h.StdDev()/div))
	var list []string
	for _, q := range []float64{50, 90, 99, 99.9, 99.99} {
		list = append(list, fmt.Sprintf("%gth=%s", q, number(float64(h.ValueAtPercentile(q))/div)))
	}
	fmt.Fprintf(b, "    percentiles (%s): %s\n", unit, strings.Join(list, ", "))
	histogramText(b, h)
}

func (r *Report) cpuText(b *bytes.Buffer) {
	share := func(d time.Duration) float64 {
		if r.Elapsed <= 0 {
			return 0
		}
		return 100 * d.Seconds() / r.Elapsed.Seconds()
	}
	line := func(name string, c CPU) {
		fmt.Fprintf(b, "  cpu of %s: %.2f us an I/O, usr=%.1f%%, sys=%.1f%% of a core\n", name, float64(r.perIO(c))/1e3, share(c.User), share(c.System))
	}
	line("this host", r.CPU)
	if r.Options.Process != 0 {
		line("the target", r.Target)
	}
}

func (r *Report) verifyText(b *bytes.Buffer) {
	if !r.Options.Verify {
		return
	}
	fmt.Fprintf(b, "  verify: %s reads checked", humanize.Comma(int64(r.Verified)))
	if r.Options.Mode.changes() {
		fmt.Fprintf(b, " during the load, %s places read again afterwards", humanize.Comma(int64(r.Reread)))
	}
	if r.Unknown > 0 {
		fmt.Fprintf(b, "; %s reads of places not written yet", humanize.Comma(int64(r.Unknown)))
	}
	b.WriteString("\n")
}

// sizeText is a size as fio writes it: 4KiB.
func sizeText(n uint64) string {
	return strings.NewReplacer(".0 ", "", " ", "").Replace(humanize.IBytes(n))
}

// count is a rate in a few digits: 875k.
func count(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}

// timeUnit is the unit that suits so many nanoseconds, and its size.
func timeUnit(ns float64) (string, float64) {
	switch {
	case ns < 1e3:
		return "nsec", 1
	case ns < 1e6:
		return "usec", 1e3
	case ns < 1e9:
		return "msec", 1e6
	}
	return "sec", 1e9
}

// number has about four digits.
func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// bucket is a bar of the histogram: latencies up to limit, in nanoseconds.
type bucket struct {
	limit int64
	n     int64
}

// buckets sorts a histogram into limits of 1, 2, 5, 10 and so on, from the
// first that has anything to the last.
func buckets(h *hdrhistogram.Histogram) []bucket {
	var list []bucket
	for decade := int64(100); decade <= int64(1000*time.Second); decade *= 10 {
		for _, f := range []int64{1, 2, 5} {
			list = append(list, bucket{limit: f * decade})
		}
	}
	for _, bar := range h.Distribution() {
		for i := range list {
			if bar.To <= list[i].limit || i == len(list)-1 {
				list[i].n += bar.Count
				break
			}
		}
	}
	for len(list) > 0 && list[0].n == 0 {
		list = list[1:]
	}
	for len(list) > 0 && list[len(list)-1].n == 0 {
		list = list[:len(list)-1]
	}
	return list
}

// barWidth is the length of the longest bar.
const barWidth = 40

func histogramText(b *bytes.Buffer, h *hdrhistogram.Histogram) {
	list := buckets(h)
	var most int64
	for _, k := range list {
		most = max(most, k.n)
	}
	for _, k := range list {
		share := 100 * float64(k.n) / float64(h.TotalCount())
		bar := strings.Repeat("#", int(math.Ceil(barWidth*float64(k.n)/float64(most))))
		fmt.Fprintf(b, "    <= %7s |%-*s| %6.2f%%\n", limitText(k.limit), barWidth, bar, share)
	}
}

func limitText(ns int64) string {
	unit, div := timeUnit(float64(ns))
	return fmt.Sprintf("%g %s", float64(ns)/div, strings.TrimSuffix(unit, "ec"))
}

// JSON is the report for programs: an entry of jobs as fio writes it, where fio
// has the same, and what only this program knows under keys of its own.
func (r *Report) JSON() show.Object {
	o := &r.Options
	job := show.Object{}
	job.Add("jobname", o.Mode.String())
	job.Add("groupid", 0)
	job.Add("error", 0)
	job.Add("elapsed", int(math.Ceil(r.Elapsed.Seconds())))
	job.Add("job options", show.Object{
		{Key: "rw", Value: o.Mode.String()}, {Key: "bs", Value: o.BlockSize}, {Key: "iodepth", Value: o.Depth}, {Key: "numjobs", Value: o.Jobs},
		{Key: "offset", Value: o.Offset}, {Key: "size", Value: o.Size}, {Key: "rwmixread", Value: o.ReadPercent}, {Key: "randseed", Value: o.Seed},
	})
	for i := range r.Ops {
		job.Add(opNames[i], r.statsJSON(&r.Ops[i]))
	}
	seconds := max(r.Elapsed.Seconds(), 1e-9)
	job.Add("usr_cpu", 100*r.CPU.User.Seconds()/seconds)
	job.Add("sys_cpu", 100*r.CPU.System.Seconds()/seconds)
	job.Add("cpu_ns_per_io", r.perIO(r.CPU).Nanoseconds())
	if o.Process != 0 {
		job.Add("target_cpu_ns_per_io", r.perIO(r.Target).Nanoseconds())
	}
	job.Add("iodepth_granted", r.Depth)
	if o.Verify {
		job.Add("verify", show.Object{{Key: "checked", Value: r.Verified}, {Key: "not_written_yet", Value: r.Unknown}, {Key: "read_again", Value: r.Reread}})
	}
	job.Add("interrupted", r.Interrupted)
	return job
}

func (r *Report) statsJSON(s *Stats) show.Object {
	h := s.Latency
	list := show.Object{}
	if s.IOs > 0 {
		for _, q := range percentiles {
			list.Add(fmt.Sprintf("%f", q), h.ValueAtPercentile(q))
		}
	}
	return show.Object{
		{Key: "io_bytes", Value: s.Bytes}, {Key: "bw_bytes", Value: uint64(r.perSecond(s.Bytes))}, {Key: "iops", Value: r.perSecond(s.IOs)},
		{Key: "runtime", Value: r.Elapsed.Milliseconds()}, {Key: "total_ios", Value: s.IOs},
		{Key: "lat_ns", Value: show.Object{
			{Key: "min", Value: h.Min()}, {Key: "max", Value: h.Max()}, {Key: "mean", Value: h.Mean()}, {Key: "stddev", Value: h.StdDev()},
			{Key: "N", Value: h.TotalCount()}, {Key: "percentile", Value: list},
		}},
	}
}

// Text is a line for the terminal.
func (l Live) Text() string {
	var parts []string
	for op, v := range l.IOPS {
		if v > 0 {
			parts = append(parts, fmt.Sprintf("%s: IOPS=%s, BW=%s/s", opNames[op], count(v), sizeText(uint64(l.Bandwidth[op]))))
		}
	}
	if len(parts) == 0 {
		parts = []string{"nothing completed"}
	}
	return fmt.Sprintf("[%s %3.0f%% %3.0fs] %s", l.Phase, 100*l.Done, l.Elapsed.Seconds(), strings.Join(parts, "; "))
}
