package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric/fabrictest"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// lane is one command at a time of a soaking connection: it writes a piece of
// its own region, reads it back and compares.
type lane struct {
	cid     uint16
	base    uint64 // first block of its region of 1 MiB
	off     int    // of its part of the queue's memory: written from, read to
	lba     uint64
	size    int
	reading bool
}

const laneSize = 1 << 20

// soaker drives the lanes of one connection.
type soaker struct {
	q     *rdmatest.Queue
	rng   *rand.Rand
	lanes []lane
	cmd   nvme.Command
	ops   int
}

func newSoaker(q *rdmatest.Queue, seed uint64, lanes int) *soaker {
	s := &soaker{q: q, rng: rand.New(rand.NewPCG(seed, 99)), cmd: make(nvme.Command, nvme.SQESize)}
	for i := range lanes {
		s.lanes = append(s.lanes, lane{
			cid: uint16(i), off: i * 2 * laneSize,
			base: (seed*uint64(lanes) + uint64(i)) * laneSize / blockLen,
		})
	}
	return s
}

// write sends a random piece: in the capsule, by one descriptor, or by a list.
func (s *soaker) write(l *lane) error {
	blocks := 1 + s.rng.IntN(1<<s.rng.IntN(12)) // 512 bytes to 1 MiB, mostly small
	l.size = blocks * blockLen
	l.lba = l.base + uint64(s.rng.IntN(laneSize/blockLen-blocks+1))
	l.reading = false
	data := s.q.Data()[l.off:][:l.size]
	for v, i := s.rng.Uint64(), 0; i < len(data); i += 8 { // a size is whole blocks
		v = v*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(data[i:], v)
	}
	s.q.IO(s.cmd, nvme.CmdWrite, l.cid, memNS, l.lba, uint32(blocks), l.off, l.size)
	switch {
	case l.size <= 4096 && s.rng.IntN(2) == 0:
		s.cmd.SGL1().SetInCapsule(0, uint32(l.size))
		return s.q.SendCommand(s.cmd, data)
	case s.rng.IntN(4) == 0:
		return s.q.SendCommand(s.cmd, s.list(l.off, l.size))
	}
	return s.q.SendCommand(s.cmd, nil)
}

// list makes the command's SGL a list of pieces that follow one another.
func (s *soaker) list(off, size int) (descs []byte) {
	n := 2 + s.rng.IntN(15)
	for i := range n {
		k := s.rng.IntN(size + 1)
		if i == n-1 {
			k = size
		}
		descs = append(descs, keyed(s.q.Addr()+uint64(off), uint32(k), s.q.RKey(), 0)...)
		off, size = off+k, size-k
	}
	s.cmd.SGL1().SetSegment(nvme.SGLLastSegment, 0, uint32(len(descs)), nvme.SGLOffset)
	return descs
}

func (s *soaker) read(l *lane) error {
	l.reading = true
	clear(s.q.Data()[l.off+laneSize:][:l.size])
	s.q.IO(s.cmd, nvme.CmdRead, l.cid, memNS, l.lba, uint32(l.size/blockLen), l.off+laneSize, l.size)
	if s.rng.IntN(4) == 0 {
		return s.q.SendCommand(s.cmd, s.list(l.off+laneSize, l.size))
	}
	return s.q.SendCommand(s.cmd, nil)
}

func (s *soaker) step(l *lane) error {
	s.ops++
	if !l.reading {
		return s.read(l)
	}
	if !bytes.Equal(s.q.Data()[l.off:][:l.size], s.q.Data()[l.off+laneSize:][:l.size]) {
		return fmt.Errorf("lane %d: %d bytes at block %d are not what was written", l.cid, l.size, l.lba)
	}
	return s.write(l)
}

// run goes on until end, and a hundred commands on a machine that is slow.
func (s *soaker) run(end time.Time) error {
	for i := range s.lanes {
		if err := s.write(&s.lanes[i]); err != nil {
			return err
		}
	}
	for s.ops < 100 || time.Now().Before(end) {
		if _, err := s.q.Poll(); err != nil {
			return err
		}
		for _, r := range s.q.Take() {
			if !r.Status.OK() {
				return fmt.Errorf("CID %d: %w", r.CID, r.Status)
			}
			if err := s.step(&s.lanes[r.CID]); err != nil {
				return err
			}
		}
		runtime.Gosched()
	}
	return nil
}

// Many connections write and read at random for a while, with fewer buffers
// than they want; every byte is compared. SOAK=10m makes the while longer.
func TestSoak(t *testing.T) {
	d := 300 * time.Millisecond
	if v, err := time.ParseDuration(os.Getenv("SOAK")); err == nil {
		d = v
	}
	for _, c := range []struct {
		name   string
		cfg    func(*Config)
		faults fabrictest.Faults
	}{
		{"own receives", func(c *Config) { c.Buffers = 6 << 20 }, fabrictest.Faults{}},
		{"shared receives", func(c *Config) { c.SRQ, c.SRQDepth = On, 64 }, fabrictest.Faults{}},
		{"lossy", nil, fabrictest.Faults{Drop: 0.001, DropAck: 0.001, Duplicate: 0.01}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t, envOptions{bound: 30*time.Second + d, cfg: func(cfg *Config) {
				if c.cfg != nil {
					c.cfg(cfg)
				}
			}})
			const conns, lanes = 8, 4
			s := e.admin()
			var soakers []*soaker
			for i := range conns {
				q := e.queueOf(s, rdmatest.Options{QID: uint16(i + 1), HSQSize: 7, IRD: 1 + i%4, DataSize: lanes * 2 * laneSize}, rdmatest.ConnectParams{})
				soakers = append(soakers, newSoaker(q, uint64(i), lanes))
			}
			e.net.SetFaults(targetIP, hostIP, c.faults)
			var wg sync.WaitGroup
			end := time.Now().Add(d)
			for i, s := range soakers {
				wg.Go(func() {
					if err := s.run(end); err != nil {
						t.Errorf("connection %d after %d commands: %v", i, s.ops, err)
					}
				})
			}
			wg.Wait()
			e.net.Heal(targetIP, hostIP)
			total := 0
			for _, s := range soakers {
				total += s.ops
			}
			snap := e.snapshot()
			sum := snap.sum()
			t.Logf("%d commands, waits: buffers %d, READs %d, sends %d, slots %d", total, sum.BufferWaits, sum.ReadWaits, sum.SendWaits, sum.SlotWaits)
			if total == 0 || sum.Stale != 0 {
				t.Errorf("%d commands, %d stale completions", total, sum.Stale)
			}
		})
	}
}
