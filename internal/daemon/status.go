package daemon

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/internal/config"
	"github.com/nvmf-go/nvmf/internal/version"
	"github.com/nvmf-go/nvmf/target"
	"github.com/nvmf-go/nvmf/target/rdma"
)

// Status is a daemon at a moment, in the form that the control socket answers
// with. Counters count from the start; durations are in nanoseconds.
type Status struct {
	Version     string             `json:"version"`
	File        string             `json:"file"`
	Time        time.Time          `json:"time"`
	Uptime      time.Duration      `json:"uptime_ns"`
	Process     ProcessStatus      `json:"process"`
	Listeners   []ListenerStatus   `json:"listeners"`
	Subsystems  []SubsystemStatus  `json:"subsystems"`
	Controllers []ControllerStatus `json:"controllers"`
	Hosts       []HostStatus       `json:"hosts"`
	Caches      []CacheStatus      `json:"caches,omitempty"`
	RDMA        RDMAStatus         `json:"rdma"`
	Discovery   uint64             `json:"discovery_generation"`
	Refusals    uint64             `json:"connect_refusals"` // Connect commands
}

// ProcessStatus is what the process uses.
type ProcessStatus struct {
	PID        int    `json:"pid"`
	Goroutines int    `json:"goroutines"`
	Files      int    `json:"open_files"`
	RSS        uint64 `json:"rss_bytes"`
	Registered int64  `json:"registered_bytes"` // memory outside the Go heap that devices can reach
}

// ListenerStatus is a listener of the file.
type ListenerStatus struct {
	Name        string `json:"name"`
	ID          int    `json:"id"`
	Address     string `json:"address"`
	Provider    string `json:"provider"`         // chosen, once up
	State       string `json:"state"`            // Listening, Waiting or Down
	Reason      string `json:"reason,omitempty"` // why it does not listen
	Controllers int    `json:"controllers"`
}

// States of a listener.
const (
	Listening = "listening" // it takes connections
	Waiting   = "waiting"   // no device has its address yet
	Down      = "down"      // it failed; the next reload tries again
)

// SubsystemStatus is a subsystem.
type SubsystemStatus struct {
	NQN         string            `json:"nqn"`
	Serial      string            `json:"serial"`
	Hosts       []string          `json:"hosts"` // who may connect; "any"
	Controllers int               `json:"controllers"`
	Namespaces  []NamespaceStatus `json:"namespaces"`
}

// Counters are commands and bytes by operation.
type Counters struct {
	Ops         map[string]uint64 `json:"ops"`
	Bytes       map[string]uint64 `json:"bytes"`
	Errors      uint64            `json:"errors"`
	MediaErrors uint64            `json:"media_errors"`
}

// Latency is a distribution in nanoseconds. Buckets are cumulative, as
// Prometheus has them, up to their bounds; empty ones are left out.
type Latency struct {
	Count   uint64   `json:"count"`
	Sum     int64    `json:"sum_ns"`
	Mean    int64    `json:"mean_ns"`
	P50     int64    `json:"p50_ns"`
	P99     int64    `json:"p99_ns"`
	P999    int64    `json:"p999_ns"`
	Max     int64    `json:"max_ns"`
	Buckets []Bucket `json:"buckets,omitempty"`
}

// Bucket says that so many latencies were below a bound.
type Bucket struct {
	Below int64  `json:"below_ns"`
	Count uint64 `json:"count"`
}

// NamespaceStatus is a namespace.
type NamespaceStatus struct {
	NSID      uint32   `json:"nsid"`
	Backend   string   `json:"backend"`
	Type      string   `json:"type"`
	Path      string   `json:"path,omitempty"`
	Engine    string   `json:"engine"`
	UUID      string   `json:"uuid"`
	NGUID     string   `json:"nguid"`
	BlockSize uint32   `json:"block_size"`
	Bytes     uint64   `json:"size_bytes"`
	ReadOnly  bool     `json:"read_only"`
	Inflight  int      `json:"inflight"`
	Waiting   int      `json:"waiting"`
	Counters  Counters `json:"counters"`
	Read      Latency  `json:"read_latency"`
	Write     Latency  `json:"write_latency"`
	Lent      Latency  `json:"lent_latency"` // of the reads that were answered from the cache's own memory
}

// ControllerStatus is a controller and its queues.
type ControllerStatus struct {
	ID        uint16        `json:"cntlid"`
	Subsystem string        `json:"subsystem"`
	Discovery bool          `json:"discovery"`
	Host      string        `json:"host"`
	HostID    string        `json:"host_id"`
	Listener  string        `json:"listener"`
	Peer      string        `json:"peer"`
	Age       time.Duration `json:"age_ns"`
	KeepAlive time.Duration `json:"keep_alive_ns"`
	Ready     bool          `json:"ready"`
	Errors    uint64        `json:"error_log_entries"`
	Queues    []QueueStatus `json:"queues"`
}

// QueueStatus is a queue.
type QueueStatus struct {
	ID        uint16   `json:"qid"`
	Depth     int      `json:"depth"`
	Executing int      `json:"executing"`
	Peer      string   `json:"peer"`
	Counters  Counters `json:"counters"`
	Read      Latency  `json:"read_latency"`
	Write     Latency  `json:"write_latency"`
}

// HostStatus is what a host did at a subsystem since the start.
type HostStatus struct {
	NQN         string          `json:"nqn"`
	Subsystem   string          `json:"subsystem"`
	Controllers int             `json:"controllers"`
	Counters    Counters        `json:"counters"`
	Namespaces  []HostNamespace `json:"namespaces,omitempty"` // those there are, by what the host did to each
}

// HostNamespace is what a host did to a namespace since that is there.
type HostNamespace struct {
	NSID     uint32   `json:"nsid"`
	Backend  string   `json:"backend"`
	Counters Counters `json:"counters"`
	Read     Latency  `json:"read_latency"`
	Write    Latency  `json:"write_latency"`
}

// RDMAStatus is the transport.
type RDMAStatus struct {
	Connections int           `json:"connections"`
	Rejected    uint64        `json:"rejected"`
	MemoryUsed  int64         `json:"memory_used_bytes"` // without that of caches
	LentMemory  int64         `json:"lent_memory_bytes"` // pages of caches, registered for sending
	LentBytes   uint64        `json:"lent_bytes"`        // sent from there, by connections that are open or have ended
	MemoryLimit int64         `json:"memory_limit_bytes"`
	Groups      []GroupStatus `json:"groups"`
}

// GroupStatus is a poll group.
type GroupStatus struct {
	Connections int    `json:"connections"`
	Turns       uint64 `json:"turns"`
	Sleeps      uint64 `json:"sleeps"`
	Completions uint64 `json:"completions"`
	Capsules    uint64 `json:"capsules"`
	BufferWaits uint64 `json:"buffer_waits"`
	ReadWaits   uint64 `json:"read_waits"`
	SendWaits   uint64 `json:"send_waits"`
	SlotWaits   uint64 `json:"slot_waits"`
	BuffersFree uint64 `json:"buffers_free_bytes"`
	BuffersSize uint64 `json:"buffers_bytes"`
}

// Status looks at everything. It fails when ctx ends before every poll group
// has answered.
func (d *Daemon) Status(ctx context.Context) (*Status, error) {
	snap, err := d.target.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("a poll group does not answer: %w", err)
	}
	tr, err := d.transport.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("a poll group does not answer: %w", err)
	}
	s := &Status{
		Version: version.String(), Time: time.Now(), Uptime: time.Since(d.started), Process: processStatus(),
		RDMA: rdmaStatus(&tr), Discovery: snap.Generation, Refusals: snap.Refusals,
	}
	f := d.config()
	s.File = f.Path
	s.Listeners = d.listenerStatus(f, snap)
	s.Caches = d.cacheStatus()
	for i := range snap.Subsystems {
		s.Subsystems = append(s.Subsystems, subsystemStatus(&snap.Subsystems[i]))
	}
	for i := range snap.Controllers {
		s.Controllers = append(s.Controllers, controllerStatus(&snap.Controllers[i]))
	}
	for i := range snap.Hosts {
		s.Hosts = append(s.Hosts, hostStatus(&snap.Hosts[i]))
	}
	return s, nil
}

// listenerStatus has the listeners in the order of the file.
func (d *Daemon) listenerStatus(f *config.File, snap *target.Snapshot) (list []ListenerStatus) {
	there := d.listenersNow()
	for _, c := range f.Listeners {
		l := there[c.Name]
		if l == nil {
			continue // a reload is at work
		}
		s := l.status()
		if i := slices.IndexFunc(snap.Ports, func(p target.PortStatus) bool { return p.Name == c.Name }); i >= 0 {
			s.Controllers = snap.Ports[i].Controllers
		}
		list = append(list, s)
	}
	return list
}

func subsystemStatus(t *target.SubsystemStatus) SubsystemStatus {
	s := SubsystemStatus{NQN: string(t.NQN), Serial: t.Serial, Controllers: t.Controllers, Hosts: []string{}}
	if t.Hosts.Any {
		s.Hosts = []string{"any"}
	}
	for _, h := range t.Hosts.List {
		s.Hosts = append(s.Hosts, string(h))
	}
	for i := range t.Namespaces {
		n := &t.Namespaces[i]
		s.Namespaces = append(s.Namespaces, NamespaceStatus{
			NSID: n.NSID, Backend: n.Name, Type: n.Type, Path: n.Path, Engine: n.Engine,
			UUID: n.UUID.String(), NGUID: n.NGUID.String(), BlockSize: n.BlockSize, Bytes: n.Blocks * uint64(n.BlockSize),
			ReadOnly: n.ReadOnly, Inflight: n.Inflight, Waiting: n.Waiting,
			Counters: counters(&n.Counters), Read: latency(&n.Read), Write: latency(&n.Write), Lent: latency(&n.Lent),
		})
	}
	return s
}

func controllerStatus(c *target.ControllerStatus) ControllerStatus {
	s := ControllerStatus{
		ID: c.ID, Subsystem: string(c.Subsystem), Discovery: c.Discovery, Host: string(c.Host), HostID: c.HostID.String(),
		Listener: c.Port, Peer: c.Peer.String(), Age: c.Age, KeepAlive: c.KeepAlive, Ready: c.Ready, Errors: c.Errors,
	}
	for i := range c.Queues {
		q := &c.Queues[i]
		s.Queues = append(s.Queues, QueueStatus{
			ID: q.ID, Depth: q.Depth, Executing: q.Executing, Peer: q.Peer,
			Counters: counters(&q.Counters), Read: latency(&q.Read), Write: latency(&q.Write),
		})
	}
	return s
}

func hostStatus(h *target.HostStatus) HostStatus {
	s := HostStatus{NQN: string(h.NQN), Subsystem: string(h.Subsystem), Controllers: h.Controllers, Counters: counters(&h.Counters)}
	for i := range h.Namespaces {
		n := &h.Namespaces[i]
		s.Namespaces = append(s.Namespaces, HostNamespace{n.NSID, n.Name, counters(&n.Counters), latency(&n.Read), latency(&n.Write)})
	}
	return s
}

func rdmaStatus(t *rdma.Snapshot) RDMAStatus {
	s := RDMAStatus{
		Connections: t.Connections, Rejected: t.Rejected, MemoryUsed: t.MemoryUsed, LentMemory: t.LentMemory, MemoryLimit: t.MemoryLimit,
	}
	for i := range t.Groups {
		g := &t.Groups[i]
		s.LentBytes += g.LentBytes
		s.Groups = append(s.Groups, GroupStatus{
			Connections: len(g.Connections), Turns: g.Turns, Sleeps: g.Sleeps, Completions: g.Completions,
			Capsules: g.Capsules, BufferWaits: g.BufferWaits, ReadWaits: g.ReadWaits, SendWaits: g.SendWaits, SlotWaits: g.SlotWaits,
			BuffersFree: g.BuffersFree, BuffersSize: g.BuffersSize,
		})
	}
	return s
}

func counters(c *target.Counters) Counters {
	out := Counters{Ops: map[string]uint64{}, Bytes: map[string]uint64{}, Errors: c.Errors, MediaErrors: c.MediaErrors}
	for op := range target.NumOps {
		out.Ops[op.String()], out.Bytes[op.String()] = c.Ops[op], c.Bytes[op]
	}
	return out
}

func latency(h *target.Histogram) Latency {
	l := Latency{
		Count: h.Count, Sum: int64(h.Sum), Mean: int64(h.Mean()), Max: int64(h.Max),
		P50: int64(h.Percentile(50)), P99: int64(h.Percentile(99)), P999: int64(h.Percentile(99.9)),
	}
	seen := uint64(0)
	for i, n := range h.Buckets {
		if seen += n; n > 0 {
			l.Buckets = append(l.Buckets, Bucket{int64(target.BucketBound(i)), seen})
		}
	}
	return l
}

func processStatus() ProcessStatus {
	p := ProcessStatus{PID: os.Getpid(), Goroutines: runtime.NumGoroutine(), Registered: fabric.LiveMemory()}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		p.Files = len(fds) - 1 // without the one that reads the folder
	}
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		var size, resident uint64
		if _, err := fmt.Fscan(strings.NewReader(string(b)), &size, &resident); err == nil {
			p.RSS = resident * uint64(os.Getpagesize())
		}
	}
	return p
}
