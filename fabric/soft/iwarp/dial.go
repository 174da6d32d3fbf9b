package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/mpa"
)

// Dial connects to remote.
func (d *device) Dial(ctx context.Context, local, remote netip.AddrPort, cfg fabric.ConnConfig) (fabric.Conn, error) {
	c, err := d.dial(ctx, local, remote, &cfg)
	if err != nil {
		return nil, d.opError("dial", err)
	}
	return c, nil
}

func (d *device) dial(ctx context.Context, local, remote netip.AddrPort, cfg *fabric.ConnConfig) (*conn, error) {
	from, to, err := d.endpoints(local, remote)
	if err := errors.Join(ctx.Err(), err, d.Fault()); err != nil {
		return nil, err
	}
	c, err := newConn(d, cfg)
	if err != nil {
		return nil, err
	}
	if err := c.connect(ctx, from, to, cfg); err != nil {
		c.abandon(d.opError("dial", err))
		return nil, err
	}
	return c, nil
}

// endpoints are the addresses for TCP. A local one that is not given is the
// device's.
func (d *device) endpoints(local, remote netip.AddrPort) (from, to *net.TCPAddr, err error) {
	src, dst := local.Addr().Unmap().WithZone(""), remote.Addr().Unmap()
	if !local.Addr().IsValid() || src.IsUnspecified() {
		src = d.addr
	}
	switch {
	case src != d.addr:
		return nil, nil, fmt.Errorf("%w: %v", fabric.ErrAddrNotAvailable, local.Addr())
	case !remote.Addr().IsValid() || dst.Is4() != src.Is4():
		return nil, nil, fmt.Errorf("%w: %v from %v", fabric.ErrUnreachable, remote.Addr(), src)
	}
	if dst.IsLinkLocalUnicast() && dst.Is6() && dst.Zone() == "" {
		dst = dst.WithZone(d.zone)
	}
	from = net.TCPAddrFromAddrPort(netip.AddrPortFrom(src.WithZone(d.zone), local.Port()))
	return from, net.TCPAddrFromAddrPort(netip.AddrPortFrom(dst, remote.Port())), nil
}

// connect runs the active side of the set-up: TCP, Request, Reply.
func (c *conn) connect(ctx context.Context, from, to *net.TCPAddr, cfg *fabric.ConnConfig) error {
	o := c.dev.opts()
	dialer := net.Dialer{LocalAddr: from, KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) error {
		// Of an address alone, ports are chosen when it is known where to.
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1) })
		return o.early(raw)
	}}
	dialer.SetMultipathTCP(false)
	nc, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return setupError(err)
	}
	tcp := nc.(*net.TCPConn)
	if err := c.introduce(ctx, tcp, cfg); err != nil {
		tcp.Close()
		return err
	}
	return nil
}

// introduce exchanges Request and Reply, and starts the QP.
func (c *conn) introduce(ctx context.Context, tcp *net.TCPConn, cfg *fabric.ConnConfig) error {
	o := c.dev.opts()
	c.Local, c.Remote = addrPort(tcp.LocalAddr()), addrPort(tcp.RemoteAddr())
	req, reply := o.request(cfg), mpa.Frame{}
	err := bounded(ctx, tcp, o.ReplyTimeout, func() error {
		if _, err := tcp.Write(req.Append(nil, false)); err != nil {
			return err
		}
		return readFrame(tcp, &reply, true)
	})
	if err != nil {
		return err
	}
	n, err := o.accepted(&req, &reply)
	if err != nil {
		var r *refusal
		if errors.As(err, &r) {
			_, _ = tcp.Write(terminateFPDU(r.cause)) // the connection ends anyway
		}
		return err
	}
	c.Private = reply.Private
	return c.start(tcp, n, cfg.TrafficClass)
}
