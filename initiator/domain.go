package initiator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/nvmf-go/nvmf/fabric"
)

// domain is an RDMA device that is in use, with the buffers registered there.
type domain struct {
	// Constant.
	set     *domains
	dev     fabric.Device // a reference
	windows bool          // commands have keys of their own

	buffers map[*Buffer]struct{} // registrations is held
	closed  bool                 // likewise
	refs    int                  // domains.mu is held
}

// domains are the devices of a controller, or of the controllers of a
// Multipath: one that several use is one, and each Buffer registered there
// once.
type domains struct {
	mu   sync.Mutex
	list []*domain
}

// acquire is the domain of the device that reaches remote, with a reference.
func (s *domains) acquire(ctx context.Context, p fabric.Provider, local, remote netip.Addr, invalidate Choice) (*domain, error) {
	dev, err := p.DeviceFor(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	windows, err := useWindows(dev, invalidate)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.list {
		if d.dev == dev && d.windows == windows {
			d.refs++
			return d, dev.Close() // one reference is enough
		}
	}
	d := &domain{set: s, dev: dev, windows: windows, refs: 1, buffers: make(map[*Buffer]struct{})}
	s.list = append(s.list, d)
	return d, nil
}

// useWindows decides on memory windows. A device that says that it has them is
// asked for one.
func useWindows(dev fabric.Device, c Choice) (bool, error) {
	if c == Off {
		return false, nil
	}
	err := probeWindow(dev)
	if err != nil && c == On {
		return false, fmt.Errorf("memory windows on %s: %w", dev.Name(), err)
	}
	return err == nil, nil
}

func probeWindow(dev fabric.Device) error {
	w, ok := dev.(fabric.MemoryWindower)
	if !ok || !dev.Limits().MemoryWindows {
		return fabric.ErrNotSupported
	}
	if dev.Limits().InvalidateUntold {
		return fmt.Errorf("%w: the device does not tell which keys a target has ended", fabric.ErrNotSupported)
	}
	mw, err := w.NewMemoryWindow()
	if err != nil {
		return err
	}
	return mw.Close()
}

// release gives a reference back. With the last the buffers are taken from the
// device and the device is closed.
func (d *domain) release() error {
	s := d.set
	s.mu.Lock()
	if d.refs--; d.refs > 0 {
		s.mu.Unlock()
		return nil
	}
	for i := range s.list {
		if s.list[i] == d {
			s.list = append(s.list[:i], s.list[i+1:]...)
			break
		}
	}
	s.mu.Unlock()
	return d.close()
}

func (d *domain) close() error {
	registrations.Lock()
	defer registrations.Unlock()
	d.closed = true
	var errs []error
	for b := range d.buffers {
		errs = append(errs, b.drop(d))
	}
	clear(d.buffers)
	return errors.Join(append(errs, d.dev.Close())...)
}
