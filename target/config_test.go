package target

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/nvmf-go/nvmf/nvme"
)

func TestConfigRefused(t *testing.T) {
	addr := netip.MustParseAddrPort("192.0.2.1:4420")
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"inverted range":      {Config{CntlidMin: 10, CntlidMax: 9}, "controller IDs 10 to 9: expected a range within 1 to 65519"},
		"reserved ID":         {Config{CntlidMax: 0xFFF0}, "controller IDs 1 to 65520"},
		"too many queues":     {Config{MaxQueues: 1025}, "1025 I/O queues: expected 1 to 1024"},
		"negative queues":     {Config{MaxQueues: -1}, "-1 I/O queues"},
		"controllers":         {Config{MaxControllers: -1}, "-1 controllers: expected at least 1"},
		"timeout":             {Config{ConnectTimeout: -1}, "connect timeout -1ns is negative"},
		"discovery NQN":       {Config{DiscoveryNQN: "a\x01"}, "discovery NQN"},
		"referral to nowhere": {Config{Referrals: []Referral{{}}}, "expected an address and a port"},
		"referral to all":     {Config{Referrals: []Referral{{Addr: netip.MustParseAddrPort("0.0.0.0:4420")}}}, "expected an address and a port"},
		"referral NQN":        {Config{Referrals: []Referral{{Addr: addr, NQN: nvme.NQN(strings.Repeat("x", 224))}}}, "longer than 223"},
	} {
		_, err := NewTarget(c.cfg)
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// All mistakes are told at once.
func TestConfigMistakesTogether(t *testing.T) {
	_, err := NewTarget(Config{MaxQueues: -1, MaxControllers: -1, ConnectTimeout: -1})
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("%v", err)
	}
}

func TestSubsystemRefused(t *testing.T) {
	r := newRig(t, Config{})
	for name, c := range map[string]struct {
		cfg  SubsystemConfig
		want string
	}{
		"no name":   {SubsystemConfig{}, "NQN is empty"},
		"long name": {SubsystemConfig{NQN: nvme.NQN(strings.Repeat("n", 224))}, "longer than 223"},
		"discovery": {SubsystemConfig{NQN: nvme.DiscoveryNQN}, "exists already"},
		"serial":    {SubsystemConfig{NQN: nqnA, Serial: "tab\t"}, "expected 1 to 20 printable ASCII"},
		"padding":   {SubsystemConfig{NQN: nqnA, Serial: " S"}, "expected 1 to 20 printable ASCII"},
		"model":     {SubsystemConfig{NQN: nqnA, Model: strings.Repeat("m", 41)}, "expected 1 to 40 printable ASCII"},
		"host":      {SubsystemConfig{NQN: nqnA, Hosts: OnlyHosts("\x00")}, "printable"},
	} {
		_, err := r.t.AddSubsystem(c.cfg)
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	s := r.addSubsystem(SubsystemConfig{NQN: nqnA})
	if err := s.SetHosts(OnlyHosts("")); !errors.Is(err, ErrConfig) {
		t.Errorf("hosts: %v", err)
	}
	if _, err := r.t.discovery.AddNamespace(NamespaceConfig{NSID: 1, Device: newFakeDevice(512, 1)}); err == nil {
		t.Error("the discovery subsystem took a namespace")
	}
	if _, err := s.AddNamespace(NamespaceConfig{NSID: 1}); !errors.Is(err, ErrConfig) {
		t.Errorf("no device: %v", err)
	}
}

func TestPortRefused(t *testing.T) {
	good := func() *Port {
		return &Port{ID: 1, Name: "p", Type: nvme.TransportRDMA, Addr: netip.MustParseAddrPort("[::]:4420"), Caps: testCaps()}
	}
	r := newRig(t, Config{})
	for name, spoil := range map[string]func(*Port){
		"name":       func(p *Port) { p.Name = "" },
		"address":    func(p *Port) { p.Addr = netip.AddrPort{} },
		"depth":      func(p *Port) { p.Caps.MaxQueueDepth = 1 },
		"big depth":  func(p *Port) { p.Caps.MaxQueueDepth = 65536 },
		"in capsule": func(p *Port) { p.Caps.InCapsule = 100 },
		"sgl":        func(p *Port) { p.Caps.MaxSGL = 0 },
		"transfer":   func(p *Port) { p.Caps.MaxTransfer = 12288 },
	} {
		p := good()
		spoil(p)
		if err := r.t.AddPort(p); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.t.AddPort(nil); !errors.Is(err, ErrConfig) {
		t.Errorf("nil: %v", err)
	}
	if err := r.t.AddPort(good()); err != nil {
		t.Error(err)
	}
	r.t.RemovePort(good()) // another port of the same name is not that one
	if len(r.t.ports) != 1 {
		t.Error("the wrong port was removed")
	}
}

func TestHostPolicy(t *testing.T) {
	one, both := OnlyHosts(hostOne).compiled(), OnlyHosts(hostOne, hostTwo, hostOne).compiled()
	for _, c := range []struct {
		name string
		p    HostPolicy
		host nvme.NQN
		want bool
	}{
		{"nobody", HostPolicy{}.compiled(), hostOne, false},
		{"any", AnyHost().compiled(), hostOne, true},
		{"listed", one, hostOne, true},
		{"not listed", one, hostTwo, false},
		{"second", both, hostTwo, true},
	} {
		if got := c.p.allows(c.host); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if len(both.List) != 2 {
		t.Errorf("duplicates stay: %v", both.List)
	}
	for _, c := range []struct {
		a, b HostPolicy
		want bool
	}{
		{one, OnlyHosts(hostOne).compiled(), true},
		{both, OnlyHosts(hostTwo, hostOne).compiled(), true},
		{one, both, false},
		{one, OnlyHosts(hostTwo).compiled(), false},
		{one, AnyHost().compiled(), false},
		{AnyHost().compiled(), HostPolicy{Any: true, List: []nvme.NQN{hostOne}}.compiled(), true},
	} {
		if c.a.equal(c.b) != c.want || c.b.equal(c.a) != c.want {
			t.Errorf("%v equal %v: want %v", c.a, c.b, c.want)
		}
	}
}
