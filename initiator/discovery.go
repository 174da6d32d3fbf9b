package initiator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// ErrDiscovery is matched by the error of a discovery log that cannot be used:
// of an unknown format, of an absurd size, or never the same twice.
var ErrDiscovery = errors.New("discovery log")

// Limits of what a discovery service is believed.
const (
	discoveryAttempts = 10
	defaultDepth      = 8
	maxServices       = 64
)

// DiscoveryLog is what a discovery service knows: log page 70h.
type DiscoveryLog struct {
	GENCTR  uint64 // changes with every change of the log
	Records []DiscoveryRecord
	// Invalid is the number of entries left out because they name no subsystem.
	Invalid int
	// Persistent says that the service wants its hosts to stay connected
	// (EPCSD of its entry for itself).
	Persistent bool
	// Failures are the referrals that could not be followed.
	Failures []error
}

// DiscoveryRecord is an entry of a discovery log.
type DiscoveryRecord struct {
	nvme.DiscoveryEntry
	NQN    nvme.NQN       // SUBNQN
	Source netip.AddrPort // the service whose entry it is
	Depth  int            // of referrals to that service: 0 is the one that was asked
}

// Config is base made a configuration for the record's subsystem, or service.
// The error says why this host cannot connect to it: another transport, or an
// address that is not one. A link-local address gets the interface through which
// the service was reached.
func (r *DiscoveryRecord) Config(base Config) (Config, error) {
	if r.TRTYPE != nvme.TransportRDMA {
		return base, fmt.Errorf("%s: transport %v: %w", r.NQN, r.TRTYPE, fabric.ErrNotSupported)
	}
	addr, err := r.Addr()
	if err != nil {
		return base, fmt.Errorf("%s: %w", r.NQN, err)
	}
	if a := addr.Addr(); a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
		addr = netip.AddrPortFrom(a.WithZone(r.Source.Addr().Zone()), addr.Port())
	}
	base.Addr, base.Subsystem = addr, r.NQN
	base.DisableSQFlow = base.DisableSQFlow && r.TREQ&nvme.TREQDisableSQFlow != 0
	return base, nil
}

// DiscoverOptions say how far to go. The zero value asks one service.
type DiscoverOptions struct {
	// Referrals has other services asked too that the log refers to. One that
	// cannot be asked is a failure of the log's, not an error.
	Referrals bool
	// Depth is how many referrals in a row are followed; default 8. No more
	// than 64 services are asked in any case, and none twice.
	Depth int
}

// Discover asks a discovery service for its log. cfg.Subsystem and
// cfg.KeepAlive default to the well-known name and to none.
func Discover(ctx context.Context, p fabric.Provider, cfg Config, o DiscoverOptions) (*DiscoveryLog, error) {
	def(&o.Depth, defaultDepth)
	log, err := discoverOne(ctx, p, cfg, 0)
	if err != nil || !o.Referrals {
		return log, err
	}
	seen := map[service]bool{serviceOf(cfg): true}
	for i := 0; i < len(log.Records); i++ { // grows
		r := &log.Records[i]
		if r.SUBTYPE != nvme.SubsystemReferral || r.Depth >= o.Depth || len(seen) >= maxServices {
			continue
		}
		next, err := r.Config(cfg)
		if err == nil && seen[serviceOf(next)] {
			continue
		}
		var more *DiscoveryLog
		if err == nil {
			seen[serviceOf(next)] = true
			more, err = discoverOne(ctx, p, next, r.Depth+1)
		}
		if err != nil {
			log.Failures = append(log.Failures, fmt.Errorf("referral: %w", err))
			continue
		}
		log.Records = append(log.Records, more.Records...)
		log.Invalid += more.Invalid
	}
	return log, nil
}

// service names a discovery service.
type service struct {
	addr netip.AddrPort
	nqn  nvme.NQN
}

func serviceOf(c Config) service {
	def(&c.Subsystem, nvme.DiscoveryNQN)
	if c.Addr.Port() == 0 {
		c.Addr = netip.AddrPortFrom(c.Addr.Addr(), DefaultPort)
	}
	return service{netip.AddrPortFrom(c.Addr.Addr().Unmap(), c.Addr.Port()), c.Subsystem}
}

// discoverOne asks one service, and leaves it.
func discoverOne(ctx context.Context, p fabric.Provider, cfg Config, depth int) (_ *DiscoveryLog, err error) {
	def(&cfg.Subsystem, nvme.DiscoveryNQN)
	def(&cfg.KeepAlive, -1)
	cfg.discovery, cfg.transient, cfg.NoReconnect = true, true, true
	c, err := Connect(ctx, p, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	log, err := c.DiscoveryLog(ctx)
	if err != nil {
		return nil, err
	}
	for i := range log.Records {
		log.Records[i].Depth = depth
	}
	return log, nil
}

// DiscoveryLog reads log page 70h of a discovery controller: the header, the
// entries, and the header again; when the log has changed meanwhile, all of it
// once more.
func (c *Controller) DiscoveryLog(ctx context.Context) (*DiscoveryLog, error) {
	var was, is nvme.DiscoveryHeader
	for range discoveryAttempts {
		var err error
		if was, err = c.discoveryHeader(ctx, true); err != nil {
			return nil, err
		}
		entries, err := c.discoveryEntries(ctx, was.NUMREC)
		if err != nil {
			return nil, err
		}
		if is, err = c.discoveryHeader(ctx, false); err != nil {
			return nil, err
		}
		if was == is {
			return c.parseDiscovery(was.GENCTR, entries)
		}
	}
	return nil, fmt.Errorf("%w of %v: it changed at each of %d attempts (generation %d, then %d)", ErrDiscovery, c, discoveryAttempts, was.GENCTR, is.GENCTR)
}

// discoveryHeader reads the header and judges it. Reading without RAE lets the
// next change be told.
func (c *Controller) discoveryHeader(ctx context.Context, rae bool) (h nvme.DiscoveryHeader, err error) {
	b, err := c.LogPage(ctx, 0, nvme.LogRequest{LID: nvme.LogDiscovery, Length: nvme.DiscoveryHeaderSize, RAE: rae})
	if err != nil {
		return h, err
	}
	if err := h.Unmarshal(b); err != nil {
		return h, err
	}
	switch {
	case h.RECFMT != 0:
		return h, fmt.Errorf("%w of %v: record format %d is not known", ErrDiscovery, c, h.RECFMT)
	case h.NUMREC > nvme.MaxDiscoveryEntries:
		return h, fmt.Errorf("%w of %v: %d records, more than the %d that are believed", ErrDiscovery, c, h.NUMREC, nvme.MaxDiscoveryEntries)
	}
	return h, nil
}

func (c *Controller) discoveryEntries(ctx context.Context, n uint64) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	return c.LogPage(ctx, 0, nvme.LogRequest{
		LID: nvme.LogDiscovery, Offset: nvme.DiscoveryHeaderSize, Length: n * nvme.DiscoveryEntrySize, RAE: true,
	})
}

func (c *Controller) parseDiscovery(genctr uint64, b []byte) (*DiscoveryLog, error) {
	log := &DiscoveryLog{GENCTR: genctr}
	for ; len(b) > 0; b = b[nvme.DiscoveryEntrySize:] {
		r := DiscoveryRecord{Source: c.cfg.Addr}
		err := r.Unmarshal(b[:nvme.DiscoveryEntrySize])
		if err == nil {
			r.NQN, err = nvme.DecodeNQN(r.SUBNQN[:])
		}
		if err != nil {
			c.log().Warnf("initiator: %v: a discovery entry is left out: %v", c, err)
			log.Invalid++
			continue
		}
		if r.SUBTYPE == nvme.SubsystemDiscovery && r.EFLAGS&nvme.EFLAGSEPCSD != 0 {
			log.Persistent = true
		}
		log.Records = append(log.Records, r)
	}
	return log, nil
}

// Discoverer keeps connections to discovery services, one for each service and
// host identity however often it is asked for.
type Discoverer struct {
	provider fabric.Provider

	mu      sync.Mutex
	watches map[watchKey]*DiscoveryWatch
}

// watchKey says which watches are the same connection.
type watchKey struct {
	service
	local netip.Addr
	nqn   nvme.NQN
	id    nvme.HostID
}

// NewDiscoverer makes a Discoverer over the devices of p.
func NewDiscoverer(p fabric.Provider) *Discoverer {
	return &Discoverer{provider: p, watches: make(map[watchKey]*DiscoveryWatch)}
}

// DiscoveryWatch is a persistent connection to a discovery service.
type DiscoveryWatch struct {
	d   *Discoverer
	key watchKey
	c   *Controller

	mu   sync.Mutex
	refs int
	log  *DiscoveryLog
	err  error
	fns  map[int]func(*DiscoveryLog)
	next int
}

// Watch connects to a discovery service for good, reads its log and calls fn
// with it, now and after each change: when the service tells of one, and when it
// was reconnected and the log is another. fn is called one at a time; it may be
// nil. A second Watch of the same service by the same host shares the
// connection. cfg.KeepAlive defaults to DefaultDiscoveryKeepAlive.
func (d *Discoverer) Watch(ctx context.Context, cfg Config, fn func(*DiscoveryLog)) (*Subscription, error) {
	def(&cfg.Subsystem, nvme.DiscoveryNQN)
	def(&cfg.KeepAlive, DefaultDiscoveryKeepAlive)
	cfg.discovery = true
	full, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	key := watchKey{serviceOf(full), full.LocalAddr, full.HostNQN, full.HostID}
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.watches[key]
	if w == nil {
		if w, err = d.connect(ctx, full, key); err != nil {
			return nil, err
		}
		d.watches[key] = w
	}
	return w.subscribe(fn), nil
}

// connect makes a watch. mu is held: those who ask for the same wait.
func (d *Discoverer) connect(ctx context.Context, cfg Config, key watchKey) (*DiscoveryWatch, error) {
	w := &DiscoveryWatch{d: d, key: key, fns: make(map[int]func(*DiscoveryLog))}
	user := cfg.Handler
	cfg.Handler.Discovery = func(c *Controller) {
		w.refresh(c.ctx, c)
		if user.Discovery != nil {
			user.Discovery(c)
		}
	}
	cfg.Handler.State = func(c *Controller, s State) {
		if s == StateLive && w.read() {
			w.refresh(c.ctx, c)
		}
		if user.State != nil {
			user.State(c, s)
		}
	}
	var err error
	if w.c, err = Connect(ctx, d.provider, cfg); err != nil {
		return nil, err
	}
	w.refresh(ctx, w.c)
	if w.log == nil {
		return nil, errors.Join(w.err, w.c.Close())
	}
	return w, nil
}

// read says whether the log was ever read.
func (w *DiscoveryWatch) read() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log != nil
}

// refresh reads the log and tells of it when it is another.
func (w *DiscoveryWatch) refresh(ctx context.Context, c *Controller) {
	log, err := c.DiscoveryLog(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	if err != nil {
		c.log().Warnf("initiator: %v: %v", c, err)
		return
	}
	changed := w.log == nil || w.log.GENCTR != log.GENCTR || len(w.log.Records) != len(log.Records)
	w.log = log
	if changed {
		for _, fn := range w.fns {
			fn(log)
		}
	}
}

// Subscription is one caller's part in a DiscoveryWatch.
type Subscription struct {
	w    *DiscoveryWatch
	id   int
	once sync.Once
}

func (w *DiscoveryWatch) subscribe(fn func(*DiscoveryLog)) *Subscription {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refs++
	w.next++
	if fn != nil {
		w.fns[w.next] = fn
		fn(w.log)
	}
	return &Subscription{w: w, id: w.next}
}

// Log is the log as last read, and why the latest attempt to read it failed.
func (s *Subscription) Log() (*DiscoveryLog, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.w.log, s.w.err
}

// Controller is the discovery controller.
func (s *Subscription) Controller() *Controller { return s.w.c }

// Close ends the subscription; the last one disconnects. It must not be called
// from the function given to Watch. Closing twice is nil.
func (s *Subscription) Close() error {
	var err error
	s.once.Do(func() { err = s.w.unsubscribe(s.id) })
	return err
}

func (w *DiscoveryWatch) unsubscribe(id int) error {
	w.d.mu.Lock()
	w.mu.Lock()
	delete(w.fns, id)
	w.refs--
	last := w.refs == 0
	w.mu.Unlock()
	if last {
		delete(w.d.watches, w.key)
	}
	w.d.mu.Unlock()
	if !last {
		return nil
	}
	return w.c.Close()
}
