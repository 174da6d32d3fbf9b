//go:build linux && cgo && !nordma

package verbs

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// These tests change the machine's network, so they run only where that is
// asked for: the environment gives the commands.
//
//	NVMF_TEST_LINK_DOWN="ip link set eth0 down" NVMF_TEST_LINK_UP=...
//	NVMF_TEST_UNPLUG="rdma link delete rxe0"
//	NVMF_TEST_PLUG="rdma link add rxe1 ..." NVMF_TEST_PLUG_ADDR=10.8.0.1

func command(t *testing.T, variable string) func() *exec.Cmd {
	cmd := os.Getenv(variable)
	if cmd == "" {
		t.Skipf("%s gives no command", variable)
	}
	return func() *exec.Cmd { return exec.Command("sh", "-c", cmd) }
}

func wantEvent(t *testing.T, d fabric.Device, want fabric.EventKind) {
	t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case ev, ok := <-d.Events():
			if !ok {
				t.Fatalf("events closed before %v", want)
			}
			t.Logf("%v port %d", ev.Kind, ev.Port)
			if ev.Kind == want {
				if ev.Device != d.Name() || ev.Time.IsZero() {
					t.Errorf("%+v", ev)
				}
				return
			}
		case <-timeout:
			t.Fatalf("no event %v", want)
		}
	}
}

func TestPortEvents(t *testing.T) {
	down, up := command(t, "NVMF_TEST_LINK_DOWN"), command(t, "NVMF_TEST_LINK_UP")
	p, info := needDevice(t)
	d, err := p.Open(info.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, d)
	if out, err := down().CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wantEvent(t, d, fabric.EventPortDown)
	if d.Info().PortUp {
		t.Error("the port is up")
	}
	if out, err := up().CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wantEvent(t, d, fabric.EventPortUp)
}

// The device goes while a connection and a listener are there. The command
// itself may last until this process ends: the driver of rxe waits for every
// context, and librdmacm keeps one for good.
func TestUnplug(t *testing.T) {
	unplug := command(t, "NVMF_TEST_UNPLUG")
	p := newPair(t)
	ctx := deadline(t)
	bound, err := p.p.Listen(ctx, p.addr(t, false), fabric.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	p.connect(t, p.addr(t, false), 4)
	cmd := unplug()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, p.dev, fabric.EventDeviceRemoved)
	for _, e := range []*end{p.a, p.b} {
		t.Logf("closed: %v", e.wantClosed())
	}
	if _, err := bound.Accept(ctx); err == nil {
		t.Error("the listener of the device lives on")
	} else {
		t.Log(err)
	}
	closing(t, bound)
	for _, e := range []*end{p.a, p.b} {
		closing(t, e.conn)
	}
	go cmd.Wait()
}

// A device comes after the provider was made: its address can be listened on
// from then.
func TestPlug(t *testing.T) {
	plug, addr := command(t, "NVMF_TEST_PLUG"), os.Getenv("NVMF_TEST_PLUG_ADDR")
	p, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, p)
	before, err := p.Devices()
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(netip.MustParseAddr(addr), 4420)
	if _, err := p.Listen(deadline(t), at, fabric.ListenConfig{}); !errors.Is(err, fabric.ErrAddrNotAvailable) {
		t.Errorf("listen too early: %v", err)
	} else {
		t.Log(err)
	}
	if out, err := plug().CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := p.Listen(deadline(t), at, fabric.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, l)
	after, err := p.Devices()
	if err != nil || len(after) != len(before)+1 {
		t.Errorf("devices %v, %v before, %v", after, before, err)
	}
	d, err := p.DeviceFor(deadline(t), at.Addr(), netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	defer closing(t, d)
}
