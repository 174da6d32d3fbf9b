package iwarp

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/rdmap"
)

const (
	// stagingSize is how much is read at a time besides what goes straight to
	// its place, bulkStaging when large payloads come: enough for the header of
	// the next.
	stagingSize = 256 << 10
	bulkStaging = 4 << 10
	// bulkPayload is the rest of a payload that makes it a large one.
	bulkPayload = 16 << 10

	sendBurst = 1 // batches of one QP before others have a turn
	readBurst = 8 // reads
	// hotIdle is how often a socket is read for nothing before the engine
	// leaves it to epoll, hotMany with how many sockets that is at once.
	hotIdle = 64
	hotMany = 8
	// spinEpoll is how many passes that read for nothing there are between two
	// that ask epoll, which takes longer than they do.
	spinEpoll = 4
)

// engine does the work of the QPs of one completion queue (or of two, for QPs
// that use two), inside the owner's Poll:
//
//	send what was posted
//	ask epoll for the sockets that were left to it, not in each pass while
//	there is nothing to do
//	read those that have something, or lately had ("hot")
//	send what that gave rise to
//
// Arm sends everything, leaves all sockets to epoll, and has the waiter watch
// that.
type engine struct {
	// Constant.
	dev  *device
	epfd int

	// Any goroutine.
	mail core.Mailbox // what changes the fields below
	cqs  core.Clients

	// Owner.
	slots   []*queuePair // epoll names a QP by its place here
	vacant  []int
	count   int // QPs
	waiting int // of them: QPs that epoll waits for
	asleep  bool
	bed     core.Bed // whose Waker watches epfd; empty when the owner leaves that to the waiter
	active  core.Ring[*queuePair]
	hot     []*queuePair
	spun    int // passes in a row that read hot sockets for nothing
	batch   *rdmap.Batch
	pool    rdmap.Pool
	stats   rdmap.Stats
	staging []byte
	events  [64]unix.EpollEvent
	iovs    [512]unix.Iovec // as many as rdmap.Batch has parts
	hdr     unix.Msghdr
	calls   uint64 // system calls that moved data
	vain    uint64 // and that had nothing to move
}

func newEngine(d *device) (*engine, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	e := &engine{dev: d, epfd: epfd, batch: rdmap.NewBatch(d.Limits().MaxSGE), staging: make([]byte, stagingSize)}
	if err := d.waiter.Add(epfd, e.wake); err != nil {
		d.waiter.Remove(epfd)
		unix.Close(epfd)
		return nil, err
	}
	return e, nil
}

// Close is called when nobody polls any more: there are no QPs.
func (e *engine) Close() {
	e.mail.Run()
	e.dev.waiter.Remove(e.epfd)
	e.bed.Leave(e.epfd)
	unix.Close(e.epfd)
}

// Clients are the CQs of the engine.
func (e *engine) Clients() *core.Clients { return &e.cqs }

// wake asks the owner for a Poll.
func (e *engine) wake() { e.cqs.Wake() }

// do has the owner run fn in its next Poll.
func (e *engine) do(fn func()) {
	e.mail.Send(fn)
	e.wake()
}

// Progress is one pass of the owner, inside its guard.
func (e *engine) Progress() {
	e.mail.Run()
	if e.count == 0 {
		return
	}
	e.flush()
	if e.waiting > 0 && (len(e.hot) == 0 || e.spun%spinEpoll == 0) {
		e.takeEvents()
	}
	if e.spun++; e.receive() {
		e.spun = 0
	}
	e.flush()
	if e.asleep && len(e.hot)+e.active.Len() > 0 {
		// The owner has armed and looks once more. What epoll told now it will
		// not tell again, and what is left to send nobody waits for: stay awake.
		e.asleep = false
		e.wake()
	}
}

// adopt makes a QP with its socket one of the engine's. It runs in the mail.
func (e *engine) adopt(q *queuePair, fd int) {
	if q.Closed() {
		unix.Close(fd)
		return
	}
	q.fd = fd
	if n := len(e.vacant); n > 0 {
		q.slot, e.vacant = e.vacant[n-1], e.vacant[:n-1]
		e.slots[q.slot] = q
	} else {
		q.slot = len(e.slots)
		e.slots = append(e.slots, q)
	}
	e.count++
	ev := unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: int32(q.slot)}
	if err := unix.EpollCtl(e.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		q.Lost(os.NewSyscallError("epoll_ctl", err))
	}
	e.heat(q)
	e.activate(q)
}

// drop takes a QP out. The owner calls it.
func (e *engine) drop(q *queuePair) {
	e.mail.Run() // it may not have been adopted yet
	if q.slot < 0 {
		return
	}
	g := q.RecvCQ.Guard()
	g.Enter()
	e.hangUp(q)
	g.Leave()
	e.active.Remove(q)
	q.active = false
	e.slots[q.slot] = nil
	e.vacant = append(e.vacant, q.slot)
	q.slot = -1
	e.count--
}

// activate has the QP looked at in the next flush.
func (e *engine) activate(q *queuePair) {
	if !q.active {
		q.active = true
		e.active.Push(q)
	}
}

// flush sends what the QPs have to send.
func (e *engine) flush() {
	for range e.active.Len() {
		q := e.active.Pop()
		q.active = false
		if q.slot >= 0 {
			e.run(q)
		}
	}
}

// run lets one QP send, and flushes it when it has failed.
func (e *engine) run(q *queuePair) {
	for n := 0; !q.blocked && q.broken == 0 && q.State() == fabric.QPReadyToSend; n++ {
		if n == sendBurst {
			e.activate(q)
			break
		}
		e.batch.Reset()
		q.Fill(e.batch)
		if e.batch.Bytes == 0 {
			break
		}
		e.write(q)
	}
	if q.State() == fabric.QPError {
		e.fail(q)
	}
}

// write hands the batch to the QP's socket.
func (e *engine) write(q *queuePair) {
	n, errno := e.send(q.fd)
	switch errno {
	case 0:
	case unix.EAGAIN:
		n = 0
	default:
		// What is to be read may tell more: a Terminate perhaps.
		q.broken = errno
		e.heat(q)
		return
	}
	q.Wrote(e.batch, n)
	if n < e.batch.Bytes {
		q.blocked = true
		e.arm(q)
	}
}

func (e *engine) send(fd int) (int, unix.Errno) {
	iovs := e.iovs[:len(e.batch.Parts)]
	for i, p := range e.batch.Parts {
		iovs[i] = iovec(p)
	}
	e.calls++
	return sendVec(fd, &e.hdr, iovs)
}

func iovec(p []byte) unix.Iovec { return unix.Iovec{Base: &p[0], Len: uint64(len(p))} }

// fail flushes a QP in the error state and has its connection ended.
func (e *engine) fail(q *queuePair) {
	e.hangUp(q)
	q.Flush()
	if err := q.Err(); err != nil {
		q.conn.broke(err)
	}
}

// hangUp sends what is due at the end and gives the socket away.
func (e *engine) hangUp(q *queuePair) {
	if q.fd < 0 {
		return
	}
	if q.broken == 0 {
		e.batch.Reset()
		if q.Last(e.batch); e.batch.Bytes > 0 {
			_, _ = e.send(q.fd) // what is not taken now is lost
		}
	}
	e.cool(q)
	_ = unix.EpollCtl(e.epfd, unix.EPOLL_CTL_DEL, q.fd, nil)
	if q.armed != 0 {
		q.armed = 0
		e.waiting--
	}
	if q.ended {
		unix.Close(q.fd)
	} else {
		e.dev.p.linger.take(q.fd)
	}
	q.fd = -1
}

// Sleep is called when the owner arms a CQ: everything is sent, and the waiter
// told what to wait for, or w, when the owner sleeps there.
func (e *engine) Sleep(w *fabric.Waker) {
	e.mail.Run()
	if e.count == 0 {
		return
	}
	e.flush()
	if e.active.Len() > 0 {
		e.wake() // there is more than one pass can do
		return
	}
	for len(e.hot) > 0 {
		q := e.hot[len(e.hot)-1]
		e.cool(q)
		e.arm(q)
	}
	e.asleep = true
	if w != nil && e.bed.LieDown(w, e.epfd) {
		w.Within(-1)
		return
	}
	if err := e.dev.waiter.Watch(e.epfd, unix.EPOLLIN); err != nil {
		e.wake() // better awake than asleep for good
	}
}

// lost is how a connection ends by an error of its socket.
func lost(errno unix.Errno) error {
	switch errno {
	case unix.ETIMEDOUT:
		return fmt.Errorf("%w: the peer does not answer", fabric.ErrTimeout)
	case unix.ECONNRESET, unix.EPIPE:
		return fmt.Errorf("reset by the peer: %w", net.ErrClosed)
	case unix.EHOSTUNREACH, unix.ENETUNREACH:
		return fmt.Errorf("%w: %w", fabric.ErrUnreachable, errno)
	}
	return os.NewSyscallError("TCP connection", errno)
}
