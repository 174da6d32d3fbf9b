package initiator

import (
	"context"
	"math"
	"runtime"
	"time"
)

// Wait waits until there is a result to reap, or nothing in flight, or a Ring. It
// polls as Config.Spin says, then sleeps. The error is the cause of ctx's end.
func (p *Queue) Wait(ctx context.Context) error {
	late := false
	look := func() bool { // says whether the wait is over
		if over, _ := p.ready(false, false); over || p.answered() {
			return true
		}
		late = p.polls%64 == 0 && ctx.Err() != nil // it takes a lock
		return late
	}
	switch {
	case !look() && !p.spin.Look(look):
		return p.sleep(ctx, false)
	case late:
		return ctxError(ctx)
	}
	return nil
}

// Rest waits for the end of ctx, or a Ring, and looks after the queue meanwhile:
// it takes over the connection that is made when one was lost, and has the device
// acknowledge what came. A user that has nothing in flight and nothing to submit
// does not poll, and should be in Rest: targets take a host that does not
// acknowledge for dead. The error is the cause of ctx's end; nil after a Ring,
// when the queue is closed, or when it has a result after all.
func (p *Queue) Rest(ctx context.Context) error {
	runtime.Gosched() // what the user has made ready would wait for our P
	return p.sleep(ctx, true)
}

// Ring ends the present Wait or Rest, or else the next, with nil; several are as
// one. Any goroutine may call it, at any time, also one that has just left the
// owner something to do.
func (p *Queue) Ring() {
	p.rung.Store(true)
	p.q.w.Wake()
}

// answered says whether there was a Ring, once.
func (p *Queue) answered() bool { return p.rung.Load() && p.rung.Swap(false) }

// Watch has Wait and Rest end, with nil, while fd is readable. Over software RNICs
// the thread waits for fd itself, in the kernel. Where the queue has to sleep in
// the Go scheduler standIn is called before: it must not block, and has to see to
// a Ring when fd is readable. From now on either may end early for no reason.
//
// There is one fd, the last; Close ends the watch, and fd is not closed before.
// The error matches net.ErrClosed when the queue is closed.
func (p *Queue) Watch(fd int, standIn func()) error {
	p.enter()
	defer p.leave()
	if p.closed {
		return errClosed
	}
	p.unwatch()
	if err := p.q.w.Watch(fd); err != nil {
		return err
	}
	p.watched, p.stand = fd, standIn
	return nil
}

func (p *Queue) unwatch() {
	if p.stand != nil {
		p.q.w.Unwatch(p.watched)
		p.stand = nil
	}
}

// sleep is Wait without polling, and Rest.
func (p *Queue) sleep(ctx context.Context, rest bool) error {
	w := p.q.w
	defer w.Cancel()
	p.heed(ctx)
	for {
		w.Prepare()
		// A Ring before Prepare wakes nobody and is seen here; a later one wakes.
		if p.answered() {
			return nil
		}
		over, armed := p.ready(true, rest)
		switch {
		case over:
			return nil
		case ctx.Err() != nil:
			return ctxError(ctx)
		case !armed: // of another connection now
		case w.Kernel():
			w.Sleep(p.patience())
			if p.stand != nil { // it does not say what for
				return nil
			}
		default:
			p.doze()
		}
		// What ended the sleep is mostly there, and is taken before another is
		// prepared: in that the device would have it end once more.
		over, _ = p.ready(false, rest)
		if over {
			if !rest {
				p.spin.Awake()
			}
			return nil
		}
	}
}

// doze sleeps in the scheduler.
func (p *Queue) doze() {
	if p.stand != nil {
		p.stand()
	}
	p.timer.Reset(p.patience())
	select {
	case <-p.q.w.C:
	case <-p.timer.C:
	}
}

// heed has the end of ctx wake the queue. A context that is used again costs
// nothing.
func (p *Queue) heed(ctx context.Context) {
	if p.ctx == ctx {
		return
	}
	if p.unheed != nil {
		p.unheed()
	}
	p.ctx, p.unheed = ctx, nil
	if ctx.Done() != nil {
		p.unheed = context.AfterFunc(ctx, p.q.w.Wake)
	}
}

// ready says whether Wait, or Rest, is over, and if it is not, when it was to be
// armed, whether there will be a wake-up.
func (p *Queue) ready(arm, rest bool) (over, armed bool) {
	p.enter()
	defer p.leave()
	if p.returned {
		return true, false
	}
	q, qc := p.q, p.q.qc
	if arm {
		q.arm(true)
	}
	p.turn()
	return q.finished.len() > 0 || q.idle() && !rest || p.closed, q.qc == qc && !q.needsCheck()
}

// patience is how long Wait may sleep without a wake-up.
func (p *Queue) patience() time.Duration {
	p.enter()
	defer p.leave()
	next := p.q.earliest
	for _, i := range p.doubts {
		next = min(next, p.q.slots[i].until)
	}
	if next == math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(max(next-monotonic(), 0))
}
