// Package users counts who uses a device, so that it closes after them.
package users

import (
	"fmt"
	"net"
	"sync"

	"github.com/nvmf-go/nvmf/backend"
)

// Count counts the open queues of a device, and whether it is closed. The
// zero value is an open device without queues. It is safe for concurrent use.
type Count struct {
	mu     sync.Mutex
	queues int
	closed bool
}

// Add counts a queue; it fails with net.ErrClosed after Close.
func (c *Count) Add() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("backend: %w", net.ErrClosed)
	}
	c.queues++
	return nil
}

// Done takes back one Add.
func (c *Count) Done() {
	c.mu.Lock()
	c.queues--
	c.mu.Unlock()
}

// Close marks the device closed and runs release, once. It fails with ErrBusy
// while queues are open.
func (c *Count) Close(release func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if c.queues > 0 {
		return fmt.Errorf("%w: %d queues open", backend.ErrBusy, c.queues)
	}
	c.closed = true
	return release()
}
