package curves

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// real are options whose points are measured with processes of this program,
// and which leave nothing behind.
func real(t *testing.T) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Cleanup(func() {
		if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
	return Options{Target: self, Host: self}
}

// A point of each kind over each provider, with both ends in processes of their
// own.
func TestMeasure(t *testing.T) {
	cpus, err := CPUs()
	if err != nil {
		t.Fatal(err)
	}
	const moment = 50 * time.Millisecond
	for _, p := range Providers {
		for name, s := range map[string]Setup{
			"one queue":  {QueueDepth: 64, Load: Load{Queues: 1, Depth: 8, BlockSize: 4096}},
			"queues":     {Idle: true, Load: Load{Queues: 3, PerController: 2, Depth: 1, BlockSize: 512, Spin: -1}},
			"busy":       {Busy: true, Load: Load{Queues: 1, Depth: 1, BlockSize: 4096, Spin: time.Millisecond}},
			"namespaces": {Namespaces: 3, Load: Load{Queues: 1, Callers: 4, BlockSize: 4096}},
			"a core":     {TargetCPUs: cpus[:1], HostCPUs: cpus[:1], Load: Load{Queues: 1, Depth: 2, BlockSize: 4096}},
		} {
			t.Run(p+"/"+name, func(t *testing.T) {
				if testing.Short() && name != "queues" {
					t.Skip("in short mode one is enough")
				}
				o := real(t)
				s.Load.Provider, s.Load.Time = p, moment
				m, err := o.measure(t.Context(), s)
				for range 2 { // a busy machine may let nothing pass in a moment
					if err != nil && strings.Contains(err.Error(), errNothing.Error()) {
						s.Load.Time *= 16
						m, err = o.measure(t.Context(), s)
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				if m.IOPS <= 0 || m.P50 <= 0 || m.P99 < m.P50 || m.Host <= 0 || m.Least > m.Most || m.Bandwidth < m.IOPS*512*0.999 {
					t.Errorf("%+v", m)
				}
				if s.Idle && (m.Idle.Connections != 5 || m.Idle.RSS <= 0 || m.Idle.Registered <= 0) {
					t.Errorf("idle: %+v", m.Idle) // 3 I/O queues and 2 admin queues
				}
			})
		}
	}
	if now, err := CPUs(); err != nil || len(now) != len(cpus) {
		t.Errorf("%v processors are left of %v: %v", now, cpus, err)
	}
}

// What goes wrong at either end is the point's error.
func TestMeasureErrors(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(*Options, *Setup)
	}{
		{"no daemon", "no such file", func(o *Options, _ *Setup) { o.Target = "/nowhere/nvmf-target" }},
		{"a daemon that ends", "the daemon ended", func(o *Options, _ *Setup) { o.Target = "/bin/false" }},
		{"a file with mistakes", "queue_depth", func(_ *Options, s *Setup) { s.QueueDepth = 5000 }},
		{"no host", "no such file", func(o *Options, _ *Setup) { o.Host = "/nowhere/curves" }},
		{"a host that ends", "the host has ended", func(o *Options, _ *Setup) { o.Host = "/bin/true" }},
		{"another program", "the host says", func(o *Options, _ *Setup) { o.Host = "/bin/echo" }},
		{"too many queues", "granted of 65", func(_ *Options, s *Setup) { s.Load.Queues = 65 }},
		{"a depth that is not granted", "granted of 256", func(_ *Options, s *Setup) { s.Load.Depth = 256 }},
		{"a size that cannot be", "1000 bytes", func(_ *Options, s *Setup) { s.Load.BlockSize = 1000 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := real(t)
			s := Setup{Load: Load{Provider: "roce", Queues: 1, Depth: 1, BlockSize: 4096, Time: 50 * time.Millisecond}}
			c.change(&o, &s)
			if _, err := o.measure(t.Context(), s); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// The end of the context ends both in order.
func TestMeasureInterrupted(t *testing.T) {
	for _, callers := range []int{0, 2} {
		o := real(t)
		ctx, cancel := context.WithCancel(t.Context())
		s := Setup{Idle: true, Load: Load{Provider: "roce", Queues: 1, Depth: 1, Callers: callers, BlockSize: 4096, Time: time.Minute}}
		time.AfterFunc(500*time.Millisecond, cancel) // somewhere on the way
		if _, err := o.measure(ctx, s); err == nil || strings.Contains(err.Error(), "killed") {
			t.Errorf("%d callers: %v", callers, err)
		}
	}
}

// What a host is told may be rubbish.
func TestHostInput(t *testing.T) {
	for _, in := range []string{"", "\n", "{", "{}", "[]\n"} {
		var out bytes.Buffer
		if err := Host(t.Context(), strings.NewReader(in), &out); err == nil {
			t.Errorf("%q was taken: %s", in, &out)
		}
	}
	var out bytes.Buffer
	if err := Host(t.Context(), strings.NewReader(`{"provider": "none", "addr": "127.0.0.1:4420", "queues": 1}`+"\n"), &out); err != nil || !strings.Contains(out.String(), "provider none") {
		t.Errorf("%v: %s", err, &out)
	}
}

var errBroken = errors.New("broken")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "a.csv")
	if err := replace(path, goldenTable().WriteCSV); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != golden {
		t.Errorf("%v: %s", err, b)
	}
	if err := goldenTable().WriteCSV(brokenWriter{}); !errors.Is(err, errBroken) {
		t.Error(err)
	}
}
