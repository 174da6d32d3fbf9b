package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/nvmf-go/nvmf/internal/curves"
)

// A figure in a document is what stands between two comments. The first says
// what it is:
//
//	<!-- figure: bench; PACKAGE; BENCHMARK; UNIT -->339<!-- /figure -->
//	<!-- figure: curve; CURVE; SERIES; X; COLUMN -->905,000<!-- /figure -->
var figure = regexp.MustCompile(`(<!-- figure: ([^>\n]*?) -->)([^<\n]*)(<!-- /figure -->)`)

// What stands where nothing was measured.
const (
	noBench = "run `make bench`"
	noCurve = "run `make curves`"
)

const module = "github.com/nvmf-go/nvmf/"

// results are what was measured.
type results struct {
	bench map[benchKey][]float64
	dir   string // of the tables
	// tables are those that were read; nil when there is none.
	tables map[string]*curves.Table
}

type benchKey struct{ pkg, name, unit string }

// readBench reads what go test -bench has printed.
func readBench(text string) map[benchKey][]float64 {
	m, pkg := map[benchKey][]float64{}, ""
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "pkg: "):
			pkg = strings.TrimPrefix(strings.TrimSpace(strings.TrimPrefix(line, "pkg: ")), module)
		case len(f) >= 4 && strings.HasPrefix(f[0], "Benchmark"):
			for i := 2; i+1 < len(f); i += 2 {
				if v, err := strconv.ParseFloat(f[i], 64); err == nil {
					k := benchKey{pkg, f[0], f[i+1]}
					m[k] = append(m[k], v)
				}
			}
		}
	}
	return m
}

// processors is how go test ends the names of benchmarks on more than one.
var processors = regexp.MustCompile(`^-\d+$`)

// benchmark is the median of a benchmark's results.
func (r *results) benchmark(want benchKey) (float64, bool) {
	var all []float64
	for k, v := range r.bench {
		rest, ok := strings.CutPrefix(k.name, want.name)
		if ok && (rest == "" || processors.MatchString(rest)) && k.pkg == want.pkg && k.unit == want.unit {
			all = append(all, v...)
		}
	}
	if len(all) == 0 {
		return 0, false
	}
	slices.Sort(all)
	return all[len(all)/2], true
}

// table reads a curve's table once.
func (r *results) table(name string) (*curves.Table, error) {
	if t, ok := r.tables[name]; ok {
		return t, nil
	}
	f, err := os.Open(filepath.Join(r.dir, name+".csv"))
	if errors.Is(err, fs.ErrNotExist) {
		r.tables[name] = nil
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := curves.ReadCSV(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	r.tables[name] = t
	return t, nil
}

// point is a value of a curve; not there when it was not measured.
func (r *results) point(curve, series string, x float64, column string) (v float64, there bool, err error) {
	t, err := r.table(curve)
	if t == nil || err != nil {
		return 0, false, err
	}
	at := slices.IndexFunc(t.Columns, func(c curves.Column) bool { return c.Name == column })
	if at < 0 {
		return 0, false, fmt.Errorf("curve %s has no column %q", curve, column)
	}
	for _, row := range t.Rows {
		if row.X == x && row.Series == series && !math.IsNaN(row.Values[at]) {
			return row.Values[at], true, nil
		}
	}
	return 0, false, nil
}

// value is the text of a figure.
func (r *results) value(spec string) (string, error) {
	f := strings.Split(spec, ";")
	for i := range f {
		f[i] = strings.TrimSpace(f[i])
	}
	switch {
	case f[0] == "bench" && len(f) == 4:
		if v, ok := r.benchmark(benchKey{f[1], f[2], f[3]}); ok {
			return number(v), nil
		}
		return noBench, nil
	case f[0] == "curve" && len(f) == 5:
		x, err := strconv.ParseFloat(f[3], 64)
		if err != nil {
			return "", fmt.Errorf("figure %q: %w", spec, err)
		}
		v, ok, err := r.point(f[1], f[2], x, f[4])
		if err != nil || !ok {
			return noCurve, err
		}
		return number(v), nil
	}
	return "", fmt.Errorf("figure %q: expected bench; PACKAGE; BENCHMARK; UNIT or curve; CURVE; SERIES; X; COLUMN", spec)
}

// number is v in three digits, with commas.
func number(v float64) string {
	v, err := strconv.ParseFloat(fmt.Sprintf("%.3g", v), 64)
	if err != nil {
		return "-"
	}
	if math.Abs(v) >= 1000 {
		return humanize.Comma(int64(v))
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// fill puts the figures into a document. missing is how many were not measured.
func (r *results) fill(doc string) (filled string, missing int, err error) {
	if open, whole := strings.Count(doc, "<!-- figure: "), len(figure.FindAllString(doc, -1)); open != whole {
		return "", 0, fmt.Errorf("%d figures begin and %d are complete on their line", open, whole)
	}
	var errs []error
	filled = figure.ReplaceAllStringFunc(doc, func(s string) string {
		m := figure.FindStringSubmatch(s)
		v, err := r.value(m[2])
		errs = append(errs, err)
		if v == noBench || v == noCurve {
			missing++
		}
		return m[1] + v + m[4]
	})
	return filled, missing, errors.Join(errs...)
}
