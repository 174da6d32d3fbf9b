package fabrictest

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/rc"
	"github.com/nvmf-go/nvmf/fabric/soft/uc"
	"github.com/nvmf-go/nvmf/fabric/soft/ud"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

const (
	// maxFrames is how many packets of the unreliable services wait for the
	// owner of a QP; more are lost.
	maxFrames = 1024
	// looseMTU is the path MTU of the network for them.
	looseMTU = 4096
	hopLimit = 64
)

// frame is a packet of an unreliable service on its way.
type frame struct {
	from *Device
	src  netip.Addr
	dst  netip.Addr
	due  time.Time // when it arrives
	b    []byte    // BTH to ICRC
}

// unreliable is a QP of such a service.
type unreliable interface {
	core.User
	// take hands it a packet, next gives the next and says where it goes.
	take(f *frame, p *wire.Packet)
	next(pkt *rc.Packet) (netip.Addr, bool)
}

// loose is what UC and UD have in common: the owner's Poll copies packets from
// one to the other.
type loose struct {
	dev                *device
	qp                 *core.QP
	self               unreliable
	sendNode, recvNode node
	closing            atomic.Bool

	pkt     rc.Packet // owner
	arrived []frame   // owner

	mu    sync.Mutex
	in    []frame
	alarm *time.Timer // for the first of in
}

// looseKey names a QP on the network.
type looseKey struct {
	hw  *Device
	qpn uint32
}

func (l *loose) init(d *device, self unreliable, qp *core.QP, cfg *fabric.UnreliableConfig) error {
	send, ok := cfg.SendCQ.(*completionQueue)
	recv, ok2 := cfg.RecvCQ.(*completionQueue)
	srq, ok3 := cfg.SRQ.(*core.SRQ)
	if !ok || !ok2 || cfg.SRQ != nil && !ok3 {
		return opError("create QP", d.Name(), fmt.Errorf("%w: queues of another provider, or none", fabric.ErrInvalid))
	}
	if err := qp.Init(d.Device, self, core.QPConfig{SendCQ: &send.CQ, RecvCQ: &recv.CQ, SRQ: srq, Conn: core.ConnConfig(cfg)}); err != nil {
		return err
	}
	l.dev, l.self, l.qp = d, self, qp
	l.sendNode, l.recvNode = node{q: l, cq: send}, node{q: l, cq: recv}
	l.pkt.Header = make([]byte, 0, wire.MaxHeader)
	d.net.setLoose(looseKey{d.hw, qp.Num()}, l)
	return nil
}

// schedule has the owner run the QP, whichever of its CQs it polls.
func (l *loose) schedule() {
	l.sendNode.schedule()
	if l.sendNode.cq != l.recvNode.cq {
		l.recvNode.schedule()
	}
}

// run is the owner's turn for this QP, inside Poll.
func (l *loose) run() {
	if l.qp.Closed() {
		return
	}
	l.collect()
	for i := range l.arrived {
		var p wire.Packet
		if p.Parse(l.arrived[i].b) == nil {
			l.self.take(&l.arrived[i], &p)
		}
	}
	for to, ok := l.self.next(&l.pkt); ok; to, ok = l.self.next(&l.pkt) {
		l.launch(to)
	}
	if l.qp.State() == fabric.QPError {
		l.qp.Flush()
	}
}

// collect takes the packets that have arrived, and has the QP run again when the
// next one does.
func (l *loose) collect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for now := time.Now(); n < len(l.in) && !now.Before(l.in[n].due); n++ {
	}
	l.arrived = append(l.arrived[:0], l.in[:n]...)
	l.in = slices.Delete(l.in, 0, n)
	if len(l.in) > 0 && !l.closing.Load() {
		l.alarm = rearm(l.alarm, time.Until(l.in[0].due), l.schedule)
	}
}

// launch puts the packet on its way, unless the link loses it.
func (l *loose) launch(to netip.Addr) {
	b := slices.Concat(append([][]byte{l.pkt.Header}, l.pkt.Data...)...)
	b = append(b, make([]byte, wire.PadLen(l.pkt.Size)+wire.ICRCLen)...)
	f := frame{from: l.dev.hw, src: l.dev.hw.sourceFor(to), dst: to, b: b}
	hw := l.dev.net.deviceAt(to)
	if hw == nil || hw.removed.Load() {
		return
	}
	delay, lost := l.dev.net.loses(f.src, to)
	if peer := l.dev.net.looseAt(looseKey{hw, wire.BTH(b).DestQP()}); peer != nil && !lost {
		if delay > 0 {
			f.due = time.Now().Add(delay)
		}
		peer.arrive(f)
	}
}

// arrive leaves a packet for the owner.
func (l *loose) arrive(f frame) {
	l.mu.Lock()
	if len(l.in) < maxFrames {
		l.in = append(l.in, f)
	}
	l.mu.Unlock()
	l.schedule()
}

// CQError ends the QP when a CQ of it has overflowed.
func (l *loose) CQError(error) { _ = l.Stop() }

// Stop takes the QP to the error state.
func (l *loose) Stop() error {
	l.qp.States().Set(fabric.QPError)
	l.schedule()
	return nil
}

// Close destroys the QP.
func (l *loose) Close() error {
	if l.closing.Swap(true) {
		return nil
	}
	l.dev.net.setLoose(looseKey{l.dev.hw, l.qp.Num()}, nil)
	l.mu.Lock()
	if l.alarm != nil {
		l.alarm.Stop()
	}
	l.mu.Unlock()
	l.qp.States().Set(fabric.QPError)
	l.qp.Destroy()
	return nil
}

// PostRecv posts receives.
func (l *loose) PostRecv(wrs []fabric.RecvWR, sges []fabric.SGE) (int, error) {
	limit, fault := l.dev.hw.failsIn(len(wrs))
	n, err := l.qp.PostRecv(wrs[:limit], sges)
	if n > 0 && l.qp.State() == fabric.QPError {
		l.schedule()
	}
	return n, l.dev.postError("post receive", l.qp.Num(), err, fault)
}

// setLoose makes a QP known to the network, or with nil forgets it.
func (n *Network) setLoose(k looseKey, l *loose) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.loose[k] = l; l == nil {
		delete(n.loose, k)
	}
}

func (n *Network) looseAt(k looseKey) *loose {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.loose[k]
}

// looseOf are the QPs without connections on d.
func (n *Network) looseOf(d *Device) (list []*loose) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, l := range n.loose {
		if k.hw == d {
			list = append(list, l)
		}
	}
	return list
}

// loses says how long a packet of an unreliable service is on its way, and whether
// it is lost.
func (n *Network) loses(a, b netip.Addr) (delay time.Duration, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.faults[pairOf(a, b)]
	if f == nil {
		return 0, false
	}
	return f.Delay, f.Cut || f.Drop > 0 && n.rng.Float64() < f.Drop
}

// reaches is why packets for an address have no way from the device, or nil.
func (d *device) reaches(a netip.Addr) error {
	if a = a.Unmap(); !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || !d.hw.sourceFor(a).IsValid() {
		return fmt.Errorf("%w: %v", fabric.ErrUnreachable, a)
	}
	return nil
}

// unreliableQP is a UC QP; it implements fabric.UnreliableQP and
// fabric.DropCounter.
type unreliableQP struct {
	uc.QP
	loose
	peer netip.Addr
}

// NewUnreliableQP makes a UC QP (fabric.UnreliableConnector).
func (d *device) NewUnreliableQP(cfg fabric.UnreliableConfig) (fabric.UnreliableQP, error) {
	q := new(unreliableQP)
	if !d.Limits().UnreliableConnections {
		return nil, opError("create QP", d.Name(), fabric.ErrNotSupported)
	}
	if err := q.init(d, q, &q.QP.QP, &cfg); err != nil {
		return nil, err
	}
	return q, nil
}

// Connect makes the QP ready.
func (q *unreliableQP) Connect(p fabric.UnreliablePeer) error {
	err := q.dev.reaches(p.Addr)
	cfg, err2 := uc.ConfigOf(&p, looseMTU)
	switch {
	case err != nil:
	case err2 != nil:
		err = err2
	case q.State() != fabric.QPInit:
		err = fmt.Errorf("%w: the queue pair is in state %v", fabric.ErrInvalid, q.State())
	}
	if err == nil {
		q.Start(cfg)
		q.peer = p.Addr.Unmap()
		if q.States().Connect() {
			return nil
		}
		err = fabric.ErrQPError
	}
	return &fabric.OpError{Op: "connect", Device: q.dev.Name(), QPN: q.Num(), Err: err}
}

// PostSend posts sends; they leave in the next Poll.
func (q *unreliableQP) PostSend(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	limit, fault := q.dev.hw.failsIn(len(wrs))
	n, err := q.EnqueueUnreliable(wrs[:limit], sges)
	if n > 0 {
		q.schedule()
	}
	return n, q.dev.postError("post send", q.Num(), err, fault)
}

func (q *unreliableQP) take(f *frame, p *wire.Packet) {
	if q.peer.IsValid() && q.dev.net.deviceAt(q.peer) == f.from {
		q.Receive(p)
	}
}

func (q *unreliableQP) next(pkt *rc.Packet) (netip.Addr, bool) { return q.peer, q.Next(pkt) }

// datagramQP is a UD QP; it implements fabric.DatagramQP and fabric.DropCounter.
type datagramQP struct {
	ud.QP
	loose
	grh [wire.GRHLen]byte
}

// NewDatagramQP makes a UD QP (fabric.DatagramDevice).
func (d *device) NewDatagramQP(cfg fabric.UnreliableConfig, qkey uint32) (fabric.DatagramQP, error) {
	err := ud.CheckQKey(qkey)
	if !d.Limits().Datagrams {
		err = fabric.ErrNotSupported
	}
	if err != nil {
		return nil, opError("create QP", d.Name(), err)
	}
	q := new(datagramQP)
	if err := q.init(d, q, &q.QP.QP, &cfg); err != nil {
		return nil, err
	}
	if err := q.Start(&d.handles, looseMTU, qkey); err != nil {
		q.Close()
		return nil, opError("create QP", d.Name(), err)
	}
	return q, nil
}

// NewAddressHandle makes the way to a device (fabric.DatagramDevice).
func (d *device) NewAddressHandle(to netip.Addr, trafficClass uint8) (fabric.AddressHandle, error) {
	err := d.Fault()
	switch {
	case !d.Limits().Datagrams:
		err = fabric.ErrNotSupported
	case err == nil:
		err = d.reaches(to)
	}
	if err != nil {
		return nil, opError("create address handle", d.Name(), err)
	}
	h, err := d.handles.New(to.Unmap(), trafficClass)
	if err != nil {
		return nil, opError("create address handle", d.Name(), err)
	}
	return h, nil
}

// PostDatagrams posts sends; they leave in the next Poll.
func (q *datagramQP) PostDatagrams(wrs []fabric.DatagramWR, sges []fabric.SGE) (int, error) {
	limit, fault := q.dev.hw.failsIn(len(wrs))
	n, err := q.Enqueue(wrs[:limit], sges)
	if n > 0 {
		q.schedule()
	}
	return n, q.dev.postError("post send", q.Num(), err, fault)
}

func (q *datagramQP) take(f *frame, p *wire.Packet) {
	const udp = 8
	wire.PutGRH(q.grh[:], &wire.IPInfo{Src: f.src, Dst: f.dst, Len: udp + len(f.b), HopLimit: hopLimit})
	q.Receive(p, q.grh[:])
}

func (q *datagramQP) next(pkt *rc.Packet) (netip.Addr, bool) {
	h := q.Next(pkt)
	if h == nil {
		return netip.Addr{}, false
	}
	return h.Addr(), true
}
