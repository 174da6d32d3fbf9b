package rdma

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// Memory that backends lend (backend.Lending) is registered with every device
// in advance: when it is added, and when a device is opened. Until that is done,
// and where a device cannot do it, reads are copied into buffers as those of
// other backends are. Groups find a loan's key in a table that is replaced as a
// whole, without a lock.

// lentMemory is the memory that backends of the transport's target lend.
type lentMemory struct {
	bytes atomic.Int64

	mu   sync.Mutex // held while devices register; never on the I/O path
	mems []*fabric.Memory
}

// lentRegion is such memory as a device has it.
type lentRegion struct {
	mem        *fabric.Memory
	mr         fabric.MemoryRegion // nil: the device could not, and is not asked again
	start, end uint64
	key        uint32
}

// lentTable are the regions that a device has registered, by address. It is
// immutable.
type lentTable []lentRegion

// key is the LKey of the region that addr is in.
func (t lentTable) key(addr uint64) (uint32, bool) {
	i, found := slices.BinarySearchFunc(t, addr, func(r lentRegion, a uint64) int {
		switch {
		case r.end <= a:
			return -1
		case r.start > a:
			return 1
		}
		return 0
	})
	if !found {
		return 0, false
	}
	return t[i].key, true
}

// addressOf is where b begins, as SGEs say it.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// AddRegion makes memory known that a backend lends for reads: m's bytes are its
// backend.Lending.Lendable. It is registered with every device, for sending
// alone, and does not count against Config.MemoryLimit: its owner has bounded
// it. Reads do without loans on a device that cannot register it; one warning
// says so. m must stay until RemoveRegion. Registering takes its time: it locks
// all of m in memory where the device is real.
func (t *Transport) AddRegion(m *fabric.Memory) {
	l := &t.lent
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mems = append(l.mems, m)
	l.bytes.Add(int64(m.Len()))
	for _, d := range t.openDevices() {
		d.registerLocked(l.mems)
	}
}

// RemoveRegion takes back AddRegion: no device knows the memory when it returns.
// It is to be called when nothing of m is on loan: when the queues of the
// backend are closed.
func (t *Transport) RemoveRegion(m *fabric.Memory) (err error) {
	l := &t.lent
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.mems, m)
	if i < 0 {
		return nil
	}
	l.mems = slices.Delete(l.mems, i, i+1)
	l.bytes.Add(-int64(m.Len()))
	for _, d := range t.openDevices() {
		err = errors.Join(err, d.dropLocked(func(r lentRegion) bool { return r.mem == m }))
	}
	return err
}

func (t *Transport) openDevices() []*device {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.devices))
}

// registerWith registers what there is with a new device.
func (l *lentMemory) registerWith(d *device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.registerLocked(l.mems)
}

// forget ends all registrations with a device that is being released.
func (l *lentMemory) forget(d *device) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return d.dropLocked(func(lentRegion) bool { return true })
}

// registerLocked registers those of mems that the device was not asked for yet.
func (d *device) registerLocked(mems []*fabric.Memory) {
	if d.gone.Load() {
		return
	}
	for _, m := range mems {
		if slices.ContainsFunc(d.regions, func(r lentRegion) bool { return r.mem == m }) {
			continue
		}
		r := lentRegion{mem: m, start: m.Addr(), end: m.Addr() + uint64(m.Len())}
		mr, err := d.fdev.Register(m, 0)
		if err != nil {
			d.t.cfg.Log.Warnf("rdma: device %s cannot send from a cache of %d bytes, its reads are copied: %v", d.fdev.Name(), m.Len(), err)
		} else {
			r.mr, r.key = mr, mr.LKey()
		}
		d.regions = append(d.regions, r)
	}
	d.publishLocked()
}

// dropLocked ends the registrations that match.
func (d *device) dropLocked(match func(lentRegion) bool) (err error) {
	var drop []lentRegion
	d.regions = slices.DeleteFunc(d.regions, func(r lentRegion) bool {
		if match(r) {
			drop = append(drop, r)
		}
		return match(r)
	})
	d.publishLocked()
	for _, r := range drop {
		if r.mr != nil {
			err = errors.Join(err, r.mr.Close())
		}
	}
	return err
}

// publishLocked makes the groups see the regions.
func (d *device) publishLocked() {
	table := slices.DeleteFunc(slices.Clone(d.regions), func(r lentRegion) bool { return r.mr == nil })
	slices.SortFunc(table, func(a, b lentRegion) int { return cmp.Compare(a.start, b.start) })
	if len(table) == 0 {
		d.lent.Store(nil)
		return
	}
	d.lent.Store((*lentTable)(&table))
}

// loanRoom is the room for a loan: none where the device could not send it. The
// send queue has room for maxPieces WRITEs of full SGE lists.
func (c *conn) loanRoom(s *slot) [][]byte {
	if c.dev.lent.Load() == nil {
		return nil
	}
	return s.vecs[:0:min(maxLoan, maxPieces*c.dev.writeSGE)]
}

// takeLoan finds the key of the loan in s. Without one it is given back, and the
// read takes buffers.
func (c *conn) takeLoan(s *slot) {
	if table := c.dev.lent.Load(); table != nil {
		var ok bool
		if s.loanKey, ok = table.key(addressOf(s.Loan[0])); ok {
			return
		}
	}
	s.endLoan()
}

// endLoan gives the memory of a loan back.
func (s *slot) endLoan() {
	s.transfer.Lent = false
	s.conn.queue.Release(&s.Request)
}
