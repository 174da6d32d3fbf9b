package nvme

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/internal/captures"
)

// This file reads as much of RoCEv2 as the golden tests want: which capsules and
// data went over a connection, and the private data that made it.

// exchange is one command of a capture.
type exchange struct {
	frame   int     // of the command capsule
	cmd     Command // SQE
	capsule []byte  // data behind the SQE
	data    []byte  // what RDMA READ and WRITE moved for the SGL, in order
	cqe     Completion
	rkey    uint32 // that the response invalidated
}

// endpoint is a queue pair as packets name it.
type endpoint struct {
	addr netip.Addr
	qpn  uint32
}

// connection are the capsules between two queue pairs.
type connection struct {
	request, accept []byte // private data of CM
	exchanges       []*exchange
	host, target    endpoint
	in              map[endpoint]*message // being received, by receiver
	reads           []remote              // RDMA READs the target waits for
	seen            map[endpoint]map[uint32]bool
}

// remote is what RETH names.
type remote struct {
	key uint32
	len uint32
}

type message struct {
	remote remote
	data   []byte
}

// session is what a capture shows of RoCEv2.
type session struct {
	conns   []*connection
	rejects [][]byte // private data of CM REJ with reason 28
	byID    map[uint32]*connection
}

var be = binary.BigEndian

// QP1 messages of the connection manager, by MAD attribute.
const (
	cmREQ = 0x10
	cmREJ = 0x12
	cmREP = 0x13
)

// readSession reads a RoCEv2 capture.
func readSession(t testing.TB, name string) *session {
	t.Helper()
	s := &session{byID: map[uint32]*connection{}}
	for _, p := range captures.RoCE(name) {
		b := p.Payload
		body := b[12 : len(b)-4-int(b[1]>>4&3)] // without BTH, padding and ICRC
		if b[0] == 0x64 {
			s.connect(p, body[8:])
			continue
		}
		to := endpoint{p.Dst.Addr(), be.Uint32(b[4:]) & 0xFFFFFF}
		for _, c := range s.conns {
			if to == c.host || to == c.target {
				c.packet(p.Frame, to, b[0], be.Uint32(b[8:])&0xFFFFFF, body)
			}
		}
	}
	if len(s.conns) == 0 {
		t.Fatalf("%s: no connection", name)
	}
	return s
}

func (s *session) connect(p captures.Packet, mad []byte) {
	msg := mad[24:]
	switch be.Uint16(mad[16:]) {
	case cmREQ:
		c := &connection{
			request: msg[140+36:][:56],
			host:    endpoint{p.Src.Addr(), be.Uint32(msg[32:]) >> 8},
			in:      map[endpoint]*message{},
			seen:    map[endpoint]map[uint32]bool{},
		}
		if old := s.byID[be.Uint32(msg)]; old == nil || old.host != c.host {
			s.byID[be.Uint32(msg)] = c
		}
	case cmREP:
		if c := s.byID[be.Uint32(msg[4:])]; c != nil && c.accept == nil {
			c.accept, c.target = msg[36:], endpoint{p.Src.Addr(), be.Uint32(msg[12:]) >> 8}
			s.conns = append(s.conns, c)
		}
	case cmREJ:
		if be.Uint16(msg[10:]) == 28 {
			s.rejects = append(s.rejects, msg[84:])
		}
	}
}

// packet takes an RC packet; repeated ones are dropped by their PSN. The PSNs of
// READ responses are of the other direction's space and are kept apart.
func (c *connection) packet(frame int, to endpoint, op byte, psn uint32, b []byte) {
	if op >= 0x0D && op <= 0x11 {
		psn |= 1 << 24
		if op == 0x11 {
			return
		}
	}
	if c.seen[to] == nil {
		c.seen[to] = map[uint32]bool{}
	}
	if c.seen[to][psn] {
		return
	}
	c.seen[to][psn] = true
	switch {
	case op == 0x0C:
		c.reads = append(c.reads, remote{be.Uint32(b[8:]), be.Uint32(b[12:])})
	case op <= 0x05 || op == 0x16 || op == 0x17:
		c.send(frame, to, op, b)
	case op >= 0x06 && op <= 0x0B:
		c.write(to, op, b)
	case op >= 0x0D && op <= 0x10:
		c.readResponse(op, b)
	}
}

func (c *connection) message(to endpoint) *message {
	if c.in[to] == nil {
		c.in[to] = &message{}
	}
	return c.in[to]
}

func (c *connection) send(frame int, to endpoint, op byte, b []byte) {
	m := c.message(to)
	key := uint32(0)
	if op == 0x16 || op == 0x17 {
		key, b = be.Uint32(b), b[4:]
	}
	m.data = append(m.data, b...)
	if op == 0x00 || op == 0x01 {
		return // more follows
	}
	data := m.data
	c.in[to] = nil
	if to == c.target {
		if len(data) >= SQESize {
			c.exchanges = append(c.exchanges, &exchange{frame: frame, cmd: data[:SQESize:SQESize], capsule: data[SQESize:]})
		}
		return
	}
	if len(data) == CQESize {
		c.complete(data, key)
	}
}

func (c *connection) complete(cqe Completion, key uint32) {
	for _, e := range c.exchanges {
		if e.cqe == nil && e.cmd.CID() == cqe.CID() {
			e.cqe, e.rkey = cqe, key
			return
		}
	}
}

func (c *connection) write(to endpoint, op byte, b []byte) {
	m := c.message(to)
	if op == 0x06 || op >= 0x0A {
		m.remote, b = remote{be.Uint32(b[8:]), be.Uint32(b[12:])}, b[16:]
	}
	m.data = append(m.data, b...)
	if op == 0x08 || op == 0x0A {
		c.move(m.remote.key, m.data)
		c.in[to] = nil
	}
}

func (c *connection) readResponse(op byte, b []byte) {
	if len(c.reads) == 0 {
		return
	}
	if op != 0x0E {
		b = b[4:] // AETH
	}
	r := &c.reads[0]
	c.move(r.key, b)
	if r.len -= min(r.len, uint32(len(b))); r.len == 0 {
		c.reads = c.reads[1:]
	}
}

// move gives data to the command whose descriptor has the key.
func (c *connection) move(key uint32, data []byte) {
	for _, e := range c.exchanges {
		if e.cqe == nil && e.cmd.SGL1().Keyed() && e.cmd.SGL1().Key() == key {
			e.data = append(e.data, data...)
			return
		}
	}
}

// all are the exchanges of all connections for which match holds.
func (s *session) all(match func(Command) bool) (es []*exchange) {
	for _, c := range s.conns {
		for _, e := range c.exchanges {
			if match(e.cmd) {
				es = append(es, e)
			}
		}
	}
	return es
}

// admin are the exchanges of admin queues with opcode o.
func (s *session) admin(o Opcode) (es []*exchange) {
	for _, c := range s.conns {
		if le.Uint16(c.request[2:]) != 0 {
			continue
		}
		for _, e := range c.exchanges {
			if e.cmd.Opcode() == o {
				es = append(es, e)
			}
		}
	}
	return es
}
