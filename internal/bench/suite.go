package bench

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/internal/show"
)

// Load is a row of a Suite.
type Load struct {
	BlockSize, Depth int
}

func (l Load) String() string {
	return fmt.Sprintf("%s random read, depth %d", sizeText(uint64(l.BlockSize)), l.Depth)
}

// SuiteLoads are what a Suite runs.
var SuiteLoads = []Load{{4 << 10, 1}, {4 << 10, 32}, {4 << 10, 128}, {128 << 10, 32}}

// Column is a target of a Suite.
type Column struct {
	Name      string
	Namespace *initiator.Namespace
}

// Cell is how a target did a load: medians of the rounds.
type Cell struct {
	IOPS, Bandwidth float64
	P50, P99        time.Duration
	Host, Target    time.Duration // CPU time of an I/O
	Depth           int           // that was granted
	// Least and Most are the IOPS of the slowest and of the fastest round.
	Least, Most float64
}

// Suite is the same loads on several targets, side by side.
type Suite struct {
	Loads   []Load
	Columns []Column
	Rounds  int
	Runtime time.Duration // of a load in a round
	Process int           // as in Options
	// Progress is called before each run, when not nil.
	Progress func(round int, l Load, c Column)

	cells [][]Cell // by load and column
}

// Run runs the suite. The targets take turns in each round, so that a busy
// machine does wrong to all of them alike.
func (s *Suite) Run(ctx context.Context) error {
	reports := make([][][]*Report, len(s.Loads))
	for i := range reports {
		reports[i] = make([][]*Report, len(s.Columns))
	}
	for round := range s.Rounds {
		for i, l := range s.Loads {
			for j, c := range s.Columns {
				if s.Progress != nil {
					s.Progress(round, l, c)
				}
				r, err := Run(ctx, c.Namespace, Options{
					Mode: RandRead, BlockSize: l.BlockSize, Depth: l.Depth, Runtime: s.Runtime, Ramp: s.Runtime / 10, Process: s.Process,
				})
				if err == nil {
					err = context.Cause(ctx)
				}
				if err != nil {
					return fmt.Errorf("%s: %v: %w", c.Name, l, err)
				}
				reports[i][j] = append(reports[i][j], r)
			}
		}
	}
	s.cells = make([][]Cell, len(s.Loads))
	for i := range s.Loads {
		for j := range s.Columns {
			s.cells[i] = append(s.cells[i], cellOf(reports[i][j]))
		}
	}
	return nil
}

// cellOf takes the medians of reports.
func cellOf(list []*Report) Cell {
	iops := func(r *Report) float64 { n, _ := r.Total(); return r.perSecond(n) }
	bandwidth := func(r *Report) float64 { _, n := r.Total(); return r.perSecond(n) }
	of := func(fn func(r *Report) float64) []float64 {
		v := make([]float64, len(list))
		for i, r := range list {
			v[i] = fn(r)
		}
		slices.Sort(v)
		return v
	}
	mid := func(fn func(r *Report) float64) float64 { return of(fn)[len(list)/2] }
	span := func(fn func(r *Report) time.Duration) time.Duration {
		return time.Duration(mid(func(r *Report) float64 { return float64(fn(r)) }))
	}
	all := of(iops)
	return Cell{
		IOPS: mid(iops), Bandwidth: mid(bandwidth), Depth: list[0].Depth, Least: all[0], Most: all[len(all)-1],
		P50:    span(func(r *Report) time.Duration { return r.Percentile(50) }),
		P99:    span(func(r *Report) time.Duration { return r.Percentile(99) }),
		Host:   span(func(r *Report) time.Duration { return r.perIO(r.CPU) }),
		Target: span(func(r *Report) time.Duration { return r.perIO(r.Target) }),
	}
}

// Doc is the table of a suite that was run.
func (s *Suite) Doc() *show.Doc { return show.Made(s.text, s.object()) }

func micros(d time.Duration) string { return number(float64(d) / 1e3) }

func (s *Suite) text(w *bytes.Buffer) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"load", "target", "IOPS", "slowest to fastest", "bandwidth", "p50 us", "p99 us", "CPU us/IO host", "target", "both"})
	for i, l := range s.Loads {
		for j, c := range s.cells[i] {
			name := ""
			if j == 0 {
				name = l.String()
			}
			on := s.Columns[j].Name
			if c.Depth < l.Depth {
				on += fmt.Sprintf(" (depth %d granted)", c.Depth)
			}
			target, both := "-", "-"
			if s.Process != 0 {
				target, both = micros(c.Target), micros(c.Host+c.Target)
			}
			t.AppendRow(table.Row{
				name, on, count(c.IOPS), count(c.Least) + " to " + count(c.Most), sizeText(uint64(c.Bandwidth)) + "/s",
				micros(c.P50), micros(c.P99), micros(c.Host), target, both,
			})
		}
		t.AppendSeparator()
	}
	right := make([]table.ColumnConfig, 0, 8)
	for n := 3; n <= 10; n++ {
		right = append(right, table.ColumnConfig{Number: n, Align: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	t.Render()
}

func (s *Suite) object() show.Object {
	rows := []show.Object{}
	for i, l := range s.Loads {
		for j, c := range s.cells[i] {
			rows = append(rows, show.Object{
				{Key: "load", Value: l.String()}, {Key: "bs", Value: l.BlockSize}, {Key: "iodepth", Value: l.Depth}, {Key: "target", Value: s.Columns[j].Name},
				{Key: "iops", Value: c.IOPS}, {Key: "iops_min", Value: c.Least}, {Key: "iops_max", Value: c.Most}, {Key: "bw_bytes", Value: c.Bandwidth},
				{Key: "p50_ns", Value: c.P50.Nanoseconds()}, {Key: "p99_ns", Value: c.P99.Nanoseconds()},
				{Key: "host_cpu_ns_per_io", Value: c.Host.Nanoseconds()}, {Key: "target_cpu_ns_per_io", Value: c.Target.Nanoseconds()},
			})
		}
	}
	return show.Object{{Key: "rounds", Value: s.Rounds}, {Key: "runtime_ms", Value: s.Runtime.Milliseconds()}, {Key: "cells", Value: rows}}
}
