package target

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

func keepAliveRig(t *testing.T, kato uint32) (*rig, *fakeLink) {
	r := newRig(t, Config{})
	port := r.addPort(1, "front", "192.0.2.1:4420")
	r.addSubsystem(SubsystemConfig{NQN: nqnA, Hosts: AnyHost()})
	l := r.link("admin", port, 0, 0, 32)
	r.connect(l, connectSpec{kato: kato})
	r.enable(l)
	return r, l
}

func keepAliveSQE() nvme.Command {
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Init(nvme.AdminKeepAlive, 0)
	return sqe
}

// An owner that is late does not cost its hosts their controllers: what has
// arrived is taken in before the controller is given up.
func TestKeepAliveOfALateOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := keepAliveRig(t, 1000)
		time.Sleep(10 * time.Second) // the owner takes no turn
		synctest.Wait()
		l.start(keepAliveSQE(), nil, 0) // was there all along
		r.step()
		if l.reason != nil {
			t.Fatalf("ended: %v", l.reason)
		}
		time.Sleep(1400 * time.Millisecond)
		synctest.Wait()
		r.step()
		if l.reason != nil {
			t.Fatalf("ended %v after a command: %v", 1400*time.Millisecond, l.reason)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		r.step()
		if !errors.Is(l.reason, ErrKeepAlive) {
			t.Errorf("did not end: %v", l.reason)
		}
	})
}

// The timeout is changed while the controller's end is being decided.
func TestKeepAliveChangedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l := keepAliveRig(t, 1000)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		l.q.ctrl.mu.Lock()
		l.q.ctrl.startKeepAliveLocked(60_000)
		l.q.ctrl.mu.Unlock()
		r.step()
		if l.reason != nil {
			t.Errorf("ended: %v", l.reason)
		}
	})
}

// A controller ends between one and two timeouts after its last command.
func TestKeepAliveWindow(t *testing.T) {
	for _, kato := range []time.Duration{100 * time.Millisecond, time.Second, 5 * time.Second, 2 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			r, l := keepAliveRig(t, uint32(kato/time.Millisecond))
			start := time.Now()
			for l.reason == nil {
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
				r.step()
			}
			if d := time.Since(start); d < kato || d > 2*kato {
				t.Errorf("timeout %v: ended after %v", kato, d)
			}
			if s := l.q.ctrl.csts; !s.CFS() || s.RDY() {
				t.Errorf("CSTS %#x", uint32(s))
			}
		})
	}
}

// Many controllers do not mean many wake-ups: deadlines are in steps.
func TestKeepAliveDeadlinesAreRounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := keepAliveRig(t, 1234)
		next, _ := r.t.expire(r.t.now())
		if next == 0 || next%int64(keepAliveUnit) != 0 {
			t.Errorf("next deadline %d", next)
		}
	})
}
