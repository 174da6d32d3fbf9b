// Package config reads the daemon's YAML file: strictly, with every mistake
// told at once as file, line, key, value and what was expected. It opens
// nothing and starts nothing.
package config

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/nvmf-go/nvmf/backend/cache"
	"github.com/nvmf-go/nvmf/nvme"
)

// File is a whole configuration. Each field says its default; what is absent
// is filled in by Load.
type File struct {
	// Path is where the file was read from, for messages.
	Path string `yaml:"-"`

	Version    int         `yaml:"version"`     // 1; required
	Strict     bool        `yaml:"strict"`      // refuse to start when any backend or listener cannot; default false: start the others
	Log        Log         `yaml:"log"`         //
	Admin      Admin       `yaml:"admin"`       //
	Poll       string      `yaml:"poll"`        // adaptive, busy or event; default adaptive
	PollGroups int         `yaml:"poll_groups"` // default 0: one for each core
	RDMA       RDMA        `yaml:"rdma"`        //
	IWARP      IWARP       `yaml:"iwarp"`       //
	CNTLID     CNTLIDRange `yaml:"cntlid"`      // controller ids given out; disjoint in daemons that share subsystems
	DrainTime  Duration    `yaml:"drain_time"`  // longest orderly end at SIGTERM; default 4s
	Discovery  Discovery   `yaml:"discovery"`   //
	Listeners  []Listener  `yaml:"listeners"`   // at least one
	Backends   []Backend   `yaml:"backends"`    //
	Subsystems []Subsystem `yaml:"subsystems"`  //
	positions  positions   `yaml:"-"`
}

// Log says what is logged and how.
type Log struct {
	Level  string `yaml:"level"`  // error, warning, info, debug; default info
	Format string `yaml:"format"` // text or json; default text
}

// Admin says where the daemon is looked at and controlled.
type Admin struct {
	Socket string `yaml:"socket"` // unix socket of status and control; default /run/nvmf-target.sock; "none": no socket
	HTTP   string `yaml:"http"`   // address of /metrics and /debug/pprof; default none
}

// RDMA are the limits of the RDMA transport.
type RDMA struct {
	InCapsule      Size   `yaml:"in_capsule"`      // data in a command capsule: 0 to 16KiB in steps of 16; default 4KiB
	QueueDepth     int    `yaml:"queue_depth"`     // entries of an I/O queue: 2 to 1024; default 128
	MaxTransfer    Size   `yaml:"max_transfer"`    // largest transfer of a command (MDTS): a power of two, 8KiB to 4MiB; default 1MiB
	MaxQueues      int    `yaml:"max_queues"`      // I/O queues of a controller: 1 to 1024; default 64
	MaxConnections int    `yaml:"max_connections"` // queues of all hosts together; default 4096
	MaxReads       int    `yaml:"max_reads"`       // RDMA READs in flight on a queue: 1 to 128; default 16
	Buffers        Size   `yaml:"buffers"`         // data buffers of all poll groups together; default 64MiB
	MemoryLimit    Size   `yaml:"memory_limit"`    // all registered memory: connections beyond it are refused; default 1GiB
	SRQ            string `yaml:"srq"`             // auto, on, off: share receives between the queues; default auto
	SendInvalidate string `yaml:"send_invalidate"` // auto, on, off: end the host's key with the response; default auto
}

// IWARP configures the built-in iWARP (provider iwarp). A change needs a restart.
type IWARP struct {
	CRC string `yaml:"crc"` // auto: when the host wants it, on: always, off: never, hosts that want it are refused; default auto
	// Congestion is the TCP congestion control: a name that the kernel knows, system,
	// or auto: the system's unless that is bbr, which paces; default auto.
	Congestion string `yaml:"congestion"`
}

// CNTLIDRange are the controller ids that may be given out.
type CNTLIDRange struct {
	Min int `yaml:"min"` // default 1
	Max int `yaml:"max"` // default 65519 (FFEFh)
}

// Discovery configures the discovery subsystem.
type Discovery struct {
	NQN       string     `yaml:"nqn"`       // a unique discovery NQN beside the well-known one; default none
	Referrals []Referral `yaml:"referrals"` // other discovery services
}

// Referral names another discovery service.
type Referral struct {
	Transport string     `yaml:"transport"` // rdma or tcp; default rdma
	Address   netip.Addr `yaml:"address"`   // required
	Port      uint16     `yaml:"port"`      // default 4420
	NQN       string     `yaml:"nqn"`       // default the well-known discovery NQN
}

// Listener is an address to serve on.
type Listener struct {
	Name      string     `yaml:"name"`      // required, unique
	Transport string     `yaml:"transport"` // rdma; default rdma
	Provider  string     `yaml:"provider"`  // auto, verbs, roce or iwarp; default auto
	Address   netip.Addr `yaml:"address"`   // IPv4 or IPv6, fe80::1%eth0 for link-local, 0.0.0.0 or :: for all; required
	Port      uint16     `yaml:"port"`      // default 4420
	ID        int        `yaml:"id"`        // PORTID of discovery entries: 1 to 65535; default the position in the list
}

// AddrPort is the listener's address with its port.
func (l Listener) AddrPort() netip.AddrPort { return netip.AddrPortFrom(l.Address, l.Port) }

// Backend is a medium.
type Backend struct {
	Name      string `yaml:"name"`       // required, unique
	Type      string `yaml:"type"`       // file, mem or null; required
	Path      string `yaml:"path"`       // file: regular file or block device; required there
	Size      Size   `yaml:"size"`       // file: created sparse when absent; mem and null: required
	BlockSize Size   `yaml:"block_size"` // 512 or 4096; default 512
	ReadOnly  bool   `yaml:"read_only"`  // default false
	Engine    string `yaml:"engine"`     // file: auto, io_uring or threads; default auto
	Direct    string `yaml:"direct"`     // file: auto, on or off: O_DIRECT; default auto
	Cache     Cache  `yaml:"cache"`      // memory in front of the medium; default none
}

// Cache is memory in front of a backend. A change reopens the backend.
type Cache struct {
	Size      Size   `yaml:"size"`      // all of its memory, pages and what it keeps of them; required
	Page      Size   `yaml:"page"`      // a power of two, 4KiB to 64KiB; default 4KiB
	ReadAhead Size   `yaml:"readahead"` // beyond a sequential reader, at most; 0 to 4MiB, 0 is off; default 128KiB
	Admission string `yaml:"admission"` // tinylfu or all: what is kept of what is read; default tinylfu
}

// On says whether there is a cache.
func (c Cache) On() bool { return c.Size > 0 }

// maxCache is the most memory of one cache.
const maxCache = 1 << 40

// Subsystem is an NVM subsystem.
type Subsystem struct {
	NQN        string      `yaml:"nqn"`        // required, unique
	Serial     string      `yaml:"serial"`     // 1 to 20 ASCII characters; default derived from the NQN
	Model      string      `yaml:"model"`      // 1 to 40 ASCII characters; default "nvmf"
	Hosts      Hosts       `yaml:"hosts"`      // any, or a list of host NQNs; required
	Listeners  []string    `yaml:"listeners"`  // names; default all
	Namespaces []Namespace `yaml:"namespaces"` //
}

// Namespace puts a backend into a subsystem.
type Namespace struct {
	NSID     uint32 `yaml:"nsid"`      // 1 to 1024; required, unique in the subsystem
	Backend  string `yaml:"backend"`   // name; required
	UUID     string `yaml:"uuid"`      // default derived from subsystem, nsid and backend
	NGUID    string `yaml:"nguid"`     // 32 hex digits; default derived
	ReadOnly bool   `yaml:"read_only"` // default false
}

// Defaults of the file.
const (
	DefaultSocket = "/run/nvmf-target.sock"
	DefaultPort   = 4420
	MaxNSID       = 1024
)

// The setDefaults methods fill a structure in before the file's keys are read
// into it: a zero that the file has is a zero, and refused where it makes no
// sense.

func (f *File) setDefaults() {
	f.Poll = "adaptive"
	f.DrainTime = Duration(4 * time.Second)
	f.Log.setDefaults()
	f.Admin.setDefaults()
	f.RDMA.setDefaults()
	f.IWARP.setDefaults()
	f.CNTLID.setDefaults()
}

func (l *Log) setDefaults() { *l = Log{Level: "info", Format: "text"} }

func (a *Admin) setDefaults() { a.Socket = DefaultSocket }

func (c *CNTLIDRange) setDefaults() { *c = CNTLIDRange{1, int(nvme.CNTLIDMax)} }

func (i *IWARP) setDefaults() { i.CRC, i.Congestion = "auto", "auto" }

func (r *RDMA) setDefaults() {
	*r = RDMA{
		InCapsule: 4 << 10, QueueDepth: 128, MaxTransfer: 1 << 20, MaxQueues: 64, MaxConnections: 4096, MaxReads: 16,
		Buffers: 64 << 20, MemoryLimit: 1 << 30, SRQ: "auto", SendInvalidate: "auto",
	}
}

func (r *Referral) setDefaults() { *r = Referral{Transport: "rdma", Port: DefaultPort} }

func (l *Listener) setDefaults() {
	*l = Listener{Transport: "rdma", Provider: "auto", Port: DefaultPort}
}

func (b *Backend) setDefaults() { *b = Backend{BlockSize: 512, Engine: "auto", Direct: "auto"} }

func (c *Cache) setDefaults() {
	*c = Cache{Page: cache.DefaultPage, ReadAhead: 128 << 10, Admission: string(cache.TinyLFU)}
}

func (s *Subsystem) setDefaults() { s.Model = "nvmf" }

// setIDs numbers the listeners that the file gives no number.
func (f *File) setIDs() {
	for i := range f.Listeners {
		if !f.positions.has(fmt.Sprintf("listeners[%d].id", i)) {
			f.Listeners[i].ID = i + 1
		}
	}
}
