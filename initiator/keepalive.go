package initiator

import (
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// startKeepAlive keeps the association alive until it is gone (Base 3.9).
func (a *association) startKeepAlive() {
	if a.ctrl.cfg.KeepAlive > 0 {
		go a.keepAlive()
	}
}

// keepAlive sends Keep Alive every half of the timeout, and gives each the other
// half to be answered: so a dead target is noticed within the timeout. With
// traffic based keep alive it looks twice as often, and sends none when a
// command was answered since it last looked.
func (a *association) keepAlive() {
	c, period := a.ctrl, a.ctrl.cfg.KeepAlive/2
	k := &keepAlive{c: c}
	k.r.fill(keepAliveCommand(), period)
	k.r.then = k.answered
	if a.tbkas {
		period /= 2
	}
	tick := time.NewTicker(max(period, time.Millisecond))
	defer tick.Stop()
	seen := c.completions()
	for {
		select {
		case <-a.done:
			return
		case <-tick.C:
		}
		if now := c.completions(); a.tbkas && now != seen {
			seen = now
			continue
		}
		k.send()
	}
}

func keepAliveCommand() nvme.Command {
	cmd := newCommand()
	cmd.Init(nvme.AdminKeepAlive, 0)
	return cmd
}

// keepAlive is the Keep Alive command, of which one is in flight at most: the
// queue's own clock ends the association when it is not answered.
type keepAlive struct {
	c      *Controller
	r      request
	busy   atomic.Bool
	warned bool // owned by the admin engine's goroutine
}

func (k *keepAlive) send() {
	if k.busy.Swap(true) {
		return
	}
	k.r.prepare()
	if !k.c.admin.push(&k.r) {
		k.busy.Store(false)
	}
}

// answered runs on the admin engine. A controller that refuses the command lives
// nevertheless.
func (k *keepAlive) answered(r *request) {
	if r.err == nil && !r.status.OK() && !k.warned {
		k.warned = true
		k.c.log().Warnf("initiator: %v: keep alive: %v", k.c, r.status)
	}
	k.busy.Store(false)
}
