package initiator

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// association is one connection with a controller: the admin queue, the I/O
// queues and what the controller has said of itself. It ends as a whole.
//
//	building -> installed -> gone -> drained
//	    \____________________^
//
// Gone: every RDMA connection is cut, owners leave them. Drained: all are
// destroyed.
type association struct {
	// Constant once installed.

	ctrl      *Controller
	dom       *domain // a reference
	cntlid    uint16
	cap       nvme.Capabilities
	version   nvme.Version
	id        nvme.IdentifyController
	idNVM     nvme.IdentifyControllerNVM // zero when the controller has none
	tbkas     bool
	inCapsule int // bytes of data in a capsule of an I/O queue; -1 when offsets are not supported
	transfer  int // bytes one command may move
	ioQueues  int
	ioDepth   int

	// Any goroutine.

	keyed   atomic.Bool   // commands with keys of their own were not answered
	gone    atomic.Bool   // fail was called
	done    chan struct{} // closed by it
	drained chan struct{} // closed when gone and no RDMA connection is left

	mu     sync.Mutex
	cause  error
	lostAt int64 // monotonic
	conns  map[*qconn]struct{}
}

func (c *Controller) newAssociation(dom *domain) *association {
	return &association{
		ctrl: c, dom: dom, inCapsule: -1,
		done: make(chan struct{}), drained: make(chan struct{}), conns: make(map[*qconn]struct{}),
	}
}

// queueCNTLID is the controller in the private data of a queue's connection.
func (a *association) queueCNTLID(qid uint16) uint16 {
	if qid == 0 {
		return 0
	}
	return a.cntlid
}

// fail ends the association; the first cause counts. Any goroutine may call it.
func (a *association) fail(cause error) {
	a.mu.Lock()
	if a.gone.Load() {
		a.mu.Unlock()
		return
	}
	a.cause, a.lostAt = cause, monotonic()
	a.gone.Store(true)
	close(a.done)
	conns := make([]*qconn, 0, len(a.conns))
	for qc := range a.conns {
		conns = append(conns, qc)
	}
	a.drainLocked()
	a.mu.Unlock()
	for _, qc := range conns {
		qc.disconnect()
		qc.w.Load().Wake()
	}
}

// reason is why the association is gone.
func (a *association) reason() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cause
}

// trusted says whether the answers that came before the end may be believed.
func (a *association) trusted() bool { return !errors.Is(a.reason(), ErrProtocol) }

// quietAt is when the controller will have given up what it was sent.
func (a *association) quietAt() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.lostAt
	if at == 0 { // only the connection of one queue was cut
		at = monotonic()
	}
	return at + int64(a.ctrl.cfg.replayDelay(a.tbkas))
}

// add makes a dialled connection part of the association.
func (a *association) add(qc *qconn) {
	a.mu.Lock()
	a.conns[qc] = struct{}{}
	gone := a.gone.Load()
	a.mu.Unlock()
	if gone {
		qc.disconnect()
	}
}

// remove takes a connection out that is destroyed.
func (a *association) remove(qc *qconn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.conns, qc)
	a.drainLocked()
}

func (a *association) drainLocked() {
	if a.gone.Load() && len(a.conns) == 0 {
		select {
		case <-a.drained:
		default:
			close(a.drained)
		}
	}
}

// cutIO cuts the I/O queues and waits, for a bounded time, until they are
// destroyed.
func (a *association) cutIO(bound time.Duration) {
	for end := monotonic() + int64(bound); ; {
		a.mu.Lock()
		var conns []*qconn
		for qc := range a.conns {
			if qc.qid != 0 {
				conns = append(conns, qc)
			}
		}
		a.mu.Unlock()
		if len(conns) == 0 || monotonic() > end {
			return
		}
		for _, qc := range conns {
			if !qc.cut.Load() {
				qc.cutOff()
			}
		}
		a.ctrl.sweep(a)
		time.Sleep(time.Millisecond)
	}
}
