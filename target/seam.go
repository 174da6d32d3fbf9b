package target

// HasController says whether a controller of that ID is there, for transports
// whose connection requests name one (RDMA 1.0: CNTLID of the private data).
// It may be called from any goroutine.
func (t *Target) HasController(cntlid uint16) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ctrls[cntlid] != nil
}

// Fail tells the core that the host broke the transport's protocol on this
// queue: its controller, if it has one, reports a fatal status (CSTS.CFS) and
// all its queues get Link.Disconnect. The transport closes this queue itself.
func (q *Queue) Fail(reason error) {
	if q.ctrl != nil {
		q.ctrl.fail(reason)
	}
}

// Ending says that the queue's controller is coming to its end: Link.Disconnect
// is on its way, and the host is to get no response any more. It would take one
// for the end of its command, when it should find the connection gone and try
// again elsewhere or later. It may be called from any goroutine once Connect
// has succeeded.
func (q *Queue) Ending() bool { return q.ctrl != nil && q.ctrl.ending.Load() }
