package cache

import (
	"container/list"
	"encoding/csv"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/nvmf-go/nvmf/backend"
)

var curveFile = flag.String("curve", "", "have TestHitRatios measure long, and write a CSV here (docs/perf/cache-hit-ratio.csv)")

// lru is what the cache is compared with: the pages that were read last.
type lru struct {
	size  int
	order *list.List // of page numbers, the last read first
	at    map[uint64]*list.Element
}

func newLRU(size int) *lru { return &lru{size, list.New(), map[uint64]*list.Element{}} }

func (l *lru) read(page uint64) (hit bool) {
	if e, ok := l.at[page]; ok {
		l.order.MoveToFront(e)
		return true
	}
	l.at[page] = l.order.PushFront(page)
	if l.order.Len() > l.size {
		delete(l.at, l.order.Remove(l.order.Back()).(uint64))
	}
	return false
}

// reader reads pages of a cache one after another and says what hit.
type reader struct {
	d      *Device
	lender backend.Lender
	op     [1]backend.Op
	done   [1]backend.Completion
	bufs   [][]byte
	n      int
}

func newReader(t *testing.T, d *Device) *reader {
	r := newRig(t, d, 4)
	return &reader{d: d, lender: r.lender, bufs: make([][]byte, 0, 1),
		op: [1]backend.Op{{Kind: backend.Read, Length: 4096, Bufs: [][]byte{r.memory[:4096]}}}}
}

func (r *reader) read(page uint64) (hit bool) {
	if r.n++; r.n%512 == 0 {
		settle(r.d) // as if this took as long as it does with a medium
	}
	if lent, ok := r.lender.Lend(page*4096, 4096, r.bufs); ok {
		r.lender.Return(lent)
		return true
	}
	r.op[0].Offset = page * 4096
	r.lender.Submit(r.op[:])
	for r.lender.Reap(r.done[:]) == 0 {
		r.lender.Arm()
	}
	return false
}

// hitRatios reads n times from a working set by Zipf 1.1 and says which part of
// the second half hit, in both. With a scan, each read is followed by one of a
// page that nobody reads again.
func hitRatios(t *testing.T, set, pages, n int, scan bool) (ours, plain float64) {
	d := opened(t, openNull(t, 1<<44), pages, Options{})
	r, l := newReader(t, d), newLRU(pages)
	pick := zipf(uint64(set), 1.1, 3)
	var hits, lruHits int
	for i := range n {
		page := pick()
		hit, lruHit := r.read(page), l.read(page)
		if i >= n/2 {
			hits += map[bool]int{true: 1}[hit]
			lruHits += map[bool]int{true: 1}[lruHit]
		}
		if scan {
			r.read(1<<30 + uint64(i))
			l.read(1<<30 + uint64(i))
		}
	}
	half := float64(n - n/2)
	return float64(hits) / half, float64(lruHits) / half
}

// The share of reads that hit against the size of the cache, beside that of
// plain LRU, with and without a scan between the reads.
func TestHitRatios(t *testing.T) {
	if underRace {
		t.Skip("sync.Pool loses counts at random under the race detector")
	}
	set, n := 8192, 60_000
	if *curveFile != "" {
		set, n = 65536, 2_000_000
	}
	rows := [][]string{{"cache_share", "pages", "scan", "hit_ratio", "lru_hit_ratio"}}
	for _, share := range []int{64, 32, 16, 8, 4, 2, 1} {
		for _, scan := range []bool{false, true} {
			pages := set / share
			ours, plain := hitRatios(t, set, pages, n, scan)
			t.Logf("1/%-2d of the working set, scan %-5v: %5.1f %% hit, LRU %5.1f %%", share, scan, 100*ours, 100*plain)
			rows = append(rows, []string{fmt.Sprintf("%.4f", 1/float64(share)), strconv.Itoa(pages), strconv.FormatBool(scan), fmt.Sprintf("%.4f", ours), fmt.Sprintf("%.4f", plain)})
			if ours < plain*0.93 || scan && share >= 4 && ours < plain {
				t.Errorf("1/%d, scan %v: %.3f of the reads hit, %.3f with LRU", share, scan, ours, plain)
			}
		}
	}
	if *curveFile != "" {
		writeCSV(t, *curveFile, rows)
	}
}

func writeCSV(t *testing.T, path string, rows [][]string) {
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := csv.NewWriter(f)
	if err := w.WriteAll(rows); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
