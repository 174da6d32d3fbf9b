package fabrictest

import (
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
)

var (
	addr1 = netip.MustParseAddr("192.0.2.1")
	addr2 = netip.MustParseAddr("192.0.2.2")
)

// openPair is two hosts on a perfect network.
func openPair(t *testing.T) (a, b fabric.Provider, addrA, addrB netip.Addr) {
	n := NewNetwork(Options{})
	return n.NewProvider(DeviceOptions{Addrs: []netip.Addr{addr1}}), n.NewProvider(DeviceOptions{Addrs: []netip.Addr{addr2}}), addr1, addr2
}

func TestConformance(t *testing.T) {
	Conformance(t, openPair, Config{Cycles: 2000, Connections: 1000})
}
