package rdma

import (
	"net"
	"net/netip"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
)

var _ target.Link = (*conn)(nil)

// Complete ends a request that the core had (target.Link).
func (c *conn) Complete(r *target.Request) {
	s := slotOf(r)
	if s.state != slotExecuting {
		c.group.stats.Stale++
		return
	}
	if c.closing {
		c.home(s)
		c.settle()
		return
	}
	c.respond(s)
}

// Disconnect ends the connection (target.Link). The core has logged why.
func (c *conn) Disconnect(reason error) {
	if reason == nil {
		reason = net.ErrClosed
	}
	c.group.post(func() { c.end(&coreError{reason}) })
}

// coreError is a reason that the core gave.
type coreError struct{ reason error }

func (e *coreError) Error() string { return e.reason.Error() }
func (e *coreError) Unwrap() error { return e.reason }

// Run runs fn on the group's goroutine (target.Link).
func (c *conn) Run(fn func()) bool { return c.group.post(fn) }

// Abort ends a request that waits for buffers or to read (target.Link).
func (c *conn) Abort(cid uint16) bool {
	var found *slot
	match := func(s *slot) bool {
		if found != nil || s.conn != c || s.state == slotReading || s.Cmd.CID() != cid {
			return false
		}
		found = s
		return true
	}
	c.group.unqueue(match)
	c.readq.removeIf(match)
	if found == nil {
		return false
	}
	c.refuse(found, nvme.AbortRequested, -1)
	return true
}

// Peer is the host's address (target.Link).
func (c *conn) Peer() netip.AddrPort { return c.peer }

// Local is the address the host connected to (target.Link).
func (c *conn) Local() netip.AddrPort { return c.local }
