package cm

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// State is the state of a connection, as the package comment draws it.
type State uint8

// States.
const (
	Idle State = iota // forgotten by the manager
	ReqSent
	ReqReceived
	RepSent
	RepReceived
	Connected
	DreqSent
	TimeWait
)

var stateNames = [...]string{"Idle", "ReqSent", "ReqReceived", "RepSent", "RepReceived", "Connected", "DreqSent", "TimeWait"}

func (s State) String() string { return stateNames[s] }

// Local is what an end says of itself in REQ or REP.
type Local struct {
	QPN        uint32
	StartPSN   psn.Value // the first we expect to receive
	ORD, IRD   uint8     // READs and atomics wanted outstanding, and answered
	RetryCount uint8     // REQ only: both ends use it
	RNRRetry   uint8     // what the peer does when we have no receive
	AckTimeout uint8     // REQ only: 5 bits
	SRQ        bool
	Private    []byte
}

// Conn is a connection in the eyes of the manager. Its fields are constant
// from the event on that announces the Conn, or the reply, to the user.
type Conn struct {
	m      *Manager
	local  wire.CommID
	remote wire.CommID
	state  State
	tid    uint64

	// User is for the user.
	User any
	// Peer is the peer's address.
	Peer netip.Addr
	// Request is the REQ, sent or received. Its Private is without the IP
	// addressing header, and belongs to the Conn.
	Request wire.REQ
	// Source is the address and port of the active side.
	Source netip.AddrPort
	// Port is the port that the active side asked for.
	Port uint16
	// Reply is the REP, once there is one.
	Reply wire.REP
	// MaxMTU is the largest path MTU that the peer accepts, when it has rejected
	// ours and said so.
	MaxMTU wire.MTU

	active bool               // we began
	told   bool               // the end was announced
	last   *[wire.MADLen]byte // what is repeated
	tries  int
	wait   time.Duration // between repetitions
	due    time.Duration
	timer  int // place in the heap
}

// State is the state.
func (c *Conn) State() State { return c.state }

func (c *Conn) comm() peerComm { return peerComm{c.Request.CAGUID, c.remote, c.Peer} }

// peerQP names the peer's QP, as far as it is known.
func (c *Conn) peerQP() peerQP {
	if !c.active {
		return peerQP{c.Request.CAGUID, c.Request.QPN, c.Peer}
	}
	return peerQP{c.Reply.CAGUID, c.Reply.QPN, c.Peer}
}

// LocalQPN is the number of our QP, 0 before there is one.
func (c *Conn) LocalQPN() uint32 {
	if c.active {
		return c.Request.QPN
	}
	return c.Reply.QPN
}

// repeat sends b now and again every wait until something else is set.
func (c *Conn) repeat(b *[wire.MADLen]byte, wait, now time.Duration) {
	c.last, c.tries, c.wait = b, 0, max(wait, leastWait)
	c.m.send(c.Peer, b)
	c.m.timers.set(c, now+c.wait)
}

// end announces the end, once.
func (c *Conn) end(k EventKind, err error) {
	if !c.told {
		c.told = true
		c.m.emit(k, c, err)
	}
}

// rest ends repetitions.
func (c *Conn) rest(s State) {
	c.state, c.last = s, nil
	c.m.timers.set(c, Never)
}

// Dial is what Connect needs beside Local.
type Dial struct {
	Peer         netip.Addr
	Source       netip.AddrPort // ours, with the port the peer is told
	Port         uint16
	MTU          wire.MTU
	TrafficClass uint8
}

// Connect sends a REQ. It is nil when there are too many connections.
func (m *Manager) Connect(d Dial, l Local, now time.Duration) *Conn {
	c := m.add(d.Peer, ReqSent)
	if c == nil {
		return nil
	}
	m.tid++
	c.active, c.tid, c.Source, c.Port = true, m.tid, d.Source, d.Port
	c.Request = wire.REQ{
		LocalComm: c.local, ServiceID: wire.ServiceID(d.Port), CAGUID: m.cfg.GUID, QPN: l.QPN,
		ResponderRes: l.IRD, InitiatorDepth: l.ORD, RemoteCMTime: cmTimeout, LocalCMTime: cmTimeout,
		FlowControl: true, StartPSN: l.StartPSN, RetryCount: l.RetryCount, PKey: wire.PKeyDefault,
		PathMTU: d.MTU, RNRRetry: l.RNRRetry, MaxCMRetries: maxRetries, SRQ: l.SRQ,
		LocalGID: m.cfg.Addr, RemoteGID: d.Peer, Rate: rate, HopLimit: hopLimit,
		FlowLabel:    (uint32(d.Source.Port())*31 + uint32(d.Port)) & 0xfffff,
		TrafficClass: d.TrafficClass, AckTimeout: l.AckTimeout, Private: make([]byte, wire.REQPrivateLen),
	}
	h := wire.CMAHeader{Src: d.Source, DstAddr: d.Peer}
	h.Put(c.Request.Private)
	copy(c.Request.Private[wire.CMAHeaderLen:], l.Private)
	b, body := build(c.tid, wire.AttrREQ)
	c.Request.Put(body)
	// The peer may take as long as we said, and the packets their time.
	c.repeat(b, cmTime(cmTimeout), now)
	return c
}

const (
	rate     = 0x2b // the path's, of no consequence on RoCE: what Linux sends
	hopLimit = 64
)

// Accept answers the request with a REP.
func (c *Conn) Accept(l Local, now time.Duration) bool {
	if c.state != ReqReceived {
		return false
	}
	c.Reply = wire.REP{
		LocalComm: c.local, RemoteComm: c.remote, QPN: l.QPN, StartPSN: l.StartPSN,
		ResponderRes: l.IRD, InitiatorDepth: l.ORD, TargetACKDelay: 15, FlowControl: true,
		RNRRetry: l.RNRRetry, SRQ: l.SRQ, CAGUID: c.m.cfg.GUID, Private: l.Private,
	}
	b, body := build(c.tid, wire.AttrREP)
	c.Reply.Put(body)
	c.state = RepSent
	c.repeat(b, cmTime(c.Request.LocalCMTime), now)
	return true
}

// Reject refuses a request, or the reply to ours, with private data of the
// consumer, or gives an attempt of ours up. No event follows.
func (c *Conn) Reject(r fabric.RejectReason, private []byte) {
	about := uint8(wire.AboutREQ)
	switch c.state {
	case ReqSent, ReqReceived:
	case RepReceived:
		about = wire.AboutREP
	case RepSent:
		about = wire.AboutOther
	default:
		return
	}
	rej := wire.REJ{LocalComm: c.local, RemoteComm: c.remote, About: about, Reason: uint16(r), Private: private}
	if r == fabric.RejectTimeout {
		rej.Info, rej.InfoLen = c.m.guid(), 8
	}
	b, body := build(c.tid, wire.AttrREJ)
	rej.Put(body)
	c.m.send(c.Peer, b)
	c.m.remove(c)
}

// Forget drops an attempt of ours without a word: there is no way to the peer.
// No event follows.
func (c *Conn) Forget() {
	if c.state == ReqSent {
		c.m.remove(c)
	}
}

// Ready completes the handshake of the active side: the QP is ready to receive.
func (c *Conn) Ready() bool {
	if c.state != RepReceived {
		return false
	}
	c.rest(Connected)
	c.sendPair(wire.AttrRTU, c.tid, 0)
	return true
}

func (c *Conn) sendPair(a wire.AttrID, tid uint64, qpn uint32) {
	b, body := build(tid, a)
	p := wire.Pair{LocalComm: c.local, RemoteComm: c.remote, RemoteQPN: qpn}
	p.Put(body)
	c.m.send(c.Peer, b)
}

// Disconnect ends the connection: a DREQ, and Finished when it is answered.
// It does nothing in a state in which there is nothing to end.
func (c *Conn) Disconnect(now time.Duration) bool {
	if c.state != Connected && c.state != RepSent {
		return false
	}
	c.m.tid++
	b, body := build(c.m.tid, wire.AttrDREQ)
	p := wire.Pair{LocalComm: c.local, RemoteComm: c.remote, RemoteQPN: c.peerQP().qpn}
	p.Put(body)
	c.state = DreqSent
	c.repeat(b, cmTime(cmTimeout), now)
	return true
}

// timeWait keeps the ids, and little else, for as long as packets of the connection may be about
// (12.9.8.4).
func (c *Conn) timeWait(now time.Duration) {
	c.rest(TimeWait)
	c.Request.Private, c.Reply.Private = nil, nil
	c.m.timers.set(c, now+max(2*cmTime(c.Request.AckTimeout), time.Second))
}

// expire repeats what was sent, or gives up.
func (c *Conn) expire(now time.Duration) {
	limit := maxRetries
	if !c.active {
		limit = int(c.Request.MaxCMRetries)
	}
	switch {
	case c.state == TimeWait:
		c.m.remove(c)
		return
	case c.last == nil:
		return
	case c.tries < limit:
		c.tries++
		c.m.send(c.Peer, c.last)
		c.m.timers.set(c, now+c.wait)
		return
	}
	switch c.state {
	case DreqSent:
		c.timeWait(now)
		c.end(Finished, nil)
	default:
		what := "request"
		if c.state == RepSent {
			what = "reply"
		}
		c.Reject(fabric.RejectTimeout, nil)
		c.end(Failed, fmt.Errorf("%w: %v does not answer the connection %s", fabric.ErrTimeout, c.Peer, what))
	}
}
