package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/nvme"
)

// faults decides about calls, and remembers them.
type faults struct {
	mu     sync.Mutex
	decide func(c *call) injection // nil: none
	calls  []call                  // without their data
}

func (f *faults) inject(c *call) (i injection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := *c
	kept.iov = nil
	f.calls = append(f.calls, kept)
	if f.decide != nil {
		i = f.decide(c)
	}
	return i
}

// set replaces the decision and forgets the calls.
func (f *faults) set(decide func(c *call) injection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide, f.calls = decide, nil
}

// made lists the calls since the last set, as "write dsync", "sync".
func (f *faults) made() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		n := [...]string{"read", "write", "sync", "fallocate", "discard"}[c.op]
		switch {
		case c.op == callWrite && c.flags == unix.RWF_DSYNC:
			n = "write dsync"
		case c.op == callFallocate && c.flags == punchHole:
			n = "punch"
		case c.op == callFallocate && c.flags == zeroRange:
			n = "zero"
		}
		names = append(names, n)
	}
	return names
}

// always fails calls of some kinds with an errno.
func always(e unix.Errno, ops ...callOp) func(*call) injection {
	return func(c *call) injection {
		if slices.Contains(ops, c.op) {
			return injection{errno: e}
		}
		return injection{}
	}
}

// once fails the first call of a kind.
func once(e unix.Errno, op callOp) func(*call) injection {
	failed := false
	return func(c *call) injection {
		if failed || c.op != op {
			return injection{}
		}
		failed = true
		return injection{errno: e}
	}
}

const blocks = 256

// eachEngine runs f over a new file of 256 blocks of 4096 bytes.
func eachEngine(t *testing.T, o Options, f func(t *testing.T, d *Device, fl *faults)) {
	for _, e := range []Engine{EngineAuto, EnginePool} {
		t.Run(string(e), func(t *testing.T) {
			o := o
			o.Engine, o.Create, o.Size = e, true, blocks*4096
			o.Path = filepath.Join(t.TempDir(), "img")
			fl := &faults{}
			d, err := open(o, fl.inject)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			})
			f(t, d, fl)
		})
	}
}

func write(buf []byte, lba uint64) backend.Op {
	return backend.Op{Kind: backend.Write, Offset: lba * 4096, Length: uint64(len(buf)), Bufs: [][]byte{buf}}
}

func read(buf []byte, lba uint64) backend.Op {
	op := write(buf, lba)
	op.Kind = backend.Read
	return op
}

func fua(op backend.Op) backend.Op {
	op.FUA = true
	return op
}

var flush = backend.Op{Kind: backend.Flush}

func zeroes(n uint64) backend.Op { return backend.Op{Kind: backend.WriteZeroes, Length: n * 4096} }

// Each errno of each operation has the status hosts expect.
func TestStatuses(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, d *Device, fl *faults) {
		r := backendtest.NewRig(t, d, 4)
		mem := backendtest.Memory(t, 4096)
		for _, c := range []struct {
			errno              unix.Errno
			read, write, zeroe nvme.Status
		}{
			{unix.EIO, nvme.UnrecoveredReadError, nvme.WriteFault, nvme.WriteFault},
			{unix.EILSEQ, nvme.UnrecoveredReadError, nvme.WriteFault, nvme.WriteFault},
			{unix.EBADMSG, nvme.UnrecoveredReadError, nvme.WriteFault, nvme.WriteFault},
			{unix.ENOSPC, nvme.InternalError, nvme.CapacityExceeded, nvme.CapacityExceeded},
			{unix.EDQUOT, nvme.InternalError, nvme.CapacityExceeded, nvme.CapacityExceeded},
			{unix.EFBIG, nvme.InternalError, nvme.CapacityExceeded, nvme.CapacityExceeded},
			{unix.EROFS, nvme.InternalError, nvme.NamespaceWriteProtected, nvme.NamespaceWriteProtected},
			{unix.EBADF, nvme.InternalError, nvme.NamespaceWriteProtected, nvme.NamespaceWriteProtected},
			{unix.EPERM, nvme.InternalError, nvme.NamespaceWriteProtected, nvme.NamespaceWriteProtected},
			{unix.ENODEV, nvme.InternalError, nvme.InternalError, nvme.InternalError},
			{unix.ENXIO, nvme.InternalError, nvme.InternalError, nvme.InternalError},
			{unix.ESTALE, nvme.InternalError, nvme.InternalError, nvme.InternalError},
			{unix.EAGAIN, nvme.InternalError, nvme.InternalError, nvme.InternalError},
		} {
			fl.set(always(c.errno, callRead, callWrite, callFallocate))
			got := r.DoAll([]backend.Op{read(mem, 0), write(mem, 1), zeroes(1)})
			if got[0] != c.read || got[1] != c.write || got[2] != c.zeroe {
				t.Errorf("%v: read %v, write %v, write zeroes %v", c.errno, got[0], got[1], got[2])
			}
			if n := len(fl.made()); n > 3*maxTries {
				t.Errorf("%v: %d calls for three operations", c.errno, n)
			}
		}
		fl.set(nil)
		r.MustDo(write(mem, 0))
		if err := d.Failed(); err != nil {
			t.Errorf("no sync failed, but: %v", err)
		}
	})
}

// The suite passes when calls move less than they should, are interrupted, or
// are cancelled, at any place.
func TestConformanceWithFaults(t *testing.T) {
	n := 0
	next := func(of int) int { n++; return n * 7 % of }
	for _, c := range []struct {
		name   string
		dir    string // direct I/O only on the disk; tmpfs syncs quicker
		decide func(*call) injection
	}{
		{"short", "", func(c *call) injection { return injection{short: max(c.n/4096, 1) * 512 * uint64(1+next(9))} }},
		{"very short", "/dev/shm", func(c *call) injection { return injection{short: max(c.n/2, 512) + uint64(next(3))} }},
		{"interrupted", "/dev/shm", func(*call) injection {
			return injection{errno: [...]unix.Errno{0, unix.EINTR, unix.EAGAIN, 0, unix.ECANCELED}[next(5)]}
		}},
	} {
		for _, e := range []Engine{EngineAuto, EnginePool} {
			t.Run(fmt.Sprintf("%s/%s", c.name, e), func(t *testing.T) {
				made := 0
				var mu sync.Mutex
				dir, err := os.MkdirTemp(c.dir, "nvmf-test")
				if err != nil {
					t.Skip(err)
				}
				defer os.RemoveAll(dir)
				backendtest.Conformance(t, backendtest.Harness{
					Open: func(t testing.TB, s backendtest.Spec) backend.Device {
						made++
						o := Options{Engine: e, Path: filepath.Join(dir, fmt.Sprint(made)), Size: s.Size(), BlockSize: s.BlockSize, Create: true}
						if s.ReadOnly {
							t.Skip("nothing can be short in it")
						}
						d, err := open(o, func(c2 *call) injection {
							mu.Lock()
							defer mu.Unlock()
							return c.decide(c2)
						})
						if err != nil {
							t.Fatal(err)
						}
						return d
					},
				})
			})
		}
	}
}

// A call that never moves anything ends.
func TestNoProgress(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, d *Device, fl *faults) {
		if !d.medium.direct {
			t.Skip("only direct I/O goes on in whole units")
		}
		r := backendtest.NewRig(t, d, 1)
		mem := backendtest.Memory(t, 4096)
		fl.set(func(*call) injection { return injection{short: 0, errno: unix.EINTR} })
		for op, want := range map[backend.Kind]nvme.Status{backend.Read: nvme.InternalError, backend.Write: nvme.InternalError} {
			o := read(mem, 0)
			o.Kind = op
			if st := r.Do(o); st != want {
				t.Errorf("%v: %v, want %v", op, st, want)
			}
		}
	})
}

// An unaligned EINVAL is tried again through aligned memory.
func TestEINVALBounces(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, d *Device, fl *faults) {
		if !d.medium.direct {
			t.Skip("no direct I/O here")
		}
		r := backendtest.NewRig(t, d, 1)
		mem := backendtest.Memory(t, 8192)
		copy(mem, "through the bounce buffer")
		fl.set(once(unix.EINVAL, callWrite))
		r.MustDo(write(mem[:4096], 3))
		fl.set(once(unix.EINVAL, callRead))
		r.MustDo(read(mem[4096:], 3))
		if string(mem[4096:4096+25]) != "through the bounce buffer" {
			t.Errorf("read %q", mem[4096:4096+25])
		}
		fl.set(always(unix.EINVAL, callRead))
		if st := r.Do(read(mem[4096:], 3)); st != nvme.InternalError {
			t.Errorf("EINVAL for ever: %v", st)
		}
	})
}

// More operations than there is bounce memory wait for it, and all come home.
func TestBounceMemoryRunsOut(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, d *Device, _ *faults) {
		const depth = maxChunks + 60
		r := backendtest.NewRig(t, d, depth)
		mem := backendtest.Memory(t, 2*depth*4096)
		odd := mem[1:]
		for round := range uint64(6) {
			var writes, reads []backend.Op
			for i := range uint64(depth) {
				from, to := odd[i*4096:][:4096], odd[(depth+i)*4096-1:][:4096]
				from[0], from[4095] = byte(i+round), byte(i*round)
				writes, reads = append(writes, write(from, i)), append(reads, read(to, i))
			}
			for i, st := range append(r.DoAll(writes), r.DoAll(reads)...) {
				if st != nvme.Success {
					t.Fatalf("operation %d: %v", i, st)
				}
			}
			for i := range uint64(depth) {
				if b := reads[i].Bufs[0]; b[0] != byte(i+round) || b[4095] != byte(i*round) {
					t.Fatalf("round %d: block %d has %d %d", round, i, b[0], b[4095])
				}
			}
		}
	})
}

func TestReplacedPath(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, d *Device, _ *faults) {
		path := d.Info().Path
		if err := unix.Rename(path, path+".old"); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Refresh(); !errors.Is(err, ErrReplaced) {
			t.Errorf("removed: %v", err)
		}
		r := backendtest.NewRig(t, d, 1)
		r.MustDo(write(backendtest.Memory(t, 4096), 0))
		if err := unix.Rename(path+".old", path); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Refresh(); err != nil {
			t.Errorf("back again: %v", err)
		}
	})
}

// Memory that cannot be pinned is used as it is.
func TestUnpinnableMemory(t *testing.T) {
	eachEngine(t, Options{}, func(t *testing.T, d *Device, _ *faults) {
		if !d.uring {
			t.Skip("the pool pins nothing")
		}
		r := backendtest.NewRig(t, d, 1)
		mem := backendtest.Memory(t, 8192)
		if err := unix.Mprotect(mem[4096:], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		reg := r.Queue.(backend.Registrar)
		if err := reg.RegisterBuffers([][]byte{mem}); !errors.Is(err, unix.EFAULT) {
			t.Errorf("pinning memory without access: %v", err)
		}
		r.MustDo(write(mem[:4096], 0))
		if err := reg.RegisterBuffers([][]byte{mem[:4096]}); err != nil {
			t.Errorf("pinning after a failure: %v", err)
		}
		r.MustDo(write(mem[:4096], 0))
	})
}
