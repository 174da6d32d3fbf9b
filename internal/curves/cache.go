package curves

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/nvmf-go/nvmf/internal/curves/plot"
)

// cacheName is the table that the test TestHitRatios of backend/cache writes
// with -curve, and the drawing of it.
const cacheName = "cache-hit-ratio"

// cacheHeader are the columns of that table.
var cacheHeader = []string{"cache_share", "pages", "scan", "hit_ratio", "lru_hit_ratio"}

// drawCache draws the hit ratios, when they are there.
func (o *Options) drawCache() error {
	path := filepath.Join(o.Out, cacheName+".csv")
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	fig, err := cacheFigure(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return replace(filepath.Join(o.Out, cacheName+".svg"), fig.WriteSVG)
}

// cacheFigure draws what the cache's test has written: shares of the working
// set, and which part of the reads hit, beside plain LRU.
func cacheFigure(r io.Reader) (*plot.Figure, error) {
	c := csv.NewReader(io.LimitReader(r, maxTable))
	c.Comment = '#'
	records, err := c.ReadAll()
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	if len(records) > 0 {
		for i, h := range records[0] {
			at[h] = i
		}
	}
	for _, h := range cacheHeader {
		if _, ok := at[h]; !ok {
			return nil, fmt.Errorf("no column %s", h)
		}
	}
	panels := []plot.Panel{cachePanel("Zipf 1.1 reads"), cachePanel("the same, with a scan beside it")}
	for i, rec := range records[1:] {
		if err := cachePoint(panels, rec, at); err != nil {
			return nil, fmt.Errorf("row %d: %w", i+1, err)
		}
	}
	return &plot.Figure{Title: "Hit ratio of the cache, by its size", Caption: "TestHitRatios of backend/cache, -curve", Panels: panels}, nil
}

func cachePanel(title string) plot.Panel {
	return plot.Panel{
		Title: title, X: plot.Axis{Label: "cache, in pages", Log: 2}, Y: plot.Axis{Label: "reads that hit", Unit: plot.Percent},
		Lines: []plot.Line{{Label: "this cache (TinyLFU)"}, {Label: "plain LRU", Color: 1}},
	}
}

func cachePoint(panels []plot.Panel, rec []string, at map[string]int) error {
	var v [3]float64
	for i, h := range []string{"pages", "hit_ratio", "lru_hit_ratio"} {
		var err error
		if v[i], err = strconv.ParseFloat(rec[at[h]], 64); err != nil {
			return err
		}
	}
	scan, err := strconv.ParseBool(rec[at["scan"]])
	if err != nil {
		return err
	}
	p := &panels[0]
	if scan {
		p = &panels[1]
	}
	for i := range p.Lines {
		p.Lines[i].Points = append(p.Lines[i].Points, plot.Point{X: v[0], Y: v[1+i]})
	}
	return nil
}
