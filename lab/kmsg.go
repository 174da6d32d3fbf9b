package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"strings"
)

// kmsgLine is a line of `dmesg --decode`: facility, level, time and text.
var kmsgLine = regexp.MustCompile(`^(\w+) *:(\w+) *: \[ *([0-9.]+)\] ?(.*)$`)

// kernelLines are the texts of the lines the kernel itself wrote; what
// programs wrote to /dev/kmsg (the lab's own marks) is left out.
func kernelLines(dmesg string) (lines []string) {
	for line := range strings.Lines(dmesg) {
		m := kmsgLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		switch {
		case m == nil:
			lines = append(lines, strings.TrimRight(line, "\n"))
		case m[1] == "kern":
			lines = append(lines, m[4])
		}
	}
	return lines
}

// judgeKernel says what is wrong with a scenario's kernel lines: each one that
// no pattern of may or must allows, and each pattern of must that none matches.
func judgeKernel(lines []string, may, must []*regexp.Regexp) (faults []string) {
	seen := make([]bool, len(must))
	for _, line := range lines {
		expected := matchesAny(line, may)
		for i, re := range must {
			if re.MatchString(line) {
				seen[i], expected = true, true
			}
		}
		if !expected {
			faults = append(faults, "unexpected kernel line: "+line)
		}
	}
	for i, re := range must {
		if !seen[i] {
			faults = append(faults, "the kernel did not say: "+re.String())
		}
	}
	return faults
}

func matchesAny(line string, patterns []*regexp.Regexp) bool {
	for _, re := range patterns {
		if re.MatchString(line) {
			return true
		}
	}
	return false
}

// loadPatterns reads one pattern a line; empty lines and # comments are skipped.
func loadPatterns(path string) (patterns []*regexp.Regexp, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for s, n := bufio.NewScanner(f), 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if patterns, err = appendPattern(patterns, line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
	}
	return patterns, nil
}
