package iwarp

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lingerTime is how long a peer may take to close its end.
const lingerTime = 2 * time.Second

// lingerers are the sockets whose QP is done with them while the peer's end is
// still open. Closing one with unread bytes would reset the connection, and the
// peer might miss what was sent last: a Terminate, or messages that have
// completed here.
type lingerers struct {
	mu     sync.Mutex
	files  map[*os.File]struct{}
	closed bool
	wg     sync.WaitGroup
}

// take ends our stream and closes the socket when the peer has ended its own.
func (l *lingerers) take(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_WR) // it may be reset already
	f := os.NewFile(uintptr(fd), Name+" connection")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || f.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		f.Close()
		return
	}
	if l.files == nil {
		l.files = make(map[*os.File]struct{})
	}
	l.files[f] = struct{}{}
	l.wg.Go(func() { l.routineLinger(f) })
}

func (l *lingerers) routineLinger(f *os.File) {
	var b [4096]byte
	for {
		if _, err := f.Read(b[:]); err != nil {
			break // io.EOF, a reset, or the time is over
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.files, f)
	f.Close()
}

// close closes them all, now and in future.
func (l *lingerers) close() {
	l.mu.Lock()
	l.closed = true
	for f := range l.files {
		_ = f.SetReadDeadline(time.Unix(1, 0)) // fails when it is closed
	}
	l.mu.Unlock()
	l.wg.Wait()
}
