package cm

import (
	"container/heap"
	"math"
	"net/netip"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// Never is the deadline of a manager that waits for nothing.
const Never time.Duration = math.MaxInt64

const (
	// cmTimeout is the response time that our messages ask for and promise:
	// 4.096 us * 2^17 = 537 ms.
	cmTimeout = 17
	// maxRetries is how often a message is repeated.
	maxRetries = 15
	// serviceTimeout is the time that our MRAs ask for: 68.7 s, as Linux does.
	serviceTimeout = 24
	// maxWait bounds what a peer may make us wait for.
	maxWait = 100 * time.Second
	// leastWait is the shortest time between repetitions.
	leastWait = 10 * time.Millisecond
)

// Config is constant for a manager.
type Config struct {
	Addr netip.Addr      // ours: the GID
	GUID uint64          // of our channel adapter: random for each process
	MTU  func() wire.MTU // the largest path MTU of our link, as it is now
	// FirstComm is where the communication ids begin: random, as an id that
	// comes back soon is taken for a connection that exists.
	FirstComm wire.CommID
	// Listens says whether somebody takes requests for a port.
	Listens func(port uint16) bool
	// MaxConns bounds the connections in every state; 0 means 1<<16.
	MaxConns int
}

// Manager is the connection manager of one address.
type Manager struct {
	cfg    Config
	next   wire.CommID
	tid    uint64
	conns  map[wire.CommID]*Conn // by our id
	peers  map[peerComm]*Conn    // passive ones, by the id of the peer
	qps    map[peerQP]*Conn      // by the peer's QP
	timers timers
	out    []message
	events []Event
}

// peerComm names a request, peerQP a QP, of a peer.
type (
	peerComm struct {
		guid uint64
		id   wire.CommID
		addr netip.Addr
	}
	peerQP struct {
		guid uint64
		qpn  uint32
		addr netip.Addr
	}
)

// message is a datagram to send.
type message struct {
	to netip.Addr
	b  *[wire.MADLen]byte
}

// EventKind is the kind of an event.
type EventKind uint8

// Events. All but Requested are of a Conn that the user made or accepted; the
// last four are its end, and nothing comes behind them.
const (
	Requested    EventKind = iota // a peer wants to connect: Accept or Reject it
	Replied                       // the peer has accepted: make the QP ready, then call Ready
	Established                   // the peer is ready
	Rejected                      // Err is a *fabric.RejectError
	Disconnected                  // by the peer
	Finished                      // our Disconnect has been answered, or never will be
	Failed                        // Err says why
)

// Event is something that happened to a connection.
type Event struct {
	Kind EventKind
	Conn *Conn
	Err  error
}

// New makes a manager.
func New(cfg Config) *Manager {
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 1 << 16
	}
	return &Manager{
		cfg: cfg, next: cfg.FirstComm, tid: uint64(cfg.FirstComm) << 32,
		conns: make(map[wire.CommID]*Conn), peers: make(map[peerComm]*Conn), qps: make(map[peerQP]*Conn),
	}
}

// Len is the number of connections in every state, TimeWait included.
func (m *Manager) Len() int { return len(m.conns) }

// Event takes the next event.
func (m *Manager) Event() (Event, bool) {
	if len(m.events) == 0 {
		return Event{}, false
	}
	e := m.events[0]
	m.events = m.events[1:]
	return e, true
}

func (m *Manager) emit(k EventKind, c *Conn, err error) {
	m.events = append(m.events, Event{k, c, err})
}

// Next takes the next datagram to send, wire.MADLen bytes, to QP 1 of that
// address. The bytes stay valid.
func (m *Manager) Next() (netip.Addr, []byte, bool) {
	if len(m.out) == 0 {
		return netip.Addr{}, nil, false
	}
	d := m.out[0]
	m.out = m.out[1:]
	return d.to, d.b[:], true
}

// build makes a datagram and returns it with the room for its message.
func build(tid uint64, a wire.AttrID) (*[wire.MADLen]byte, []byte) {
	b := new([wire.MADLen]byte)
	return b, wire.PutMAD(b[:], tid, a)
}

func (m *Manager) send(to netip.Addr, b *[wire.MADLen]byte) {
	m.out = append(m.out, message{to, b})
}

// add makes a connection, unless there are too many.
func (m *Manager) add(peer netip.Addr, s State) *Conn {
	if len(m.conns) >= m.cfg.MaxConns {
		return nil
	}
	for m.next++; m.next == 0 || m.conns[m.next] != nil; {
		m.next++
	}
	c := &Conn{m: m, Peer: peer, local: m.next, state: s, timer: -1}
	m.conns[c.local] = c
	return c
}

// remove forgets a connection.
func (m *Manager) remove(c *Conn) {
	m.timers.set(c, Never)
	delete(m.conns, c.local)
	if k := c.comm(); m.peers[k] == c {
		delete(m.peers, k)
	}
	if k := c.peerQP(); m.qps[k] == c {
		delete(m.qps, k)
	}
	c.state = Idle
}

// Deadline is when Expire wants to be called.
func (m *Manager) Deadline() time.Duration {
	if len(m.timers) == 0 {
		return Never
	}
	return m.timers[0].due
}

// Expire handles the timers that have run out by now.
func (m *Manager) Expire(now time.Duration) {
	for len(m.timers) > 0 && m.timers[0].due <= now {
		c := m.timers[0]
		m.timers.set(c, Never)
		c.expire(now)
	}
}

// Receive takes a datagram that came to QP 1 from that address. What is not of
// the connection manager is dropped.
func (m *Manager) Receive(from netip.Addr, b []byte, now time.Duration) {
	mad, err := wire.ParseMAD(b)
	if err != nil {
		return
	}
	switch mad.Attr {
	case wire.AttrREQ:
		m.request(from, mad, now)
	case wire.AttrREP:
		m.reply(from, mad)
	case wire.AttrRTU:
		m.ready(from, wire.ParsePair(mad.Body))
	case wire.AttrREJ:
		m.rejected(from, wire.ParseREJ(mad.Body))
	case wire.AttrMRA:
		m.patience(from, wire.ParseMRA(mad.Body), now)
	case wire.AttrDREQ:
		m.disconnect(from, mad, now)
	case wire.AttrDREP:
		m.disconnected(from, wire.ParsePair(mad.Body), now)
	}
}

// find is the connection that a message of a peer is about. The peer names its
// own id and ours; a remote id that we do not know yet is 0.
func (m *Manager) find(from netip.Addr, theirs, ours wire.CommID) *Conn {
	c := m.conns[ours]
	if c == nil || c.Peer != from || c.remote != 0 && theirs != 0 && c.remote != theirs {
		return nil
	}
	return c
}

// cmTime is the time that a 5-bit code of the CM stands for.
func cmTime(code uint8) time.Duration { return min(wire.AckTimeout(code), maxWait) }

// rejectError is what a REJ says.
func rejectError(r *wire.REJ) *fabric.RejectError {
	return &fabric.RejectError{Reason: fabric.RejectReason(r.Reason), Private: append([]byte(nil), r.Private...)}
}

// timers is a heap of the connections that wait, the earliest first.
type timers []*Conn

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].due < t[j].due }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer, t[j].timer = i, j
}

// Push and Pop are for package heap.
func (t *timers) Push(x any) {
	c := x.(*Conn)
	c.timer = len(*t)
	*t = append(*t, c)
}

// Pop removes the last.
func (t *timers) Pop() any {
	last := len(*t) - 1
	c := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	c.timer = -1
	return c
}

// set makes c wait until due, or not at all.
func (t *timers) set(c *Conn, due time.Duration) {
	c.due = due
	switch {
	case due == Never && c.timer >= 0:
		heap.Remove(t, c.timer)
	case due == Never:
	case c.timer >= 0:
		heap.Fix(t, c.timer)
	default:
		heap.Push(t, c)
	}
}
