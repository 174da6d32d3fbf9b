//go:build linux && cgo && !nordma

package verbs

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

// TestConformance runs the suite over the first usable device, both ends on
// it, through two providers: two protection domains.
func TestConformance(t *testing.T) {
	_, info := needDevice(t)
	for _, c := range []struct {
		name string
		is6  bool
	}{{"IPv4", false}, {"IPv6", true}} {
		addr := firstAddr(info, c.is6)
		if !addr.IsValid() {
			t.Logf("the device has no %s address", c.name)
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			fabrictest.Conformance(t, func(t *testing.T) (a, b fabric.Provider, addrA, addrB netip.Addr) {
				a, _ = needDevice(t)
				b, _ = needDevice(t)
				return a, b, addr, addr
			}, conformanceConfig)
		})
	}
}

var conformanceConfig = fabrictest.Config{
	Timeout: 20 * time.Second, Connections: 16, Cycles: 24, SoakOps: 600, // for an emulated processor
	KeepsInvalidatedKey: "rxe of Linux 6.1 says so to kernel consumers only",
	WindowsUnbounded:    "rxe of Linux 6.1 checks the region's bounds only",
	ReadsOutliveKeys:    "rxe of Linux 6.1 repeats such a READ for ever",
	NoSQE:               "rxe of Linux 6.1 has no such state",
	FailsLongMessages:   "rxe of Linux 6.1 takes it for a malformed receive",
	// What rxe says instead of what IBTA vol 1, 11.6.2 has.
	Statuses: map[fabric.Status][]fabric.Status{
		fabric.StatusLocalProtection:  {fabric.StatusLocalQPOp},
		fabric.StatusLocalLength:      {fabric.StatusLocalQPOp},
		fabric.StatusRemoteInvalidReq: {fabric.StatusRemoteOp},
	},
}

func firstAddr(info fabric.DeviceInfo, is6 bool) netip.Addr {
	for _, a := range info.Addrs {
		if a.Is6() == is6 && !a.IsLinkLocalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}
