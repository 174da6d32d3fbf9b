package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKernelLog(t *testing.T) {
	dir := t.TempDir()
	all := filepath.Join(dir, "dmesg.all")
	if _, err := kernelLog(dir, all, "x"); err == nil {
		t.Error("no file at all is no error")
	}
	if err := os.WriteFile(all, []byte(dmesg), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := kernelLog(dir, all, "x")
	if err != nil || !strings.HasPrefix(got, "kern  :info  : [   17.377128]") {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := kernelLog(dir, all, "y"); err == nil {
		t.Error("a scenario that did not begin is no error")
	}
	if err := os.WriteFile(filepath.Join(dir, "dmesg"), []byte("cut\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := kernelLog(dir, all, "x"); err != nil || got != "cut\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestConsoleTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.log")
	if got := consoleTail(path); got != nil {
		t.Errorf("%q", got)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("line\n", 40)+"last\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := consoleTail(path); len(got) != 16 || got[15] != "last" {
		t.Errorf("%q", got)
	}
}

func TestSummarize(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	good := result{scenario: scenario{name: "good"}}
	bad := result{scenario: scenario{name: "bad"}, faults: []string{"first", "second"}}
	if err := summarize(&b, dir, []result{good}); err != nil {
		t.Error(err)
	}
	if err := summarize(&b, dir, []result{good, bad}); err == nil || !strings.Contains(err.Error(), "1 of 2") {
		t.Errorf("error %v", err)
	}
	kept, err := os.ReadFile(filepath.Join(dir, "summary.txt"))
	if err != nil || !strings.Contains(string(kept), "FAIL bad") || !strings.Contains(string(kept), "first") {
		t.Errorf("%q, %v", kept, err)
	}
}

func TestNewRunKeepsSome(t *testing.T) {
	out := t.TempDir()
	for range keptRuns + 3 {
		if _, err := newRun(out, "x"); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(out)
	if err != nil || len(left) != keptRuns+1 {
		t.Errorf("%d runs are left, %v", len(left), err)
	}
}
