package plot

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
)

// Sizes in pixels.
const (
	panelWidth, panelHeight = 420, 300
	left, right             = 66, 24 // of the axes, in a panel
	top, bottom             = 34, 52
	head, foot              = 34, 24 // of the figure
	legendRow               = 18
	legendColumn            = 210
	plotWidth               = panelWidth - left - right
	plotHeight              = panelHeight - top - bottom
	columns                 = 2
)

// style has the colours of light and of dark mode. The ground is opaque: a page
// may be light where the reader's system is dark.
const style = `<style>
.ground{fill:#ffffff}.frame{fill:none;stroke:#8c959f}.grid{stroke:#d8dee4}
text{fill:#1f2328;font-family:system-ui,sans-serif;font-size:12px}.title{font-size:14px;font-weight:600}.small{font-size:11px;fill:#59636e}
.c0{stroke:#0969da;color:#0969da}.c1{stroke:#bc4c00;color:#bc4c00}.c2{stroke:#1a7f37;color:#1a7f37}.c3{stroke:#8250df;color:#8250df}
.line{fill:none;stroke-width:2}.dot{fill:currentColor;stroke:none}
@media (prefers-color-scheme:dark){
.ground{fill:#0d1117}.frame{stroke:#656c76}.grid{stroke:#2f353d}text{fill:#f0f6fc}.small{fill:#9198a1}
.c0{stroke:#58a6ff;color:#58a6ff}.c1{stroke:#f0883e;color:#f0883e}.c2{stroke:#3fb950;color:#3fb950}.c3{stroke:#bc8cff;color:#bc8cff}
}
</style>
`

const colors = 4

var dashes = [...]string{"", ` stroke-dasharray="6 4"`, ` stroke-dasharray="2 3"`}

// WriteSVG writes the figure as an SVG document.
func (f *Figure) WriteSVG(w io.Writer) error {
	d := drawing{legend: f.legend()}
	rows := (len(f.Panels) + columns - 1) / columns
	cols := min(max(len(f.Panels), 1), columns)
	width := cols * panelWidth
	perRow := max(width/legendColumn, 1)
	legendHeight := (len(d.legend) + perRow - 1) / perRow * legendRow
	height := head + legendHeight + rows*panelHeight + foot
	fmt.Fprintf(&d.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", width, height, width, height)
	fmt.Fprintf(&d.b, "<title>%s</title>\n%s", escape(f.Title), style)
	fmt.Fprintf(&d.b, `<rect class="ground" width="%d" height="%d"/>`+"\n", width, height)
	d.text(16, 22, "title", "start", f.Title)
	for i, l := range d.legend {
		d.key(16+i%perRow*legendColumn, head+i/perRow*legendRow, l)
	}
	for i := range f.Panels {
		d.panel(&f.Panels[i], i%columns*panelWidth, head+legendHeight+i/columns*panelHeight)
	}
	d.text(16, height-8, "small", "start", f.Caption)
	d.b.WriteString("</svg>\n")
	_, err := w.Write(d.b.Bytes())
	return err
}

// legend has one line of each label, in the order of appearance.
func (f *Figure) legend() (list []*Line) {
	for i := range f.Panels {
		for j := range f.Panels[i].Lines {
			l := &f.Panels[i].Lines[j]
			if !slices.ContainsFunc(list, func(o *Line) bool { return o.Label == l.Label }) {
				list = append(list, l)
			}
		}
	}
	return list
}

// drawing is a document in the making.
type drawing struct {
	b      bytes.Buffer
	legend []*Line
}

func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer takes all
	return b.String()
}

func (d *drawing) text(x, y int, class, anchor, s string) {
	if s != "" {
		fmt.Fprintf(&d.b, `<text class="%s" x="%d" y="%d" text-anchor="%s">%s</text>`+"\n", class, x, y, anchor, escape(s))
	}
}

func (l *Line) class() string { return fmt.Sprintf("c%d", (l.Color%colors+colors)%colors) }

func (l *Line) dash() string { return dashes[(l.Dash%len(dashes)+len(dashes))%len(dashes)] }

// key draws an entry of the legend.
func (d *drawing) key(x, y int, l *Line) {
	fmt.Fprintf(&d.b, `<path class="line %s"%s d="M%d %dh28"/>`+"\n", l.class(), l.dash(), x, y+8)
	d.text(x+36, y+12, "label", "start", l.Label)
}

// panel draws a diagram whose corner is at x, y.
func (d *drawing) panel(p *Panel, x, y int) {
	var xs, ys []float64
	for i := range p.Lines {
		for _, q := range p.visible(&p.Lines[i]) {
			xs, ys = append(xs, q.X), append(ys, q.Y)
		}
	}
	sx, sy := newScale(&p.X, xs), newScale(&p.Y, ys)
	fmt.Fprintf(&d.b, `<g transform="translate(%d %d)">`+"\n", x+left, y+top)
	d.text(plotWidth/2, -12, "title", "middle", p.Title)
	d.xTicks(&sx)
	d.yTicks(&sy)
	fmt.Fprintf(&d.b, `<rect class="frame" width="%d" height="%d"/>`+"\n", plotWidth, plotHeight)
	d.text(plotWidth/2, plotHeight+38, "label", "middle", p.X.Label)
	fmt.Fprintf(&d.b, `<text x="%d" y="-52" text-anchor="middle" transform="rotate(-90)">%s</text>`+"\n", -plotHeight/2, escape(p.Y.Label))
	if len(xs) == 0 {
		d.text(plotWidth/2, plotHeight/2, "small", "middle", "no data")
	}
	for i := range p.Lines {
		d.line(&p.Lines[i], p.visible(&p.Lines[i]), &sx, &sy)
	}
	d.b.WriteString("</g>\n")
}

func (d *drawing) xTicks(s *scale) {
	for _, v := range s.ticks {
		x := s.at(v) * plotWidth
		fmt.Fprintf(&d.b, `<path class="grid" d="M%s 0v%d"/>`, coordinate(x), plotHeight)
		fmt.Fprintf(&d.b, `<text class="small" x="%s" y="%d" text-anchor="middle">%s</text>`+"\n", coordinate(x), plotHeight+17, escape(s.label(v)))
	}
}

func (d *drawing) yTicks(s *scale) {
	for _, v := range s.ticks {
		y := (1 - s.at(v)) * plotHeight
		fmt.Fprintf(&d.b, `<path class="grid" d="M0 %sh%d"/>`, coordinate(y), plotWidth)
		fmt.Fprintf(&d.b, `<text class="small" x="-7" y="%s" text-anchor="end">%s</text>`+"\n", coordinate(y+4), escape(s.label(v)))
	}
}

// line draws points from left to right: a dot each, and what joins them.
func (d *drawing) line(l *Line, points []Point, sx, sy *scale) {
	slices.SortStableFunc(points, func(a, b Point) int { return cmp.Compare(a.X, b.X) })
	var path, dots bytes.Buffer
	for i, q := range points {
		x, y := coordinate(sx.at(q.X)*plotWidth), coordinate((1-sy.at(q.Y))*plotHeight)
		fmt.Fprintf(&path, "%c%s %s", "LM"[b2i(i == 0)], x, y)
		fmt.Fprintf(&dots, `<circle class="dot" cx="%s" cy="%s" r="2.5"/>`, x, y)
	}
	if len(points) == 0 {
		return
	}
	fmt.Fprintf(&d.b, `<g class="%s"><path class="line"%s d="%s"/>%s</g>`+"\n", l.class(), l.dash(), path.Bytes(), dots.Bytes())
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// coordinate is a place to a tenth of a pixel, without a minus before a zero.
func coordinate(v float64) string {
	s := fmt.Sprintf("%.1f", v)
	if s == "-0.0" {
		return "0.0"
	}
	return s
}
