package initiator

import (
	"context"

	"github.com/nvmf-go/nvmf/nvme"
)

// askForEvents parks an Asynchronous Event Request at the controller. When it is
// answered the event is dealt with, and then the next is parked: a controller
// that has nothing but events cannot make us do anything else.
func (a *association) askForEvents() {
	if a.ctrl.cfg.transient {
		return
	}
	cmd := newCommand()
	cmd.Init(nvme.AdminAsyncEvent, 0)
	r := &request{}
	r.fill(cmd, forever)
	r.then = func(r *request) { a.event(r) }
	a.ctrl.admin.push(r)
}

// forever is the timeout of a command that may take any time.
const forever = 1 << 60

// event is an answer to an Asynchronous Event Request; it runs on the admin
// engine.
func (a *association) event(r *request) {
	c := a.ctrl
	switch {
	case r.err != nil || a.gone.Load():
		return
	case !r.status.OK():
		c.log().Debugf("initiator: %v: no events: %v", c, r.status)
		return
	}
	e := nvme.AsyncEvent(r.result)
	c.notices.add(func() {
		c.handle(a, e)
		if !a.gone.Load() {
			r.prepare()
			c.admin.push(r)
		}
	})
}

// handle deals with an event, on the goroutine of the notices.
func (c *Controller) handle(a *association, e nvme.AsyncEvent) {
	ctx, cancel := within(c.ctx, c.cfg.AdminTimeout)
	defer cancel()
	c.log().Debugf("initiator: %v: event: %v", c, e)
	h := &c.cfg.Handler
	if h.Event != nil {
		h.Event(c, e)
	}
	if e.Type() != nvme.EventNotice {
		return
	}
	switch e.Info() {
	case nvme.NoticeNSAttribute:
		c.namespacesChanged(ctx)
	case nvme.NoticeANA:
		c.readANA(ctx, a)
		c.changed()
		if h.ANA != nil {
			h.ANA(c)
		}
	case nvme.NoticeDiscovery:
		if h.Discovery != nil {
			h.Discovery(c)
		}
	}
}

// namespacesChanged reads what has changed, which lets the next event come, and
// brings the open namespaces up to date.
func (c *Controller) namespacesChanged(ctx context.Context) {
	var nsids []uint32
	list, err := c.ChangedNamespaces(ctx)
	switch {
	case err != nil:
		c.log().Warnf("initiator: %v: %v", c, err)
	case !list.Overflow():
		for nsid := range list.All() {
			nsids = append(nsids, nsid)
		}
	}
	if err := c.recheck(ctx); err != nil {
		c.log().Warnf("initiator: %v: namespaces: %v", c, err)
	}
	if fn := c.cfg.Handler.Namespaces; fn != nil {
		fn(c, nsids)
	}
}
