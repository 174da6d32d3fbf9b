package roce

import (
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// fallAsleep does what an owner does before it sleeps, except that between
// meanwhile happens between the Arm and the last Poll.
func (e *benchEnd) fallAsleep(t *testing.T, meanwhile func()) {
	t.Helper()
	for len(e.poll(t)) > 0 {
	}
	select {
	case <-e.woke:
	default:
	}
	if err := e.cq.Arm(); err != nil {
		t.Fatal(err)
	}
	meanwhile()
	if wc := e.poll(t); len(wc) > 0 {
		t.Fatalf("%+v: the owner would not sleep", wc)
	}
}

// write posts n WRITEs of 64 bytes, the last of which is signaled if last is
// set.
func (e *benchEnd) write(t *testing.T, to *benchEnd, n int, last bool) {
	t.Helper()
	wrs := make([]fabric.SendWR, n)
	for i := range wrs {
		wrs[i] = fabric.SendWR{Op: fabric.OpWrite, NumSGE: 1, RemoteAddr: to.mem.Addr(), RKey: to.mr.RKey()}
	}
	if last {
		wrs[n-1].Flags = fabric.FlagSignaled
	}
	if _, err := e.qp.PostSend(wrs, []fabric.SGE{{Addr: e.mem.Addr(), Length: 64, LKey: e.mr.LKey()}}); err != nil {
		t.Fatal(err)
	}
}

// long is a retransmission time that no test waits for.
const long = time.Minute

// What the last Poll before the sleep has read is acknowledged, though no
// completion came of it.
func TestSleepAnswers(t *testing.T) {
	x, y := benchPair(t, Options{MinTimeout: long}, nil)
	for range 100 {
		y.fallAsleep(t, func() {
			x.write(t, y, 3, true)
			x.poll(t)
		})
		for start := time.Now(); len(x.poll(t)) == 0; {
			if time.Since(start) > 10*time.Second {
				t.Fatal("no ACK")
			}
		}
	}
}

// What ACKs make room for leaves, though no completion came of them.
func TestSleepSends(t *testing.T) {
	x, y := benchPair(t, Options{MinTimeout: long}, nil)
	received := func() uint64 { return x.qp.(*queuePair).e.stats.Received }
	y.write(t, x, 200, false)
	y.poll(t)
	for start, n := time.Now(), uint64(0); n < 200; n = received() {
		y.fallAsleep(t, func() {
			for received() == n {
				x.poll(t)
				if time.Since(start) > 10*time.Second {
					t.Fatalf("%d of 200 packets came", n)
				}
			}
		})
	}
}

// The timer of what leaves in the last Poll runs.
func TestSleepTimer(t *testing.T) {
	x, y := benchPair(t, Options{}, nil)
	y.fallAsleep(t, func() { y.write(t, x, 1, false) })
	select {
	case <-y.woke:
	case <-time.After(10 * time.Second):
		t.Fatal("no timer")
	}
	y.poll(t)
	if n := y.qp.(*queuePair).e.stats.Timeouts; n == 0 {
		t.Error("nothing was late when the timer went off")
	}
}
