package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseScenario(t *testing.T) {
	s, err := parseScenario("x", `# What it shows: all of it.
#
# More prose.
#
# set: quick soak
# needs: target roce
# timeout: 90s
# kernel-may: nvme nvme\d+: lost
# kernel-must: nvme nvme\d+: found

# set: not read any more
`)
	if err != nil {
		t.Fatal(err)
	}
	if s.about != "What it shows: all of it." {
		t.Errorf("about %q", s.about)
	}
	if !slices.Equal(s.sets, []string{"quick", "soak"}) || !slices.Equal(s.needs, []string{"target", "roce"}) || s.timeout != 90*time.Second*patience() {
		t.Errorf("sets %v needs %v timeout %v", s.sets, s.needs, s.timeout)
	}
	if len(s.may) != 1 || len(s.must) != 1 {
		t.Fatalf("%d may, %d must", len(s.may), len(s.must))
	}
	for line, want := range map[string]bool{
		"nvme nvme12: lost":       true,
		"nvme nvme12: lost again": false,
		"a nvme nvme12: lost":     false,
	} {
		if got := s.may[0].MatchString(line); got != want {
			t.Errorf("may matches %q: %v", line, got)
		}
	}
}

func TestParseScenarioMistakes(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"echo\n", "does not say what"},
		{"# Prose.\n", "no line"},
		{"# Prose.\n# set: fast\n", `set "fast"`},
		{"# Prose.\n# set: quick\n# need: roce\n", `unknown key "need"`},
		{"# Prose.\n# set: quick\n# timeout: soon\n", "timeout"},
		{"# Prose.\n# set: quick\n# kernel-may: (\n", "kernel-may"},
	} {
		_, err := parseScenario("x", test.text)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: error %v, want %q", test.text, err, test.want)
		}
	}
}

func TestSelectScenarios(t *testing.T) {
	all := []scenario{{name: "a", sets: []string{"quick"}}, {name: "b", sets: []string{"soak"}}, {name: "c", sets: []string{"quick", "soak"}}}
	for words, want := range map[string]string{
		"quick":   "a c",
		"soak b":  "b c",
		"b quick": "b a c",
		"all":     "a b c",
	} {
		chosen, err := selectScenarios(all, strings.Fields(words))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range chosen {
			names = append(names, s.name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %s, want %s", words, got, want)
		}
	}
	if _, err := selectScenarios(all, []string{"d"}); err == nil {
		t.Error("an unknown name was accepted")
	}
}

// TestScenarioFiles holds every scenario and every shell file of the guest to
// what can be seen without a guest.
func TestScenarioFiles(t *testing.T) {
	all, err := loadScenarios("scenarios")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 2 {
		t.Fatalf("%d scenarios", len(all))
	}
	if _, err := loadPatterns("kernel-lines.txt"); err != nil {
		t.Error(err)
	}
	libs, err := filepath.Glob("guest/*.sh")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := filepath.Glob("scenarios/*.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(libs, scripts...) {
		if out, err := exec.Command("bash", "-n", f).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", f, out)
		}
	}
	known, err := exec.Command("bash", "-c", "cat guest/*.sh").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		for _, need := range s.needs {
			if !strings.Contains(string(known), "\nneed_"+need+"()") {
				t.Errorf("%s needs %s: no need_%s in lab/guest", s.name, need, need)
			}
		}
	}
}
