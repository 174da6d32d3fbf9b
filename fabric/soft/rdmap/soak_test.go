package rdmap

import (
	"fmt"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

const (
	soakSlots = 8
	soakSize  = 8 << 10
)

// soaker posts random WRs at one end, each on a slot of memory of its own, and
// checks what they did when they complete.
type soaker struct {
	*end
	slots [soakSlots]struct {
		op fabric.Opcode
		n  int
	}
	free     []int
	order    []int // slots posted and not completed
	sent     int
	received int
	posted   int
	counter  uint64
}

// The slots: what a WR sends or reads into, what it writes to or reads from at
// the peer, and the receives.
func soakLocal(i int) int  { return i * soakSize }
func soakRemote(i int) int { return (soakSlots + i) * soakSize }
func soakRecv(i int) int   { return 2*soakSlots*soakSize + i*soakSize }

const messageSeed = 1 << 40

const soakCounter = 3*soakSlots*soakSize + 8

func newSoaker(e *end) *soaker {
	s := &soaker{end: e}
	for i := range soakSlots {
		s.free = append(s.free, i)
		e.recv(uint64(1000+i), e.sge(soakRecv(i), soakSize))
	}
	return s
}

func (s *soaker) step(credit int) {
	rng := s.w.rng
	if len(s.free) == 0 || rng.IntN(3) == 0 {
		return
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	sl := &s.slots[i]
	sl.n = rng.IntN(soakSize + 1)
	if rng.IntN(2) == 0 {
		sl.n = rng.IntN(700)
	}
	cut := rng.IntN(sl.n + 1)
	sges := []fabric.SGE{s.sge(soakLocal(i), cut), s.sge(soakLocal(i)+cut, sl.n-cut)}
	s.fill(soakLocal(i), sl.n, uint64(s.posted))
	wr := s.remote(fabric.OpWrite, uint64(i), soakRemote(i))
	switch r := rng.IntN(8); {
	case r < 2 && credit > 0:
		wr.Op = fabric.OpSend
		s.fill(soakLocal(i), sl.n, messageSeed+uint64(s.sent))
		s.sent++
	case r == 2:
		wr.Op = fabric.OpRead
		s.w.peer(s.end).fill(soakRemote(i), sl.n, uint64(s.posted))
	case r == 3:
		wr.Op = fabric.OpFetchAdd
	}
	if rng.IntN(6) == 0 {
		wr.Flags |= fabric.FlagFence
	}
	sl.op = wr.Op
	s.posted++
	s.order = append(s.order, i)
	if wr.Op == fabric.OpFetchAdd {
		s.atomic(fabric.AtomicWR{ID: wr.ID, Op: wr.Op, RemoteAddr: soakCounter, SwapAdd: 3}, s.sge(soakLocal(i), 8))
		return
	}
	s.post(wr, sges...)
}

// reap takes the completions and says what is wrong with them.
func (s *soaker) reap(peer *soaker) {
	for _, c := range s.poll() {
		if c.Status != fabric.StatusSuccess {
			s.w.Fatalf("%s: %+v", s.name, c)
		}
		if c.ID >= 1000 {
			i := int(c.ID - 1000)
			if i != s.received%soakSlots {
				s.w.Fatalf("%s: message %d came to receive %d", s.name, s.received, i)
			}
			want := make([]byte, c.ByteLen)
			pattern(want, messageSeed+uint64(s.received))
			s.w.same("message", s.bytes(soakRecv(i), len(want)), want)
			s.received++
			s.recv(c.ID, s.sge(soakRecv(i), soakSize))
			continue
		}
		i := s.order[0]
		s.order = s.order[1:]
		if uint64(i) != c.ID {
			s.w.Fatalf("%s: completion of %d, want %d", s.name, c.ID, i)
		}
		s.check(i, peer)
		s.free = append(s.free, i)
	}
}

func (s *soaker) check(i int, peer *soaker) {
	sl := &s.slots[i]
	switch sl.op {
	case fabric.OpRead:
		s.w.same("read", s.bytes(soakLocal(i), sl.n), peer.bytes(soakRemote(i), sl.n))
	case fabric.OpFetchAdd:
		if old := nativeWord(s.end, soakLocal(i)); old != s.counter {
			s.w.Fatalf("%s: the atomic found %d, want %d", s.name, old, s.counter)
		}
		s.counter += 3
	}
}

// Both ends do random things to each other over streams that take and give as
// they like; in the end everything is where it belongs.
func TestSoak(t *testing.T) {
	for _, crc := range []bool{false, true} {
		for _, ulpdu := range []int{300, 1442, 20000} {
			t.Run(fmt.Sprintf("crc=%v/ulpdu=%d", crc, ulpdu), func(t *testing.T) {
				cfg := defaultConfig
				cfg.CRC, cfg.ULPDU = crc, ulpdu
				w := newWorld(t, cfg)
				w.take, w.piece = 9000, 7000
				x, y := newSoaker(w.a), newSoaker(w.b)
				for range 3000 {
					for _, p := range [][2]*soaker{{x, y}, {y, x}} {
						s, peer := p[0], p[1]
						s.step(soakSlots - (s.sent - peer.received))
						s.send()
						s.receive()
						s.reap(peer)
					}
				}
				w.take, w.piece = 0, 0
				w.run()
				x.reap(y)
				y.reap(x)
				for _, p := range [][2]*soaker{{x, y}, {y, x}} {
					s, peer := p[0], p[1]
					if s.posted < 500 || len(s.order) > 0 || s.sent != peer.received {
						t.Errorf("%s: %d posted, %d under way, %d sent, %d received", s.name, s.posted, len(s.order), s.sent, peer.received)
					}
					if got := nativeWord(peer.end, soakCounter); got != s.counter {
						t.Errorf("%s: the counter is %d, want %d", s.name, got, s.counter)
					}
					for i, sl := range s.slots {
						if sl.op == fabric.OpWrite {
							w.same("written", peer.bytes(soakRemote(i), sl.n), s.bytes(soakLocal(i), sl.n))
						}
					}
					if s.stats.Sent != peer.stats.Received || s.stats.Sent == 0 {
						t.Errorf("%s: %d segments sent, %d received", s.name, s.stats.Sent, peer.stats.Received)
					}
				}
			})
		}
	}
}
