package curves

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/nvmf-go/nvmf/internal/version"
)

// Options are a run.
type Options struct {
	// Target is the daemon's program, Host one that calls Host.
	Target, Host string
	// Out is the folder of the results.
	Out string
	// Only chooses points by names like depth/roce/32; nil takes all.
	Only *regexp.Regexp
	// Time is how long each point is measured.
	Time time.Duration
	// Rounds is how often; each value is the median.
	Rounds int
	// Log hears how it goes.
	Log io.Writer
	// Now is the time that results are dated with.
	Now time.Time

	// point stands in for measure in tests.
	point func(ctx context.Context, s Setup) (Measured, error)
}

// Run measures the curves and writes one CSV and one SVG of each, as soon as it
// is complete or ctx has ended. A point that fails is told and left out; the
// error names all of them. Rows of an earlier run on the same machine stay,
// unless their points were measured anew.
func Run(ctx context.Context, list []Curve, o Options) error {
	if o.point == nil {
		o.point = o.measure
	}
	var errs []error
	for i := range list {
		errs = append(errs, o.curve(ctx, &list[i]))
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
	}
	return errors.Join(errs...)
}

// curve measures one curve and writes it.
func (o *Options) curve(ctx context.Context, c *Curve) error {
	t := &Table{X: c.X, Columns: c.columns()}
	var errs []error
	for _, x := range c.Points {
		for _, variant := range c.Variants {
			for _, p := range Providers { // in turns, so that a busy machine does wrong to all alike
				name := pointName(c.Name, series(p, variant), x)
				s, ok := c.Setup(x, variant)
				if !ok || ctx.Err() != nil || o.Only != nil && !o.Only.MatchString(name) {
					continue
				}
				s.Load.Provider, s.Load.Time = p, o.Time
				values, err := o.median(ctx, c, s)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", name, err))
					fmt.Fprintf(o.Log, "%-32s failed: %v\n", name, err)
					continue
				}
				t.Rows = append(t.Rows, Row{X: float64(x), Series: series(p, variant), Values: values})
				fmt.Fprintf(o.Log, "%-32s %s\n", name, inWords(t.Columns, values))
			}
		}
	}
	if len(t.Rows) > 0 {
		errs = append(errs, o.write(c, t))
	}
	return errors.Join(errs...)
}

func inWords(columns []Column, values []float64) (s string) {
	for i, c := range columns {
		if i > 0 {
			s += ", "
		}
		s += c.Name + " " + cell(values[i])
		if c.Unit != "1" {
			s += " " + c.Unit
		}
	}
	return s
}

// median measures a point so many times, and takes the median of each value.
func (o *Options) median(ctx context.Context, c *Curve, s Setup) ([]float64, error) {
	rounds := make([][]float64, len(c.Measures))
	for range max(o.Rounds, 1) {
		m, err := o.point(ctx, s)
		if err != nil {
			return nil, err
		}
		for i := range c.Measures {
			rounds[i] = append(rounds[i], c.Measures[i].Of(&m))
		}
	}
	values := make([]float64, len(rounds))
	for i, r := range rounds {
		slices.Sort(r)
		values[i] = r[len(r)/2]
		if math.IsInf(values[i], 0) {
			values[i] = math.NaN()
		}
	}
	return values, nil
}

// write puts the rows into the curve's files.
func (o *Options) write(c *Curve, t *Table) error {
	path := filepath.Join(o.Out, c.Name+".csv")
	machine := Machine()
	t.Comments = []string{machine, fmt.Sprintf("%s, version %s, %v a point, %d rounds, %d points", o.Now.UTC().Format("2006-01-02 15:04 UTC"), version.String(), o.Time, max(o.Rounds, 1), len(t.Rows))}
	old, err := readTable(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !slices.Equal(old.Columns, t.Columns) || old.X != t.X || len(old.Comments) == 0 || old.Comments[0] != machine:
		fmt.Fprintf(o.Log, "%s was of another machine, or another table: it is replaced\n", path)
	default:
		t = merged(old, t)
	}
	if err := replace(path, t.WriteCSV); err != nil {
		return err
	}
	return o.draw(c, t)
}

// merged is old with the rows of t. When none of the old rows is left, neither
// is what was said of them.
func merged(old, t *Table) *Table {
	covered := !slices.ContainsFunc(old.Rows, func(r Row) bool {
		return !slices.ContainsFunc(t.Rows, func(o Row) bool { return o.X == r.X && o.Series == r.Series })
	})
	if covered {
		return t
	}
	old.Comments = append(old.Comments, t.Comments[1:]...)
	for _, r := range t.Rows {
		old.put(r)
	}
	return old
}

func (o *Options) draw(c *Curve, t *Table) error {
	return replace(filepath.Join(o.Out, c.Name+".svg"), c.Figure(t).WriteSVG)
}

// Draw draws the curves anew whose tables are in o.Out, and that of the cache's
// hit ratios when it is there.
func Draw(list []Curve, o Options) error {
	var errs []error
	for i := range list {
		t, err := readTable(filepath.Join(o.Out, list[i].Name+".csv"))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		default:
			errs = append(errs, o.draw(&list[i], t))
		}
	}
	return errors.Join(append(errs, o.drawCache())...)
}
