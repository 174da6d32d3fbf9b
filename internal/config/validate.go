package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/cache"
	"github.com/nvmf-go/nvmf/nvme"
)

func (f *File) validate(d *decoder) {
	switch {
	case !d.pos.has("version"):
		d.bad("version", "", "missing: expected 1")
	case f.Version != 1:
		d.bad("version", value(f.Version), "expected 1")
	}
	d.oneOf("log.level", f.Log.Level, "error", "warning", "info", "debug")
	d.oneOf("log.format", f.Log.Format, "text", "json")
	d.oneOf("poll", f.Poll, "adaptive", "busy", "event")
	d.within("poll_groups", f.PollGroups, 0, 256)
	if f.DrainTime == 0 && !d.failed("drain_time") {
		d.bad("drain_time", "0s", "expected more than nothing, as 4s")
	}
	f.Admin.validate(d)
	f.RDMA.validate(d)
	d.oneOf("iwarp.crc", f.IWARP.CRC, "auto", "on", "off")
	if c := f.IWARP.Congestion; !isCongestion(c) && !d.failed("iwarp.congestion") {
		d.bad("iwarp.congestion", c, "expected auto, system, or the kernel's name of a TCP congestion control, as reno")
	}
	f.validateCNTLID(d)
	f.Discovery.validate(d)
	f.validateListeners(d)
	f.validateBackends(d)
	f.validateSubsystems(d)
}

func (a Admin) validate(d *decoder) {
	if a.Socket != "none" && !filepath.IsAbs(a.Socket) {
		d.bad("admin.socket", a.Socket, "expected an absolute path, or none")
	}
	// The kernel's sun_path has 108 bytes with its terminator.
	if len(a.Socket) > 107 {
		d.bad("admin.socket", a.Socket, "expected at most 107 characters, the most that a unix socket can have")
	}
	if a.HTTP == "" {
		return
	}
	if _, port, err := net.SplitHostPort(a.HTTP); err != nil || !isPort(port) {
		d.bad("admin.http", a.HTTP, "expected host:port, as 127.0.0.1:9420")
	}
}

// isCongestion says whether s may be the name of a congestion control: less than the
// kernel's TCP_CA_NAME_MAX of 16.
func isCongestion(s string) bool {
	return s != "" && len(s) < 16 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

func (r RDMA) validate(d *decoder) {
	d.size("rdma.in_capsule", r.InCapsule, 0, 16<<10)
	if r.InCapsule%16 != 0 {
		d.bad("rdma.in_capsule", r.InCapsule.String(), "expected a multiple of 16 bytes, the unit of IOCCSZ")
	}
	d.within("rdma.queue_depth", r.QueueDepth, 2, 1024)
	d.size("rdma.max_transfer", r.MaxTransfer, 8<<10, 4<<20)
	if r.MaxTransfer > 0 && r.MaxTransfer&(r.MaxTransfer-1) != 0 {
		d.bad("rdma.max_transfer", r.MaxTransfer.String(), "expected a power of two, as MDTS can say")
	}
	d.within("rdma.max_queues", r.MaxQueues, 1, 1024)
	d.within("rdma.max_connections", r.MaxConnections, 1, 1<<20)
	d.within("rdma.max_reads", r.MaxReads, 1, 128)
	d.size("rdma.buffers", r.Buffers, 1<<20, 1<<40)
	d.size("rdma.memory_limit", r.MemoryLimit, 1<<20, 1<<40)
	if r.Buffers > r.MemoryLimit {
		d.bad("rdma.buffers", r.Buffers.String(), fmt.Sprintf("expected no more than rdma.memory_limit (%v)", r.MemoryLimit))
	}
	if r.Buffers < r.MaxTransfer*2 {
		d.bad("rdma.buffers", r.Buffers.String(), fmt.Sprintf("expected at least twice rdma.max_transfer (%v)", r.MaxTransfer))
	}
	d.oneOf("rdma.srq", r.SRQ, "auto", "on", "off")
	d.oneOf("rdma.send_invalidate", r.SendInvalidate, "auto", "on", "off")
}

func (f *File) validateCNTLID(d *decoder) {
	d.within("cntlid.min", f.CNTLID.Min, 1, 0xFFEF)
	d.within("cntlid.max", f.CNTLID.Max, 1, 0xFFEF)
	if f.CNTLID.Min > f.CNTLID.Max {
		d.bad("cntlid.min", value(f.CNTLID.Min), fmt.Sprintf("expected no more than cntlid.max (%d)", f.CNTLID.Max))
	}
}

func (c Discovery) validate(d *decoder) {
	if c.NQN != "" {
		d.nqn("discovery.nqn", c.NQN)
	}
	for i, r := range c.Referrals {
		at := fmt.Sprintf("discovery.referrals[%d]", i)
		d.oneOf(at+".transport", r.Transport, "rdma", "tcp")
		if !r.Address.IsValid() && !d.failed(at+".address") {
			d.bad(at+".address", "", "missing: the address of the other discovery service")
		}
		d.within(at+".port", int(r.Port), 1, 65535)
		if r.NQN != "" {
			d.nqn(at+".nqn", r.NQN)
		}
	}
}

func (f *File) validateListeners(d *decoder) {
	if len(f.Listeners) == 0 {
		d.bad("listeners", "", "missing: at least one listener")
	}
	names, ids, addrs := uniq{}, uniq{}, uniq{}
	for i, l := range f.Listeners {
		at := fmt.Sprintf("listeners[%d]", i)
		d.name(at+".name", l.Name, names)
		d.oneOf(at+".transport", l.Transport, "rdma")
		d.oneOf(at+".provider", l.Provider, "auto", "verbs", "roce", "iwarp")
		d.within(at+".port", int(l.Port), 1, 65535)
		d.within(at+".id", l.ID, 1, 65535)
		d.unique(at+".id", value(l.ID), ids)
		if !l.Address.IsValid() {
			if !d.failed(at + ".address") {
				d.bad(at+".address", "", "missing: an IPv4 or IPv6 address")
			}
			continue
		}
		if l.Address.Is6() && l.Address.IsLinkLocalUnicast() && l.Address.Zone() == "" {
			d.bad(at+".address", l.Address.String(), "expected an interface behind a link-local address, as fe80::1%eth0")
		}
		d.unique(at+".address", fmt.Sprintf("%v (provider %s)", l.AddrPort(), l.Provider), addrs)
	}
}

func (f *File) validateBackends(d *decoder) {
	names, paths := uniq{}, uniq{}
	for i, b := range f.Backends {
		at := fmt.Sprintf("backends[%d]", i)
		d.name(at+".name", b.Name, names)
		if b.BlockSize != 512 && b.BlockSize != 4096 {
			d.bad(at+".block_size", value(int(b.BlockSize)), "expected 512 or 4096")
		}
		d.oneOf(at+".engine", b.Engine, "auto", "io_uring", "threads")
		d.oneOf(at+".direct", b.Direct, "auto", "on", "off")
		b.validateType(d, at, paths)
		if n := d.pos[at+".cache"]; n != nil && !isNull(n) && !d.failed(at+".cache") {
			b.Cache.validate(d, at+".cache")
		}
	}
}

func (c Cache) validate(d *decoder, at string) {
	d.oneOf(at+".admission", c.Admission, string(cache.TinyLFU), string(cache.AdmitAll))
	d.size(at+".readahead", c.ReadAhead, 0, cache.MaxReadAhead)
	if d.failed(at+".page") || d.failed(at+".size") {
		return
	}
	if c.Page < cache.MinPage || c.Page > cache.MaxPage || c.Page&(c.Page-1) != 0 {
		d.bad(at+".page", c.Page.String(), fmt.Sprintf("expected a power of two from %v to %v", Size(cache.MinPage), Size(cache.MaxPage)))
		return
	}
	if !d.pos.has(at + ".size") {
		d.bad(at+".size", "", "missing: the memory of the cache")
		return
	}
	_, err := cache.MemoryNeeded(uint64(c.Size), int(c.Page))
	if few := (*backend.OptionError)(nil); errors.As(err, &few) {
		d.bad(at+".size", c.Size.String(), "expected "+few.Want)
	}
	if c.Size > maxCache {
		d.bad(at+".size", c.Size.String(), fmt.Sprintf("expected at most %v", Size(maxCache)))
	}
}

func (b Backend) validateType(d *decoder, at string, paths uniq) {
	switch b.Type {
	case "file":
		if !filepath.IsAbs(b.Path) {
			d.bad(at+".path", b.Path, "expected the absolute path of a file or block device")
		} else {
			d.unique(at+".path", filepath.Clean(b.Path), paths)
		}
	case "mem", "null":
		if b.Path != "" {
			d.bad(at+".path", b.Path, "not used by type "+b.Type)
		}
		if b.Size == 0 && !d.failed(at+".size") {
			d.bad(at+".size", "", "missing: the size of the "+b.Type+" backend")
		}
	case "":
		d.bad(at+".type", "", "missing: file, mem or null")
	default:
		d.oneOf(at+".type", b.Type, "file", "mem", "null")
	}
	if bs := b.BlockSize; (bs == 512 || bs == 4096) && b.Size%bs != 0 {
		d.bad(at+".size", value(int(b.Size)), fmt.Sprintf("expected a multiple of block_size (%d)", bs))
	}
}

func (f *File) validateSubsystems(d *decoder) {
	nqns, serials, uuids, nguids := uniq{}, uniq{}, uniq{}, uniq{}
	for i, s := range f.Subsystems {
		at := fmt.Sprintf("subsystems[%d]", i)
		if s.NQN == "" {
			d.bad(at+".nqn", "", "missing: the NQN of the subsystem")
		} else if d.nqn(at+".nqn", s.NQN) {
			if nvme.NQN(s.NQN).IsDiscovery() || s.NQN == f.Discovery.NQN {
				d.bad(at+".nqn", s.NQN, "expected another NQN: this is the discovery subsystem's")
			}
			d.unique(at+".nqn", s.NQN, nqns)
		}
		d.ascii(at+".serial", s.Serial, 20)
		d.ascii(at+".model", s.Model, 40)
		if s.Serial != "" {
			d.unique(at+".serial", s.Serial, serials)
		}
		f.validateHosts(d, at, s)
		f.validateNamespaces(d, at, s, uuids, nguids)
	}
}

func (f *File) validateHosts(d *decoder, at string, s Subsystem) {
	if !d.pos.has(at + ".hosts") {
		d.bad(at+".hosts", "", "missing: the word any, or a list of host NQNs")
	}
	seen := uniq{}
	for j, h := range s.Hosts.NQNs {
		if d.nqn(fmt.Sprintf("%s.hosts[%d]", at, j), h) {
			d.unique(fmt.Sprintf("%s.hosts[%d]", at, j), h, seen)
		}
	}
	names := uniq{}
	for j, l := range s.Listeners {
		key := fmt.Sprintf("%s.listeners[%d]", at, j)
		if !f.hasListener(l) {
			d.bad(key, l, "expected the name of a listener: "+strings.Join(f.listenerNames(), ", "))
		}
		d.unique(key, l, names)
	}
	if s.Listeners != nil && len(s.Listeners) == 0 {
		d.bad(at+".listeners", "[]", "expected at least one listener, or no such key for all of them")
	}
}

func (f *File) validateNamespaces(d *decoder, at string, s Subsystem, uuids, nguids uniq) {
	ids := uniq{}
	for j, n := range s.Namespaces {
		key := fmt.Sprintf("%s.namespaces[%d]", at, j)
		if n.NSID < 1 || n.NSID > MaxNSID {
			d.bad(key+".nsid", value(int(n.NSID)), fmt.Sprintf("expected 1 to %d", MaxNSID))
		} else {
			d.unique(key+".nsid", value(int(n.NSID)), ids)
		}
		if n.Backend == "" {
			d.bad(key+".backend", "", "missing: the name of a backend")
		} else if f.backend(n.Backend) == nil {
			d.bad(key+".backend", n.Backend, "expected the name of a backend: "+strings.Join(f.backendNames(), ", "))
		}
		if n.UUID != "" {
			if id, err := uuid.Parse(n.UUID); err != nil || id == uuid.Nil {
				d.bad(key+".uuid", n.UUID, "expected a UUID, as 6f3cbb5a-7d8e-4f6b-9a3c-0123456789ab")
			} else {
				d.unique(key+".uuid", id.String(), uuids)
			}
		}
		if n.NGUID != "" {
			if !isNGUID(n.NGUID) {
				d.bad(key+".nguid", n.NGUID, "expected 32 hex digits, not all zero")
			} else {
				d.unique(key+".nguid", strings.ToLower(n.NGUID), nguids)
			}
		}
	}
}

func isNGUID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0") != "" && strings.Trim(strings.ToLower(s), "0123456789abcdef") == ""
}

func (f *File) backend(name string) *Backend {
	for i := range f.Backends {
		if f.Backends[i].Name == name {
			return &f.Backends[i]
		}
	}
	return nil
}

// Backend is the backend of that name, nil when there is none.
func (f *File) Backend(name string) *Backend { return f.backend(name) }

func (f *File) backendNames() (names []string) {
	for _, b := range f.Backends {
		names = append(names, b.Name)
	}
	return names
}

func (f *File) hasListener(name string) bool {
	for _, l := range f.Listeners {
		if l.Name == name {
			return true
		}
	}
	return false
}

func (f *File) listenerNames() (names []string) {
	for _, l := range f.Listeners {
		names = append(names, l.Name)
	}
	return names
}
