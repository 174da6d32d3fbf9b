package roce

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
	"github.com/nvmf-go/nvmf/fabric/soft/uc"
	"github.com/nvmf-go/nvmf/fabric/soft/ud"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// unreliable is a QP of an engine that nothing is acknowledged to: UC or UD. It
// has no timer and no connection.
type unreliable interface {
	core.User
	common() *loose
	// take hands it a packet; n is its length from the BTH to the ICRC.
	take(from netip.Addr, p *wire.Packet, n int)
	// next fills in the next packet and says where it goes, nil when there is
	// none, and whether it may share a datagram with the packet before it if
	// that goes the same way.
	next(pkt *rc.Packet) (to *path, joins bool)
}

// loose is what UC and UD have in common.
type loose struct {
	e       *engine
	qp      *core.QP
	self    unreliable
	eager   bool // owner: in the engine's list
	closing atomic.Bool
}

// init makes the QP, given its CQs' engine, and has the engine adopt it.
func (l *loose) init(d *device, self unreliable, qp *core.QP, cfg *fabric.UnreliableConfig) error {
	send, ok := cfg.SendCQ.(*completionQueue)
	recv, ok2 := cfg.RecvCQ.(*completionQueue)
	srq, ok3 := cfg.SRQ.(*core.SRQ)
	if !ok || !ok2 || cfg.SRQ != nil && !ok3 || !send.Of(&d.engines) || !recv.Of(&d.engines) {
		return d.opError("create QP", fmt.Errorf("%w: queues of this device are needed", fabric.ErrInvalid))
	}
	e, err := d.engines.For(send, recv)
	if err != nil {
		return d.opError("create QP", err)
	}
	l.e, l.qp, l.self = e, qp, self
	return qp.Init(d.Device, self, core.QPConfig{
		SendCQ: &send.CQ, RecvCQ: &recv.CQ, SRQ: srq, Conn: core.ConnConfig(cfg), Group: e.index, GroupMask: groupMask,
	})
}

// adopt gives the QP to its engine.
func (l *loose) adopt() {
	l.e.do(func() {
		if !l.qp.Closed() {
			l.e.loose[l.qp.Num()] = l.self
			l.wake()
		}
	})
}

func (l *loose) common() *loose { return l }

// wake has the QP looked at in the next flush. The owner calls it.
func (l *loose) wake() {
	if !l.eager {
		l.eager = true
		l.e.eager = append(l.e.eager, l.self)
	}
}

// CQError ends the QP when a CQ of it has overflowed.
func (l *loose) CQError(error) {
	l.qp.States().Set(fabric.QPError)
	l.wake()
}

// Stop takes the QP to the error state; the owner flushes in its next Poll.
func (l *loose) Stop() error {
	l.qp.States().Set(fabric.QPError)
	l.e.do(func() {
		if !l.qp.Closed() {
			l.wake()
		}
	})
	return nil
}

// Close destroys the QP.
func (l *loose) Close() error {
	if l.closing.Swap(true) {
		return nil
	}
	l.qp.States().Set(fabric.QPError)
	l.e.dropLoose(l)
	l.qp.Destroy()
	return nil
}

// PostRecv posts receives.
func (l *loose) PostRecv(wrs []fabric.RecvWR, sges []fabric.SGE) (int, error) {
	n, err := l.qp.PostRecv(wrs, sges)
	if n > 0 && l.qp.State() == fabric.QPError {
		l.wake() // to flush them
	}
	return n, err
}

// unreliableQP is a UC QP; it implements fabric.UnreliableQP and
// fabric.DropCounter.
type unreliableQP struct {
	uc.QP
	loose
	dev   *device
	class uint8
	peer  netip.Addr // not valid before Connect
	path  *path
}

// NewUnreliableQP makes a UC QP (fabric.UnreliableConnector).
func (d *device) NewUnreliableQP(cfg fabric.UnreliableConfig) (fabric.UnreliableQP, error) {
	q := &unreliableQP{dev: d, class: cfg.TrafficClass}
	if err := q.init(d, q, &q.QP.QP, &cfg); err != nil {
		return nil, err
	}
	q.adopt()
	return q, nil
}

// Connect makes the QP ready to receive and to send.
func (q *unreliableQP) Connect(p fabric.UnreliablePeer) error {
	addr, err := q.dev.destination(p.Addr)
	cfg, err2 := uc.ConfigOf(&p, q.dev.mtu().Bytes())
	switch {
	case err != nil:
	case err2 != nil:
		err = err2
	case q.State() != fabric.QPInit:
		err = fmt.Errorf("%w: the queue pair is in state %v", fabric.ErrInvalid, q.State())
	}
	if err != nil {
		return &fabric.OpError{Op: "connect", Device: q.dev.Name(), QPN: q.Num(), Err: err}
	}
	q.Start(cfg)
	q.peer = addr
	q.path = q.e.loosePath(addr, p.QPN, q.class)
	if !q.States().Connect() {
		return &fabric.OpError{Op: "connect", Device: q.dev.Name(), QPN: q.Num(), Err: fabric.ErrQPError}
	}
	return nil
}

// PostSend posts sends; they leave in the next Poll or Arm.
func (q *unreliableQP) PostSend(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	n, err := q.EnqueueUnreliable(wrs, sges)
	if n > 0 {
		q.wake()
	}
	return n, err
}

func (q *unreliableQP) take(from netip.Addr, p *wire.Packet, _ int) {
	if q.peer != from {
		q.e.lost++
		return
	}
	q.Receive(p)
}

func (q *unreliableQP) next(pkt *rc.Packet) (*path, bool) {
	if !q.Next(pkt) {
		return nil, false
	}
	return q.path, true
}

// datagramQP is a UD QP; it implements fabric.DatagramQP and fabric.DropCounter.
type datagramQP struct {
	ud.QP
	loose
	dev *device
	grh [wire.GRHLen]byte
}

// NewDatagramQP makes a UD QP (fabric.DatagramDevice).
func (d *device) NewDatagramQP(cfg fabric.UnreliableConfig, qkey uint32) (fabric.DatagramQP, error) {
	if err := ud.CheckQKey(qkey); err != nil {
		return nil, d.opError("create QP", err)
	}
	q := &datagramQP{dev: d}
	if err := q.init(d, q, &q.QP.QP, &cfg); err != nil {
		return nil, err
	}
	if err := q.Start(&d.handles, d.mtu().Bytes(), qkey); err != nil {
		q.QP.Abandon()
		return nil, d.opError("create QP", err)
	}
	q.adopt()
	q.e.do(q.e.askHeaders)
	return q, nil
}

// NewAddressHandle makes the way to a device (fabric.DatagramDevice).
func (d *device) NewAddressHandle(to netip.Addr, trafficClass uint8) (fabric.AddressHandle, error) {
	const op = "create address handle"
	addr, err := d.destination(to)
	if err == nil {
		err = d.Fault()
	}
	if err != nil {
		return nil, d.opError(op, err)
	}
	h, err := d.handles.New(addr, trafficClass)
	if err != nil {
		return nil, d.opError(op, err)
	}
	return h, nil
}

// destination is where packets for an address go, or why they cannot.
func (d *device) destination(a netip.Addr) (netip.Addr, error) {
	to := a.Unmap().WithZone("")
	if !to.IsValid() || to.Is4() != d.addr.Is4() || to.IsUnspecified() || to.IsMulticast() {
		return to, fmt.Errorf("%w: %v from %v", fabric.ErrUnreachable, a, d.addr)
	}
	return to, nil
}

// PostDatagrams posts sends; they leave in the next Poll or Arm.
func (q *datagramQP) PostDatagrams(wrs []fabric.DatagramWR, sges []fabric.SGE) (int, error) {
	n, err := q.Enqueue(wrs, sges)
	if n > 0 {
		q.wake()
	}
	return n, err
}

func (q *datagramQP) take(from netip.Addr, p *wire.Packet, n int) {
	info := wire.IPInfo{Src: from, Dst: q.dev.addr, Len: udpHeader + n}
	info.Class, info.HopLimit = q.e.rx.header()
	wire.PutGRH(q.grh[:], &info)
	q.Receive(p, q.grh[:])
}

const udpHeader = 8

func (q *datagramQP) next(pkt *rc.Packet) (*path, bool) {
	h := q.Next(pkt)
	if h == nil {
		return nil, false
	}
	return q.e.pathOf(h, wire.BTH(pkt.Header).DestQP()&groupMask)
}
