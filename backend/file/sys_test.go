package file_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lockThread binds the goroutine to its thread, which ends with it.
func lockThread() { runtime.LockOSThread() }

// installFilter installs a seccomp filter for all threads of the process.
func installFilter(filter []unix.SockFilter) error {
	const setModeFilter, flagTSync = 1, 1
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, flagTSync, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}

// loop is a loop device over a file of the test, which takes root.
type loop struct {
	path    string
	backing string
	fd      int
}

func newLoop(t testing.TB, size int64, blockSize uint32) *loop {
	t.Helper()
	backing := filepath.Join(tmpfs(t), "backing")
	f, err := os.OpenFile(backing, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	ctl, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no loop devices: %v", err)
	}
	defer unix.Close(ctl)
	for range 20 { // another process may take the number first
		n, err := unix.IoctlRetInt(ctl, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Skipf("no loop device: %v", err)
		}
		l := &loop{path: fmt.Sprint("/dev/loop", n), backing: backing}
		if l.fd, err = unix.Open(l.path, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			t.Skipf("no loop device: %v", err)
		}
		err = unix.IoctlLoopConfigure(l.fd, &unix.LoopConfig{Fd: uint32(f.Fd()), Size: blockSize})
		if err == nil {
			t.Cleanup(func() { l.close(t) })
			return l
		}
		_ = unix.Close(l.fd)
		if !errors.Is(err, unix.EBUSY) {
			t.Skipf("%s: %v", l.path, err)
		}
	}
	t.Skip("no free loop device")
	return nil
}

func (l *loop) close(t testing.TB) {
	if _, err := unix.IoctlRetInt(l.fd, unix.LOOP_CLR_FD); err != nil {
		t.Errorf("detaching %s: %v", l.path, err)
	}
	_ = unix.Close(l.fd)
}

// resize changes the backing file and tells the device.
func (l *loop) resize(t testing.TB, size int64) {
	t.Helper()
	if err := os.Truncate(l.backing, size); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(l.fd, unix.LOOP_SET_CAPACITY, 0); err != nil {
		t.Fatal(err)
	}
}

// format makes an ext4 file system.
func format(t testing.TB, path string) {
	t.Helper()
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Skip(err)
	}
	if out, err := exec.Command(mkfs, "-q", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// unmount tries for a moment: io_uring lets go of a file a little after the
// completion of its last operation.
func unmount(t testing.TB, dir string) {
	t.Helper()
	err := unix.Unmount(dir, 0)
	for try := 0; errors.Is(err, unix.EBUSY) && try < 200; try++ {
		time.Sleep(5 * time.Millisecond)
		err = unix.Unmount(dir, 0)
	}
	if err != nil {
		t.Errorf("unmounting %s: %v", dir, err)
	}
}
