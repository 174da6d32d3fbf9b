//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// conn implements fabric.Conn. It exists from the first word of a connection
// on: before it is returned by Dial or Accept its goroutine is there, after
// that the owner's.
//
//	Dial:   new -> address -> route -> QP, Setup -> connect -> established
//	Accept: requested --------------> QP, Setup -> accept  -> established
//	any of them -> left (once, in leave) -> closed (in Close)
type conn struct {
	// Constant once Dial or Accept has returned it.
	d             *device
	holdsDevice   bool // an accepted one has a reference of the device
	cfg           fabric.ConnConfig
	local, remote netip.AddrPort
	ord, ird      int
	private       []byte

	steps chan cmEvent // from the CM's goroutine: how far the handshake is

	left     atomic.Bool // says leave ran, or runs
	done     chan struct{}
	err      error         // why it left; written before done is closed
	notified chan struct{} // closed when Closed has returned

	mu     sync.Mutex // guards the following: the id and the QP are in use
	id     cmID
	qp     *queuePair // nil before it is made
	setUp  bool       // Setup succeeded: Closed is owed
	ended  bool       // err is set
	told   bool       // Closed was called
	closed bool
}

func newConn(d *device) *conn {
	// The handshake has three answers at most and each is awaited.
	return &conn{d: d, steps: make(chan cmEvent, 4), done: make(chan struct{}), notified: make(chan struct{})}
}

// handleCM runs in the CM's goroutine.
func (c *conn) handleCM(ev cmEvent) {
	switch ev.kind {
	case C.RDMA_CM_EVENT_ADDR_CHANGE:
		c.d.emit(fabric.EventAddrChange, 0)
		return
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		c.d.removed(fabric.EventDeviceRemoved)
	}
	if err := ev.err(); err != nil && !ev.retry() {
		c.leave(err)
		return
	}
	select {
	case c.steps <- ev:
	default: // a duplicate that nobody waits for
	}
}

// await waits for an answer of those kinds; anything else in between is a
// duplicate. An answer counts even when the end came right behind it.
func (c *conn) await(ctx context.Context, kinds ...int) (cmEvent, error) {
	for {
		if ctx.Err() != nil {
			return cmEvent{}, ctxError(ctx)
		}
		select {
		case ev := <-c.steps:
			if slices.Contains(kinds, ev.kind) {
				return ev, nil
			}
		case <-c.done:
			if len(c.steps) == 0 {
				return cmEvent{}, c.err
			}
		case <-ctx.Done():
			return cmEvent{}, ctxError(ctx)
		}
	}
}

// leave ends the connected state, or the handshake: the QP goes to the error
// state, the peer is told, and so is the owner. Only the first call does
// anything.
func (c *conn) leave(cause error) {
	if !c.left.CompareAndSwap(false, true) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && c.qp != nil {
		c.shutdownLocked()
	}
	c.err, c.ended = cause, true
	close(c.done)
	c.tellLocked()
}

// shutdownLocked flushes the QP and tells the peer. On iWARP the order is the
// other way: an orderly close of the stream needs a QP that is not in error.
// Failures mean that the device or the peer was faster.
func (c *conn) shutdownLocked() {
	c.qp.mode.Store(modeLeft)
	if c.d.info.Transport == fabric.TransportIWARP {
		C.vb_cm_disconnect(c.id.id)
		C.vb_qp_error(c.qp.qp)
		return
	}
	C.vb_qp_error(c.qp.qp)
	C.vb_cm_disconnect(c.id.id)
}

// tellLocked calls Closed once, if Setup and leave have both happened.
func (c *conn) tellLocked() {
	if !c.setUp || c.told || !c.ended {
		return
	}
	c.told = true
	if c.cfg.Closed == nil {
		close(c.notified)
		return
	}
	go func() {
		defer close(c.notified)
		c.cfg.Closed(c.err)
	}()
}

// failed is called by a Poll that met a completion of that status.
func (c *conn) failed(s fabric.Status) {
	if !c.left.Load() {
		go c.leave(c.cause(s))
	}
}

// cause is why a QP has failed that nobody took to the error state. A flush
// alone has its cause at the peer: on iWARP the end of the stream, else a
// request that this end refused.
func (c *conn) cause(s fabric.Status) error {
	switch {
	case s == fabric.StatusFlushed && c.qp.iwarp:
		return errPeerClosed
	case s == fabric.StatusFlushed:
		return c.qp.opError("connection", fmt.Errorf("%w: a request of the peer was refused", fabric.ErrQPError))
	}
	return c.qp.opError("connection", fmt.Errorf("%w: %v", fabric.ErrQPError, s))
}

// communicationEstablished: data came before the peer's RTU.
func (c *conn) communicationEstablished() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		C.vb_cm_established(c.id.id)
	}
}

// configure checks cfg and takes it over.
func (c *conn) configure(cfg fabric.ConnConfig, maxPrivate int) error {
	if err := c.d.checkConfig(&cfg); err != nil {
		return err
	}
	if n := len(cfg.PrivateData); n > maxPrivate {
		return fmt.Errorf("%w: %d bytes of private data (at most %d)", fabric.ErrInvalid, n, maxPrivate)
	}
	c.cfg = cfg
	return nil
}

// checkConfig fills in defaults and clips what may be clipped.
func (d *device) checkConfig(cfg *fabric.ConnConfig) error {
	lim := &d.info.Limits
	if least := min(cfg.SendDepth, cfg.RecvDepth, cfg.MaxSendSGE, cfg.MaxRecvSGE); least < 0 {
		return fmt.Errorf("%w: a depth or number of SGEs of %d", fabric.ErrInvalid, least)
	}
	cfg.SendDepth, cfg.RecvDepth = max(cfg.SendDepth, 1), max(cfg.RecvDepth, 1)
	cfg.MaxSendSGE, cfg.MaxRecvSGE = max(cfg.MaxSendSGE, 1), max(cfg.MaxRecvSGE, 1)
	cfg.MaxInline = min(max(cfg.MaxInline, 0), lim.MaxInline)
	cfg.ORD, cfg.IRD = min(max(cfg.ORD, 0), lim.MaxORD), min(max(cfg.IRD, 0), lim.MaxIRD)
	if !d.hasCQ(cfg.SendCQ) || !d.hasCQ(cfg.RecvCQ) {
		return fmt.Errorf("%w: SendCQ or RecvCQ is not an open CQ of this device", fabric.ErrInvalid)
	}
	if srq, ok := cfg.SRQ.(*sharedReceiveQueue); cfg.SRQ != nil && (!ok || srq.d != d || srq.srq == nil) {
		return fmt.Errorf("%w: SRQ is not an open SRQ of this device", fabric.ErrInvalid)
	}
	if most := max(cfg.SendDepth, cfg.RecvDepth); most > lim.MaxQPDepth {
		return fmt.Errorf("%w: a depth of %d WRs (at most %d)", fabric.ErrInvalid, most, lim.MaxQPDepth)
	}
	if most := max(cfg.MaxSendSGE, cfg.MaxRecvSGE); most > lim.MaxSGE {
		return fmt.Errorf("%w: %d SGEs (at most %d)", fabric.ErrInvalid, most, lim.MaxSGE)
	}
	if cfg.RetryCount > 7 || cfg.RNRRetry > 7 {
		return fmt.Errorf("%w: retry counts %d and %d (at most 7)", fabric.ErrInvalid, cfg.RetryCount, cfg.RNRRetry)
	}
	return nil
}

func (d *device) hasCQ(cq fabric.CompletionQueue) bool {
	q, ok := cq.(*completionQueue)
	return ok && q.d == d && q.cq != nil
}

// makeQP makes the QP, in INIT, and gives it to Setup.
func (c *conn) makeQP() error {
	if err := c.d.begin(&c.d.counts.QPs); err != nil {
		return err
	}
	c.use(+1)
	if err := c.createQP(); err != nil {
		c.use(-1)
		c.d.end(&c.d.counts.QPs)
		return err
	}
	if c.cfg.Setup != nil {
		if err := c.cfg.Setup(c.qp); err != nil {
			return fmt.Errorf("set up: %w", err)
		}
	}
	c.qp.open()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setUp = true
	c.tellLocked()
	return nil
}

// attributes are what the QP is made with.
func (c *conn) attributes() C.struct_vb_qp_attr {
	a := C.struct_vb_qp_attr{
		pd:         c.d.pd,
		send_cq:    c.cfg.SendCQ.(*completionQueue).cq,
		recv_cq:    c.cfg.RecvCQ.(*completionQueue).cq,
		send_depth: C.uint32_t(c.cfg.SendDepth),
		send_sge:   C.uint32_t(c.cfg.MaxSendSGE),
		max_inline: C.uint32_t(c.cfg.MaxInline),
	}
	if c.cfg.SRQ != nil {
		a.srq = c.cfg.SRQ.(*sharedReceiveQueue).srq
	} else {
		a.recv_depth, a.recv_sge = C.uint32_t(c.cfg.RecvDepth), C.uint32_t(c.cfg.MaxRecvSGE)
	}
	return a
}

func (c *conn) createQP() error {
	a := c.attributes()
	q, err := newQueuePair(c)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left.Load() {
		q.freeQueues()
		return errors.New("the connection attempt has ended")
	}
	qp, err := C.vb_cm_create_qp(c.id.id, &a)
	if qp == nil {
		q.freeQueues()
		return fmt.Errorf("make a QP of %d sends and %d receives: %w", c.cfg.SendDepth, c.cfg.RecvDepth, lastErrno(err))
	}
	q.made(qp, int(a.max_inline))
	c.qp = q
	c.d.mu.Lock()
	c.d.conns[q.num] = c
	c.d.mu.Unlock()
	return nil
}

// use books the QP in or out of its queues, which cannot be closed meanwhile.
func (c *conn) use(n int) {
	c.d.p.mu.Lock()
	defer c.d.p.mu.Unlock()
	c.cfg.SendCQ.(*completionQueue).users += n
	c.cfg.RecvCQ.(*completionQueue).users += n
	if c.cfg.SRQ != nil {
		c.cfg.SRQ.(*sharedReceiveQueue).users += n
	}
}

// rnrTimer is what a peer waits that met no receive: 0.64 ms. The CM's own
// choice is 655 ms.
const rnrTimer = 12

// connParam is what the CM tells the peer of reads and retries.
func (c *conn) connParam(ord, ird int) C.struct_rdma_conn_param {
	return C.struct_rdma_conn_param{
		responder_resources: C.uint8_t(ird),
		initiator_depth:     C.uint8_t(ord),
		flow_control:        1,
		retry_count:         C.uint8_t(c.cfg.RetryCount),
		rnr_retry_count:     C.uint8_t(c.cfg.RNRRetry),
	}
}

func privatePointer(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// establish ends a handshake that succeeded.
func (c *conn) establish(ord, ird int) {
	c.ord, c.ird = ord, ird
	if ord == 0 {
		c.qp.forbidReads()
	}
	c.local, c.remote = c.addrs()
}

// addrs are both ends' addresses. The CM gives those of a request without
// their scope: link-local ones get the zone of the device's own.
func (c *conn) addrs() (local, remote netip.AddrPort) {
	local, remote = c.id.addrs()
	if !local.Addr().IsLinkLocalUnicast() || local.Addr().Is4() || local.Addr().Zone() != "" {
		return local, remote
	}
	for _, own := range c.d.Info().Addrs {
		if own.WithZone("") == local.Addr() {
			return netip.AddrPortFrom(own, local.Port()), netip.AddrPortFrom(remote.Addr().WithZone(own.Zone()), remote.Port())
		}
	}
	return local, remote
}

// abandon ends a handshake that failed for err: the owner hears of it if Setup
// was called, then everything goes.
func (c *conn) abandon(err error) {
	c.leave(err)
	c.mu.Lock()
	told := c.told
	c.mu.Unlock()
	if told {
		<-c.notified
	}
	_ = c.Close()
}

func (c *conn) Device() fabric.Device       { return c.d }
func (c *conn) QueuePair() fabric.QueuePair { return c.qp }
func (c *conn) PrivateData() []byte         { return c.private }
func (c *conn) LocalAddr() netip.AddrPort   { return c.local }
func (c *conn) RemoteAddr() netip.AddrPort  { return c.remote }
func (c *conn) ORD() int                    { return c.ord }
func (c *conn) IRD() int                    { return c.ird }
func (c *conn) Done() <-chan struct{}       { return c.done }

func (c *conn) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

func (c *conn) Disconnect() error {
	c.leave(errDisconnected)
	return nil
}

// Close destroys the id before the QP: the CM's goroutine may be moving the QP
// for an answer that just came, and destroying the id waits for that.
func (c *conn) Close() error {
	c.leave(errDisconnected)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.id.destroy()
	var err error
	if c.qp != nil {
		err = c.destroyQP()
	}
	if c.holdsDevice {
		c.d.release()
	}
	return err
}

func (c *conn) destroyQP() error {
	c.d.mu.Lock()
	delete(c.d.conns, c.qp.num)
	c.d.mu.Unlock()
	err := c.qp.close()
	c.use(-1)
	c.d.end(&c.d.counts.QPs)
	return err
}
