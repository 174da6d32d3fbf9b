package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/target"
)

// maxHandshakes bounds the connection requests of a listener that are answered
// at a time. Others wait in the provider's backlog.
const maxHandshakes = 64

// Listener takes the connection requests for an address. Close ends it.
type Listener struct {
	t        *Transport
	provider fabric.Provider
	port     *target.Port
	fl       fabric.Listener
	cancel   context.CancelFunc
	slots    chan struct{} // one for each handshake at work
	work     sync.WaitGroup
	done     chan struct{}
	err      error // set before done is closed
}

// Listen takes connections for addr from the provider; port is how the core
// knows them, and its Caps have to be those of Transport.Caps. Errors are those
// of fabric.Provider.Listen. A device that a connection came in on stays open
// until it is removed or the transport is closed, which is to be before the
// provider.
func (t *Transport) Listen(ctx context.Context, provider fabric.Provider, addr netip.AddrPort, port *target.Port) (*Listener, error) {
	if port.Caps != t.Caps() {
		return nil, fmt.Errorf("rdma: port %q: its Caps are not the transport's", port.Name)
	}
	fl, err := provider.Listen(ctx, addr, fabric.ListenConfig{})
	if err != nil {
		return nil, err
	}
	lctx, cancel := context.WithCancel(context.Background())
	l := &Listener{
		t: t, provider: provider, port: port, fl: fl, cancel: cancel,
		slots: make(chan struct{}, maxHandshakes), done: make(chan struct{}),
	}
	t.mu.Lock()
	draining := t.draining.Load()
	if !draining {
		t.listeners[l] = struct{}{}
	}
	t.mu.Unlock()
	if draining {
		cancel()
		return nil, errors.Join(net.ErrClosed, fl.Close())
	}
	go l.acceptAll(lctx)
	return l, nil
}

// acceptAll answers requests, each in a goroutine of its own: a peer that is
// slow holds up no other.
func (l *Listener) acceptAll(ctx context.Context) {
	defer close(l.done)
	defer l.work.Wait()
	for {
		req, err := l.fl.Accept(ctx)
		if err != nil {
			l.err = err
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				l.t.cfg.Log.Errorf("rdma: listener %s on %v takes no more connections: %v", l.port.Name, l.Addr(), err)
			}
			return
		}
		l.slots <- struct{}{}
		l.work.Go(func() {
			defer func() { <-l.slots }()
			l.handshake(ctx, req)
		})
	}
}

// Addr is the address listened on, with its port.
func (l *Listener) Addr() netip.AddrPort { return l.fl.Addr() }

// Done is closed when the listener takes no more requests: it was closed, or
// its device is gone.
func (l *Listener) Done() <-chan struct{} { return l.done }

// Err is why Done is closed: an error matching net.ErrClosed after Close. It
// must not be called before.
func (l *Listener) Err() error { return l.err }

// Disconnect ends the connections that came through the listener, which stays
// open.
func (l *Listener) Disconnect(reason error) {
	l.t.disconnect(reason, func(c *conn) bool { return c.listener == l })
}

// Close stops listening. Established connections stay: see Disconnect. Closing
// twice is nil.
func (l *Listener) Close() error {
	l.t.mu.Lock()
	delete(l.t.listeners, l)
	l.t.mu.Unlock()
	err := l.fl.Close()
	l.cancel()
	<-l.done
	return err
}
