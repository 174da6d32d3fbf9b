package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nvmf-go/nvmf/internal/daemon"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a daemon that answers what it is told to.
type fake struct {
	status *daemon.Status
	result *daemon.Result
	err    error
}

func (f *fake) Status(context.Context) (*daemon.Status, error) { return f.status, f.err }

func (f *fake) Reload(context.Context) (*daemon.Result, error) { return f.result, f.err }

func latency(count uint64, sum int64, buckets ...daemon.Bucket) daemon.Latency {
	return daemon.Latency{Count: count, Sum: sum, Buckets: buckets}
}

// some is a status with one of everything.
func some() *daemon.Status {
	counters := daemon.Counters{
		Ops: map[string]uint64{"read": 3, "write": 2, "other": 9}, Bytes: map[string]uint64{"read": 12288, "write": 1024}, Errors: 4, MediaErrors: 1,
	}
	read := latency(3, 9_000_000, daemon.Bucket{Below: 2048, Count: 1}, daemon.Bucket{Below: 1 << 20, Count: 2}, daemon.Bucket{Below: 9 << 20, Count: 3})
	return &daemon.Status{
		Version: "v1",
		Listeners: []daemon.ListenerStatus{
			{Name: "front", Address: "10.0.0.1:4420", Provider: "roce", State: daemon.Listening},
			{Name: "late", Address: "10.0.0.9:4420", State: daemon.Waiting},
		},
		Subsystems: []daemon.SubsystemStatus{{NQN: "nqn.a", Controllers: 1, Namespaces: []daemon.NamespaceStatus{
			{NSID: 1, Backend: "ram", Bytes: 1 << 20, Inflight: 2, Waiting: 1, Counters: counters, Read: read, Lent: latency(2, 5000, daemon.Bucket{Below: 4096, Count: 2})},
		}}},
		Controllers: []daemon.ControllerStatus{{ID: 1, Subsystem: "nqn.a"}, {ID: 2, Discovery: true}},
		Hosts: []daemon.HostStatus{{NQN: `nqn."h"`, Subsystem: "nqn.a", Controllers: 1, Counters: counters, Namespaces: []daemon.HostNamespace{
			{NSID: 1, Backend: "ram", Counters: counters, Read: read},
		}}},
		Caches: []daemon.CacheStatus{{
			Backend: "ram", Size: 1 << 20, Page: 4096, Memory: map[string]uint64{"pages": 900000, "door": 5}, Pages: 200, Used: 150,
			Hits: 70, Lent: 60, Misses: 20, Bypasses: 10, HitBytes: 286720, Fills: 40, Rejected: 3, Evicted: 30, NoPage: 1, Stale: 2,
			Invalidations: 11, Flushed: 4, Ahead: 16, AheadUsed: 12,
			Hit: daemon.MeanLatency{Count: 2, Sum: 600, Mean: 300}, Miss: daemon.MeanLatency{Count: 4, Sum: 400_000, Mean: 100_000},
		}},
		RDMA: daemon.RDMAStatus{Connections: 2, Rejected: 5, MemoryUsed: 100, LentMemory: 900000, LentBytes: 286000, MemoryLimit: 200, Groups: []daemon.GroupStatus{
			{Turns: 7, Sleeps: 6, BufferWaits: 1, ReadWaits: 2, SendWaits: 3, SlotWaits: 4, BuffersFree: 50},
		}},
		Discovery: 8, Refusals: 3,
	}
}

// serve is a server on a socket, of a fake.
func serve(t *testing.T, f *fake, address string) (s *Server, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "run", "socket")
	s, err := Listen(socket, address)
	if err != nil {
		t.Fatal(err)
	}
	s.Serve(f)
	t.Cleanup(func() {
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return s, socket
}

func newClient(t *testing.T, socket string) *Client {
	c := NewClient(socket)
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

func TestAskStatus(t *testing.T) {
	f := &fake{status: some()}
	_, socket := serve(t, f, "")
	c := newClient(t, socket)
	st, err := c.Status(t.Context())
	if err != nil || st.Version != "v1" || st.Hosts[0].Namespaces[0].Read.Buckets[1] != (daemon.Bucket{Below: 1 << 20, Count: 2}) {
		t.Errorf("%+v, %v", st, err)
	}
	f.err = errors.New("a poll group does not answer")
	if _, err := c.Status(t.Context()); err == nil || err.Error() != socket+": 503 Service Unavailable: a poll group does not answer" {
		t.Errorf("%v", err)
	}
}

func TestAskReload(t *testing.T) {
	f := &fake{result: &daemon.Result{Changes: []string{"one", "two"}, Errors: []error{errors.New("three")}, Restart: []string{"poll"}}}
	_, socket := serve(t, f, "")
	c := newClient(t, socket)
	r, err := c.Reload(t.Context())
	if err != nil || !slices.Equal(r.Changes, []string{"one", "two"}) || !slices.Equal(r.Errors, []string{"three"}) || !slices.Equal(r.Restart, []string{"poll"}) {
		t.Errorf("%+v, %v", r, err)
	}
	f.err = errors.New("nothing changed: x.yaml:1:1: mistake")
	if r, err = c.Reload(t.Context()); err != nil || len(r.Changes) != 0 || !slices.Equal(r.Errors, []string{f.err.Error()}) {
		t.Errorf("%+v, %v", r, err)
	}
	if err := c.ask(t.Context(), http.MethodGet, "/v1/reload", r); err == nil {
		t.Error("a GET has reloaded")
	}
}

func TestNoDaemon(t *testing.T) {
	_, err := newClient(t, "/none.sock").Status(t.Context())
	if !errors.Is(err, os.ErrNotExist) || err.Error() != "no daemon answers on /none.sock: dial unix /none.sock: connect: no such file or directory" {
		t.Errorf("%v", err)
	}
}

func TestSocket(t *testing.T) {
	_, socket := serve(t, &fake{}, "")
	if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	if _, err := Listen(socket, ""); err == nil || !strings.Contains(err.Error(), "another nvmf-target answers there") {
		t.Errorf("a second server: %v", err)
	}

	stale := filepath.Join(t.TempDir(), "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := Listen(stale, "")
	if err != nil {
		t.Fatalf("over a socket of the dead: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}

	plain := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plain, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(plain, ""); err == nil || err.Error() != "control socket: "+plain+": exists and is no socket" {
		t.Errorf("over a file: %v", err)
	}
	if _, err := Listen(filepath.Join(plain, "below"), ""); err == nil {
		t.Error("below a file")
	}
	none, err := Listen("none", "")
	if err != nil || none.socket != nil {
		t.Errorf("none: %v", err)
	}
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket := filepath.Join(t.TempDir(), "socket")
	if _, err := Listen(socket, l.Addr().String()); err == nil || !strings.HasPrefix(err.Error(), "metrics address: ") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
}

// get reads a page of the address.
func get(t *testing.T, s *Server, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%v%s", s.http.Addr(), path), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v\n%s", path, resp.Status, err, b)
	}
	return string(b)
}

// Every part of a status is a metric.
func TestMetrics(t *testing.T) {
	f := &fake{status: some()}
	s, _ := serve(t, f, "127.0.0.1:0")
	text := get(t, s, "/metrics")
	const ns, pair = `backend="ram",nsid="1",`, `backend="ram",host="nqn.\"h\"",nsid="1",`
	for _, want := range []string{
		`nvmf_up 1`, `nvmf_build_info{version="v1"} 1`,
		`nvmf_listener_up{address="10.0.0.1:4420",listener="front",provider="roce"} 1`,
		`nvmf_listener_up{address="10.0.0.9:4420",listener="late",provider=""} 0`,
		`nvmf_controllers{subsystem="nqn.a"} 1`, `nvmf_discovery_controllers 1`, `nvmf_discovery_generation 8`, `nvmf_connect_refusals_total 3`,
		`nvmf_namespace_size_bytes{` + ns + `subsystem="nqn.a"} 1.048576e+06`,
		`nvmf_namespace_inflight{` + ns + `subsystem="nqn.a"} 2`, `nvmf_namespace_waiting{` + ns + `subsystem="nqn.a"} 1`,
		`nvmf_namespace_commands_total{backend="ram",nsid="1",op="read",subsystem="nqn.a"} 3`,
		`nvmf_namespace_bytes_total{backend="ram",nsid="1",op="write",subsystem="nqn.a"} 1024`,
		`nvmf_namespace_errors_total{` + ns + `subsystem="nqn.a"} 4`, `nvmf_namespace_media_errors_total{` + ns + `subsystem="nqn.a"} 1`,
		`nvmf_namespace_latency_seconds_bucket{` + ns + `op="read",subsystem="nqn.a",le="4.096e-06"} 1`,
		`nvmf_namespace_latency_seconds_bucket{` + ns + `op="read",subsystem="nqn.a",le="0.001048576"} 2`,
		`nvmf_namespace_latency_seconds_bucket{` + ns + `op="read",subsystem="nqn.a",le="0.008388608"} 2`,
		`nvmf_namespace_latency_seconds_bucket{` + ns + `op="read",subsystem="nqn.a",le="0.016777216"} 3`,
		`nvmf_namespace_latency_seconds_bucket{` + ns + `op="read",subsystem="nqn.a",le="+Inf"} 3`,
		`nvmf_namespace_latency_seconds_sum{` + ns + `op="read",subsystem="nqn.a"} 0.009`,
		`nvmf_namespace_latency_seconds_count{` + ns + `op="write",subsystem="nqn.a"} 0`,
		`nvmf_namespace_lent_latency_seconds_bucket{` + ns + `subsystem="nqn.a",le="4.096e-06"} 2`,
		`nvmf_namespace_lent_latency_seconds_sum{` + ns + `subsystem="nqn.a"} 5e-06`,
		`nvmf_cache_reads_total{backend="ram",result="hit"} 70`, `nvmf_cache_reads_total{backend="ram",result="miss"} 20`,
		`nvmf_cache_reads_total{backend="ram",result="bypass"} 10`, `nvmf_cache_hit_bytes_total{backend="ram"} 286720`,
		`nvmf_cache_lent_total{backend="ram"} 60`, `nvmf_cache_fills_total{backend="ram"} 40`, `nvmf_cache_rejected_total{backend="ram"} 3`,
		`nvmf_cache_evictions_total{backend="ram"} 30`, `nvmf_cache_no_page_total{backend="ram"} 1`, `nvmf_cache_stale_total{backend="ram"} 2`,
		`nvmf_cache_invalidations_total{backend="ram"} 11`, `nvmf_cache_flushes_total{backend="ram"} 4`,
		`nvmf_cache_read_ahead_pages_total{backend="ram"} 16`, `nvmf_cache_read_ahead_used_pages_total{backend="ram"} 12`,
		`nvmf_cache_pages{backend="ram"} 200`, `nvmf_cache_used_pages{backend="ram"} 150`, `nvmf_cache_size_bytes{backend="ram"} 1.048576e+06`,
		`nvmf_cache_memory_bytes{backend="ram",part="pages"} 900000`, `nvmf_cache_memory_bytes{backend="ram",part="door"} 5`,
		`nvmf_cache_latency_seconds_sum{backend="ram",result="hit"} 6e-07`, `nvmf_cache_latency_seconds_count{backend="ram",result="hit"} 2`,
		`nvmf_cache_latency_seconds_sum{backend="ram",result="miss"} 0.0004`,
		`nvmf_rdma_lent_registered_bytes 900000`, `nvmf_rdma_lent_bytes_total 286000`,
		`nvmf_host_controllers{host="nqn.\"h\"",subsystem="nqn.a"} 1`, `nvmf_host_errors_total{host="nqn.\"h\"",subsystem="nqn.a"} 4`,
		`nvmf_host_commands_total{host="nqn.\"h\"",op="other",subsystem="nqn.a"} 9`,
		`nvmf_host_bytes_total{host="nqn.\"h\"",op="read",subsystem="nqn.a"} 12288`,
		`nvmf_host_namespace_commands_total{` + pair + `op="write",subsystem="nqn.a"} 2`,
		`nvmf_host_namespace_bytes_total{` + pair + `op="read",subsystem="nqn.a"} 12288`,
		`nvmf_host_namespace_errors_total{` + pair + `subsystem="nqn.a"} 4`,
		`nvmf_host_namespace_latency_seconds_bucket{` + pair + `op="read",subsystem="nqn.a",le="0.001048576"} 2`,
		`nvmf_rdma_connections 2`, `nvmf_rdma_rejected_total 5`, `nvmf_rdma_registered_bytes 100`, `nvmf_rdma_memory_limit_bytes 200`,
		`nvmf_rdma_turns_total{group="0"} 7`, `nvmf_rdma_sleeps_total{group="0"} 6`, `nvmf_rdma_buffers_free_bytes{group="0"} 50`,
		`nvmf_rdma_waits_total{for="buffer",group="0"} 1`, `nvmf_rdma_waits_total{for="slot",group="0"} 4`,
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if !regexp.MustCompile(`(?m)^go_goroutines [1-9]`).MatchString(text) || !strings.Contains(text, "process_open_fds") {
		t.Error("nothing of the process")
	}
	if t.Failed() {
		t.Log(text)
	}

	f.err = errors.New("a poll group does not answer")
	if text := get(t, s, "/metrics"); !strings.Contains(text, "\nnvmf_up 0\n") || strings.Contains(text, "nvmf_listener_up") {
		t.Errorf("of a daemon that does not answer:\n%s", text)
	}
	if text := get(t, s, "/debug/pprof/goroutine?debug=1"); !strings.Contains(text, "goroutine profile") {
		t.Errorf("profile:\n%.200s", text)
	}
}
