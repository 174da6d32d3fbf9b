//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// Private data that fits: a CM REQ has 92 bytes of which librdmacm takes 36, a
// REP 196 and a REJ 148 (IBTA vol 1, 12.6 and annex A11). iWARP would carry
// more in its requests; librdmacm counts them in one byte.
const (
	maxRequestPrivate      = 56
	maxRequestPrivateIWARP = 255
	maxReplyPrivate        = 196
	maxRejectPrivate       = 148
)

// resolveTimeout bounds the resolutions when the context has no deadline.
const resolveTimeout = 10 * time.Second

// The waits of the attempts at an address double from the first to the last.
const (
	firstAttempt = 100 * time.Millisecond
	lastAttempt  = 3 * time.Second
)

func (d *device) Dial(ctx context.Context, local, remote netip.AddrPort, cfg fabric.ConnConfig) (fabric.Conn, error) {
	c, err := d.dial(ctx, local, remote, cfg)
	if err != nil {
		return nil, d.opError(fmt.Sprintf("dial %v", remote), err)
	}
	return c, nil
}

func (d *device) dial(ctx context.Context, local, remote netip.AddrPort, cfg fabric.ConnConfig) (*conn, error) {
	c := newConn(d)
	maxPrivate := maxRequestPrivate
	if d.info.Transport == fabric.TransportIWARP {
		maxPrivate = maxRequestPrivateIWARP
	}
	if err := c.configure(cfg, maxPrivate); err != nil {
		return nil, err
	}
	m, err := d.p.channel()
	if err != nil {
		return nil, err
	}
	if c.id, err = m.newID(c); err != nil {
		return nil, err
	}
	if err := c.handshake(ctx, local, remote); err != nil {
		c.abandon(err)
		return nil, err
	}
	return c, nil
}

func (c *conn) handshake(ctx context.Context, local, remote netip.AddrPort) error {
	if c.cfg.TrafficClass != 0 {
		if e := C.vb_cm_set_tos(c.id.id, C.uint8_t(c.cfg.TrafficClass)); e != 0 {
			return fmt.Errorf("set the traffic class: %w", errno(int(e)))
		}
	}
	if err := c.resolve(ctx, local, remote); err != nil {
		return err
	}
	if err := c.makeQP(); err != nil {
		return err
	}
	return c.connect(ctx)
}

// resolve finds the peer's address and the route to it, which must be this
// device's.
func (c *conn) resolve(ctx context.Context, local, remote netip.AddrPort) error {
	dst, err := encodeAddr(remote)
	if err != nil {
		return err
	}
	src, psrc := sockaddr{}, unsafe.Pointer(nil)
	if local.Addr().IsValid() && !local.Addr().IsUnspecified() {
		if src, err = encodeAddr(local); err != nil {
			return err
		}
		psrc = unsafe.Pointer(&src)
	}
	end := resolveEnd(ctx)
	if err := c.resolveAddr(ctx, psrc, unsafe.Pointer(&dst), end); err != nil {
		return err
	}
	if other := c.id.id.verbs; other != c.d.ctx {
		return fmt.Errorf("%w: %v is reached through %s", fabric.ErrUnreachable, remote.Addr(), C.GoString(&other.device.name[0]))
	}
	if e := C.vb_cm_resolve_route(c.id.id, millis(time.Until(end))); e != 0 {
		return fmt.Errorf("resolve the route: %w", errno(int(e)))
	}
	_, err = c.await(ctx, C.RDMA_CM_EVENT_ROUTE_RESOLVED)
	return err
}

// resolveAddr has the kernel find the peer's link address, in attempts. The kernel
// asks the neighbor first and lists who waits for the answer then: an answer that
// was faster, as over a veth pair, is noticed at the end of the attempt.
func (c *conn) resolveAddr(ctx context.Context, src, dst unsafe.Pointer, end time.Time) error {
	for wait := firstAttempt; ; wait = min(2*wait, lastAttempt) {
		if e := C.vb_cm_resolve_addr(c.id.id, src, dst, millis(min(wait, time.Until(end)))); e != 0 {
			return fmt.Errorf("resolve the address: %w", errno(int(e)))
		}
		ev, err := c.await(ctx, C.RDMA_CM_EVENT_ADDR_RESOLVED, C.RDMA_CM_EVENT_ADDR_ERROR)
		if err != nil || ev.kind == C.RDMA_CM_EVENT_ADDR_RESOLVED {
			return err
		}
		if time.Until(end) <= 0 {
			return ev.err()
		}
	}
}

// resolveEnd is when a resolution has to be done.
func resolveEnd(ctx context.Context) time.Time {
	if t, ok := ctx.Deadline(); ok {
		return t
	}
	return time.Now().Add(resolveTimeout)
}

func millis(d time.Duration) C.int { return C.int(min(max(d.Milliseconds(), 1), 1<<30)) }

// connect sends the request. librdmacm brings the QP to RTS when the reply is
// there, then says established.
func (c *conn) connect(ctx context.Context) error {
	p := c.connParam(c.cfg.ORD, c.cfg.IRD)
	b := c.cfg.PrivateData
	if e := C.vb_cm_connect(c.id.id, &p, privatePointer(b), C.uint8_t(len(b))); e != 0 {
		return fmt.Errorf("connect: %w", errno(int(e)))
	}
	ev, err := c.await(ctx, C.RDMA_CM_EVENT_ESTABLISHED)
	if err != nil {
		return err
	}
	C.vb_qp_rnr_timer(c.qp.qp, rnrTimer)
	c.private = ev.private
	c.establish(min(c.cfg.ORD, ev.peerIRD), min(c.cfg.IRD, ev.peerORD))
	return nil
}
