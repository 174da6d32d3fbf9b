package file_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/file"
	"github.com/nvmf-go/nvmf/backend/uring"
	"github.com/nvmf-go/nvmf/nvme"
)

// opened opens a device, closed with the test.
func opened(t *testing.T, o file.Options) *file.Device {
	t.Helper()
	d, err := file.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func stat(t *testing.T, path string) (st unix.Stat_t) {
	t.Helper()
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestOptionErrors(t *testing.T) {
	for _, c := range []struct {
		opts file.Options
		want []string // each in the message
	}{
		{file.Options{}, []string{`Path is ""`}},
		{file.Options{Path: "x", BlockSize: 1000}, []string{"BlockSize is 1000, want 512 or 4096"}},
		{file.Options{Path: "x", Size: 1000}, []string{"Size is 1000, want a multiple of the block size 4096"}},
		{file.Options{Path: "x", Size: 1 << 63}, []string{"Size is 9223372036854775808, want less than 2^63"}},
		{file.Options{Path: "x", Create: true}, []string{"Size is 0, want the size of the file to create"}},
		{file.Options{Path: "x", Create: true, Size: 4096, ReadOnly: true}, []string{"Create is true, want false for a read-only device"}},
		{file.Options{Path: "x", Grow: true, ReadOnly: true}, []string{"Grow is true"}},
		{file.Options{Path: "x", Engine: "aio"}, []string{`Engine is "aio", want auto, io_uring or pool`}},
		{file.Options{Path: "x", Direct: "yes"}, []string{`Direct is "yes", want auto, on or off`}},
		{file.Options{Path: "x", Workers: -1}, []string{"Workers is -1, want 1 to 1024"}},
		{file.Options{Path: "x", Workers: 1025, Engine: "e", Size: 3, BlockSize: 4}, []string{"Workers", "Engine", "BlockSize"}},
	} {
		_, err := file.Open(c.opts)
		var oe *backend.OptionError
		if !errors.As(err, &oe) {
			t.Errorf("%+v: %v", c.opts, err)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%+v: %q does not say %q", c.opts, err, w)
			}
		}
	}
}

func TestCreateIsSparseAndPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "img")
	d := opened(t, file.Options{Path: path, Size: 10 << 30, Create: true})
	st := stat(t, path)
	if st.Size != 10<<30 || st.Blocks != 0 || st.Mode&0o777 != 0o600 {
		t.Errorf("size %d, %d sectors, mode %o", st.Size, st.Blocks, st.Mode&0o777)
	}
	i := d.Info()
	if i.Blocks != 10<<30/4096 || i.Type != "file" || i.Path != path || i.Identity != "file:"+path || !i.WriteCache {
		t.Errorf("%+v", i)
	}
}

// What cannot be opened says why, and names the path; a creation that fails
// leaves nothing.
func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	make1 := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	const size = 1 << 20
	for _, c := range []struct {
		name string
		opts file.Options
		is   error
		says string
	}{
		{"absent", file.Options{Path: filepath.Join(dir, "none")}, fs.ErrNotExist, "no such file"},
		{"no directory", file.Options{Path: filepath.Join(dir, "none", "f"), Create: true, Size: size}, fs.ErrNotExist, "no such file"},
		{"a directory", file.Options{Path: dir}, nil, "neither a regular file nor a block device"},
		{"a FIFO", file.Options{Path: fifo}, nil, "neither a regular file nor a block device"},
		{"a character device", file.Options{Path: "/dev/null"}, nil, "neither a regular file nor a block device"},
		{"small", file.Options{Path: make1("small", 8192), Size: size}, backend.ErrSize, "8192 bytes, less than the configured 1048576"},
		{"small, not to create", file.Options{Path: make1("small2", 8192), Size: size, Create: true}, backend.ErrSize, "less than the configured"},
		{"empty", file.Options{Path: make1("empty", 0)}, backend.ErrSize, "less than one block"},
		{"not one block", file.Options{Path: make1("tiny", 511), BlockSize: 512}, backend.ErrSize, "less than one block of 512"},
		{"too large for the file system", file.Options{Path: filepath.Join(dir, "huge"), Create: true, Size: 1 << 62}, backend.ErrSize, "file too large"},
	} {
		_, err := file.Open(c.opts)
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), c.opts.Path) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "huge")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a failed creation left its file: %v", err)
	}
	if st := stat(t, filepath.Join(dir, "small2")); st.Size != 8192 {
		t.Errorf("an existing file was changed: %d bytes", st.Size)
	}
}

func TestSizes(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "img")
	if err := os.WriteFile(path, make([]byte, 3*4096+1000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		opts   file.Options
		blocks uint64
	}{
		{"as it is, without the odd tail", file.Options{}, 3},
		{"smaller blocks have a shorter tail", file.Options{BlockSize: 512}, 25},
		{"larger than configured", file.Options{Size: 8192}, 3},
		{"to grow", file.Options{Size: 8 * 4096, Grow: true}, 8},
		{"not to shrink", file.Options{Size: 4096, Grow: true}, 8},
	} {
		c.opts.Path = path
		d, err := file.Open(c.opts)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if n := d.Info().Blocks; n != c.blocks {
			t.Errorf("%s: %d blocks, want %d", c.name, n, c.blocks)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	d := opened(t, file.Options{Path: path})
	if err := d.Grow(16 * 4096); err != nil || d.Info().Blocks != 16 {
		t.Errorf("grown to %d blocks: %v", d.Info().Blocks, err)
	}
	if err := d.Grow(4096); err != nil || d.Info().Blocks != 16 {
		t.Errorf("grown to less: %d blocks, %v", d.Info().Blocks, err)
	}
	var oe *backend.OptionError
	if err := d.Grow(100); !errors.As(err, &oe) {
		t.Errorf("grown to part of a block: %v", err)
	}
	if changed, err := d.Refresh(); !changed || err != nil {
		t.Errorf("refresh after Grow: %v, %v", changed, err)
	}
	if err := os.Truncate(path, 16*4096+1000); err != nil {
		t.Fatal(err)
	}
	if changed, err := d.Refresh(); changed || err != nil {
		t.Errorf("refresh after a tail grew: %v, %v", changed, err)
	}
}

// A file that is cut under the device: reads beyond its end say so, and from
// then on so does everything.
func TestTruncatedUnderneath(t *testing.T) {
	for _, o := range []file.Options{{}, {Engine: file.EnginePool}, {Direct: file.DirectOff}} {
		t.Run(name(o), func(t *testing.T) {
			o.Path, o.Size, o.Create = filepath.Join(t.TempDir(), "img"), 64*4096, true
			d := opened(t, o)
			r := backendtest.NewRig(t, d, 2)
			mem := backendtest.Memory(t, 8*4096)
			at := func(k backend.Kind, lba, n uint64) nvme.Status {
				return r.Do(backend.Op{Kind: k, Offset: lba * 4096, Length: n * 4096, Bufs: [][]byte{mem[:n*4096]}})
			}
			if err := os.Truncate(o.Path, 10*4096+100); err != nil {
				t.Fatal(err)
			}
			if st := at(backend.Read, 8, 8); st != nvme.LBAOutOfRange {
				t.Errorf("read across the new end: %v", st)
			}
			if n := d.Info().Blocks; n != 10 {
				t.Errorf("Info says %d blocks", n)
			}
			if st := at(backend.Read, 9, 1); st != nvme.Success {
				t.Errorf("last block: %v", st)
			}
			for _, k := range []backend.Kind{backend.Read, backend.Write, backend.WriteZeroes, backend.Discard} {
				if st := at(k, 10, 1); st != nvme.LBAOutOfRange {
					t.Errorf("%v beyond the new end: %v", k, st)
				}
			}
			if size := stat(t, o.Path).Size; size != 10*4096+100 {
				t.Errorf("the file has %d bytes", size)
			}
			if changed, err := d.Refresh(); !changed || err != nil {
				t.Errorf("refresh: %v, %v", changed, err)
			}
		})
	}
}

// Discard and deallocating Write Zeroes give space back; plain Write Zeroes
// keeps it.
func TestSpace(t *testing.T) {
	for _, e := range []file.Engine{file.EngineAuto, file.EnginePool} {
		path := filepath.Join(t.TempDir(), "img")
		d := opened(t, file.Options{Path: path, Size: 4 << 20, Create: true, Engine: e})
		if !d.Info().Kinds.Has(backend.Discard) || !d.Info().ZeroAfterDiscard {
			t.Skip("the file system cannot punch holes")
		}
		r := backendtest.NewRig(t, d, 1)
		mem := backendtest.Memory(t, 4<<20)
		for i := range mem {
			mem[i] = byte(i)
		}
		const mb = 1 << 20
		r.MustDo(backend.Op{Kind: backend.Write, Length: 4 * mb, Bufs: [][]byte{mem}})
		for _, c := range []struct {
			op   backend.Op
			used int64 // bytes
		}{
			{backend.Op{Kind: backend.Flush}, 4 * mb},
			{backend.Op{Kind: backend.WriteZeroes, Length: mb}, 4 * mb},
			{backend.Op{Kind: backend.Discard, Offset: mb, Length: mb}, 3 * mb},
			{backend.Op{Kind: backend.WriteZeroes, Offset: 2 * mb, Length: mb, Dealloc: true}, 2 * mb},
		} {
			r.MustDo(c.op)
			r.MustDo(backend.Op{Kind: backend.Flush})
			if used := stat(t, path).Blocks * 512; used < c.used || used > c.used+65536 {
				t.Errorf("%s: %d bytes in use, want %d", backendtest.Describe(&c.op), used, c.used)
			}
		}
		r.MustDo(backend.Op{Kind: backend.Read, Length: 4 * mb, Bufs: [][]byte{mem}})
		for i, b := range mem {
			if want := byte(i); i < 3*mb && b != 0 || i >= 3*mb && b != want {
				t.Fatalf("%s: byte %d is %d", e, i, b)
			}
		}
	}
}

// TestHoldLock is run by TestLocks, in a process of its own.
func TestHoldLock(t *testing.T) {
	path := os.Getenv("FILE_TEST_LOCK")
	if path == "" {
		t.Skip("for TestLocks")
	}
	opened(t, file.Options{Path: path})
	fmt.Println("locked")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

func TestLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "img")
	link := path + ".link"
	first := opened(t, file.Options{Path: path, Size: 1 << 20, Create: true})
	if err := os.Link(path, link); err != nil {
		t.Fatal(err)
	}
	for _, o := range []file.Options{{Path: path}, {Path: link}, {Path: link, ReadOnly: true}} {
		if _, err := file.Open(o); !errors.Is(err, backend.ErrLocked) || !strings.Contains(err.Error(), "this process has it open already") {
			t.Errorf("second opener, %+v: %v", o, err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // readers share, and keep a writer out
		opened(t, file.Options{Path: path, ReadOnly: true})
	}
	if _, err := file.Open(file.Options{Path: path}); !errors.Is(err, backend.ErrLocked) {
		t.Errorf("a writer among readers: %v", err)
	}
}

// Another process is named with its number and program.
func TestLockNamesProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "img")
	if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=TestHoldLock$")
	cmd.Env = append(os.Environ(), "FILE_TEST_LOCK="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanf(out, "locked\n"); err != nil {
		t.Fatal(err)
	}
	_, err = file.Open(file.Options{Path: path})
	if want := fmt.Sprintf("process %d (file.test)", cmd.Process.Pid); !errors.Is(err, backend.ErrLocked) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want it to say %q", err, want)
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Errorf("the other process: %v", err)
	}
	opened(t, file.Options{Path: path}) // the lock went with it
}

func TestReadOnlyFile(t *testing.T) {
	dir := mounted(t, "tmpfs", "size=64k")
	path := filepath.Join(dir, "img")
	if err := os.WriteFile(path, make([]byte, 8192), 0o400); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Open(file.Options{Path: path}); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "ReadOnly is not set") {
		t.Errorf("for writing: %v", err)
	}
	d := opened(t, file.Options{Path: path, ReadOnly: true})
	if i := d.Info(); !i.ReadOnly || i.Blocks != 2 {
		t.Errorf("%+v", i)
	}
}

// mounted mounts a file system, which takes root.
func mounted(t *testing.T, fsType, data string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, fsType, 0, data); err != nil {
		t.Skipf("mounting %s: %v", fsType, err)
	}
	t.Cleanup(func() {
		unmount(t, dir)
	})
	return dir
}

// A full file system is Capacity Exceeded, what was written before is still
// there, and space that is given back can be used.
func TestFullFileSystem(t *testing.T) {
	for _, o := range []file.Options{{}, {Engine: file.EnginePool}} {
		t.Run(name(o), func(t *testing.T) {
			dir := mounted(t, "tmpfs", "size=256k")
			o.Path, o.Size, o.Create = filepath.Join(dir, "img"), 1<<20, true
			d := opened(t, o)
			r := backendtest.NewRig(t, d, 4)
			mem := backendtest.Memory(t, 4096)
			mem[0] = 1
			wrote := uint64(0)
			st := nvme.Success
			for ; st == nvme.Success && wrote < 200; wrote++ {
				st = r.Do(backend.Op{Kind: backend.Write, FUA: true, Offset: wrote * 4096, Length: 4096, Bufs: [][]byte{mem}})
			}
			if st != nvme.CapacityExceeded || wrote < 10 {
				t.Fatalf("after %d blocks: %v", wrote, st)
			}
			if st := r.Do(backend.Op{Kind: backend.WriteZeroes, Length: 1 << 20}); st != nvme.CapacityExceeded {
				t.Errorf("write zeroes: %v", st)
			}
			r.MustDo(backend.Op{Kind: backend.Flush})
			r.MustDo(backend.Op{Kind: backend.Discard, Length: 1 << 20})
			r.MustDo(backend.Op{Kind: backend.Write, Offset: 200 * 4096, Length: 4096, Bufs: [][]byte{mem}})
		})
	}
}

// TestForbidden is run by TestRingForbidden, with io_uring forbidden.
func TestForbidden(t *testing.T) {
	path := os.Getenv("FILE_TEST_FORBIDDEN")
	if path == "" {
		t.Skip("for TestRingForbidden")
	}
	other := opened(t, file.Options{Path: path + "2", Size: 8192, Create: true})
	forbidRings(t)
	if _, err := file.Open(file.Options{Path: path, Engine: file.EngineURing}); !errors.Is(err, uring.ErrUnavailable) || !errors.Is(err, unix.EPERM) {
		t.Errorf("insisting on io_uring: %v", err)
	}
	d := opened(t, file.Options{Path: path})
	if e := d.Info().Engine; !strings.HasPrefix(e, "worker pool ") {
		t.Errorf("engine %q", e)
	}
	r := backendtest.NewRig(t, d, 2)
	r.MustDo(backend.Op{Kind: backend.Write, Length: 4096, Bufs: [][]byte{backendtest.Memory(t, 4096)}})
	r.MustDo(backend.Op{Kind: backend.Flush})

	// Forbidden since a device was opened with it: its next queues do without.
	if !strings.HasPrefix(other.Info().Engine, "io_uring ") {
		t.Skip("no io_uring before either")
	}
	r = backendtest.NewRig(t, other, 2)
	r.MustDo(backend.Op{Kind: backend.Write, Length: 4096, Bufs: [][]byte{backendtest.Memory(t, 4096)}})
	if e := other.Info().Engine; !strings.HasPrefix(e, "io_uring, in part worker pool, ") {
		t.Errorf("engine %q", e)
	}
}

// forbidRings makes io_uring_setup fail with EPERM in this process, as
// container runtimes do.
func forbidRings(t *testing.T) {
	t.Helper()
	const load, jumpEqual, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // seccomp_data.nr
		{Code: jumpEqual, K: unix.SYS_IO_URING_SETUP, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := installFilter(filter); err != nil {
		t.Skipf("seccomp: %v", err)
	}
}

func TestRingForbidden(t *testing.T) {
	path := filepath.Join(t.TempDir(), "img")
	if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=TestForbidden$", "-test.v")
	cmd.Env = append(os.Environ(), "FILE_TEST_FORBIDDEN="+path)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestForbidden") && !strings.Contains(string(out), "seccomp:") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A promise of one thread that is broken fails operations, and hangs nothing.
func TestLockedThreadBroken(t *testing.T) {
	d := opened(t, file.Options{Path: filepath.Join(t.TempDir(), "img"), Size: 1 << 20, Create: true, LockedThread: true})
	if !strings.HasPrefix(d.Info().Engine, "io_uring") {
		t.Skip("no io_uring here")
	}
	r := backendtest.NewRig(t, d, 2)
	mem := backendtest.Memory(t, 4096)
	op := backend.Op{Kind: backend.Read, Length: 4096, Bufs: [][]byte{mem}}
	onOwnThread := func() nvme.Status {
		st := make(chan nvme.Status)
		go func() {
			lockThread()
			st <- r.Do(op)
		}()
		return <-st
	}
	if st := onOwnThread(); st != nvme.Success {
		t.Errorf("first thread: %v", st)
	}
	if st := onOwnThread(); st != nvme.InternalError {
		t.Errorf("second thread: %v", st)
	}
}
