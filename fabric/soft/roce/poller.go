package roce

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// poller is an epoll instance and the goroutine that handles its events. The
// runtime's poller watches the instance, not the sockets in it: so sockets can
// be armed for one event at a time, and an error that is pending on one of
// them is an event like any other.
type poller struct {
	fd   int
	file *os.File
	done chan struct{}
}

// newPoller starts a poller; handle is called with the number a socket was
// added with.
func newPoller(name string, handle func(id int32)) (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // tells os.NewFile to use the runtime's poller
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{fd: fd, file: os.NewFile(uintptr(fd), name), done: make(chan struct{})}
	raw, err := p.file.SyscallConn()
	if err != nil {
		p.file.Close()
		return nil, err
	}
	go p.routinePoll(raw, handle)
	return p, nil
}

// routinePoll runs until close.
func (p *poller) routinePoll(raw syscall.RawConn, handle func(id int32)) {
	defer close(p.done)
	var events [64]unix.EpollEvent
	_ = raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.EpollWait(int(fd), events[:], 0)
			if n <= 0 && err != unix.EINTR {
				return false // parks until there is an event, or the file is closed
			}
			for _, ev := range events[:max(n, 0)] {
				handle(ev.Fd)
			}
		}
	})
}

// arm has the next of the events what of a socket handled as id, once. What is
// there already counts.
func (p *poller) arm(fd int, what uint32, id int32) {
	ev := unix.EpollEvent{Events: what | unix.EPOLLONESHOT, Fd: id}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &ev); err == unix.ENOENT {
		_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &ev)
	}
}

// add has all events of a socket handled as id.
func (p *poller) add(fd int, what uint32, id int32) error {
	ev := unix.EpollEvent{Events: what, Fd: id}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &ev))
}

// remove ends either.
func (p *poller) remove(fd int) {
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) // it may never have been armed
}

// close ends the goroutine and returns when it has ended.
func (p *poller) close() {
	p.file.Close()
	<-p.done
}
