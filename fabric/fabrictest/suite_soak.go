package fabrictest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// The soak test's memory, at each end: soakSlots local buffers, as many that
// the peer writes and reads, and the receives.
const (
	soakSlots  = 24
	soakSize   = 48 << 10
	soakRecvs  = 32
	soakRecv   = 4096
	soakRemote = soakSlots * soakSize
	soakInbox  = 2 * soakRemote
	soakWords  = soakInbox + soakRecvs*soakRecv
)

// Words of the memory: what the peer has received of ours, and the counter
// that the peer's atomics add to.
const (
	soakCredit  = soakWords
	soakCounter = soakWords + 64
	soakOld     = soakWords + 128 // where old values land
	soakMine    = soakWords + 192 // the source of the peer's credit word
)

// testSoak has both ends, each owned by a goroutine, do random things to each
// other and check every byte.
func testSoak(s *suite) {
	depth := func(a, b *fabric.ConnConfig) {
		for _, c := range []*fabric.ConnConfig{a, b} {
			c.SendDepth, c.RecvDepth = 2*soakSlots+16, soakRecvs
		}
	}
	ch := s.connect(depth)
	var done atomic.Int32
	var wg sync.WaitGroup
	failed := make(chan error, 2)
	soakers := make([]*soaker, 2)
	for i, sd := range ch.sides() {
		soakers[i] = newSoaker(s, sd, ch.sides()[1-i], uint64(i))
	}
	for _, k := range soakers {
		wg.Go(func() {
			if err := k.run(&done); err != nil {
				failed <- fmt.Errorf("%s: %w", k.sd.name, err)
				done.Store(2) // the other one may give up too
			}
		})
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		s.Error(err)
	}
	s.Logf("seed %d: %v and %v", s.cfg.Seed, soakers[0].counts, soakers[1].counts)
}

// slot is an operation under way, or what is known of the remote buffer.
type slot struct {
	busy     bool
	op       fabric.Opcode
	off, n   int    // of the remote buffer
	seed     uint32 // of the pattern written there; 0 when never written
	signaled bool
}

// soaker is the owner of one end.
type soaker struct {
	s        *suite
	sd, peer *side
	rng      *rand.Rand
	wc       []fabric.Completion
	slots    [soakSlots]slot
	order    []int // slots in the order they were posted
	posted   int   // operations
	quiet    int   // WRs since the last signaled one
	sent     uint64
	received uint64
	credited uint64 // received, as told to the peer
	counter  uint64 // what our atomics have made of the peer's counter
	scratch  []byte
	atomics  fabric.Atomics
	counts   map[fabric.Opcode]int
}

func newSoaker(s *suite, sd, peer *side, no uint64) *soaker {
	k := &soaker{
		s: s, sd: sd, peer: peer, rng: rand.New(rand.NewPCG(s.cfg.Seed, no)),
		wc: make([]fabric.Completion, 16), scratch: make([]byte, soakSize), counts: make(map[fabric.Opcode]int),
	}
	if sd.dev.Limits().Atomics && peer.dev.Limits().Atomics {
		k.atomics, _ = sd.qp.(fabric.Atomics)
	}
	clear(sd.bytes(soakWords, 256))
	sd.recv(0, soakRecvs, soakInbox, soakRecv)
	return k
}

// run works until both ends have done all their operations.
func (k *soaker) run(done *atomic.Int32) error {
	deadline := time.Now().Add(6 * k.s.cfg.Timeout)
	finished := false
	for idle := 0; ; idle++ {
		n, err := k.sd.cq.Poll(k.wc)
		if err != nil {
			return err
		}
		for i := range k.wc[:n] {
			if err := k.complete(&k.wc[i]); err != nil {
				return err
			}
		}
		for k.posted < k.s.cfg.SoakOps && k.start() {
			idle = 0
		}
		if err := k.tellCredit(); err != nil {
			return err
		}
		if !finished && k.posted >= k.s.cfg.SoakOps && len(k.order) == 0 && k.credit() == k.sent {
			finished = true
			done.Add(1)
		}
		switch {
		case done.Load() >= 2:
			return nil
		case n > 0:
			idle = 0
		case time.Now().After(deadline):
			return fmt.Errorf("stuck after %d operations, %d under way, sent %d, credit %d", k.posted, len(k.order), k.sent, k.credit())
		default:
			relax(idle)
		}
	}
}

// credit is how many of our messages the peer has received: it writes that
// into our memory.
func (k *soaker) credit() uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&k.sd.bytes(soakCredit, 8)[0])))
}

// tellCredit writes the number of received messages to the peer.
func (k *soaker) tellCredit() error {
	if k.received == k.credited || k.received-k.credited < soakRecvs/4 && k.posted < k.s.cfg.SoakOps {
		return nil
	}
	wr := fabric.SendWR{ID: soakSlots, Op: fabric.OpWrite, NumSGE: 1, Flags: fabric.FlagSignaled,
		RemoteAddr: k.peer.mem.Addr() + soakCredit, RKey: k.peer.mr.RKey()}
	k.sd.setWord(soakMine, k.received)
	if len(k.order) >= 2*soakSlots {
		return nil
	}
	n, err := k.sd.qp.PostSend([]fabric.SendWR{wr}, []fabric.SGE{k.sd.sge(soakMine, 8)})
	if n == 1 {
		k.credited = k.received
		k.order = append(k.order, soakSlots)
	}
	return err
}

// start posts one random operation on a free slot, and says whether it could.
func (k *soaker) start() bool {
	i := k.rng.IntN(soakSlots)
	sl := &k.slots[i]
	if sl.busy || len(k.order) >= soakSlots {
		return false
	}
	sl.op = fabric.OpWrite
	switch r := k.rng.IntN(10); {
	case r < 3 && sl.seed != 0 && k.sd.conn.ORD() > 0:
		sl.op = fabric.OpRead
	case r < 6 && k.sent-k.credit() < soakRecvs:
		sl.op = fabric.OpSend
	case r == 6 && k.atomics != nil && k.sd.conn.ORD() > 0:
		sl.op = fabric.OpFetchAdd
	}
	k.quiet++
	sl.signaled = sl.op == fabric.OpRead || sl.op == fabric.OpFetchAdd || k.rng.IntN(2) == 0 || k.quiet > 8 || k.posted >= k.s.cfg.SoakOps-soakSlots
	if sl.signaled {
		k.quiet = 0
	}
	err := k.post(i, sl)
	if err != nil {
		panic(err) // the queues are deep enough by construction
	}
	sl.busy = true
	k.order = append(k.order, i)
	k.posted++
	k.counts[sl.op]++
	return true
}

func (k *soaker) post(i int, sl *slot) error {
	var flags fabric.SendFlags
	if sl.signaled {
		flags |= fabric.FlagSignaled
	}
	if k.rng.IntN(8) == 0 {
		flags |= fabric.FlagFence
	}
	wr := fabric.SendWR{ID: uint64(i), Op: sl.op, Flags: flags, RKey: k.peer.mr.RKey()}
	base := i * soakSize
	switch sl.op {
	case fabric.OpFetchAdd:
		at := fabric.AtomicWR{ID: wr.ID, Op: sl.op, Flags: flags, RKey: wr.RKey, RemoteAddr: k.peer.mem.Addr() + soakCounter, SwapAdd: uint64(i) + 1}
		_, err := k.atomics.PostAtomic([]fabric.AtomicWR{at}, []fabric.SGE{k.sd.sge(base, 8)})
		return err
	case fabric.OpSend:
		n := 16 + k.rng.IntN(soakRecv-16)
		if k.rng.IntN(3) == 0 && k.sd.qp.MaxInline() >= 16 {
			n = 16 + k.rng.IntN(k.sd.qp.MaxInline()-15)
			wr.Flags |= fabric.FlagInline
		}
		b := k.sd.bytes(base, n)
		fill(b, uint32(k.sent))
		binary.NativeEndian.PutUint64(b, k.sent)
		k.sent++
		return k.send(wr, base, n)
	case fabric.OpWrite:
		sl.n = 1 + k.rng.IntN(soakSize)
		if k.rng.IntN(2) == 0 {
			sl.n = 1 + k.rng.IntN(600)
		}
		sl.off, sl.seed = k.rng.IntN(soakSize-sl.n+1), k.rng.Uint32()|1
		fill(k.sd.bytes(base, sl.n), sl.seed)
	case fabric.OpRead:
		clear(k.sd.bytes(base, sl.n))
	}
	wr.RemoteAddr = k.peer.mem.Addr() + soakRemote + uint64(base+sl.off)
	return k.send(wr, base, sl.n)
}

// send posts wr with the n bytes at off, in one to three pieces.
func (k *soaker) send(wr fabric.SendWR, off, n int) error {
	limit := 3
	if wr.Op == fabric.OpRead {
		limit = min(limit, k.sd.dev.Limits().MaxReadSGE)
	}
	var sges []fabric.SGE
	for len(sges) < min(limit, k.sd.dev.Limits().MaxSGE)-1 && n > 1 && k.rng.IntN(2) == 0 {
		piece := 1 + k.rng.IntN(n-1)
		sges = append(sges, k.sd.sge(off, piece))
		off, n = off+piece, n-piece
	}
	sges = append(sges, k.sd.sge(off, n))
	wr.NumSGE = uint8(len(sges))
	_, err := k.sd.qp.PostSend([]fabric.SendWR{wr}, sges)
	return err
}

func (k *soaker) complete(c *fabric.Completion) error {
	if c.Status != fabric.StatusSuccess {
		return fmt.Errorf("%+v", *c)
	}
	if c.ID >= recvID {
		return k.receive(c)
	}
	for len(k.order) > 0 {
		i := k.order[0]
		k.order = k.order[1:]
		if i == soakSlots {
			if c.ID == soakSlots {
				return nil
			}
			return fmt.Errorf("completion of %d before that of a credit", c.ID)
		}
		sl := &k.slots[i]
		sl.busy = false
		if uint64(i) == c.ID {
			return k.check(i, sl)
		}
		if sl.signaled {
			return fmt.Errorf("completion of %d before that of %d", c.ID, i)
		}
	}
	return fmt.Errorf("completion of %d, which is not under way", c.ID)
}

// check compares what an operation brought.
func (k *soaker) check(i int, sl *slot) error {
	switch sl.op {
	case fabric.OpRead:
		want := k.scratch[:sl.n]
		fill(want, sl.seed)
		if !bytes.Equal(k.sd.bytes(i*soakSize, sl.n), want) {
			return fmt.Errorf("READ of %d bytes of slot %d differs from what was written", sl.n, i)
		}
	case fabric.OpFetchAdd:
		if old := k.sd.word(i * soakSize); old != k.counter {
			return fmt.Errorf("FETCH_ADD returned %d, want %d", old, k.counter)
		}
		k.counter += uint64(i) + 1
	}
	return nil
}

// receive checks a message and posts its receive again.
func (k *soaker) receive(c *fabric.Completion) error {
	i := int(c.ID - recvID)
	b := k.sd.bytes(soakInbox+i*soakRecv, int(c.ByteLen))
	if len(b) < 16 {
		return fmt.Errorf("a message of %d bytes", len(b))
	}
	want := k.scratch[:len(b)]
	fill(want, uint32(k.received))
	binary.NativeEndian.PutUint64(want, k.received)
	if !bytes.Equal(b, want) {
		return fmt.Errorf("message %d of %d bytes (number %d) differs from what was sent", k.received, len(b), binary.NativeEndian.Uint64(b))
	}
	k.received++
	n, err := k.sd.qp.PostRecv([]fabric.RecvWR{{ID: c.ID, NumSGE: 1}}, []fabric.SGE{k.sd.sge(soakInbox+i*soakRecv, soakRecv)})
	if n != 1 {
		return err
	}
	return nil
}
