package roce

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

const (
	burst      = 64  // packets of one QP before others have a turn
	passLimit  = 512 // packets sent in one pass before the socket is read again
	ackRounds  = 4   // passes that an ACK may wait for others to join it
	company    = 8   // packets, with no more of which ACKs that can wait go along
	fullRounds = 16  // passes that timers wait for a socket to be read
	maxStrays  = 256 // packets that wait to be taken over from another engine
)

// clock is the time of everything in this package: since the program began.
var start = time.Now()

func clock() time.Duration { return time.Since(start) }

// engine does the work of the QPs of one completion queue (or of two, for QPs
// that use two): it owns a pair of sockets and runs inside the owner's Poll.
//
//	Poll:  send what was posted, and answers that were held back
//	       read the socket, hand packets to their QPs
//	       run timers
//	       nothing has completed: send the held answers too, else the owner
//	       will post more that they can wait for
//	Arm:   send everything, then watch the socket and the next timer; and so
//	       do the Polls until the owner is woken, for it may sleep after each
type engine struct {
	// Constant.
	dev   *device
	index uint32 // the low bits of the numbers of its QPs
	timer *time.Timer

	// Any goroutine.
	mail core.Mailbox // what changes the fields below
	cqs  core.Clients

	strayMu sync.Mutex
	strays  []stray // packets that came to another engine
	astray  atomic.Int32

	// Owner.
	tx     transmitter
	rx     receiver
	qps    map[uint32]*queuePair
	last   *queuePair            // of the packet before
	active core.Ring[*queuePair] // QPs with something to send
	held   core.Ring[*queuePair] // QPs with an ACK that can wait
	rounds int                   // passes since held ACKs were sent
	full   int                   // passes in a row that did not empty the socket
	ending []*conn               // ended by their peers
	timers timers
	alarm  time.Duration // when timer or bed goes off, if the owner sleeps
	bed    core.Bed      // whose Waker watches rx; empty when the owner leaves that to the waiter
	abed   bool          // the owner sleeps there
	stats  rc.Stats

	loose        map[uint32]unreliable // QPs without connections
	eager, spare []unreliable          // those with something to send, and the list of before
	paths        datagramPaths
	headers      bool        // the socket tells class and hop limit
	parsed       wire.Packet // the one being handed to such a QP

	lost   uint64 // packets for nobody
	strewn uint64 // packets for another engine
}

// stray is a packet that came to an engine that does not have its QP.
type stray struct {
	from netip.Addr
	b    []byte
}

func newEngine(d *device) (*engine, error) {
	index, p, err := d.socks.take()
	if err != nil {
		return nil, err
	}
	e := &engine{dev: d, index: index, qps: make(map[uint32]*queuePair), loose: make(map[uint32]unreliable)}
	e.paths.of = make(map[uint32]handlePath)
	if err := e.rx.init(p.rx, netip.AddrPortFrom(d.addr, d.opts().Port)); err != nil {
		d.socks.give(index)
		return nil, fmt.Errorf("receive buffers: %w", err)
	}
	e.tx.fd, e.tx.source, e.tx.gso, e.tx.sys = p.tx, p.source, !d.opts().NoGSO, sendMessages
	e.tx.batch.init(d.Limits().MaxSGE)
	e.timer = time.AfterFunc(time.Hour, e.wake)
	e.timer.Stop()
	if err := errors.Join(d.waiter.Add(p.rx, e.wake), d.waiter.Add(p.tx, e.wake)); err != nil {
		e.Close()
		return nil, err
	}
	d.byIndex[index].Store(e)
	return e, nil
}

// Close gives the sockets back. Nobody polls any more.
func (e *engine) Close() {
	e.dev.byIndex[e.index].Store(nil)
	e.timer.Stop()
	e.dev.waiter.Remove(e.rx.fd)
	e.dev.waiter.Remove(e.tx.fd)
	e.bed.Leave(e.rx.fd)
	if e.headers {
		e.tellHeaders(0)
	}
	e.dev.socks.give(e.index)
	e.rx.close()
}

// Clients are the CQs of the engine.
func (e *engine) Clients() *core.Clients { return &e.cqs }

// wake asks the owner for a Poll.
func (e *engine) wake() { e.cqs.Wake() }

// do has the owner run fn, which must not use registered memory after it
// returns, before it looks at the next packet.
func (e *engine) do(fn func()) {
	e.mail.Send(fn)
	e.wake()
}

// Progress is one pass of the owner, inside its guard.
func (e *engine) Progress() {
	e.rise()
	e.mail.Run()
	if len(e.qps)+len(e.loose) == 0 {
		return
	}
	now := clock()
	e.takeStrays(now)
	e.rounds++
	all := e.rounds >= ackRounds
	e.flush(now, all)
	n := e.receive(now)
	armed := e.cqs.Armed()
	if n == rxMsgs && e.full < fullRounds {
		e.full++ // the answers that timers wait for may be behind
		if armed {
			e.wake()
		}
		return
	}
	e.full = 0
	e.expire(now)
	if e.endAll() || e.cqs.Quiet() || armed {
		e.flush(now, true)
	}
	if armed {
		e.rest(now)
	}
}

// endAll ends the connections whose peers have disconnected, now that all that
// was sent before has been read. It is false when there are none.
func (e *engine) endAll() bool {
	if len(e.ending) == 0 {
		return false
	}
	for _, c := range e.ending {
		c.end(c.disconnectedBy("the peer"))
		if !c.qp.Closed() {
			e.activate(c.qp)
		}
	}
	e.ending = e.ending[:0]
	return true
}

// receive reads the socket once and says how many datagrams there were.
func (e *engine) receive(now time.Duration) int {
	n := e.rx.receive()
	for i := range n {
		f, b, segment := e.rx.datagram(i)
		for index := 0; len(b) > 0; index++ {
			p := b[:min(segment, len(b))]
			b = b[len(p):]
			if w := e.dev.p.weather; w != nil {
				w.pass(e, p, index, func(p []byte, index int) { e.packet(f, p, index, now) })
				continue
			}
			e.packet(f, p, index, now)
		}
	}
	return n
}

// packet handles one packet, BTH to ICRC.
func (e *engine) packet(f *flow, b []byte, index int, now time.Duration) {
	if !e.rx.check(f, b, index, now) {
		return
	}
	var p wire.Packet
	if p.Parse(b) != nil {
		e.lost++
		return
	}
	e.dispatch(f.addr, &p, b, now)
}

// dispatch hands a packet to its QP.
func (e *engine) dispatch(from netip.Addr, p *wire.Packet, b []byte, now time.Duration) {
	qpn := p.BTH.DestQP()
	q := e.last
	if q == nil || q.Num() != qpn {
		if q = e.find(qpn); q == nil {
			e.dispatchLoose(from, qpn, p, b)
			return
		}
		e.last = q
	}
	if q.peer != from || p.BTH.PKey()&0x7fff != wire.PKeyDefault&0x7fff {
		e.lost++
		return
	}
	if p.Op == wire.OpCNP || p.BTH.BECN() {
		q.Congested()
	}
	if p.Op != wire.OpCNP {
		q.Receive(p, now)
	}
	e.activate(q)
}

// find is the QP of that number. One that was made meanwhile is still in the
// mail, for its first packet may be faster than the next Poll.
func (e *engine) find(qpn uint32) *queuePair {
	q := e.qps[qpn]
	if q == nil {
		e.mail.Run()
		q = e.qps[qpn]
	}
	return q
}

// takeStrays handles packets that another engine received for this one.
func (e *engine) takeStrays(now time.Duration) {
	if e.astray.Load() == 0 {
		return
	}
	e.strayMu.Lock()
	strays := e.strays
	e.strays = nil
	e.rx.at = noHeader
	e.astray.Store(0)
	e.strayMu.Unlock()
	for _, s := range strays {
		var p wire.Packet
		if p.Parse(s.b) == nil && p.BTH.DestQP()&groupMask == e.index {
			e.dispatch(s.from, &p, s.b, now)
		}
	}
}

// addStray leaves a packet for the owner; any goroutine may call it.
func (e *engine) addStray(from netip.Addr, b []byte) {
	e.strayMu.Lock()
	full := len(e.strays) >= maxStrays
	if !full {
		e.strays = append(e.strays, stray{from, append([]byte(nil), b...)})
		e.astray.Store(int32(len(e.strays)))
	}
	e.strayMu.Unlock()
	if !full {
		e.wake()
	}
}

// activate has the QP looked at in the next flush.
func (e *engine) activate(q *queuePair) {
	if q.where != inActive {
		q.where = inActive
		e.active.Push(q)
	}
}

// flush sends what the QPs have to send. ACKs that can wait are left, unless
// all is set, or little else is sent: then they go along in the same system
// call, for the owner may find nothing to do after it, and they would leave by
// themselves.
func (e *engine) flush(now time.Duration, all bool) {
	if e.tx.blocked() && !e.tx.retry() {
		return
	}
	if all {
		e.takeHeld()
	}
	sent := e.runActive(now, all)
	if sent <= company && e.tx.batch.n > 0 && e.held.Len() > 0 {
		e.takeHeld()
		e.runActive(now, true)
	}
	if e.tx.blocked() {
		return
	}
	if len(e.eager) > 0 {
		e.flushLoose()
	}
	if e.tx.batch.n > 0 {
		e.tx.send()
	}
}

// takeHeld makes QPs whose ACKs were held active.
func (e *engine) takeHeld() {
	e.rounds = 0
	for e.held.Len() > 0 {
		if q := e.held.Pop(); q.where == inHeld { // else it has moved on meanwhile
			e.activate(q)
		}
	}
}

// runActive lets the active QPs send, and says how many packets that were.
func (e *engine) runActive(now time.Duration, all bool) (sent int) {
	for e.active.Len() > 0 && sent < passLimit && !e.tx.blocked() {
		q := e.active.Pop()
		q.where = inNone
		sent += e.run(q, now, all)
	}
	return sent
}

// hold keeps a QP that has only an ACK to send.
func (e *engine) hold(q *queuePair) {
	q.where = inHeld
	e.held.Push(q)
}

// run lets one QP send, and flushes it when it has failed. An ACK that can wait
// is held, unless all is set.
func (e *engine) run(q *queuePair, now time.Duration, all bool) int {
	n := 0
	for ; n < burst; n++ {
		if e.tx.batch.full() && !e.tx.send() {
			break
		}
		if !q.Next(e.tx.batch.packet(), now, all) {
			break
		}
		e.tx.batch.add(q.path, e.tx.gso && !q.path.single && !q.Suspect())
	}
	if !q.path.single && q.Stutters() {
		// A NIC that cuts datagrams itself may count identifications in a way that
		// the ICRCs were not computed for.
		q.path.single = true
	}
	switch {
	case n == burst || e.tx.blocked():
		e.activate(q)
	case q.State() == fabric.QPError:
		e.fail(q)
	case q.Owes():
		e.hold(q)
	}
	e.schedule(q)
	return n
}

// fail flushes a QP in the error state and has its connection ended.
func (e *engine) fail(q *queuePair) {
	q.Flush()
	if err := q.Err(); err != nil {
		q.conn.broke(err)
	}
}

// adopt makes a QP one of the engine's. It runs in the mail.
func (e *engine) adopt(q *queuePair) {
	if q.Closed() {
		return
	}
	e.qps[q.Num()] = q
	e.activate(q)
}

// drop takes a QP out. The owner calls it.
func (e *engine) drop(q *queuePair) {
	delete(e.qps, q.Num())
	if e.last == q {
		e.last = nil
	}
	e.active.Remove(q)
	e.held.Remove(q)
	q.where = inNone
	e.timers.remove(q)
}

// Sleep is called when the owner arms a CQ: everything is sent, and the
// waiter told what to wait for, or w, when the owner sleeps there.
func (e *engine) Sleep(w *fabric.Waker) {
	e.mail.Run()
	if len(e.qps)+len(e.loose) == 0 {
		return
	}
	now := clock()
	e.flush(now, true)
	e.alarm = rc.Never
	e.abed = w != nil && e.bed.LieDown(w, e.rx.fd)
	e.rest(now)
	if e.abed {
		w.Within(-1)
		return
	}
	e.watch(e.rx.fd, unix.EPOLLIN)
}

// watch has the waiter wake the owner at the next event of a socket.
func (e *engine) watch(fd int, event uint32) {
	if e.dev.waiter.Watch(fd, event) != nil {
		e.wake() // better awake than asleep for good
	}
}

// rise notes that the owner's sleep has ended, if it slept in bed: nobody told
// the CQs.
func (e *engine) rise() {
	if !e.abed || e.bed.Waker().Asleep() {
		return
	}
	e.abed = false
	e.cqs.Disarm()
}

// rest sees to it that the owner is woken for what is left to do after a
// flush.
func (e *engine) rest(now time.Duration) {
	if e.active.Len()+len(e.eager) > 0 && !e.tx.blocked() || e.astray.Load() > 0 || len(e.ending) > 0 {
		e.wake() // there is more than one pass can do
		return
	}
	if due := e.timers.next(); due < e.alarm {
		e.alarm = due
		if e.abed {
			e.bed.Waker().Within(max(due-now, 0))
		} else {
			e.timer.Reset(max(due-now, 0))
		}
	}
	if e.tx.blocked() {
		e.watch(e.tx.fd, unix.EPOLLOUT)
	}
}
