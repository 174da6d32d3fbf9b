package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/internal/daemon"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

const cachedFile = "HEADbackends: [{name: d, type: file, path: DIR/d.img, size: 4MiB, block_size: 4096, cache: {size: 1MiB}}]\n" +
	"subsystems: [{nqn: '" + nqn + "', hosts: any, namespaces: [{nsid: 1, backend: d}]}]\n"

// journal is a host that writes versions of blocks, reads and flushes, with
// many commands in flight, and remembers what it was told.
type journal struct {
	t       *testing.T
	q       *rdmatest.Queue
	cmd     nvme.Command
	rng     *rand.Rand
	issued  [journalBlocks]uint64 // the version that was sent last
	acked   [journalBlocks]uint64 // that the target has acknowledged
	durable [journalBlocks]uint64 // acknowledged before a flush that was, too
	busy    [journalBlocks]bool   // a write is in flight
	ops     [journalDepth]journalOp
	flushes int
	reads   int
}

const (
	journalBlocks = 1024
	journalDepth  = 24
	blockSize     = 4096
)

type journalOp struct {
	op     nvme.Opcode
	lba    int
	least  uint64                 // of a read: what was acknowledged before it
	before *[journalBlocks]uint64 // of a flush: what was
}

func (j *journal) data(cid uint16) []byte { return j.q.Data()[int(cid)*blockSize:][:blockSize] }

// send sends the next command in place cid: a flush now and then, else reads and
// writes.
func (j *journal) send(cid uint16) error {
	o := &j.ops[cid]
	*o = journalOp{op: nvme.CmdRead, lba: j.rng.IntN(journalBlocks / 8)} // some are read often
	switch n := j.rng.IntN(64); {
	case n == 0:
		before := j.acked
		*o = journalOp{op: nvme.CmdFlush, before: &before}
		j.cmd.Init(nvme.CmdFlush, 1)
		j.cmd.SetCID(cid)
		return j.q.SendCommand(j.cmd, nil)
	case n < 32:
		if lba := j.rng.IntN(journalBlocks); !j.busy[lba] {
			*o = journalOp{op: nvme.CmdWrite, lba: lba}
			j.busy[lba] = true
			j.issued[lba]++
			fillBlock(j.data(cid), lba, j.issued[lba])
		}
	}
	o.least = j.acked[o.lba]
	j.q.IO(j.cmd, o.op, cid, 1, uint64(o.lba), 1, int(cid)*blockSize, blockSize)
	return j.q.SendCommand(j.cmd, nil)
}

// fillBlock makes every word of b tell block and version.
func fillBlock(b []byte, lba int, version uint64) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(lba)<<40|version)
	}
}

// versionOf is the version of a block; ok is false when it is not one.
func versionOf(b []byte, lba int) (version uint64, ok bool) {
	word := binary.LittleEndian.Uint64(b)
	for i := 0; i < len(b); i += 8 {
		if binary.LittleEndian.Uint64(b[i:]) != word {
			return 0, false
		}
	}
	return word & (1<<40 - 1), word == 0 || word>>40 == uint64(lba)
}

// done takes a response.
func (j *journal) done(r *rdmatest.Response) {
	o := &j.ops[r.CID]
	if !r.Status.OK() {
		j.t.Fatalf("opcode %#x of block %d: %v", o.op, o.lba, r.Status)
	}
	switch o.op {
	case nvme.CmdFlush:
		j.durable = *o.before
		j.flushes++
	case nvme.CmdWrite:
		j.acked[o.lba], j.busy[o.lba] = j.issued[o.lba], false
	case nvme.CmdRead:
		j.reads++
		j.check("read", j.data(r.CID), o.lba, o.least)
	}
}

func (j *journal) check(what string, b []byte, lba int, least uint64) {
	j.t.Helper()
	if v, ok := versionOf(b, lba); !ok || v < least || v > j.issued[lba] {
		j.t.Fatalf("%s: block %d has version %d (whole: %v), want %d to %d", what, lba, v, ok, least, j.issued[lba])
	}
}

// poll takes what has come, and sends as many commands when more is true.
func (j *journal) poll(more bool) {
	_, err := j.q.Poll()
	if err != nil && more {
		j.t.Fatal(err)
	}
	for _, r := range j.q.Take() {
		j.done(&r)
		if !more {
			continue
		}
		if err := j.send(r.CID); err != nil {
			j.t.Fatal(err)
		}
	}
}

// A daemon that is killed in the middle of writes and flushes on a cached file
// has lost nothing that a flush had acknowledged, and no write either: the
// cache holds back nothing.
func TestKillUnderCachedLoad(t *testing.T) {
	r := newRig(t)
	r.write("nvmf.yaml", cachedFile)
	for round := range 3 {
		p := r.start()
		_, q := r.connect()
		j := &journal{t: t, q: q, cmd: make(nvme.Command, nvme.SQESize), rng: rand.New(rand.NewPCG(uint64(round), 1))}
		j.adopt(r)
		for cid := range uint16(journalDepth) {
			if err := j.send(cid); err != nil {
				t.Fatal(err)
			}
		}
		for start := time.Now(); j.flushes < 20 || j.reads < 2000 || time.Since(start) < 200*time.Millisecond; {
			j.poll(true)
			if r.ctx.Err() != nil {
				t.Fatalf("%d flushes, %d reads", j.flushes, j.reads)
			}
		}
		var lent uint64
		r.until("the cache says what it did", func() bool { j.poll(true); lent = r.status().Caches[0].Lent; return lent > 100 })
		for range 50 { // the status has held the host up
			j.poll(true)
		}
		p.signal(syscall.SIGKILL)
		p.wait()
		for range 10 {
			j.poll(false) // what was on its way
		}
		t.Logf("round %d: %d reads (%d lent), %d flushes", round, j.reads, lent, j.flushes)
		_ = q.Close()

		p = r.start()
		_, j.q = r.connect()
		j.verify(r)
		p.signal(syscall.SIGTERM)
		p.wait()
	}
}

// adopt begins with what the file has.
func (j *journal) adopt(r *rig) {
	b, err := os.ReadFile(r.path("d.img"))
	if err != nil {
		j.t.Fatal(err)
	}
	for lba := range journalBlocks {
		v, ok := versionOf(b[lba*blockSize:][:blockSize], lba)
		if !ok {
			j.t.Fatalf("block %d is torn", lba)
		}
		j.issued[lba], j.acked[lba], j.durable[lba] = v, v, v
	}
}

// verify reads every block, from the daemon and from the file.
func (j *journal) verify(r *rig) {
	file, err := os.ReadFile(r.path("d.img"))
	if err != nil {
		j.t.Fatal(err)
	}
	for lba := range journalBlocks {
		if err := j.q.Read(r.ctx, 1, uint64(lba), 1, 0, blockSize); err != nil {
			j.t.Fatal(err)
		}
		for what, b := range map[string][]byte{"the daemon": j.q.Data()[:blockSize], "the file": file[lba*blockSize:][:blockSize]} {
			j.check(what+", of flushed writes", b, lba, j.durable[lba])
			j.check(what+", of acknowledged writes", b, lba, j.acked[lba])
		}
	}
}

// With a cache a medium is one daemon's as it is without, and status shows what
// the cache does, as a table and as JSON.
func TestCachedDaemon(t *testing.T) {
	r := newRig(t)
	r.write("nvmf.yaml", cachedFile)
	p := r.start()
	r.write("other.yaml", strings.NewReplacer("HEAD", "version: 1\nstrict: true\nadmin: {socket: none}\n"+
		"listeners: [{name: front, provider: roce, address: ADDRESS, port: 4421}]\npoll_groups: 1\nrdma: {buffers: 4MiB}\n").Replace(cachedFile))
	other := r.launch("other.yaml")
	want := fmt.Sprintf("backend d: backend/file: %s: locked by another opener: process %d (", r.path("d.img"), p.cmd.Process.Pid)
	if code := other.wait(); code != 1 || !other.said(want) {
		t.Errorf("the same medium: exit code %d, want %q", code, want)
	}

	_, q := r.connect()
	for range 20 {
		for lba := range uint64(16) {
			if err := q.Read(r.ctx, 1, lba, 1, 0, blockSize); err != nil {
				t.Fatal(err)
			}
		}
	}
	var st daemon.Status
	r.until("status shows hits", func() bool {
		code, out, errs := nvmfTarget("status", "-o", "json", "-s", r.path("socket"))
		if code != 0 {
			t.Fatal(errs)
		}
		if err := json.Unmarshal([]byte(out), &st); err != nil {
			t.Fatal(err)
		}
		c := &st.Caches[0]
		return c.Hits+c.Misses+c.Bypasses == 320 && c.Lent > 160 && st.RDMA.LentBytes == c.Lent*blockSize
	})
	code, out, errs := nvmfTarget("status", "-i", "0", "-s", r.path("socket"))
	for _, want := range []string{"Caches", "evictions", "hit ratio", "1.0 MiB", "4.0 KiB", "beside"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("no %q: exit code %d\n%s%s", want, code, out, errs)
		}
	}
	if !strings.Contains(out, fmt.Sprintf("│ %.1f%%", 100*float64(st.Caches[0].Hits)/320)) {
		t.Errorf("not the hit ratio of %d hits:\n%s", st.Caches[0].Hits, out)
	}
}

func TestCacheNumbers(t *testing.T) {
	for _, c := range []struct{ a, b, want uint64 }{{0, 5, 5}, {5, 7, 2}, {7, 7, 0}, {7, 3, 3}} {
		if n := since(c.a, c.b); n != c.want {
			t.Errorf("from %d to %d: %d", c.a, c.b, n)
		}
	}
	if share(0, 0) != "-" || share(1, 3) != "33.3%" || meanOf(daemon.MeanLatency{}) != "-" || meanOf(daemon.MeanLatency{Count: 1, Mean: 1500}) != "1.5µs" {
		t.Error(share(1, 3), meanOf(daemon.MeanLatency{Count: 1, Mean: 1500}))
	}
}
