package rdma

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
)

// device is what the transport has on an RDMA device.
type device struct {
	t        *Transport
	fdev     fabric.Device
	key      deviceKey
	limits   fabric.Limits
	released chan struct{} // closed when the transport has given up the device

	// Any goroutine.

	noInvalidate atomic.Bool // SEND with invalidate has failed here
	gone         atomic.Bool // no new connections; released with the last
	lent         atomic.Pointer[lentTable]

	// Behind Transport.mu.

	groups []*groupDevice // by group; nil until a connection needs it
	conns  int            // connections, those being set up included

	// Behind Transport.lent.

	regions []lentRegion // all that the device was asked to register
}

// deviceKey names a device among those of all providers.
type deviceKey struct {
	provider fabric.Provider
	name     string
}

// groupDevice is what a group has on a device.
type groupDevice struct {
	*device
	group      *group
	regions    [numPools]fabric.MemoryRegion
	keys       [numPools]uint32 // their LKeys
	readSGE    int
	writeSGE   int
	maxMessage uint32

	cqs []*cq // behind Transport.mu

	srq *srq // made behind Transport.mu, then the group's

	// Owned by the group.

	qpns map[uint32]*conn // of connections with shared receives
}

// cq is a completion queue with the number of completions that its connections
// may cause at a time, so that it cannot overrun.
type cq struct {
	dev      *groupDevice
	cq       fabric.CompletionQueue
	depth    int
	failed   atomic.Bool // takes no more connections
	reserved int         // behind Transport.mu
	shared   bool        // behind Transport.mu: all shared receives are in reserved
	attached bool        // owned by the group: in group.cqs, unless it has failed
	emptied  bool        // owned by the group: the last Poll took all
}

// firstCQDepth is the size of a group's first CQ on a device; each further one
// is twice as deep.
const firstCQDepth = 4096

// canInvalidate says whether responses may be SENDs with invalidate.
func (d *device) canInvalidate() bool {
	switch d.t.cfg.SendInvalidate {
	case Off:
		return false
	case On:
		return !d.noInvalidate.Load()
	}
	return d.limits.SendInvalidate && !d.noInvalidate.Load()
}

// stopInvalidating remembers that the device cannot do what it claims.
func (d *device) stopInvalidating() {
	if !d.noInvalidate.Swap(true) {
		d.t.cfg.Log.Warnf("rdma: device %s cannot do SEND with invalidate: it is not used there any more", d.fdev.Name())
	}
}

// newGroupDevice registers the group's buffers with the device.
func newGroupDevice(d *device, g *group) (*groupDevice, error) {
	gd := &groupDevice{
		device: d, group: g, qpns: map[uint32]*conn{},
		writeSGE: clampSGE(d.limits.MaxSGE), readSGE: clampSGE(d.limits.MaxReadSGE), maxMessage: d.limits.MaxMessage,
	}
	if d.limits.MaxReadSGE == 0 {
		gd.readSGE = gd.writeSGE
	}
	if gd.maxMessage == 0 {
		gd.maxMessage = 1 << 31
	}
	access := fabric.AccessLocalWrite
	if d.limits.ReadNeedsRemoteWrite {
		access |= fabric.AccessRemoteWrite
	}
	for i, p := range g.pools {
		mr, err := d.fdev.Register(p.mem, access)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("register buffers: %w", err), gd.closeRegions())
		}
		gd.regions[i], gd.keys[i] = mr, mr.LKey()
	}
	return gd, nil
}

func clampSGE(n int) int { return max(1, min(n, maxPieces)) }

func (gd *groupDevice) closeRegions() (err error) {
	for _, mr := range gd.regions {
		if mr != nil {
			err = errors.Join(err, mr.Close())
		}
	}
	return err
}

// reserveCQ finds a CQ with room for n completions, or makes one. With shared
// receives it must have room for all of those, once: a host can use them all up
// before it is caught. The caller holds Transport.mu.
func (gd *groupDevice) reserveCQ(n int, shared bool) (*cq, error) {
	depth := firstCQDepth
	for _, q := range gd.cqs {
		need := n
		if shared && !q.shared {
			need += gd.srq.recvs.n
		}
		if need <= q.depth-q.reserved && !q.failed.Load() {
			q.reserved += need
			q.shared = q.shared || shared
			return q, nil
		}
		depth = 2 * q.depth
	}
	if shared {
		n += gd.srq.recvs.n
	}
	depth = max(depth, n)
	if m := gd.limits.MaxCQDepth; m > 0 && depth > m {
		depth = m
	}
	if n > depth {
		return nil, fmt.Errorf("a CQ of %d completions: the device has %d at most", n, depth)
	}
	fcq, err := gd.fdev.NewCompletionQueue(depth, gd.group.wake)
	if err != nil {
		return nil, fmt.Errorf("completion queue: %w", err)
	}
	q := &cq{dev: gd, cq: fcq, depth: depth, reserved: n, shared: shared}
	gd.cqs = append(gd.cqs, q)
	return q, nil
}

// close releases what the group has on the device. The group must have
// detached it, or have ended.
func (gd *groupDevice) close() (err error) {
	for _, q := range gd.cqs {
		err = errors.Join(err, q.cq.Close())
	}
	if gd.srq != nil {
		err = errors.Join(err, gd.srq.close())
	}
	return errors.Join(err, gd.closeRegions())
}

// detach takes the device's CQs out of the group. Called by the group.
func (gd *groupDevice) detach() {
	gd.group.cqs = slices.DeleteFunc(gd.group.cqs, func(q *cq) bool { return q.dev == gd })
}

// openLocked is the transport's entry for a device.
func (t *Transport) openLocked(p fabric.Provider, fdev fabric.Device) (*device, error) {
	key := deviceKey{p, fdev.Name()}
	if d := t.devices[key]; d != nil {
		if d.gone.Load() {
			return nil, errDeviceGone
		}
		return d, nil
	}
	own, err := p.Open(fdev.Name())
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", fdev.Name(), err)
	}
	d := &device{t: t, fdev: own, key: key, limits: own.Limits(), released: make(chan struct{}), groups: make([]*groupDevice, len(t.groups))}
	t.devices[key] = d
	go d.watch()
	go t.lent.registerWith(d)
	return d, nil
}

// forGroupLocked is what g has on the device.
func (d *device) forGroupLocked(g *group) (*groupDevice, error) {
	i := g.index
	if d.groups[i] == nil {
		gd, err := newGroupDevice(d, g)
		if err != nil {
			return nil, err
		}
		d.groups[i] = gd
	}
	return d.groups[i], nil
}

// watch looks after the device's events until it is released.
func (d *device) watch() {
	for {
		select {
		case <-d.released:
			return
		case ev, ok := <-d.fdev.Events():
			if !ok {
				return
			}
			d.event(ev)
		}
	}
}

func (d *device) event(ev fabric.Event) {
	log := d.t.cfg.Log
	switch ev.Kind {
	case fabric.EventDeviceRemoved, fabric.EventDeviceFatal:
		log.Warnf("rdma: device %s: %v: its connections end", d.key.name, ev.Kind)
		go func() {
			if err := d.release(fmt.Errorf("%w: %v", errDeviceGone, ev.Kind)); err != nil {
				log.Errorf("rdma: device %s: %v", d.key.name, err)
			}
		}()
	default:
		log.Infof("rdma: device %s port %d: %v", d.key.name, ev.Port, ev.Kind)
	}
}

// release ends the device's connections, waits for their end and gives up the
// device. Called again it waits for the same.
func (d *device) release(reason error) (err error) {
	t := d.t
	if d.gone.Swap(true) {
		<-d.released
		return nil
	}
	t.disconnect(reason, func(c *conn) bool { return c.dev.device == d })
	t.mu.Lock()
	for d.conns > 0 {
		t.changed.Wait()
	}
	t.mu.Unlock()
	for _, gd := range d.groups {
		if gd == nil {
			continue
		}
		gd.group.call(gd.detach)
		err = errors.Join(err, gd.close())
	}
	err = errors.Join(err, t.lent.forget(d), d.fdev.Close())
	t.mu.Lock()
	delete(t.devices, d.key)
	t.mu.Unlock()
	close(d.released)
	return err
}
