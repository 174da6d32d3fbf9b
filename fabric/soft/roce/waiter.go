package roce

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// waiter watches the sockets of the engines whose owners sleep, and wakes them.
// It is an epoll instance of its own, in which a socket is armed for one event
// at a time: while an owner polls, packets cost no wake-up of anybody. The
// runtime's poller watches that instance.
type waiter struct {
	dev  *device
	fd   int
	file *os.File
	raw  syscall.RawConn
	done chan struct{}
}

func newWaiter(d *device) (*waiter, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // tells os.NewFile to use the poller
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &waiter{dev: d, fd: fd, file: os.NewFile(uintptr(fd), "roce waiter"), done: make(chan struct{})}
	if w.raw, err = w.file.SyscallConn(); err != nil {
		w.file.Close()
		return nil, err
	}
	go w.routineWait()
	return w, nil
}

// routineWait runs until close.
func (w *waiter) routineWait() {
	defer close(w.done)
	var events [64]unix.EpollEvent
	_ = w.raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.EpollWait(int(fd), events[:], 0)
			if n <= 0 && err != unix.EINTR {
				return false // parks until there is an event, or the file is closed
			}
			for _, ev := range events[:max(n, 0)] {
				if e := w.dev.engines[ev.Fd&groupMask].Load(); e != nil {
					e.wake()
				}
			}
		}
	})
}

// watch arms the engine's sockets. What is there already counts.
func (w *waiter) watch(e *engine) {
	w.arm(e.rx.fd, unix.EPOLLIN, e.index)
	if e.tx.blocked() {
		w.arm(e.tx.fd, unix.EPOLLOUT, e.index)
	}
}

func (w *waiter) arm(fd int, what uint32, index uint32) {
	ev := unix.EpollEvent{Events: what | unix.EPOLLONESHOT, Fd: int32(index)}
	if err := unix.EpollCtl(w.fd, unix.EPOLL_CTL_MOD, fd, &ev); err == unix.ENOENT {
		_ = unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, fd, &ev)
	}
}

// forget stops watching the engine's sockets.
func (w *waiter) forget(e *engine) {
	for _, fd := range []int{e.rx.fd, e.tx.fd} {
		_ = unix.EpollCtl(w.fd, unix.EPOLL_CTL_DEL, fd, nil) // it may never have been watched
	}
}

func (w *waiter) close() {
	w.file.Close()
	<-w.done
}
