package admin

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nvmf-go/nvmf/internal/daemon"
)

// collector turns a status into metrics at each scrape: the data path counts
// for itself and knows nothing of metrics.
type collector struct{ c Control }

func newCollector(c Control) prometheus.Collector { return collector{c} }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("nvmf_"+name, help, labels, nil)
}

var (
	scrapeOK     = desc("up", "1 when every poll group answered the scrape.")
	buildInfo    = desc("build_info", "The running build.", "version")
	listenerUp   = desc("listener_up", "1 when the listener takes connections.", "listener", "address", "provider")
	controllers  = desc("controllers", "Controllers of a subsystem.", "subsystem")
	discControls = desc("discovery_controllers", "Discovery controllers.")
	nsBytes      = desc("namespace_size_bytes", "Size.", "subsystem", "nsid", "backend")
	nsInflight   = desc("namespace_inflight", "Operations in the backend.", "subsystem", "nsid", "backend")
	nsWaiting    = desc("namespace_waiting", "Commands that wait for backend depth.", "subsystem", "nsid", "backend")
	nsOps        = desc("namespace_commands_total", "Commands that ended.", "subsystem", "nsid", "backend", "op")
	nsData       = desc("namespace_bytes_total", "Bytes of blocks.", "subsystem", "nsid", "backend", "op")
	nsErrors     = desc("namespace_errors_total", "Commands that failed.", "subsystem", "nsid", "backend")
	nsMedia      = desc("namespace_media_errors_total", "Commands that the medium failed.", "subsystem", "nsid", "backend")
	nsLatency    = desc("namespace_latency_seconds", "From the command's arrival to the end of the backend's work.", "subsystem", "nsid", "backend", "op")
	nsLent       = desc("namespace_lent_latency_seconds", "As nvmf_namespace_latency_seconds, of reads that were answered from the cache's own memory.", "subsystem", "nsid", "backend")
	hostOps      = desc("host_commands_total", "Commands of a host that ended.", "host", "subsystem", "op")
	hostData     = desc("host_bytes_total", "Bytes of blocks of a host.", "host", "subsystem", "op")
	hostErrors   = desc("host_errors_total", "Commands of a host that failed.", "host", "subsystem")
	pairOps      = desc("host_namespace_commands_total", "Commands of a host on a namespace that ended.", "host", "subsystem", "nsid", "backend", "op")
	pairData     = desc("host_namespace_bytes_total", "Bytes of blocks of a host and a namespace.", "host", "subsystem", "nsid", "backend", "op")
	pairErrors   = desc("host_namespace_errors_total", "Commands of a host on a namespace that failed.", "host", "subsystem", "nsid", "backend")
	pairLatency  = desc("host_namespace_latency_seconds", "As nvmf_namespace_latency_seconds, of one host.", "host", "subsystem", "nsid", "backend", "op")
	hostControls = desc("host_controllers", "Controllers of a host.", "host", "subsystem")
	refusals     = desc("connect_refusals_total", "Connect commands refused.")
	discGen      = desc("discovery_generation", "Generation counter of the discovery log.")
	rdmaConns    = desc("rdma_connections", "Queue pairs connected or being set up.")
	rdmaRejected = desc("rdma_rejected_total", "Connection requests rejected.")
	rdmaMemory   = desc("rdma_registered_bytes", "Memory registered with devices.")
	rdmaLent     = desc("rdma_lent_registered_bytes", "Pages of caches that are registered with devices, beside nvmf_rdma_registered_bytes.")
	rdmaLentData = desc("rdma_lent_bytes_total", "Bytes sent straight from pages of caches.")
	rdmaLimit    = desc("rdma_memory_limit_bytes", "Bound of nvmf_rdma_registered_bytes.")
	groupWaits   = desc("rdma_waits_total", "Commands, or turns, that waited for a resource.", "group", "for")
	groupTurns   = desc("rdma_turns_total", "Turns of the poll group's loop.", "group")
	groupSleeps  = desc("rdma_sleeps_total", "Times the poll group slept.", "group")
	groupFree    = desc("rdma_buffers_free_bytes", "Data buffers free.", "group")
)

// Describe sends nothing: which metrics there are depends on the configuration.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect asks the daemon.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	e := emitter{ch}
	st, err := c.c.Status(ctx)
	if err != nil {
		e.gauge(scrapeOK, 0)
		return
	}
	e.gauge(scrapeOK, 1)
	e.gauge(buildInfo, 1, st.Version)
	for _, l := range st.Listeners {
		e.gauge(listenerUp, truth(l.State == daemon.Listening), l.Name, l.Address, l.Provider)
	}
	e.controllers(st)
	for _, s := range st.Subsystems {
		for i := range s.Namespaces {
			e.namespace(s.NQN, &s.Namespaces[i])
		}
	}
	for i := range st.Hosts {
		e.host(&st.Hosts[i])
	}
	for i := range st.Caches {
		e.cache(&st.Caches[i])
	}
	e.count(refusals, st.Refusals)
	e.gauge(discGen, float64(st.Discovery))
	e.rdma(&st.RDMA)
}

type emitter struct{ ch chan<- prometheus.Metric }

func (e emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (e emitter) count(d *prometheus.Desc, v uint64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (e emitter) controllers(st *daemon.Status) {
	discovery := 0
	for _, c := range st.Controllers {
		if c.Discovery {
			discovery++
		}
	}
	e.gauge(discControls, float64(discovery))
	for _, s := range st.Subsystems {
		e.gauge(controllers, float64(s.Controllers), s.NQN)
	}
}

func (e emitter) namespace(nqn string, n *daemon.NamespaceStatus) {
	id := []string{nqn, decimal(n.NSID), n.Backend}
	e.gauge(nsBytes, float64(n.Bytes), id...)
	e.gauge(nsInflight, float64(n.Inflight), id...)
	e.gauge(nsWaiting, float64(n.Waiting), id...)
	e.count(nsErrors, n.Counters.Errors, id...)
	e.count(nsMedia, n.Counters.MediaErrors, id...)
	e.ops(&n.Counters, nsOps, nsData, id...)
	e.latency(nsLatency, &n.Read, &n.Write, id...)
	if n.Lent.Count > 0 {
		e.histogram(nsLent, &n.Lent, id...)
	}
}

func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func (e emitter) ops(c *daemon.Counters, ops, data *prometheus.Desc, id ...string) {
	for op, n := range c.Ops {
		e.count(ops, n, append(id[:len(id):len(id)], op)...)
		if b := c.Bytes[op]; b > 0 || op == "read" || op == "write" {
			e.count(data, b, append(id[:len(id):len(id)], op)...)
		}
	}
}

// latencyBounds are the upper bounds of the buckets: powers of two of 4 us to
// 17 s, which are bounds of the daemon's own buckets too.
var latencyBounds = func() (bounds []time.Duration) {
	for d := time.Duration(1 << 12); d <= 1<<34; d *= 2 {
		bounds = append(bounds, d)
	}
	return bounds
}()

// latency adds the label op to the labels.
func (e emitter) latency(d *prometheus.Desc, read, write *daemon.Latency, labels ...string) {
	e.histogram(d, read, append(labels[:len(labels):len(labels)], "read")...)
	e.histogram(d, write, append(labels[:len(labels):len(labels)], "write")...)
}

func (e emitter) histogram(d *prometheus.Desc, l *daemon.Latency, labels ...string) {
	buckets := make(map[float64]uint64, len(latencyBounds))
	seen, rest := uint64(0), l.Buckets
	for _, bound := range latencyBounds {
		for len(rest) > 0 && rest[0].Below <= int64(bound) {
			seen, rest = rest[0].Count, rest[1:]
		}
		buckets[bound.Seconds()] = seen
	}
	e.ch <- prometheus.MustNewConstHistogram(d, l.Count, time.Duration(l.Sum).Seconds(), buckets, labels...)
}

func (e emitter) host(h *daemon.HostStatus) {
	e.gauge(hostControls, float64(h.Controllers), h.NQN, h.Subsystem)
	e.count(hostErrors, h.Counters.Errors, h.NQN, h.Subsystem)
	e.ops(&h.Counters, hostOps, hostData, h.NQN, h.Subsystem)
	for i := range h.Namespaces {
		n := &h.Namespaces[i]
		id := []string{h.NQN, h.Subsystem, decimal(n.NSID), n.Backend}
		e.count(pairErrors, n.Counters.Errors, id...)
		e.ops(&n.Counters, pairOps, pairData, id...)
		e.latency(pairLatency, &n.Read, &n.Write, id...)
	}
}

func (e emitter) rdma(r *daemon.RDMAStatus) {
	e.gauge(rdmaConns, float64(r.Connections))
	e.count(rdmaRejected, r.Rejected)
	e.gauge(rdmaMemory, float64(r.MemoryUsed))
	e.gauge(rdmaLent, float64(r.LentMemory))
	e.count(rdmaLentData, r.LentBytes)
	e.gauge(rdmaLimit, float64(r.MemoryLimit))
	for i, g := range r.Groups {
		id := strconv.Itoa(i)
		e.count(groupTurns, g.Turns, id)
		e.count(groupSleeps, g.Sleeps, id)
		e.gauge(groupFree, float64(g.BuffersFree), id)
		for what, n := range map[string]uint64{"buffer": g.BufferWaits, "read": g.ReadWaits, "send": g.SendWaits, "slot": g.SlotWaits} {
			e.count(groupWaits, n, id, what)
		}
	}
}
