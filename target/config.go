package target

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// Limits and defaults.
const (
	MaxNSID = 1024 // the greatest namespace identifier: NN and MNAN

	DefaultMaxQueues      = 64
	DefaultMaxControllers = 4096
	DefaultConnectTimeout = 30 * time.Second
	// DiscoveryTimeout is how long a discovery controller that asked for no
	// keep alive may be silent (Base 3.1.2.3: two minutes).
	DiscoveryTimeout = 120 * time.Second
	DefaultModel     = "nvmf"

	maxIOQueues = 1024
	serialLen   = 20
	modelLen    = 40
)

// ErrConfig is matched by every error of a configuration that is refused.
var ErrConfig = errors.New("configuration refused")

func refuse(format string, a ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrConfig}, a...)...)
}

// Config configures a Target. The zero value is usable.
type Config struct {
	// Log gets one line for each event that an operator should know of. Lines
	// that a peer can cause are limited in their rate. nil: nothing is logged.
	Log *logrus.Logger
	// Version is the firmware revision that hosts see, cut to 8 characters.
	// Default "0".
	Version string
	// CntlidMin and CntlidMax bound the controller IDs given out: 1 to FFEFh,
	// which are also the defaults. Daemons that serve the same subsystems need
	// ranges that are disjoint.
	CntlidMin, CntlidMax uint16
	// MaxQueues is the number of I/O queues a controller may have, 1 to 1024.
	// Default DefaultMaxQueues.
	MaxQueues int
	// MaxControllers is the number of controllers at a time, discovery
	// controllers included. Default DefaultMaxControllers, and never more than
	// there are controller IDs.
	MaxControllers int
	// ConnectTimeout is how long a queue may exist without Connect. Default
	// DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// DiscoveryNQN is a unique name for the discovery subsystem beside the
	// well-known one (Base 3.1.2.3.1). Default none.
	DiscoveryNQN nvme.NQN
	// Referrals are entries for other discovery services. SetReferrals changes
	// them.
	Referrals []Referral
}

// Referral names another discovery service.
type Referral struct {
	Type nvme.TransportType // 0 means RDMA
	Addr netip.AddrPort     // required; its zone, when it has one, is not shown to hosts
	NQN  nvme.NQN           // default nvme.DiscoveryNQN
}

// SubsystemConfig configures a subsystem.
type SubsystemConfig struct {
	NQN nvme.NQN // required, unique
	// Serial is 1 to 20 printable ASCII characters, unique in the target.
	// Default derived from the NQN, so that daemons with one configuration
	// agree.
	Serial string
	Model  string // 1 to 40 characters; default DefaultModel
	// Hosts may connect. The zero value lets none in.
	Hosts HostPolicy
	// Ports are names of ports the subsystem is behind; nil means all, also
	// those that come later. A name may be of a port that comes later.
	Ports []string
}

// HostPolicy says who may connect to a subsystem.
type HostPolicy struct {
	Any   bool       // everybody; List is not looked at
	List  []nvme.NQN // these
	allow map[nvme.NQN]struct{}
}

// AnyHost lets everybody in.
func AnyHost() HostPolicy { return HostPolicy{Any: true} }

// OnlyHosts lets the hosts of the list in.
func OnlyHosts(list ...nvme.NQN) HostPolicy { return HostPolicy{List: list} }

// NamespaceConfig puts a device into a subsystem.
type NamespaceConfig struct {
	NSID   uint32         // 1 to MaxNSID; required, unique in the subsystem
	Device backend.Device // required; the caller closes it, after the namespace was removed
	// Name is the device's name in the configuration: for status and messages,
	// and part of the identity when the device has none of its own.
	Name     string
	ReadOnly bool
	// UUID, NGUID and EUI64 are the identity; zero means derived from the
	// subsystem's NQN, the NSID and the identity of the device. They are
	// unique in the target.
	UUID  nvme.UUID
	NGUID nvme.NGUID
	EUI64 nvme.EUI64
}

// withDefaults is c complete, or an error that names each field at fault.
func (c Config) withDefaults() (Config, error) {
	if c.Log == nil {
		c.Log = logrus.New()
		c.Log.SetOutput(io.Discard)
		c.Log.SetLevel(logrus.PanicLevel)
	}
	def(&c.Version, "0")
	def(&c.CntlidMin, 1)
	def(&c.CntlidMax, nvme.CNTLIDMax)
	def(&c.MaxQueues, DefaultMaxQueues)
	def(&c.MaxControllers, DefaultMaxControllers)
	def(&c.ConnectTimeout, DefaultConnectTimeout)
	var errs []error
	bad := func(cond bool, format string, a ...any) {
		if cond {
			errs = append(errs, refuse(format, a...))
		}
	}
	bad(c.CntlidMin > c.CntlidMax || c.CntlidMax > nvme.CNTLIDMax,
		"controller IDs %d to %d: expected a range within 1 to %d", c.CntlidMin, c.CntlidMax, nvme.CNTLIDMax)
	bad(c.MaxQueues < 1 || c.MaxQueues > maxIOQueues, "%d I/O queues: expected 1 to %d", c.MaxQueues, maxIOQueues)
	bad(c.MaxControllers < 1, "%d controllers: expected at least 1", c.MaxControllers)
	bad(c.ConnectTimeout < 0, "connect timeout %v is negative", c.ConnectTimeout)
	if c.DiscoveryNQN != "" {
		err := c.DiscoveryNQN.Check()
		bad(err != nil, "discovery NQN: %w", err)
	}
	for _, r := range c.Referrals {
		if err := r.check(); err != nil {
			errs = append(errs, err)
		}
	}
	return c, errors.Join(errs...)
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (r Referral) check() error {
	if !r.Addr.IsValid() || r.Addr.Addr().IsUnspecified() || r.Addr.Port() == 0 {
		return refuse("referral to %v: expected an address and a port", r.Addr)
	}
	if r.NQN != "" {
		if err := r.NQN.Check(); err != nil {
			return refuse("referral to %v: %w", r.Addr, err)
		}
	}
	return nil
}

func (c SubsystemConfig) withDefaults() (SubsystemConfig, error) {
	var errs []error
	if err := c.NQN.Check(); err != nil {
		errs = append(errs, refuse("subsystem NQN: %w", err))
	}
	def(&c.Serial, deriveSerial(c.NQN))
	def(&c.Model, DefaultModel)
	if !printable(c.Serial, serialLen) {
		errs = append(errs, refuse("subsystem %s: serial %.64q: expected 1 to %d printable ASCII characters", c.NQN, c.Serial, serialLen))
	}
	if !printable(c.Model, modelLen) {
		errs = append(errs, refuse("subsystem %s: model %.64q: expected 1 to %d printable ASCII characters", c.NQN, c.Model, modelLen))
	}
	if err := c.Hosts.check(); err != nil {
		errs = append(errs, fmt.Errorf("subsystem %s: %w", c.NQN, err))
	}
	return c, errors.Join(errs...)
}

func (p HostPolicy) check() error {
	for _, h := range p.List {
		if err := h.Check(); err != nil {
			return refuse("host %.64q: %w", string(h), err)
		}
	}
	return nil
}

// compiled is p with its set, and without its caller's slice.
func (p HostPolicy) compiled() HostPolicy {
	p.allow = make(map[nvme.NQN]struct{}, len(p.List))
	list := make([]nvme.NQN, 0, len(p.List))
	for _, h := range p.List {
		if _, dup := p.allow[h]; !dup {
			p.allow[h] = struct{}{}
			list = append(list, h)
		}
	}
	p.List = list
	return p
}

// allows says whether h may connect.
func (p HostPolicy) allows(h nvme.NQN) bool {
	_, listed := p.allow[h]
	return p.Any || listed
}

// equal says whether p and o let the same hosts in.
func (p HostPolicy) equal(o HostPolicy) bool {
	if p.Any || o.Any {
		return p.Any == o.Any
	}
	if len(p.allow) != len(o.allow) {
		return false
	}
	for h := range p.allow {
		if _, ok := o.allow[h]; !ok {
			return false
		}
	}
	return true
}

func printable(s string, most int) bool {
	return s != "" && len(s) <= most && strings.TrimSpace(s) == s &&
		!strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
