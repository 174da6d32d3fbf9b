package file_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/file"
	"github.com/nvmf-go/nvmf/nvme"
)

// blockHarness opens loop devices with so large blocks.
func blockHarness(o file.Options, logical uint32) backendtest.Harness {
	loops := map[string]*loop{}
	return backendtest.Harness{
		Open: func(t testing.TB, s backendtest.Spec) backend.Device {
			t.Helper()
			l := newLoop(t, int64(s.Size()), logical)
			loops[l.path] = l
			o := o
			o.Path, o.Size, o.BlockSize, o.ReadOnly = l.path, s.Size(), s.BlockSize, s.ReadOnly
			d, err := file.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Resize: func(t testing.TB, d backend.Device, blocks uint64) {
			loops[d.Info().Path].resize(t, int64(blocks)*int64(d.Info().BlockSize))
		},
	}
}

func TestConformanceOfBlockDevices(t *testing.T) {
	for _, o := range []file.Options{{}, {Engine: file.EnginePool}} {
		t.Run(name(o), func(t *testing.T) {
			backendtest.Conformance(t, blockHarness(o, 512))
		})
	}
}

// Blocks of 512 bytes over a device with blocks of 4096: through the page
// cache, or not at all.
func TestConformanceOfLargeBlocks(t *testing.T) {
	for _, o := range []file.Options{{}, {Engine: file.EnginePool}} {
		t.Run(name(o), func(t *testing.T) {
			backendtest.Conformance(t, blockHarness(o, 4096))
		})
	}
	l := newLoop(t, 1<<20, 4096)
	if d := opened(t, file.Options{Path: l.path, BlockSize: 512, ReadOnly: true}); !strings.HasSuffix(d.Info().Engine, "buffered") {
		t.Errorf("blocks of 512 are done with %s", d.Info().Engine)
	}
	if d := opened(t, file.Options{Path: l.path, ReadOnly: true}); !strings.HasSuffix(d.Info().Engine, "O_DIRECT") {
		t.Errorf("blocks of 4096 are done with %s", d.Info().Engine)
	}
	_, err := file.Open(file.Options{Path: l.path, BlockSize: 512, ReadOnly: true, Direct: file.DirectOn})
	if !errors.Is(err, backend.ErrBlockSize) || !strings.Contains(err.Error(), "units of 4096 bytes, the blocks have 512") {
		t.Errorf("insisting on direct I/O: %v", err)
	}
}

func TestDirectOnTmpfs(t *testing.T) {
	path := tmpfs(t) + "/img"
	_, err := file.Open(file.Options{Path: path, Size: 8192, Create: true, Direct: file.DirectOn})
	if err == nil || !strings.Contains(err.Error(), "direct I/O not possible") {
		t.Errorf("direct I/O on tmpfs: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a failed creation left its file")
	}
}

func TestBlockDeviceInfo(t *testing.T) {
	l := newLoop(t, 1<<20, 512)
	i := opened(t, file.Options{Path: l.path}).Info()
	if i.Identity != "block:"+l.path || i.ZeroAfterDiscard || !i.Kinds.Has(backend.Discard) || i.Granularity < 512 || !i.WriteCache {
		t.Errorf("%+v", i)
	}
}

// A block device in use is refused, and so is one that is mounted.
func TestBlockDeviceLocks(t *testing.T) {
	l := newLoop(t, 1<<20, 512)
	first := opened(t, file.Options{Path: l.path})
	if _, err := file.Open(file.Options{Path: l.path}); !errors.Is(err, backend.ErrLocked) {
		t.Errorf("second writer: %v", err)
	}
	_, err := file.Open(file.Options{Path: l.path, ReadOnly: true})
	if !errors.Is(err, backend.ErrLocked) || !strings.Contains(err.Error(), "this process") {
		t.Errorf("a reader beside a writer: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	format(t, l.path)
	dir := t.TempDir()
	if err := unix.Mount(l.path, dir, "ext4", 0, ""); err != nil {
		t.Skip(err)
	}
	defer unmount(t, dir)
	if _, err := file.Open(file.Options{Path: l.path}); !errors.Is(err, backend.ErrLocked) || !strings.Contains(err.Error(), "mounted on "+dir) {
		t.Errorf("a mounted device: %v", err)
	}
}

// Errors of a real device: a backing file that ends early makes a loop device
// fail with EIO.
func TestBlockDeviceErrors(t *testing.T) {
	for _, o := range []file.Options{{}, {Engine: file.EnginePool}} {
		t.Run(name(o), func(t *testing.T) {
			l := newLoop(t, 1<<20, 512)
			o.Path = l.path
			d := opened(t, o)
			r := backendtest.NewRig(t, d, 2)
			mem := backendtest.Memory(t, 4096)
			last := backend.Op{Kind: backend.Read, Offset: 1<<20 - 4096, Length: 4096, Bufs: [][]byte{mem}}
			r.MustDo(last)
			if err := os.Truncate(l.backing, 1<<19); err != nil {
				t.Fatal(err)
			}
			if st := r.Do(last); st != nvme.UnrecoveredReadError {
				t.Errorf("read of what the medium lost: %v", st)
			}
			if n := d.Info().Blocks; n != 1<<20/4096 {
				t.Errorf("the device did not shrink, but has %d blocks", n)
			}
			// Now the device itself is smaller, and nobody has looked yet.
			l.resize(t, 1<<19)
			for _, k := range []backend.Kind{backend.Write, backend.Read} {
				op := last
				op.Kind = k
				if st := r.Do(op); st != nvme.LBAOutOfRange {
					t.Errorf("%v beyond the end: %v", k, st)
				}
			}
			if n := d.Info().Blocks; n != 1<<19/4096 {
				t.Errorf("%d blocks after shrinking", n)
			}
			if err := d.Grow(1 << 20); !errors.Is(err, backend.ErrSize) {
				t.Errorf("growing a block device: %v", err)
			}
		})
	}
}

// Discards of a block device reach its backing file.
func TestBlockDeviceSpace(t *testing.T) {
	for _, o := range []file.Options{{}, {Engine: file.EnginePool}} {
		t.Run(name(o), func(t *testing.T) {
			l := newLoop(t, 4<<20, 512)
			o.Path = l.path
			r := backendtest.NewRig(t, opened(t, o), 2)
			mem := backendtest.Memory(t, 4<<20)
			for i := range mem {
				mem[i] = 1
			}
			r.MustDo(backend.Op{Kind: backend.Write, FUA: true, Length: 4 << 20, Bufs: [][]byte{mem}})
			before := stat(t, l.backing).Blocks
			r.MustDo(backend.Op{Kind: backend.Discard, Offset: 1 << 20, Length: 2 << 20})
			r.MustDo(backend.Op{Kind: backend.Flush})
			if freed := (before - stat(t, l.backing).Blocks) * 512; freed < 2<<20-65536 {
				t.Errorf("a discard of 2 MiB freed %d bytes", freed)
			}
		})
	}
}
