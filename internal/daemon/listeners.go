package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
	"github.com/nvmf-go/nvmf/target/rdma"
)

// listener is one entry of the file's listeners, up or waiting for its address.
type listener struct {
	// Constant.
	d      *Daemon
	cfg    config.Listener
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	err      error // why it is not up
	provider string
}

// retryInterval is how often a listener looks for its address.
const retryInterval = 2 * time.Second

func (d *Daemon) removeListeners(f *config.File, r *Result) {
	for name, l := range d.listeners {
		keep := false
		for _, c := range f.Listeners {
			keep = keep || c == l.cfg
		}
		if !keep {
			l.stop()
			delete(d.listeners, name)
			r.did("listener %s: stopped", name)
		}
	}
}

func (d *Daemon) addListeners(f *config.File, r *Result) {
	for _, c := range f.Listeners {
		if d.listeners[c.Name] != nil {
			continue
		}
		l, err := d.startListener(c)
		if err != nil {
			r.fail(fmt.Errorf("listener %s: %w", c.Name, err))
		}
		if l != nil {
			d.listeners[c.Name] = l
		}
	}
}

// startListener listens, or waits for the address in the background when no
// device has it yet. Any other failure is final until the next reload.
func (d *Daemon) startListener(c config.Listener) (*listener, error) {
	ctx, cancel := context.WithCancel(context.Background())
	l := &listener{d: d, cfg: c, cancel: cancel, done: make(chan struct{})}
	up, err := l.try(ctx)
	switch {
	case err == nil:
		go l.serve(ctx, up)
		return l, nil
	case mayComeLater(err):
		d.log.Warnf("listener %s: waiting for address %v: %v", c.Name, c.AddrPort(), err)
		l.set("", err)
		go l.wait(ctx)
		return l, nil
	}
	cancel()
	return nil, err
}

func mayComeLater(err error) bool {
	return errors.Is(err, fabric.ErrAddrNotAvailable) || errors.Is(err, fabric.ErrNoDevice)
}

// live is a listener that is up.
type live struct {
	port *target.Port
	l    *rdma.Listener
}

func (l *listener) try(ctx context.Context) (*live, error) {
	p, err := l.d.providers.For(ctx, l.cfg.Provider, l.cfg.Address)
	if err != nil {
		return nil, err
	}
	port := &target.Port{
		ID: uint16(l.cfg.ID), Name: l.cfg.Name, Type: nvme.TransportRDMA, Addr: l.cfg.AddrPort(), Provider: p.Name(),
		Caps: l.d.transport.Caps(),
	}
	rl, err := l.d.transport.Listen(ctx, p, l.cfg.AddrPort(), port)
	if err != nil {
		return nil, err
	}
	// Only now: discovery names no port that nobody listens on.
	if err := l.d.target.AddPort(port); err != nil {
		return nil, errors.Join(err, rl.Close())
	}
	l.set(p.Name(), nil)
	l.d.log.Infof("listener %s: up on %v, provider %s", l.cfg.Name, l.cfg.AddrPort(), p.Name())
	return &live{port, rl}, nil
}

// wait retries until the address is there.
func (l *listener) wait(ctx context.Context) {
	t := time.NewTicker(retryInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			close(l.done)
			return
		case <-t.C:
		}
		up, err := l.try(ctx)
		if err == nil {
			l.serve(ctx, up)
			return
		}
		if why := l.reason(); why == nil || why.Error() != err.Error() {
			l.d.log.Warnf("listener %s: %v", l.cfg.Name, err)
		}
		l.set("", err)
	}
}

// serve holds the listener until it is stopped.
func (l *listener) serve(ctx context.Context, up *live) {
	<-ctx.Done()
	if err := up.l.Close(); err != nil {
		l.d.log.Warnf("listener %s: closing: %v", l.cfg.Name, err)
	}
	l.d.target.RemovePort(up.port)
	close(l.done)
}

func (l *listener) stop() {
	l.cancel()
	<-l.done
}

func (l *listener) set(provider string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.provider, l.err = provider, err
}

func (l *listener) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
