package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/internal/show"
	"github.com/nvmf-go/nvmf/nvme"
)

// session is a command's connection to a controller.
type session struct {
	ctx      context.Context
	c        *cli.Context
	dev      device
	cfg      initiator.Config
	provider fabric.Provider
	ctrl     *initiator.Controller
	show     show.Options
	wants    string // the provider by name, or auto
}

// needs is what a command wants of its session.
type needs struct {
	queues int  // I/O queues, unless the user says how many; 0 for none
	depth  int  // of each at least
	long   bool // it goes on for a while, so that reconnecting is worth it
	// provider is used in place of the option's, when not empty.
	provider string
	// handler is told of what happens to the controller.
	handler initiator.Handler
}

// aim finds out what to connect to, and with which provider: the option's when
// provider is empty.
func (w *world) aim(c *cli.Context, name, provider string) (*session, error) {
	d, err := deviceOf(c, name)
	if err != nil {
		return nil, err
	}
	s := &session{ctx: c.Context, c: c, dev: d}
	if s.show, err = showOptions(c); err != nil {
		return nil, err
	}
	if s.cfg, err = w.config(s.ctx, c); err != nil {
		return nil, err
	}
	if err := w.identify(&s.cfg, c.Bool("verbose")); err != nil {
		return nil, err
	}
	if s.cfg.Addr, err = initiator.ParseAddr(s.ctx, d.traddr, d.trsvcid); err != nil {
		return nil, addressError(err)
	}
	s.dev.trsvcid = fmt.Sprint(s.cfg.Addr.Port())
	if provider == "" {
		provider = c.String("provider")
	}
	s.wants = provider
	if s.provider, err = w.providers.Toward(s.ctx, provider, s.cfg.LocalAddr, s.cfg.Addr.Addr()); err != nil {
		if errors.Is(err, fabric.ErrNotSupported) {
			return nil, usagef("--provider: expected auto or one of %s: %w", strings.Join(w.providers.Names(), ", "), err)
		}
		return nil, err
	}
	return s, nil
}

// addressError tells an address that is none from a name that nobody knows.
func addressError(err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return err
	}
	return usageError{err}
}

// open connects to the controller that the command line names; name is the
// command's DEVICE, "" when it has none.
func (w *world) open(c *cli.Context, name string, n needs) (*session, error) {
	s, err := w.aim(c, name, n.provider)
	if err != nil {
		return nil, err
	}
	holdOn(c, &s.cfg, n.long)
	s.cfg.Handler = n.handler
	if n.queues > 0 {
		s.cfg.IOQueues = n.queues
		if q := c.Int("nr-io-queues"); q > 0 {
			s.cfg.IOQueues = q
		}
		s.cfg.QueueDepth = max(s.cfg.QueueDepth, n.depth)
		fabric.Owners(s.cfg.IOQueues)
		if c.IsSet("spin") {
			s.cfg.Spin = max(c.Duration("spin"), -1)
		}
	}
	return s, w.either(s, s.connect)
}

// either does fn, which talks to the target, with the second provider when the
// user left the choice to us and nobody there speaks what the first does.
func (w *world) either(s *session, fn func() error) error {
	err := fn()
	if err == nil {
		return nil
	}
	second := w.providers.Instead(s.wants, s.provider, err)
	if second == nil {
		return err
	}
	first := s.provider
	s.provider = second
	if fn() == nil {
		return nil
	}
	s.provider = first
	return err
}

func (s *session) connect() (err error) {
	if s.dev.nqn == "" {
		if err := s.findSubsystem(); err != nil {
			return err
		}
	}
	s.cfg.Subsystem = s.dev.nqn
	s.show.Device = string(s.dev.nqn)
	s.ctrl, err = initiator.Connect(s.ctx, s.provider, s.cfg)
	return err
}

// findSubsystem asks the discovery service what there is, for a user who has
// not said.
func (s *session) findSubsystem() error {
	log, err := initiator.Discover(s.ctx, s.provider, s.cfg, initiator.DiscoverOptions{})
	if err != nil {
		return fmt.Errorf("no -n, and the discovery service does not answer: %w", err)
	}
	found := subsystemsAt(log, s.cfg.Addr)
	switch len(found) {
	case 0:
		return fmt.Errorf("no -n, and the discovery service at %v shows this host no subsystem there", s.cfg.Addr)
	case 1:
		s.dev.nqn = found[0]
		return nil
	}
	names := make([]string, len(found))
	for i, n := range found {
		names[i] = string(n)
	}
	return usagef("which subsystem? -n one of %s", strings.Join(names, ", "))
}

// subsystemsAt are the NVM subsystems of a discovery log that are at addr, or
// all when none is: a service may know itself by another address.
func subsystemsAt(log *initiator.DiscoveryLog, addr netip.AddrPort) []nvme.NQN {
	var here, all []nvme.NQN
	add := func(list []nvme.NQN, n nvme.NQN) []nvme.NQN {
		if slices.Contains(list, n) {
			return list
		}
		return append(list, n)
	}
	for i := range log.Records {
		r := &log.Records[i]
		if r.SUBTYPE != nvme.SubsystemNVM || r.TRTYPE != nvme.TransportRDMA {
			continue
		}
		all = add(all, r.NQN)
		if a, err := r.Addr(); err == nil && a == addr {
			here = add(here, r.NQN)
		}
	}
	if len(here) > 0 {
		return here
	}
	return all
}

// close disconnects. The error of the command comes first.
func (s *session) close(err *error) {
	if s.ctrl == nil {
		return
	}
	if cerr := s.ctrl.Close(); *err == nil {
		*err = cerr
	}
}

// nsid is the namespace that the command is about.
func (s *session) nsid() (uint32, error) {
	if s.dev.nsid != 0 {
		return s.dev.nsid, nil
	}
	list, err := s.ctrl.ActiveNamespaces(s.ctx)
	switch {
	case err != nil:
		return 0, err
	case len(list) == 0:
		return 0, fmt.Errorf("%s has no namespace for this host: %w", s.dev.nqn, initiator.ErrNoNamespace)
	case len(list) > 1:
		return 0, usagef("which namespace? -N one of %s", strings.Trim(fmt.Sprint(list), "[]"))
	}
	s.dev.nsid = list[0]
	return s.dev.nsid, nil
}

// namespace opens the namespace that the command is about.
func (s *session) namespace() (*initiator.Namespace, error) {
	nsid, err := s.nsid()
	if err != nil {
		return nil, err
	}
	return s.ctrl.Namespace(s.ctx, nsid)
}

// print writes a document the way the user wants it.
func (w *world) print(s *session, d *show.Doc) error { return d.Write(w.stdout, s.show.Format) }

// operand is the command's DEVICE, "" when there is none.
func operand(c *cli.Context) (string, error) {
	if c.NArg() > 1 {
		return "", usagef("%s: unexpected operand %q: expected at most one, the DEVICE", c.Command.Name, c.Args().Get(1))
	}
	return c.Args().First(), nil
}

// verb makes a command that does fn with a session. The options in must have to
// be given.
func (w *world) verb(name, usage string, n needs, flags []cli.Flag, fn func(*session) error, must ...string) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: "[DEVICE]", Flags: append(flags, connectFlags()...),
		Action: func(c *cli.Context) (err error) {
			if err := required(c, must...); err != nil {
				return err
			}
			dev, err := operand(c)
			if err != nil {
				return err
			}
			s, err := w.open(c, dev, n)
			if err != nil {
				return err
			}
			defer s.close(&err)
			return fn(s)
		},
	}
}
