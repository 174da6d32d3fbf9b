package initiator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// manage is the goroutine that looks after the controller's associations, from
// the first on; when that did not come about, err says why.
func (c *Controller) manage(a *association, err error) {
	defer close(c.managed)
	if a == nil {
		a = c.replace(err)
	}
	for a != nil {
		select {
		case <-a.done:
			a = c.recover(a)
		case <-c.ctx.Done():
			c.shutDown(a)
			a = nil
		}
	}
	<-c.ctx.Done() // a lost controller waits for Close
	c.end()
}

// recover takes apart an association that is lost, and replaces it.
func (c *Controller) recover(a *association) *association {
	cause := a.reason()
	c.note(cause, 0)
	c.setState(StateReconnecting)
	c.log().Warnf("initiator: %v: connection lost: %v", c, cause)
	c.tearDown(a)
	c.suspect(a)
	return c.replace(cause)
}

// replace finds a new association for one that is lost, or was never there. It
// is nil when the controller is closed or given up.
func (c *Controller) replace(cause error) *association {
	c.note(cause, 0)
	c.setState(StateReconnecting)
	a, err := c.reconnect(time.Now())
	if err == nil {
		c.log().Infof("initiator: %v: reconnected as controller %d", c, a.cntlid)
		return a
	}
	c.note(err, -1)
	if c.ctx.Err() == nil {
		c.log().Errorf("initiator: %v: given up: %v", c, err)
		c.setState(StateLost)
		c.failQueues(c.lostForGood())
	}
	return nil
}

// permanent says whether trying again is of no use.
func permanent(err error) bool {
	var ce *ConnectError
	return errors.As(err, &ce) && ce.Permanent()
}

// note keeps what is known of reconnecting; attempt -1 leaves the count alone.
func (c *Controller) note(err error, attempt int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attempt.lastError, c.attempt.next = err, time.Time{}
	if attempt >= 0 {
		c.attempt.attempts = attempt
	}
}

// tearDown waits until every RDMA connection of a is destroyed, which a's end
// has its owners do, and gives the device back.
func (c *Controller) tearDown(a *association) {
	for {
		c.sweep(a)
		t := time.NewTimer(time.Millisecond)
		select {
		case <-a.drained:
			t.Stop()
			if err := a.dom.release(); err != nil {
				c.log().Warnf("initiator: %v: closing the device: %v", c, err)
			}
			return
		case <-t.C:
		}
	}
}

// sweep does for a what owners cannot do: it ends connections that were not
// taken over, and those of Queues whose goroutine is elsewhere.
func (c *Controller) sweep(a *association) {
	for _, q := range append([]*queue{c.admin.q}, c.queues...) {
		if qc := q.next.Load(); qc != nil && qc.assoc == a && qc.ended() && q.next.CompareAndSwap(qc, nil) {
			qc.close()
		}
	}
	for _, q := range c.takenQueues() {
		q.trySweep()
	}
}

// reconnect tries until it succeeds, the controller is closed, or it is not to
// try any more.
func (c *Controller) reconnect(since time.Time) (*association, error) {
	if c.cfg.NoReconnect {
		return nil, fmt.Errorf("reconnecting is switched off: %w", c.lastError())
	}
	fastFail := c.failTimer()
	defer fastFail.Stop()
	delay := time.Duration(0)
	for attempt := 1; ; attempt++ {
		if err := c.pause(delay, attempt, since); err != nil {
			return nil, err
		}
		a, err := c.attemptOnce(attempt, since)
		if err == nil {
			return a, nil
		}
		switch {
		case c.ctx.Err() != nil:
			return nil, err
		case permanent(err):
			return nil, fmt.Errorf("the target refuses for good: %w", err)
		case c.cfg.CtrlLossTimeout >= 0 && time.Since(since) >= c.cfg.CtrlLossTimeout:
			return nil, fmt.Errorf("not connected for %v: %w", c.cfg.CtrlLossTimeout, err)
		}
		delay = c.nextDelay(delay, since)
	}
}

// leastAttempt is what an attempt gets however little time is left.
const leastAttempt = 100 * time.Millisecond

// attemptOnce is one attempt. It is over when CtrlLossTimeout is, but gets some
// time in any case.
func (c *Controller) attemptOnce(attempt int, since time.Time) (*association, error) {
	ctx := c.ctx
	if c.cfg.CtrlLossTimeout >= 0 {
		var cancel context.CancelFunc
		ctx, cancel = within(ctx, max(c.cfg.CtrlLossTimeout-time.Since(since), leastAttempt))
		defer cancel()
	}
	a, err := c.build(ctx)
	if err != nil {
		c.log().Infof("initiator: %v: reconnect %d failed: %v", c, attempt, err)
	}
	c.note(err, attempt)
	return a, err
}

func (c *Controller) lastError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attempt.lastError
}

// nextDelay doubles the delay, and does not let it pass the end of CtrlLossTimeout.
func (c *Controller) nextDelay(delay time.Duration, since time.Time) time.Duration {
	delay = min(max(2*delay, c.cfg.ReconnectDelay), c.cfg.MaxReconnectDelay)
	if c.cfg.CtrlLossTimeout >= 0 {
		delay = min(delay, max(c.cfg.CtrlLossTimeout-time.Since(since), 0))
	}
	return delay
}

// pause waits before an attempt, varied by a fifth so that hosts which lost the
// same target do not come back as one.
func (c *Controller) pause(delay time.Duration, attempt int, since time.Time) error {
	if c.ctx.Err() != nil {
		return errClosed
	}
	if delay <= 0 {
		return nil
	}
	delay += time.Duration((rand.Float64() - 0.5) * 0.4 * float64(delay))
	c.mu.Lock()
	c.attempt.next = time.Now().Add(delay)
	err := c.attempt.lastError
	c.mu.Unlock()
	c.log().Infof("initiator: %v: reconnect %d in %v, %s, last error: %v", c, attempt, delay.Round(time.Millisecond), c.patience(since), err)
	if err := sleep(c.ctx, nil, delay); err != nil {
		return errClosed
	}
	return nil
}

// patience says how long reconnecting goes on, for people.
func (c *Controller) patience(since time.Time) string {
	if c.cfg.CtrlLossTimeout < 0 {
		return "for ever"
	}
	return fmt.Sprintf("giving up in %v", max(c.cfg.CtrlLossTimeout-time.Since(since), 0).Round(time.Second))
}

// failTimer has the commands of Queues fail after FastIOFail; those of engines
// are the dispatcher's.
func (c *Controller) failTimer() *time.Timer {
	if c.cfg.FastIOFail < 0 {
		return time.NewTimer(1 << 62)
	}
	return time.AfterFunc(c.cfg.FastIOFail, func() { c.failQueues(c.lostError()) })
}

// suspect counts associations that took commands with keys of their own with
// them while no such command was ever answered: some devices die of SEND with
// invalidate. After two of them the controller goes without.
func (c *Controller) suspect(a *association) {
	if !a.keyed.Load() || c.cfg.Invalidate == On || c.keysWork.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.suspicions++; c.suspicions == 2 {
		c.plainKeys = true
		c.log().Warnf("initiator: %v: no command with remote invalidation has ever been answered: going on without", c)
	}
}

// shutDown ends an association in order, as far as the target goes along.
func (c *Controller) shutDown(a *association) {
	bound := c.cfg.ShutdownTimeout
	c.setState(StateClosed)
	end := time.Now().Add(bound)
	a.cutIO(bound)
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	if err := c.notifyShutdown(ctx, a); err != nil {
		c.log().Debugf("initiator: %v: shutdown: %v", c, err)
	}
	a.fail(errClosed)
	c.tearDown(a)
}

// notifyShutdown is CC.SHN, and the wait for CSTS.SHST.
func (c *Controller) notifyShutdown(ctx context.Context, a *association) error {
	if err := c.writeCC(ctx, a.enabled().WithSHN(nvme.ShutdownNormal)); err != nil {
		return err
	}
	return c.waitStatus(ctx, a, func(s nvme.ControllerStatus) bool { return s.SHST() == nvme.ShutdownComplete })
}

// waitStatus polls CSTS.
func (c *Controller) waitStatus(ctx context.Context, a *association, is func(nvme.ControllerStatus) bool) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		s, err := c.readCSTS(ctx)
		if err != nil || is(s) {
			return err
		}
		if err := sleep(ctx, a.done, pause); err != nil {
			return err
		}
	}
}

// Reset resets the controller (CC.EN) and connects it anew. Commands in flight
// are treated as when the connection is lost. It returns when the controller is
// live again.
func (c *Controller) Reset(ctx context.Context) error {
	a := c.assoc.Load()
	if !c.usable() {
		return c.lostError()
	}
	a.cutIO(c.cfg.ShutdownTimeout)
	err := c.writeCC(ctx, 0)
	if err == nil {
		err = c.waitStatus(ctx, a, func(s nvme.ControllerStatus) bool { return !s.RDY() })
	}
	a.fail(ErrReset)
	if err != nil && !errors.Is(err, ErrPathLost) {
		c.log().Warnf("initiator: %v: reset: %v", c, err)
	}
	return c.waitLive(ctx, a)
}

// waitLive waits until an association other than old is installed.
func (c *Controller) waitLive(ctx context.Context, old *association) error {
	for {
		c.mu.Lock()
		turned := c.turned
		c.mu.Unlock()
		switch s := c.State(); {
		case s == StateClosed || s == StateLost:
			return c.lostError()
		case c.usable() && c.assoc.Load() != old:
			return nil
		}
		select {
		case <-turned:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errNotLive, ctxError(ctx))
		}
	}
}
