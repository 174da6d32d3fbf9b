package target

import (
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// Lines that commands and peers can cause: so many at once, and then one for
// each period.
const (
	peerLogBurst  = 20
	peerLogPeriod = 500 * time.Millisecond
)

// logger writes lines for the operator: who and why.
type logger struct {
	out   *logrus.Logger
	limit *limiter
}

func newLogger(out *logrus.Logger) logger {
	return logger{out, &limiter{tokens: peerLogBurst, last: time.Now()}}
}

func (l logger) infof(format string, a ...any) { l.out.Infof(format, a...) }
func (l logger) warnf(format string, a ...any) { l.out.Warnf(format, a...) }

// limited writes a line that is as frequent as commands may be, at a limited
// rate. The next line that passes says how many did not.
func (l logger) limited(format string, a ...any) { l.peer(logrus.WarnLevel, nil, format, a...) }

// peer is limited for a line that a peer's behaviour has caused.
func (l logger) peer(level logrus.Level, who logrus.Fields, format string, a ...any) {
	if !l.out.IsLevelEnabled(level) {
		return
	}
	ok, lost := l.limit.take(time.Now())
	if !ok {
		return
	}
	if lost > 0 {
		l.out.Warnf("%d lines were left out", lost)
	}
	l.out.WithFields(who).Log(level, fmt.Sprintf(format, a...))
}

// limiter is a token bucket that counts what it refused.
type limiter struct {
	mu     sync.Mutex
	tokens int
	last   time.Time // when tokens was right
	lost   uint64
}

// take says whether one more may pass now, and how many did not since the last
// that did.
func (l *limiter) take(now time.Time) (ok bool, lost uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := int(now.Sub(l.last) / peerLogPeriod); n > 0 {
		l.tokens = min(l.tokens+n, peerLogBurst)
		l.last = l.last.Add(time.Duration(n) * peerLogPeriod)
	}
	if l.tokens == 0 {
		l.lost++
		return false, 0
	}
	l.tokens--
	lost, l.lost = l.lost, 0
	return true, lost
}
