//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/fabric"
)

// listener implements fabric.Listener.
type listener struct {
	// Constant.
	p     *provider
	m     *cmChannel
	id    cmID
	addr  netip.AddrPort
	queue chan *request
	done  chan struct{}

	mu      sync.Mutex       // guards the following, and sends to queue
	devices map[*device]bool // a reference of each
	err     error            // why it ended; nil while it listens
}

const defaultBacklog = 128

func (p *provider) Listen(_ context.Context, addr netip.AddrPort, cfg fabric.ListenConfig) (fabric.Listener, error) {
	l, err := p.listen(addr, cfg)
	if err != nil {
		return nil, &fabric.OpError{Op: fmt.Sprintf("listen on %v", addr), Err: err}
	}
	return l, nil
}

func (p *provider) listen(addr netip.AddrPort, cfg fabric.ListenConfig) (*listener, error) {
	if cfg.Backlog <= 0 {
		cfg.Backlog = defaultBacklog
	}
	sa, err := encodeAddr(addr)
	if err != nil {
		return nil, err
	}
	m, err := p.channel()
	if errors.Is(err, fabric.ErrNoDevice) {
		return nil, fmt.Errorf("%w: %w", fabric.ErrAddrNotAvailable, err)
	} else if err != nil {
		return nil, err
	}
	l := &listener{p: p, m: m, queue: make(chan *request, cfg.Backlog), done: make(chan struct{}), devices: map[*device]bool{}}
	if l.id, err = m.newID(l); err != nil {
		return nil, err
	}
	if err := l.bind(addr, sa, cfg.Backlog); err != nil {
		l.id.destroy()
		l.releaseDevices()
		return nil, err
	}
	p.mu.Lock()
	p.listeners[l] = true
	p.mu.Unlock()
	return l, nil
}

// bind fixes the port and the device, for an address that is of one, and
// listens.
func (l *listener) bind(addr netip.AddrPort, sa sockaddr, backlog int) error {
	if e := C.vb_cm_bind(l.id.id, unsafe.Pointer(&sa)); e != 0 {
		return l.p.bindError(addr.Addr(), int(e))
	}
	if ctx := l.id.id.verbs; ctx != nil {
		d, err := l.p.deviceOf(ctx)
		if err != nil {
			return err
		}
		l.devices[d] = true
	}
	bound, _ := l.id.addrs()
	l.addr = netip.AddrPortFrom(addr.Addr(), bound.Port())
	if e := C.vb_cm_listen(l.id.id, C.int(backlog)); e != 0 {
		return l.p.bindError(addr.Addr(), int(e))
	}
	return nil
}

// bindError says which addresses there are when this one is not among them.
func (p *provider) bindError(addr netip.Addr, e int) error {
	switch unix.Errno(-e) {
	case unix.ENODEV, unix.EADDRNOTAVAIL:
		infos, err := p.Devices()
		if err != nil {
			return fmt.Errorf("%w: %w", fabric.ErrAddrNotAvailable, err)
		}
		return fmt.Errorf("%w: no RDMA device has address %v (%s)", fabric.ErrAddrNotAvailable, addr, describeAll(infos))
	case unix.EADDRINUSE:
		return fmt.Errorf("%w (another program, the kernel's target, or a listener of this one)", fabric.ErrAddrInUse)
	}
	return errno(e)
}

func (l *listener) Addr() netip.AddrPort { return l.addr }

// handleCM runs in the CM's goroutine.
func (l *listener) handleCM(ev cmEvent) {
	switch ev.kind {
	case C.RDMA_CM_EVENT_CONNECT_REQUEST:
		l.requested(ev)
	case C.RDMA_CM_EVENT_ADDR_CHANGE:
		for _, d := range l.held() {
			d.emit(fabric.EventAddrChange, 0)
		}
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		for _, d := range l.held() {
			d.removed(fabric.EventDeviceRemoved)
		}
		l.end(errDeviceRemoved)
	}
}

func (l *listener) held() (ds []*device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := range l.devices {
		ds = append(ds, d)
	}
	return ds
}

// requested queues a request, or refuses it: the backlog is full, the device
// cannot be opened, or the listener has ended.
func (l *listener) requested(ev cmEvent) {
	d, err := l.p.deviceOf(ev.id.verbs)
	if err != nil {
		C.vb_cm_reject(ev.id, nil, 0)
		C.vb_cm_destroy(ev.id)
		return
	}
	r := newRequest(d, l.m, ev)
	if !l.enqueue(r) {
		r.refuse()
	}
}

func (l *listener) enqueue(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false
	}
	l.holdLocked(r.c.d)
	select {
	case l.queue <- r:
		return true
	default:
		return false
	}
}

// holdLocked keeps a device open as long as the listener.
func (l *listener) holdLocked(d *device) {
	if l.devices[d] {
		return
	}
	l.devices[d] = true
	d.change(&d.refs, +1)
}

// drop gives up a device that is gone.
func (l *listener) drop(d *device) {
	l.mu.Lock()
	held := l.devices[d]
	delete(l.devices, d)
	l.mu.Unlock()
	if held {
		d.release()
	}
}

func (l *listener) Accept(ctx context.Context) (fabric.Request, error) {
	for {
		if ctx.Err() != nil {
			return nil, l.opError("accept", ctxError(ctx))
		}
		select {
		case r := <-l.queue:
			if l.ended() != nil || r.c.left.Load() {
				r.refuse() // the peer has given up, or the listener
				continue
			}
			return r, nil
		case <-l.done:
			return nil, l.opError("accept", l.ended())
		case <-ctx.Done():
			return nil, l.opError("accept", ctxError(ctx))
		}
	}
}

func (l *listener) opError(op string, err error) error {
	return &fabric.OpError{Op: fmt.Sprintf("%s on %v", op, l.addr), Err: err}
}

func (l *listener) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// end makes Accept fail with err. Only the first counts.
func (l *listener) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.done)
	}
}

// Close also ends a listener whose device was removed.
func (l *listener) Close() error {
	l.end(errClosed)
	l.mu.Lock()
	devices := l.devices
	l.devices = nil
	l.mu.Unlock()
	if devices == nil {
		return nil
	}
	l.id.destroy()
	l.refuseQueued()
	for d := range devices {
		d.release()
	}
	l.p.mu.Lock()
	delete(l.p.listeners, l)
	l.p.mu.Unlock()
	return nil
}

func (l *listener) refuseQueued() {
	for {
		select {
		case r := <-l.queue:
			r.refuse()
		default:
			return
		}
	}
}

func (l *listener) releaseDevices() {
	for d := range l.devices {
		d.release()
	}
}

// request implements fabric.Request. Its conn takes the events of the id.
type request struct {
	c             *conn
	private       []byte
	local, remote netip.AddrPort
	ord, ird      int // the peer's
	taken         atomic.Bool
}

// newRequest takes the device's reference over.
func newRequest(d *device, m *cmChannel, ev cmEvent) *request {
	c := newConn(d)
	c.holdsDevice = true
	c.id = m.adopt(ev.id, c)
	r := &request{c: c, private: ev.private, ord: ev.peerORD, ird: ev.peerIRD}
	r.local, r.remote = c.addrs()
	return r
}

func (r *request) Device() fabric.Device      { return r.c.d }
func (r *request) PrivateData() []byte        { return r.private }
func (r *request) LocalAddr() netip.AddrPort  { return r.local }
func (r *request) RemoteAddr() netip.AddrPort { return r.remote }
func (r *request) PeerORD() int               { return r.ord }
func (r *request) PeerIRD() int               { return r.ird }

func (r *request) opError(op string, err error) error {
	return r.c.d.opError(fmt.Sprintf("%s %v", op, r.remote), err)
}

var errTaken = fmt.Errorf("%w: the request was accepted or rejected before", fabric.ErrInvalid)

func (r *request) Accept(ctx context.Context, cfg fabric.ConnConfig) (fabric.Conn, error) {
	if !r.taken.CompareAndSwap(false, true) {
		return nil, r.opError("accept", errTaken)
	}
	if err := r.accept(ctx, cfg); err != nil {
		r.c.abandon(err)
		return nil, r.opError("accept", err)
	}
	return r.c, nil
}

func (r *request) accept(ctx context.Context, cfg fabric.ConnConfig) error {
	c := r.c
	err := c.configure(cfg, maxReplyPrivate)
	if err == nil {
		err = c.makeQP()
	}
	if err != nil {
		C.vb_cm_reject(c.id.id, nil, 0) // at once, rather than by the peer's timer
		return err
	}
	ord, ird := min(c.cfg.ORD, r.ird), min(c.cfg.IRD, r.ord)
	p := c.connParam(ord, ird)
	b := c.cfg.PrivateData
	if e := C.vb_cm_accept(c.id.id, &p, privatePointer(b), C.uint8_t(len(b))); e != 0 {
		return fmt.Errorf("accept: %w", errno(int(e)))
	}
	C.vb_qp_rnr_timer(c.qp.qp, rnrTimer)
	if _, err := c.await(ctx, C.RDMA_CM_EVENT_ESTABLISHED); err != nil {
		return err
	}
	c.establish(ord, ird)
	return nil
}

func (r *request) Reject(private []byte) error {
	if len(private) > maxRejectPrivate {
		return r.opError("reject", fmt.Errorf("%w: %d bytes of private data (at most %d)", fabric.ErrInvalid, len(private), maxRejectPrivate))
	}
	if !r.taken.CompareAndSwap(false, true) {
		return r.opError("reject", errTaken)
	}
	e := C.vb_cm_reject(r.c.id.id, privatePointer(private), C.uint8_t(len(private)))
	_ = r.c.Close()
	if e != 0 {
		return r.opError("reject", errno(int(e)))
	}
	return nil
}

// refuse rejects a request that never reached the listener's owner.
func (r *request) refuse() { _ = r.Reject(nil) }
