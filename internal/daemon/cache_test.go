package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// cachedFile is a file with a namespace on a file backend with a cache; "" is
// none.
func cachedFile(size, cache string) string {
	if cache != "" {
		cache = ", cache: " + cache
	}
	return head + "backends: [{name: d, type: file, path: DIR/d.img, size: " + size + ", block_size: 4096" + cache + "}]\nsubsystems:\n" +
		subsystem("a", "any", "{nsid: 1, backend: d}")
}

// page reads block lba into the queue's memory, until the namespace is there.
func (r *rig) page(q *rdmatest.Queue, lba uint64) []byte {
	r.t.Helper()
	clear(q.Data()[:4096])
	if err := q.Read(r.ctx, 1, lba, 1, 0, 4096); err != nil {
		r.t.Fatal(err)
	}
	return q.Data()[:4096]
}

// fillBlocks writes n blocks that can be told apart, from lba on.
func (r *rig) fillBlocks(q *rdmatest.Queue, lba uint64, n int) {
	r.t.Helper()
	for i := range n {
		copy(q.Data(), bytes.Repeat([]byte(fmt.Sprintf("%07d\n", int(lba)+i)), 512))
		if err := q.Write(r.ctx, 1, lba+uint64(i), 1, 0, 4096); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) checkBlock(q *rdmatest.Queue, lba uint64) {
	r.t.Helper()
	if want := []byte(fmt.Sprintf("%07d\n", lba)); !bytes.HasPrefix(r.page(q, lba), want) {
		r.t.Errorf("block %d begins with %q", lba, q.Data()[:8])
	}
}

// Reads of a cached backend come from its memory and say so; writes go through;
// its memory is what the file says.
func TestCache(t *testing.T) {
	r := newRig(t, cachedFile("8MiB", "{size: 2MiB}"))
	_, q := r.connect(nqnA)
	r.fillBlocks(q, 0, 64)
	for range 5 {
		for lba := range uint64(64) {
			r.checkBlock(q, lba)
		}
	}
	r.fillBlocks(q, 3, 1) // through, and seen
	copy(q.Data(), "changed!")
	if err := q.Write(r.ctx, 1, 5, 1, 0, 4096); err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(r.page(q, 5), []byte("changed!")) {
		t.Error("a write is not seen")
	}
	b, err := os.ReadFile(filepath.Join(r.dir, "d.img"))
	if err != nil || !bytes.HasPrefix(b[5*4096:], []byte("changed!")) {
		t.Errorf("a write is not in the file: %v", err)
	}

	var st *Status
	r.until("the cache says what it did", func() bool {
		st = r.status()
		c := &st.Caches[0]
		return c.Hits+c.Misses+c.Bypasses == 5*64+1
	})
	c, ns := &st.Caches[0], &st.Subsystems[0].Namespaces[0]
	if c.Backend != "d" || c.Lent < 2*64 || c.Lent > c.Hits || c.HitBytes != c.Hits*4096 || c.Invalidations == 0 {
		t.Errorf("cache %+v", c)
	}
	if ns.Lent.Count != c.Lent || ns.Read.Count != 5*64+1 || st.RDMA.LentBytes != c.Lent*4096 || !strings.Contains(ns.Engine, "cache") {
		t.Errorf("namespace %+v, rdma %+v", ns, st.RDMA)
	}
	sum := uint64(0)
	for _, n := range c.Memory {
		sum += n
	}
	if sum > 2<<20 || sum < 2<<20-8192 || uint64(st.RDMA.LentMemory) != c.Memory["pages"] || c.Size != 2<<20 {
		t.Errorf("memory %v is %d, pages registered %d", c.Memory, sum, st.RDMA.LentMemory)
	}
}

// A cache that comes, changes or goes reopens its backend: the data stays, the
// memory does not.
func TestReloadCache(t *testing.T) {
	r := newRig(t, cachedFile("8MiB", ""))
	_, q := r.connect(nqnA)
	r.fillBlocks(q, 0, 32)
	before := fabric.LiveMemory()
	for _, c := range []struct {
		cache string
		want  int // pages
	}{{"{size: 2MiB}", 1}, {"{size: 2MiB, page: 16KiB}", 1}, {"{size: 4MiB, page: 16KiB, readahead: 0, admission: all}", 1}, {"", 0}, {"{size: 1MiB}", 1}, {"", 0}} {
		res := r.reload(cachedFile("8MiB", c.cache))
		if !slices.Contains(res.Changes, "backend d: closed") || !slices.ContainsFunc(res.Changes, func(s string) bool {
			return strings.HasPrefix(s, "backend d: file") && strings.Contains(s, "cache of") == (c.cache != "")
		}) {
			t.Errorf("%s: %q", c.cache, res.Changes)
		}
		for range 3 {
			for lba := range uint64(32) {
				r.checkBlock(q, lba)
			}
		}
		st := r.status()
		if len(st.Caches) != c.want || (fabric.LiveMemory() > before) != (c.want > 0) || (st.RDMA.LentMemory > 0) != (c.want > 0) {
			t.Errorf("%s: %d caches, %d bytes more, %d lent", c.cache, len(st.Caches), fabric.LiveMemory()-before, st.RDMA.LentMemory)
		}
		if res := r.reload(cachedFile("8MiB", c.cache)); len(res.Changes) > 0 {
			t.Errorf("%s: the same again: %q", c.cache, res.Changes)
		}
	}
}

// A cached file grows without being opened again.
func TestCacheGrows(t *testing.T) {
	r := newRig(t, cachedFile("1MiB", "{size: 1MiB}"))
	_, q := r.connect(nqnA)
	r.fillBlocks(q, 255, 1)
	r.checkBlock(q, 255)
	if err := q.Read(r.ctx, 1, 256, 1, 0, 4096); code(err) != nvme.LBAOutOfRange {
		t.Errorf("past the end: %v", err)
	}
	res := r.reload(cachedFile("2MiB", "{size: 1MiB}"))
	if slices.Contains(res.Changes, "backend d: closed") {
		t.Errorf("%q", res.Changes)
	}
	r.fillBlocks(q, 256, 256)
	for _, lba := range []uint64{255, 256, 511} {
		r.checkBlock(q, lba)
		r.checkBlock(q, lba)
	}
}

// A cache that this machine has no memory for keeps its backend from being
// opened, and nothing else; the medium is free again.
func TestCacheTooLarge(t *testing.T) {
	r := newRig(t, cachedFile("1MiB", ""))
	_, q := r.connect(nqnA)
	res := r.d.Reload(r.ctx, r.config(cachedFile("1MiB", "{size: 1TiB}")))
	if len(res.Errors) != 1 || !errors.Is(res.Errors[0], errMemory) ||
		!strings.HasPrefix(res.Errors[0].Error(), "backend d: cache of 1.0 TiB: not enough memory: all caches together take 1.0 TiB, this machine has ") ||
		!strings.HasSuffix(res.Errors[0].Error(), "(hence no "+nqnA+" namespace 1)") {
		t.Errorf("%v", res.Errors)
	}
	r.reload(cachedFile("1MiB", "{size: 1MiB}"))
	r.fillBlocks(q, 0, 1)
	r.checkBlock(q, 0)
}

// A host that takes no responses keeps pages of the cache on loan. A reload that
// takes the cache away says what is in its way; the memory stays until the host
// has gone, and then the backend is closed and the next reload opens it.
func TestReloadWhileLent(t *testing.T) {
	r := newRig(t, cachedFile("1MiB", "{size: 1MiB}"))
	s, q := r.connect(nqnA)
	r.fillBlocks(q, 0, 8)
	for range 4 {
		for lba := range uint64(8) {
			r.checkBlock(q, lba)
		}
	}
	live := fabric.LiveMemory()
	stuck, err := s.Queue(r.ctx, rdmatest.Options{QID: 2, HoldReceives: true, Receives: 1}, rdmatest.ConnectParams{QID: 2, SQSize: 31})
	if err != nil {
		t.Fatal(err)
	}
	lent := r.status().Subsystems[0].Namespaces[0].Lent.Count
	cmd := make(nvme.Command, nvme.SQESize)
	stuck.IO(cmd, nvme.CmdRead, 1, 1, 3, 1, 0, 4096)
	if err := stuck.SendCommand(cmd, nil); err != nil {
		t.Fatal(err)
	}
	r.until("a page is on loan", func() bool {
		_, _ = stuck.Poll()
		return r.status().Subsystems[0].Namespaces[0].Lent.Count == lent+1
	})

	ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
	defer cancel()
	err = errors.Join(r.d.Reload(ctx, r.config(cachedFile("1MiB", ""))).Errors...)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, backend.ErrBusy) || !errors.Is(err, backend.ErrLocked) {
		t.Errorf("%v", err)
	}
	if st := r.status(); len(st.Caches) != 1 || st.RDMA.LentMemory == 0 {
		t.Errorf("the memory is gone with a page on loan: %+v", st.Caches)
	}
	_ = stuck.Close()
	r.until("the backend is closed", func() bool { return len(r.status().Caches) == 0 && r.log.has("backend d: closed at last") })
	r.reload(cachedFile("1MiB", ""))
	r.checkBlock(q, 3)
	r.until("its memory is unmapped", func() bool { return r.status().RDMA.LentMemory == 0 && fabric.LiveMemory() < live })
}

// Reloads that take the cache away and bring it back do no harm to a host in
// the middle of its I/O: each read has its block, or the namespace is not there.
func TestReloadCacheUnderLoad(t *testing.T) {
	r := newRig(t, cachedFile("1MiB", "{size: 1MiB}"))
	_, q := r.connect(nqnA)
	r.fillBlocks(q, 0, 64)
	done, reloads := make(chan struct{}), 0
	go func() {
		defer close(done)
		for i := range 6 {
			cache := "{size: 1MiB}"
			if i%2 == 0 {
				cache = "{size: 1MiB, page: 8KiB}"
			}
			for _, err := range r.d.Reload(r.ctx, r.config(cachedFile("1MiB", cache))).Errors {
				t.Errorf("reload: %v", err)
			}
			reloads++
		}
	}()
	rng, reads := rand.New(rand.NewPCG(1, 2)), 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		lba := uint64(rng.IntN(64))
		switch err := q.Read(r.ctx, 1, lba, 1, 0, 4096); {
		case err == nil:
			reads++
			if want := fmt.Sprintf("%07d\n", lba); string(q.Data()[:8]) != want {
				t.Fatalf("block %d begins with %q", lba, q.Data()[:8])
			}
		case code(err) != nvme.InvalidField:
			t.Fatal(err)
		}
	}
	if reads == 0 || reloads != 6 {
		t.Errorf("%d reads, %d reloads", reads, reloads)
	}
}
