package roce

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/cm"
	"github.com/nvmf-go/nvmf/fabric/soft/host"
	"github.com/nvmf-go/nvmf/fabric/soft/icrc"
	"github.com/nvmf-go/nvmf/fabric/soft/psn"
	"github.com/nvmf-go/nvmf/fabric/soft/wire"
)

// control runs the connection manager of a device: a waiter's goroutine reads
// QP 1's socket, a timer runs its timers, and whoever dials, accepts or
// disconnects calls in.
type control struct {
	dev    *device
	socks  pair
	waiter *host.Waiter
	timer  *time.Timer

	rx receiver // of the waiter's goroutine

	mu     sync.Mutex
	m      *cm.Manager
	dials  map[*conn]struct{} // waiting for an answer
	psn    psn.Value
	pkt    [wire.BTHLen + wire.DETHLen + wire.MADLen + wire.ICRCLen]byte
	closed bool
}

func newControl(d *device) (*control, error) {
	c := &control{dev: d, socks: d.socks.cm, dials: make(map[*conn]struct{})}
	if err := c.rx.init(c.socks.rx, netip.AddrPortFrom(d.addr, d.opts().Port)); err != nil {
		return nil, fmt.Errorf("receive buffers: %w", err)
	}
	c.m = cm.New(cm.Config{
		Addr: d.addr, GUID: d.info.GUID, MTU: d.mtu, FirstComm: wire.CommID(random()),
		Listens: func(port uint16) bool { return d.p.listener(netip.AddrPortFrom(d.addr, port)) != nil },
	})
	c.timer = time.AfterFunc(time.Hour, c.expire)
	c.timer.Stop()
	var err error
	if c.waiter, err = host.NewWaiter(); err == nil {
		err = errors.Join(c.waiter.Keep(c.socks.rx, unix.EPOLLIN, c.handle), c.waiter.Keep(c.socks.tx, 0, c.handle))
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// random is an unpredictable number.
func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// close ends the goroutine.
func (c *control) close() {
	c.mu.Lock()
	c.closed = true
	c.timer.Stop()
	c.mu.Unlock()
	if c.waiter != nil {
		c.waiter.Close()
	}
	c.rx.close()
}

// handle handles all that the sockets have.
func (c *control) handle() {
	for c.readErrors() || c.read() {
	}
	_, _ = unix.GetsockoptInt(c.socks.tx, unix.SOL_SOCKET, unix.SO_ERROR) // one left pending would be an event for ever
}

// read handles what the socket has. It is false when that was nothing.
func (c *control) read() bool {
	n := c.rx.receive()
	now := clock()
	for i := range n {
		f, b, _ := c.rx.datagram(i)
		handle := func(b []byte, _ int) {
			var p wire.Packet
			switch {
			case !c.rx.check(f, b, 0, now) || p.Parse(b) != nil:
			case p.BTH.DestQP() == wire.GSIQP:
				c.packet(f.addr, b)
			default:
				c.dev.forward(f.addr, p.BTH.DestQP(), b)
			}
		}
		if w := c.dev.p.weather; w != nil {
			w.pass(c, b, 0, handle)
			continue
		}
		handle(b, 0)
	}
	return n > 0
}

// packet handles a packet to QP 1, whose ICRC was right.
func (c *control) packet(from netip.Addr, b []byte) {
	var p wire.Packet
	if p.Parse(b) != nil || p.Op != wire.OpUDSendOnly || p.DETH().QKey() != wire.GSIQKey || p.BTH.PKey()&0x7fff != wire.PKeyDefault&0x7fff {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.Receive(from, p.Payload, clock())
	c.drain()
}

// readErrors takes what ICMP has said of datagrams we sent. It is false when
// that was nothing.
func (c *control) readErrors() bool {
	var name rawAddr
	var ctl [256]byte
	var b [8]byte
	iov := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	h := unix.Msghdr{Name: &name.b[0], Namelen: uint32(len(name.b)), Iov: &iov, Iovlen: 1, Control: &ctl[0], Controllen: uint64(len(ctl))}
	_, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(c.socks.tx), uintptr(unsafe.Pointer(&h)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if e != 0 {
		return false
	}
	name.n = h.Namelen
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unreachable(name.addrPort().Addr(), fmt.Errorf("%w: nobody speaks RoCEv2 there (UDP port %d is closed)", fabric.ErrUnreachable, c.dev.opts().Port))
	c.drain()
	return true
}

// unreachable fails the dials to an address; mu is held.
func (c *control) unreachable(a netip.Addr, err error) {
	for d := range c.dials {
		if d.cm.Peer == a {
			d.cm.Forget()
			c.answer(d, err)
		}
	}
}

// answer ends the wait of a dial or an accept; mu is held. It is false when
// that was over before.
func (c *control) answer(d *conn, err error) bool {
	delete(c.dials, d)
	d.cm.User = nil
	if err == nil {
		d.cm.User = d
	}
	if !d.waiting {
		return false
	}
	d.waiting = false
	d.result <- err
	return true
}

// expire runs the timers.
func (c *control) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.Expire(clock())
	c.drain()
}

// drain handles the events of the manager, sends its messages and sets the
// timer; mu is held.
func (c *control) drain() {
	if c.closed {
		return
	}
	for e, ok := c.m.Event(); ok; e, ok = c.m.Event() {
		c.event(e)
	}
	for to, b, ok := c.m.Next(); ok; to, b, ok = c.m.Next() {
		if err := c.send(to, b); err != nil {
			c.unreachable(to, err)
		}
	}
	if due := c.m.Deadline(); due != cm.Never {
		c.timer.Reset(max(due-clock(), 0))
	}
}

// send sends a datagram to QP 1 of a peer. Only errors that say that there is
// no way to the peer are returned: any other is a loss.
func (c *control) send(to netip.Addr, mad []byte) error {
	b := c.pkt[:]
	wire.BTH(b).Put(wire.OpUDSendOnly, 0, 0, wire.GSIQP, c.psn)
	c.psn = c.psn.Next()
	wire.DETH(b[wire.BTHLen:]).Put(wire.GSIQKey, wire.GSIQP)
	copy(b[wire.BTHLen+wire.DETHLen:], mad)
	peer := netip.AddrPortFrom(to, c.dev.opts().Port)
	icrc.NewFlow(c.socks.source, peer).Seal(b, 0)
	var err error
	for range 2 { // the first may fail for what ICMP said of an earlier one
		if err = unix.Sendto(c.socks.tx, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, sockaddr(peer, c.dev.zone)); err == nil {
			return nil
		}
	}
	switch errno(err) {
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EPERM, unix.EINVAL, unix.EADDRNOTAVAIL:
		return fmt.Errorf("%w: %v: %w", fabric.ErrUnreachable, to, os.NewSyscallError("sendto", err))
	}
	return nil
}

// event handles what happened to a connection; mu is held.
func (c *control) event(e cm.Event) {
	if e.Kind == cm.Requested {
		c.requested(e.Conn)
		return
	}
	switch u := e.Conn.User.(type) {
	case *request:
		u.gone() // given up before it was accepted
	case *conn:
		c.connEvent(u, e)
	}
}

func (c *control) connEvent(d *conn, e cm.Event) {
	switch e.Kind {
	case cm.Replied:
		if err := d.replied(); err != nil {
			d.cm.Reject(fabric.RejectConsumer, nil)
			c.answer(d, err)
			return
		}
		d.cm.Ready()
		c.answer(d, nil)
	case cm.Established:
		c.answer(d, nil)
	case cm.Rejected, cm.Failed:
		if c.answer(d, e.Err) {
			return // whoever waits for the handshake ends the conn, or tries again
		}
		d.end(e.Err)
	case cm.Disconnected:
		d.cm.User = nil
		d.ended()
	case cm.Finished:
		d.cm.User = nil
	}
}

// requested gives a request to its listener.
func (c *control) requested(r *cm.Conn) {
	l := c.dev.p.listener(netip.AddrPortFrom(c.dev.addr, r.Port))
	switch {
	case l == nil:
		r.Reject(fabric.RejectBadServiceID, nil)
	case !l.offer(&request{l: l, dev: c.dev, cm: r}):
		r.Reject(fabric.RejectNoResources, nil)
	}
}
