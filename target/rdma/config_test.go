package rdma

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

func TestConfigDefaults(t *testing.T) {
	c := DefaultConfig()
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	if c.InCapsule != 4096 || c.MaxQueueDepth != 128 || c.MaxTransfer != 1<<20 || c.MaxSGL != 16 {
		t.Errorf("%+v", c)
	}
	var zero Config
	zero.setDefaults()
	if err := zero.validate(); err != nil {
		t.Fatal(err)
	}
	if zero.InCapsule != 0 {
		t.Errorf("InCapsule 0 became %d: it means none", zero.InCapsule)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*Config)
		want string // in the error; empty: valid
	}{
		{"in-capsule 0", func(c *Config) { c.InCapsule = 0 }, ""},
		{"in-capsule 1", func(c *Config) { c.InCapsule = 1 }, "multiple of 16"},
		{"in-capsule 16", func(c *Config) { c.InCapsule = 16 }, ""},
		{"in-capsule 8193", func(c *Config) { c.InCapsule = 8193 }, "multiple of 16"},
		{"in-capsule 16384", func(c *Config) { c.InCapsule = 16384 }, ""},
		{"in-capsule 16400", func(c *Config) { c.InCapsule = 16400 }, "InCapsule"},
		{"in-capsule negative", func(c *Config) { c.InCapsule = -16 }, "InCapsule"},
		{"depth 1", func(c *Config) { c.MaxQueueDepth = 1 }, "MaxQueueDepth"},
		{"depth 1024", func(c *Config) { c.MaxQueueDepth = 1024 }, ""},
		{"depth 1025", func(c *Config) { c.MaxQueueDepth = 1025 }, "MaxQueueDepth"},
		{"MDTS 8 KiB", func(c *Config) { c.MaxTransfer = 8192 }, ""},
		{"MDTS 4 KiB", func(c *Config) { c.MaxTransfer = 4096 }, "MaxTransfer"},
		{"MDTS 9000", func(c *Config) { c.MaxTransfer = 9000 }, "power of two"},
		{"MDTS 2 KiB", func(c *Config) { c.MaxTransfer = 2048 }, "MaxTransfer"},
		{"MDTS 8 MiB", func(c *Config) { c.MaxTransfer = 8 << 20 }, "MaxTransfer"},
		{"17 descriptors", func(c *Config) { c.MaxSGL = 17 }, "MaxSGL"},
		{"buffers beyond the limit", func(c *Config) { c.MemoryLimit = 1 << 20 }, "MemoryLimit"},
		{"poll mode 9", func(c *Config) { c.Poll = 9 }, "Poll"},
		{"257 groups", func(c *Config) { c.PollGroups = 257 }, "PollGroups"},
		{"spin an hour", func(c *Config) { c.Spin = time.Hour }, "Spin"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			c.set(&cfg)
			err := cfg.validate()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// A group always has room for one command's data and scratch memory.
func TestConfigPoolFloor(t *testing.T) {
	c := DefaultConfig()
	c.PollGroups, c.Buffers, c.MaxTransfer = 64, 1<<20, 4<<20
	if got := c.dataPool(); got != 8<<20 {
		t.Errorf("pool of %d bytes, want two transfers", got)
	}
	c.PollGroups, c.Buffers = 3, 64<<20
	if got := c.dataPool(); got%c.MaxTransfer != 0 || got > 64<<20/3 {
		t.Errorf("pool of %d bytes", got)
	}
}

func TestNames(t *testing.T) {
	for m := PollAdaptive; m <= PollEvent; m++ {
		if got, err := ParsePollMode(m.String()); err != nil || got != m {
			t.Errorf("%v: %v, %v", m, got, err)
		}
	}
	for c := Auto; c <= Off; c++ {
		if got, err := ParseChoice(c.String()); err != nil || got != c {
			t.Errorf("%v: %v, %v", c, got, err)
		}
	}
	if _, err := ParseChoice("perhaps"); err == nil || !strings.Contains(err.Error(), "auto") {
		t.Errorf("error %v does not say what there is", err)
	}
	if s := PollMode(9).String(); s != "PollMode(9)" {
		t.Error(s)
	}
}

func TestBudget(t *testing.T) {
	b := budget{limit: 100}
	if !b.take(60) || b.take(41) || !b.take(40) || b.take(1) {
		t.Errorf("used %d of 100", b.used.Load())
	}
	b.give(100)
	if b.used.Load() != 0 {
		t.Errorf("used %d", b.used.Load())
	}
}

func TestLimiter(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	l := newLimiter(log)
	now := time.Unix(1000, 0)
	for i := range l.burst {
		if ok, dropped := l.allow(now); !ok || dropped != 0 {
			t.Fatalf("line %d: %v, %d dropped", i, ok, dropped)
		}
	}
	for range 5 {
		if ok, _ := l.allow(now.Add(l.interval - 1)); ok {
			t.Fatal("a line more than the burst")
		}
	}
	if ok, dropped := l.allow(now.Add(l.interval)); !ok || dropped != 5 {
		t.Errorf("the next interval: %v, %d dropped, want 5", ok, dropped)
	}
}

// The reserve has two of the largest commands, data and scratch memory, in whole
// blocks; less where half of the memory limit has no room, and never so much that
// a configuration does not fit any more.
func TestConfigReserve(t *testing.T) {
	for _, c := range []struct{ groups, transfer, want int }{
		{1, 1 << 20, 18 * 128 << 10}, {2, 4 << 20, 18 * 512 << 10}, {1, 128 << 10, 32 * 16 << 10}, {1, 8 << 10, 8 * 4 << 10},
		{128, 1 << 20, 1 << 20}, {256, 1 << 20, 0}, {80, 4 << 20, 0},
	} {
		cfg := DefaultConfig()
		cfg.PollGroups, cfg.MaxTransfer = c.groups, c.transfer
		if got := cfg.reserve(); got != c.want {
			t.Errorf("%d groups, transfers of %d: a reserve of %d, want %d", c.groups, c.transfer, got, c.want)
		}
		if err := cfg.validate(); err != nil {
			t.Errorf("%d groups, transfers of %d: %v", c.groups, c.transfer, err)
		}
	}
}
