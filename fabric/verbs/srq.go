//go:build linux && cgo && !nordma

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// sharedReceiveQueue implements fabric.SharedReceiveQueue.
type sharedReceiveQueue struct {
	d     *device
	srq   *C.struct_ibv_srq // the owner's; nil when closed
	queue *C.struct_vb_queue
	users int   // QPs; guarded by d.p.mu
	full  error // what PostRecv says then
}

func (d *device) NewSharedReceiveQueue(depth, maxSGE int) (fabric.SharedReceiveQueue, error) {
	const op = "make an SRQ"
	lim := d.info.Limits
	if lim.MaxSRQ == 0 {
		return nil, d.opError(op, fabric.ErrNotSupported)
	}
	maxSGE = max(maxSGE, 1)
	if depth <= 0 || depth > lim.MaxSRQDepth || maxSGE > lim.MaxSGE {
		return nil, d.opError(op, fmt.Errorf("%w: depth %d (1 to %d), %d SGEs (at most %d)", fabric.ErrInvalid, depth, lim.MaxSRQDepth, maxSGE, lim.MaxSGE))
	}
	if err := d.begin(&d.counts.SRQs); err != nil {
		return nil, d.opError(op, err)
	}
	s := &sharedReceiveQueue{d: d, full: d.opError("post receive to SRQ", fabric.ErrQueueFull)}
	if err := s.create(depth, maxSGE); err != nil {
		d.end(&d.counts.SRQs)
		return nil, d.opError(op, err)
	}
	return s, nil
}

func (s *sharedReceiveQueue) create(depth, maxSGE int) (err error) {
	if s.queue, err = C.vb_new_queue(C.uint32_t(depth), C.uint32_t(maxSGE), 1); s.queue == nil {
		return lastErrno(err)
	}
	if s.srq, err = C.vb_create_srq(s.d.pd, C.uint32_t(depth), C.uint32_t(maxSGE)); s.srq == nil {
		C.vb_unref(s.queue)
		return lastErrno(err)
	}
	return nil
}

func (s *sharedReceiveQueue) PostRecv(wrs []fabric.RecvWR, sges []fabric.SGE) (int, error) {
	if s.srq == nil {
		return 0, s.d.opError("post receive to SRQ", errClosed)
	}
	if len(wrs) == 0 {
		return 0, nil
	}
	r := int64(C.vb_post_srq(s.srq, s.queue, (*C.struct_vb_recv_wr)(unsafe.Pointer(&wrs[0])), C.uint32_t(len(wrs)), sgePointer(sges), C.uint32_t(len(sges))))
	n, e := int(uint32(r)), int(r>>32)
	if e == 0 {
		return n, nil
	}
	if e == queueFull {
		return n, s.full
	}
	return n, s.d.opError("post receive to SRQ", errno(e))
}

func (s *sharedReceiveQueue) Close() error {
	if s.srq == nil {
		return nil
	}
	s.d.p.mu.Lock()
	users := s.users
	s.d.p.mu.Unlock()
	if users > 0 {
		return s.d.opError("close an SRQ", fmt.Errorf("%w: %d QPs use it", fabric.ErrBusy, users))
	}
	if e := C.vb_destroy_srq(s.srq); e != 0 {
		return s.d.opError("close an SRQ", errno(int(e)))
	}
	s.srq = nil
	C.vb_kill(s.queue)
	C.vb_unref(s.queue)
	s.d.end(&s.d.counts.SRQs)
	return nil
}
