package target

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nvmf-go/nvmf/nvme"
)

// The discovery subsystem (Base 3.1.2.3, log page 70h). A log is made for the
// host that asks: of the subsystems it may connect to, with addresses that it
// can reach. Each discovery controller keeps the log of its latest read from
// offset 0, so that a log that is read in pieces is of one moment.

// discoverySnapshot is the log that a controller's host is reading. It is
// guarded by Controller.mu.
type discoverySnapshot struct {
	log    []byte // header and entries; nil before the first read
	genctr uint64
	pleo   bool
}

// discoveryChangedLocked counts a change of what the log of some host may
// hold, and tells those whose log it is. Target.mu is held.
func (t *Target) discoveryChangedLocked() {
	t.genctr++
	for c := range t.discovery.ctrls {
		c.mu.Lock()
		pleo, old := c.disc.pleo, c.disc.log
		wanted := c.features.asyncEvents&nvme.EventDiscovery != 0
		c.mu.Unlock()
		if !wanted || old != nil && bytes.Equal(old[nvme.DiscoveryHeaderSize:], t.discoveryLogLocked(c, pleo)[nvme.DiscoveryHeaderSize:]) {
			continue
		}
		c.raise(eventDiscovery)
	}
}

func (q *Queue) executeDiscoveryLog(r *Request, l nvme.LogRequest) {
	c, t := q.ctrl, q.group.target
	pleo := l.LSP&discoveryPLEO != 0
	t.mu.Lock()
	c.mu.Lock()
	if s := &c.disc; s.log == nil || s.pleo != pleo || l.Offset == 0 && s.genctr != t.genctr {
		*s = discoverySnapshot{t.discoveryLogLocked(c, pleo), t.genctr, pleo}
	}
	if !l.RAE {
		c.clearEventLocked(eventDiscovery)
		if c.disc.genctr != t.genctr {
			c.raiseLocked(eventDiscovery) // what was read is out of date already
		}
	}
	log := c.disc.log
	c.mu.Unlock()
	t.mu.Unlock()
	q.finishLog(r, log)
	c.deliverEvents()
}

// discoveryLogLocked is the log for c's host; with pleo, of the port it has
// come through alone. Target.mu is held.
func (t *Target) discoveryLogLocked(c *Controller, pleo bool) []byte {
	b := discoveryBuilder{log: make([]byte, nvme.DiscoveryHeaderSize)}
	for _, p := range t.ports {
		addr, ok := p.addressFor(c.admin.cfg.Link.Local().Addr())
		if !ok || pleo && p != c.port {
			continue
		}
		b.add(p.entry(addr, nvme.SubsystemDiscovery, t.discovery.nqn))
		for _, nqn := range slices.Sorted(maps.Keys(t.subs)) {
			if s := t.subs[nqn]; s.behindLocked(p) && s.hosts.allows(c.hostNQN) {
				b.add(p.entry(addr, nvme.SubsystemNVM, nqn))
			}
		}
	}
	if !pleo {
		for _, r := range t.referrals {
			b.add(r.entry())
		}
	}
	h := nvme.DiscoveryHeader{GENCTR: t.genctr, NUMREC: b.n}
	h.MarshalTo(b.log[:nvme.DiscoveryHeaderSize])
	return b.log
}

// discoveryBuilder appends entries to a log.
type discoveryBuilder struct {
	log []byte
	n   uint64
}

func (b *discoveryBuilder) add(e nvme.DiscoveryEntry) {
	at := len(b.log)
	b.log = append(b.log, make([]byte, nvme.DiscoveryEntrySize)...)
	e.MarshalTo(b.log[at:])
	b.n++
}

// addressFor is the address at which a host that has connected to local finds
// p: p's own, or local when p listens on every address of that family. A
// link-local address is of use only to a host on that link. The result has no
// zone: zones are names of this machine.
func (p *Port) addressFor(local netip.Addr) (netip.Addr, bool) {
	addr, local := p.Addr.Addr().Unmap(), local.Unmap()
	if addr.IsUnspecified() {
		if !local.IsValid() || addr.Is4() && !local.Is4() {
			return netip.Addr{}, false
		}
		return local.WithZone(""), true
	}
	if addr.Is6() && addr.IsLinkLocalUnicast() && (!local.Is6() || !local.IsLinkLocalUnicast() || !sameZone(addr, local)) {
		return netip.Addr{}, false
	}
	return addr.WithZone(""), true
}

// sameZone says whether two link-local addresses may be of one link: a zone
// that is not known may be any.
func sameZone(a, b netip.Addr) bool {
	return a.Zone() == "" || b.Zone() == "" || a.Zone() == b.Zone()
}

// entry is the discovery entry for a subsystem behind p.
func (p *Port) entry(addr netip.Addr, kind nvme.SubsystemType, nqn nvme.NQN) nvme.DiscoveryEntry {
	e := newEntry(p.Type, netip.AddrPortFrom(addr, p.Addr.Port()), kind, nqn)
	e.PORTID = p.ID
	e.TREQ = nvme.TREQDisableSQFlow
	if kind == nvme.SubsystemDiscovery {
		e.EFLAGS = nvme.EFLAGSDupInfo | nvme.EFLAGSEPCSD
	}
	if p.Type == nvme.TransportRDMA {
		e.SetRDMA(nvme.TSASRDMA{QPTYPE: nvme.RDMAConnected, PRTYPE: p.rdmaProvider(), CMS: nvme.RDMACMIP})
	}
	return e
}

// rdmaProvider is PRTYPE of TSAS, from the name of the fabric provider.
func (p *Port) rdmaProvider() nvme.RDMAProvider {
	switch p.Provider {
	case "roce":
		return nvme.RDMARoCEv2
	case "iwarp":
		return nvme.RDMAiWARP
	}
	return nvme.RDMAUnspecified
}

func newEntry(t nvme.TransportType, at netip.AddrPort, kind nvme.SubsystemType, nqn nvme.NQN) nvme.DiscoveryEntry {
	e := nvme.DiscoveryEntry{
		TRTYPE: t, ADRFAM: nvme.FamilyIPv4, SUBTYPE: kind, CNTLID: nvme.CNTLIDDynamic, ASQSZ: nvme.ASQSizeMin,
	}
	if at.Addr().Is6() {
		e.ADRFAM = nvme.FamilyIPv6
	}
	nvme.PutText(e.TRADDR[:], at.Addr().String())
	nvme.PutText(e.TRSVCID[:], strconv.Itoa(int(at.Port())))
	nvme.PutNQN(e.SUBNQN[:], nqn)
	return e
}

// entry is the discovery entry for another discovery service.
func (r Referral) entry() nvme.DiscoveryEntry {
	t, nqn := r.Type, r.NQN
	def(&t, nvme.TransportRDMA)
	def(&nqn, nvme.DiscoveryNQN)
	addr := r.Addr.Addr().Unmap().WithZone("")
	e := newEntry(t, netip.AddrPortFrom(addr, r.Addr.Port()), nvme.SubsystemReferral, nqn)
	if t == nvme.TransportRDMA {
		e.SetRDMA(nvme.TSASRDMA{QPTYPE: nvme.RDMAConnected, PRTYPE: nvme.RDMAUnspecified, CMS: nvme.RDMACMIP})
	}
	return e
}
