package roce

import (
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

// fallAsleep does what an owner does before it sleeps, except that between
// meanwhile happens between the Arm and the last Poll.
func fallAsleep(e *fabrictest.End, meanwhile func()) {
	e.Helper()
	for len(e.Poll()) > 0 {
	}
	select {
	case <-e.Woke:
	default:
	}
	e.Must(e.CQ.Arm())
	meanwhile()
	if wc := e.Poll(); len(wc) > 0 {
		e.Fatalf("%+v: the owner would not sleep", wc)
	}
}

// write posts n WRITEs of 64 bytes, the last of which is signaled if last is
// set.
func write(from, to *fabrictest.End, n int, last bool) {
	from.Helper()
	wrs := make([]fabric.SendWR, n)
	for i := range wrs {
		wrs[i] = fabric.SendWR{Op: fabric.OpWrite, NumSGE: 1, RemoteAddr: to.Mem.Addr(), RKey: to.MR.RKey()}
	}
	if last {
		wrs[n-1].Flags = fabric.FlagSignaled
	}
	_, err := from.QP.PostSend(wrs, []fabric.SGE{from.SGE(0, 64)})
	from.Must(err)
}

// long is a retransmission time that no test waits for.
const long = time.Minute

// What the last Poll before the sleep has read is acknowledged, though no
// completion came of it.
func TestSleepAnswers(t *testing.T) {
	x, y := rcPair(t, Options{MinTimeout: long}, nil)
	for range 100 {
		fallAsleep(y, func() {
			write(x, y, 3, true)
			x.Poll()
		})
		for start := time.Now(); len(x.Poll()) == 0; {
			if time.Since(start) > 10*time.Second {
				t.Fatal("no ACK")
			}
		}
	}
}

// What ACKs make room for leaves, though no completion came of them.
func TestSleepSends(t *testing.T) {
	x, y := rcPair(t, Options{MinTimeout: long}, nil)
	received := func() uint64 { return engineOf(x).stats.Received }
	write(y, x, 200, false)
	y.Poll()
	for start, n := time.Now(), uint64(0); n < 200; n = received() {
		fallAsleep(y, func() {
			for received() == n {
				x.Poll()
				if time.Since(start) > 10*time.Second {
					t.Fatalf("%d of 200 packets came", n)
				}
			}
		})
	}
}

// The timer of what leaves in the last Poll runs.
func TestSleepTimer(t *testing.T) {
	x, y := rcPair(t, Options{}, nil)
	fallAsleep(y, func() { write(y, x, 1, false) })
	select {
	case <-y.Woke:
	case <-time.After(10 * time.Second):
		t.Fatal("no timer")
	}
	y.Poll()
	if n := engineOf(y).stats.Timeouts; n == 0 {
		t.Error("nothing was late when the timer went off")
	}
}
