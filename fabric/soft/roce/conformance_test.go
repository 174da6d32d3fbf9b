package roce

import (
	"net/netip"
	"os"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

// testPort is the UDP port of these tests, so that those of other packages that
// run at the same time do not hold their addresses.
var testPort = uint16(20000 + os.Getpid()%20000)

func newProvider(t testing.TB, o Options) *Provider {
	t.Helper()
	def(&o.Port, testPort)
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// between opens two providers, with an address each.
func between(o Options, a, b string) fabrictest.Open {
	return func(t *testing.T) (fabric.Provider, fabric.Provider, netip.Addr, netip.Addr) {
		return newProvider(t, o), newProvider(t, o), netip.MustParseAddr(a), netip.MustParseAddr(b)
	}
}

// Where an owner of the suite stops to poll, its peer's last message stays
// unacknowledged and fails after eight times this: 1 s.
var suiteOptions = Options{AckTimeout: 15}

func TestConformanceIPv4(t *testing.T) {
	fabrictest.Conformance(t, between(suiteOptions, "127.0.0.2", "127.0.0.3"), fabrictest.Config{Cycles: 60})
}

// Both ends are on one device, and over IPv6.
func TestConformanceIPv6(t *testing.T) {
	fabrictest.Conformance(t, one(suiteOptions, "::1"), fabrictest.Config{Cycles: 60})
}

// one opens one provider for both ends, which are on one device.
func one(o Options, addr string) fabrictest.Open {
	return func(t *testing.T) (fabric.Provider, fabric.Provider, netip.Addr, netip.Addr) {
		p := newProvider(t, o)
		return p, p, netip.MustParseAddr(addr), netip.MustParseAddr(addr)
	}
}
