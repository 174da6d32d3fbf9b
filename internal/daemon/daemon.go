package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/version"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
	"github.com/nvmf-go/nvmf/target/rdma"
)

// removeTimeout bounds how long a reload waits for what it removes; a backend
// that is stuck goes on ending in the background.
const removeTimeout = 5 * time.Second

// Daemon is a running target.
type Daemon struct {
	// Constant.
	log       *logrus.Logger
	providers *Providers
	target    *target.Target
	transport *rdma.Transport
	started   time.Time

	mu        sync.Mutex // held by Reload and Close, and briefly by Status
	cfg       *config.File
	backends  map[string]*backendState
	listeners map[string]*listener
	subs      map[nvme.NQN]*subsystemState
	closed    bool
}

// Options are what a Daemon needs beside its file.
type Options struct {
	Log *logrus.Logger
	// Providers are the fabric providers that listeners may use; default those
	// of this build.
	Providers *Providers
}

// Start makes a Daemon and brings it to the state of f. With f.Strict any
// backend or listener that fails ends it again; without, failures are logged
// and wait for the next Reload.
func Start(ctx context.Context, f *config.File, o Options) (*Daemon, error) {
	if o.Log == nil {
		o.Log = logrus.New()
	}
	if o.Providers == nil {
		o.Providers = DefaultProviders()
	}
	t, err := target.NewTarget(targetConfig(f, o.Log))
	if err != nil {
		return nil, err
	}
	rc, err := rdmaConfig(f, o.Log)
	if err != nil {
		return nil, err
	}
	tr, err := rdma.New(t, rc)
	if err != nil {
		return nil, errors.Join(err, t.Close(ctx))
	}
	d := &Daemon{
		log: o.Log, providers: o.Providers, target: t, transport: tr, started: time.Now(),
		backends: map[string]*backendState{}, listeners: map[string]*listener{}, subs: map[nvme.NQN]*subsystemState{},
	}
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
	if f.PollGroups > 0 {
		c.PollGroups = f.PollGroups
	}
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

// Close ends all in order: hosts see their queues disconnected. What has not
// ended when ctx does is left to the end of the process, and the error says
// what it was.
func (d *Daemon) Close(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	for _, l := range d.listeners {
		l.stop()
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
		for name, b := range d.backends {
			note("closing backend "+name, b.dev.Close())
		}
		note("closing providers", d.providers.Close())
	}
	return errors.Join(errs...)
}
