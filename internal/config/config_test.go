package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Each file of testdata/bad says in its "# want:" lines every message it is to
// be met with, without the file's name and in order.
func TestFaultyFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for l := range strings.Lines(string(b)) {
				if w, ok := strings.CutPrefix(l, "# want: "); ok {
					want = append(want, strings.TrimSpace(w))
				}
			}
			got := messages(t, path)
			if !slices.Equal(got, want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
			}
		})
	}
}

func messages(t *testing.T, path string) (got []string) {
	t.Helper()
	_, err := Load(path)
	if err == nil {
		t.Fatal("the file was accepted")
	}
	var errs Errors
	if !errors.As(err, &errs) {
		t.Fatalf("%T: %v", err, err)
	}
	for _, e := range errs {
		if e.File != path {
			t.Errorf("error names file %q", e.File)
		}
		got = append(got, strings.TrimPrefix(strings.TrimPrefix(e.Error(), path), ":"))
	}
	for i := range got {
		got[i] = strings.TrimSpace(got[i])
	}
	return got
}

const good = `
version: 1
listeners:
  - {name: front, address: 0.0.0.0}
backends:
  - {name: disk0, type: file, path: /var/lib/nvmf/disk0.img, size: 10GiB, block_size: 4096}
subsystems:
  - nqn: nqn.2026-11.io.nvmf:disk0
    hosts: any
    namespaces:
      - {nsid: 1, backend: disk0}
`

func TestDefaults(t *testing.T) {
	f, err := Parse("good.yaml", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if f.Log.Level != "info" || f.Admin.Socket != DefaultSocket || f.Poll != "adaptive" ||
		f.RDMA.InCapsule != 4096 || f.RDMA.QueueDepth != 128 || f.RDMA.MaxTransfer != 1<<20 ||
		f.DrainTime != Duration(4*time.Second) || f.CNTLID.Max != 0xFFEF {
		t.Errorf("defaults: %+v", f)
	}
	l := f.Listeners[0]
	if l.Port != 4420 || l.Provider != "auto" || l.ID != 1 || l.AddrPort().String() != "0.0.0.0:4420" {
		t.Errorf("listener: %+v", l)
	}
	b := f.Backends[0]
	if b.Size != 10<<30 || b.BlockSize != 4096 || b.Engine != "auto" {
		t.Errorf("backend: %+v", b)
	}
	if !f.Subsystems[0].Hosts.Any || f.Backend("disk0") == nil || f.Backend("disk1") != nil {
		t.Errorf("subsystem: %+v", f.Subsystems[0])
	}
}

// Zero is a value of in_capsule, not its absence.
func TestInCapsuleZero(t *testing.T) {
	f, err := Parse("x", []byte(good+"rdma: {in_capsule: 0}\n"))
	if err != nil || f.RDMA.InCapsule != 0 {
		t.Fatalf("%v %v", f, err)
	}
}

func TestHostsList(t *testing.T) {
	f, err := Parse("x", []byte(strings.Replace(good, "hosts: any", "hosts: [nqn.2026-11.io.nvmf:host1]", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if h := f.Subsystems[0].Hosts; h.Any || len(h.NQNs) != 1 {
		t.Errorf("%+v", h)
	}
}

// A cache that the file does not have is none; one that it has gets its
// defaults, and a zero is a zero.
func TestCache(t *testing.T) {
	for yaml, want := range map[string]Cache{
		"":                     {},
		", cache:":             {},
		", cache: {size: 1GB}": {Size: 1e9, Page: 4096, ReadAhead: 128 << 10, Admission: "tinylfu"},
		", cache: {size: 1MiB, page: 64KiB, readahead: 0, admission: all}": {Size: 1 << 20, Page: 64 << 10, Admission: "all"},
	} {
		f, err := Parse("x", []byte(strings.Replace(good, "block_size: 4096}", "block_size: 4096"+yaml+"}", 1)))
		if err != nil {
			t.Errorf("%q: %v", yaml, err)
			continue
		}
		if c := f.Backends[0].Cache; c != want || c.On() != (want.Size > 0) {
			t.Errorf("%q: %+v", yaml, c)
		}
	}
}

func TestMissingFile(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "no.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// Every file that users are given must load.
func TestShippedFiles(t *testing.T) {
	files, err := filepath.Glob("../../configs/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		if _, err := Load(path); err != nil {
			t.Errorf("%v", err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte("a: &a [*a, *a]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse("fuzz.yaml", b)
		if (c == nil) == (err == nil) {
			t.Errorf("config %v, error %v", c, err)
		}
	})
}
