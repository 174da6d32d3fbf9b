package cm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// errStale is why a connection ends when the peer shows that it lost it.
var errStale = errors.New("the peer has lost the connection and asks for a new one on the same queue pair")

// guid is our GUID as REJ carries it.
func (m *Manager) guid() []byte { return binary.BigEndian.AppendUint64(nil, m.cfg.GUID) }

// request handles a REQ.
func (m *Manager) request(from netip.Addr, mad wire.MAD, now time.Duration) {
	req := wire.ParseREQ(mad.Body)
	if c := m.peers[peerComm{req.CAGUID, req.LocalComm, from}]; c != nil {
		c.again()
		return
	}
	if old := m.qps[peerQP{req.CAGUID, req.QPN, from}]; old != nil && old.state != TimeWait {
		m.refuse(from, mad.TID, &req, fabric.RejectStale, m.guid())
		old.lose(now)
		return
	}
	h, reason, info := m.check(from, &req)
	if reason != 0 {
		m.refuse(from, mad.TID, &req, reason, info)
		return
	}
	c := m.add(from, ReqReceived)
	if c == nil {
		m.refuse(from, mad.TID, &req, fabric.RejectNoResources, nil)
		return
	}
	c.tid, c.remote, c.Request = mad.TID, req.LocalComm, req
	c.Request.Private = append([]byte(nil), req.Private[wire.CMAHeaderLen:]...)
	c.Source = h.Src
	c.Port, _ = wire.ServicePort(req.ServiceID)
	m.peers[c.comm()] = c
	m.qps[c.peerQP()] = c
	m.emit(Requested, c, nil)
}

// check is why a REQ cannot be for us: a reason and what explains it. It is 0
// for one that can.
func (m *Manager) check(from netip.Addr, req *wire.REQ) (h wire.CMAHeader, reason fabric.RejectReason, info []byte) {
	port, ours := wire.ServicePort(req.ServiceID)
	mtu := m.cfg.MTU()
	switch {
	case !ours || !m.cfg.Listens(port):
		return h, fabric.RejectBadServiceID, nil
	case req.Transport != 0:
		return h, fabric.RejectTransport, nil
	case req.RemoteGID != m.cfg.Addr || req.LocalGID != from || req.PKey&0x7fff != 0x7fff:
		own := m.cfg.Addr.As16()
		return h, fabric.RejectBadGID, own[:]
	case !req.PathMTU.Valid() || req.PathMTU > mtu:
		return h, fabric.RejectMTU, []byte{byte(mtu) << 4}
	case req.QPN < 2:
		return h, fabric.RejectNoQP, nil
	}
	h, err := wire.ParseCMA(req.Private)
	if err != nil || h.DstAddr.Unmap() != m.cfg.Addr {
		return h, fabric.RejectConsumer, nil
	}
	h.Src = netip.AddrPortFrom(h.Src.Addr().Unmap(), h.Src.Port())
	return h, 0, nil
}

// refuse rejects a REQ that leaves no trace.
func (m *Manager) refuse(to netip.Addr, tid uint64, req *wire.REQ, r fabric.RejectReason, info []byte) {
	rej := wire.REJ{RemoteComm: req.LocalComm, About: wire.AboutREQ, Reason: uint16(r), Info: info, InfoLen: uint8(len(info))}
	b, body := build(tid, wire.AttrREJ)
	rej.Put(body)
	m.send(to, b)
}

// again handles a duplicate REQ.
func (c *Conn) again() {
	switch c.state {
	case ReqReceived:
		mra := wire.MRA{LocalComm: c.local, RemoteComm: c.remote, About: wire.AboutREQ, ServiceTime: serviceTimeout}
		b, body := build(c.tid, wire.AttrMRA)
		mra.Put(body)
		c.m.send(c.Peer, b)
	case RepSent:
		c.m.send(c.Peer, c.last)
	case TimeWait:
		c.m.refuse(c.Peer, c.tid, &c.Request, fabric.RejectStale, c.m.guid())
	}
}

// lose ends a connection whose peer has forgotten it.
func (c *Conn) lose(now time.Duration) {
	switch c.state {
	case Connected, RepSent:
		c.Disconnect(now)
		c.end(Failed, errStale)
	case ReqReceived:
		c.m.remove(c)
		c.end(Failed, errStale)
	}
}

// reply handles a REP.
func (m *Manager) reply(from netip.Addr, mad wire.MAD) {
	rep := wire.ParseREP(mad.Body)
	c := m.find(from, rep.LocalComm, rep.RemoteComm)
	switch {
	case c == nil || !c.active:
		// Nobody waits for it any more: the peer must not wait either.
		rej := wire.REJ{LocalComm: rep.RemoteComm, RemoteComm: rep.LocalComm, About: wire.AboutREP, Reason: uint16(fabric.RejectInvalidCommID)}
		b, body := build(mad.TID, wire.AttrREJ)
		rej.Put(body)
		m.send(from, b)
	case c.state == ReqSent:
		c.remote, c.Reply = rep.LocalComm, rep
		c.Reply.Private = append([]byte(nil), rep.Private...)
		c.rest(RepReceived)
		m.qps[c.peerQP()] = c
		m.emit(Replied, c, nil)
	case c.state == Connected:
		c.sendPair(wire.AttrRTU, c.tid, 0) // ours was lost
	}
}

// ready handles an RTU.
func (m *Manager) ready(from netip.Addr, p wire.Pair) {
	if c := m.find(from, p.LocalComm, p.RemoteComm); c != nil && c.state == RepSent {
		c.rest(Connected)
		m.emit(Established, c, nil)
	}
}

// rejected handles a REJ. A peer that gives its request up may not know our
// id: then it says its GUID.
func (m *Manager) rejected(from netip.Addr, r wire.REJ) {
	c := m.find(from, r.LocalComm, r.RemoteComm)
	if r.RemoteComm == 0 && r.InfoLen >= 8 {
		c = m.peers[peerComm{binary.BigEndian.Uint64(r.Info), r.LocalComm, from}]
	}
	if c == nil {
		return
	}
	if fabric.RejectReason(r.Reason) == fabric.RejectMTU && r.InfoLen > 0 {
		c.MaxMTU = wire.MTU(r.Info[0] >> 4)
	}
	switch c.state {
	case ReqSent, RepReceived, RepSent, ReqReceived:
		m.remove(c)
		c.end(Rejected, rejectError(&r))
	case Connected:
		m.remove(c)
		c.end(Disconnected, fmt.Errorf("%w: %w", rejectError(&r), net.ErrClosed))
	}
}

// patience handles an MRA: what we sent has arrived and will be answered.
func (m *Manager) patience(from netip.Addr, a wire.MRA, now time.Duration) {
	c := m.find(from, a.LocalComm, a.RemoteComm)
	if c == nil || c.state != ReqSent && c.state != RepSent {
		return
	}
	c.tries = 0
	m.timers.set(c, now+c.wait+cmTime(a.ServiceTime))
}

// disconnect handles a DREQ.
func (m *Manager) disconnect(from netip.Addr, mad wire.MAD, now time.Duration) {
	p := wire.ParsePair(mad.Body)
	c := m.find(from, p.LocalComm, p.RemoteComm)
	if c == nil {
		b, body := build(mad.TID, wire.AttrDREP)
		answer := wire.Pair{LocalComm: p.RemoteComm, RemoteComm: p.LocalComm}
		answer.Put(body)
		m.send(from, b)
		return
	}
	if p.RemoteQPN != c.LocalQPN() {
		return
	}
	switch c.state {
	case Connected, RepSent, RepReceived:
		c.timeWait(now)
		c.end(Disconnected, nil)
	case DreqSent:
		c.timeWait(now)
		c.end(Finished, nil)
	case TimeWait:
	default:
		return
	}
	c.sendPair(wire.AttrDREP, mad.TID, 0)
}

// disconnected handles a DREP.
func (m *Manager) disconnected(from netip.Addr, p wire.Pair, now time.Duration) {
	if c := m.find(from, p.LocalComm, p.RemoteComm); c != nil && c.state == DreqSent {
		c.timeWait(now)
		c.end(Finished, nil)
	}
}
