package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/iwarp"
	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/providers"
	"github.com/nvmf-go/nvmf/internal/version"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
	"github.com/nvmf-go/nvmf/target/rdma"
)

// Bounds of what a reload waits for. A backend that is stuck goes on ending in
// the background, and a host that does not look has to find out later.
const (
	removeTimeout  = 5 * time.Second
	listingTimeout = 5 * time.Second
)

// Daemon is a running target.
type Daemon struct {
	// Constant.
	log       *logrus.Logger
	providers *providers.Set
	target    *target.Target
	transport *rdma.Transport
	started   time.Time
	open      func(config.Backend) (backend.Device, error)
	retry     time.Duration   // how often a listener looks for its address
	life      context.Context // ends with Close
	end       context.CancelCauseFunc

	apply sync.Mutex // held by Reload, which may wait for media; guards what follows

	backends map[string]*backendState
	subs     map[nvme.NQN]*subsystemState

	mu sync.Mutex // held for short; guards what follows, and is taken within apply

	cfg       *config.File // nil before the first Reload
	listeners map[string]*listener
	caches    map[*cacheState]struct{} // of open backends
	closed    bool
}

// Options are what a Daemon needs beside its file.
type Options struct {
	Log *logrus.Logger
	// Providers are the fabric providers that listeners may use; default those
	// of this build, as the file configures them.
	Providers *providers.Set

	// For tests.
	open  func(config.Backend) (backend.Device, error) // default openBackend
	retry time.Duration                                // default retryInterval
}

func (o *Options) setDefaults() {
	if o.Log == nil {
		o.Log = logrus.New()
	}
	if o.open == nil {
		o.open = openBackend
	}
	if o.retry == 0 {
		o.retry = retryInterval
	}
}

// Start makes a Daemon and brings it to the state of f. With f.Strict any
// backend or listener that fails ends it again; without, failures are logged
// and wait for the next Reload.
func Start(ctx context.Context, f *config.File, o Options) (*Daemon, error) {
	o.setDefaults()
	if o.Providers == nil {
		crc, err := iwarp.ParseCRC(f.IWARP.CRC)
		if err != nil {
			return nil, err
		}
		o.Providers = providers.New(providers.Options{IWARP: iwarp.Options{CRC: crc, Congestion: f.IWARP.Congestion}})
	}
	t, err := target.NewTarget(targetConfig(f, o.Log))
	if err != nil {
		return nil, err
	}
	rc, err := rdmaConfig(f, o.Log)
	if err != nil {
		return nil, errors.Join(err, t.Close(ctx))
	}
	tr, err := rdma.New(t, rc)
	if err != nil {
		return nil, errors.Join(err, t.Close(ctx))
	}
	d := &Daemon{
		log: o.Log, providers: o.Providers, target: t, transport: tr, started: time.Now(), open: o.open, retry: o.retry,
		backends: map[string]*backendState{}, listeners: map[string]*listener{}, subs: map[nvme.NQN]*subsystemState{},
		caches: map[*cacheState]struct{}{},
	}
	d.life, d.end = context.WithCancelCause(context.Background())
	r := d.Reload(ctx, f)
	if f.Strict && len(r.Errors) > 0 {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		return nil, errors.Join(errors.Join(r.Errors...), d.Close(cctx))
	}
	return d, nil
}

func targetConfig(f *config.File, log *logrus.Logger) target.Config {
	return target.Config{
		Log:          log,
		Version:      version.String(),
		CntlidMin:    uint16(f.CNTLID.Min),
		CntlidMax:    uint16(f.CNTLID.Max),
		MaxQueues:    f.RDMA.MaxQueues,
		DiscoveryNQN: nvme.NQN(f.Discovery.NQN),
		Referrals:    referrals(f),
	}
}

func rdmaConfig(f *config.File, log *logrus.Logger) (rdma.Config, error) {
	c := rdma.DefaultConfig()
	c.PollGroups = min(c.PollGroups, runtime.NumCPU()) // Owners may have raised GOMAXPROCS
	if f.PollGroups > 0 {
		c.PollGroups = f.PollGroups
	}
	fabric.Owners(c.PollGroups)
	var errs [3]error
	c.Poll, errs[0] = rdma.ParsePollMode(f.Poll)
	c.SRQ, errs[1] = rdma.ParseChoice(f.RDMA.SRQ)
	c.SendInvalidate, errs[2] = rdma.ParseChoice(f.RDMA.SendInvalidate)
	c.InCapsule = int(f.RDMA.InCapsule)
	c.MaxQueueDepth = f.RDMA.QueueDepth
	c.MaxTransfer = int(f.RDMA.MaxTransfer)
	c.MaxReads = f.RDMA.MaxReads
	c.MaxQueues = f.RDMA.MaxQueues
	c.MaxConnections = f.RDMA.MaxConnections
	c.Buffers = int64(f.RDMA.Buffers)
	c.MemoryLimit = int64(f.RDMA.MemoryLimit)
	c.Log = log
	return c, errors.Join(errs[:]...)
}

// DrainTime is how long Close may take, as the file says that is in force.
func (d *Daemon) DrainTime() time.Duration { return time.Duration(d.config().DrainTime) }

// config is the configuration in force.
func (d *Daemon) config() *config.File {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg
}

// Close ends all in order: nobody is let in any more, hosts see their queues
// disconnected, media are closed. What has not ended when ctx does is left to
// the end of the process, and the error says what it was. A Reload at work
// gives up waiting. Closing twice is nil.
func (d *Daemon) Close(ctx context.Context) error {
	d.mu.Lock()
	first := !d.closed
	d.closed = true
	listeners := slices.Collect(maps.Values(d.listeners))
	d.mu.Unlock()
	if !first {
		return nil
	}
	d.end(errClosed)
	for _, l := range listeners {
		l.stop(errClosed)
	}
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	note("ending controllers", d.target.Close(ctx))
	note("ending connections", d.transport.Close(ctx))
	if len(errs) == 0 { // devices in use by what is stuck stay open
		d.apply.Lock()
		defer d.apply.Unlock()
		for name, b := range d.backends {
			note("closing backend "+name, d.closeState(b))
		}
		note("closing providers", d.providers.Close())
	}
	return errors.Join(errs...)
}
