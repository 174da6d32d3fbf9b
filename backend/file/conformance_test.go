package file_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/file"
)

// harness makes files in dir with the given options.
func harness(dir string, o file.Options) backendtest.Harness {
	made := 0
	return backendtest.Harness{
		Open: func(t testing.TB, s backendtest.Spec) backend.Device {
			t.Helper()
			made++
			o := o
			o.Path = filepath.Join(dir, fmt.Sprintf("%d.img", made))
			o.Size, o.BlockSize, o.ReadOnly, o.Create = s.Size(), s.BlockSize, s.ReadOnly, !s.ReadOnly
			if s.ReadOnly {
				if err := os.WriteFile(o.Path, make([]byte, o.Size), 0o400); err != nil {
					t.Fatal(err)
				}
			}
			d, err := file.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Resize: func(t testing.TB, d backend.Device, blocks uint64) {
			if err := os.Truncate(d.Info().Path, int64(blocks)*int64(d.Info().BlockSize)); err != nil {
				t.Fatal(err)
			}
		},
		LockedThread: o.LockedThread,
	}
}

// name names a subtest after what is not default.
func name(o file.Options) string {
	var parts []string
	for _, p := range []struct {
		set  bool
		name string
	}{
		{o.Engine != "", string(o.Engine)},
		{o.Direct != "", "direct " + string(o.Direct)},
		{o.Workers != 0, fmt.Sprint(o.Workers, " workers")},
		{o.LockedThread, "locked thread"},
		{o.WriteThrough, "write through"},
	} {
		if p.set {
			parts = append(parts, p.name)
		}
	}
	return strings.Join(append(parts, "device"), ", ")
}

func TestConformance(t *testing.T) {
	for _, o := range []file.Options{
		{},
		{LockedThread: true},
		{Direct: file.DirectOff},
		{Engine: file.EnginePool},
		{Engine: file.EnginePool, Direct: file.DirectOff},
	} {
		t.Run(name(o), func(t *testing.T) {
			backendtest.Conformance(t, harness(t.TempDir(), o))
		})
	}
}

// tmpfs has neither direct I/O nor ZERO_RANGE, and syncs in no time.
func TestConformanceOnTmpfs(t *testing.T) {
	for _, o := range []file.Options{
		{},
		{WriteThrough: true},
		{Engine: file.EnginePool},
		{Engine: file.EnginePool, Workers: 1, WriteThrough: true},
	} {
		t.Run(name(o), func(t *testing.T) {
			backendtest.Conformance(t, harness(tmpfs(t), o))
		})
	}
}

// tmpfs makes a directory on one.
func tmpfs(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "nvmf-test")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
