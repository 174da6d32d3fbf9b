package rdma

import (
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
)

// Limits of the configuration.
const (
	maxInCapsule  = 16 << 10
	maxDepth      = 1024
	maxTransfer   = 4 << 20
	maxSGL        = 16
	maxPollGroups = 256
	maxReads      = 255
)

// PollMode says what a poll group does when it finds nothing to do.
type PollMode uint8

// Poll modes.
const (
	PollAdaptive PollMode = iota // spin for Config.Spin at most, then sleep
	PollBusy                     // never sleep: lowest latency, one core per group
	PollEvent                    // sleep at once
)

var pollModes = [...]string{"adaptive", "busy", "event"}

func (m PollMode) String() string { return nameIn(pollModes[:], uint8(m), "PollMode") }

// ParsePollMode is the reverse of String.
func ParsePollMode(s string) (PollMode, error) {
	return parseName[PollMode](pollModes[:], s, "poll mode")
}

// Choice is a setting that the transport can make by itself.
type Choice uint8

// Choices.
const (
	Auto Choice = iota
	On
	Off
)

var choices = [...]string{"auto", "on", "off"}

func (c Choice) String() string { return nameIn(choices[:], uint8(c), "Choice") }

// ParseChoice is the reverse of String.
func ParseChoice(s string) (Choice, error) { return parseName[Choice](choices[:], s, "setting") }

func nameIn(names []string, v uint8, what string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", what, v)
}

func parseName[T ~uint8](names []string, s, what string) (T, error) {
	for i, n := range names {
		if n == s {
			return T(i), nil
		}
	}
	return 0, fmt.Errorf("%s %q: not one of %v", what, s, names)
}

// Config configures a Transport. The zero value of a field means its default,
// except for InCapsule; DefaultConfig has that too.
type Config struct {
	// PollGroups is the number of poll groups, 1 to 256; default GOMAXPROCS.
	PollGroups int
	// Poll is what a group does when idle; default adaptive. Spin bounds the
	// spinning of the adaptive mode, which below 1 ms is no longer than usually
	// finds work, and up to ten times that where sleeps are dear (fabric.Spin);
	// default 100 us.
	Poll PollMode
	Spin time.Duration

	// InCapsule is the size in bytes of the data that a command capsule of an
	// I/O queue may carry: 0 (none) to 16384, a multiple of 16. The default of
	// DefaultConfig is 4096.
	InCapsule int
	// MaxQueueDepth is the most capsules a host may have outstanding on an I/O
	// queue, 2 to 1024; default 128. AdminDepth is that of the admin queue, 2
	// to 1024; default 32.
	MaxQueueDepth, AdminDepth int
	// MaxTransfer is the most bytes one command moves (MDTS): a power of two,
	// 8 KiB (MDTS 1; 0 would mean no limit) to 4 MiB; default 1 MiB.
	MaxTransfer int
	// MaxSGL is the most keyed descriptors of one command (MSDBD), 1 to 16;
	// default 16.
	MaxSGL int
	// MaxReads is the number of RDMA READs wanted in flight on a connection
	// (our ORD), 1 to 255; default 16. Devices and hosts can lower it.
	MaxReads int
	// MaxQueues is the most I/O queues of one controller, 1 to 65535; default
	// 64: greater queue ids are refused.
	MaxQueues int
	// MaxConnections is the most connections of all hosts together; default
	// 4096.
	MaxConnections int

	// Buffers is the memory for data that is not in capsules, in bytes, of all
	// poll groups together; default 64 MiB. A group has at least two buffers of
	// MaxTransfer, whatever that makes of the sum, and beside them a reserve of
	// two of the largest commands, as far as half of MemoryLimit has room for it.
	// Commands wait for buffers; one namespace never gets hold of all.
	Buffers int64
	// MemoryLimit bounds all memory that is registered with devices, in bytes, and
	// what holds the data of capsules in place of shared receives when those are
	// short; default 1 GiB. Connections beyond it are refused with No Resources.
	MemoryLimit int64

	// SRQ says whether queues share receives. Auto gives each queue its own
	// until half of MemoryLimit is in use, so that no host can take another's.
	// Admin queues always have their own.
	SRQ Choice
	// SRQDepth is the number of receives of a shared receive queue, one for
	// each device in each group; default 4096.
	SRQDepth int
	// SendInvalidate says whether responses end the host's key when the command
	// asks for it. Auto does so where the device says that it can, and stops on
	// devices that turn out not to. On tries on every device, Off never does.
	SendInvalidate Choice

	// HandshakeTimeout bounds a connection's set-up; default 10 s.
	HandshakeTimeout time.Duration
	// DrainTimeout is how long a disconnected QP may take to flush its work
	// requests before it is destroyed nevertheless; default 5 s.
	DrainTimeout time.Duration
	// StallTimeout is how long a host may take no response and answer no READ
	// while commands of its group wait for buffers; default 10 s.
	StallTimeout time.Duration

	// Log takes what a person should know; default nothing.
	Log *logrus.Logger
}

// DefaultConfig is the configuration with every default filled in.
func DefaultConfig() Config {
	c := Config{InCapsule: 4096}
	c.setDefaults()
	return c
}

func (c *Config) setDefaults() {
	def(&c.PollGroups, min(runtime.GOMAXPROCS(0), maxPollGroups))
	def(&c.Spin, 100*time.Microsecond)
	def(&c.MaxQueueDepth, 128)
	def(&c.AdminDepth, 32)
	def(&c.MaxTransfer, 1<<20)
	def(&c.MaxSGL, maxSGL)
	def(&c.MaxReads, 16)
	def(&c.MaxQueues, 64)
	def(&c.MaxConnections, 4096)
	def(&c.Buffers, 64<<20)
	def(&c.MemoryLimit, 1<<30)
	def(&c.SRQDepth, 4096)
	def(&c.HandshakeTimeout, 10*time.Second)
	def(&c.DrainTimeout, 5*time.Second)
	def(&c.StallTimeout, 10*time.Second)
	if c.Log == nil {
		c.Log = logrus.New()
		c.Log.SetOutput(io.Discard)
		c.Log.SetLevel(logrus.PanicLevel)
	}
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// validate checks a configuration whose defaults are filled in.
func (c *Config) validate() error {
	for _, f := range []struct {
		name         string
		v, low, high int
	}{
		{"PollGroups", c.PollGroups, 1, maxPollGroups},
		{"Poll", int(c.Poll), 0, int(PollEvent)},
		{"Spin", int(c.Spin), 0, int(time.Second)},
		{"InCapsule", c.InCapsule, 0, maxInCapsule},
		{"MaxQueueDepth", c.MaxQueueDepth, 2, maxDepth},
		{"AdminDepth", c.AdminDepth, 2, maxDepth},
		{"MaxTransfer", c.MaxTransfer, 2 * pageSize, maxTransfer},
		{"MaxSGL", c.MaxSGL, 1, maxSGL},
		{"MaxReads", c.MaxReads, 1, maxReads},
		{"MaxQueues", c.MaxQueues, 1, 65535},
		{"MaxConnections", c.MaxConnections, 1, maxConns},
		{"SRQ", int(c.SRQ), 0, int(Off)},
		{"SRQDepth", c.SRQDepth, 64, 1 << 20},
		{"SendInvalidate", int(c.SendInvalidate), 0, int(Off)},
		{"HandshakeTimeout", int(c.HandshakeTimeout), int(time.Millisecond), int(time.Hour)},
		{"DrainTimeout", int(c.DrainTimeout), int(time.Millisecond), int(time.Hour)},
		{"StallTimeout", int(c.StallTimeout), int(time.Millisecond), int(time.Hour)},
	} {
		if f.v < f.low || f.v > f.high {
			return fmt.Errorf("rdma: %s %d: want %d to %d", f.name, f.v, f.low, f.high)
		}
	}
	if c.InCapsule%nvme.SGLSize != 0 {
		return fmt.Errorf("rdma: InCapsule %d: want a multiple of %d", c.InCapsule, nvme.SGLSize)
	}
	if c.MaxTransfer&(c.MaxTransfer-1) != 0 {
		return fmt.Errorf("rdma: MaxTransfer %d: want a power of two", c.MaxTransfer)
	}
	if need := int64(c.PollGroups) * int64(c.dataPool()+c.adminPool()); need > c.MemoryLimit {
		return fmt.Errorf("rdma: MemoryLimit %d: the buffers of %d poll groups alone take %d", c.MemoryLimit, c.PollGroups, need)
	}
	return nil
}

// dataPool is the size of a group's buffers for I/O: at least the data and the
// scratch memory of one command.
func (c *Config) dataPool() int {
	n := max(c.Buffers/int64(c.PollGroups), 2*int64(c.MaxTransfer))
	return int(n) / c.MaxTransfer * c.MaxTransfer
}

// reserve is the size of what a group has beside dataPool so that namespaces
// which hang leave room for others: two of the largest commands, or what there
// is room for in half of MemoryLimit.
func (c *Config) reserve() int {
	grain := grainSize(c.MaxTransfer)
	largest := roundUp(c.MaxTransfer, grain) + roundUp(min(c.MaxTransfer, target.MaxScratch), grain)
	room := int(c.MemoryLimit/2)/c.PollGroups - c.dataPool() - c.adminPool()
	return max(min(2*largest, room), 0) / grain * grain
}

// adminPool is the size of a group's buffers for commands that no I/O may
// hinder: those of admin queues, and Connect.
func (c *Config) adminPool() int { return c.MaxTransfer }

// caps is what Identify and discovery tell of this transport.
func (c *Config) caps() target.TransportCaps {
	return target.TransportCaps{
		MaxQueueDepth: c.MaxQueueDepth,
		InCapsule:     c.InCapsule,
		MaxSGL:        c.MaxSGL,
		MaxTransfer:   uint32(c.MaxTransfer),
		KeyedSGL:      true,
		Invalidate:    c.SendInvalidate != Off,
	}
}
