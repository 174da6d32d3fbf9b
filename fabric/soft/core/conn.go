package core

import (
	"net/netip"
	"sync"
)

// Conn is what connections of every wire have in common: who is at the ends
// and how it ended. A provider embeds it. Its methods are safe for any
// goroutine.
type Conn struct {
	// Constant once established.
	Local, Remote netip.AddrPort
	Private       []byte
	Outbound      int // ORD
	Inbound       int // IRD

	closed func(error)
	done   chan struct{}

	mu    sync.Mutex
	err   error
	ended bool
}

// Init prepares c; closed is ConnConfig.Closed.
func (c *Conn) Init(closed func(error)) {
	c.closed, c.done = closed, make(chan struct{})
}

// LocalAddr is this end's address.
func (c *Conn) LocalAddr() netip.AddrPort { return c.Local }

// RemoteAddr is the peer's.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.Remote }

// PrivateData is what the peer's accept carried.
func (c *Conn) PrivateData() []byte { return c.Private }

// ORD is how many READs and atomics this end may have outstanding.
func (c *Conn) ORD() int { return c.Outbound }

// IRD is how many the peer may.
func (c *Conn) IRD() int { return c.Inbound }

// Done is closed after Finish.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is what Finish was given.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Finish ends the connection with its cause; only the first call counts, and
// says so. The user's Closed runs on a goroutine of its own, so Finish may be
// called anywhere; Done is closed behind it.
func (c *Conn) Finish(err error) bool {
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return false
	}
	c.ended, c.err = true, err
	c.mu.Unlock()
	go c.runClosed(err)
	return true
}

func (c *Conn) runClosed(err error) {
	if c.closed != nil {
		c.closed(err)
	}
	close(c.done)
}
