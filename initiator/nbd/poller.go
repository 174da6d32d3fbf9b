package nbd

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// poller tells a lane of its sockets. It is an epoll instance that the runtime's
// poller watches, so that waiting for it blocks no thread. Sockets are
// edge-triggered: each event is told once.
//
// The lane sleeps in Queue.Wait, or Rest, which watches the instance too. Where
// that is not in the kernel a helper watches, and rings.
type poller struct {
	// Constant.

	fd     int
	file   *os.File
	raw    syscall.RawConn
	ring   func()        // of the lane's queue
	rounds chan struct{} // the helper is to watch, until it rings once
	ended  chan struct{} // the helper has ended

	armed atomic.Bool // the helper watches

	mu    sync.Mutex
	waker int // an eventfd; -1 when it is closed

	// Lane.

	events [64]unix.EpollEvent
}

// wakerID stands for the eventfd in events.
const wakerID = -1

// newPoller makes a poller of a lane whose queue ring wakes.
func newPoller(ring func()) (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // tells os.NewFile to use the runtime's poller
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	p := &poller{
		fd: fd, file: os.NewFile(uintptr(fd), "nbd"), ring: ring,
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
	go p.routineWatch()
	return p, nil
}

// add has the lane told of events of fd, as id.
func (p *poller) add(fd int, events uint32, id int32) error {
	ev := unix.EpollEvent{Events: events | unix.EPOLLET&0xffffffff, Fd: id}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &ev))
}

// poll takes the events that are there, and says how many.
func (p *poller) poll() int {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), uintptr(len(p.events)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// wait sleeps until there is an event, for a lane without a queue.
func (p *poller) wait() { p.await(p.watching()) }

// watching is a look that takes no event, for await.
func (p *poller) watching() func(fd uintptr) bool {
	look := [1]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	return func(uintptr) bool {
		var now unix.Timespec
		n, _, e := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&look[0])), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		return e == 0 && n > 0
	}
}

// await sleeps until there is an event, or the file is closed.
func (p *poller) await(look func(fd uintptr) bool) { _ = p.raw.Read(look) }

// arm has the helper ring at the next event.
func (p *poller) arm() {
	if !p.armed.Swap(true) {
		p.rounds <- struct{}{} // has room: the helper took the round before
	}
}

// routineWatch is the helper; it runs until close.
func (p *poller) routineWatch() {
	defer close(p.ended)
	look := p.watching()
	for range p.rounds {
		p.await(look)
		p.armed.Store(false) // before the lane can be awake to arm again
		p.ring()
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
