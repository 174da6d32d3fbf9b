package rdmatool

import (
	"fmt"
	"io"
	"time"
)

// StepWriter gives a report function for Smoke that writes a line for each
// step.
func StepWriter(w io.Writer) func(Step) {
	return func(s Step) {
		mark, text := "ok  ", s.Detail
		switch {
		case s.Error != "":
			mark, text = "FAIL", s.Error
		case s.Skipped != "":
			mark, text = "skip", s.Skipped
		}
		fmt.Fprintf(w, "%s %10s  %-38s %s\n", mark, round(s.Took), s.Name, text)
	}
}

// WriteSummary writes the last line of a trial: what passed, or that it did
// not.
func (r *SmokeResult) WriteSummary(w io.Writer) error {
	passed, skipped, failed := 0, 0, 0
	for _, s := range r.Steps {
		switch {
		case s.Error != "":
			failed++
		case s.Skipped != "":
			skipped++
		default:
			passed++
		}
	}
	verdict := "passed"
	if failed > 0 {
		verdict = "FAILED"
	}
	_, err := fmt.Fprintf(w, "%s: %d steps passed, %d skipped, %d failed in %s\n", verdict, passed, skipped, failed, round(r.Took))
	return err
}

// round keeps three digits.
func round(d time.Duration) time.Duration {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
