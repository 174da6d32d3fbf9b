package rdma

import (
	"fmt"
	"time"
)

// A host that takes no responses, or answers no READs, keeps the buffers of its
// commands: with enough of them nobody else in the group has any. So when
// requests wait for buffers and nothing comes back for Config.StallTimeout, the
// connections that have not moved either are ended. As long as nobody waits,
// they may take their time.

// stall is a group's watch over its waiting requests. The group owns it.
type stall struct {
	armed    bool
	progress uint64 // of the group when it was armed
}

// watchStall makes sure that somebody looks while requests wait.
func (g *group) watchStall() {
	if g.stall.armed {
		return
	}
	g.stall = stall{armed: true, progress: g.progress}
	for _, c := range g.conns {
		if c != nil {
			c.seen = c.progress
		}
	}
	time.AfterFunc(g.cfg.StallTimeout, func() { g.post(g.checkStall) })
}

// checkStall looks whether buffers have come back.
func (g *group) checkStall() {
	g.stall.armed = false
	waits := 0
	for i := range g.waiting {
		waits += g.waiting[i].n
	}
	if waits == 0 {
		return
	}
	if g.progress == g.stall.progress {
		g.endStalled(waits)
	}
	g.watchStall()
}

// endStalled ends the connections that have something on the way to or from the
// host that has not moved.
func (g *group) endStalled(waits int) {
	for _, c := range g.conns {
		if c != nil && !c.closing && c.reads+c.sends > 0 && c.progress == c.seen {
			c.end(fmt.Errorf("the host has not taken a response or answered a READ for %v while %d commands waited for buffers",
				g.cfg.StallTimeout, waits))
		}
	}
}
