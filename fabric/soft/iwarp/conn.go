package iwarp

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/core"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
	"github.com/nvmf-go/nvmf/fabric/soft/rdmap"
)

// maxPrivate is the private data of a Request or Reply beside IRD and ORD.
const maxPrivate = mpa.MaxPrivate - 4

// conn is one end of a connection; it implements fabric.Conn.
type conn struct {
	core.Conn
	dev *device
	qp  *queuePair
	ref bool // a reference to dev is held

	closing atomic.Bool
}

// newConn makes an end with its QP and has it set up.
func newConn(d *device, cfg *fabric.ConnConfig) (*conn, error) {
	if n := len(cfg.PrivateData); n > maxPrivate {
		return nil, fmt.Errorf("%w: %d bytes of private data, %d fit", fabric.ErrInvalid, n, maxPrivate)
	}
	c := &conn{dev: d}
	c.Init(cfg.Closed)
	qp, err := newQP(d, c, cfg)
	if err != nil {
		return nil, err
	}
	c.qp = qp
	if cfg.Setup != nil {
		if err := cfg.Setup(qp); err != nil {
			qp.Abandon()
			return nil, d.opError("set up connection", err)
		}
	}
	return c, nil
}

// Device is the device.
func (c *conn) Device() fabric.Device { return c.dev }

// QueuePair is the QP.
func (c *conn) QueuePair() fabric.QueuePair { return c.qp }

// largeULPDU is for peers that take FPDUs of any length.
const largeULPDU = mpa.TaggedLen + 60<<10

// ulpdu is the longest ULPDU to send.
func (o *Options) ulpdu(fd int, large bool) int {
	switch {
	case o.MaxFPDU != 0:
		return mpa.ULPDUFor(o.MaxFPDU)
	case large:
		return largeULPDU
	}
	return mpa.ULPDUFor(max(segmentSize(fd), minFPDU))
}

// start makes the QP ready on its socket, and gives both to the engine.
func (c *conn) start(tcp *net.TCPConn, n *negotiated, class uint8) error {
	fd, err := detach(tcp)
	if err != nil {
		return err
	}
	o := c.dev.opts()
	if err := o.tune(fd, c.Local.Addr().Is6(), o.trafficClass(class)); err != nil {
		unix.Close(fd)
		return err
	}
	c.Outbound, c.Inbound = n.ord, n.ird
	q := c.qp
	q.Start(rdmap.Config{
		ORD: n.ord, IRD: n.ird, CRC: n.crc, ULPDU: o.ulpdu(fd, n.large), Passive: n.passive, RTR: n.rtr,
		Pool: &q.e.pool, Stats: &q.e.stats,
	})
	if !q.States().Connect() {
		unix.Close(fd)
		return fmt.Errorf("%w: it failed during the handshake", fabric.ErrQPError)
	}
	q.e.do(func() { q.e.adopt(q, fd) })
	return nil
}

// abandon ends a conn whose handshake failed.
func (c *conn) abandon(err error) {
	c.qp.Abandon()
	c.Finish(err)
	c.release()
}

func (c *conn) release() {
	if c.ref {
		c.dev.Release()
	}
}

// broke is called by the owner when the QP has failed.
func (c *conn) broke(err error) {
	if c.Err() == nil {
		c.end(err)
	}
}

// end takes the QP to the error state and ends the connection with err; the
// owner flushes, and tells the peer, in its next Poll.
func (c *conn) end(err error) {
	c.qp.States().Set(fabric.QPError)
	if c.Finish(err) {
		c.qp.e.do(func() {
			if !c.qp.Closed() {
				c.qp.e.activate(c.qp)
			}
		})
	}
}

// Disconnect ends the connection in order.
func (c *conn) Disconnect() error {
	c.end(c.disconnected())
	return nil
}

func (c *conn) disconnected() error {
	return &fabric.OpError{Op: "connection", Device: c.dev.Name(), QPN: c.qp.Num(),
		Err: fmt.Errorf("disconnected by this end: %w", net.ErrClosed)}
}

// Close destroys the QP.
func (c *conn) Close() error {
	if c.closing.Swap(true) {
		return nil
	}
	c.end(c.disconnected())
	c.qp.e.drop(c.qp)
	c.qp.Destroy()
	c.release()
	return nil
}

// addrPort is an address as this package shows it: without zone.
func addrPort(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}
