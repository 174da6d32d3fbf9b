package target

import (
	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/nvme"
)

// Connect (NVMe-oF 3.3).

func prepareConnect(q *Queue, r *Request) (Transfer, nvme.Status) {
	c := r.Cmd.Connect()
	switch {
	case q.state != queueNew:
		return Transfer{}, nvme.CommandSequenceError | nvme.StatusDNR
	case c.RecFmt() != 0:
		return Transfer{}, nvme.ConnectIncompatibleFormat | nvme.StatusDNR
	case r.SGLLength != nvme.ConnectDataSize:
		return Transfer{}, r.bad(nvme.DataSGLLengthInvalid, locSGL, 0)
	}
	return Transfer{Dir: HostToController, Length: nvme.ConnectDataSize}, nvme.Success
}

// connectError is why a Connect is refused.
type connectError struct {
	status nvme.Status
	result uint64 // error location, for ConnectInvalidParameters
	why    string // for the log
}

// badSQE refuses a parameter of the SQE.
func badSQE(off uint16, why string) *connectError {
	return &connectError{nvme.ConnectInvalidParameters | nvme.StatusDNR, nvme.InvalidParameter(off, false), why}
}

// badData refuses a parameter of the data.
func badData(off uint16, why string) *connectError {
	return &connectError{nvme.ConnectInvalidParameters | nvme.StatusDNR, nvme.InvalidParameter(off, true), why}
}

// sequence refuses a Connect that comes at the wrong time.
func sequence(why string) *connectError {
	return &connectError{status: nvme.CommandSequenceError | nvme.StatusDNR, why: why}
}

// connectParams are the parameters of a Connect.
type connectParams struct {
	cmd    nvme.ConnectCommand
	host   nvme.NQN
	hostID nvme.HostID
	sub    nvme.NQN
	cntlid uint16
}

func executeConnect(q *Queue, r *Request) {
	p, refused := q.connectParams(r)
	if refused == nil {
		if p.cmd.QID() == 0 {
			refused = q.connectAdmin(p)
		} else {
			refused = q.connectIO(p)
		}
	}
	if refused != nil {
		who := q.who()
		who["host"], who["subsystem"] = string(p.host), string(p.sub)
		q.group.target.log.peer(logrus.WarnLevel, who, "Connect of queue %d refused: %s", p.cmd.QID(), refused.why)
		q.group.target.refusals.Add(1)
		r.Result = refused.result
		q.finish(r, refused.status)
		return
	}
	r.Result = uint64(q.ctrl.id)
	q.finish(r, nvme.Success)
}

// connectParams reads the SQE and the data and checks what can be checked
// without looking at anything else.
func (q *Queue) connectParams(r *Request) (p connectParams, refused *connectError) {
	p.cmd = r.Cmd.Connect()
	data := nvme.ConnectData(gather(q.group.page[:nvme.ConnectDataSize], r.Bufs))
	p.hostID, p.cntlid = data.HostID(), data.CNTLID()
	var hostErr, subErr error
	p.host, hostErr = data.HostNQN()
	p.sub, subErr = data.SubNQN()
	switch {
	case q.state != queueNew:
		return p, sequence("the queue is connected already")
	case q.cfg.QID >= 0 && int(p.cmd.QID()) != q.cfg.QID:
		return p, badSQE(nvme.ConnectOffQID, "the connection was made for another queue")
	case subErr != nil:
		return p, badData(nvme.ConnectDataOffSubNQN, "subsystem "+subErr.Error())
	case hostErr != nil:
		return p, badData(nvme.ConnectDataOffHostNQN, "host "+hostErr.Error())
	case p.hostID.IsZero():
		return p, badData(nvme.ConnectDataOffHostID, "the host identifier is zero")
	}
	return p, q.checkSQSize(p.cmd.SQSize())
}

// checkSQSize wants 2 entries at least, and no more than CAP.MQES and the
// connection allow.
func (q *Queue) checkSQSize(size uint16) *connectError {
	switch {
	case size == 0:
		return badSQE(nvme.ConnectOffSQSize, "the queue size is 0")
	case int(size) >= q.cfg.Port.Caps.MaxQueueDepth:
		return badSQE(nvme.ConnectOffSQSize, "the queue size is above CAP.MQES")
	case int(size) >= q.cfg.Depth:
		return badSQE(nvme.ConnectOffSQSize, "the queue size is above that of the connection")
	}
	return nil
}

// connectAdmin makes a controller.
func (q *Queue) connectAdmin(p connectParams) *connectError {
	if p.cntlid != nvme.CNTLIDDynamic {
		return badData(nvme.ConnectDataOffCNTLID, "a static controller is asked for, controllers are dynamic")
	}
	t := q.group.target
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.findSubsystemLocked(p.sub)
	switch {
	case t.closed:
		return &connectError{status: nvme.ConnectControllerBusy, why: ErrClosed.Error()}
	case s == nil || !s.behindLocked(q.cfg.Port):
		return badData(nvme.ConnectDataOffSubNQN, "there is no such subsystem on this port")
	case !s.hosts.allows(p.host):
		return &connectError{nvme.ConnectInvalidHost | nvme.StatusDNR, nvme.InvalidParameter(nvme.ConnectDataOffHostNQN, true), "the host is not on the subsystem's list"}
	}
	c, err := t.newControllerLocked(q, s, p.host, p.hostID)
	if err != nil {
		return &connectError{status: nvme.ConnectControllerBusy, why: err.Error()}
	}
	t.warnHostIDLocked(c)
	delete(t.waiting, q)
	q.become(queueAdmin, c, p.cmd)
	c.mu.Lock()
	c.startKeepAliveLocked(p.cmd.KATO())
	c.mu.Unlock()
	t.log.peer(logrus.InfoLevel, c.who(), "controller %d connected, keep alive %v", c.id, c.kato)
	return nil
}

// warnHostIDLocked logs a host that is known under another host identifier:
// Linux refuses the second controller of such a pair.
func (t *Target) warnHostIDLocked(c *Controller) {
	for _, o := range t.ctrls {
		if o != c && o.hostNQN == c.hostNQN && o.hostID != c.hostID {
			t.log.peer(logrus.WarnLevel, c.who(), "host has identifier %v here and %v on controller %d", c.hostID, o.hostID, o.id)
			return
		}
	}
}

// connectIO adds an I/O queue to its controller.
func (q *Queue) connectIO(p connectParams) *connectError {
	t := q.group.target
	t.mu.Lock()
	c := t.ctrls[p.cntlid]
	sub := t.findSubsystemLocked(p.sub)
	t.mu.Unlock()
	switch {
	case c == nil || c.sub != sub:
		return badData(nvme.ConnectDataOffCNTLID, "the subsystem has no such controller")
	case c.discovery:
		return badSQE(nvme.ConnectOffQID, "discovery controllers have no I/O queues")
	case c.hostNQN != p.host:
		return badData(nvme.ConnectDataOffHostNQN, "the controller is another host's")
	case c.hostID != p.hostID:
		return badData(nvme.ConnectDataOffHostID, "the controller has another host identifier")
	case c.port != q.cfg.Port:
		return badData(nvme.ConnectDataOffCNTLID, "the controller is on another port")
	}
	deadline := t.forget(q) // before: the timer reads what Connect writes
	refused := c.addQueue(q, p.cmd)
	if refused != nil {
		t.expectAgain(q, deadline)
	}
	return refused
}

// addQueue enters q as an I/O queue.
func (c *Controller) addQueue(q *Queue, cmd nvme.ConnectCommand) *connectError {
	id := cmd.QID()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended || c.ending.Load() || !c.ready.Load():
		return sequence("the controller is not ready")
	case int(id) > c.granted:
		return badSQE(nvme.ConnectOffQID, "the queue identifier is above the number of queues")
	case c.queues[id] != nil:
		return sequence("the queue identifier is in use")
	}
	q.become(queueIO, c, cmd)
	c.queues[id] = q
	c.live++
	return nil
}

// become connects the queue.
func (q *Queue) become(s queueState, c *Controller, cmd nvme.ConnectCommand) {
	q.ctrl, q.id, q.size, q.state = c, cmd.QID(), cmd.SQSize(), s
	q.noFlow = cmd.CATTR()&nvme.ConnectDisableSQFlow != 0
	q.seen.Store(q.group.now)
}

// Disconnect (NVMe-oF 3.6) deletes the I/O queue it is sent to.

func prepareDisconnect(q *Queue, r *Request) (Transfer, nvme.Status) {
	switch {
	case q.state != queueIO:
		return Transfer{}, r.bad(nvme.InvalidQueueType, locFCType, 0)
	case r.Cmd.Disconnect().RecFmt() != 0:
		return Transfer{}, nvme.ConnectIncompatibleFormat | nvme.StatusDNR
	}
	return Transfer{}, nvme.Success
}

// executeDisconnect takes no more commands, and responds when those that are
// executing have ended. The host then closes the connection; when it does not,
// the timeout of queues without Connect does.
func executeDisconnect(q *Queue, r *Request) {
	q.state = queueDeleted
	q.deletion = r
	q.ctrl.dropQueue(q)
	if err := q.group.target.expectConnect(q); err != nil {
		q.cfg.Link.Disconnect(err)
	}
	if q.executing == 1 {
		q.completeDeletion()
	}
}

func (q *Queue) completeDeletion() {
	r := q.deletion
	q.deletion = nil
	q.finish(r, nvme.Success)
}
