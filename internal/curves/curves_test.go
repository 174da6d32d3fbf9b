package curves

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/internal/config"
)

const golden = `# a machine
# a run
reads in flight [1],series,IOPS [1/s],p50 [us]
1,roce,52345,12.346
2,roce,1234568,
1,"iwarp, a core each",0.5,0
`

func goldenTable() *Table {
	return &Table{
		Comments: []string{"a machine", "a run"},
		X:        Column{"reads in flight", "1"},
		Columns:  []Column{{"IOPS", "1/s"}, {"p50", "us"}},
		Rows: []Row{
			{2, "roce", []float64{1234567.8, math.NaN()}},
			{1, "iwarp, a core each", []float64{0.5, 0}},
			{1, "roce", []float64{52345, 12.3456789}},
		},
	}
}

func TestCSV(t *testing.T) {
	var b bytes.Buffer
	if err := goldenTable().WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	if b.String() != golden {
		t.Errorf("%s\nwant\n%s", b.String(), golden)
	}
	read, err := ReadCSV(&b)
	if err != nil {
		t.Fatal(err)
	}
	if want := goldenTable(); !reflect.DeepEqual(read.Comments, want.Comments) || read.X != want.X || !reflect.DeepEqual(read.Columns, want.Columns) {
		t.Errorf("%+v", read)
	}
	if len(read.Rows) != 3 || read.Rows[0].Values[1] != 12.346 || !math.IsNaN(read.Rows[1].Values[1]) || read.Rows[2].Series != "iwarp, a core each" {
		t.Errorf("%+v", read.Rows)
	}
	var again bytes.Buffer
	if err := read.WriteCSV(&again); err != nil || again.String() != golden {
		t.Errorf("%v\n%s", err, again.String())
	}
}

func TestEmptyTable(t *testing.T) {
	var b bytes.Buffer
	if err := (&Table{X: Column{"x", "1"}}).WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	if read, err := ReadCSV(&b); err != nil || len(read.Rows) != 0 {
		t.Errorf("%v %v", read, err)
	}
}

func TestBadCSV(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "second column"},
		{"# a comment", "a comment without end"},
		{"# a\n", "second column"},
		{"x [1]\n", "second column"},
		{"x [1],other\n", "second column"},
		{"x,series\n", "expected NAME [UNIT]"},
		{"x [1],series,y\n", "expected NAME [UNIT]"},
		{"x [1],series,[1]\n", "expected NAME [UNIT]"},
		{"x [1],series,y [1]\none,a,1\n", "row 1"},
		{"x [1],series,y [1]\n1,a,1\n2,a,two\n", "row 2"},
		{"x [1],series,y [1]\n1,a\n", "wrong number of fields"},
		{"x [1],series,\"y [1]\n", "quote"},
	} {
		if _, err := ReadCSV(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
	}
}

// Every point of every curve has a file that the daemon takes, queues and depth
// that add up to what the curve says, and columns for all that is drawn.
func TestSetups(t *testing.T) {
	for _, c := range All([]int{0, 1}) {
		if len(c.Points) == 0 || c.X.Unit == "" {
			t.Errorf("%s: %+v", c.Name, c)
		}
		for _, v := range c.Views {
			for _, trace := range v.Traces {
				if !hasColumn(c.columns(), trace.Measure) {
					t.Errorf("%s: %s: no column %q", c.Name, v.Title, trace.Measure)
				}
			}
		}
		for _, x := range c.Points {
			for _, variant := range c.Variants {
				if s, ok := c.Setup(x, variant); ok {
					s.Load.Provider = "roce"
					checkSetup(t, &c, x, &s)
				}
			}
		}
	}
	for _, c := range All([]int{3}) {
		for _, variant := range c.Variants {
			if s, ok := c.Setup(c.Points[0], variant); ok && len(s.HostCPUs) > 1 {
				t.Errorf("%s: processors %v", c.Name, s.HostCPUs)
			} else if ok == (variant == busy || variant == apart) {
				t.Errorf("%s, %s: %v with one processor", c.Name, variant, ok)
			}
		}
	}
}

func hasColumn(list []Column, name string) bool {
	for _, c := range list {
		if c.Name == name {
			return true
		}
	}
	return false
}

func checkSetup(t *testing.T, c *Curve, x int, s *Setup) {
	t.Helper()
	f, err := config.Parse("x", []byte(configuration(s, "/tmp/x", netip.MustParseAddr("127.2.3.4"))))
	if err != nil {
		t.Errorf("%s/%d: %v", c.Name, x, err)
		return
	}
	inFlight, queues := s.Load.Queues*s.Load.Depth, 0
	for _, n := range s.Load.queueCounts() {
		queues += n
		if n > f.RDMA.MaxQueues {
			t.Errorf("%s/%d: %d queues of one controller", c.Name, x, n)
		}
	}
	if queues != s.Load.Queues {
		t.Errorf("%s/%d: %d queues of %d", c.Name, x, queues, s.Load.Queues)
	}
	if groups := f.PollGroups; s.Busy && (groups != 1 || f.Poll != "busy") || !s.Busy && groups != len(s.TargetCPUs) {
		t.Errorf("%s/%d: %d poll groups, %s", c.Name, x, groups, f.Poll)
	}
	want := map[string]int{"depth": inFlight, "size": s.Load.BlockSize, "connections": queues, "namespaces": len(f.Subsystems[0].Namespaces), "cores": len(s.HostCPUs)}
	if s.HostCPUs != nil && s.TargetCPUs[0] != s.HostCPUs[0] {
		want["cores"] = 2 // apart
	}
	if want[c.Name] != x {
		t.Errorf("%s/%d: %d", c.Name, x, want[c.Name])
	}
	if s.Load.Depth >= f.RDMA.QueueDepth {
		t.Errorf("%s/%d: depth %d of queues with %d entries", c.Name, x, s.Load.Depth, f.RDMA.QueueDepth)
	}
}

// curveOf is a curve of points 1, 2 and 4.
func curveOf() Curve {
	c := depthCurve(nil)
	c.Points, c.Variants = []int{1, 2, 4}, plain
	return c
}

func options(t *testing.T, point func(context.Context, Setup) (Measured, error)) (Options, *bytes.Buffer) {
	log := &bytes.Buffer{}
	return Options{Out: t.TempDir(), Time: time.Second, Log: log, Now: time.Unix(0, 0), point: point}, log
}

func byDepth(_ context.Context, s Setup) (m Measured, _ error) {
	m.IOPS = float64(s.Load.Depth * 1000)
	return m, nil
}

func saved(t *testing.T, o Options) *Table {
	t.Helper()
	tab, err := readTable(filepath.Join(o.Out, "depth.csv"))
	if err != nil {
		t.Fatal(err)
	}
	if svg, err := os.ReadFile(filepath.Join(o.Out, "depth.svg")); err != nil || !bytes.Contains(svg, []byte("</svg>")) {
		t.Errorf("drawing: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(o.Out, "*.new")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	return tab
}

// A point that fails is named, in the log and in the error, and all others are
// there.
func TestFailedPoint(t *testing.T) {
	broken := errors.New("broken")
	o, log := options(t, func(ctx context.Context, s Setup) (Measured, error) {
		if s.Load.Depth == 2 && s.Load.Provider == "iwarp" {
			return Measured{}, broken
		}
		return byDepth(ctx, s)
	})
	err := Run(context.Background(), []Curve{curveOf()}, o)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "depth/iwarp/2") || !strings.Contains(log.String(), "depth/iwarp/2") {
		t.Errorf("%v\n%s", err, log)
	}
	tab := saved(t, o)
	if len(tab.Rows) != 5 || tab.Rows[2].Values[0] != 4000 {
		t.Errorf("%+v", tab.Rows)
	}
}

// When the user ends it, what was measured is written.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	o, _ := options(t, func(c context.Context, s Setup) (Measured, error) {
		if s.Load.Depth == 2 {
			cancel()
			return Measured{}, c.Err()
		}
		return byDepth(c, s)
	})
	calls := 0
	second := curveOf()
	second.Setup = func(int, string) (Setup, bool) { calls++; return Setup{}, false }
	if err := Run(ctx, []Curve{curveOf(), second}, o); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := len(saved(t, o).Rows); n != 2 || calls > 0 {
		t.Errorf("%d rows, %d points of the next curve", n, calls)
	}
}

// Chosen points take the place of the old ones, and the rest stays with what was
// said of it; a table of another machine does not.
func TestMerge(t *testing.T) {
	o, _ := options(t, byDepth)
	run := func() *Table {
		t.Helper()
		if err := Run(context.Background(), []Curve{curveOf()}, o); err != nil {
			t.Fatal(err)
		}
		return saved(t, o)
	}
	if tab := run(); len(tab.Rows) != 6 || len(tab.Comments) != 2 {
		t.Fatalf("%+v", tab)
	}
	o.Only = regexp.MustCompile(`depth/roce/2$`)
	o.point = func(context.Context, Setup) (m Measured, _ error) { m.IOPS = 7; return m, nil }
	tab := run()
	if len(tab.Rows) != 6 || len(tab.Comments) != 3 || tab.Rows[0].Values[0] != 1000 || tab.Rows[1].Values[0] != 7 {
		t.Errorf("%+v", tab)
	}
	if !strings.Contains(tab.caption(), "2 runs") {
		t.Errorf("caption: %s", tab.caption())
	}
	o.Only = nil
	if tab := run(); len(tab.Rows) != 6 || len(tab.Comments) != 2 {
		t.Errorf("all anew: %+v", tab)
	}
	tab.Comments[0] = "another machine"
	if err := replace(filepath.Join(o.Out, "depth.csv"), tab.WriteCSV); err != nil {
		t.Fatal(err)
	}
	o.Only = regexp.MustCompile(`depth/roce/2$`)
	if tab := run(); len(tab.Rows) != 1 {
		t.Errorf("beside another machine's: %+v", tab)
	}
	if err := os.WriteFile(filepath.Join(o.Out, "depth.csv"), []byte("rubbish"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Run(context.Background(), []Curve{curveOf()}, o); err == nil || !strings.Contains(err.Error(), "depth.csv") {
		t.Errorf("rubbish: %v", err)
	}
}

func TestMedian(t *testing.T) {
	n := 0
	o, _ := options(t, func(context.Context, Setup) (m Measured, _ error) {
		m.IOPS = []float64{5, 100, 7}[n]
		m.P50 = math.Inf(1)
		n++
		return m, nil
	})
	o.Rounds = 3
	c := curveOf()
	v, err := o.median(context.Background(), &c, Setup{})
	if err != nil || v[0] != 7 || !math.IsNaN(v[1]) || n != 3 {
		t.Errorf("%v %v after %d", v, err, n)
	}
}

// Each connection is counted, admin queues too, and none means that there is no
// value.
func TestPerConnection(t *testing.T) {
	c := connectionCurve()
	m := Measured{Idle: Idle{Connections: 4, Grown: 400, CPU: 0.002}}
	for i, col := range c.columns() {
		want, ok := map[string]float64{"RSS per connection": 100, "idle CPU per connection": 500}[col.Name]
		if got := c.Measures[i].Of(&m); ok && math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %g", col.Name, got)
		}
		if ok && !math.IsNaN(c.Measures[i].Of(&Measured{})) {
			t.Errorf("%s of none", col.Name)
		}
	}
}

const hitRatios = "cache_share,pages,scan,hit_ratio,lru_hit_ratio\n0.5,1024,false,0.71,0.68\n0.5,1024,true,0.72,0.58\n1,2048,false,0.76,0.74\n"

func TestCacheFigure(t *testing.T) {
	f, err := cacheFigure(strings.NewReader("# a comment\n" + hitRatios))
	if err != nil {
		t.Fatal(err)
	}
	p, q := f.Panels[0].Lines, f.Panels[1].Lines
	if len(p[0].Points) != 2 || p[1].Points[1].Y != 0.74 || len(q[0].Points) != 1 || q[1].Points[0].Y != 0.58 {
		t.Errorf("%+v", f)
	}
	for _, bad := range []string{"", "a,b\n1,2\n", strings.Replace(hitRatios, "1024", "many", 1), strings.Replace(hitRatios, "false", "maybe", 1)} {
		if _, err := cacheFigure(strings.NewReader(bad)); err == nil {
			t.Errorf("taken: %q", bad)
		}
	}
}

// The committed table of the cache is one that can be drawn.
func TestCommittedTables(t *testing.T) {
	const perf = "../../docs/perf"
	o := Options{Out: t.TempDir(), Log: io.Discard}
	files, err := filepath.Glob(perf + "/*.csv")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v %v", files, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(o.Out, filepath.Base(name)), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := Draw(All([]int{0, 1}), o); err != nil {
		t.Error(err)
	}
	if drawn, _ := filepath.Glob(o.Out + "/*.svg"); len(drawn) == 0 {
		t.Error("nothing was drawn")
	}
}

func TestProcessCPU(t *testing.T) {
	before, err := processCPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for sum, now := 0, before; now == before; {
		for i := range 1 << 16 {
			sum += i
		}
		if now, err = processCPU(os.Getpid()); err != nil || now < before {
			t.Fatal(sum, now, err)
		}
	}
	if _, err := processCPU(1 << 22); err == nil {
		t.Error("a process that cannot be has a clock")
	}
}

func TestMachine(t *testing.T) {
	if m := Machine(); !strings.Contains(m, "processors") || strings.Contains(m, "\n") {
		t.Error(m)
	}
	if got := cpuModel("flags: x\nmodel name\t: A  B\n"); got != "A  B" {
		t.Error(got)
	}
	if got := cpuModel(""); got == "" {
		t.Error("no name at all")
	}
}

func TestTail(t *testing.T) {
	var l tail
	for i := range 3000 {
		fmt.Fprintf(&l, "%04d\n", i)
	}
	if len(l.b) > maxTail || !bytes.HasSuffix(l.b, []byte("2999\n")) {
		t.Errorf("%d bytes: ...%q", len(l.b), l.b[len(l.b)-10:])
	}
}
