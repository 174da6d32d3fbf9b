package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
	"github.com/nvmf-go/nvmf/target/rdma"
)

// listener is one entry of the file's listeners.
//
//	waiting -(the address is there)-> listening -(its device goes)-> waiting
//	down: it cannot be, until another Reload tries again
type listener struct {
	// Constant.
	d      *Daemon
	cfg    config.Listener
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing of it is left

	mu       sync.Mutex // guards what follows
	state    string
	provider string // while it is listening
	reason   error  // why it is not
}

// retryInterval is the default of Daemon.retry.
const retryInterval = 2 * time.Second

// errStopped is why a listener ends that the file has no more.
var errStopped = errors.New("the listener was removed from the file")

func (d *Daemon) removeListeners(f *config.File, r *Result) {
	for name, l := range d.listenersNow() {
		keep := false
		for _, c := range f.Listeners {
			keep = keep || c == l.cfg
		}
		if keep {
			continue
		}
		l.stop(errStopped)
		d.mu.Lock()
		delete(d.listeners, name)
		d.mu.Unlock()
		r.did("listener %s: stopped", name)
	}
}

// listenersNow are the listeners, for those who may change them meanwhile.
func (d *Daemon) listenersNow() map[string]*listener {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.listeners)
}

func (d *Daemon) addListeners(f *config.File, r *Result) {
	there := d.listenersNow()
	for _, c := range f.Listeners {
		if l := there[c.Name]; l != nil && l.status().State != Down {
			continue
		}
		l, err := d.startListener(c)
		if err != nil {
			r.fail(fmt.Errorf("listener %s: %w", c.Name, err))
		}
		if !d.keepListener(l) {
			l.stop(errClosed)
		}
	}
}

// keepListener is false when the daemon is closed, and then knows nothing of l.
func (d *Daemon) keepListener(l *listener) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.listeners[l.cfg.Name] = l
	}
	return !d.closed
}

// startListener listens, or waits for the address in the background when no
// device has it yet. Any other failure is final until the next reload.
func (d *Daemon) startListener(c config.Listener) (*listener, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	l := &listener{d: d, cfg: c, cancel: cancel, done: make(chan struct{})}
	up, err := l.try(ctx)
	switch {
	case err == nil:
		go l.routine(ctx, up)
		return l, nil
	case mayComeLater(err):
		d.log.Warnf("listener %s: waiting for address %v: %v", c.Name, c.AddrPort(), err)
		l.set(Waiting, "", err)
		go l.routine(ctx, nil)
		return l, nil
	}
	cancel(err)
	l.set(Down, "", err)
	close(l.done)
	return l, err
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
	l.set(Listening, p.Name(), nil)
	l.d.log.Infof("listener %s: up on %v, provider %s", l.cfg.Name, l.cfg.AddrPort(), p.Name())
	return &live{port, rl}, nil
}

// routine is the listener's goroutine, up or waiting, until it is stopped.
func (l *listener) routine(ctx context.Context, up *live) {
	defer close(l.done)
	for {
		if up == nil {
			up = l.wait(ctx)
		}
		if up == nil || !l.serve(ctx, up) {
			return
		}
		up = nil
	}
}

// wait retries until the address is there, or gives nil when it is stopped.
func (l *listener) wait(ctx context.Context) *live {
	t := time.NewTicker(l.d.retry)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		up, err := l.try(ctx)
		if err == nil {
			return up
		}
		if st := l.status(); st.Reason != err.Error() {
			l.d.log.Warnf("listener %s: %v", l.cfg.Name, err)
		}
		l.set(Waiting, "", err)
	}
}

// serve holds the listener until it is stopped, or its device has gone: then it
// is true.
func (l *listener) serve(ctx context.Context, up *live) (again bool) {
	select {
	case <-ctx.Done():
	case <-up.l.Done():
		again = ctx.Err() == nil
	}
	if again {
		err := up.l.Err()
		l.set(Waiting, "", err)
		l.d.log.Warnf("listener %s: down, waiting for address %v to come back: %v", l.cfg.Name, l.cfg.AddrPort(), err)
	}
	if err := up.l.Close(); err != nil {
		l.d.log.Warnf("listener %s: closing: %v", l.cfg.Name, err)
	}
	if !errors.Is(context.Cause(ctx), errClosed) { // else the target ends its hosts, for that reason
		l.d.target.RemovePort(up.port)
	}
	return again
}

// stop ends the listener for the given reason and waits for its end.
func (l *listener) stop(reason error) {
	l.cancel(reason)
	<-l.done
}

func (l *listener) set(state, provider string, reason error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state, l.provider, l.reason = state, provider, reason
}

// status is the listener's part of Status, but for its controllers.
func (l *listener) status() ListenerStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := ListenerStatus{Name: l.cfg.Name, ID: l.cfg.ID, Address: l.cfg.AddrPort().String(), Provider: l.provider, State: l.state}
	if l.reason != nil {
		s.Reason = l.reason.Error()
	}
	return s
}
