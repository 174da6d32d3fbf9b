package rdma

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/target"
)

// Transport serves the queues of a target over RDMA. Its methods are safe for
// concurrent use.
type Transport struct {
	target   *target.Target
	cfg      Config
	groups   []*group
	memory   budget
	lent     lentMemory
	limit    *limiter
	rejected atomic.Uint64
	draining atomic.Bool // no connection is attached any more

	mu        sync.Mutex
	devices   map[deviceKey]*device
	listeners map[*Listener]struct{}
	conns     int
	next      int        // group to begin with among equals
	changed   *sync.Cond // conns fell, or a device was released
}

// New makes a transport with its poll groups and their buffers. Close ends it.
func New(tgt *target.Target, cfg Config) (*Transport, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	t := &Transport{
		target: tgt, cfg: cfg, limit: newLimiter(cfg.Log),
		devices: map[deviceKey]*device{}, listeners: map[*Listener]struct{}{},
	}
	t.changed = sync.NewCond(&t.mu)
	t.memory.limit = cfg.MemoryLimit
	for i := range cfg.PollGroups {
		g, err := newGroup(t, i)
		if err != nil {
			return nil, errors.Join(err, t.free())
		}
		t.groups = append(t.groups, g)
		go g.run()
	}
	return t, nil
}

// Caps are the limits that target.Port.Caps of a listener's port has to have.
func (t *Transport) Caps() target.TransportCaps { return t.cfg.caps() }

// reserve finds a group for c and counts it there. On success release has to
// follow some time.
func (t *Transport) reserve(c *conn, p fabric.Provider, fdev fabric.Device) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.draining.Load():
		return errDrained
	case t.conns >= t.cfg.MaxConnections:
		return errConnections
	}
	d, err := t.openLocked(p, fdev)
	if err != nil {
		return err
	}
	g := t.leastLocked()
	if c.dev, err = d.forGroupLocked(g); err != nil {
		return err
	}
	c.group = g
	if err := c.chooseRecvLocked(); err != nil {
		return err
	}
	c.sqDepth = c.sendDepth()
	if c.cq, err = c.dev.reserveCQ(c.completions(), c.shared); err != nil {
		return err
	}
	g.queues.Add(1)
	d.conns++
	t.conns++
	return nil
}

// completions is how many completions of the connection there can be at a time,
// those of shared receives apart.
func (c *conn) completions() int {
	if c.shared {
		return c.sqDepth + 1
	}
	return c.sqDepth + 1 + c.depth + 1
}

// chooseRecvLocked decides whether the connection shares receives, and makes
// the shared ones when they are not there.
func (c *conn) chooseRecvLocked() (err error) {
	d := c.dev
	if c.qid == 0 || d.limits.MaxSRQ == 0 {
		return nil
	}
	t := d.t
	own := int64(recvSize(c.depth+1, t.cfg.InCapsule))
	c.shared = t.cfg.SRQ == On || t.cfg.SRQ == Auto && d.limits.RNR && t.memory.used.Load()+own > t.memory.limit/2
	if c.shared && d.srq == nil {
		d.srq, err = newSRQ(d)
	}
	return err
}

// leastLocked is the group with the fewest connections.
func (t *Transport) leastLocked() *group {
	best := t.groups[t.next%len(t.groups)]
	for i := range t.groups {
		if g := t.groups[(t.next+i)%len(t.groups)]; g.queues.Load() < best.queues.Load() {
			best = g
		}
	}
	t.next++
	return best
}

// release gives back what reserve and allocate took. The connection's QP is
// closed, or was never made.
func (t *Transport) release(c *conn) {
	if c.region != nil {
		if err := c.dev.free(c.mem, c.region, c.held); err != nil {
			t.cfg.Log.Errorf("rdma: %v: queue %d: release memory: %v", c.peer, c.qid, err)
		}
	}
	c.group.queues.Add(-1)
	t.mu.Lock()
	c.cq.reserved -= c.completions()
	c.dev.conns--
	t.conns--
	t.changed.Broadcast()
	t.mu.Unlock()
}

// disconnect has the groups end the connections that match.
func (t *Transport) disconnect(reason error, match func(*conn) bool) {
	for _, g := range t.groups {
		g.post(func() {
			for _, c := range g.conns {
				if c != nil && match(c) {
					c.end(reason)
				}
			}
		})
	}
}

// Close ends every connection in order: hosts see a disconnect, and what the
// backends still have comes home. When ctx ends before that, Close returns its
// error and may be called again; nothing is freed that is still in use. Closing
// again after success is nil.
func (t *Transport) Close(ctx context.Context) error {
	t.draining.Store(true)
	t.mu.Lock()
	listeners := slices.Collect(maps.Keys(t.listeners))
	t.mu.Unlock()
	var err error
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	t.disconnect(errDrained, func(*conn) bool { return true })
	if werr := t.await(ctx); werr != nil {
		return errors.Join(err, werr)
	}
	return errors.Join(err, t.free())
}

// await waits until no connection is left.
func (t *Transport) await(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		t.mu.Lock()
		t.changed.Broadcast()
		t.mu.Unlock()
	})
	defer stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.conns > 0 {
		if ctx.Err() != nil {
			return fmt.Errorf("rdma: %d connections have not ended: %w", t.conns, ctx.Err())
		}
		t.changed.Wait()
	}
	return nil
}

// free releases devices, groups and buffers, when no connection is left.
func (t *Transport) free() (err error) {
	t.mu.Lock()
	devices := slices.Collect(maps.Values(t.devices))
	t.mu.Unlock()
	for _, d := range devices {
		err = errors.Join(err, d.release(errDrained))
	}
	for _, g := range t.groups {
		g.post(g.stop)
		<-g.ended
		if g.closed {
			continue
		}
		g.closed = true
		t.memory.give(g.held)
		err = errors.Join(err, g.err, g.closePools())
	}
	return err
}
