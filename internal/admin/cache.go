package admin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nvmf-go/nvmf/internal/daemon"
)

var (
	cacheReads    = desc("cache_reads_total", "Reads by what became of them: hit, miss, bypass.", "backend", "result")
	cacheHitBytes = desc("cache_hit_bytes_total", "Bytes of hits.", "backend")
	cacheLent     = desc("cache_lent_total", "Hits that were sent from the cache's own memory, without a copy.", "backend")
	cacheFills    = desc("cache_fills_total", "Pages offered to be kept.", "backend")
	cacheRejected = desc("cache_rejected_total", "Of the fills, those not worth keeping.", "backend")
	cacheEvicted  = desc("cache_evictions_total", "Pages given up for others.", "backend")
	cacheNoPage   = desc("cache_no_page_total", "Reads that found no free page to fill.", "backend")
	cacheStale    = desc("cache_stale_total", "Pages met that were out of date.", "backend")
	cacheWrites   = desc("cache_invalidations_total", "Writes, discards and write zeroes that made pages stale.", "backend")
	cacheFlushed  = desc("cache_flushes_total", "Times that all pages became stale: the size changed, or others wrote to the medium.", "backend")
	cacheAhead    = desc("cache_read_ahead_pages_total", "Pages read ahead.", "backend")
	cacheAheadOK  = desc("cache_read_ahead_used_pages_total", "Of the pages read ahead, those that were read.", "backend")
	cachePages    = desc("cache_pages", "Pages there are.", "backend")
	cacheUsed     = desc("cache_used_pages", "Pages that are not free.", "backend")
	cacheSize     = desc("cache_size_bytes", "All the memory the cache may take.", "backend")
	cacheMemory   = desc("cache_memory_bytes", "What it takes, by purpose.", "backend", "part")
	cacheLatency  = desc("cache_latency_seconds", "Of a sample of reads in the cache: the look of a hit, and a miss from submission to completion.", "backend", "result")
)

func (e emitter) cache(c *daemon.CacheStatus) {
	e.count(cacheReads, c.Hits, c.Backend, "hit")
	e.count(cacheReads, c.Misses, c.Backend, "miss")
	e.count(cacheReads, c.Bypasses, c.Backend, "bypass")
	for d, n := range map[*prometheus.Desc]uint64{
		cacheHitBytes: c.HitBytes, cacheLent: c.Lent, cacheFills: c.Fills, cacheRejected: c.Rejected, cacheEvicted: c.Evicted,
		cacheNoPage: c.NoPage, cacheStale: c.Stale, cacheWrites: c.Invalidations, cacheFlushed: c.Flushed,
		cacheAhead: c.Ahead, cacheAheadOK: c.AheadUsed,
	} {
		e.count(d, n, c.Backend)
	}
	e.gauge(cachePages, float64(c.Pages), c.Backend)
	e.gauge(cacheUsed, float64(c.Used), c.Backend)
	e.gauge(cacheSize, float64(c.Size), c.Backend)
	for part, n := range c.Memory {
		e.gauge(cacheMemory, float64(n), c.Backend, part)
	}
	e.summary(cacheLatency, &c.Hit, c.Backend, "hit")
	e.summary(cacheLatency, &c.Miss, c.Backend, "miss")
}

func (e emitter) summary(d *prometheus.Desc, l *daemon.MeanLatency, labels ...string) {
	e.ch <- prometheus.MustNewConstSummary(d, l.Count, time.Duration(l.Sum).Seconds(), nil, labels...)
}
