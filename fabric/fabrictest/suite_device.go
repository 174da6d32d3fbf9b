package fabrictest

import (
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/nvmf-go/nvmf/fabric"
)

// testDevice: what a provider says of its devices, and references.
func testDevice(s *suite) {
	for _, e := range []*end{s.a, s.b} {
		info, l := e.dev.Info(), e.dev.Limits()
		if info.Name == "" || info.Name != e.dev.Name() || info.Provider != e.p.Name() || info.Transport == fabric.TransportUnknown {
			s.Errorf("%s: info %+v, device name %q, provider %q", e.name, info, e.dev.Name(), e.p.Name())
		}
		if !slices.Contains(info.Addrs, e.addr) {
			s.Errorf("%s: %v is not among the device's addresses %v", e.name, e.addr, info.Addrs)
		}
		if info.Limits != l {
			s.Errorf("%s: the limits of Info and Limits differ", e.name)
		}
		for what, n := range map[string]int{"MaxQP": l.MaxQP, "MaxCQ": l.MaxCQ, "MaxMR": l.MaxMR, "MaxQPDepth": l.MaxQPDepth,
			"MaxCQDepth": l.MaxCQDepth, "MaxSGE": l.MaxSGE, "MaxReadSGE": l.MaxReadSGE, "MaxORD": l.MaxORD, "MaxIRD": l.MaxIRD, "MaxMessage": int(l.MaxMessage)} {
			if n <= 0 {
				s.Errorf("%s: %s is %d", e.name, what, n)
			}
		}
		list, err := e.p.Devices()
		s.must(err)
		if !slices.ContainsFunc(list, func(i fabric.DeviceInfo) bool { return i.Name == e.dev.Name() }) {
			s.Errorf("%s: Devices lists %+v without it", e.name, list)
		}
		s.references(e)
	}
	if _, err := s.a.p.Open("no such device"); !errors.Is(err, fabric.ErrNoDevice) {
		s.Errorf("open of an unknown name: %v", err)
	}
	// An address of nobody (RFC 5737, TEST-NET-3) as source.
	foreign := netip.MustParseAddr("203.0.113.77")
	if d, err := s.a.p.DeviceFor(s.ctx(), foreign, s.b.addr); !errors.Is(err, fabric.ErrNoDevice) {
		s.Errorf("DeviceFor from a foreign address: %v, %v", d, err)
	}
}

// references: Open gives the same device once more, the last Close ends it.
func (s *suite) references(e *end) {
	before := e.dev.Counts()
	again, err := e.p.Open(e.dev.Name())
	s.must(err)
	m, err := fabric.AllocMemory(4096)
	s.must(err)
	defer m.Close()
	mr, err := again.Register(m, fabric.AccessLocalWrite)
	s.must(err)
	if got := e.dev.Counts().MRs; got != before.MRs+1 {
		s.Errorf("%s: %d regions are open through two references, want %d", e.name, got, before.MRs+1)
	}
	s.must(again.Close()) // not the last: the region may stay
	s.must(mr.Close())
	if got := e.dev.Counts(); got != before || got.MRs == 0 || got.CQs == 0 {
		s.Errorf("%s: open objects %+v, before %+v", e.name, got, before)
	}
}

// testRegistration: keys, rights and the ends of regions.
func testRegistration(s *suite) {
	m, err := fabric.AllocMemory(8192)
	s.must(err)
	defer m.Close()
	count := s.b.dev.Counts().MRs
	var regions []fabric.MemoryRegion
	for _, a := range []fabric.Access{0, fabric.AccessLocalWrite, fabric.AccessRemoteRead, s.b.rights()} {
		mr, err := s.b.dev.Register(m, a)
		if err != nil {
			s.Fatalf("register with rights %b: %v", a, err)
		}
		if mr.Memory() != m {
			s.Error("Memory is not what was registered")
		}
		regions = append(regions, mr)
	}
	if n := s.b.dev.Counts().MRs; n != count+len(regions) {
		s.Errorf("%d regions are counted, want %d", n, count+len(regions))
	}
	if _, err := s.b.dev.Register(m, fabric.AccessRemoteWrite); err == nil {
		s.Error("remote write without local write was registered")
	}
	for _, mr := range regions {
		s.must(mr.Close())
		s.must(mr.Close())
	}
	if n := s.b.dev.Counts().MRs; n != count {
		s.Errorf("%d regions are counted after their close, want %d", n, count)
	}
	keys := make(map[uint32]bool)
	for range 200 {
		mr, err := s.b.dev.Register(m, fabric.AccessRemoteRead)
		s.must(err)
		if keys[mr.RKey()] {
			s.Fatalf("key %#x came back within 200 registrations", mr.RKey())
		}
		keys[mr.RKey()] = true
		s.must(mr.Close())
	}
}

// testCloseBusy: nothing closes under what uses it.
func testCloseBusy(s *suite) {
	ch := s.connect()
	if err := s.a.cq.Close(); !errors.Is(err, fabric.ErrBusy) {
		s.Errorf("close of a CQ with a queue pair: %v", err)
	}
	busy := func(what string) {
		if s.sameDevice() {
			return // this is not the last reference
		}
		if err := s.a.dev.Close(); !errors.Is(err, fabric.ErrBusy) {
			s.Errorf("close of a device with %s: %v", what, err)
		}
	}
	busy("a connection")
	ch.alive("after refused closes")
	ch.close()
	busy("a CQ and a region")
	cq, err := s.a.dev.NewCompletionQueue(16, nil)
	s.must(err)
	s.must(cq.Close())
	s.must(cq.Close())
	if _, err := cq.Poll(s.a.wc); !errors.Is(err, net.ErrClosed) {
		s.Errorf("Poll of a closed CQ: %v", err)
	}
	if err := cq.Arm(); !errors.Is(err, net.ErrClosed) {
		s.Errorf("Arm of a closed CQ: %v", err)
	}
	if _, err := s.a.dev.NewCompletionQueue(0, nil); err == nil {
		s.Error("a CQ of depth 0 was made")
	}
	if limit := s.a.dev.Limits().MaxCQDepth; limit < 1<<30 {
		if cq, err := s.a.dev.NewCompletionQueue(limit+1, nil); err == nil {
			cq.Close()
			s.Errorf("a CQ of depth %d over a limit of %d was made", limit+1, limit)
		}
	}
}
