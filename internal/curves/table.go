package curves

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Column is what a column of a table has.
type Column struct{ Name, Unit string }

// header is the column's first cell.
func (c Column) header() string { return c.Name + " [" + c.Unit + "]" }

// parseColumn is the reverse of header.
func parseColumn(s string) (Column, error) {
	name, unit, ok := strings.Cut(strings.TrimSuffix(s, "]"), " [")
	if !ok || !strings.HasSuffix(s, "]") || name == "" {
		return Column{}, fmt.Errorf("column %q: expected NAME [UNIT]", s)
	}
	return Column{name, unit}, nil
}

// Row is a point of a series.
type Row struct {
	X      float64
	Series string
	Values []float64 // by column; NaN where there is none
}

// Table is a curve as measured.
type Table struct {
	// Comments are lines ahead of the table: the machine, then each run that
	// has measured some of the rows.
	Comments []string
	X        Column
	Columns  []Column // of Row.Values
	Rows     []Row
}

const seriesHeader = "series"

// maxTable bounds what is read of a file.
const maxTable = 16 << 20

// series are the names of the series, in the order of appearance.
func (t *Table) series() (list []string) {
	for _, r := range t.Rows {
		if !slices.Contains(list, r.Series) {
			list = append(list, r.Series)
		}
	}
	return list
}

// caption is a line for below a drawing.
func (t *Table) caption() string {
	n := len(t.Comments)
	switch {
	case n == 0:
		return ""
	case n <= 2:
		return strings.Join(t.Comments, "; ")
	}
	return fmt.Sprintf("%s; %d runs, the last: %s", t.Comments[0], n-1, t.Comments[n-1])
}

// put adds a row, in place of one of the same place.
func (t *Table) put(r Row) {
	i := slices.IndexFunc(t.Rows, func(o Row) bool { return o.X == r.X && o.Series == r.Series })
	if i >= 0 {
		t.Rows[i] = r
		return
	}
	t.Rows = append(t.Rows, r)
}

// cell writes a number in five digits, or whole when that is longer.
func cell(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return ""
	}
	if math.Abs(v) >= 1e5 || v == math.Trunc(v) {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 5, 64)
}

// WriteCSV writes comments, a header with units, and the rows by series and X.
func (t *Table) WriteCSV(w io.Writer) error {
	for _, c := range t.Comments {
		if _, err := fmt.Fprintf(w, "# %s\n", strings.ReplaceAll(c, "\n", " ")); err != nil {
			return err
		}
	}
	c := csv.NewWriter(w)
	record := []string{t.X.header(), seriesHeader}
	for _, col := range t.Columns {
		record = append(record, col.header())
	}
	_ = c.Write(record) // Error tells
	order := t.series()
	rows := slices.Clone(t.Rows)
	slices.SortStableFunc(rows, func(a, b Row) int {
		if a.Series != b.Series {
			return slices.Index(order, a.Series) - slices.Index(order, b.Series)
		}
		return cmp.Compare(a.X, b.X)
	})
	for _, r := range rows {
		record = append(record[:0], cell(r.X), r.Series)
		for _, v := range r.Values {
			record = append(record, cell(v))
		}
		_ = c.Write(record)
	}
	c.Flush()
	return c.Error()
}

// ReadCSV reads what WriteCSV has written.
func ReadCSV(r io.Reader) (*Table, error) {
	b := bufio.NewReader(io.LimitReader(r, maxTable))
	t := &Table{}
	for {
		first, err := b.Peek(1)
		if err != nil || first[0] != '#' {
			break
		}
		line, err := b.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("a comment without end: %w", err)
		}
		t.Comments = append(t.Comments, strings.TrimSpace(line[1:]))
	}
	records, err := csv.NewReader(b).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(records) == 0 || len(records[0]) < 2 || records[0][1] != seriesHeader {
		return nil, errors.New("expected a header whose second column is " + seriesHeader)
	}
	return t, t.parse(records)
}

// parse takes records of equal length: the header and the rows.
func (t *Table) parse(records [][]string) (err error) {
	if t.X, err = parseColumn(records[0][0]); err != nil {
		return err
	}
	for _, h := range records[0][2:] {
		c, err := parseColumn(h)
		if err != nil {
			return err
		}
		t.Columns = append(t.Columns, c)
	}
	for i, rec := range records[1:] {
		r := Row{Series: rec[1]}
		if r.X, err = strconv.ParseFloat(rec[0], 64); err != nil {
			return fmt.Errorf("row %d: %w", i+1, err)
		}
		for _, s := range rec[2:] {
			v := math.NaN()
			if s != "" {
				if v, err = strconv.ParseFloat(s, 64); err != nil {
					return fmt.Errorf("row %d: %w", i+1, err)
				}
			}
			r.Values = append(r.Values, v)
		}
		t.Rows = append(t.Rows, r)
	}
	return nil
}

// readTable reads a file.
func readTable(path string) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := ReadCSV(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// replace writes a file as a whole: who reads it sees the old or the new one.
func replace(path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	draft := path + ".new"
	if err := os.WriteFile(draft, b.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(draft, path)
}
