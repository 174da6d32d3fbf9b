package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestInitrd reads the archive with a program that is not ours.
func TestInitrd(t *testing.T) {
	var b bytes.Buffer
	c := &cpioWriter{w: &b}
	c.dir("bin")
	c.file("bin/odd", []byte("12345"))
	c.char("dev-console", 5, 1)
	c.file("empty", nil)
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if b.Len()%4 != 0 {
		t.Errorf("%d bytes: not padded", b.Len())
	}
	if !executable(busybox()) {
		t.Skip("no busybox")
	}
	cmd := exec.Command(busybox(), "cpio", "-tv")
	cmd.Stdin = &b
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"drwxr-xr-x", "-rwxr-xr-x", "crw-------", "bin/odd", "dev-console", "empty"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s in %s", want, out)
		}
	}
}

func TestInitrdMissingFile(t *testing.T) {
	c := &cpioWriter{w: &bytes.Buffer{}}
	c.fileFrom("x", filepath.Join(t.TempDir(), "absent"))
	if err := c.close(); !os.IsNotExist(err) {
		t.Errorf("error %v", err)
	}
}

// TestQuote lets a shell read back what was quoted.
func TestQuote(t *testing.T) {
	words := []string{"", "a b", "it's", `"$HOME"`, "`id`", "new\nline", `\`}
	out, err := exec.Command("bash", "-c", "printf '%s\\0' "+quoteAll(words)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(words, "\x00") + "\x00"; string(out) != got {
		t.Errorf("%q came back as %q", got, out)
	}
}

func TestPassedEnv(t *testing.T) {
	got := passedEnv([]string{"NVMF_X=a b", "PATH=/bin", "GODEBUG=x=1", "SECRET=s"})
	if want := "export NVMF_X='a b'\nexport GODEBUG='x=1'\n"; got != want {
		t.Errorf("%q", got)
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	var got bytes.Buffer
	tl := &tail{path: path, w: &got}
	tl.copy() // no file yet
	for _, text := range []string{"one\n", "", "two\n"} {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		f.Close()
		tl.copy()
	}
	if got.String() != "one\ntwo\n" {
		t.Errorf("%q", got.String())
	}
}

func TestDescribe(t *testing.T) {
	for verdict, want := range map[string]string{
		"1 clean":                   "the script failed: exit code 1",
		"124 clean":                 "the script did not end in 1m0s",
		"0 left controllers: nvme0": "left controllers: nvme0",
		"3 left 2 queue pairs":      "the script failed: exit code 3; left 2 queue pairs",
	} {
		if got := describe(verdict, time.Minute); got != want {
			t.Errorf("%s: %q, want %q", verdict, got, want)
		}
	}
}

func TestSeries(t *testing.T) {
	for version, want := range map[string]string{"6.1.0-57-amd64": "6.1", "6.12.9+bpo-amd64": "6.12", "6": ""} {
		got, err := kernel{version: version}.series()
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%s: %q, %v", version, got, err)
		}
	}
}
