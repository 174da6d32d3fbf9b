package target

import (
	"slices"
	"time"

	"github.com/sirupsen/logrus"
)

// The target has one goroutine for time: it wakes at the nearest deadline and
// sleeps without one when there is none.

// expectConnect gives q until ConnectTimeout to be connected or closed.
func (t *Target) expectConnect(q *Queue) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	if !slices.Contains(t.ports, q.cfg.Port) {
		return errNoPort
	}
	t.waiting[q] = t.now() + int64(t.cfg.ConnectTimeout)
	t.nudgeTimer()
	return nil
}

// forget ends what expectConnect began, and returns the deadline there was.
func (t *Target) forget(q *Queue) (deadline int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	deadline = t.waiting[q]
	delete(t.waiting, q)
	return deadline
}

// expectAgain undoes forget.
func (t *Target) expectAgain(q *Queue, deadline int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[q] = deadline
	t.nudgeTimer()
}

// nudgeTimer makes the timer goroutine look again. It never blocks.
func (t *Target) nudgeTimer() {
	select {
	case t.rearm <- struct{}{}:
	default:
	}
}

// routineTimer is the timer goroutine.
func (t *Target) routineTimer() {
	defer close(t.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next, suspects := t.expire(t.now())
		for _, n := range suspects {
			n.adoptSize()
		}
		if next > 0 {
			timer.Reset(time.Duration(next - t.now()))
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-t.rearm:
		case <-t.stop:
			return
		}
	}
}

// expire acts on what is due, and returns the next deadline, 0 for none, and
// the namespaces whose size I/O has put in doubt. Deadlines are rounded up to
// whole keepAliveUnits so that many controllers do not mean many wake-ups.
func (t *Target) expire(now int64) (next int64, suspects []*Namespace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for q, at := range t.waiting {
		if now < at {
			next = earlier(next, at)
			continue
		}
		delete(t.waiting, q)
		t.log.peer(logrus.WarnLevel, q.who(), "connection closed: %v", ErrNoConnect)
		q.cfg.Link.Disconnect(ErrNoConnect)
	}
	for _, c := range t.ctrls {
		next = earlier(next, c.checkKeepAlive(now))
	}
	for _, s := range t.subs {
		table := s.table.Load()
		for _, id := range table.active {
			if n := table.byID[id]; n.suspect.Load() {
				suspects = append(suspects, n)
			}
		}
	}
	if rest := next % int64(keepAliveUnit); rest != 0 {
		next += int64(keepAliveUnit) - rest
	}
	return next, suspects
}

// earlier is the earlier of two deadlines, 0 being none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
