package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/internal/bench"
)

// benchSuite runs the same loads on every target that the operands name.
func (w *world) benchSuite(c *cli.Context, o bench.Options) (err error) {
	if !c.Args().Present() || c.Int("rounds") < 1 {
		return usagef("bench --suite: expected --rounds of 1 or more, and operands: roce=ADDRESS[:PORT], for example")
	}
	s := &bench.Suite{Loads: bench.SuiteLoads, Rounds: c.Int("rounds"), Runtime: o.Runtime, Process: o.Process}
	if s.Runtime == 0 {
		return usagef("bench --suite: --runtime is more than 0")
	}
	depth := 0
	for _, l := range s.Loads {
		depth = max(depth, l.Depth)
	}
	var first *session
	for _, arg := range c.Args().Slice() {
		provider, addr, ok := strings.Cut(arg, "=")
		if !ok {
			return usagef("bench --suite: operand %q: expected PROVIDER=ADDRESS[:PORT]", arg)
		}
		one, err := w.open(c, scheme+strings.TrimPrefix(addr, scheme), needs{queues: 1, depth: depth, long: true, provider: provider})
		if err != nil {
			return fmt.Errorf("%s: %w", arg, err)
		}
		defer one.close(&err)
		n, err := one.namespace()
		if err != nil {
			return fmt.Errorf("%s: %w", arg, err)
		}
		s.Columns = append(s.Columns, bench.Column{Name: provider, Namespace: n})
		first = one
	}
	s.Progress = func(round int, l bench.Load, col bench.Column) {
		if w.terminal {
			fmt.Fprintf(w.stderr, "\r\x1b[Kround %d of %d: %v, %s", round+1, s.Rounds, l, col.Name)
		}
	}
	err = s.Run(c.Context)
	if w.terminal {
		fmt.Fprint(w.stderr, "\r\x1b[K")
	}
	if err != nil {
		return err
	}
	return w.print(first, s.Doc())
}
