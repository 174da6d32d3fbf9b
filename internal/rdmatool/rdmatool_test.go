package rdmatool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

var (
	addr4 = netip.MustParseAddr("10.0.0.1")
	addr6 = netip.MustParseAddr("fd00::1")
)

func minimal(l *fabric.Limits) {
	l.MaxInline, l.Atomics, l.MemoryWindows, l.SendInvalidate = 0, false, false, false
}

func provider(t *testing.T, devices ...fabrictest.DeviceOptions) *fabrictest.Provider {
	p := fabrictest.NewNetwork(fabrictest.Options{}).NewProvider(devices...)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// explained is a provider that says why it has no device.
type explained struct{ *fabrictest.Provider }

func (explained) Diagnose() string { return "the kernel knows no RDMA device" }

// locked has a device that cannot be opened.
type locked struct{ *fabrictest.Provider }

func (locked) Devices() ([]fabric.DeviceInfo, error) {
	return []fabric.DeviceInfo{{Name: "mlx5_0", Provider: "verbs", Note: "cannot be opened: no permission"}}, nil
}

// broken fails to list.
type broken struct{ *fabrictest.Provider }

func (broken) Devices() ([]fabric.DeviceInfo, error) { return nil, errors.New("netlink is down") }

func sources(t *testing.T) []Source {
	return []Source{
		{Name: "memory", Provider: provider(t,
			fabrictest.DeviceOptions{Name: "mem0", Addrs: []netip.Addr{addr4, addr6}},
			fabrictest.DeviceOptions{Name: "mem1", Limits: minimal})},
		{Name: "verbs", Provider: locked{provider(t)}},
		{Name: "verbs2", Err: errors.New("libibverbs.so.1: cannot open shared object file: No such file or directory")},
		{Name: "roce", Provider: explained{provider(t)}},
		{Name: "iwarp", Provider: provider(t)},
		{Name: "other", Provider: broken{provider(t)}},
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

func TestListTable(t *testing.T) {
	l := List(sources(t))
	var b strings.Builder
	if err := l.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "list.txt", b.String())
}

func TestListNothing(t *testing.T) {
	l := List([]Source{{Name: "iwarp", Provider: provider(t)}})
	var b strings.Builder
	if err := l.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	if want := "no RDMA device\n\niwarp: none: no RDMA device\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

func TestListJSON(t *testing.T) {
	l := List(sources(t))
	var b bytes.Buffer
	if err := l.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Listing
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(l, back, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Error(d)
	}
	empty := List(nil)
	b.Reset()
	if err := empty.WriteJSON(&b); err != nil || b.String() != "{\n  \"devices\": []\n}\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestWriteErrors(t *testing.T) {
	l := Listing{}
	r := SmokeResult{}
	for name, write := range map[string]func() error{
		"table":   func() error { return l.WriteTable(failingWriter{}) },
		"JSON":    func() error { return l.WriteJSON(failingWriter{}) },
		"summary": func() error { return r.WriteSummary(failingWriter{}) },
	} {
		if err := write(); err == nil {
			t.Errorf("%s: the error was lost", name)
		}
	}
}

// stepLine is a line of StepWriter without its time.
var stepLine = regexp.MustCompile(`(?m)^(ok  |skip|FAIL) +\S+  `)

// trial runs Smoke and gives its text without times, rates, keys and numbers.
func trial(t *testing.T, p fabric.Provider, cfg SmokeConfig) (string, *SmokeResult, error) {
	t.Helper()
	before := fabric.LiveMemory()
	var b strings.Builder
	r, err := Smoke(context.Background(), p, cfg, StepWriter(&b))
	if err2 := r.WriteSummary(&b); err2 != nil {
		t.Fatal(err2)
	}
	if after := fabric.LiveMemory(); after != before {
		t.Errorf("%d bytes of memory are left", after-before)
	}
	s := stepLine.ReplaceAllString(b.String(), "$1 ")
	for pattern, by := range map[string]string{`\S+ \S+/s\b`: "RATE", `key 0x\S+`: "key KEY", `qp \d+`: "qp N", `:\d{5}`: ":PORT", `in \S+\n$`: "in TIME\n"} {
		s = regexp.MustCompile(pattern).ReplaceAllString(s, by)
	}
	return s, r, err
}

func TestSmoke(t *testing.T) {
	for name, c := range map[string]struct {
		device fabrictest.DeviceOptions
		cfg    SmokeConfig
	}{
		"full":    {fabrictest.DeviceOptions{Addrs: []netip.Addr{addr4, addr6}}, SmokeConfig{}},
		"ipv6":    {fabrictest.DeviceOptions{Name: "ib7", Addrs: []netip.Addr{addr4, addr6}, PadPrivateData: true}, SmokeConfig{Device: "ib7", Address: addr6}},
		"minimal": {fabrictest.DeviceOptions{Addrs: []netip.Addr{addr4}, Limits: minimal}, SmokeConfig{}},
	} {
		t.Run(name, func(t *testing.T) {
			text, r, err := trial(t, provider(t, c.device), c.cfg)
			if err != nil {
				t.Error(err)
			}
			golden(t, "smoke-"+name+".txt", text)
			var b bytes.Buffer
			if err := r.WriteJSON(&b); err != nil {
				t.Fatal(err)
			}
			var back SmokeResult
			if err := json.Unmarshal(b.Bytes(), &back); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(r, &back); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestSmokeWithoutDevice(t *testing.T) {
	full := fabrictest.DeviceOptions{Name: "mem0", Addrs: []netip.Addr{addr4}}
	for name, c := range map[string]struct {
		p    fabric.Provider
		cfg  SmokeConfig
		want string
	}{
		"no device":           {explained{provider(t)}, SmokeConfig{}, "open the device: no RDMA device: the kernel knows no RDMA device"},
		"unknown name":        {provider(t, full), SmokeConfig{Device: "mlx5_0"}, `open the device: no RDMA device "mlx5_0" (devices: mem0: in memory, for tests)`},
		"none has an address": {provider(t, fabrictest.DeviceOptions{Name: "mem3"}), SmokeConfig{}, "open the device: no RDMA device is up and has an address (devices: mem3: in memory, for tests)"},
		"no address":          {provider(t, fabrictest.DeviceOptions{Name: "mem3"}), SmokeConfig{Device: "mem3"}, "mem3 has no address: give - one"},
		"foreign address":     {provider(t, full), SmokeConfig{Address: addr6}, "mem0 has [10.0.0.1], not fd00::1"},
		"list fails":          {broken{provider(t, full)}, SmokeConfig{}, "netlink is down"},
	} {
		text, r, err := trial(t, c.p, c.cfg)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(text, "FAILED: 0 steps passed, 0 skipped, 1 failed") {
			t.Errorf("%s: %v, want %q\n%s", name, err, c.want, text)
		}
		if len(r.Steps) != 1 || r.Steps[0].Error == "" {
			t.Errorf("%s: %+v", name, r.Steps)
		}
	}
}

// A failure at each post is that step's, names the cause, and all is taken
// down.
func TestSmokeFailures(t *testing.T) {
	oops := errors.New("oops")
	var steps []string
	for n := 1; ; n++ {
		p := provider(t, fabrictest.DeviceOptions{Name: "mem0", Addrs: []netip.Addr{addr4}})
		p.Device("mem0").FailPost(n, oops)
		text, r, err := trial(t, p, SmokeConfig{Timeout: 5 * time.Second})
		if err == nil {
			break // fewer posts than n
		}
		if !errors.Is(err, oops) || !strings.Contains(text, "FAILED") {
			t.Errorf("post %d: %v\n%s", n, err, text)
		}
		last := r.Steps[len(r.Steps)-1]
		if last.Name != "take down, count what is left" || last.Error != "" {
			t.Errorf("post %d: the last step is %+v", n, last)
		}
		failed := r.Steps[len(r.Steps)-2]
		if len(steps) == 0 || steps[len(steps)-1] != failed.Name {
			steps = append(steps, failed.Name)
		}
	}
	want := []string{"listen, dial, accept: two queue pairs", "SEND", "SEND inline", "SEND with immediate", "RDMA WRITE",
		"RDMA WRITE with immediate", "RDMA READ", "atomic FETCH AND ADD", "atomic COMPARE AND SWAP",
		"memory window: bind, WRITE through it", "SEND with invalidate of the window"}
	if d := cmp.Diff(want, steps); d != "" {
		t.Error(d)
	}
}

// A device that lies is found out.
func TestSmokeFindsLies(t *testing.T) {
	p := provider(t, fabrictest.DeviceOptions{Addrs: []netip.Addr{addr4}, BrokenSendInvalidate: true})
	_, _, err := trial(t, p, SmokeConfig{})
	if err == nil || !strings.Contains(err.Error(), "SEND with invalidate") || !strings.Contains(err.Error(), fabric.StatusLocalQPOp.String()) {
		t.Errorf("broken invalidate: %v", err)
	}
	_, _, err = trial(t, corrupting{provider(t, fabrictest.DeviceOptions{Addrs: []netip.Addr{addr4}})}, SmokeConfig{})
	if err == nil || !strings.Contains(err.Error(), "the data differ") {
		t.Errorf("corrupted WRITE: %v", err)
	}
	_, _, err = trial(t, leaking{provider(t, fabrictest.DeviceOptions{Addrs: []netip.Addr{addr4}})}, SmokeConfig{})
	if err == nil || !strings.Contains(err.Error(), "open objects are left") {
		t.Errorf("leak: %v", err)
	}
}

func TestSmokeTimesOut(t *testing.T) {
	n := fabrictest.NewNetwork(fabrictest.Options{AckTimeout: time.Minute})
	p := n.NewProvider(fabrictest.DeviceOptions{Addrs: []netip.Addr{addr4}})
	n.SetFaults(addr4, addr4, fabrictest.Faults{Drop: 1})
	_, _, err := trial(t, p, SmokeConfig{Timeout: 200 * time.Millisecond})
	if !errors.Is(err, fabric.ErrTimeout) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	n.Heal(addr4, addr4)
	if _, err := Smoke(ctx, p, SmokeConfig{}, nil); err == nil {
		t.Error("a trial whose context has ended passed")
	}
}

// corrupting is a provider whose dialled queue pairs write beside the mark.
type corrupting struct{ fabric.Provider }

func (p corrupting) Open(name string) (fabric.Device, error) {
	d, err := p.Provider.Open(name)
	return corruptingDevice{d}, err
}

type corruptingDevice struct{ fabric.Device }

func (d corruptingDevice) Dial(ctx context.Context, local, remote netip.AddrPort, cfg fabric.ConnConfig) (fabric.Conn, error) {
	c, err := d.Device.Dial(ctx, local, remote, cfg)
	return corruptingConn{c}, err
}

type corruptingConn struct{ fabric.Conn }

func (c corruptingConn) QueuePair() fabric.QueuePair { return corruptingQP{c.Conn.QueuePair()} }

type corruptingQP struct{ fabric.QueuePair }

func (q corruptingQP) PostSend(wrs []fabric.SendWR, sges []fabric.SGE) (int, error) {
	for i := range wrs {
		if wrs[i].Op == fabric.OpWrite {
			wrs[i].RemoteAddr++
		}
	}
	return q.QueuePair.PostSend(wrs, sges)
}

// leaking is a provider whose device always has one region more than before.
type leaking struct{ fabric.Provider }

func (p leaking) Open(name string) (fabric.Device, error) {
	d, err := p.Provider.Open(name)
	return &leakingDevice{Device: d}, err
}

type leakingDevice struct {
	fabric.Device
	asked int
}

func (d *leakingDevice) Counts() fabric.ObjectCounts {
	c := d.Device.Counts()
	c.MRs += d.asked
	d.asked++
	return c
}

func TestRound(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 999: "999ns", 1234: "1.23µs", 1234567: "1.23ms", 12345678: "12.3ms", 61 * time.Second: "1m1s",
	} {
		if got := fmt.Sprint(round(d)); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
}
