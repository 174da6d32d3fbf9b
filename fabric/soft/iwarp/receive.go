package iwarp

import (
	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
)

// heat has the QP's socket read in each pass.
func (e *engine) heat(q *queuePair) {
	q.idle = 0
	if q.hot < 0 && q.fd >= 0 {
		q.hot = len(e.hot)
		e.hot = append(e.hot, q)
	}
}

// cool ends that. Who calls it arms the QP, unless it is done with it.
func (e *engine) cool(q *queuePair) {
	if q.hot < 0 {
		return
	}
	last := e.hot[len(e.hot)-1]
	e.hot[q.hot], last.hot = last, q.hot
	e.hot[len(e.hot)-1] = nil
	e.hot = e.hot[:len(e.hot)-1]
	q.hot = -1
}

// arm has epoll wait for what the engine does not look at itself: bytes unless
// the QP is hot, room in the socket when it is blocked.
func (e *engine) arm(q *queuePair) {
	var want uint32
	if q.hot < 0 {
		want |= unix.EPOLLIN | unix.EPOLLRDHUP
	}
	if q.blocked {
		want |= unix.EPOLLOUT
	}
	if want == q.armed || q.fd < 0 {
		return
	}
	ev := unix.EpollEvent{Events: want | unix.EPOLLONESHOT, Fd: int32(q.slot)}
	_ = unix.EpollCtl(e.epfd, unix.EPOLL_CTL_MOD, q.fd, &ev) // it was added
	e.setArmed(q, want)
}

func (e *engine) setArmed(q *queuePair, what uint32) {
	switch {
	case q.armed == 0 && what != 0:
		e.waiting++
	case q.armed != 0 && what == 0:
		e.waiting--
	}
	q.armed = what
}

// takeEvents asks epoll. Each QP that it names has to be armed anew.
func (e *engine) takeEvents() {
	for range 4 {
		n := epollWait(e.epfd, e.events[:])
		for i := range n {
			ev := &e.events[i]
			q := e.slots[ev.Fd]
			if q == nil || q.fd < 0 {
				continue
			}
			e.setArmed(q, 0)
			if ev.Events&unix.EPOLLOUT != 0 && q.blocked {
				q.blocked = false
				e.activate(q)
			}
			if ev.Events&^unix.EPOLLOUT != 0 {
				e.heat(q)
			}
			e.arm(q)
		}
		if n < len(e.events) {
			return
		}
	}
}

// receive reads the hot sockets and says whether there was anything.
func (e *engine) receive() (any bool) {
	for i := 0; i < len(e.hot); {
		q := e.hot[i]
		if e.read(q) {
			q.idle, any = 0, true
		} else if q.idle++; q.idle >= hotIdle || len(e.hot) > hotMany {
			e.cool(q) // puts another in its place
			e.arm(q)
			continue
		}
		i++
	}
	return any
}

// read reads a socket until it has nothing more, or others should have a turn.
// It is false when there was nothing.
func (e *engine) read(q *queuePair) bool {
	for n := range readBurst {
		if q.State() != fabric.QPReadyToSend {
			e.activate(q)
			return n > 0
		}
		switch got, full := e.readOnce(q); {
		case got == 0:
			return n > 0
		case !full:
			return true
		}
	}
	return true
}

// readOnce reads once: payload to where it belongs, as far as that is known,
// and the rest to the staging buffer. full says that there may be more.
func (e *engine) readOnce(q *queuePair) (got int, full bool) {
	want, staging := q.Want(), e.staging
	if len(want) >= bulkPayload {
		q.bulk = true
	}
	if q.bulk {
		staging = staging[:bulkStaging]
	}
	iovs := append(e.iovs[:0], iovec(staging))
	if len(want) > 0 {
		iovs = append(iovs[:0], iovec(want), iovec(staging))
	}
	e.calls++
	n, errno := recvVec(q.fd, iovs)
	switch {
	case (errno == unix.EAGAIN || errno == 0 && n == 0) && q.broken != 0:
		q.ended = true
		q.Lost(lost(q.broken))
	case errno == unix.EAGAIN:
		e.calls--
		e.vain++
		return 0, false
	case errno != 0:
		q.ended = true
		q.Lost(lost(errno))
	case n == 0:
		q.ended = true
		q.EOF()
	default:
		k := min(n, len(want))
		if k > 0 {
			q.Placed(k)
		}
		q.Feed(staging[:n-k])
		// A large payload was expected, but what came are smaller things.
		if full = n == len(want)+len(staging); full && len(want) < bulkPayload && q.bulk {
			q.bulk = len(q.Want()) >= bulkPayload
		}
	}
	e.activate(q)
	return max(n, 0), full
}
