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

func TestConformance(t *testing.T) {
	for _, o := range []file.Options{
		{},
		{LockedThread: true},
		{Direct: file.DirectOff},
		{Engine: file.EnginePool},
		{Engine: file.EnginePool, Direct: file.DirectOff, Workers: 1},
		{WriteThrough: true},
	} {
		name := strings.TrimSpace(fmt.Sprintf("%s %s", o.Engine, o.Direct))
		if o.LockedThread {
			name += "locked thread"
		}
		if o.WriteThrough {
			name += "write through"
		}
		t.Run(name, func(t *testing.T) {
			backendtest.Conformance(t, harness(t.TempDir(), o))
		})
	}
}

// tmpfs has neither direct I/O nor ZERO_RANGE.
func TestConformanceOnTmpfs(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "nvmf-test")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, e := range []file.Engine{file.EngineAuto, file.EnginePool} {
		t.Run(string(e), func(t *testing.T) {
			backendtest.Conformance(t, harness(dir, file.Options{Engine: e}))
		})
	}
}
