package cache

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/internal/users"
)

// Device is a cache over a device. It implements backend.Device and
// backend.Lending; its queues are backend.Lenders and backend.Registrars.
type Device struct {
	// Constant.
	dev       backend.Device
	opts      Options
	page      uint64 // bytes
	pageShift uint
	units     unitSize

	// Atomic, or with owners of their own.
	size     atomic.Uint64 // of the device below in bytes, as last seen
	slots    *slots
	versions *versions
	index    *index
	door     *door
	changes  changes
	resizes  atomic.Uint64
	watch    *watch
	users    users.Count
	engine   atomic.Pointer[engine]

	mu     sync.Mutex
	queues map[*queue]struct{} // open; mu
	past   sums                // of closed ones; mu
}

// engine is Info.Engine, made once for each of the device below.
type engine struct{ below, ours string }

// New makes a cache over dev, which it owns and closes. When it fails, dev is
// still the caller's. Errors of the options are *backend.OptionError.
func New(dev backend.Device, o Options) (*Device, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	info := dev.Info()
	size := bytesOf(info)
	n := slotsOf(uint64(len(o.Memory)), o.Page)
	d := &Device{
		dev: dev, opts: o,
		page: uint64(o.Page), pageShift: uint(bits.TrailingZeros(uint(o.Page))),
		units:    unitsFor(o.ReadAhead, o.Page, n),
		slots:    newSlots(o.Memory, o.Page),
		versions: newVersions(n, size/uint64(o.Page)),
		door:     newDoor(n),
		queues:   map[*queue]struct{}{},
	}
	d.size.Store(size)
	var err error
	if d.index, err = newIndex(d.slots); err != nil {
		return nil, fmt.Errorf("backend/cache: %w", err)
	}
	d.watch = newWatch(d, info.Path)
	return d, nil
}

// Info is that of the device below, whose Type it keeps; Engine says that
// there is a cache.
func (d *Device) Info() backend.Info {
	info := d.dev.Info()
	d.observe(info)
	e := d.engine.Load()
	if e == nil || e.below != info.Engine {
		e = &engine{info.Engine, fmt.Sprintf("cache of %d pages of %d bytes over %s", d.slots.count(), d.page, info.Engine)}
		d.engine.Store(e)
	}
	info.Engine = e.ours
	return info
}

// observe takes note of the size of the device below. When it is another, all
// pages are stale: what is beyond the end, and what was beyond one that nobody
// saw.
func (d *Device) observe(info backend.Info) {
	if d.size.Load() == bytesOf(info) {
		return
	}
	d.mu.Lock() // the last to look is the last to store
	size := bytesOf(d.dev.Info())
	changed := d.size.Swap(size) != size
	d.mu.Unlock()
	if changed {
		d.resizes.Add(1)
		d.versions.invalidate()
		d.watch.sweep()
	}
}

func bytesOf(info backend.Info) uint64 { return info.Blocks * uint64(info.BlockSize) }

// Refresh looks at the medium, at its size and, of a file, whether others have
// written to it. Either makes all pages stale.
func (d *Device) Refresh() (changed bool, err error) {
	changed, err = d.dev.Refresh()
	d.observe(d.dev.Info())
	d.watch.look()
	return changed, err
}

// Lendable is Options.Memory.
func (d *Device) Lendable() []byte { return d.opts.Memory }

// room says whether the index takes pages without giving up others.
func (d *Device) room() bool { return uint64(d.slots.used.Load()) < capacity(d.slots.count()) }

// litter follows on a discard or write zeroes of n pages: those that are in
// memory are of no use any more.
func (d *Device) litter(n uint64) {
	d.watch.litter.Store(true)
	if n > longRange {
		d.watch.sweep()
	}
}

// Stats may be called at any time.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	s := d.past
	for q := range d.queues {
		s.add(&q.counts)
	}
	d.mu.Unlock()
	used := uint64(max(0, d.slots.used.Load()))
	return Stats{
		Hits: s[hits], Misses: s[misses], Bypasses: s[bypasses], HitBytes: s[hitBytes], Lent: s[lent],
		Fills: s[fills], NoPage: s[noPage], Stale: s[stale], Invalidations: s[invalidations],
		Rejected: d.index.rejected.Load(), Evicted: d.index.evicted.Load(),
		Resizes: d.resizes.Load(), Foreign: d.watch.foreign.Load(),
		ReadAheadIssued: s[aheadIssued], ReadAheadUsed: s[aheadUsed],
		Pages: d.slots.count(), Used: used, UsedBytes: used * d.page,
		Memory:      memoryOf(d.slots.count(), int(d.page)),
		HitLatency:  latency(s[hitTimes], s[hitTime]),
		MissLatency: latency(s[missTimes], s[missTime]),
	}
}

// NewQueue makes a queue, over one of the device below that has as many
// operations in flight, and those of the read-ahead.
func (d *Device) NewQueue(depth int, notify func()) (backend.Queue, error) {
	if err := d.users.Add(); err != nil {
		return nil, err
	}
	q, err := newQueue(d, depth, notify)
	if err != nil {
		d.users.Done()
		return nil, err
	}
	d.mu.Lock()
	d.queues[q] = struct{}{}
	d.mu.Unlock()
	return q, nil
}

// gone forgets a queue that has closed, but for what it counted.
func (d *Device) gone(q *queue) {
	q.counts.show()
	d.mu.Lock()
	d.past.add(&q.counts)
	delete(d.queues, q)
	d.mu.Unlock()
	d.users.Done()
}

// Close closes the device below too. It says so if pages were lent and not
// returned; their memory is the caller's again even so.
func (d *Device) Close() error {
	return d.users.Close(func() error {
		d.watch.close()
		d.index.close()
		err := d.dev.Close()
		if n := d.slots.used.Load(); n != 0 {
			err = errors.Join(err, fmt.Errorf("backend/cache: %d pages were not returned", n))
		}
		return err
	})
}
