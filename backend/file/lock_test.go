package file

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
)

func TestLockOwner(t *testing.T) {
	const locks = `1: POSIX  ADVISORY  WRITE 50 fe:00:77 0 EOF
2: FLOCK  ADVISORY  WRITE 3112 fe:00:1835013 0 EOF
2: -> FLOCK  ADVISORY  WRITE 3113 fe:00:99 0 EOF
3: FLOCK  ADVISORY  READ  -1 00:2a:5 0 EOF
4: OFDLCK ADVISORY  READ  7 fe:00:1835014 0 0
short line
`
	for _, c := range []struct {
		major, minor uint32
		ino          uint64
		want         int
	}{
		{0xfe, 0, 1835013, 3112},
		{0xfe, 0, 183501, 0},    // part of a number
		{0xfe, 1, 1835013, 0},   // another file system
		{0xfe, 0, 99, 0},        // only waits
		{0xfe, 0, 77, 0},        // locked otherwise
		{0, 0x2a, 5, 0},         // its process is not ours to see
		{0xfe, 0, 1835014, 0},   // locked otherwise
		{0xfe, 0, 1<<63 + 1, 0}, // absent
	} {
		if got := lockOwner([]byte(locks), unix.Mkdev(c.major, c.minor), c.ino); got != c.want {
			t.Errorf("%x:%x:%d is held by %d, want %d", c.major, c.minor, c.ino, got, c.want)
		}
	}
}

func TestDescribe(t *testing.T) {
	for pid, want := range map[int]string{
		0:           "",
		os.Getpid(): ": this process has it open already",
		1 << 30:     ": process 1073741824",
	} {
		if got := describe(pid); got != want {
			t.Errorf("%d: %q, want %q", pid, got, want)
		}
	}
	if got := describe(1); !strings.HasPrefix(got, ": process 1 (") {
		t.Errorf("process 1: %q", got)
	}
}

func TestLockedErrors(t *testing.T) {
	err := error(&lockedError{": process 3 (x)"})
	if !errors.Is(err, backend.ErrLocked) || !errors.Is(err, errNotLocked) || errors.Is(err, backend.ErrBusy) {
		t.Error("does not match what it should")
	}
	if got := err.Error(); got != "locked by another opener: process 3 (x)" {
		t.Errorf("%q", got)
	}
	m := &medium{fd: -1}
	if err := m.lock(true); !errors.Is(err, unix.EBADF) || !errors.Is(err, errNotLocked) || errors.Is(err, backend.ErrLocked) {
		t.Errorf("a lock that fails otherwise: %v", err)
	}
}
