package plot

import (
	"fmt"
	"math"
	"strconv"
)

// scale maps values to 0 to 1.
type scale struct {
	axis   *Axis
	lo, hi float64 // values, lo < hi
	ticks  []float64
}

// maxTicks is about how many labels an axis has room for.
const maxTicks = 7

// newScale makes a scale on which all values are. It is never empty: without a
// value it is from 1 to 10, and a single one has room on both sides.
func newScale(a *Axis, values []float64) scale {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		lo, hi = min(lo, v), max(hi, v)
	}
	if lo > hi {
		lo, hi = 1, 10
	}
	if a.Log > 0 {
		return logScale(a, lo, hi)
	}
	return linearScale(a, min(lo, 0), hi)
}

// logScale begins and ends at powers of the base; all ticks are powers.
func logScale(a *Axis, lo, hi float64) scale {
	first, last := exponent(a.Log, lo, math.Floor), exponent(a.Log, hi, math.Ceil)
	if first == last {
		first, last = first-1, last+1
	}
	step := (last - first + maxTicks - 1) / maxTicks
	s := scale{axis: a, lo: power(a.Log, first), hi: power(a.Log, last)}
	for e := first; e <= last; e += step {
		s.ticks = append(s.ticks, power(a.Log, e))
	}
	return s
}

// exponent is the logarithm of v rounded by a function, where what is a power
// but for the last bit counts as one.
func exponent(base int, v float64, round func(float64) float64) int {
	l := math.Log2(v)
	if base == 10 {
		l = math.Log10(v)
	}
	if near := math.Round(l); math.Abs(l-near) < 1e-9 {
		return int(near)
	}
	return int(round(l))
}

func power(base, e int) float64 { return math.Pow(float64(base), float64(e)) }

// linearScale ends at a tick; the ticks are 1, 2 or 5 times a power of ten.
func linearScale(a *Axis, lo, hi float64) scale {
	if lo == hi {
		hi = lo + 1
	}
	step := niceStep((hi - lo) / (maxTicks - 1))
	first, last := math.Floor(lo/step), math.Ceil(hi/step)
	s := scale{axis: a, lo: first * step, hi: last * step}
	for i := first; i <= last; i++ {
		s.ticks = append(s.ticks, i*step)
	}
	return s
}

// niceStep is the least of 1, 2, 5 times a power of ten that is not below v.
func niceStep(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 2, 5} {
		if f*p >= v*(1-1e-9) {
			return f * p
		}
	}
	return 10 * p
}

// at is where v is between the ends, 0 to 1.
func (s *scale) at(v float64) float64 {
	if s.axis.Log > 0 {
		lo, hi := math.Log2(s.lo), math.Log2(s.hi)
		return (math.Log2(v) - lo) / (hi - lo)
	}
	return (v - s.lo) / (s.hi - s.lo)
}

// label writes a tick.
func (s *scale) label(v float64) string {
	switch s.axis.Unit {
	case Bytes:
		return prefixed(v, 1024, [...]string{" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"})
	case Percent:
		return digits(v*100) + " %"
	}
	if s.axis.Log == 2 && v >= 1 && v < 1e5 {
		return strconv.FormatFloat(v, 'f', -1, 64) // 1024 is not 1.024k
	}
	return prefixed(v, 1000, [...]string{"", "k", "M", "G", "T", "P", "E"})
}

func prefixed(v, base float64, prefixes [7]string) string {
	i := 0
	for ; math.Abs(v) >= base && i < len(prefixes)-1; i++ {
		v /= base
	}
	return digits(v) + prefixes[i]
}

// digits is v in at most four digits and without zeroes behind.
func digits(v float64) string {
	if a := math.Abs(v); a != 0 && (a >= 1e15 || a < 1e-4) {
		return fmt.Sprintf("%.0e", v)
	}
	return strconv.FormatFloat(mustParse(fmt.Sprintf("%.4g", v)), 'f', -1, 64)
}

// mustParse reads what was printed a moment ago.
func mustParse(s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		panic(err)
	}
	return v
}
