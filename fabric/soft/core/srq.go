package core

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
)

// SRQ is a receive queue shared by QPs of one owner. It implements
// fabric.SharedReceiveQueue.
type SRQ struct {
	dev   *Device
	gone  func()
	once  sync.Once
	users atomic.Int32

	// Owner.
	q      RecvQueue
	full   error
	closed bool
	// Posted, when set, is called after receives were posted: QPs may be
	// waiting for one.
	Posted func()
}

// NewSRQ makes an SRQ. The errors wrap fabric.ErrNotSupported when the limits
// have none, and fabric.ErrInvalid beyond them.
func (d *Device) NewSRQ(depth, maxSGE int) (*SRQ, error) {
	l, maxSGE := &d.limits, max(maxSGE, 1)
	switch {
	case l.MaxSRQ == 0:
		return nil, d.opError("create SRQ", fabric.ErrNotSupported)
	case depth <= 0 || l.MaxSRQDepth > 0 && depth > l.MaxSRQDepth || l.MaxSGE > 0 && maxSGE > l.MaxSGE:
		return nil, d.opError("create SRQ", fmt.Errorf("%w: depth %d, %d SGEs", fabric.ErrInvalid, depth, maxSGE))
	}
	gone, err := d.count("create SRQ", &d.srqs, l.MaxSRQ)
	if err != nil {
		return nil, err
	}
	s := &SRQ{dev: d, gone: gone, full: d.opError("post receive", fabric.ErrQueueFull)}
	s.q.init(depth, maxSGE)
	return s, nil
}

// PostRecv posts receives.
func (s *SRQ) PostRecv(wrs []fabric.RecvWR, sges []fabric.SGE) (int, error) {
	if s.closed {
		return 0, s.dev.opError("post receive", net.ErrClosed)
	}
	n, err := s.q.post(wrs, sges)
	if n > 0 && s.Posted != nil {
		s.Posted()
	}
	if err == fabric.ErrQueueFull { //nolint:errorlint // the very value, on the data path
		return n, s.full
	}
	if err != nil {
		return n, s.dev.opError("post receive", err)
	}
	return n, nil
}

// Len is the number of receives posted and not taken.
func (s *SRQ) Len() int { return s.q.Len() }

// Close ends the SRQ. It fails with fabric.ErrBusy while a QP uses it; closing
// twice is nil.
func (s *SRQ) Close() error {
	if n := s.users.Load(); n > 0 {
		return s.dev.opError("close SRQ", fmt.Errorf("%w by %d queue pairs", fabric.ErrBusy, n))
	}
	s.closed = true
	s.once.Do(s.gone)
	return nil
}
