package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/cache"
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/internal/config"
)

// cacheState is the cache of a backend.
type cacheState struct {
	cfg config.Backend
	dev *cache.Device
	mem *fabric.Memory // its pages, which the transport sends from
}

// addCache puts the cache that the configuration asks for over dev, and makes
// its memory known to the transport. When it fails, dev is still the caller's.
func (d *Daemon) addCache(b config.Backend, dev backend.Device) (*cacheState, error) {
	fail := func(err error) (*cacheState, error) {
		return nil, fmt.Errorf("backend %s: cache of %v: %w", b.Name, b.Cache.Size, err)
	}
	if err := d.roomFor(b.Cache); err != nil {
		return fail(err)
	}
	need, err := cache.MemoryNeeded(uint64(b.Cache.Size), int(b.Cache.Page))
	if err != nil {
		return fail(err)
	}
	mem, err := fabric.AllocMemory(int(need.Pages))
	if err != nil {
		return fail(err)
	}
	c, err := cache.New(dev, cache.Options{
		Memory: mem.Bytes()[:need.Pages], Page: int(b.Cache.Page), ReadAhead: int(b.Cache.ReadAhead),
		Admission: cache.Admission(b.Cache.Admission), Log: d.log,
	})
	if err != nil {
		return fail(errors.Join(err, mem.Close()))
	}
	s := &cacheState{cfg: b, dev: c, mem: mem}
	d.transport.AddRegion(mem)
	d.mu.Lock()
	d.caches[s] = struct{}{}
	d.mu.Unlock()
	return s, nil
}

// roomFor says whether the machine has memory for one cache more.
func (d *Daemon) roomFor(c config.Cache) error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return fmt.Errorf("memory of this machine: %w", err)
	}
	have, want := uint64(info.Totalram)*uint64(info.Unit), uint64(c.Size) //nolint:unconvert // 32 bits on some platforms
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.caches {
		want += uint64(s.cfg.Cache.Size)
	}
	if want > have {
		return fmt.Errorf("%w: all caches together take %v, this machine has %v", errMemory, config.Size(want), config.Size(have))
	}
	return nil
}

var errMemory = errors.New("not enough memory")

// drop gives the cache's memory back. The cache is closed: none of its queues
// is open, hence nothing is on loan.
func (d *Daemon) drop(s *cacheState) error {
	d.mu.Lock()
	delete(d.caches, s)
	d.mu.Unlock()
	return errors.Join(d.transport.RemoveRegion(s.mem), s.mem.Close())
}

// CacheStatus is the cache of a backend. Each read is a hit, a miss or a bypass.
type CacheStatus struct {
	Backend   string            `json:"backend"`
	Size      uint64            `json:"size_bytes"` // as configured: the bound of Memory's sum
	Page      uint64            `json:"page_bytes"`
	Admission string            `json:"admission"`
	Memory    map[string]uint64 `json:"memory_bytes"` // by purpose
	Pages     uint64            `json:"pages"`
	Used      uint64            `json:"pages_used"`

	Hits     uint64 `json:"hits"`     // answered from memory
	Lent     uint64 `json:"lent"`     // of them, sent from the cache's own memory
	Misses   uint64 `json:"misses"`   // not in memory
	Bypasses uint64 `json:"bypasses"` // left to the medium without a look: force unit access, long reads, scans
	HitBytes uint64 `json:"hit_bytes"`

	Fills         uint64 `json:"fills"`         // pages offered to be kept
	Rejected      uint64 `json:"rejected"`      // of them, not worth it
	Evicted       uint64 `json:"evicted"`       // pages given up for others
	NoPage        uint64 `json:"no_page"`       // reads that found no free page to fill
	Stale         uint64 `json:"stale"`         // pages met that were out of date
	Invalidations uint64 `json:"invalidations"` // writes, discards and write zeroes that made pages stale
	Flushed       uint64 `json:"flushed"`       // times that all pages became stale: sizes changed, or others wrote
	Ahead         uint64 `json:"read_ahead"`    // pages
	AheadUsed     uint64 `json:"read_ahead_used"`

	// Means of samples, with their number and sum.
	Hit  MeanLatency `json:"hit_latency"`
	Miss MeanLatency `json:"miss_latency"`
}

// MeanLatency is a mean of measured latencies in nanoseconds.
type MeanLatency struct {
	Count uint64 `json:"count"`
	Sum   int64  `json:"sum_ns"`
	Mean  int64  `json:"mean_ns"`
}

// cacheStatus has the caches by the names of their backends.
func (d *Daemon) cacheStatus() (list []CacheStatus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.caches {
		list = append(list, s.status())
	}
	slices.SortFunc(list, func(a, b CacheStatus) int { return cmp.Compare(a.Backend, b.Backend) })
	return list
}

func (s *cacheState) status() CacheStatus {
	st := s.dev.Stats()
	m := &st.Memory
	return CacheStatus{
		Backend: s.cfg.Name, Size: uint64(s.cfg.Cache.Size), Page: uint64(s.cfg.Cache.Page), Admission: s.cfg.Cache.Admission,
		Memory: map[string]uint64{
			"pages": m.Pages, "slots": m.Slots, "versions": m.Versions, "door": m.Door,
			"counters": m.Counters, "entries": m.Entries, "fixed": m.Fixed,
		},
		Pages: st.Pages, Used: st.Used,
		Hits: st.Hits, Lent: st.Lent, Misses: st.Misses, Bypasses: st.Bypasses, HitBytes: st.HitBytes,
		Fills: st.Fills, Rejected: st.Rejected, Evicted: st.Evicted, NoPage: st.NoPage, Stale: st.Stale,
		Invalidations: st.Invalidations, Flushed: st.Resizes + st.Foreign,
		Ahead: st.ReadAheadIssued, AheadUsed: st.ReadAheadUsed,
		Hit: mean(st.HitLatency), Miss: mean(st.MissLatency),
	}
}

func mean(l cache.Latency) MeanLatency {
	return MeanLatency{Count: l.Count, Sum: int64(l.Sum), Mean: int64(l.Mean() / time.Nanosecond)}
}
