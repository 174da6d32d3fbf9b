package target

import (
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// Keep alive (Base 3.9), traffic based: any command restarts the timer. A
// controller is given one and a half timeouts, within the two that traffic
// based keep alive allows, and then the owner of its admin queue looks once
// more, after it has taken in what has arrived: so neither load nor a slow
// medium makes a live host look dead.

// startKeepAliveLocked sets the timeout in milliseconds that Connect or feature
// 0Fh asks for; 0 is none, but for discovery controllers DiscoveryTimeout.
// Controller.mu is held.
func (c *Controller) startKeepAliveLocked(ms uint32) {
	unit := uint64(keepAliveUnit / time.Millisecond)
	rounded := (uint64(ms) + unit - 1) / unit
	c.kato = time.Duration(rounded) * keepAliveUnit
	if ms == 0 && c.discovery {
		c.kato = DiscoveryTimeout
	}
	c.deadline = 0
	if c.kato > 0 && !c.ended {
		c.deadline = c.target.now() + grace(c.kato)
		c.target.nudgeTimer()
	}
}

func grace(kato time.Duration) int64 { return int64(kato + kato/2) }

// keepAlive is the timeout in milliseconds, as feature 0Fh reports it.
func (c *Controller) keepAlive() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return uint32(c.kato / time.Millisecond)
}

// lastCommandLocked is when any queue had a command last. Controller.mu is
// held.
func (c *Controller) lastCommandLocked() int64 {
	last := c.admin.seen.Load()
	for _, q := range c.queues {
		last = max(last, q.seen.Load())
	}
	return last
}

// checkKeepAlive is called by the timer. It returns the next deadline.
func (c *Controller) checkKeepAlive(now int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline == 0 || now < c.deadline || c.ending.Load() {
		return c.deadline
	}
	c.deadline = c.lastCommandLocked() + grace(c.kato)
	if now < c.deadline {
		return c.deadline
	}
	// The owner may have been late rather than the host: ask it. Until it
	// answers there is no deadline.
	c.deadline = 0
	c.admin.cfg.Link.Run(c.expireKeepAlive)
	return 0
}

// expireKeepAlive ends the controller unless a command has come after all. It
// runs on the owner of the admin queue.
func (c *Controller) expireKeepAlive() {
	c.mu.Lock()
	if c.ended || c.kato == 0 || c.deadline != 0 {
		c.mu.Unlock() // ended, or set anew meanwhile
		return
	}
	due := c.lastCommandLocked() + grace(c.kato)
	alive := c.target.now() < due
	if alive {
		c.deadline = due
	}
	c.mu.Unlock()
	if alive {
		c.target.nudgeTimer()
		return
	}
	c.fail(ErrKeepAlive)
}

// prepareKeepAlive has a place for what the command is about: that it came.
func prepareKeepAlive(q *Queue, r *Request) (Transfer, nvme.Status) {
	if q.ctrl.keepAlive() == 0 {
		return Transfer{}, nvme.KeepAliveInvalid | nvme.StatusDNR
	}
	return Transfer{}, nvme.Success
}
