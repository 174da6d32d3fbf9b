package target

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/nvme"
)

// Values that every controller has.
const (
	maxEvents     = 4  // parked Asynchronous Event Requests: AERL + 1
	maxAborts     = 4  // Aborts at a time: ACL + 1
	errorEntries  = 64 // ELPE + 1
	keepAliveUnit = 100 * time.Millisecond
	readyUnits    = 30 // CAP.TO and CRTO.CRWMT in units of 500 ms
)

// version is VS and VER: the revision whose mandatory parts are all there.
var version = nvme.MakeVersion(2, 0, 0)

// Controller is the association of one host with a subsystem, from the Connect
// of its admin queue to the end of that queue.
type Controller struct {
	// Constant.

	target    *Target
	sub       *Subsystem
	port      *Port
	id        uint16 // CNTLID
	hostNQN   nvme.NQN
	hostID    nvme.HostID
	discovery bool
	admin     *Queue
	created   time.Time

	// Atomic: the I/O path loads them.

	ready        atomic.Bool // commands are taken: CSTS.RDY, and no reset, shutdown or failure
	ending       atomic.Bool // every queue is being disconnected
	writeThrough atomic.Bool // the host has switched the write cache off

	listed atomic.Uint64 // version of the nsTable that the host has listed last

	// Of the owner of the admin queue.

	parked [maxEvents]*Request // Asynchronous Event Requests, oldest first
	npark  int
	aborts int // Aborts that wait for another group

	mu       sync.Mutex // guards what follows; held for short
	cc       nvme.Configuration
	csts     nvme.ControllerStatus
	kato     time.Duration // 0: no keep alive
	deadline int64         // Target.now when to look whether kato has expired; 0: never
	queues   map[uint16]*Queue
	live     int       // I/O queues, those that were disconnected included until their last command is home
	pending  quiescing // what CSTS will tell when live is 0
	granted  int       // I/O queues: result of feature 07h
	features featureValues
	events   eventState
	errors   errorLog
	changed  changedList
	disc     discoverySnapshot
	ended    bool // the admin queue is closed
}

// ID is the controller ID.
func (c *Controller) ID() uint16 { return c.id }

// HostNQN is the host's name.
func (c *Controller) HostNQN() nvme.NQN { return c.hostNQN }

// who are the fields of a log line about this controller.
func (c *Controller) who() logrus.Fields {
	return logrus.Fields{
		"host": string(c.hostNQN), "subsystem": string(c.sub.nqn), "cntlid": c.id,
		"peer": c.admin.cfg.Link.Peer().String(), "port": c.port.Name,
	}
}

// newControllerLocked makes a controller for an admin queue and numbers it.
// Target.mu is held.
func (t *Target) newControllerLocked(q *Queue, s *Subsystem, host nvme.NQN, id nvme.HostID) (*Controller, error) {
	if len(t.ctrls) >= t.cfg.MaxControllers {
		return nil, fmt.Errorf("there are %d controllers, the limit", len(t.ctrls))
	}
	cntlid, ok := t.nextIDLocked()
	if !ok {
		return nil, fmt.Errorf("every controller ID from %d to %d is in use", t.cfg.CntlidMin, t.cfg.CntlidMax)
	}
	c := &Controller{
		target: t, sub: s, port: q.cfg.Port, id: cntlid, hostNQN: host, hostID: id,
		discovery: s.discovery, admin: q, created: time.Now(),
		queues: map[uint16]*Queue{}, granted: t.cfg.MaxQueues,
	}
	c.features.reset()
	t.ctrls[cntlid] = c
	s.ctrls[c] = struct{}{}
	return c, nil
}

// nextIDLocked takes the next free controller ID in turn, so that one is not
// used again soon: hosts may still hold on to it.
func (t *Target) nextIDLocked() (uint16, bool) {
	for range int(t.cfg.CntlidMax) - int(t.cfg.CntlidMin) + 1 {
		if t.lastID >= t.cfg.CntlidMax {
			t.lastID = t.cfg.CntlidMin
		} else {
			t.lastID++
		}
		if t.ctrls[t.lastID] == nil {
			return t.lastID, true
		}
	}
	return 0, false
}

// fail disconnects the controller: its admin queue, whose Close ends it, and
// with that its I/O queues. It may be called with Target.mu held, from any
// goroutine.
func (c *Controller) fail(reason error) {
	c.mu.Lock()
	first := !c.ending.Swap(true)
	c.ready.Store(false)
	c.csts = c.csts.WithRDY(false).WithCFS(true)
	queues := c.queuesLocked()
	c.mu.Unlock()
	if !first {
		return
	}
	for _, q := range queues {
		q.cfg.Link.Disconnect(reason)
	}
	c.admin.cfg.Link.Disconnect(reason)
	c.target.log.peer(logrus.WarnLevel, c.who(), "controller %d ends: %v", c.id, reason) // last: it may take its time
}

// queuesLocked are the I/O queues. Controller.mu is held.
func (c *Controller) queuesLocked() []*Queue {
	list := make([]*Queue, 0, len(c.queues))
	for _, q := range c.queues {
		list = append(list, q)
	}
	return list
}

// end is the end of the controller: its admin queue was closed.
func (c *Controller) end(reason error) {
	c.mu.Lock()
	c.ended = true
	c.ready.Store(false)
	failed := c.ending.Swap(true)
	c.deadline = 0
	queues := c.queuesLocked()
	c.mu.Unlock()
	for _, q := range queues {
		q.cfg.Link.Disconnect(ErrAdminClosed)
	}
	if !failed {
		c.target.log.peer(logrus.InfoLevel, c.who(), "controller %d disconnected: %v", c.id, reason)
	}
	t := c.target
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.ctrls, c.id)
	delete(c.sub.ctrls, c)
	t.changedLocked()
}

// dropQueue forgets an I/O queue that was closed or deleted.
func (c *Controller) dropQueue(q *Queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queues[q.id] == q {
		delete(c.queues, q.id)
	}
}

// queueHome is the end of an I/O queue: nothing of it is in a backend any more.
func (c *Controller) queueHome() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.live--
	c.settleLocked()
}

// dropQueues disconnects the I/O queues of a controller that goes on.
func (c *Controller) dropQueues(reason error) {
	c.mu.Lock()
	queues := c.queuesLocked()
	clear(c.queues) // their identifiers are free at once
	c.mu.Unlock()
	for _, q := range queues {
		q.cfg.Link.Disconnect(reason)
	}
}
