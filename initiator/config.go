package initiator

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/nvme"
)

// DefaultPort is the port of NVMe over RDMA when none is given.
const DefaultPort = 4420

// Defaults of Config.
const (
	DefaultQueueDepth         = 128
	DefaultKeepAlive          = 5 * time.Second
	DefaultDiscoveryKeepAlive = 30 * time.Second
	DefaultReconnectDelay     = time.Second
	DefaultMaxReconnectDelay  = 10 * time.Second
	DefaultCtrlLossTimeout    = 10 * time.Minute
	DefaultFastIOFail         = 30 * time.Second
	DefaultConnectTimeout     = 10 * time.Second
	DefaultReadyTimeout       = 30 * time.Second
	DefaultIOTimeout          = 30 * time.Second
	DefaultAdminTimeout       = 60 * time.Second
	DefaultShutdownTimeout    = 2 * time.Second
	DefaultReplayDelay        = 10 * time.Second // when there is no keep alive
	DefaultSpin               = 100 * time.Microsecond
	DefaultBounceMemory       = 16 << 20
)

// Limits of Config.
const (
	maxIOQueues   = 1024
	maxQueueDepth = 4095 // a CID has 12 bits for the slot
	adminDepth    = 31   // commands in flight; hosts have 32 entries
)

// Choice is a setting that can be left to the package.
type Choice uint8

// Choices.
const (
	Auto Choice = iota
	On
	Off
)

func (c Choice) String() string {
	switch c {
	case Auto:
		return "auto"
	case On:
		return "on"
	case Off:
		return "off"
	}
	return fmt.Sprintf("Choice(%d)", uint8(c))
}

// Config says what to connect to and how. The zero value of a field means its
// default. Addr and Subsystem are required.
type Config struct {
	// Addr is the target's address and port; a port of 0 means DefaultPort. A
	// link-local IPv6 address needs its zone. ParseAddr makes it of text.
	Addr netip.AddrPort
	// LocalAddr chooses the device, and the address to connect from. Default:
	// what routing says.
	LocalAddr netip.Addr
	// Subsystem is the name of the subsystem; for Discover and WatchDiscovery
	// the default is the well-known discovery name.
	Subsystem nvme.NQN

	// HostNQN and HostID are who we are. Default: HostIdentity. With only one
	// of them given the other follows from it, for a HostNQN of the UUID form.
	HostNQN nvme.NQN
	HostID  nvme.HostID

	// IOQueues is the number of I/O queues wanted, 1 to 1024, or negative for
	// none; the controller may grant fewer. Default the number of CPUs, at most
	// 4. Each is a connection of its own.
	IOQueues int
	// QueueDepth is the number of commands in flight on an I/O queue, 1 to
	// 4095. Default DefaultQueueDepth. The controller may allow fewer.
	QueueDepth int
	// DisableSQFlow asks the controller to go without submission queue flow
	// control, which this host does not need.
	DisableSQFlow bool
	// NoInCapsule sends all data of Writes by RDMA READ, even what would fit a
	// capsule.
	NoInCapsule bool
	// Invalidate says whether commands get keys of their own that the target
	// ends (SEND with invalidate). Auto does so on devices with memory windows,
	// and stops when a target seems to die of it; On fails to connect without
	// windows; Off never does.
	Invalidate Choice
	// TOS is the traffic class byte of the connections' packets, where the
	// provider can set it.
	TOS uint8

	// KeepAlive is the keep alive timeout (KATO), milliseconds to 49 days;
	// negative for none. Default DefaultKeepAlive; none for Discover;
	// DefaultDiscoveryKeepAlive for WatchDiscovery. A dead target is noticed
	// in this time.
	KeepAlive time.Duration
	// IOTimeout is how long an I/O command may take before the controller is
	// given up for lost. Default DefaultIOTimeout.
	IOTimeout time.Duration
	// AdminTimeout is the same of admin commands, and bounds their wait for a
	// controller that is reconnecting. Default DefaultAdminTimeout.
	AdminTimeout time.Duration
	// ConnectTimeout bounds each connection: the handshake and the Connect
	// command. Default DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// ReadyTimeout bounds the wait for CSTS.RDY where the controller asks for
	// more (CAP.TO can be two minutes). Default DefaultReadyTimeout.
	ReadyTimeout time.Duration
	// ShutdownTimeout bounds the orderly end in Close. Default
	// DefaultShutdownTimeout.
	ShutdownTimeout time.Duration

	// ReconnectDelay is the wait before the second attempt to reconnect (the
	// first is made at once). It doubles from attempt to attempt up to
	// MaxReconnectDelay; each wait is varied by a fifth. Defaults
	// DefaultReconnectDelay and DefaultMaxReconnectDelay.
	ReconnectDelay, MaxReconnectDelay time.Duration
	// CtrlLossTimeout is how long to try; then the controller is lost for good
	// and all commands fail. Default DefaultCtrlLossTimeout; negative: for ever.
	CtrlLossTimeout time.Duration
	// NoReconnect gives a controller up at the first error.
	NoReconnect bool
	// FastIOFail is how long I/O is held while no controller is connected; then
	// it fails, held or new, until one is. Default DefaultFastIOFail; negative:
	// as long as CtrlLossTimeout.
	FastIOFail time.Duration
	// ReplayDelay is how long a command that changes data, and that a lost
	// controller may still execute, is held before it is sent anew; see the
	// package comment. Default: the keep alive timeout, twice that with traffic
	// based keep alive, or DefaultReplayDelay without keep alive. Negative:
	// not at all, which risks that an old write lands on a new one.
	ReplayDelay time.Duration

	// Spin is how long a queue that waits for answers polls at most before it
	// sleeps; less than 1 ms is no longer than usually finds some, and up to ten
	// times that where sleeps are dear (fabric.Spin). Default DefaultSpin; negative:
	// not at all.
	Spin time.Duration
	// BounceMemory is the memory in bytes, at least 1 MiB, through which the
	// data of ReadAt and WriteAt goes. Calls wait for it. Default
	// DefaultBounceMemory.
	BounceMemory int

	// Handler hears of events. Default none.
	Handler Handler
	// Log gets what a person should know. Default nothing.
	Log *logrus.Logger

	discovery bool // of a discovery service: no I/O queues
	transient bool // for a moment only: no events
}

// Handler are functions that are called when something happens. Any may be nil.
// They are called one at a time, from a goroutine of the controller that does
// nothing else, and may call the controller's methods except Close.
type Handler struct {
	// State is called after each change of a controller's state.
	State func(c *Controller, s State)
	// Namespaces is called when namespaces have appeared, changed or gone; the
	// namespaces that were handed out are up to date by then.
	Namespaces func(c *Controller, nsids []uint32)
	// ANA is called when asymmetric access states have changed.
	ANA func(c *Controller)
	// Discovery is called when a discovery service has changed its log.
	Discovery func(c *Controller)
	// Event is called for every asynchronous event, those above included.
	Event func(c *Controller, e nvme.AsyncEvent)
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// withDefaults is c complete, or an error that names every field at fault.
func (c Config) withDefaults() (Config, error) {
	if c.Addr.Port() == 0 {
		c.Addr = netip.AddrPortFrom(c.Addr.Addr(), DefaultPort)
	}
	c.Addr = netip.AddrPortFrom(c.Addr.Addr().Unmap(), c.Addr.Port())
	def(&c.IOQueues, min(runtime.GOMAXPROCS(0), 4))
	def(&c.QueueDepth, DefaultQueueDepth)
	def(&c.KeepAlive, DefaultKeepAlive)
	def(&c.IOTimeout, DefaultIOTimeout)
	def(&c.AdminTimeout, DefaultAdminTimeout)
	def(&c.ConnectTimeout, DefaultConnectTimeout)
	def(&c.ReadyTimeout, DefaultReadyTimeout)
	def(&c.ShutdownTimeout, DefaultShutdownTimeout)
	def(&c.ReconnectDelay, DefaultReconnectDelay)
	def(&c.MaxReconnectDelay, max(DefaultMaxReconnectDelay, c.ReconnectDelay))
	def(&c.CtrlLossTimeout, DefaultCtrlLossTimeout)
	def(&c.FastIOFail, DefaultFastIOFail)
	def(&c.Spin, DefaultSpin)
	def(&c.BounceMemory, DefaultBounceMemory)
	c.IOQueues, c.KeepAlive, c.Spin = max(c.IOQueues, 0), max(c.KeepAlive, 0), max(c.Spin, 0)
	if c.discovery {
		c.IOQueues = 0
	}
	if c.Log == nil {
		c.Log = logrus.New()
		c.Log.SetOutput(io.Discard)
		c.Log.SetLevel(logrus.PanicLevel)
	}
	err := c.identify()
	if err == nil && !matching(c.HostNQN, c.HostID) {
		c.Log.Warnf("initiator: the host ID %v is not the UUID in the host NQN %s: some targets take exception to that", c.HostID, c.HostNQN)
	}
	return c, errors.Join(c.check(), err)
}

// check judges a Config whose defaults are filled in.
func (c *Config) check() error {
	var errs []error
	bad := func(cond bool, format string, a ...any) {
		if cond {
			errs = append(errs, fmt.Errorf("initiator: "+format, a...))
		}
	}
	a := c.Addr.Addr()
	bad(!a.IsValid() || a.IsUnspecified() || a.IsMulticast(), "address %v: expected the address of a target", c.Addr)
	bad(a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "", "address %v: a link-local address needs its interface (%v%%eth0)", c.Addr, a)
	if err := c.Subsystem.Check(); err != nil {
		errs = append(errs, fmt.Errorf("initiator: subsystem %.64q: %w", string(c.Subsystem), err))
	}
	bad(c.IOQueues > maxIOQueues, "%d I/O queues: expected at most %d", c.IOQueues, maxIOQueues)
	bad(c.QueueDepth < 1 || c.QueueDepth > maxQueueDepth, "queue depth %d: expected 1 to %d", c.QueueDepth, maxQueueDepth)
	bad(c.Invalidate > Off, "Invalidate %d: expected Auto, On or Off", c.Invalidate)
	bad(c.KeepAlive > 0 && c.KeepAlive < time.Millisecond || c.KeepAlive.Milliseconds() > 1<<32-1,
		"keep alive timeout %v: expected 1 ms to 49 days", c.KeepAlive)
	bad(c.BounceMemory < 1<<20, "%d bytes of bounce memory: expected at least 1 MiB", c.BounceMemory)
	for _, d := range []struct {
		name string
		v    time.Duration
	}{
		{"IOTimeout", c.IOTimeout}, {"AdminTimeout", c.AdminTimeout}, {"ConnectTimeout", c.ConnectTimeout},
		{"ReadyTimeout", c.ReadyTimeout}, {"ShutdownTimeout", c.ShutdownTimeout},
		{"ReconnectDelay", c.ReconnectDelay}, {"MaxReconnectDelay", c.MaxReconnectDelay - c.ReconnectDelay},
	} {
		bad(d.v < 0, "%s is too small", d.name)
	}
	return errors.Join(errs...)
}

// identify fills in who we are.
func (c *Config) identify() (err error) {
	if c.HostNQN == "" && c.HostID.IsZero() {
		c.HostNQN, c.HostID, err = HostIdentity()
		return err
	}
	c.HostNQN, c.HostID, err = completeIdentity(c.HostNQN, c.HostID)
	return err
}

// katoMillis is KATO as Connect carries it.
func (c *Config) katoMillis() uint32 {
	return uint32((c.KeepAlive + time.Millisecond - 1) / time.Millisecond)
}

// replayDelay is how long commands in doubt are held, on a controller with
// traffic based keep alive or without.
func (c *Config) replayDelay(tbkas bool) time.Duration {
	switch {
	case c.ReplayDelay < 0:
		return 0
	case c.ReplayDelay > 0:
		return c.ReplayDelay
	case c.KeepAlive == 0:
		return DefaultReplayDelay
	case tbkas:
		return 2 * c.KeepAlive
	}
	return c.KeepAlive
}
