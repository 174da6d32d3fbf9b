package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata anew")

func svg(t *testing.T, f *Figure) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := f.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	wellFormed(t, b.Bytes())
	return b.Bytes()
}

// wellFormed also looks for numbers that no reader takes.
func wellFormed(t *testing.T, b []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(b)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
	}
	for _, bad := range []string{"NaN", "Inf", "%!", "e+"} {
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, bad) && !strings.Contains(line, "<text") {
				t.Errorf("%s in %s", bad, line)
			}
		}
	}
}

func line(label string, color, dash int, xy ...float64) Line {
	l := Line{Label: label, Color: color, Dash: dash}
	for i := 0; i < len(xy); i += 2 {
		l.Points = append(l.Points, Point{xy[i], xy[i+1]})
	}
	return l
}

// The whole of a figure, as it is: two panels and a third, both kinds of scales,
// a line that is not in order, a single point, nothing, and text that has to be
// escaped.
func TestGolden(t *testing.T) {
	f := &Figure{
		Title: "Cost & growth", Caption: "a <machine>, 2 cores",
		Panels: []Panel{
			{
				Title: "IOPS", X: Axis{Label: "I/Os in flight", Log: 2}, Y: Axis{Label: "I/Os per second"},
				Lines: []Line{line("roce", 0, 0, 1, 50e3, 4, 210e3, 2, 90e3, 1024, 905e3), line("iwarp", 1, 0, 1, 40e3, 1024, 700e3)},
			},
			{
				Title: "latency", X: Axis{Label: "bytes of a read", Log: 2, Unit: Bytes}, Y: Axis{Label: "us", Log: 10},
				Lines: []Line{line("roce", 0, 0, 512, 13.2, 1<<20, 4100), line("roce p99", 0, 1, 4096, 25), line("none", 2, 2)},
			},
			{Title: "empty", X: Axis{Label: "x"}, Y: Axis{Label: "share", Unit: Percent}},
		},
	}
	got := svg(t, f)
	golden := filepath.Join("testdata", "figure.svg")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("not %s (-update writes it anew):\n%s", golden, got)
	}
	if again := svg(t, f); !bytes.Equal(again, got) {
		t.Error("a second drawing differs")
	}
}

var axes = []Axis{{}, {Log: 2}, {Log: 10}, {Unit: Bytes, Log: 2}, {Unit: Percent}}

// Ranges that a measurement may bring, and some that it cannot.
var ranges = [][]float64{
	nil, {1}, {0}, {1, 1}, {1, 1024}, {512, 1 << 20}, {0, 1}, {0.7, 0.99}, {3, 1e6}, {1e-9, 1e18}, {-5, 7}, {999, 1001},
	{math.SmallestNonzeroFloat64, math.MaxFloat64}, {-math.MaxFloat64, math.MaxFloat64}, {math.SmallestNonzeroFloat64}, {math.MaxFloat64},
}

// A larger value is never drawn before a smaller one, all values are within the
// frame, and so are ticks, which go up and are few.
func TestScalesAreMonotone(t *testing.T) {
	for _, a := range axes {
		for _, values := range ranges {
			t.Run(fmt.Sprintf("log %d/%v", a.Log, values), func(t *testing.T) {
				var shown []float64
				for _, v := range values {
					if a.shows(v) {
						shown = append(shown, v)
					}
				}
				s := newScale(&a, shown)
				if !(s.lo < s.hi) || math.IsInf(s.lo, 0) || math.IsInf(s.hi, 0) {
					t.Fatalf("from %g to %g", s.lo, s.hi)
				}
				inside(t, "values", &s, shown)
				inside(t, "ticks", &s, s.ticks)
				if n := len(s.ticks); n < 2 || n > maxTicks+3 {
					t.Errorf("%d ticks", n)
				}
			})
		}
	}
}

func inside(t *testing.T, what string, s *scale, values []float64) {
	t.Helper()
	last := math.Inf(-1)
	for i, v := range values {
		at := s.at(v)
		if !(at >= -1e-9 && at <= 1+1e-9) {
			t.Errorf("%s: %g is at %g", what, v, at)
		}
		if i > 0 && v > values[i-1] && at <= last {
			t.Errorf("%s: %g is at %g, not beyond %g", what, v, at, last)
		}
		last = at
	}
}

// Two ticks of an axis never read the same, or a reader could not tell them.
func TestLabelsDiffer(t *testing.T) {
	for _, a := range axes {
		for _, values := range ranges[:12] {
			if a.Log > 0 && len(values) > 0 && values[0] <= 0 {
				continue
			}
			s := newScale(&a, values)
			seen := map[string]float64{}
			for _, v := range s.ticks {
				l := s.label(v)
				if other, ok := seen[l]; ok {
					t.Errorf("%v, %v: %g and %g are both %q", a, values, other, v, l)
				}
				seen[l] = v
			}
		}
	}
}

func TestLabels(t *testing.T) {
	for _, c := range []struct {
		unit Unit
		v    float64
		want string
	}{
		{Plain, 0, "0"}, {Plain, 1, "1"}, {Plain, 0.5, "0.5"}, {Plain, 1500, "1.5k"}, {Plain, 2e6, "2M"}, {Plain, -3000, "-3k"},
		{Plain, 1e-7, "1e-07"}, {Plain, 1024, "1.024k"}, {Bytes, 512, "512 B"}, {Bytes, 4096, "4 KiB"}, {Bytes, 1 << 20, "1 MiB"},
		{Bytes, 1.5 * (1 << 30), "1.5 GiB"}, {Percent, 0.25, "25 %"}, {Percent, 1, "100 %"}, {Plain, 1e40, "1e+22E"},
	} {
		s := scale{axis: &Axis{Unit: c.unit}}
		if got := s.label(c.v); got != c.want {
			t.Errorf("%g: %q, want %q", c.v, got, c.want)
		}
	}
	for v, want := range map[float64]string{1024: "1024", 65536: "65536", 0.5: "0.5", 1 << 20: "1.049M"} {
		if got := (&scale{axis: &Axis{Log: 2}}).label(v); got != want {
			t.Errorf("the power of two %g is %q", v, got)
		}
	}
}

// What cannot be shown is left out, and the rest is there.
func TestPointsLeftOut(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	p := Panel{X: Axis{Log: 2}, Y: Axis{Log: 10}}
	l := line("a", 0, 0, 0, 1, 1, 0, nan, 1, 1, nan, inf, 1, 1, inf, -1, 1, 2, 3)
	if got := p.visible(&l); len(got) != 1 || got[0] != (Point{2, 3}) {
		t.Errorf("%v", got)
	}
	p.Y.Log = 0
	if got := p.visible(&l); len(got) != 2 || got[0] != (Point{1, 0}) {
		t.Errorf("linear: %v", got)
	}
}

// Every range on every axis is a document that can be read, with as many dots
// as points.
func TestAnyRangeDraws(t *testing.T) {
	for _, x := range axes {
		for _, y := range axes {
			for _, values := range ranges {
				p := Panel{X: x, Y: y, Lines: []Line{{Label: "a", Color: -3, Dash: -1}}}
				for _, v := range values {
					p.Lines[0].Points = append(p.Lines[0].Points, Point{v, v})
				}
				out := svg(t, &Figure{Panels: []Panel{p}})
				if got, want := bytes.Count(out, []byte("<circle")), len(p.visible(&p.Lines[0])); got != want {
					t.Errorf("%v %v %v: %d dots of %d points", x, y, values, got, want)
				}
			}
		}
	}
}

// The frame of a figure grows with its panels and its legend.
func TestSizes(t *testing.T) {
	height := 0
	for _, n := range []int{0, 1, 2, 3, 5} {
		f := &Figure{}
		for range n {
			f.Panels = append(f.Panels, Panel{})
		}
		h := heightOf(t, svg(t, f))
		if n != 2 && n > 0 && h <= height {
			t.Errorf("%d panels: %d pixels, not more than %d", n, h, height)
		}
		height = h
	}
	f := &Figure{Panels: make([]Panel, 2)}
	for i := range 9 {
		f.Panels[0].Lines = append(f.Panels[0].Lines, Line{Label: strconv.Itoa(i)})
		f.Panels[1].Lines = append(f.Panels[1].Lines, Line{Label: strconv.Itoa(i)})
	}
	if h := heightOf(t, svg(t, f)); h != head+3*legendRow+panelHeight+foot {
		t.Errorf("9 labels: %d pixels", h)
	}
}

func heightOf(t *testing.T, b []byte) int {
	t.Helper()
	var doc struct {
		Height int `xml:"height,attr"`
	}
	if err := xml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Height
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestWriteError(t *testing.T) {
	if err := (&Figure{}).WriteSVG(brokenWriter{}); !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
}
