// Package plot draws measured curves as SVG: panels of lines with labelled axes,
// linear or logarithmic. It needs nothing but the standard library, and what it
// draws needs no font, script or style of others; a reader's dark mode is heeded.
//
// The same figure gives the same bytes, so that a drawing in a repository changes
// only when its data does.
package plot

import "math"

// Point is a measured point.
type Point struct{ X, Y float64 }

// Line is a series of points, drawn in the order of X.
type Line struct {
	Label string // in the legend; lines of one label share an entry
	Color int    // index of a colour, any number
	Dash  int    // 0 solid, 1 dashed, 2 dotted, and so on around
	// Points that are not finite, not between 1e-100 and 1e100 (or 0), or not
	// positive on a logarithmic axis, are left out.
	Points []Point
}

// Unit says how the numbers of an axis are written.
type Unit uint8

// Units.
const (
	Plain   Unit = iota // 1, 1k, 1M
	Bytes               // 512 B, 4 KiB, 1 MiB
	Percent             // of shares, 0 to 1: 25 %
)

// Axis is one side of a panel.
type Axis struct {
	Label string // with the unit
	Unit  Unit
	// Log is the base of a logarithmic scale, 2 or 10; 0 is a linear scale,
	// which begins at 0 or below.
	Log int
}

// Panel is one diagram.
type Panel struct {
	Title string
	X, Y  Axis
	Lines []Line
}

// Figure is a drawing of panels, two in a row.
type Figure struct {
	Title   string
	Caption string // below: on what it was measured
	Panels  []Panel
}

// Nothing that is measured is closer to 0, or further away: beyond, the
// arithmetic of scales would end.
const nearest, furthest = 1e-100, 1e100

func (a *Axis) shows(v float64) bool {
	if v == 0 {
		return a.Log == 0
	}
	size := math.Abs(v)
	return size >= nearest && size <= furthest && (a.Log == 0 || v > 0)
}

// visible are the points of a line that its panel can show.
func (p *Panel) visible(l *Line) (list []Point) {
	for _, q := range l.Points {
		if p.X.shows(q.X) && p.Y.shows(q.Y) {
			list = append(list, q)
		}
	}
	return list
}
