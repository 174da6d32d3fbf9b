package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

const dmesg = `user  :warn  : [   12.833871] lab: begin x
kern  :info  : [   17.377128] nvme nvme0: creating 2 I/O queues.
kern  :err   : [   17.421936] nvme nvme0: I/O 3 QID 1 timeout
kern  :warn  : [   18.000000]
user  :warn  : [   24.799401] lab: end x
`

func TestKernelLines(t *testing.T) {
	got := kernelLines(dmesg + "not of dmesg\n")
	want := []string{"nvme nvme0: creating 2 I/O queues.", "nvme nvme0: I/O 3 QID 1 timeout", "", "not of dmesg"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestJudgeKernel(t *testing.T) {
	lines := []string{"nvme nvme0: creating 2 I/O queues.", "nvme nvme0: I/O 3 QID 1 timeout"}
	pattern := func(text string) []*regexp.Regexp {
		p, err := appendPattern(nil, text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	routine, timeout := pattern(`nvme nvme\d+: creating \d+ I/O queues\.`), pattern(`nvme nvme\d+: I/O \d+ QID \d+ timeout`)
	for name, test := range map[string]struct {
		may, must []*regexp.Regexp
		want      []string
	}{
		"unexpected": {may: routine, want: []string{"unexpected kernel line: nvme nvme0: I/O 3 QID 1 timeout"}},
		"allowed":    {may: append(routine, timeout...)},
		"wanted":     {may: routine, must: timeout},
		"not said": {may: append(routine, timeout...), must: pattern("reset"),
			want: []string{"the kernel did not say: ^(?:reset)$"}},
		"a part is not the whole": {may: pattern("nvme"), want: []string{
			"unexpected kernel line: nvme nvme0: creating 2 I/O queues.", "unexpected kernel line: nvme nvme0: I/O 3 QID 1 timeout"}},
	} {
		if got := judgeKernel(lines, test.may, test.must); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestLoadPatterns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p")
	if err := os.WriteFile(path, []byte("# comment\n\na.c\nb|c\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := loadPatterns(path)
	if err != nil || len(p) != 2 {
		t.Fatalf("%d patterns, %v", len(p), err)
	}
	if !matchesAny("abc", p) || !matchesAny("c", p) || matchesAny("bc", p) {
		t.Error("patterns must match whole lines")
	}
	if err := os.WriteFile(path, []byte("ok\n(\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := loadPatterns(path); err == nil || !regexp.MustCompile(`p:2: `).MatchString(err.Error()) {
		t.Errorf("error %v does not name the line", err)
	}
}
