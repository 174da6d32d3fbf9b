package roce

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// inNamespace runs the test once more in a process with a network namespace of
// its own, loopback up, and is true in there.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const mark = "ROCE_TEST_NAMESPACE"
	if os.Getenv(mark) != "" {
		ip(t, "link", "set", "lo", "up")
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mark+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, syscall.EPERM):
		t.Skipf("a network namespace of its own: %v", err)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	default:
		t.Logf("%s", out)
	}
	return false
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Skipf("ip %v: %v: %s", args, err, out)
	}
}

// event waits for an event of the device.
func event(t *testing.T, d fabric.Device, want fabric.EventKind) {
	t.Helper()
	select {
	case e := <-d.Events():
		if e.Kind != want || e.Device != d.Name() {
			t.Errorf("event %v of %s, want %v", e.Kind, e.Device, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("no event; want %v", want)
	}
}

// An interface goes down and comes back, loses its address and gets it back,
// and gets a new one: devices tell, and a listener on the wildcard follows.
func TestInterfaceChanges(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	ip(t, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
	ip(t, "addr", "add", "10.77.0.1/24", "dev", "v0")
	ip(t, "link", "set", "v0", "up")
	ip(t, "link", "set", "v1", "up")
	p := newProvider(t, Options{})
	d, err := p.Open("roce-v0")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l, err := p.Listen(context.Background(), netip.MustParseAddrPort("0.0.0.0:4420"), fabric.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := d.Info(); got.MTU != 1024 || !got.PortUp {
		t.Errorf("%+v", got)
	}
	ip(t, "link", "set", "v0", "mtu", "9000")
	if got := d.Info(); got.MTU != 4096 {
		t.Errorf("path MTU %d on an interface of 9000", got.MTU)
	}
	ip(t, "link", "set", "v0", "down")
	event(t, d, fabric.EventPortDown)
	if d.Info().PortUp {
		t.Error("the port is up")
	}
	ip(t, "link", "set", "v0", "up")
	event(t, d, fabric.EventPortUp)
	ip(t, "addr", "del", "10.77.0.1/24", "dev", "v0")
	event(t, d, fabric.EventAddrChange)
	event(t, d, fabric.EventPortDown)
	ip(t, "addr", "add", "10.77.0.1/24", "dev", "v0")
	event(t, d, fabric.EventAddrChange)
	event(t, d, fabric.EventPortUp)

	ip(t, "addr", "add", "10.78.0.1/24", "dev", "v1")
	for end := time.Now().Add(10 * time.Second); !l.(*listener).has(netip.MustParseAddr("10.78.0.1")); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the listener does not take requests on the new address")
		}
	}
}
