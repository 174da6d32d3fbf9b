package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCommandLine(t *testing.T) {
	empty := t.TempDir()
	for _, c := range []struct {
		args string
		code int
		said string
	}{
		{"--help", exitOK, "--only"},
		{"--no-such", exitUsage, "no-such"},
		{"depth", exitUsage, "unexpected operand"},
		{"--time 0s", exitUsage, "more than 0"},
		{"--rounds 0", exitUsage, "more than 0"},
		{"--only (", exitUsage, "--only"},
		{"--draw --out " + empty, exitOK, ""},
		{"--only ^nothing$ --out " + empty, exitOK, ""},
		{"--only ^depth/roce/1$ --time 1ms --target /nowhere/nvmf-target --out " + empty, exitFail, "depth/roce/1: "},
		{"host", exitFail, "load"}, // without input
	} {
		var said bytes.Buffer
		code := run(context.Background(), strings.Fields(c.args), strings.NewReader(""), &said, &said)
		if code != c.code || !strings.Contains(strings.ReplaceAll(said.String(), "  -", "--"), c.said) {
			t.Errorf("%s: code %d, want %d: %s", c.args, code, c.code, &said)
		}
	}
	if left, _ := filepath.Glob(empty + "/*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A table is drawn, and one that is none fails without losing the others.
func TestDraw(t *testing.T) {
	dir := t.TempDir()
	const good = "# m\nreads in flight [1],series,IOPS [1/s],p50 [us]\n1,roce,2,3\n"
	for name, text := range map[string]string{"depth.csv": "rubbish", "size.csv": good} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var said bytes.Buffer
	if code := run(context.Background(), []string{"--draw", "--out", dir}, nil, &said, &said); code != exitFail || !strings.Contains(said.String(), "depth.csv") {
		t.Errorf("code %d: %s", code, &said)
	}
	if svg, err := os.ReadFile(filepath.Join(dir, "size.svg")); err != nil || !bytes.Contains(svg, []byte(`class="c0"`)) {
		t.Errorf("%v: %s", err, svg)
	}
}

// One that was ended by its user says so.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	var said bytes.Buffer
	if code := run(ctx, []string{"--out", t.TempDir()}, nil, &said, &said); code != exitInterrupted || !strings.Contains(said.String(), "interrupted") {
		t.Errorf("code %d: %s", code, &said)
	}
}
