//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// privilegedQKey is the bit of a Q_Key that belongs to privileged users.
const privilegedQKey = 1 << 31

// loose is what QPs without a connection have in common. Its queuePair has a
// conn that nobody connects: the configuration.
type loose struct {
	q *queuePair
}

func (l *loose) Num() uint32           { return l.q.Num() }
func (l *loose) State() fabric.QPState { return l.q.State() }
func (l *loose) MaxInline() int        { return l.q.MaxInline() }

// PostRecv is as of every QP.
func (l *loose) PostRecv(wrs []fabric.RecvWR, sges []fabric.SGE) (int, error) {
	return l.q.PostRecv(wrs, sges)
}

// Recover takes the QP from SQE to RTS. A driver may know no SQE: then the QP is
// in ERR for good (rxe).
func (l *loose) Recover() error {
	if s := l.State(); s != fabric.QPSendQueueError {
		return l.q.opError("recover", fmt.Errorf("%w: the queue pair is in state %v", fabric.ErrInvalid, s))
	}
	if e := C.vb_recover_qp(l.q.qp); e != 0 {
		return l.q.opError("recover", errno(int(e)))
	}
	return nil
}

// Stop takes the QP to the error state.
func (l *loose) Stop() error {
	c := l.q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	l.q.mode.Store(modeLeft)
	if e := C.vb_qp_error(l.q.qp); e != 0 {
		return l.q.opError("stop", errno(int(e)))
	}
	return nil
}

// Close destroys the QP.
func (l *loose) Close() error {
	c := l.q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	err := l.q.close()
	c.use(-1)
	c.d.end(&c.d.counts.QPs)
	return err
}

// newLoose makes a QP in RESET.
func (d *device) newLoose(u fabric.UnreliableConfig, datagrams bool) (*loose, error) {
	c := newConn(d)
	err := c.configure(fabric.ConnConfig{
		SendCQ: u.SendCQ, RecvCQ: u.RecvCQ, SRQ: u.SRQ, SendDepth: u.SendDepth, RecvDepth: u.RecvDepth,
		MaxSendSGE: u.MaxSendSGE, MaxRecvSGE: u.MaxRecvSGE, MaxInline: u.MaxInline, TrafficClass: u.TrafficClass,
	}, 0)
	if err != nil {
		return nil, err
	}
	if err := d.begin(&d.counts.QPs); err != nil {
		return nil, err
	}
	c.use(+1)
	q, err := c.createLoose(datagrams)
	if err != nil {
		c.use(-1)
		d.end(&d.counts.QPs)
		return nil, err
	}
	return &loose{q}, nil
}

func (c *conn) createLoose(datagrams bool) (*queuePair, error) {
	a := c.attributes()
	q, err := newQueuePair(c)
	if err != nil {
		return nil, err
	}
	kind := C.int(0)
	if datagrams {
		kind = 1
		q.sq.max_datagram, q.rq.max_datagram = C.uint32_t(c.d.info.MTU), C.uint32_t(c.d.info.MTU)
		q.sq.handles = c.d.handles.table
	}
	qp, err := C.vb_create_loose_qp(&a, kind)
	if qp == nil {
		q.freeQueues()
		return nil, fmt.Errorf("make a QP of %d sends and %d receives: %w", c.cfg.SendDepth, c.cfg.RecvDepth, lastErrno(err))
	}
	q.made(qp, int(a.max_inline))
	return q, nil
}

// has says whether the service is there.
func has(service bool) error {
	if !service {
		return fabric.ErrNotSupported
	}
	return nil
}

// unreliableQP implements fabric.UnreliableQP.
type unreliableQP struct {
	*loose
}

// NewUnreliableQP makes a UC QP (fabric.UnreliableConnector).
func (d *device) NewUnreliableQP(cfg fabric.UnreliableConfig) (fabric.UnreliableQP, error) {
	const op = "make a QP"
	if err := has(d.info.Limits.UnreliableConnections); err != nil {
		return nil, d.opError(op, err)
	}
	l, err := d.newLoose(cfg, false)
	if err != nil {
		return nil, d.opError(op, err)
	}
	if e := C.vb_init_uc(l.q.qp, d.port()); e != 0 {
		_ = l.Close()
		return nil, d.opError(op, errno(int(e)))
	}
	return &unreliableQP{l}, nil
}

// port is the one that is used: the first that is active.
func (d *device) port() C.uint8_t {
	var i C.struct_vb_info
	if C.vb_query(d.ctx, &i) != 0 || i.port == 0 {
		return 1
	}
	return C.uint8_t(i.port)
}

// Connect makes the QP ready.
func (q *unreliableQP) Connect(p fabric.UnreliablePeer) error {
	const op = "connect"
	d := q.q.c.d
	if p.MTU == 0 {
		p.MTU = d.info.MTU
	}
	path, err := d.path(p.Addr, q.q.c.cfg.TrafficClass)
	switch {
	case err != nil:
	case p.QPN < 2 || p.QPN >= 1<<24 || p.SendPSN >= 1<<24 || p.RecvPSN >= 1<<24:
		err = fmt.Errorf("%w: QP number %d, sequence numbers %d and %d", fabric.ErrInvalid, p.QPN, p.SendPSN, p.RecvPSN)
	case p.MTU < 256 || p.MTU > d.info.MTU || bits.OnesCount(uint(p.MTU)) != 1:
		err = fmt.Errorf("%w: a path MTU of %d bytes, the device's is %d", fabric.ErrInvalid, p.MTU, d.info.MTU)
	case q.State() != fabric.QPInit:
		err = fmt.Errorf("%w: the queue pair is in state %v", fabric.ErrInvalid, q.State())
	default:
		mtu := C.int(bits.Len(uint(p.MTU)) - 8) // 1 is 256 (IBTA vol 1, 12.6.5)
		err = errno(int(C.vb_connect_uc(q.q.qp, &path, C.uint32_t(p.QPN), C.uint32_t(p.SendPSN), C.uint32_t(p.RecvPSN), mtu)))
	}
	if err != nil {
		return q.q.opError(op, err)
	}
	q.q.open()
	return nil
}

// PostSend refuses what the service does not carry.
func (q *unreliableQP) PostSend(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	for i := range wrs {
		switch wrs[i].Op {
		case fabric.OpSend, fabric.OpSendImm, fabric.OpWrite, fabric.OpWriteImm:
			continue
		}
		n, err := q.q.PostSend(wrs[:i], sges)
		if err == nil {
			err = q.q.opError("post send", errService)
		}
		return n, err
	}
	return q.q.PostSend(wrs, sges)
}

var errService = fmt.Errorf("%w: not an operation of the QP's transport service", fabric.ErrInvalid)

// path is the way to an address, from the local one that the system would use.
func (d *device) path(to netip.Addr, class uint8) (p C.struct_vb_path, err error) {
	to = to.Unmap()
	if !to.IsValid() || to.IsUnspecified() || to.IsMulticast() {
		return p, fmt.Errorf("%w: %v", fabric.ErrUnreachable, to)
	}
	for _, from := range d.sources(to) {
		gid := from.WithZone("").As16()
		index := C.vb_find_gid(d.ctx, (*C.uint8_t)(unsafe.Pointer(&gid[0])), &p.port)
		if index < 0 {
			continue
		}
		p.sgid_index, p.hop_limit, p.traffic_class = C.uint8_t(index), 64, C.uint8_t(class)
		dgid := to.WithZone("").As16()
		p.dgid = *(*[16]C.uint8_t)(unsafe.Pointer(&dgid))
		return p, nil
	}
	return p, fmt.Errorf("%w: %v from %s", fabric.ErrUnreachable, to, d.name)
}

// sources are the device's addresses of to's family, the one that the system
// would send from first.
func (d *device) sources(to netip.Addr) (list []netip.Addr) {
	for _, a := range d.Info().Addrs {
		if a.Is4() == to.Is4() {
			list = append(list, a)
		}
	}
	// A UDP socket's connect sends nothing.
	if s, err := net.Dial("udp", netip.AddrPortFrom(to, 4791).String()); err == nil {
		chosen := s.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		s.Close()
		slices.SortStableFunc(list, func(a, b netip.Addr) int {
			switch {
			case a == chosen && b != chosen:
				return -1
			case b == chosen && a != chosen:
				return 1
			}
			return 0
		})
	}
	return list
}

// datagramQP implements fabric.DatagramQP.
type datagramQP struct {
	*loose
}

// NewDatagramQP makes a UD QP (fabric.DatagramDevice). One with an SRQ is not
// supported: a completion would not tell what it is of.
func (d *device) NewDatagramQP(cfg fabric.UnreliableConfig, qkey uint32) (fabric.DatagramQP, error) {
	const op = "make a QP"
	err := has(d.info.Limits.Datagrams && cfg.SRQ == nil)
	if err == nil && qkey&privilegedQKey != 0 {
		err = fmt.Errorf("%w: the Q_Key 0x%08x is for privileged users", fabric.ErrInvalid, qkey)
	}
	if err != nil {
		return nil, d.opError(op, err)
	}
	l, err := d.newLoose(cfg, true)
	if err != nil {
		return nil, d.opError(op, err)
	}
	if e := C.vb_start_ud(l.q.qp, d.port(), C.uint32_t(qkey)); e != 0 {
		_ = l.Close()
		return nil, d.opError(op, errno(int(e)))
	}
	l.q.sq.qkey = C.uint32_t(qkey)
	l.q.open()
	return &datagramQP{l}, nil
}

// MaxDatagram is the path MTU of the port when the device was opened.
func (q *datagramQP) MaxDatagram() int { return int(q.q.sq.max_datagram) }

// PostSend fails: a datagram says where it goes.
func (q *datagramQP) PostSend([]fabric.SendWR, []fabric.SGE) (int, error) {
	return 0, q.q.opError("post send", errService)
}

// PostDatagrams posts sends.
func (q *datagramQP) PostDatagrams(wrs []fabric.DatagramWR, sges []fabric.SGE) (int, error) {
	if err := q.q.sendable(); err != nil || len(wrs) == 0 {
		return 0, err
	}
	return q.q.posted(int64(C.vb_post_datagram(q.q.qp, q.q.sq, (*C.struct_vb_dgram_wr)(unsafe.Pointer(&wrs[0])), C.uint32_t(len(wrs)), sgePointer(sges), C.uint32_t(len(sges)))), q.q.sendFull)
}
