package target

import "github.com/nvmf-go/nvmf/nvme"

// Abort (Base 5.1). A command can be aborted while it waits: parked as an
// Asynchronous Event Request, in the transport for buffers or data, or for its
// turn in a backend. What a backend has begun goes on, and the result says so.

// queue finds an I/O queue of the controller; nil when there is none.
func (c *Controller) queue(id uint16) *Queue {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queues[id]
}

// executeAbort looks for the command where its queue lives: here, or on the
// owner of another group, which sends the answer back.
func executeAbort(q *Queue, r *Request) {
	c, a := q.ctrl, r.Cmd.Abort()
	if c.aborts == maxAborts {
		q.finish(r, nvme.AbortLimitExceeded|nvme.StatusDNR)
		return
	}
	victim := q
	if a.SQID() != 0 {
		victim = c.queue(a.SQID())
	}
	if victim == nil {
		q.finishAbort(r, false)
		return
	}
	if victim.group == q.group {
		q.finishAbort(r, victim.abort(a.TargetCID(), r))
		return
	}
	c.aborts++
	cid := a.TargetCID()
	answer := func(done bool) {
		q.cfg.Link.Run(func() {
			c.aborts--
			q.finishAbort(r, done)
		})
	}
	if !victim.cfg.Link.Run(func() { answer(victim.abort(cid, nil)) }) {
		c.aborts--
		q.finishAbort(r, false)
	}
}

func (q *Queue) finishAbort(r *Request, aborted bool) {
	if !aborted {
		r.Result = nvme.AbortNotAborted
	}
	q.finish(r, nvme.Success)
}

// abort ends the command cid of this queue if it waits somewhere, and says
// whether it did. self is the Abort itself, which is not to be found. The
// owner calls it.
func (q *Queue) abort(cid uint16, self *Request) bool {
	match := func(r *Request) bool { return r != self && r.core.q == q && r.Cmd.CID() == cid }
	if q.state == queueAdmin {
		for i := range q.ctrl.npark {
			if match(q.ctrl.parked[i]) {
				q.finish(q.ctrl.unpark(i), nvme.AbortRequested)
				return true
			}
		}
	}
	if q.cfg.Link.Abort(cid) {
		return true
	}
	for _, a := range q.group.dirty {
		if r := a.waiting.remove(match); r != nil {
			q.finish(r, nvme.AbortRequested)
			return true
		}
	}
	return false
}
