package target

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/nvme"
)

func TestLimiter(t *testing.T) {
	now := time.Now()
	l := limiter{tokens: peerLogBurst, last: now}
	passed := 0
	for range 100 {
		if ok, _ := l.take(now); ok {
			passed++
		}
	}
	if passed != peerLogBurst {
		t.Errorf("%d lines passed at once, want %d", passed, peerLogBurst)
	}
	if ok, _ := l.take(now.Add(peerLogPeriod - 1)); ok {
		t.Error("one passed before its period")
	}
	ok, lost := l.take(now.Add(peerLogPeriod))
	if !ok || lost != 100-peerLogBurst+1 {
		t.Errorf("after a period: %v, %d were lost", ok, lost)
	}
	if ok, lost := l.take(now.Add(time.Hour)); !ok || lost != 0 {
		t.Errorf("after an hour: %v, %d were lost", ok, lost)
	}
	for range peerLogBurst - 1 {
		if ok, _ := l.take(now.Add(time.Hour)); !ok {
			t.Error("an hour of silence did not fill the bucket")
		}
	}
	if ok, _ := l.take(now.Add(time.Hour)); ok {
		t.Error("an hour of silence filled more than the bucket")
	}
}

// logged runs fn with a rig and returns what was logged.
func logged(t *testing.T, fn func(r *rig, port *Port)) string {
	var out bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		log := logrus.New()
		log.SetOutput(&out)
		log.SetFormatter(&logrus.TextFormatter{DisableTimestamp: true, DisableColors: true})
		r := newRig(t, Config{Log: log})
		port := r.addPort(1, "front", "192.0.2.1:4420")
		r.addSubsystem(SubsystemConfig{NQN: nqnA, Hosts: AnyHost()})
		fn(r, port)
	})
	return out.String()
}

// One line says who and why.
func TestLogLines(t *testing.T) {
	for _, c := range []struct {
		name string
		fn   func(r *rig, port *Port)
		want []string
	}{
		{"connect", func(r *rig, port *Port) { r.session(port, 0) },
			[]string{"controller 1 connected, keep alive 5s", string(hostOne), string(nqnA), "192.0.2.9:1234", "cntlid=1", "port=front"}},
		{"refused", func(r *rig, port *Port) {
			r.connect(r.link("q", port, 0, 0, 32), connectSpec{sub: "nqn.2026-11.io:none"})
		},
			[]string{"Connect of queue 0 refused: there is no such subsystem on this port", "nqn.2026-11.io:none", string(hostOne)}},
		{"two identifiers", func(r *rig, port *Port) {
			r.session(port, 0)
			r.connect(r.link("q", port, 0, 0, 32), connectSpec{hostID: nvme.HostID{7}})
		}, []string{"host has identifier 07000000-0000-0000-0000-000000000000 here and 00000000-0000-0000-0000-000000000001 on controller 1"}},
		{"keep alive", func(r *rig, port *Port) {
			r.session(port, 0)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			r.step()
		}, []string{"controller 1 ends: keep alive timeout"}},
		{"enable", func(r *rig, port *Port) {
			l := r.link("q", port, 0, 0, 32)
			r.connect(l, connectSpec{})
			sqe := make(nvme.Command, nvme.SQESize)
			sqe.Property().InitSet(nvme.PropCC, 0x00460081)
			r.do(l, sqe, nil, 0)
		}, []string{"controller 1 cannot be enabled: memory page size (CC 0x460081)"}},
		{"unconnected", func(r *rig, port *Port) {
			r.link("q", port, 0, 0, 32)
			time.Sleep(time.Minute)
			synctest.Wait()
			r.step()
		}, []string{"connection closed: no Connect command arrived in time"}},
	} {
		out := logged(t, c.fn)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", c.name, want, out)
			}
		}
	}
}

// A host that is refused again and again fills no disk, and its name is cut.
func TestLogFlood(t *testing.T) {
	out := logged(t, func(r *rig, port *Port) {
		l := r.link("q", port, 0, 0, 32)
		for range 500 {
			sqe, data := connectSpec{}.build()
			copy(data[512:], bytes.Repeat([]byte{'A'}, 256)) // no NUL
			r.do(l, sqe, data, len(data))
		}
		time.Sleep(time.Second)
		r.connect(l, connectSpec{sub: "nqn.2026-11.io:none"})
	})
	if n := strings.Count(out, "refused"); n < peerLogBurst || n > peerLogBurst+2 {
		t.Errorf("%d lines for 501 refusals", n)
	}
	if !strings.Contains(out, "480 lines were left out") {
		t.Errorf("the flood is not mentioned:\n%s", out)
	}
	if strings.Contains(out, strings.Repeat("A", 20)) {
		t.Error("an unterminated name was logged")
	}
}
