package daemon

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/backendtest"
	"github.com/nvmf-go/nvmf/backend/file"
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/nvme"
)

// fault is a configuration that is right and still cannot be.
type fault struct {
	name string
	// listeners and backend are the entries at fault.
	listener, backend string
	prepare           func(*testing.T, *rig)
	want              string // the message, in which DIR is the folder
	is                error
}

var faults = []fault{
	{
		name: "missing file", backend: "{name: d, type: file, path: DIR/none}",
		want: "backend d: backend/file: DIR/none: no such file or directory (hence no " + nqnA + " namespace 2)", is: os.ErrNotExist,
	},
	{
		name: "missing folder", backend: "{name: d, type: file, path: DIR/no/such, size: 1MiB}",
		want: "backend d: backend/file: DIR/no/such: no such file or directory (hence no " + nqnA + " namespace 2)", is: os.ErrNotExist,
	},
	{
		name: "folder", backend: "{name: d, type: file, path: DIR}",
		want: "backend d: backend/file: DIR: is neither a regular file nor a block device (hence no " + nqnA + " namespace 2)",
	},
	{
		name: "character device", backend: "{name: d, type: file, path: /dev/null}",
		want: "backend d: backend/file: /dev/null: is neither a regular file nor a block device (hence no " + nqnA + " namespace 2)",
	},
	{
		name: "empty file", backend: "{name: d, type: file, path: DIR/empty}",
		prepare: func(_ *testing.T, r *rig) { r.file("empty", 0) },
		want:    "backend d: backend/file: DIR/empty: size does not fit: it has 0 bytes, less than one block of 512 (hence no " + nqnA + " namespace 2)",
		is:      backend.ErrSize,
	},
	{
		name: "read-only and smaller than configured", backend: "{name: d, type: file, path: DIR/small, size: 2MiB, read_only: true}",
		prepare: func(_ *testing.T, r *rig) { r.file("small", 1<<20) },
		want: "backend d: backend/file: DIR/small: size does not fit: it has 1048576 bytes, less than the configured 2097152 (hence no " +
			nqnA + " namespace 2)",
		is: backend.ErrSize,
	},
	{
		name: "larger than the file system can hold", backend: "{name: d, type: file, path: DIR/huge, size: 4EiB}",
		want: "backend d: backend/file: DIR/huge: size does not fit: extending it to 4611686018427387904 bytes: file too large (hence no " +
			nqnA + " namespace 2)",
		is: backend.ErrSize,
	},
	{
		name: "locked by another", backend: "{name: d, type: file, path: DIR/locked}",
		prepare: func(t *testing.T, r *rig) {
			d, err := file.Open(file.Options{Path: r.file("locked", 1<<20)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { d.Close() })
		},
		want: "backend d: backend/file: DIR/locked: locked by another opener: this process has it open already (hence no " + nqnA + " namespace 2)",
		is:   backend.ErrLocked,
	},
	{
		name: "one file under two names", backend: "{name: d, type: file, path: DIR/one, size: 1MiB}, {name: e, type: file, path: DIR/two}",
		prepare: func(t *testing.T, r *rig) {
			if err := os.Link(r.file("one", 1<<20), filepath.Join(r.dir, "two")); err != nil {
				t.Fatal(err)
			}
		},
		want: "backend e: backend/file: DIR/two: locked by another opener: this process has it open already",
		is:   backend.ErrLocked,
	},
	{
		name: "on a read-only file system", backend: "{name: d, type: file, path: DIR/ro/img}",
		prepare: readOnlyMount,
		want: "backend d: backend/file: DIR/ro/img: cannot be opened for writing, and ReadOnly is not set: read-only file system (hence no " +
			nqnA + " namespace 2)",
		is: unix.EROFS,
	},
	{
		name: "direct I/O where there is none", backend: "{name: d, type: file, path: DIR/tmp/img, size: 64KiB, direct: 'on'}",
		prepare: func(t *testing.T, r *rig) { r.mount("tmp", "tmpfs", "size=256k", 0) },
		want:    "backend d: backend/file: DIR/tmp/img: direct I/O not possible: tmpfs is all page cache (hence no " + nqnA + " namespace 2)",
	},
	{
		name: "address of another listener", listener: "{name: back, address: 0.0.0.0, provider: verbs}",
		want: "listener back: listen: address already in use: 10.0.0.1:4420", is: fabric.ErrAddrInUse,
	},
	{
		name: "address in use", listener: "{name: back, address: 10.0.0.1, port: 4421, provider: verbs}",
		prepare: func(t *testing.T, r *rig) {
			l, err := r.near.Listen(r.ctx, netip.AddrPortFrom(targetAddr, 4421), fabric.ListenConfig{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		},
		want: "listener back: listen: address already in use: 10.0.0.1:4421", is: fabric.ErrAddrInUse,
	},
	{
		name: "provider that this build lacks", listener: "{name: back, address: 10.0.0.1, port: 4421, provider: iwarp}",
		want: "listener back: provider iwarp: not supported by this device", is: fabric.ErrNotSupported,
	},
}

func readOnlyMount(t *testing.T, r *rig) {
	dir := r.mount("ro", "tmpfs", "size=2m", 0)
	r.file("ro/img", 1<<20)
	if err := unix.Mount("none", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
}

// mount mounts a file system on a new folder, until the end of the test.
func (r *rig) mount(name, fsType, data string, flags uintptr) string {
	r.t.Helper()
	dir := filepath.Join(r.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := unix.Mount("none", dir, fsType, flags, data); err != nil {
		r.t.Skipf("mounting needs root: %v", err)
	}
	r.t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			r.t.Error(err)
		}
	})
	return dir
}

func (f *fault) yaml(strict bool) string {
	y := strings.Replace(head, "provider: verbs}]", "provider: verbs}, LISTENER]", 1)
	y = strings.Replace(y, ", LISTENER", map[bool]string{true: ", " + f.listener}[f.listener != ""], 1)
	if strict {
		y += "strict: true\n"
	}
	y += "backends: [{name: ram0, type: mem, size: 1MiB}"
	namespaces := []string{"{nsid: 1, backend: ram0}"}
	if f.backend != "" {
		y += ", " + f.backend
		namespaces = append(namespaces, "{nsid: 2, backend: d}")
	}
	return y + "]\nsubsystems:\n" + subsystem("a", "any", namespaces...)
}

// Each fault is one message that names the listener or the backend; everything
// else serves, unless the file says strict.
func TestFaults(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			r := newRig(t, f.yaml(false), func(r *rig, _ *Options) {
				if f.prepare != nil {
					f.prepare(t, r)
				}
			})
			want := strings.ReplaceAll(f.want, "DIR", r.dir)
			if !r.log.has("level=error msg=\"" + want) {
				t.Errorf("the log at the start lacks %q:\n%s", want, r.log)
			}
			res := r.d.Reload(r.ctx, r.config(f.yaml(false)))
			if len(res.Errors) != 1 || res.Errors[0].Error() != want || f.is != nil && !errors.Is(res.Errors[0], f.is) {
				t.Errorf("reload: %q\nwant %q", res.Errors, want)
			}
			_, q := r.connect(nqnA)
			if err := q.Read(r.ctx, 1, 0, 1, 0, 512); err != nil {
				t.Errorf("the good namespace: %v", err)
			}
			if ls := r.status().Listeners; f.listener != "" && (len(ls) != 2 || ls[1].State != Down || !strings.Contains(want, ls[1].Reason)) {
				t.Errorf("listeners %+v", ls)
			}
			r.strict(f.yaml(true), want)
		})
	}
}

// strict wants a daemon on the file not to start, for the one reason.
func (r *rig) strict(yaml, want string) {
	r.t.Helper()
	if err := r.d.Close(r.ctx); err != nil {
		r.t.Fatal(err)
	}
	// The first daemon has closed its provider, and with it the devices.
	n := fabrictest.NewNetwork(fabrictest.Options{})
	near := n.NewProvider(fabrictest.DeviceOptions{Addrs: []netip.Addr{targetAddr}})
	if strings.Contains(want, "4421") {
		l, err := near.Listen(r.ctx, netip.AddrPortFrom(targetAddr, 4421), fabric.ListenConfig{})
		if err != nil {
			r.t.Fatal(err)
		}
		defer l.Close()
	}
	d, err := Start(r.ctx, r.config(yaml), Options{Log: quiet(), Providers: only(near)})
	if err == nil {
		r.t.Error("a strict daemon has started")
		err = d.Close(r.ctx)
	}
	if err == nil || err.Error() != want {
		r.t.Errorf("strict: %v\nwant %s", err, want)
	}
}

// A file system that fills up is Capacity Exceeded, for the writes that need
// more of it; reads and other namespaces go on.
func TestFullFileSystem(t *testing.T) {
	r := newRig(t, head+"backends: [{name: d, type: file, path: DIR/tmp/img, size: 1MiB, block_size: 4096}]\nsubsystems:\n"+
		subsystem("a", "any", "{nsid: 1, backend: d}"),
		func(rr *rig, _ *Options) { rr.mount("tmp", "tmpfs", "size=256k", 0) })
	_, q := r.connect(nqnA)
	var err error
	lba := uint64(0)
	for ; err == nil && lba < 256; lba++ {
		q.Data()[0] = byte(lba + 1)
		err = q.Write(r.ctx, 1, lba, 1, 0, 4096)
	}
	var st nvme.Status
	if !errors.As(err, &st) || st.Code() != nvme.CapacityExceeded || !st.DNR() || lba < 10 {
		t.Fatalf("block %d: %v", lba, err)
	}
	for _, at := range []uint64{0, lba - 2} {
		if err := q.Read(r.ctx, 1, at, 1, 8192, 4096); err != nil || q.Data()[8192] != byte(at+1) {
			t.Errorf("block %d: %v, begins with %d", at, err, q.Data()[8192])
		}
	}
	if !r.log.has(nqnA + " namespace 1 (d): write of 4096 bytes at ") {
		t.Errorf("log:\n%s", r.log)
	}
}

// A file that is cut under the daemon: what is left reads, what is not is out
// of range, and the hosts are told of the new size.
func TestTruncated(t *testing.T) {
	conf := head + "backends: [{name: d, type: file, path: DIR/d.img, size: 1MiB}]\nsubsystems:\n" + subsystem("a", "any", "{nsid: 1, backend: d}")
	r := newRig(t, conf)
	s, q := r.connect(nqnA)
	awaitEvent := r.wantEvent(s, nvme.EventNSAttribute)
	if err := os.Truncate(filepath.Join(r.dir, "d.img"), 512<<10); err != nil {
		t.Fatal(err)
	}
	if err := q.Read(r.ctx, 1, 1023, 2, 0, 1024); code(err) != nvme.LBAOutOfRange {
		t.Errorf("across the new end: %v", err)
	}
	if err := q.Read(r.ctx, 1, 1023, 1, 0, 512); err != nil {
		t.Errorf("the last block: %v", err)
	}
	awaitEvent(nvme.NSAttributeChanged)
	if n := r.status().Subsystems[0].Namespaces[0].Bytes; n != 512<<10 {
		t.Errorf("size %d", n)
	}
	if err := q.Write(r.ctx, 1, 1024, 1, 0, 512); code(err) != nvme.LBAOutOfRange {
		t.Errorf("behind the new end: %v", err)
	}
}

// A medium that fails, then vanishes: the statuses say so, the log names the
// namespace, nobody else notices.
func TestFailingMedium(t *testing.T) {
	media := stuckBackends{}
	r := newRig(t, ramBackends+subsystem("a", "any", "{nsid: 1, backend: ram0}", "{nsid: 2, backend: ram1}"), media.use)
	_, q := r.connect(nqnA)
	bad := media["ram0"]
	bad.Judge(backendtest.Fail(nvme.UnrecoveredReadError, backend.Kinds(backend.Read), 4096, 512))
	if err := q.Read(r.ctx, 1, 8, 1, 0, 512); code(err) != nvme.UnrecoveredReadError {
		t.Errorf("bad block: %v", err)
	}
	if err := q.Read(r.ctx, 1, 9, 1, 0, 512); err != nil {
		t.Errorf("the block beside it: %v", err)
	}
	bad.Judge(backendtest.Fail(nvme.WriteFault, backend.Kinds(backend.Write, backend.Flush), 0, 1<<20))
	if err := q.Write(r.ctx, 1, 0, 1, 0, 512); code(err) != nvme.WriteFault {
		t.Errorf("write: %v", err)
	}
	all := backend.Kinds(backend.Read, backend.Write, backend.Flush, backend.Discard, backend.WriteZeroes)
	bad.Judge(backendtest.Fail(nvme.InternalError, all, 0, 1<<20))
	for lba := range uint64(100) {
		if err := q.Read(r.ctx, 1, lba, 1, 0, 512); code(err) != nvme.InternalError {
			t.Fatalf("a vanished device: %v", err)
		}
	}
	if err := q.Read(r.ctx, 2, 0, 1, 0, 4096); err != nil {
		t.Errorf("the other namespace: %v", err)
	}
	ns := r.status().Subsystems[0].Namespaces
	if ns[0].Counters.MediaErrors != 2 || ns[0].Counters.Errors != 102 || ns[1].Counters.Errors != 0 {
		t.Errorf("%+v", ns)
	}
	if !r.log.has(nqnA+" namespace 1 (ram0)") || strings.Count(r.log.String(), "failed") > 60 {
		t.Errorf("log:\n%s", r.log)
	}
}

// Every engine of the configuration is one of the backend.
func TestEngines(t *testing.T) {
	for _, engine := range []string{"auto", "threads"} {
		dev, err := openBackend(config.Backend{
			Name: "d", Type: "file", Path: filepath.Join(t.TempDir(), "img"), Size: 1 << 20, BlockSize: 512, Engine: engine, Direct: "auto",
		})
		if err != nil {
			t.Errorf("%s: %v", engine, err)
			continue
		}
		if e := dev.Info().Engine; engine == "threads" && !strings.Contains(e, "pool") {
			t.Errorf("%s: %s", engine, e)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}
