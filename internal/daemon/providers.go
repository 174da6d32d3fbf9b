package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/roce"
	"github.com/nvmf-go/nvmf/fabric/verbs"
)

// Providers opens fabric providers by name, each once.
type Providers struct {
	// Open are the constructors by name.
	Open map[string]func() (fabric.Provider, error)
	// Software is the provider that auto takes for an address that no RDMA
	// device has; empty when there is none.
	Software string

	mu   sync.Mutex
	open map[string]fabric.Provider
}

// DefaultProviders are those of this build.
func DefaultProviders() *Providers {
	return &Providers{
		Software: "roce",
		Open: map[string]func() (fabric.Provider, error){
			"verbs": verbs.New,
			"roce":  func() (fabric.Provider, error) { return asProvider(roce.New(roce.Options{})) },
		},
	}
}

// asProvider keeps a nil pointer from becoming a Provider that is not nil.
func asProvider[P fabric.Provider](p P, err error) (fabric.Provider, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Names are the names there are, sorted.
func (p *Providers) Names() []string {
	var names []string
	for n := range p.Open {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Get opens the provider of that name.
func (p *Providers) Get(name string) (fabric.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pr := p.open[name]; pr != nil {
		return pr, nil
	}
	mk := p.Open[name]
	if mk == nil {
		return nil, fmt.Errorf("provider %s: %w", name, fabric.ErrNotSupported)
	}
	pr, err := mk()
	if err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	if p.open == nil {
		p.open = map[string]fabric.Provider{}
	}
	p.open[name] = pr
	return pr, nil
}

// For finds the provider for a listener. auto means verbs when an RDMA device
// has the address (any device, for an unspecified one), else the software
// provider.
func (p *Providers) For(_ context.Context, name string, addr netip.Addr) (fabric.Provider, error) {
	if name != "auto" {
		return p.Get(name)
	}
	pr, why := p.Get("verbs")
	if why == nil {
		var devs []fabric.DeviceInfo
		if devs, why = pr.Devices(); why == nil && reaches(devs, addr) {
			return pr, nil
		}
	}
	if p.Software != "" {
		return p.Get(p.Software)
	}
	if why == nil {
		why = fmt.Errorf("no RDMA device has address %v: %w", addr, fabric.ErrAddrNotAvailable)
	}
	return nil, why
}

func reaches(devs []fabric.DeviceInfo, addr netip.Addr) bool {
	if addr.IsUnspecified() {
		return len(devs) > 0
	}
	return slices.ContainsFunc(devs, func(d fabric.DeviceInfo) bool {
		return slices.ContainsFunc(d.Addrs, func(a netip.Addr) bool { return a.WithZone("") == addr.WithZone("") })
	})
}

// Close closes what was opened.
func (p *Providers) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for name, pr := range p.open {
		if err := pr.Close(); err != nil {
			errs = append(errs, fmt.Errorf("provider %s: %w", name, err))
		}
	}
	p.open = nil
	return errors.Join(errs...)
}
