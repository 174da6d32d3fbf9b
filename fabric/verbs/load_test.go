//go:build linux && cgo && !nordma

package verbs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
)

func TestLoadNamesTheMissingLibrary(t *testing.T) {
	for _, c := range []struct{ verbs, cm, want string }{
		{"libabsent-verbs.so.1", cmLibrary, "libabsent-verbs.so.1: cannot open shared object file: No such file or directory"},
		{"libc.so.6", cmLibrary, "libc.so.6: too old, it has no ibv_get_device_list"},
	} {
		err := callLoad(c.verbs, c.cm, false)
		if !errors.Is(err, fabric.ErrNotSupported) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.verbs, err, c.want)
		}
	}
	if load() != nil {
		t.Skip("the libraries are not installed")
	}
	err := callLoad(verbsLibrary, "libabsent-cm.so.1", false)
	if err == nil || !strings.Contains(err.Error(), "libabsent-cm.so.1: cannot open") {
		t.Errorf("missing librdmacm: %v", err)
	}
	err = callLoad(verbsLibrary, "libc.so.6", false)
	if err == nil || !strings.Contains(err.Error(), "libc.so.6: too old, it has no rdma_get_devices") {
		t.Errorf("wrong librdmacm: %v", err)
	}
}

func TestDiagnose(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ mkdir, want string }{
		{"", "modprobe ib_uverbs"},
		{"infiniband_verbs", "knows no RDMA device"},
		{"infiniband", "rdma link add"},
		{"infiniband/mlx9_0", "the kernel knows mlx9_0, but libibverbs has no driver"},
	} {
		if err := os.MkdirAll(filepath.Join(dir, c.mkdir), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := diagnose(dir); !strings.Contains(got, c.want) {
			t.Errorf("with %q: %q, want %q", c.mkdir, got, c.want)
		}
	}
}

func TestCMErrorNamesTheModule(t *testing.T) {
	there := filepath.Join(t.TempDir(), "rdma_cm")
	absent := there + ".absent"
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err    error
		device string
		want   string
	}{
		{unix.ENOENT, absent, "rdma_cm is not loaded: modprobe rdma_ucm"},
		{unix.EACCES, there, "no permission for " + there},
		{unix.ENODEV, there, fabric.ErrNoDevice.Error()},
		{unix.EMFILE, there, unix.EMFILE.Error()},
	} {
		if got := cmError(c.err, c.device); !strings.Contains(got.Error(), c.want) {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

func TestOpenError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "uverbs0")
	if err := openError(file, unix.ENOENT); !errors.Is(err, unix.ENOENT) {
		t.Errorf("absent: %v", err)
	}
	if err := os.WriteFile(file, nil, 0); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		t.Skip("root may open anything")
	}
	if err := openError(file, unix.ENOENT); !errors.Is(err, unix.EACCES) {
		t.Errorf("not ours: %v", err)
	}
}

func TestErrno(t *testing.T) {
	if errno(0) != nil {
		t.Error("0 is an error")
	}
	for e, want := range sentinels {
		for _, n := range []int{int(e), -int(e)} {
			if err := errno(n); !errors.Is(err, want) || !errors.Is(err, e) {
				t.Errorf("%d: %v wraps not both %v and %v", n, err, want, e)
			}
		}
	}
	if err := errno(int(unix.EIO)); !errors.Is(err, unix.EIO) {
		t.Errorf("EIO: %v", err)
	}
}

func TestRegisterErrorHintsAtMemlock(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: min(64<<10, old.Max), Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
			t.Error(err)
		}
	}()
	err := registerError(errno(int(unix.ENOMEM)), 1<<20)
	if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "ulimit -l") || !strings.Contains(err.Error(), "64 KiB") {
		t.Errorf("ENOMEM: %v", err)
	}
	if err := registerError(unix.EINVAL, 1); !errors.Is(err, unix.EINVAL) {
		t.Errorf("EINVAL: %v", err)
	}
}

func TestAccess(t *testing.T) {
	if err := checkAccess(fabric.AccessRemoteWrite); !errors.Is(err, fabric.ErrInvalid) {
		t.Errorf("remote write without local write: %v", err)
	}
	if err := checkAccess(0x80); !errors.Is(err, fabric.ErrInvalid) {
		t.Errorf("unknown right: %v", err)
	}
	if err := checkAccess(allAccess); err != nil {
		t.Error(err)
	}
	for a, want := range map[fabric.Access]int{
		0: 0, fabric.AccessLocalWrite: 1, fabric.AccessRemoteWrite: 2, fabric.AccessRemoteRead: 4,
		fabric.AccessRemoteAtomic: 8, fabric.AccessWindowBind: 16, allAccess: 31,
	} {
		if got := int(accessFlags(a)); got != want {
			t.Errorf("access %#x: flags %#x, want %#x", a, got, want)
		}
	}
}

func TestWindowKeys(t *testing.T) {
	w := memoryWindow{rkey: 0x1234_56ff}
	if k := w.nextKey(); k != 0x1234_5600 {
		t.Errorf("key after %#x: %#x", w.rkey, k)
	}
}
