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

// blockPatience is how long the lock and the claim of a block device are
// tried: udev holds a lock for a moment when it looks at a device, and the
// kernel a claim when its holder has just closed.
const blockPatience = 300 * time.Millisecond

// errNotLocked is in every error of lock.
var errNotLocked = errors.New("not locked")

// lock takes the lock or fails with backend.ErrLocked and the name of a
// process that holds it.
func (m *medium) lock(exclusive bool) error {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	err := m.patiently(unix.EWOULDBLOCK, func() error { return unix.Flock(m.fd, how|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return &lockedError{holder: m.holder()}
	}
	if err != nil {
		return fmt.Errorf("%w against a second opener: flock: %w", errNotLocked, err)
	}
	return nil
}

// patiently repeats a call for a block device while it fails with busy.
func (m *medium) patiently(busy unix.Errno, call func() error) error {
	const pause = 25 * time.Millisecond
	err := retryEINTR(call)
	for waited := time.Duration(0); m.block && errors.Is(err, busy) && waited < blockPatience; waited += pause {
		time.Sleep(pause)
		err = retryEINTR(call)
	}
	return err
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

// claimed explains EBUSY from O_EXCL on a block device. Whoever claimed it may
// have locked it as well, and then has a name.
func (m *medium) claimed() error {
	if at := mountPoint(m.rdev); at != "" {
		return &lockedError{": mounted on " + at}
	}
	if who := m.holder(); who != "" {
		return &lockedError{who}
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
