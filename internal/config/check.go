package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nvmf-go/nvmf/nvme"
)

// uniq remembers the key under which a value was met first.
type uniq map[string]string

func (d *decoder) unique(key, v string, seen uniq) {
	if first, ok := seen[v]; ok {
		line := 0
		if n := d.nearest(first); n != nil {
			line = n.Line
		}
		d.bad(key, v, fmt.Sprintf("already used by %s on line %d", first, line))
		return
	}
	seen[v] = key
}

func (d *decoder) oneOf(key, v string, words ...string) {
	for _, w := range words {
		if v == w {
			return
		}
	}
	d.bad(key, v, "expected "+strings.Join(words[:len(words)-1], ", ")+or(len(words))+words[len(words)-1])
}

func or(n int) string {
	if n > 1 {
		return " or "
	}
	return ""
}

func (d *decoder) within(key string, v, lo, hi int) {
	if (v < lo || v > hi) && !d.failed(key) {
		d.bad(key, value(v), fmt.Sprintf("expected %d to %d", lo, hi))
	}
}

func (d *decoder) size(key string, v, lo, hi Size) {
	if (v < lo || v > hi) && !d.failed(key) {
		d.bad(key, v.String(), fmt.Sprintf("expected %v to %v", lo, hi))
	}
}

// failed says whether a mistake was noted at key already.
func (d *decoder) failed(key string) bool {
	for _, e := range d.errs {
		if e.Key == key {
			return true
		}
	}
	return false
}

// name checks a name that other keys refer to.
func (d *decoder) name(key, v string, seen uniq) {
	if v == "" {
		d.bad(key, "", "missing: a name")
		return
	}
	if len(v) > 64 || strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r > '~' }) {
		d.bad(key, v, "expected at most 64 printable ASCII characters without spaces")
		return
	}
	d.unique(key, v, seen)
}

func (d *decoder) nqn(key, v string) bool {
	if _, err := nvme.ParseNQN(v); err != nil {
		why := err
		if inner := errors.Unwrap(err); inner != nil {
			why = inner // without the name itself, which the message has already
		}
		d.bad(key, v, why.Error())
		return false
	}
	return true
}

func (d *decoder) ascii(key, v string, most int) {
	if len(v) > most || strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' }) {
		d.bad(key, v, fmt.Sprintf("expected at most %d printable ASCII characters", most))
	}
}

func value(v int) string { return strconv.Itoa(v) }
