package config

import (
	"fmt"
	"slices"
	"strings"
)

// Error is one mistake of a file.
type Error struct {
	File      string
	Line, Col int    // from 1; 0 when the mistake has no place, as a missing key of the top level
	Key       string // path of the key: subsystems[0].nqn
	Value     string // what was there; empty when nothing was
	Expected  string // what should have been
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", e.Line, e.Col)
	}
	if e.Key != "" {
		fmt.Fprintf(&b, ": %s", e.Key)
	}
	if e.Value != "" {
		fmt.Fprintf(&b, ": %q", shorten(e.Value))
	}
	fmt.Fprintf(&b, ": %s", e.Expected)
	return b.String()
}

// Errors are all mistakes of a file, in the order of their lines.
type Errors []*Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, m := range e {
		lines[i] = m.Error()
	}
	return strings.Join(lines, "\n")
}

func (e Errors) sorted() Errors {
	slices.SortStableFunc(e, func(a, b *Error) int { return a.Line - b.Line })
	return e
}

func shorten(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
