package providers

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/fabrictest"
)

var (
	hardAddr = netip.MustParseAddr("10.0.0.1")
	softAddr = netip.MustParseAddr("127.0.0.1")
	farAddr  = netip.MustParseAddr("10.0.0.9")
)

// twoKinds is a set of an RDMA device that has hardAddr and a software provider.
func twoKinds() (s *Set, hard, soft fabric.Provider) {
	n := fabrictest.NewNetwork(fabrictest.Options{})
	h := n.NewProvider(fabrictest.DeviceOptions{Addrs: []netip.Addr{hardAddr}})
	w := n.NewProvider(fabrictest.DeviceOptions{Addrs: []netip.Addr{softAddr}})
	n.NewProvider(fabrictest.DeviceOptions{Addrs: []netip.Addr{farAddr}})
	open := func(p fabric.Provider) func() (fabric.Provider, error) {
		return func() (fabric.Provider, error) { return p, nil }
	}
	return &Set{Software: "roce", Open: map[string]func() (fabric.Provider, error){"verbs": open(h), "roce": open(w)}}, h, w
}

func TestToward(t *testing.T) {
	s, hard, soft := twoKinds()
	for _, c := range []struct {
		name          string
		local, remote netip.Addr
		want          fabric.Provider
	}{
		{Auto, hardAddr, farAddr, hard},
		{Auto, softAddr, farAddr, soft}, // no RDMA device has the local address
		{"roce", hardAddr, farAddr, soft},
		{"verbs", softAddr, farAddr, hard}, // asked for: what it says is its own
	} {
		got, err := s.Toward(t.Context(), c.name, c.local, c.remote)
		if got != c.want || err != nil {
			t.Errorf("%s from %v: %v, %v", c.name, c.local, got, err)
		}
	}
	if d, err := hard.DeviceFor(t.Context(), hardAddr, farAddr); err != nil {
		t.Error(err)
	} else if n := d.Counts(); n != (fabric.ObjectCounts{}) || d.Close() != nil {
		t.Errorf("left open: %+v", n)
	}
	if _, err := s.Toward(t.Context(), "iwarp", hardAddr, farAddr); !errors.Is(err, fabric.ErrNotSupported) {
		t.Errorf("a provider that is not there: %v", err)
	}
}

func TestWithoutSoftware(t *testing.T) {
	s, _, _ := twoKinds()
	s.Software = ""
	if _, err := s.For(t.Context(), Auto, softAddr); !errors.Is(err, fabric.ErrAddrNotAvailable) {
		t.Errorf("listen: %v", err)
	}
	if _, err := s.Toward(t.Context(), Auto, softAddr, farAddr); !errors.Is(err, fabric.ErrNoDevice) {
		t.Errorf("connect: %v", err)
	}
}

func TestGetOpensOnce(t *testing.T) {
	s, _, _ := twoKinds()
	opened := 0
	mk := s.Open["roce"]
	s.Open["roce"] = func() (fabric.Provider, error) { opened++; return mk() }
	s.Open["iwarp"] = func() (fabric.Provider, error) { return nil, errors.New("broken") }
	for range 3 {
		if _, err := s.Get("roce"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Get("iwarp"); err == nil || opened != 1 {
		t.Errorf("%v, opened %d times", err, opened)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestDefault(t *testing.T) {
	s := Default()
	if got := s.Names(); !slices.Equal(got, []string{"iwarp", "roce", "verbs"}) {
		t.Errorf("%q", got)
	}
	for _, name := range []string{"iwarp", "roce"} {
		if p, err := s.Get(name); err != nil || p.Name() != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
