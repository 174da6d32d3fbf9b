package file

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
)

// A medium is locked by flock, which also keeps apart two openers in one
// process: exclusive for a writer, shared for readers. A block device is
// claimed with O_EXCL as well, which keeps out mounts and other claims.

// blockPatience is how long the lock of a block device is tried: udev holds
// one for a moment when it looks at a device.
const blockPatience = time.Second

// errNotLocked is in every error of lock.
var errNotLocked = errors.New("not locked")

// lock takes the lock or fails with backend.ErrLocked and the name of a
// process that holds it.
func (m *medium) lock(exclusive bool) error {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	var patience time.Duration
	if m.block {
		patience = blockPatience
	}
	const pause = 50 * time.Millisecond
	for ; ; patience -= pause {
		err := retryEINTR(func() error { return unix.Flock(m.fd, how|unix.LOCK_NB) })
		switch {
		case err == nil:
			return nil
		case errnoOf(err) != unix.EWOULDBLOCK:
			return fmt.Errorf("%w against a second opener: flock: %w", errNotLocked, err)
		case patience <= 0:
			return &lockedError{holder: m.holder()}
		}
		time.Sleep(pause)
	}
}

// lockedError is backend.ErrLocked with who holds the lock.
type lockedError struct{ holder string }

func (e *lockedError) Error() string { return backend.ErrLocked.Error() + e.holder }

func (e *lockedError) Is(target error) bool {
	return target == backend.ErrLocked || target == errNotLocked
}

// holder names who holds a lock on the medium, as ": process 12 (qemu)", or ""
// when the system does not tell.
func (m *medium) holder() string {
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	return describe(lockOwner(locks, m.dev, m.ino))
}

// lockOwner finds the process that holds an flock on a file in the text of
// /proc/locks, whose lines are
//
//	1: FLOCK  ADVISORY  WRITE 3112 fe:00:1835013 0 EOF
//
// and have "->" after the number for one that waits. It is 0 when none does.
func lockOwner(locks []byte, dev, ino uint64) int {
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(dev), unix.Minor(dev), ino)
	for line := range bytes.Lines(locks) {
		f := strings.Fields(string(line))
		if len(f) >= 6 && f[1] == "FLOCK" && f[5] == file {
			pid, _ := strconv.Atoi(f[4])
			return max(pid, 0)
		}
	}
	return 0
}

func describe(pid int) string {
	switch pid {
	case 0:
		return ""
	case os.Getpid():
		return ": this process has it open already"
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf(": process %d", pid)
	}
	return fmt.Sprintf(": process %d (%s)", pid, bytes.TrimSpace(name))
}

// claimed explains EBUSY from O_EXCL on a block device.
func claimed(dev uint64) error {
	if at := mountPoint(dev); at != "" {
		return &lockedError{": mounted on " + at}
	}
	return &lockedError{": it is in use as a block device"}
}

// mountPoint is where the block device with that number is mounted, if it is.
func mountPoint(dev uint64) string {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	number := fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
	for line := range bytes.Lines(mounts) {
		if f := strings.Fields(string(line)); len(f) > 4 && f[2] == number {
			return f[4]
		}
	}
	return ""
}
