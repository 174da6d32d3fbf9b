package rdma

import (
	"fmt"
	"time"
)

// A host that takes no responses, or answers no READs, keeps the buffers of its
// commands: with enough of them nobody else on its namespaces has any. So when
// requests of a namespace wait for buffers and none of its own come back for
// Config.StallTimeout, the connections that keep some and have not moved either
// are ended. As long as nobody waits for them, they may take their time. A
// backend that answers nothing is no reason to end anybody, and gets a line.

// stall is a group's watch over its waiting requests. The group owns it.
type stall struct {
	armed    bool
	round    uint64           // counts the watches
	claims   [numPools]*share // on the reserves when it was armed
	returned [numPools]uint64 // to the reserves until then
}

// watchStall makes sure that somebody looks while requests wait.
func (g *group) watchStall() {
	st := &g.stall
	if st.armed {
		return
	}
	st.armed = true
	st.round++
	for i := range g.waiting {
		st.claims[i], st.returned[i] = g.waiting[i].claim, g.pools[i].returned
		g.waiting[i].shares(func(sh *share) { sh.watched, sh.seen = st.round, sh.progress })
	}
	for _, c := range g.conns {
		if c != nil {
			c.seen, c.moving = c.progress, c.reads+c.sends > 0
		}
	}
	time.AfterFunc(g.cfg.StallTimeout, func() { g.post(g.checkStall) })
}

// checkStall looks whether buffers have come back.
func (g *group) checkStall() {
	g.stall.armed = false
	waiters := 0
	for i := range g.waiting {
		w := &g.waiting[i]
		waiters += w.n
		g.endStalled(uint8(i), w)
		if w.claim != nil && w.claim == g.stall.claims[i] && g.pools[i].returned == g.stall.returned[i] {
			w.void = true // what it waits for hangs: others need not wait behind it
			w.again()
		}
	}
	if waiters > 0 {
		g.watchStall()
	}
}

// endStalled ends the connections that have something on the way to or from the
// host that has not moved, in buffers which others have waited for all the time.
func (g *group) endStalled(pool uint8, w *waiters) {
	waits, any := 0, false
	w.shares(func(sh *share) {
		if sh.watched == g.stall.round && sh.seen == sh.progress {
			sh.stalled = g.stall.round
			waits += sh.n
			any = any || sh.used == 0 // it waits for whatever comes back
		}
	})
	if waits == 0 {
		return
	}
	ended := false
	for _, c := range g.conns {
		if c != nil && !c.closing && c.stuck() && c.keepsBuffers(pool, any) {
			ended = true
			c.end(fmt.Errorf("the host has not taken a response or answered a READ for %v while %d commands waited for buffers",
				g.cfg.StallTimeout, waits))
		}
	}
	if !ended {
		w.shares(g.blameBackend)
	}
}

// stuck says whether something was on its way when the watch began, and still is:
// none of it leaves without a completion.
func (c *conn) stuck() bool { return c.moving && c.progress == c.seen }

// blameBackend says once of each stall which namespace it is, when all that its
// requests hold is in its backend.
func (g *group) blameBackend(sh *share) {
	if sh.stalled != g.stall.round || sh.used == 0 || sh.told == sh.progress+1 {
		return
	}
	sh.told = sh.progress + 1
	s := sh.head
	g.t.limit.warn("rdma: %v: queue %d: %d commands on namespace %d wait for buffers, and those that have %d KiB of them have not ended for %v: its backend does not answer",
		s.conn.peer, s.conn.qid, sh.n, s.Cmd.NSID(), sh.used<<pageShift>>10, g.cfg.StallTimeout)
}

// keepsBuffers says whether requests that wait for the host have buffers of a
// pool: of any share, or of one that has stalled.
func (c *conn) keepsBuffers(pool uint8, any bool) bool {
	for i := range c.slots {
		s := &c.slots[i]
		if s.pieces > 0 && s.pool == pool && s.state != slotExecuting && (any || s.share.stalled == c.group.stall.round) {
			return true
		}
	}
	return false
}
