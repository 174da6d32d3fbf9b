package initiator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// PathConfig is one way to a subsystem.
type PathConfig struct {
	Provider fabric.Provider
	Config   Config // FastIOFail and BounceMemory are the Multipath's
}

// MultipathConfig configures a Multipath. The zero value is usable.
type MultipathConfig struct {
	// Policy chooses between usable paths. Default RoundRobin.
	Policy Policy
	// FastIOFail is how long I/O is held while no path can take it. Default
	// DefaultFastIOFail; negative: until every controller is lost.
	FastIOFail time.Duration
	// BounceMemory is as in Config, for all paths together.
	BounceMemory int
	// Log gets what a person should know of paths. Default nothing.
	Log *logrus.Logger
}

// Multipath is one subsystem through several controllers. I/O goes on as long as
// one of them can take it. Its methods are safe for concurrent use.
//
// When a path is lost, commands that change nothing, and those that were not
// sent yet, take another at once; a command that changes data and that the lost
// controller may still execute is held for Config.ReplayDelay before it is sent
// on another path, as the package comment says.
type Multipath struct {
	// Constant.

	s         *shared
	subsystem nvme.NQN
	log       *logrus.Logger

	mu         sync.Mutex
	paths      []*Controller
	namespaces map[uint32]*Namespace
	closed     bool
}

// ConnectMultipath connects to a subsystem on every path. It succeeds when one
// path is connected; the others are tried again and again, like controllers that
// were lost. When none is the error joins those of all. All paths are of one
// subsystem and one host.
func ConnectMultipath(ctx context.Context, paths []PathConfig, cfg MultipathConfig) (*Multipath, error) {
	def(&cfg.FastIOFail, DefaultFastIOFail)
	def(&cfg.BounceMemory, DefaultBounceMemory)
	if cfg.Log == nil {
		cfg.Log = logrus.New()
		cfg.Log.SetOutput(io.Discard)
	}
	if len(paths) == 0 {
		return nil, errors.New("initiator: a multipath of no path")
	}
	m := &Multipath{
		s: &shared{
			devices: new(domains), bounce: newBounce(cfg.BounceMemory), disp: newDispatcher(cfg.FastIOFail, cfg.Policy),
		},
		log:       cfg.Log,
		subsystem: paths[0].Config.Subsystem, namespaces: make(map[uint32]*Namespace),
	}
	var errs []error
	for i := range paths {
		full, err := m.complete(paths[i].Config)
		if err != nil {
			return nil, errors.Join(err, m.Close())
		}
		c, err := connect(ctx, paths[i].Provider, full, m.s)
		if c != nil {
			m.paths = append(m.paths, c)
		}
		if err != nil {
			errs = append(errs, err)
			m.log.Warnf("initiator: path to %s: %v", m.subsystem, err)
		}
	}
	if len(errs) == len(paths) {
		return nil, errors.Join(append(errs, m.Close())...)
	}
	return m, nil
}

// complete makes a path's configuration complete, and one of this subsystem.
func (m *Multipath) complete(c Config) (Config, error) {
	c, err := c.withDefaults()
	if err == nil && c.Subsystem != m.subsystem {
		err = fmt.Errorf("initiator: a path to %s in a multipath of %s", c.Subsystem, m.subsystem)
	}
	c.FastIOFail = m.s.disp.fastFail
	return c, err
}

// Add adds a path, connected or not; the error is why it is not, and the path is
// tried again unless the error is of the configuration or the Multipath is
// closed.
func (m *Multipath) Add(ctx context.Context, p PathConfig) error {
	full, err := m.complete(p.Config)
	if err != nil {
		return err
	}
	c, err := connect(ctx, p.Provider, full, m.s)
	if c == nil {
		return err
	}
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.paths = append(m.paths, c)
		for _, n := range m.namespaces {
			c.attach(n)
		}
	}
	m.mu.Unlock()
	switch {
	case closed:
		return errors.Join(errClosed, c.Close())
	case err != nil:
		return err
	}
	return c.recheck(ctx)
}

// Remove closes and forgets the path to addr. I/O on it moves to the others.
func (m *Multipath) Remove(addr netip.AddrPort) error {
	m.mu.Lock()
	i := slices.IndexFunc(m.paths, func(c *Controller) bool { return c.cfg.Addr == addr })
	if i < 0 {
		m.mu.Unlock()
		return fmt.Errorf("no path to %v", addr)
	}
	c := m.paths[i]
	m.paths = slices.Delete(m.paths, i, i+1)
	m.mu.Unlock()
	return c.Close()
}

// Controllers are the controllers of the paths, in the order they were added.
func (m *Multipath) Controllers() []*Controller {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.paths)
}

// Policy is how paths are chosen.
func (m *Multipath) Policy() Policy { return m.s.disp.policy }

// Namespace opens a namespace of the subsystem, over all paths. A path that
// shows another namespace under that ID is not used for it.
func (m *Multipath) Namespace(ctx context.Context, nsid uint32) (*Namespace, error) {
	m.mu.Lock()
	n, paths := m.namespaces[nsid], slices.Clone(m.paths)
	m.mu.Unlock()
	if n != nil && !n.gone.Load() {
		return n, nil
	}
	n, err := m.open(ctx, nsid, paths)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.namespaces[nsid]; have != nil && !have.gone.Load() {
		return have, nil
	}
	m.namespaces[nsid] = n
	for _, c := range m.paths {
		c.attach(n)
	}
	for _, c := range m.paths {
		if c.usable() {
			if err := c.recheckOne(ctx, n); err != nil && c.usable() {
				return nil, err
			}
		}
	}
	return n, nil
}

// open reads what a namespace is on the first path that tells.
func (m *Multipath) open(ctx context.Context, nsid uint32, paths []*Controller) (*Namespace, error) {
	err := fmt.Errorf("%w: no path is connected", ErrPathLost)
	for _, c := range paths {
		if !c.usable() {
			continue
		}
		var info *nsInfo
		if info, err = c.examine(ctx, c.latest(), nsid); err == nil {
			n := &Namespace{nsid: nsid, c: c, disp: m.s.disp, bounce: m.s.bounce, shared: true}
			n.info.Store(info)
			return n, nil
		}
	}
	return nil, err
}

// attach has the controller look after a namespace that others have too.
func (c *Controller) attach(n *Namespace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attached[n.nsid] = n
}

// Close closes every path; what is in flight fails. Closing twice is nil.
func (m *Multipath) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	paths := m.paths
	m.paths = nil
	m.mu.Unlock()
	errs := make([]error, len(paths))
	m.s.disp.refuse(errClosed)
	var wg sync.WaitGroup
	for i, c := range paths {
		wg.Go(func() { errs[i] = c.Close() })
	}
	wg.Wait()
	m.s.disp.close(errClosed)
	m.s.bounce.close()
	return errors.Join(errs...)
}
