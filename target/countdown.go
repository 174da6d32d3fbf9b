package target

import "sync/atomic"

// countdown runs a function when it has been counted down to zero, on the
// goroutine of the last.
type countdown struct {
	left atomic.Int64
	done func()
}

func newCountdown(n int, done func()) *countdown {
	c := &countdown{done: done}
	c.left.Store(int64(n))
	return c
}

func (c *countdown) down() {
	if c.left.Add(-1) == 0 {
		c.done()
	}
}
