package fabrictest

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nvmf-go/nvmf/fabric"
)

// TestMain fails when a test leaves a goroutine or memory behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		if n := fabric.LiveMemory(); n != 0 {
			fmt.Fprintf(os.Stderr, "%d bytes of fabric.Memory are open\n", n)
			code = 1
		}
	}
	os.Exit(code)
}

var (
	addr1 = netip.MustParseAddr("192.0.2.1")
	addr2 = netip.MustParseAddr("192.0.2.2")
)

// openWith is an Open of two hosts on a network, with faults between them and
// devices as change makes them.
func openWith(o Options, f Faults, change func(*DeviceOptions)) Open {
	return func(*testing.T) (a, b fabric.Provider, addrA, addrB netip.Addr) {
		n := NewNetwork(o)
		n.SetFaults(addr1, addr2, f)
		host := func(addr netip.Addr) fabric.Provider {
			d := DeviceOptions{Addrs: []netip.Addr{addr}}
			if change != nil {
				change(&d)
			}
			return n.NewProvider(d)
		}
		return host(addr1), host(addr2), addr1, addr2
	}
}

func TestConformance(t *testing.T) {
	Conformance(t, openWith(Options{}, Faults{}, nil), Config{Cycles: 2000, Connections: 500})
}

func TestManyQPs(t *testing.T) {
	Scale(t, openWith(Options{}, Faults{}, nil), ScaleConfig{Connections: 2000, HeapPerQP: 4 << 10})
}

// The transport recovers from loss and repetition.
func TestConformanceLossy(t *testing.T) {
	faults := Faults{Drop: 0.02, DropAck: 0.02, Duplicate: 0.02}
	open := openWith(Options{AckTimeout: 50 * time.Microsecond}, faults, func(d *DeviceOptions) { d.PadPrivateData = true })
	Conformance(t, open, Config{Cycles: 30, Connections: 50, SoakOps: 2000})
}

// The least a device can offer: parts are skipped, the rest passes.
func TestConformanceMinimal(t *testing.T) {
	open := openWith(Options{}, Faults{}, func(d *DeviceOptions) {
		d.Limits = func(l *fabric.Limits) {
			*l = fabric.Limits{MaxQP: 64, MaxCQ: 16, MaxMR: 64, MaxQPDepth: 512, MaxCQDepth: 4096, MaxSGE: 1, MaxReadSGE: 1, MaxORD: 4, MaxIRD: 4, MaxMRSize: 1 << 30, MaxMessage: 4 << 20}
		}
	})
	Conformance(t, open, Config{Cycles: 30, Connections: 30, SoakOps: 2000})
}

// Both ends on one device, over IPv6.
func TestConformanceLoopback(t *testing.T) {
	open := func(*testing.T) (a, b fabric.Provider, addrA, addrB netip.Addr) {
		addrA, addrB = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
		p := NewNetwork(Options{}).NewProvider(DeviceOptions{Addrs: []netip.Addr{addrA, addrB}})
		return p, p, addrA, addrB
	}
	Conformance(t, open, Config{Cycles: 30, Connections: 50, SoakOps: 2000})
}
