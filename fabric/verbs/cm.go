//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// cmChannel is the provider's event channel: every id's events come through it
// and are handed to the id's handler by one goroutine.
type cmChannel struct {
	ch     *C.struct_rdma_event_channel // constant
	parked *parked                      // constant

	mu       sync.Mutex // guards the following
	handlers map[uint64]cmHandler
	token    uint64 // of the newest id
}

// cmHandler is what an id belongs to. handleCM is called by the channel's
// goroutine, must not block, and is not called for an id that is destroyed.
type cmHandler interface {
	handleCM(cmEvent)
}

// cmEvent is an event of the connection manager.
type cmEvent struct {
	kind    int // C.RDMA_CM_EVENT_*
	status  int // -errno, or the reject reason
	peerORD int // READs the peer wants to have outstanding
	peerIRD int // READs of ours it answers
	private []byte
	id      *C.struct_rdma_cm_id // of a connection request
}

func newChannel() (*cmChannel, error) {
	ch, err := C.vb_cm_channel()
	if ch == nil {
		return nil, cmError(channelErrno(err), cmDevice)
	}
	p, err := park(int(ch.fd), "rdma_cm events")
	if err != nil {
		C.vb_cm_destroy_channel(ch)
		return nil, err
	}
	m := &cmChannel{ch: ch, parked: p, handlers: map[uint64]cmHandler{}}
	go p.routine(m.drain)
	return m, nil
}

func channelErrno(err error) error {
	if err == nil {
		return syscall.EIO
	}
	return err
}

func (m *cmChannel) close() {
	m.parked.close()
	C.vb_cm_destroy_channel(m.ch)
}

// drain runs in the channel's routine.
func (m *cmChannel) drain() {
	var ev C.struct_vb_cm_event
	for C.vb_cm_next(m.ch, &ev) > 0 {
		m.deliver(uint64(ev.token), cmEvent{
			kind:    int(ev._type),
			status:  int(ev.status),
			peerORD: int(ev.responder_resources),
			peerIRD: int(ev.initiator_depth),
			private: C.GoBytes(unsafe.Pointer(&ev.private_data[0]), C.int(ev.private_len)),
			id:      ev.id,
		})
	}
}

// deliver drops events of ids that are gone; the id of a request that came
// after its listener's close is destroyed, which refuses it.
func (m *cmChannel) deliver(token uint64, ev cmEvent) {
	m.mu.Lock()
	h := m.handlers[token]
	m.mu.Unlock()
	if h != nil {
		h.handleCM(ev)
	} else if ev.kind == C.RDMA_CM_EVENT_CONNECT_REQUEST {
		C.vb_cm_destroy(ev.id)
	}
}

// cmID is an id of librdmacm with the token its events carry. Tokens are never
// used again, so that a late event does not meet another id.
type cmID struct {
	m     *cmChannel
	id    *C.struct_rdma_cm_id
	token uint64
}

func (m *cmChannel) register(h cmHandler) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.token++
	m.handlers[m.token] = h
	return m.token
}

func (m *cmChannel) forget(token uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.handlers, token)
}

// newID makes an id whose events go to h.
func (m *cmChannel) newID(h cmHandler) (cmID, error) {
	token := m.register(h)
	id, err := C.vb_cm_create(m.ch, C.uint64_t(token))
	if id == nil {
		m.forget(token)
		return cmID{}, lastErrno(err)
	}
	return cmID{m: m, id: id, token: token}, nil
}

// adopt gives the id of a request a handler of its own. Only the channel's
// goroutine may call it: the next event would still carry the listener's token.
func (m *cmChannel) adopt(id *C.struct_rdma_cm_id, h cmHandler) cmID {
	token := m.register(h)
	C.vb_cm_tag(id, C.uint64_t(token))
	return cmID{m: m, id: id, token: token}
}

// destroy ends the id. No event of it is being handled by librdmacm when it
// returns.
func (i cmID) destroy() {
	i.m.forget(i.token)
	C.vb_cm_destroy(i.id)
}

func (i cmID) addrs() (local, remote netip.AddrPort) {
	var src, dst sockaddr
	C.vb_cm_addrs(i.id, unsafe.Pointer(&src), unsafe.Pointer(&dst))
	return decodeAddr(src), decodeAddr(dst)
}

// err is the failure that the event tells of, nil when it tells of none.
func (ev *cmEvent) err() error {
	switch ev.kind {
	case C.RDMA_CM_EVENT_ADDR_ERROR:
		return unreachable("resolve the address", ev.status)
	case C.RDMA_CM_EVENT_ROUTE_ERROR:
		return unreachable("resolve the route", ev.status)
	case C.RDMA_CM_EVENT_UNREACHABLE:
		return unreachable("no answer to the connection request", ev.status)
	case C.RDMA_CM_EVENT_CONNECT_ERROR:
		return fmt.Errorf("connection set-up failed: %w", errno(orEIO(ev.status)))
	case C.RDMA_CM_EVENT_REJECTED:
		return ev.rejectError()
	case C.RDMA_CM_EVENT_DISCONNECTED:
		return errPeerClosed
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		return errDeviceRemoved
	}
	return nil
}

// retry says whether the failure is that of one attempt (conn.resolveAddr).
func (ev *cmEvent) retry() bool {
	return ev.kind == C.RDMA_CM_EVENT_ADDR_ERROR && -ev.status == int(syscall.ETIMEDOUT)
}

func orEIO(status int) int {
	if status == 0 {
		return int(syscall.EIO)
	}
	return status
}

// unreachable always wraps ErrUnreachable, and what the kernel said.
func unreachable(what string, status int) error {
	if status == 0 {
		return fmt.Errorf("%w: %s", fabric.ErrUnreachable, what)
	}
	if -status == int(syscall.ENODEV) {
		return fmt.Errorf("%w: %s: %w", fabric.ErrUnreachable, what, fabric.ErrNoDevice)
	}
	return fmt.Errorf("%w: %s: %w", fabric.ErrUnreachable, what, syscall.Errno(max(status, -status)))
}

// rejectError: InfiniBand's status is the reason itself; iWARP has an errno,
// and its consumer is the only one who refuses.
func (ev *cmEvent) rejectError() error {
	reason := fabric.RejectConsumer
	if ev.status > 0 {
		reason = fabric.RejectReason(ev.status)
	}
	return &fabric.RejectError{Reason: reason, Private: ev.private}
}
