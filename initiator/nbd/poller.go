package nbd

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// poller tells a lane of its sockets. It is an epoll instance that the runtime's
// poller watches, so that waiting for it blocks no thread. Sockets are
// edge-triggered: each event is told once.
//
// The lane waits in Queue.Wait, or Rest, with the poller's bell as context, which
// a helper rings when there is an event.
type poller struct {
	// Constant.

	fd     int
	file   *os.File
	raw    syscall.RawConn
	bell   bell
	rounds chan struct{} // the helper is to watch, until it rings once
	ended  chan struct{} // the helper has ended

	mu    sync.Mutex
	waker int // an eventfd; -1 when it is closed

	// Lane.

	events [64]unix.EpollEvent
	count  int
	armed  bool // the helper watches, or has rung

	// Helper.

	look   [1]unix.PollFd
	peeked func(fd uintptr) bool
}

// wakerID stands for the eventfd in events.
const wakerID = -1

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // tells os.NewFile to use the runtime's poller
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{
		fd: fd, file: os.NewFile(uintptr(fd), "nbd"), bell: bell{make(chan struct{}, 1)},
		rounds: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	if p.waker, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return nil, errors.Join(os.NewSyscallError("eventfd", err), p.file.Close())
	}
	p.raw, err = p.file.SyscallConn()
	if err == nil {
		err = p.add(p.waker, unix.EPOLLIN, wakerID)
	}
	if err != nil {
		unix.Close(p.waker)
		return nil, errors.Join(err, p.file.Close())
	}
	p.look[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	p.peeked = func(uintptr) bool { return p.peek() }
	go p.routineWatch()
	return p, nil
}

// add has the lane told of events of fd, as id.
func (p *poller) add(fd int, events uint32, id int32) error {
	ev := unix.EpollEvent{Events: events | unix.EPOLLET&0xffffffff, Fd: id}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &ev))
}

// poll takes the events that are there.
func (p *poller) poll() int {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), 0, 0, 0)
	if p.count = int(n); e != 0 {
		p.count = 0
	}
	return p.count
}

// peek says whether there are events, and takes none.
func (p *poller) peek() bool {
	var now unix.Timespec
	n, _, e := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p.look[0])), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return e == 0 && n > 0
}

// wait sleeps until there is an event.
func (p *poller) wait() {
	p.arm()
	<-p.bell.ch
	p.armed = false
}

// arm has the bell rung at the next event.
func (p *poller) arm() {
	if !p.armed {
		p.armed = true
		p.rounds <- struct{}{}
	}
}

// disarm takes note of a bell that was rung.
func (p *poller) disarm() {
	if !p.armed {
		return
	}
	select {
	case <-p.bell.ch:
		p.armed = false
	default:
	}
}

// routineWatch is the helper; it runs until close.
func (p *poller) routineWatch() {
	defer close(p.ended)
	for range p.rounds {
		_ = p.raw.Read(p.peeked) // ends with the file too
		p.bell.ch <- struct{}{}
	}
}

// wake makes an event; any goroutine may call it.
func (p *poller) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waker >= 0 {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		_, _ = unix.Write(p.waker, one[:]) // nobody reads it, and 2^64 wakes do not come
	}
}

// close ends the helper. The lane has ended.
func (p *poller) close() error {
	close(p.rounds)
	err := p.file.Close()
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	err = errors.Join(err, os.NewSyscallError("close", unix.Close(p.waker)))
	p.waker = -1
	return err
}

// bell is a context that ends a wait each time it is rung.
type bell struct{ ch chan struct{} }

// errRung is why a wait ended that the bell ended.
var errRung = errors.New("the bell was rung")

// Deadline is none (context.Context).
func (bell) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done is readable once each time the bell is rung (context.Context).
func (b bell) Done() <-chan struct{} { return b.ch }

// Err is errRung (context.Context).
func (bell) Err() error { return errRung }

// Value is none (context.Context).
func (bell) Value(any) any { return nil }

// readv reads without blocking.
func readv(fd int, iovs []unix.Iovec) (int, unix.Errno) { return vector(unix.SYS_READV, fd, iovs) }

// writev writes without blocking.
func writev(fd int, iovs []unix.Iovec) (int, unix.Errno) { return vector(unix.SYS_WRITEV, fd, iovs) }

func vector(call uintptr, fd int, iovs []unix.Iovec) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&iovs[0])), uintptr(len(iovs)))
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// iovec is b for readv and writev.
func iovec(b []byte) unix.Iovec { return unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))} }
