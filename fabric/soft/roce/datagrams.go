package roce

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// datagramPaths are the ways of an engine's datagrams by address handle.
type datagramPaths struct {
	of    map[uint32]handlePath // by the slot of the handle
	last  handlePath
	group uint32 // low bits of the QP number that the last datagram went to
}

type handlePath struct {
	num  uint32
	path *path
}

// noGroup keeps other packets out of datagrams whose QP numbers differ.
const noGroup = groupMask + 1

// pathOf is the way of a datagram by a handle to a QP whose number ends in
// group, and whether it may travel with the one before.
func (e *engine) pathOf(h *core.Handle, group uint32) (*path, bool) {
	p := &e.paths
	joins := group == p.group && p.last.num == h.Num()
	p.group = group
	if p.last.num == h.Num() {
		return p.last.path, joins
	}
	slot := h.Num() % core.MaxHandles
	known := p.of[slot]
	if known.num != h.Num() {
		known = handlePath{h.Num(), e.loosePath(h.Addr(), 0, h.TrafficClass())}
		known.path.group = noGroup
		p.of[slot] = known
	}
	p.last = known
	return known.path, false
}

// loosePath is the way of packets that nothing answers. A NIC that cuts IPv4
// datagrams itself may count identifications in a way that the ICRCs were not
// computed for (see run), and here nobody would notice: segmentation offload is
// used where there are none, and on loopback.
func (e *engine) loosePath(to netip.Addr, qpn uint32, class uint8) *path {
	p := e.tx.newPath(netip.AddrPortFrom(to, e.dev.opts().Port), e.dev.zone, qpn, tosOf(class))
	p.single = to.Is4() && !to.IsLoopback()
	return p
}

// tosOf is the TOS byte of a path; 0 leaves it to the socket.
func tosOf(class uint8) int16 {
	if class == 0 {
		return -1
	}
	return int16(class)
}

// dispatchLoose hands a packet to its QP without a connection, or to another
// engine.
func (e *engine) dispatchLoose(from netip.Addr, qpn uint32, p *wire.Packet, b []byte) {
	q := e.loose[qpn]
	switch {
	case q == nil && (qpn == wire.GSIQP || qpn&groupMask != e.index):
		e.strewn++
		e.dev.forward(from, qpn, b)
		return
	case q == nil || p.BTH.PKey()&0x7fff != wire.PKeyDefault&0x7fff || p.Op == wire.OpCNP:
		e.lost++
		return
	}
	e.parsed = *p // what an interface is given is on the heap
	q.take(from, &e.parsed, len(b))
	if l := q.common(); l.qp.State() == fabric.QPError {
		l.wake()
	}
}

// flushLoose sends what the QPs without connections have to send.
func (e *engine) flushLoose() {
	list := e.eager
	e.eager = e.spare[:0]
	for i, q := range list {
		if e.tx.blocked() {
			e.eager = append(e.eager, list[i:]...)
			break
		}
		q.common().eager = false
		e.runLoose(q)
	}
	clear(list)
	e.spare = list[:0]
}

// runLoose lets one QP send, and flushes it when it has failed.
func (e *engine) runLoose(q unreliable) {
	l, n := q.common(), 0
	for ; n < burst; n++ {
		if e.tx.batch.full() && !e.tx.send() {
			break
		}
		to, joins := q.next(e.tx.batch.packet())
		if to == nil {
			break
		}
		e.tx.batch.add(to, joins && e.tx.gso && !to.single)
	}
	switch {
	case l.qp.State() == fabric.QPError:
		l.qp.Flush()
	case n == burst || e.tx.blocked():
		l.wake()
	}
}

// dropLoose takes a QP out. The owner calls it.
func (e *engine) dropLoose(l *loose) {
	delete(e.loose, l.qp.Num())
	keep := e.eager[:0]
	for _, q := range e.eager {
		if q != l.self {
			keep = append(keep, q)
		}
	}
	clear(e.eager[len(keep):])
	e.eager = keep
}

// askHeaders has the kernel tell class and hop limit of received packets, which
// goes in front of datagrams. It runs in the mail. Where it is not done they are
// 0.
func (e *engine) askHeaders() { e.tellHeaders(1) }

func (e *engine) tellHeaders(on int) {
	level, class, hops := unix.IPPROTO_IP, unix.IP_RECVTOS, unix.IP_RECVTTL
	if e.dev.addr.Is6() {
		level, class, hops = unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, unix.IPV6_RECVHOPLIMIT
	}
	_ = unix.SetsockoptInt(e.rx.fd, level, class, on)
	_ = unix.SetsockoptInt(e.rx.fd, level, hops, on)
	e.headers = on != 0
}
