package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/providers"
)

// TestEvents reloads the daemon under `nvmf events`.
func TestEvents(t *testing.T) {
	r := newRig(t)
	lines := r.events("-o", "json", two)
	expect := func(want ...event) {
		t.Helper()
		for _, e := range want {
			got := <-lines
			got.Time = time.Time{}
			if got != e {
				t.Fatalf("got %+v, want %+v", got, e)
			}
		}
	}
	expect(event{Event: "live"},
		event{NSID: 3, Event: "present", Bytes: 1 << 20, BlockSize: 512},
		event{NSID: 7, Event: "present", Bytes: 1 << 30, BlockSize: 512})
	r.reload("{nsid: 3, backend: small}")
	expect(event{NSID: 7, Event: "gone"})
	r.reload("{nsid: 3, backend: small}, {nsid: 9, backend: void}")
	expect(event{NSID: 9, Event: "new", Bytes: 1 << 30, BlockSize: 512})
}

func TestEventLines(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	for want, e := range map[string]event{
		"03:04:05.006 controller: reconnecting":                        {Event: "reconnecting"},
		"03:04:05.006 namespace 2: gone":                               {NSID: 2, Event: "gone"},
		"03:04:05.006 namespace 3: resized, 2.0 MiB in blocks of 4096": {NSID: 3, Event: "resized", Bytes: 2 << 20, BlockSize: 4096},
	} {
		e.Time = at
		if got := e.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	var told []event
	w := watcher{print: func(e event) error { told = append(told, e); return nil }}
	w.compare(map[uint32]extent{1: {512, 512}})
	w.compare(map[uint32]extent{1: {1024, 512}})
	if len(told) != 2 || told[1].Event != "resized" || told[1].Bytes != 1024 {
		t.Errorf("%+v", told)
	}
}

func TestEventsRefused(t *testing.T) {
	r := newRig(t)
	if res := r.try("events", "-o", "binary", two); res.code != exitUsage || !strings.Contains(res.errOut, "expected normal or json") {
		t.Errorf("%+v", res)
	}
}

// events runs `nvmf events` on the rig's daemon until the test ends.
func (r *rig) events(args ...string) <-chan event {
	r.Helper()
	list, end := r.eventsOf(set(r.far), args...)
	r.Cleanup(end)
	return list
}

// eventsOf runs `nvmf events -o json` until end is called.
func (r *rig) eventsOf(p *providers.Set, args ...string) (<-chan event, func()) {
	out, in := io.Pipe()
	w := &world{stdin: strings.NewReader(""), stdout: in, stderr: io.Discard, providers: p}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int)
	go func() {
		code := run(ctx, append([]string{"nvmf", "events"}, args...), w)
		in.Close()
		ended <- code
	}()
	list := make(chan event, 100)
	go func() {
		for d := json.NewDecoder(out); ; {
			var e event
			if d.Decode(&e) != nil {
				return
			}
			list <- e
		}
	}()
	return list, func() {
		cancel()
		if code := <-ended; code != exitInterrupted && code != exitOK {
			r.Errorf("events: exit %d", code)
		}
	}
}

// reload gives the second subsystem other namespaces.
func (r *rig) reload(namespaces string) {
	r.Helper()
	f, err := config.Parse("test.yaml", []byte(strings.Replace(configuration, "{nsid: 3, backend: small}, {nsid: 7, backend: void}", namespaces, 1)))
	r.must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r.must(errors.Join(r.daemon.Reload(ctx, f).Errors...))
}
