package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func (r result) verdict() string {
	if len(r.faults) == 0 {
		return "PASS"
	}
	return "FAIL"
}

// print says how a scenario ended.
func (r result) print(w io.Writer) {
	fmt.Fprintf(w, "--- %s: %s (%.1fs)\n", r.verdict(), r.name, r.took.Seconds())
	for _, f := range r.faults {
		fmt.Fprintf(w, "    %s\n", f)
	}
}

// summarize prints one line for each scenario, keeps them in the run's folder,
// and fails when one failed.
func summarize(w io.Writer, dir string, results []result) error {
	var b strings.Builder
	failed := 0
	var total time.Duration
	for _, r := range results {
		total += r.took
		fmt.Fprintf(&b, "%s %-24s %6.1fs %s\n", r.verdict(), r.name, r.took.Seconds(), strings.Join(r.faults[:min(1, len(r.faults))], ""))
		if len(r.faults) > 0 {
			failed++
		}
	}
	fmt.Fprintf(&b, "%d of %d passed in %.0f s; logs: %s\n", len(results)-failed, len(results), total.Seconds(), dir)
	fmt.Fprint(w, "\n", b.String())
	if err := os.WriteFile(filepath.Join(dir, "summary.txt"), []byte(b.String()), 0o644); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d scenarios failed", failed, len(results))
	}
	return nil
}
