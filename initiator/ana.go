package initiator

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// anaTable is what is known of a controller's asymmetric access, immutable.
type anaTable struct {
	change     uint64
	namespaces map[uint32]nvme.ANAState
	moving     bool // a group is in the change state
}

// recheckANA is how long after a state that will not last the log is read
// again, should no event come.
const recheckANA = time.Second

// readANA reads the ANA log of a when the controller has one. What cannot be
// read or understood leaves every namespace accessible; the statuses of commands
// will tell.
func (c *Controller) readANA(ctx context.Context, a *association) {
	size, err := a.anaLogSize()
	if errors.Is(err, errNoANA) {
		c.ana.Store(nil)
		return
	}
	var t *anaTable
	if err == nil {
		t, err = c.fetchANA(ctx, size)
	}
	switch {
	case err == nil:
		c.ana.Store(t)
		if t.moving {
			time.AfterFunc(recheckANA, func() { c.refreshANA(a) })
		}
	case !a.gone.Load():
		c.log().Warnf("initiator: %v: going on without asymmetric access: %v", c, err)
	}
}

func (c *Controller) fetchANA(ctx context.Context, size int) (*anaTable, error) {
	cmd, data := newCommand(), make([]byte, size)
	cmd.GetLogPage().Init(nvme.NSIDBroadcast, nvme.LogRequest{LID: nvme.LogANA, Length: uint64(size)})
	if _, err := c.run(ctx, cmd, data, c.cfg.AdminTimeout); err != nil {
		return nil, err
	}
	change, groups, err := nvme.ParseANALog(data)
	if err != nil {
		return nil, err
	}
	t := &anaTable{change: change, namespaces: make(map[uint32]nvme.ANAState)}
	for _, g := range groups {
		t.moving = t.moving || g.State == nvme.ANAStateChange
		for _, nsid := range g.NSIDs {
			t.namespaces[nsid] = g.State
		}
	}
	return t, nil
}

// refreshANA has the ANA log read again, soon.
func (c *Controller) refreshANA(a *association) {
	c.notices.add(func() {
		if a.gone.Load() {
			return
		}
		ctx, cancel := within(c.ctx, c.cfg.AdminTimeout)
		defer cancel()
		c.readANA(ctx, a)
		c.changed()
	})
}

// askANA is refreshANA, now and then.
func (c *Controller) askANA(now int64) {
	asked := c.anaAsked.Load()
	if a := c.assoc.Load(); now-asked >= int64(recheckANA) && c.anaAsked.CompareAndSwap(asked, now) {
		c.refreshANA(a)
	}
}

// access is the state of a namespace on this controller: optimized when the
// controller says nothing of it.
func (c *Controller) access(nsid uint32) nvme.ANAState {
	if t := c.ana.Load(); t != nil {
		if s, ok := t.namespaces[nsid]; ok {
			return s
		}
	}
	return nvme.ANAOptimized
}

// denied takes note of a status that says more than the log did.
func (c *Controller) denied(nsid uint32, s nvme.ANAState) {
	t := c.ana.Load()
	if t == nil || t.namespaces[nsid] == s {
		return
	}
	next := &anaTable{change: t.change, namespaces: maps.Clone(t.namespaces), moving: t.moving}
	next.namespaces[nsid] = s
	if c.ana.CompareAndSwap(t, next) {
		if a := c.assoc.Load(); a != nil {
			time.AfterFunc(recheckANA/10, func() { c.refreshANA(a) })
		}
	}
}

// ANAState is the asymmetric access state of a namespace on this controller,
// as last heard; optimized when the controller does not report it.
func (c *Controller) ANAState(nsid uint32) nvme.ANAState { return c.access(nsid) }
