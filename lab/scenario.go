package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// scenario is one file of lab/scenarios: a shell script whose head comment
// says what it shows and what it needs. README.md lists the keys.
type scenario struct {
	name    string
	about   string        // the head comment's prose, first line
	sets    []string      // quick, soak
	needs   []string      // target, roce, siw, nvmet...: need_NAME of guest/lib.sh runs first
	timeout time.Duration // of the script, without the clean-up, times patience
	may     []*regexp.Regexp
	must    []*regexp.Regexp
}

// defaultTimeout is for scenarios that say none, on a quiet machine.
const defaultTimeout = 60 * time.Second

// patience multiplies every time that something is waited for (here and in
// guest/checks.sh): the machine may be busy, and the guest's processor is
// emulated. LAB_PATIENCE sets another one.
func patience() time.Duration {
	if n, err := strconv.Atoi(os.Getenv("LAB_PATIENCE")); err == nil && n > 0 {
		return time.Duration(n)
	}
	return 3
}

// headKey tells "set: quick" from prose with a colon in it.
var headKey = regexp.MustCompile(`^[a-z-]+$`)

// loadScenarios reads every scenario, sorted by name.
func loadScenarios(dir string) ([]scenario, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.sh"))
	if err != nil {
		return nil, err
	}
	var all []scenario
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		s, err := parseScenario(strings.TrimSuffix(filepath.Base(f), ".sh"), string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// parseScenario reads the head comment: prose, and lines "# key: value".
func parseScenario(name, text string) (scenario, error) {
	s := scenario{name: name, timeout: defaultTimeout}
	for line := range strings.Lines(text) {
		comment, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "#")
		if !ok {
			break
		}
		comment = strings.TrimSpace(comment)
		key, value, ok := strings.Cut(comment, ": ")
		if !ok || !headKey.MatchString(key) {
			if s.about == "" {
				s.about = comment
			}
			continue
		}
		if err := s.set(key, strings.TrimSpace(value)); err != nil {
			return s, err
		}
	}
	s.timeout *= patience()
	switch {
	case s.about == "":
		return s, fmt.Errorf("the head comment does not say what the scenario shows")
	case len(s.sets) == 0:
		return s, fmt.Errorf("the head comment has no line \"# set: quick\" or \"# set: soak\"")
	}
	return s, nil
}

// set takes one key of the head.
func (s *scenario) set(key, value string) (err error) {
	switch key {
	case "set":
		s.sets = strings.Fields(value)
		for _, set := range s.sets {
			if set != "quick" && set != "soak" {
				return fmt.Errorf("set %q: want quick or soak", set)
			}
		}
	case "needs":
		s.needs = strings.Fields(value)
	case "timeout":
		s.timeout, err = time.ParseDuration(value)
	case "kernel-may":
		s.may, err = appendPattern(s.may, value)
	case "kernel-must":
		s.must, err = appendPattern(s.must, value)
	default:
		return fmt.Errorf("unknown key %q: want set, needs, timeout, kernel-may or kernel-must", key)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// appendPattern compiles a pattern that must match a whole line.
func appendPattern(list []*regexp.Regexp, pattern string) ([]*regexp.Regexp, error) {
	re, err := regexp.Compile("^(?:" + pattern + ")$")
	return append(list, re), err
}

// selectScenarios finds the scenarios that words name: a name, a set, or all.
func selectScenarios(all []scenario, words []string) (chosen []scenario, err error) {
	for _, w := range words {
		found := false
		for _, s := range all {
			if w != "all" && w != s.name && !slices.Contains(s.sets, w) {
				continue
			}
			found = true
			if !slices.ContainsFunc(chosen, func(c scenario) bool { return c.name == s.name }) {
				chosen = append(chosen, s)
			}
		}
		if !found {
			return nil, fmt.Errorf("no scenario or set %q: lab/run list names them", w)
		}
	}
	return chosen, nil
}
