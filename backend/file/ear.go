package file

import (
	"os"

	"golang.org/x/sys/unix"
)

// ear tells the signals of an eventfd from a goroutine of its own, which the Go
// runtime parks without a thread: for an owner that does not sleep in the kernel.
type ear struct {
	tell func() // constant

	events *os.File // nil: closed
	ended  chan struct{}
}

// open begins to listen, the first time, until close. When that is not possible
// (no descriptor is free) it tells at once, and each time.
func (e *ear) open(evfd int) {
	if e.events != nil {
		return
	}
	fd, err := unix.FcntlInt(uintptr(evfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		e.tell()
		return
	}
	e.events, e.ended = os.NewFile(uintptr(fd), "io_uring events"), make(chan struct{})
	go e.listen()
}

// listen reads the eventfd once, for signals that came before it began. From then
// on it does not: the runtime polls for edges, and every signal is one.
func (e *ear) listen() {
	defer close(e.ended)
	conn, err := e.events.SyscallConn()
	if err != nil {
		return // closed already
	}
	began := false
	_ = conn.Read(func(fd uintptr) (done bool) { // ends with the error of Close
		if began || signalled(int(fd)) {
			e.tell()
		}
		began = true
		return false
	})
}

// signalled says whether an eventfd has been signalled, and resets it.
func signalled(evfd int) bool {
	var count [8]byte
	n, _ := unix.Read(evfd, count[:]) // EAGAIN when not
	return n > 0
}

func (e *ear) close() error {
	if e.events == nil {
		return nil
	}
	err := e.events.Close()
	<-e.ended
	return err
}
