package host

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Waiter watches descriptors: for owners that sleep, each for one event at a time
// (Add, Watch), so that while an owner polls what comes costs no wake-up of
// anybody, or for all their events (Keep). It is an epoll instance that the
// runtime's poller watches, and not the descriptors in it: an error that is
// pending on one of them is an event like any other. Its methods are safe for any
// goroutine.
type Waiter struct {
	fd   int
	file *os.File
	raw  syscall.RawConn
	done chan struct{}

	mu   sync.Mutex
	wake map[int32]func()
}

// NewWaiter makes a waiter and starts its goroutine.
func NewWaiter() (*Waiter, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // tells os.NewFile to use the runtime's poller
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	w := &Waiter{fd: fd, file: os.NewFile(uintptr(fd), "waiter"), done: make(chan struct{}), wake: make(map[int32]func())}
	if w.raw, err = w.file.SyscallConn(); err != nil {
		w.file.Close()
		return nil, err
	}
	go w.routineWait()
	return w, nil
}

// routineWait runs until Close.
func (w *Waiter) routineWait() {
	defer close(w.done)
	var events [64]unix.EpollEvent
	_ = w.raw.Read(func(fd uintptr) bool { // ends when the file is closed
		for {
			n, err := unix.EpollWait(int(fd), events[:], 0)
			if n <= 0 && err != unix.EINTR {
				return false // parks until there is an event
			}
			for _, ev := range events[:max(n, 0)] {
				w.call(ev.Fd)
			}
		}
	})
}

func (w *Waiter) call(fd int32) {
	w.mu.Lock()
	wake := w.wake[fd]
	w.mu.Unlock()
	if wake != nil {
		wake()
	}
}

// Add makes the waiter know fd; it is not watched yet. wake, which must not
// block, is called when an event that was watched for is there, and perhaps once
// for an error that comes before the first Watch.
func (w *Waiter) Add(fd int, wake func()) error { return w.add(fd, unix.EPOLLONESHOT, wake) }

// Keep makes the waiter know fd and has handle called while one of those events
// (unix.EPOLLIN, unix.EPOLLOUT) or an error is there; 0 is errors alone. handle
// may take its time where the waiter's other descriptors can wait for it.
func (w *Waiter) Keep(fd int, events uint32, handle func()) error { return w.add(fd, events, handle) }

func (w *Waiter) add(fd int, events uint32, wake func()) error {
	w.mu.Lock()
	w.wake[int32(fd)] = wake
	w.mu.Unlock()
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, fd, &ev))
}

// Watch has wake called at the next of those events, or at once when it is there.
// fd must have been added.
func (w *Waiter) Watch(fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events | unix.EPOLLONESHOT, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.fd, unix.EPOLL_CTL_MOD, fd, &ev))
}

// Remove makes the waiter forget fd, before that is closed.
func (w *Waiter) Remove(fd int) {
	_ = unix.EpollCtl(w.fd, unix.EPOLL_CTL_DEL, fd, nil) // it may not have been added
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.wake, int32(fd))
}

// Close ends the waiter and waits for its goroutine.
func (w *Waiter) Close() {
	w.file.Close()
	<-w.done
}
