package iwarp

import (
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

func newProvider(t testing.TB, o Options) *Provider {
	t.Helper()
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

// one opens one provider for both ends, which are on one device.
func one(o Options, addr string) fabrictest.Open {
	return func(t *testing.T) (fabric.Provider, fabric.Provider, netip.Addr, netip.Addr) {
		p := newProvider(t, o)
		return p, p, netip.MustParseAddr(addr), netip.MustParseAddr(addr)
	}
}

func TestConformanceIPv4(t *testing.T) {
	fabrictest.Conformance(t, between(Options{}, "127.0.0.2", "127.0.0.3"), fabrictest.Config{Cycles: 60})
}

func TestConformanceIPv6(t *testing.T) {
	fabrictest.Conformance(t, one(Options{}, "::1"), fabrictest.Config{Cycles: 60})
}

func TestConformanceCRC(t *testing.T) {
	fabrictest.Conformance(t, between(Options{CRC: CRCOn}, "127.0.0.2", "127.0.0.3"), fabrictest.Config{Cycles: 60})
}
