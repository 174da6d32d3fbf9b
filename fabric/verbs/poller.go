//go:build linux && cgo && !nordma

package verbs

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// parked is a descriptor of the libraries under the Go runtime's poller, so
// that waiting for it costs a goroutine and no thread, and ends with close.
type parked struct {
	file *os.File
	raw  syscall.RawConn
	done chan struct{}
}

// park makes fd non-blocking and takes a duplicate of it: the library keeps
// closing its own, the poller ours.
func park(fd int, name string) (*parked, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("set %s non-blocking: %w", name, err)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of %s: %w", name, err)
	}
	f := os.NewFile(uintptr(dup), name)
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &parked{file: f, raw: raw, done: make(chan struct{})}, nil
}

// routine calls drain whenever the descriptor may be readable, until close.
// drain must take everything there is: the poller tells of an edge.
func (p *parked) routine(drain func()) {
	defer close(p.done)
	_ = p.raw.Read(func(uintptr) bool { // the error is always that of close
		drain()
		return false
	})
}

// close ends the routine and waits for it.
func (p *parked) close() {
	p.file.Close()
	<-p.done
}
