package main

import (
	"fmt"
	"io"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/nvmf-go/nvmf/internal/daemon"
)

// printCaches shows what the caches did between old and st; how full they are
// and their latencies are of now and of all the time.
func printCaches(w io.Writer, old, st *daemon.Status) {
	if len(st.Caches) == 0 {
		return
	}
	t := newTable(w, "Caches", "backend", "size", "page", "used", "hit ratio", "hits", "misses", "bypasses", "evictions", "from memory", "hit", "miss")
	for i := range st.Caches {
		c, was := &st.Caches[i], findCache(old, st.Caches[i].Backend)
		hits, misses, bypasses := since(was.Hits, c.Hits), since(was.Misses, c.Misses), since(was.Bypasses, c.Bypasses)
		t.AppendRow(table.Row{
			c.Backend, humanize.IBytes(c.Size), humanize.IBytes(c.Page), share(c.Used, c.Pages),
			share(hits, hits+misses+bypasses), humanize.Comma(int64(hits)), humanize.Comma(int64(misses)), humanize.Comma(int64(bypasses)),
			humanize.Comma(int64(since(was.Evicted, c.Evicted))), humanize.IBytes(since(was.HitBytes, c.HitBytes)),
			meanOf(c.Hit), meanOf(c.Miss),
		})
	}
	t.Render()
}

// findCache is the cache of a backend in st, an empty one when there is none.
func findCache(st *daemon.Status, backend string) *daemon.CacheStatus {
	for i := range st.Caches {
		if st.Caches[i].Backend == backend {
			return &st.Caches[i]
		}
	}
	return &daemon.CacheStatus{}
}

// since is how far a counter came from a to b: all of b when it began anew.
func since(a, b uint64) uint64 {
	if b < a {
		return b
	}
	return b - a
}

func share(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}

func meanOf(l daemon.MeanLatency) string {
	if l.Count == 0 {
		return "-"
	}
	return short(l.Mean)
}
