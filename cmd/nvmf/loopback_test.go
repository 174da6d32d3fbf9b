package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/daemon"
	"github.com/nvmf-go/nvmf/internal/providers"
)

// wires is the daemon and the host on one machine, over the software RNICs on
// loopback: what scripts/demo shows.
type wires struct {
	*rig
	addr      string
	listeners string
	daemon    *daemon.Daemon
}

const wiresYAML = `
version: 1
listeners: [LISTENERS]
poll_groups: 1
rdma: {buffers: 16MiB}
backends:
  - {name: ram, type: mem, size: 8MiB}
  - {name: disk, type: file, path: DIR/disk.img, size: DISK, block_size: 4096}
  - {name: void, type: "null", size: 1GiB}
subsystems:
  - nqn: nqn.2026-11.io.nvmf:ram
    hosts: any
    namespaces: [{nsid: 1, backend: ram}, {nsid: 2, backend: disk}MORE]
  - nqn: nqn.2026-11.io.nvmf:closed
    hosts: [nqn.2026-11.io.nvmf:somebody]
    namespaces: []
`

func newWires(t *testing.T, listening ...string) *wires {
	for i, p := range listening {
		listening[i] = fmt.Sprintf("{name: %s, address: ADDR, provider: %s}", p, p)
	}
	w := &wires{
		listeners: strings.Join(listening, ", "),
		rig:       &rig{T: t, dir: t.TempDir()},
		addr:      fmt.Sprintf("127.%d.%d.%d", 2+rand.IntN(250), 2+rand.IntN(250), 2+rand.IntN(250)),
	}
	w.start()
	t.Cleanup(w.stop)
	return w
}

// file is the configuration with a disk of that size and more namespaces.
func (w *wires) file(disk, more string) *config.File {
	w.Helper()
	yaml := strings.NewReplacer("LISTENERS", strings.ReplaceAll(w.listeners, "ADDR", w.addr), "ADDR", w.addr, "DIR", w.dir, "DISK", disk, "MORE", more).Replace(wiresYAML)
	f, err := config.Parse("test.yaml", []byte(yaml))
	w.must(err)
	return f
}

func (w *wires) start() {
	w.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var err error
	w.daemon, err = daemon.Start(ctx, w.file("4MiB", ""), daemon.Options{Log: log})
	w.must(err)
}

func (w *wires) stop() {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	w.must(w.daemon.Close(ctx))
}

func (w *wires) change(disk, more string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	w.must(errors.Join(w.daemon.Reload(ctx, w.file(disk, more)).Errors...))
}

// host runs a command line of the host with that provider.
func (w *wires) host(provider string, args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), 120*time.Second)
	defer cancel()
	var out, errOut strings.Builder
	world := &world{stdin: strings.NewReader(""), stdout: &out, stderr: &errOut, providers: providers.Default()}
	code := run(ctx, append([]string{"nvmf"}, append(args, "-a", w.addr, "--provider", provider)...), world)
	return result{code, out.String(), errOut.String()}
}

// ok is host for what has to succeed.
func (w *wires) ok(provider string, args ...string) string {
	w.Helper()
	res := w.host(provider, args...)
	if res.code != exitOK {
		w.Fatalf("%s %q: exit %d: %s", provider, args, res.code, res.errOut)
	}
	return res.out
}

// TestOverSoftwareRNICs is what lab/guest/initiator.sh does with the kernel's
// target, with our own.
func TestOverSoftwareRNICs(t *testing.T) {
	w := newWires(t, "roce", "iwarp")
	for _, provider := range []string{"roce", "iwarp"} {
		t.Run(provider, func(t *testing.T) {
			w.rig.T = t
			w.looks(provider)
			w.load(provider)
			w.changes(provider)
			w.outage(provider)
			w.refusals(provider)
		})
	}
	w.rig.T = t
	// auto finds both listeners, each with the RNIC that speaks its language.
	out := w.ok("auto", "connect-all")
	if strings.Count(out, " live") != 2 {
		t.Error(out)
	}
	w.contains(out, "device roce-lo", "device iwarp-lo")
}

// TestAutoFindsIWARP leaves the choice of the RNIC to the host, before a target
// that speaks iWARP alone.
func TestAutoFindsIWARP(t *testing.T) {
	w := newWires(t, "iwarp")
	for _, args := range [][]string{{"discover"}, {"list"}, {"id-ctrl", "-n", ramNQN}, {"read", "-n", ramNQN, "-N", "1", "-c", "0", "-z", "512"}} {
		w.ok("auto", args...)
	}
	w.contains(w.ok("auto", "ping", "-c", "1", "-n", ramNQN), "(iwarp, device")
	if res := w.host("roce", "id-ctrl", "-n", ramNQN); res.code == exitOK || !strings.Contains(res.errOut, "nobody speaks RoCEv2 there") {
		t.Errorf("exit %d: %s", res.code, res.errOut)
	}
}

func (w *wires) looks(provider string) {
	w.contains(w.ok(provider, "discover"), "rdma_prtype: "+map[string]string{"roce": "roce-v2", "iwarp": "iwarp"}[provider], "traddr:  "+w.addr)
	w.contains(w.ok(provider, "id-ctrl", "-n", ramNQN), "subnqn    : "+ramNQN)
	w.contains(w.ok(provider, "id-ns", "-n", ramNQN, "-N", "2"), "nsze    : 0x400")
	w.contains(w.ok(provider, "list-ns", "-n", ramNQN), "0x1", "0x2")
	w.contains(w.ok(provider, "ping", "-c", "2", "--interval", "0", "-n", ramNQN), "2 sent, 2 answered", "("+provider+", device")
}

// load is verified I/O of depth 1 to 128 and 512 bytes to 1 MiB.
func (w *wires) load(provider string) {
	for _, l := range []struct{ nsid, bs, depth, size string }{
		{"1", "512", "1", "128k"}, {"1", "512", "128", "1m"}, {"2", "4k", "1", "256k"}, {"2", "4k", "32", "4m"}, {"2", "4k", "128", "4m"},
		{"1", "64k", "16", "8m"}, {"2", "1m", "4", "4m"},
	} {
		out := w.ok(provider, "bench", "-n", ramNQN, "-N", l.nsid, "--rw", "randrw", "--bs", l.bs, "--iodepth", l.depth,
			"--runtime", "0", "--size", l.size, "--verify", "crc32c", "--queue-size", "256")
		w.contains(out, "verify:")
	}
}

// changes are those of namespaces, seen by one who watches.
func (w *wires) changes(provider string) {
	lines, end := w.watch(provider)
	defer end()
	expect := func(want ...event) {
		w.Helper()
		for _, e := range want {
			select {
			case got := <-lines:
				got.Time = time.Time{}
				if got != e {
					w.Fatalf("%s: got %+v, want %+v", provider, got, e)
				}
			case <-time.After(60 * time.Second):
				w.Fatalf("%s: no event, want %+v", provider, e)
			}
		}
	}
	expect(event{Event: "live"}, event{NSID: 1, Event: "present", Bytes: 8 << 20, BlockSize: 512},
		event{NSID: 2, Event: "present", Bytes: 4 << 20, BlockSize: 4096})
	w.change("4MiB", ", {nsid: 3, backend: void}")
	expect(event{NSID: 3, Event: "new", Bytes: 1 << 30, BlockSize: 512})
	w.change("6MiB", ", {nsid: 3, backend: void}")
	expect(event{NSID: 2, Event: "resized", Bytes: 6 << 20, BlockSize: 4096})
	w.change("6MiB", "")
	expect(event{NSID: 3, Event: "gone"})
	w.must(os.Truncate(w.dir+"/disk.img", 4<<20)) // as it was
	w.change("4MiB", "")
	expect(event{NSID: 2, Event: "resized", Bytes: 4 << 20, BlockSize: 4096})
}

// watch runs `nvmf events` until end is called.
func (w *wires) watch(provider string) (<-chan event, func()) {
	return w.rig.eventsOf(providers.Default(), "-a", w.addr, "--provider", provider, "-n", ramNQN, "-o", "json")
}

// outage ends the daemon and starts it again under verified load.
func (w *wires) outage(provider string) {
	var load result
	var wg sync.WaitGroup
	wg.Go(func() {
		load = w.host(provider, "bench", "-n", ramNQN, "-N", "2", "--rw", "randrw", "--bs", "4k", "--iodepth", "16", "--size", "2m",
			"--runtime", "3", "--verify", "crc32c", "-o", "json", "--reconnect-delay", "1", "--keep-alive-tmo", "1")
	})
	time.Sleep(time.Second)
	w.stop()
	w.start()
	wg.Wait()
	if load.code != exitOK {
		w.Fatalf("%s: the load ended with %d: %s", provider, load.code, load.errOut)
	}
	var r struct {
		Jobs []struct{ Reconnects int }
	}
	w.must(json.Unmarshal([]byte(load.out), &r))
	if len(r.Jobs) != 1 || r.Jobs[0].Reconnects < 1 {
		w.Errorf("%s: no reconnect: %s", provider, load.out)
	}
}

func (w *wires) refusals(provider string) {
	for nqn, says := range map[string]string{"nqn.2026-11.io.nvmf:absent": "subsystem NQN", onlyNQN: "does not let this host in"} {
		if res := w.host(provider, "id-ctrl", "-n", nqn); res.code == exitOK || !strings.Contains(res.errOut, says) {
			w.Errorf("%s: %s: exit %d: %s", provider, nqn, res.code, res.errOut)
		}
	}
}
