package rdma

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

// budget is a bounded sum that any goroutine may take from.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take reserves n and says whether the limit allows it.
func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// limiter lets so many log lines through in each interval and counts the rest,
// so that a host cannot fill a disk.
type limiter struct {
	log      *logrus.Logger
	burst    int
	interval time.Duration

	mu      sync.Mutex
	start   time.Time // of the interval
	lines   int       // in the interval
	dropped int       // since the last line
}

func newLimiter(log *logrus.Logger) *limiter {
	return &limiter{log: log, burst: 20, interval: 10 * time.Second}
}

// warn logs a line of something a peer did wrong.
func (l *limiter) warn(format string, args ...any) {
	ok, dropped := l.allow(time.Now())
	if !ok {
		return
	}
	e := logrus.NewEntry(l.log)
	if dropped > 0 {
		e = e.WithField("suppressed", dropped)
	}
	e.Warnf(format, args...)
}

// allow says whether a line may pass and how many did not since the last.
func (l *limiter) allow(now time.Time) (ok bool, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.start) >= l.interval {
		l.start, l.lines = now, 0
	}
	if l.lines >= l.burst {
		l.dropped++
		return false, 0
	}
	l.lines++
	dropped, l.dropped = l.dropped, 0
	return true, dropped
}
