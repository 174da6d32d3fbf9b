package nbd

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/initiator"
)

// queue is what a lane wants of an initiator.Queue.
type queue interface {
	Submit(ios []initiator.IO) (int, error)
	Reap(done []initiator.Result) (int, error)
	Wait(ctx context.Context) error
	Rest(ctx context.Context) error
	Watch(fd int, standIn func()) error
	Ring()
	Close() error
}

const (
	// batch is how many commands are submitted, and results reaped, at once.
	batch = 64
	// perTurn is how many commands of one request are issued before others have
	// their turn.
	perTurn = 8
	// maxRetries is how often a request is sent again that the target was not
	// ready for, each time after retryPause.
	maxRetries = 64
	retryPause = 100 * time.Millisecond
	// scratchSize is where refused payload goes.
	scratchSize = 64 << 10
)

// ref names a request.
type ref struct {
	c *conn
	i int
}

// later is a request that waits for its next attempt.
type later struct {
	ref
	at time.Time
}

// lane does the I/O of its connections on a queue of its own. Its goroutine owns
// all that is not in letters.
type lane struct {
	srv    *Server
	q      queue
	poller *poller
	load   atomic.Int32 // connections, for who chooses a lane
	ended  chan struct{}

	letters struct { // to the lane
		sync.Mutex
		conns      []*conn
		stop, kill bool
	}

	conns    []*conn // by ID
	count    int
	work     ring[*conn] // to be looked at
	issue    ring[ref]   // requests with commands to send
	delayed  []later
	timer    *time.Timer // wakes the lane for delayed
	slabs    slabs
	staged   []initiator.IO // not submitted yet
	results  [batch]initiator.Result
	inflight int
	stopping bool
	dead     bool // the queue is closed
	iovs     [maxVectors + 1]unix.Iovec
	scratch  [scratchSize]byte
}

func newLane(s *Server, q queue) (*lane, error) {
	p, err := newPoller(q.Ring)
	if err != nil {
		return nil, err
	}
	if err := q.Watch(p.fd, p.arm); err != nil {
		return nil, errors.Join(err, p.close())
	}
	l := &lane{srv: s, q: q, poller: p, ended: make(chan struct{}), staged: make([]initiator.IO, 0, batch)}
	l.timer = time.AfterFunc(time.Hour, p.wake)
	go l.run()
	return l, nil
}

// adopt gives the lane a connection.
func (l *lane) adopt(c *conn) {
	l.letters.Lock()
	l.letters.conns = append(l.letters.conns, c)
	l.letters.Unlock()
	l.poller.wake()
}

// end has the lane finish what is in flight, and cut what takes longer when kill
// is set. ended is closed when it has ended.
func (l *lane) end(kill bool) {
	l.letters.Lock()
	l.letters.stop = true
	l.letters.kill = l.letters.kill || kill
	l.letters.Unlock()
	select {
	case <-l.ended:
	default:
		l.poller.wake()
	}
}

// run is the lane's goroutine.
func (l *lane) run() {
	defer close(l.ended)
	for !l.stopping || l.count > 0 || l.inflight > 0 {
		if !l.turn() {
			l.sleep()
		}
	}
	l.timer.Stop()
	l.slabs.drop()
}

// turn does what there is to do, and says whether there was anything.
func (l *lane) turn() bool {
	did := l.listen()
	l.retry()
	if l.reap() {
		did = true
	}
	for n := l.work.len(); n > 0; n-- {
		l.step(l.work.pop())
		did = true
	}
	return l.submit() || did
}

// sleep waits for sockets and results. The errors are those of the context, which
// does not end.
func (l *lane) sleep() {
	switch {
	case l.inflight > 0:
		_ = l.q.Wait(context.Background())
	case l.dead:
		l.poller.wait()
	default:
		_ = l.q.Rest(context.Background())
		_, err := l.q.Reap(nil)
		l.dead = err != nil // the controller was closed
	}
}

// listen takes events and letters.
func (l *lane) listen() bool {
	p := l.poller
	n := p.poll()
	for i := range n {
		ev := &p.events[i]
		if ev.Fd == wakerID {
			l.open()
			continue
		}
		c := l.conns[ev.Fd]
		if c == nil {
			continue
		}
		if ev.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			c.readable = true
		}
		if ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			c.hungUp = true
		}
		if ev.Events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			c.writable = true
		}
		l.enqueue(c)
	}
	return n > 0
}

// open reads the letters.
func (l *lane) open() {
	l.letters.Lock()
	conns, stop, kill := l.letters.conns, l.letters.stop, l.letters.kill
	l.letters.conns = nil
	l.letters.Unlock()
	for _, c := range conns {
		l.add(c)
	}
	if stop {
		l.stopping = true
	}
	for _, c := range l.conns {
		if c == nil || !stop {
			continue
		}
		if kill {
			c.fail(errEnding)
		}
		l.enqueue(c)
	}
}

// add takes up a connection.
func (l *lane) add(c *conn) {
	c.lane, c.id = l, len(l.conns)
	for i, o := range l.conns {
		if o == nil {
			c.id = i
			break
		}
	}
	c.memory.slabs = &l.slabs
	if err := l.poller.add(c.fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP, int32(c.id)); err != nil {
		unix.Close(c.fd)
		l.srv.left(l, c, err)
		return
	}
	if c.id == len(l.conns) {
		l.conns = append(l.conns, nil)
	}
	l.conns[c.id] = c
	l.count++
	l.enqueue(c)
}

// remove forgets a connection that is over.
func (l *lane) remove(c *conn) {
	unix.Close(c.fd)
	c.memory.close()
	l.conns[c.id] = nil
	if l.count--; l.count == 0 {
		l.slabs.drop()
	}
	l.srv.left(l, c, c.reason())
}

// enqueue has a connection looked at in this turn or the next.
func (l *lane) enqueue(c *conn) {
	if !c.queued {
		c.queued = true
		l.work.push(c)
	}
}

// step writes and reads what a connection's socket takes and has.
func (l *lane) step(c *conn) {
	if l.conns[c.id] != c {
		return // enqueued as it ended
	}
	c.queued = false
	c.transmit()
	if !c.ending && !c.stalled {
		c.receive()
	}
	c.transmit()
	if l.stopping && !c.ending && !c.readable && (c.live() == 0 || c.rx != none && c.live() == 1) {
		c.leave()
	}
	if c.over() {
		c.queued = true // not again
		l.remove(c)
	}
}

// send issues a request's commands.
func (l *lane) send(c *conn, i int) {
	c.requests[i].queued = true
	l.issue.push(ref{c, i})
}

// stage turns requests into commands, some of each in turn.
func (l *lane) stage() {
	limits := l.srv.limits()
	for l.issue.len() > 0 && len(l.staged) < batch {
		at := l.issue.pop()
		r := &at.c.requests[at.i]
		if at.c.broken {
			r.refuse(errnoShutdown, "")
		}
		for n := 0; n < perTurn && len(l.staged) < batch && r.more(); n++ {
			l.staged = append(l.staged, initiator.IO{})
			io := &l.staged[len(l.staged)-1]
			r.command(io, &limits)
			io.Tag = uint64(at.c.id)<<32 | uint64(at.i)
			r.running++
		}
		if r.more() {
			l.issue.push(at)
			continue
		}
		r.queued = false
		l.settle(at.c, at.i)
	}
}

// submit sends commands; it says whether it did.
func (l *lane) submit() (did bool) {
	for {
		l.stage()
		if len(l.staged) == 0 {
			return did
		}
		n, err := l.q.Submit(l.staged)
		l.inflight += n
		if err != nil {
			failed := initiator.Result{Tag: l.staged[n].Tag, Err: err}
			n++
			l.complete(&failed)
		}
		l.staged = l.staged[:copy(l.staged, l.staged[n:])]
		if n == 0 || len(l.staged) > 0 && err == nil {
			return did || n > 0 // the queue is full
		}
		did = true
	}
}

// reap takes results; it says whether there were any.
func (l *lane) reap() bool {
	if l.inflight == 0 {
		return false
	}
	n, err := l.q.Reap(l.results[:])
	for i := range l.results[:n] {
		l.inflight--
		l.complete(&l.results[i])
	}
	if err != nil && n == 0 { // the queue is closed and empty: it has lost count
		l.inflight = 0
	}
	return n > 0
}

// complete takes the result of a command.
func (l *lane) complete(res *initiator.Result) {
	c, i := l.conns[res.Tag>>32], int(uint32(res.Tag))
	r := &c.requests[i]
	r.running--
	switch {
	case res.OK():
	case transient(res) && r.retries < maxRetries && !c.broken:
		r.again = true
	default:
		r.refuse(errnoOf(r.typ, res), messageOf(r.opcode(), res))
	}
	l.settle(c, i)
}

// settle answers a request when the last of its commands has ended, or sends
// what comes next.
func (l *lane) settle(c *conn, i int) {
	r := &c.requests[i]
	switch {
	case r.running > 0 || r.queued:
	case r.errno == 0 && r.again:
		r.retries++
		r.queued = true
		l.delayed = append(l.delayed, later{ref{c, i}, time.Now().Add(retryPause)})
		l.timer.Reset(retryPause)
	case r.finished():
		c.answer(i)
	default:
		l.send(c, i) // the Flush behind a trim
	}
}

// retry sends again what has waited long enough.
func (l *lane) retry() {
	if len(l.delayed) == 0 {
		return
	}
	now := time.Now()
	kept := l.delayed[:0]
	for _, d := range l.delayed {
		if now.Before(d.at) && !d.c.broken {
			kept = append(kept, d)
			continue
		}
		r := &d.c.requests[d.i]
		r.again = false
		r.rewind()
		l.issue.push(d.ref)
	}
	l.delayed = kept
	if len(kept) > 0 {
		l.timer.Reset(kept[0].at.Sub(now))
	}
}

// close frees what a lane that has ended leaves.
func (l *lane) close() error { return errors.Join(l.q.Close(), l.poller.close()) }

// ordinary says whether a connection ended as connections do.
func ordinary(err error) bool {
	return err == nil || errors.Is(err, io.EOF) || errors.Is(err, errEnded)
}
