package roce

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

// transfer is an operation of x and the memory it is to make equal.
type transfer struct {
	op       fabric.Opcode
	from, to []byte
}

// exchange posts n random operations at x, one memory range each, polls both
// ends until all have completed, and compares.
func exchange(t *testing.T, x, y *fabrictest.End, n int, rng *rand.Rand) {
	t.Helper()
	var all []transfer
	var received, completed, posted, recvs int
	off := 0
	deadline := time.Now().Add(60 * time.Second)
	for completed < n {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d completed; x %+v y %+v", completed, n, stats(x), stats(y))
		}
		for posted < n && posted-completed < 16 {
			size := 1 + rng.IntN(40_000)
			tr := transfer{[]fabric.Opcode{fabric.OpWrite, fabric.OpRead, fabric.OpSend}[rng.IntN(3)], x.Mem.Bytes()[off:][:size], y.Mem.Bytes()[off:][:size]}
			wr := fabric.SendWR{ID: uint64(posted), Op: tr.op, NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: y.Mem.Addr() + uint64(off), RKey: y.MR.RKey()}
			switch tr.op {
			case fabric.OpRead:
				tr.from, tr.to = tr.to, tr.from
			case fabric.OpSend:
				sge := []fabric.SGE{y.SGE(off, size)}
				if _, err := y.QP.PostRecv([]fabric.RecvWR{{ID: uint64(recvs), NumSGE: 1}}, sge); err != nil {
					t.Fatal(err)
				}
				recvs++
			}
			for i := range tr.from {
				tr.from[i] = byte(rng.Uint32())
			}
			sge := []fabric.SGE{x.SGE(off, size)}
			if _, err := x.QP.PostSend([]fabric.SendWR{wr}, sge); err != nil {
				t.Fatal(err)
			}
			all = append(all, tr)
			posted++
			off += size
		}
		for _, c := range x.Poll() {
			if c.ID != uint64(completed) {
				t.Fatalf("completion of %d instead of %d", c.ID, completed)
			}
			completed++
		}
		for _, c := range y.Poll() {
			if c.ID != uint64(received) {
				t.Fatalf("receive %d instead of %d", c.ID, received)
			}
			received++
		}
	}
	if received != recvs {
		t.Errorf("%d of %d messages received", received, recvs)
	}
	for i, tr := range all {
		if !bytes.Equal(tr.from, tr.to) {
			t.Fatalf("operation %d, a %v of %d bytes: the data differ", i, tr.op, len(tr.from))
		}
	}
}

func stats(e *fabrictest.End) any {
	en := engineOf(e)
	return fmt.Sprintf("%+v, %d bad ICRCs, %d for nobody", en.stats, en.rx.badCRC, en.lost)
}

// Packets are lost, repeated, overtaken and damaged on real sockets: the data
// arrive, each once and in order, and no damage is taken for data.
func TestWeather(t *testing.T) {
	for _, c := range []struct {
		rate float64
		ops  int
	}{{0.01, 600}, {0.05, 400}, {0.2, 120}} {
		for kind, set := range map[string]func(*weather){
			"lost":     func(w *weather) { w.lose = c.rate },
			"repeated": func(w *weather) { w.twice = c.rate },
			"late":     func(w *weather) { w.late = c.rate },
			"damaged":  func(w *weather) { w.flip = c.rate },
			"all":      func(w *weather) { w.lose, w.twice, w.late, w.flip = c.rate/4, c.rate/4, c.rate/4, c.rate/4 },
		} {
			t.Run(fmt.Sprintf("%s/%v", kind, c.rate), func(t *testing.T) {
				w := newWeather(1)
				set(w)
				x, y := weatherPair(t, w, time.Millisecond)
				exchange(t, x, y, c.ops, rand.New(rand.NewPCG(2, 2)))
				n := w.counts()
				if n.packets < 400 || n.lost+n.repeated+n.delayed+n.flipped < int(float64(n.packets)*c.rate/2) {
					t.Errorf("the weather was too good: %+v", n)
				}
				bad := engineOf(x).rx.badCRC + engineOf(y).rx.badCRC
				// A flip of the congestion marks is no damage: 8 bits of each packet.
				if d := uint64(n.flipped); bad < d*8/10 || bad > d {
					t.Errorf("%d packets were damaged, %d were found out", d, bad)
				}
			})
		}
	}
}

// weatherPair connects two ends in good weather, and then it begins. What the
// test waits for a lost packet at the end of others is minTimeout.
func weatherPair(t *testing.T, w *weather, minTimeout time.Duration) (x, y *fabrictest.End) {
	t.Helper()
	lose, twice, late, flip := w.lose, w.twice, w.late, w.flip
	w.lose, w.twice, w.late, w.flip = 0, 0, 0, 0
	x, y = rcPair(t, Options{MinTimeout: minTimeout}, w)
	w.mu.Lock()
	w.lose, w.twice, w.late, w.flip = lose, twice, late, flip
	w.mu.Unlock()
	t.Cleanup(func() {
		w.mu.Lock()
		w.lose, w.twice, w.late, w.flip = 0, 0, 0, 0
		w.mu.Unlock()
	})
	return x, y
}

// The connection manager too lives with a link that loses one datagram in five.
func TestWeatherConnect(t *testing.T) {
	w := newWeather(3)
	w.lose, w.twice = 0.2, 0.1
	for range 3 {
		x, y := rcPair(t, Options{}, w)
		exchange(t, x, y, 3, rand.New(rand.NewPCG(4, 4)))
		x.Conn.Disconnect()
		for end := time.Now().Add(20 * time.Second); y.Conn.Err() == nil; {
			if y.CQ.Poll(y.WC); time.Now().After(end) {
				t.Fatal("the peer was not told of the end")
			}
		}
		for _, e := range []*fabrictest.End{x, y} {
			e.Close()
		}
	}
}

// A NIC cuts datagrams in a way that only the first packet of each is right:
// the connection notices and sends them one by one.
func TestWeatherSegmentation(t *testing.T) {
	w := newWeather(1)
	x, y := weatherPair(t, w, 20*time.Millisecond)
	w.mu.Lock()
	w.first = true
	w.mu.Unlock()
	exchange(t, x, y, 60, rand.New(rand.NewPCG(3, 3)))
	for _, e := range []*fabrictest.End{x, y} {
		if q := e.QP.(*queuePair); !q.path.single {
			t.Errorf("still at it: %v", stats(e))
		}
	}
	if n := w.counts(); n.lost > n.packets/4 {
		t.Errorf("%d of %d packets were lost before it was noticed", n.lost, n.packets)
	}
}
