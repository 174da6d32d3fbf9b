package rdma

import (
	"errors"
	"fmt"

	"github.com/nvmf-go/nvmf/fabric"
)

// srq is a shared receive queue of a group on a device. The group owns it.
type srq struct {
	dev    *groupDevice
	q      fabric.SharedReceiveQueue
	mem    *fabric.Memory
	region fabric.MemoryRegion
	recvs  recvArea
	idle   []int32 // receives to be posted at the end of the turn
	posted int
	held   int64 // taken from the budget
	begun  bool  // the first receives were posted
}

// newSRQ makes a shared receive queue with all of its receives to be posted.
// It belongs to the caller until a group attaches it.
func newSRQ(gd *groupDevice) (_ *srq, err error) {
	cfg := &gd.t.cfg
	n := cfg.SRQDepth
	if m := gd.limits.MaxSRQDepth; m > 0 {
		n = min(n, m)
	}
	s := &srq{dev: gd}
	if s.mem, s.region, s.held, err = gd.allocate(recvSize(n, cfg.InCapsule), fabric.AccessLocalWrite); err != nil {
		return nil, err
	}
	s.recvs = newRecvArea(s.mem.Bytes(), s.mem.Addr(), s.region.LKey(), n, cfg.InCapsule, gd.limits.MaxSGE)
	if s.q, err = gd.fdev.NewSharedReceiveQueue(n, s.recvs.sges); err != nil {
		return nil, errors.Join(fmt.Errorf("shared receive queue: %w", err), s.close())
	}
	s.idle = make([]int32, n)
	for i := range s.idle {
		s.idle[i] = int32(i)
	}
	return s, nil
}

func (s *srq) close() (err error) {
	if s.q != nil {
		err = s.q.Close()
	}
	return errors.Join(err, s.dev.free(s.mem, s.region, s.held))
}

// low says that receives are short: less than a quarter is posted.
func (s *srq) low() bool { return s.posted < s.recvs.n/4 }

// give takes a receive back, to be posted at the end of the turn.
func (s *srq) give(i int32) {
	if len(s.idle) == 0 {
		s.dev.group.srqs = append(s.dev.group.srqs, s)
	}
	s.idle = append(s.idle, i)
}

// flush posts the receives that were given back.
func (s *srq) flush() {
	b := &s.dev.group.batch
	b.reset()
	for _, i := range s.idle {
		s.recvs.append(b, uint64(i)<<kindBits|uint64(wrSharedRecv), i)
	}
	n, err := s.q.PostRecv(b.recvs, b.recvSGEs)
	s.posted += n
	s.idle = s.idle[:copy(s.idle, s.idle[n:])]
	if err != nil {
		s.dev.t.limit.warn("rdma: device %s: post shared receives: %v", s.dev.fdev.Name(), err)
	}
}

// sharedRecv takes a completed receive of the shared queue.
func (gd *groupDevice) sharedRecv(wc *fabric.Completion) {
	i := idShared(wc.ID)
	if gd.srq == nil || i >= gd.srq.recvs.n {
		gd.group.stats.Stale++
		return
	}
	gd.srq.posted--
	c := gd.qpns[wc.QPN]
	switch {
	case c == nil: // its connection is gone
		gd.srq.give(int32(i))
	case wc.Status != fabric.StatusSuccess:
		gd.srq.give(int32(i))
		c.brokenRecv(wc)
	default:
		c.arrived(capsule{int32(i), wc.ByteLen})
	}
}

// share lets the connection with that QP take part in the shared receives.
func (gd *groupDevice) share(c *conn, qpn uint32) {
	gd.qpns[qpn] = c
	if !gd.srq.begun {
		gd.srq.begun = true
		gd.srq.flush()
	}
}
