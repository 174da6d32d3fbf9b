package curves

import (
	"math"
	"slices"
	"time"

	"github.com/nvmf-go/nvmf/fabric/soft/iwarp"
	"github.com/nvmf-go/nvmf/fabric/soft/roce"
	"github.com/nvmf-go/nvmf/internal/curves/plot"
)

// Measure is a column of a curve and where it comes from.
type Measure struct {
	Column
	Of func(m *Measured) float64
}

// Trace is a measure as a panel draws it.
type Trace struct {
	Measure string // name of the column
	Dash    int    // the panel's title says what is dashed
}

// View is a panel of a curve's drawing.
type View struct {
	Title  string
	Y      plot.Axis
	Traces []Trace
}

// Curve is something that grows and what is measured of it.
type Curve struct {
	Name, Title string
	X           Column
	Axis        plot.Axis // of X; its label is that of X
	Points      []int
	// Variants are the series of each provider; "" is the plain one.
	Variants []string
	// Setup is a point; false where there is none.
	Setup    func(x int, variant string) (Setup, bool)
	Measures []Measure
	Views    []View
}

// Providers are those that are compared.
var Providers = []string{roce.Name, iwarp.Name}

// doubling are the powers of two from first to last.
func doubling(first, last int) (list []int) {
	for x := first; x <= last; x *= 2 {
		list = append(list, x)
	}
	return list
}

var plain = []string{""}

// Measures that most curves have.
var (
	iops      = Measure{Column{"IOPS", "1/s"}, func(m *Measured) float64 { return m.IOPS }}
	rate      = Measure{Column{"bandwidth", "MB/s"}, func(m *Measured) float64 { return m.Bandwidth / 1e6 }}
	p50       = Measure{Column{"p50", "us"}, func(m *Measured) float64 { return m.P50 }}
	p99       = Measure{Column{"p99", "us"}, func(m *Measured) float64 { return m.P99 }}
	hostCPU   = Measure{Column{"host CPU", "us/IO"}, func(m *Measured) float64 { return m.Host }}
	targetCPU = Measure{Column{"target CPU", "us/IO"}, func(m *Measured) float64 { return m.Target }}
)

var (
	throughput = View{"throughput", plot.Axis{Label: "reads per second"}, []Trace{{"IOPS", 0}}}
	latency    = View{"latency: median, and dashed 99 %", plot.Axis{Label: "microseconds", Log: 10}, []Trace{{"p50", 0}, {"p99", 1}}}
	cost       = View{"CPU of one read: target, and dashed host", plot.Axis{Label: "microseconds"}, []Trace{{"target CPU", 0}, {"host CPU", 1}}}
)

// oneQueue is the most that one queue has in flight here; deeper loads use
// several.
const oneQueue = 512

// All are the curves of a machine with those processors.
func All(cpus []int) []Curve {
	return []Curve{depthCurve(cpus), sizeCurve(cpus), connectionCurve(), namespaceCurve(), coreCurve(cpus)}
}

// busy has both ends poll without end, each on a processor of its own.
const busy = "busy"

// poll makes a setup busy. It is false when there are no two processors.
func (s *Setup) poll(cpus []int) bool {
	s.Busy, s.Load.Spin = true, 10*time.Millisecond // longer than any answer takes
	return s.part(cpus)
}

// part gives each end a processor of its own. It is false when there are no two.
func (s *Setup) part(cpus []int) bool {
	if len(cpus) < 2 {
		return false
	}
	s.TargetCPUs, s.HostCPUs = cpus[:1], cpus[1:2]
	return true
}

func depthCurve(cpus []int) Curve {
	return Curve{
		Name: "depth", Title: "4 KiB random reads, by queue depth",
		X: Column{"reads in flight", "1"}, Axis: plot.Axis{Log: 2}, Points: doubling(1, 1024), Variants: []string{"", busy},
		Setup: func(x int, variant string) (Setup, bool) {
			queues := (x + oneQueue - 1) / oneQueue
			s := Setup{QueueDepth: 1024, Load: Load{Queues: queues, Depth: x / queues, BlockSize: 4096}}
			return s, variant == "" || x <= 128 && s.poll(cpus)
		},
		Measures: []Measure{iops, p50, p99, hostCPU, targetCPU},
		Views:    []View{throughput, latency, cost},
	}
}

func sizeCurve(cpus []int) Curve {
	return Curve{
		Name: "size", Title: "Random reads at depth 32, by size",
		X: Column{"size of a read", "bytes"}, Axis: plot.Axis{Log: 2, Unit: plot.Bytes}, Points: doubling(512, 1<<20), Variants: []string{"", busy},
		Setup: func(x int, variant string) (Setup, bool) {
			s := Setup{Load: Load{Queues: 1, Depth: 32, BlockSize: x}}
			return s, variant == "" || s.poll(cpus)
		},
		Measures: []Measure{iops, rate, p50, p99, hostCPU, targetCPU},
		Views: []View{
			{"bandwidth", plot.Axis{Label: "MB per second"}, []Trace{{"bandwidth", 0}}},
			{"throughput", plot.Axis{Label: "reads per second", Log: 10}, []Trace{{"IOPS", 0}}},
			latency,
			{cost.Title, plot.Axis{Label: "microseconds", Log: 10}, cost.Traces},
		},
	}
}

// perConnection are the measures of idle connections, each by their number:
// admin queues are connections too.
func perConnection(name, unit string, of func(i *Idle) float64) Measure {
	return Measure{Column{name, unit}, func(m *Measured) float64 {
		if m.Idle.Connections == 0 {
			return math.NaN()
		}
		return of(&m.Idle) / m.Idle.Connections
	}}
}

// queuesPerController is the default of rdma.max_queues.
const queuesPerController = 64

func connectionCurve() Curve {
	return Curve{
		Name: "connections", Title: "Connections, idle and each with one 4 KiB read in flight",
		X: Column{"I/O queues", "1"}, Axis: plot.Axis{Log: 2}, Points: doubling(1, 1024), Variants: plain,
		Setup: func(x int, _ string) (Setup, bool) {
			s := Setup{Idle: true, Load: Load{Queues: x, PerController: queuesPerController, Depth: 1, BlockSize: 4096}}
			if x > 2 {
				s.Load.Spin = -1 // more than two would take the processors from each other
			}
			return s, true
		},
		Measures: []Measure{
			{Column{"connections", "1"}, func(m *Measured) float64 { return m.Idle.Connections }},
			{Column{"idle RSS", "bytes"}, func(m *Measured) float64 { return m.Idle.RSS }},
			{Column{"idle registered", "bytes"}, func(m *Measured) float64 { return m.Idle.Registered }},
			perConnection("RSS per connection", "bytes", func(i *Idle) float64 { return i.Grown }),
			perConnection("idle CPU per connection", "us/s", func(i *Idle) float64 { return i.CPU * 1e6 }),
			{Column{"idle CPU", "share of a processor"}, func(m *Measured) float64 { return m.Idle.CPU }},
			iops, p50, p99, hostCPU, targetCPU,
			{Column{"slowest queue", "1/s"}, func(m *Measured) float64 { return m.Least }},
			{Column{"fastest queue", "1/s"}, func(m *Measured) float64 { return m.Most }},
			{Column{"fairness", "slowest/fastest"}, func(m *Measured) float64 { return m.Least / m.Most }},
		},
		Views: []View{
			throughput, latency, cost,
			{"fairness: slowest against fastest queue", plot.Axis{Label: "share", Unit: plot.Percent}, []Trace{{"fairness", 0}}},
			{"idle daemon: resident, and dashed registered", plot.Axis{Label: "bytes", Log: 2, Unit: plot.Bytes}, []Trace{{"idle RSS", 0}, {"idle registered", 1}}},
			{"memory of one idle connection", plot.Axis{Label: "bytes resident", Log: 2, Unit: plot.Bytes}, []Trace{{"RSS per connection", 0}}},
			{"CPU of the idle daemon", plot.Axis{Label: "share of a processor", Unit: plot.Percent}, []Trace{{"idle CPU", 0}}},
		},
	}
}

func namespaceCurve() Curve {
	return Curve{
		Name: "namespaces", Title: "4 KiB random reads of 32 callers, spread over namespaces",
		X: Column{"namespaces", "1"}, Axis: plot.Axis{Log: 2}, Points: doubling(1, 1024), Variants: plain,
		Setup: func(x int, _ string) (Setup, bool) {
			return Setup{Namespaces: x, Load: Load{Queues: 2, Callers: 32, BlockSize: 4096}}, true
		},
		Measures: []Measure{iops, p50, p99, hostCPU, targetCPU},
		Views:    []View{throughput, latency, cost},
	}
}

// apart has each end on a processor of its own.
const apart = "a core each"

// coreCurve has 128 reads in flight, on a queue for each processor.
func coreCurve(cpus []int) Curve {
	return Curve{
		Name: "cores", Title: "4 KiB random reads at depth 128, by processors for both ends",
		X: Column{"processors", "1"}, Points: []int{1, 2}, Variants: []string{"", apart},
		Setup: func(x int, variant string) (Setup, bool) {
			if x > len(cpus) {
				return Setup{}, false
			}
			s := Setup{QueueDepth: 256, TargetCPUs: cpus[:x], HostCPUs: cpus[:x], Load: Load{Queues: x, Depth: 128 / x, BlockSize: 4096}}
			return s, variant == "" || x == 2 && s.part(cpus)
		},
		Measures: []Measure{iops, p50, p99, hostCPU, targetCPU},
		Views:    []View{throughput, latency, cost},
	}
}

// columns are those of a curve's table.
func (c *Curve) columns() []Column {
	list := make([]Column, 0, len(c.Measures))
	for _, m := range c.Measures {
		list = append(list, m.Column)
	}
	return list
}

// series is how a curve names a provider's variant.
func series(provider, variant string) string {
	if variant == "" {
		return provider
	}
	return provider + ", " + variant
}

// Figure draws a table of the curve's.
func (c *Curve) Figure(t *Table) *plot.Figure {
	f := &plot.Figure{Title: c.Title, Caption: t.caption()}
	for _, v := range c.Views {
		f.Panels = append(f.Panels, plot.Panel{Title: v.Title, X: c.xAxis(), Y: v.Y, Lines: c.lines(t, v)})
	}
	return f
}

func (c *Curve) xAxis() plot.Axis {
	a := c.Axis
	if a.Label = c.X.Name; c.X.Unit != "1" {
		a.Label += " (" + c.X.Unit + ")"
	}
	return a
}

func (c *Curve) lines(t *Table, v View) (list []plot.Line) {
	for i, name := range t.series() {
		for _, trace := range v.Traces {
			at := slices.IndexFunc(t.Columns, func(o Column) bool { return o.Name == trace.Measure })
			l := plot.Line{Label: name, Color: i, Dash: trace.Dash}
			for _, r := range t.Rows {
				if at >= 0 && r.Series == name {
					l.Points = append(l.Points, plot.Point{X: r.X, Y: r.Values[at]})
				}
			}
			list = append(list, l)
		}
	}
	return list
}
