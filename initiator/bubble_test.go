package initiator

import (
	"testing"
	"testing/synctest"
	"time"
)

// bubble runs fn in virtual time: it passes when everybody waits, so that
// minutes of it cost nothing and durations are exact. Nobody may spin in there.
func bubble(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	was := epoch
	defer func() { epoch = was }()
	synctest.Test(t, func(t *testing.T) {
		epoch = time.Now().Add(-time.Second)
		fn(t)
	})
}

// still is a change of Config for a bubble.
func still(c *Config) { c.Spin = -1 }
