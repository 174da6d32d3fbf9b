package initiator

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
)

// fakeLog is a discovery log of the fake: entries behind a header.
func fakeLog(h nvme.DiscoveryHeader, entries ...nvme.DiscoveryEntry) func(nvme.LogRequest) []byte {
	all := make([]byte, nvme.DiscoveryHeaderSize+len(entries)*nvme.DiscoveryEntrySize)
	h.MarshalTo(all[:nvme.DiscoveryHeaderSize])
	for i := range entries {
		entries[i].MarshalTo(all[nvme.DiscoveryHeaderSize+i*nvme.DiscoveryEntrySize:][:nvme.DiscoveryEntrySize])
	}
	return func(r nvme.LogRequest) []byte {
		if r.Offset > uint64(len(all)) {
			return make([]byte, r.Length)
		}
		return append([]byte(nil), all[r.Offset:min(uint64(len(all)), r.Offset+r.Length)]...)
	}
}

// entry is a discovery entry for a subsystem behind addr.
func entry(sub nvme.SubsystemType, nqn nvme.NQN, addr netip.AddrPort) nvme.DiscoveryEntry {
	e := nvme.DiscoveryEntry{TRTYPE: nvme.TransportRDMA, SUBTYPE: sub, CNTLID: nvme.CNTLIDDynamic, ASQSZ: 32}
	nvme.PutNQN(e.SUBNQN[:], nqn)
	e.SetAddr(addr)
	e.SetRDMA(nvme.TSASRDMA{QPTYPE: nvme.RDMAConnected, PRTYPE: nvme.RDMAUnspecified, CMS: nvme.RDMACMIP})
	return e
}

// service makes the fake a discovery service.
func (f *fake) service(logs func(nvme.LogRequest) []byte) {
	f.set(func(s *script) {
		s.logs = logs
		s.id = func(i *nvme.IdentifyController) {
			i.CNTRLTYPE, i.KAS, i.OAES, i.IOCCSZ, i.MAXCMD = nvme.ControllerDiscovery, 0, nvme.EventDiscovery, 0, 0
		}
	})
}

func (f *fake) discover(o DiscoverOptions, change ...func(*Config)) (*DiscoveryLog, error) {
	return Discover(f.ctx, f.hosts, f.config(append(change, func(c *Config) { c.Subsystem = "" })...), o)
}

func TestDiscover(t *testing.T) {
	r := newRig(t, rigOptions{portals: 2})
	log, err := Discover(r.ctx, r.hosts, r.config(func(c *Config) { c.Subsystem = "" }), DiscoverOptions{})
	r.must(err)
	found := map[netip.AddrPort]bool{}
	for _, rec := range log.Records {
		if rec.SUBTYPE != nvme.SubsystemNVM {
			continue
		}
		cfg, err := rec.Config(r.config())
		r.must(err)
		if cfg.Subsystem != testNQN || rec.Source != targetAddr(0) {
			t.Errorf("%+v", rec)
		}
		found[cfg.Addr] = true
	}
	if !found[targetAddr(0)] || !found[targetAddr(1)] || log.Invalid != 0 || len(log.Failures) != 0 {
		t.Errorf("found %v, %+v", found, log)
	}
	if !log.Persistent {
		t.Error("our target does not offer explicit persistent connections")
	}
}

// A log that is larger than a command can move is read in pieces.
func TestDiscoverLarge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFake(t)
		entries := make([]nvme.DiscoveryEntry, 300) // MDTS is 128 KiB
		for i := range entries {
			entries[i] = entry(nvme.SubsystemNVM, fakeSubsys, netip.AddrPortFrom(targetIPs[0], uint16(i+1)))
		}
		f.service(fakeLog(nvme.DiscoveryHeader{GENCTR: 5, NUMREC: 300}, entries...))
		log, err := f.discover(DiscoverOptions{})
		f.must(err)
		if len(log.Records) != 300 || log.GENCTR != 5 {
			t.Fatalf("%d records, generation %d", len(log.Records), log.GENCTR)
		}
		for i := range log.Records {
			if a, err := log.Records[i].Addr(); err != nil || int(a.Port()) != i+1 {
				t.Fatalf("record %d: %v, %v", i, a, err)
			}
		}
	})
}

// A service that lies is found out, in a bounded number of reads and without the
// memory it wants us to take.
func TestDiscoverHostile(t *testing.T) {
	good := entry(nvme.SubsystemNVM, fakeSubsys, targetAddr(0))
	unterminated := good
	for i := range unterminated.SUBNQN {
		unterminated.SUBNQN[i] = 'A'
	}
	for _, tt := range []struct {
		name string
		logs func(nvme.LogRequest) []byte
		text string // of the error; "" for none
		ok   func(*DiscoveryLog) bool
	}{
		{"NUMREC 2^54+1", fakeLog(nvme.DiscoveryHeader{NUMREC: 1<<54 + 1}), "records", nil},
		{"NUMREC 2^64-1", fakeLog(nvme.DiscoveryHeader{NUMREC: 1<<64 - 1}), "records", nil},
		{"NUMREC just too many", fakeLog(nvme.DiscoveryHeader{NUMREC: nvme.MaxDiscoveryEntries + 1}), "65537 records", nil},
		{"RECFMT 1", fakeLog(nvme.DiscoveryHeader{RECFMT: 1}), "record format 1", nil},
		{"empty", fakeLog(nvme.DiscoveryHeader{GENCTR: 1}), "", func(l *DiscoveryLog) bool { return len(l.Records) == 0 }},
		{"fewer entries than it says", fakeLog(nvme.DiscoveryHeader{NUMREC: 3}, good), "",
			func(l *DiscoveryLog) bool { return len(l.Records) == 1 && l.Invalid == 2 }},
		{"an NQN without end", fakeLog(nvme.DiscoveryHeader{NUMREC: 2}, unterminated, good), "",
			func(l *DiscoveryLog) bool { return len(l.Records) == 1 && l.Invalid == 1 }},
		{"nothing but zeroes", func(r nvme.LogRequest) []byte { return nil }, "", func(l *DiscoveryLog) bool { return len(l.Records) == 0 }},
		{"another generation at each read", changing(1 << 30), "it changed at each of 10 attempts", nil},
		{"another generation now and then", changing(4), "", func(l *DiscoveryLog) bool { return l.GENCTR == 4 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFake(t)
				f.service(tt.logs)
				log, err := f.discover(DiscoverOptions{})
				if tt.text == "" {
					f.must(err)
					if !tt.ok(log) {
						t.Errorf("%+v", log)
					}
					return
				}
				if !errors.Is(err, ErrDiscovery) || !strings.Contains(err.Error(), tt.text) {
					t.Error(err)
				}
			})
		})
	}
}

// changing is a log whose generation changes at each read, up to last.
func changing(last uint64) func(nvme.LogRequest) []byte {
	var gen uint64
	return func(r nvme.LogRequest) []byte {
		gen = min(gen+1, last)
		return fakeLog(nvme.DiscoveryHeader{GENCTR: gen})(r)
	}
}

// Referrals are followed as deep as asked, none twice, and what cannot be asked
// is a failure of the log's.
func TestReferrals(t *testing.T) {
	const other = nvme.NQN("nqn.2026-11.io.nvmf:other")
	f := newFake(t)
	tcp := entry(nvme.SubsystemReferral, other, targetAddr(1))
	tcp.TRTYPE = nvme.TransportTCP
	logs := []func(nvme.LogRequest) []byte{
		fakeLog(nvme.DiscoveryHeader{NUMREC: 5},
			entry(nvme.SubsystemDiscovery, nvme.DiscoveryNQN, targetAddr(0)),
			entry(nvme.SubsystemReferral, nvme.DiscoveryNQN, targetAddr(0)), // itself
			entry(nvme.SubsystemReferral, nvme.DiscoveryNQN, targetAddr(1)),
			entry(nvme.SubsystemReferral, nvme.DiscoveryNQN, netip.MustParseAddrPort("10.0.0.77:4420")), // nobody
			tcp),
		fakeLog(nvme.DiscoveryHeader{NUMREC: 3},
			entry(nvme.SubsystemReferral, nvme.DiscoveryNQN, targetAddr(0)), // and back
			entry(nvme.SubsystemReferral, nvme.DiscoveryNQN, targetAddr(1)),
			entry(nvme.SubsystemNVM, other, targetAddr(1))),
	}
	f.service(nil)
	f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
		if cmd.Opcode() != nvme.AdminGetLogPage {
			return nil
		}
		return &answer{data: logs[fc.portal](cmd.GetLogPage().Request())}
	})
	log, err := f.discover(DiscoverOptions{Referrals: true})
	f.must(err)
	if len(log.Records) != 8 || len(log.Failures) != 2 || f.connects.Load() != 2 {
		t.Errorf("%d records, failures %v, connected %d times", len(log.Records), log.Failures, f.connects.Load())
	}
	if last := log.Records[7]; last.NQN != other || last.Depth != 1 || last.Source != targetAddr(1) {
		t.Errorf("%+v", last)
	}
	if log, err = f.discover(DiscoverOptions{}); err != nil || len(log.Records) != 5 {
		t.Errorf("without referrals: %v", err)
	}
	// A chain of services, each of which knows the next.
	f.obey(func(fc *fakeConn, cmd nvme.Command) *answer {
		if cmd.Opcode() != nvme.AdminGetLogPage {
			return nil
		}
		next := entry(nvme.SubsystemReferral, "nqn.2026-11.io.nvmf:d"+nvme.NQN("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[f.connects.Load()%26]), targetAddr(0))
		return &answer{data: fakeLog(nvme.DiscoveryHeader{NUMREC: 1}, next)(cmd.GetLogPage().Request())}
	})
	before := f.connects.Load()
	log, err = f.discover(DiscoverOptions{Referrals: true, Depth: 3})
	f.must(err)
	if k := f.connects.Load() - before; k != 4 {
		t.Errorf("a chain: connected %d times, %d records", k, len(log.Records))
	}
}

// A referral of our own target is followed.
func TestReferralOfTarget(t *testing.T) {
	r := newRig(t, rigOptions{portals: 2, core: func(c *target.Config) {
		c.Referrals = []target.Referral{{Addr: targetAddr(1)}}
	}})
	log, err := Discover(r.ctx, r.hosts, r.config(func(c *Config) { c.Subsystem = "" }), DiscoverOptions{Referrals: true})
	r.must(err)
	depths := map[int]int{}
	for _, rec := range log.Records {
		depths[rec.Depth]++
	}
	if depths[0] == 0 || depths[1] == 0 || len(log.Failures) != 0 {
		t.Errorf("records by depth %v, failures %v", depths, log.Failures)
	}
}

// A link-local address in an entry is reached through the interface that the
// service was.
func TestRecordConfig(t *testing.T) {
	e := DiscoveryRecord{NQN: fakeSubsys, Source: netip.MustParseAddrPort("[fe80::9%eth7]:4420")}
	e.DiscoveryEntry = entry(nvme.SubsystemNVM, fakeSubsys, netip.MustParseAddrPort("[fe80::1]:4421"))
	cfg, err := e.Config(Config{DisableSQFlow: true})
	if err != nil || cfg.Addr != netip.MustParseAddrPort("[fe80::1%eth7]:4421") || cfg.DisableSQFlow {
		t.Errorf("%v, %+v", err, cfg)
	}
	e.TREQ = nvme.TREQDisableSQFlow
	if cfg, err = e.Config(Config{DisableSQFlow: true}); err != nil || !cfg.DisableSQFlow {
		t.Errorf("%v, %+v", err, cfg)
	}
	nvme.PutText(e.TRADDR[:], "not an address")
	if _, err = e.Config(Config{}); err == nil {
		t.Error("no address, no error")
	}
}

// A watch hears of changes, also of those it slept through, and is one however
// often it is asked for.
func TestWatch(t *testing.T) {
	r := newRig(t, rigOptions{})
	d := NewDiscoverer(r.hosts)
	var mu sync.Mutex
	var got []int
	count := func(log *DiscoveryLog) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, len(log.Records))
	}
	last := func() int {
		mu.Lock()
		defer mu.Unlock()
		return got[len(got)-1]
	}
	cfg := r.config(func(c *Config) { c.Subsystem = ""; c.ReconnectDelay = time.Millisecond })
	w, err := d.Watch(r.ctx, cfg, count)
	r.must(err)
	had := last()
	if kato := w.Controller().Status().KeepAlive; kato != DefaultDiscoveryKeepAlive {
		t.Errorf("keep alive %v", kato)
	}
	same, err := d.Watch(r.ctx, cfg, nil)
	r.must(err)
	cfg.HostNQN, cfg.HostID = "nqn.2014-08.org.nvmexpress:uuid:6f3c0000-0000-4000-8000-00000000000f", nvme.HostID{}
	other, err := d.Watch(r.ctx, cfg, nil)
	r.must(err)
	if same.Controller() != w.Controller() || other.Controller() == w.Controller() {
		t.Error("one host with two connections, or two hosts with one")
	}
	_, err = r.core.AddSubsystem(target.SubsystemConfig{NQN: testNQN + "2", Hosts: target.AnyHost()})
	r.must(err)
	r.until("the new subsystem is heard of", func() bool { return last() == had+1 })
	r.portals[0].stop()
	r.must(r.core.RemoveSubsystem(r.ctx, testNQN+"2"))
	r.portals[0].start()
	r.until("the change is heard of after reconnecting", func() bool { return last() == had })
	r.must(same.Close())
	if _, err := w.Log(); err != nil || w.Controller().State() != StateLive {
		t.Errorf("after another subscriber has left: %v, %v", w.Controller().State(), err)
	}
	for _, s := range []*Subscription{w, w, other} {
		r.must(s.Close())
	}
	if w.Controller().State() != StateClosed || len(d.watches) != 0 {
		t.Error("still connected")
	}
}
