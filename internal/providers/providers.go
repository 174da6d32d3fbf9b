// Package providers opens the fabric providers of this build by name.
package providers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/iwarp"
	"github.com/nvmf-go/nvmf/fabric/soft/roce"
	"github.com/nvmf-go/nvmf/fabric/verbs"
)

// Auto is the name that leaves the choice to a Set: RDMA devices before
// software.
const Auto = "auto"

const hardware = verbs.ProviderName

// Set opens fabric providers by name, each once. Its methods are safe for
// concurrent use.
type Set struct {
	// Open are the constructors by name.
	Open map[string]func() (fabric.Provider, error)
	// Software is the provider that Auto takes for an address that no RDMA
	// device has or reaches; empty when there is none.
	Software string
	// Second is the provider that Auto tries toward a peer that does not speak
	// what Software does; empty when there is none.
	Second string

	mu   sync.Mutex
	open map[string]fabric.Provider
}

// Options configure the software providers.
type Options struct {
	RoCE  roce.Options
	IWARP iwarp.Options
}

// Default are the providers of this build with their defaults.
func Default() *Set { return New(Options{}) }

// New are the providers of this build.
func New(o Options) *Set {
	return &Set{
		Software: roce.Name,
		Second:   iwarp.Name,
		Open: map[string]func() (fabric.Provider, error){
			hardware:   verbs.New,
			roce.Name:  func() (fabric.Provider, error) { return asProvider(roce.New(o.RoCE)) },
			iwarp.Name: func() (fabric.Provider, error) { return asProvider(iwarp.New(o.IWARP)) },
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
func (s *Set) Names() []string {
	var names []string
	for n := range s.Open {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Get opens the provider of that name. The error matches
// fabric.ErrNotSupported for a name that this build does not have.
func (s *Set) Get(name string) (fabric.Provider, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.open[name]; p != nil {
		return p, nil
	}
	mk := s.Open[name]
	if mk == nil {
		return nil, fmt.Errorf("provider %s: %w", name, fabric.ErrNotSupported)
	}
	p, err := mk()
	if err != nil {
		return nil, fmt.Errorf("provider %s: %w", name, err)
	}
	if s.open == nil {
		s.open = map[string]fabric.Provider{}
	}
	s.open[name] = p
	return p, nil
}

// For finds the provider to listen with. Auto means verbs when an RDMA device
// has the address (any device, for an unspecified one), else the software
// provider.
func (s *Set) For(_ context.Context, name string, addr netip.Addr) (fabric.Provider, error) {
	if name != Auto {
		return s.Get(name)
	}
	p, why := s.Get(hardware)
	if why == nil {
		var devs []fabric.DeviceInfo
		if devs, why = p.Devices(); why == nil && has(devs, addr) {
			return p, nil
		}
	}
	if why == nil {
		why = fmt.Errorf("no RDMA device has address %v: %w", addr, fabric.ErrAddrNotAvailable)
	}
	return s.software(why)
}

// Toward finds the provider to connect with. Auto means verbs when an RDMA
// device reaches remote from local (an invalid one leaves that to routing),
// else the software provider.
func (s *Set) Toward(ctx context.Context, name string, local, remote netip.Addr) (fabric.Provider, error) {
	if name != Auto {
		return s.Get(name)
	}
	p, err := s.Get(hardware)
	if err == nil {
		var d fabric.Device
		if d, err = p.DeviceFor(ctx, local, remote); err == nil {
			return p, d.Close()
		}
	}
	return s.software(err)
}

// Instead is the provider to try when connecting with p, which Toward has
// chosen for name, failed with err: nil when there is no other.
func (s *Set) Instead(name string, p fabric.Provider, err error) fabric.Provider {
	if name != Auto || s.Second == "" || !errors.Is(err, fabric.ErrUnreachable) {
		return nil
	}
	if first, ferr := s.Get(s.Software); ferr != nil || first != p {
		return nil
	}
	second, serr := s.Get(s.Second)
	if serr != nil {
		return nil
	}
	return second
}

// software is the software provider, or nothing and why it would be needed.
func (s *Set) software(why error) (fabric.Provider, error) {
	if s.Software == "" {
		return nil, why
	}
	return s.Get(s.Software)
}

func has(devs []fabric.DeviceInfo, addr netip.Addr) bool {
	if addr.IsUnspecified() {
		return len(devs) > 0
	}
	return slices.ContainsFunc(devs, func(d fabric.DeviceInfo) bool {
		return slices.ContainsFunc(d.Addrs, func(a netip.Addr) bool { return a.WithZone("") == addr.WithZone("") })
	})
}

// Close closes what was opened.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for name, p := range s.open {
		if err := p.Close(); err != nil {
			errs = append(errs, fmt.Errorf("provider %s: %w", name, err))
		}
	}
	s.open = nil
	return errors.Join(errs...)
}
