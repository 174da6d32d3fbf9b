package target

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// Every latency lies in the bucket whose bounds are around it.
func TestHistogramBuckets(t *testing.T) {
	last := -1
	for _, ns := range []int64{-5, 0, 1, 255, 256, 2047, 2048, 2303, 2304, 4095, 4096, 100_000, 1_000_000, 1e9, 60e9, 1 << 36, 1 << 62} {
		i := bucketOf(ns)
		if i < last {
			t.Errorf("%d ns: bucket %d after %d", ns, i, last)
		}
		last = i
		if i == histBuckets-1 {
			continue
		}
		low := time.Duration(0)
		if i > 0 {
			low = BucketBound(i - 1)
		}
		if d := time.Duration(max(ns, 0)); d < low || d >= BucketBound(i) {
			t.Errorf("%v in bucket %d of %v to %v", d, i, low, BucketBound(i))
		}
	}
	for i := 1; i < histBuckets; i++ {
		if a, b := BucketBound(i-1), BucketBound(i); b <= a || bucketOf(int64(a)) != i {
			t.Fatalf("bucket %d is from %v to %v, and %v is in %d", i, a, b, a, bucketOf(int64(a)))
		}
	}
}

func TestHistogramPercentiles(t *testing.T) {
	var h, other Histogram
	if h.Percentile(99) != 0 || h.Mean() != 0 {
		t.Error("an empty histogram has latencies")
	}
	for i := range 1000 {
		h.add(int64(i+1) * 1000) // 1 to 1000 us
	}
	for _, c := range []struct {
		p    float64
		want time.Duration
	}{{0, time.Microsecond}, {50, 500 * time.Microsecond}, {99, 990 * time.Microsecond}, {100, 1000 * time.Microsecond}} {
		if got := h.Percentile(c.p); got < c.want || got > c.want+c.want/7+histGrain {
			t.Errorf("p%v: %v, want about %v", c.p, got, c.want)
		}
	}
	if h.Mean() != 500500*time.Nanosecond || h.Max != time.Millisecond {
		t.Errorf("mean %v, max %v", h.Mean(), h.Max)
	}
	other.Merge(&h)
	other.Merge(&h)
	if other.Count != 2000 || other.Percentile(50) != h.Percentile(50) || other.Max != h.Max {
		t.Error("merged wrongly")
	}
}

const histGrain = 1 << histUnit

func TestSnapshot(t *testing.T) {
	r, admin, ios := standard(t, 2)
	data := make([]byte, 4096)
	r.ok(ios[0], blockCmd(nvme.CmdWrite, 1, 0, 8, 0), data, 4096)
	r.ok(ios[1], blockCmd(nvme.CmdRead, 1, 0, 8, 0), nil, 4096)
	r.ok(ios[1], blockCmd(nvme.CmdRead, 1, 8, 4, 0), nil, 2048)
	if f := r.do(ios[1], blockCmd(nvme.CmdRead, 1, 1<<20, 1, 0), nil, 512); f.Status.OK() {
		t.Fatal("read beyond the end")
	}
	r.devices["one"].hold(true)
	r.do(ios[0], blockCmd(nvme.CmdRead, 1, 0, 1, 0), nil, 512)
	s := r.snapshot()

	if len(s.Ports) != 1 || s.Ports[0].Controllers != 1 || s.Ports[0].Name != "front" {
		t.Errorf("ports %+v", s.Ports)
	}
	ns := s.Subsystems[0].Namespaces[0]
	if ns.NSID != 1 || ns.Blocks != 1024 || ns.Inflight != 1 || ns.Read.Count != 2 || ns.Write.Count != 1 || ns.UUID.IsZero() {
		t.Errorf("namespace %+v", ns)
	}
	want := Counters{Errors: 1}
	want.Ops[OpRead], want.Ops[OpWrite] = 3, 1
	want.Bytes[OpRead], want.Bytes[OpWrite] = 6144, 4096
	if ns.Counters != want {
		t.Errorf("namespace counters %+v", ns.Counters)
	}
	c := s.Controllers[0]
	if c.ID != admin.q.Controller().ID() || c.Host != hostOne || c.KeepAlive != 5*time.Second || !c.Ready || c.Errors != 1 || len(c.Queues) != 3 {
		t.Errorf("controller %+v", c)
	}
	if q := c.Queues[1]; q.ID != 1 || q.Depth != 128 || q.Executing != 1 || q.Counters.Ops[OpWrite] != 1 {
		t.Errorf("queue %+v", q)
	}
	h := s.Hosts[0]
	if h.NQN != hostOne || h.Controllers != 1 || h.Counters.Bytes != want.Bytes || h.Counters.Errors != 1 {
		t.Errorf("host %+v", h)
	}
	if n := h.Namespaces; len(n) != 1 || n[0].NSID != 1 || n[0].Name != ns.Name || n[0].Counters != want ||
		n[0].Read.Count != 2 || n[0].Write.Count != 1 {
		t.Errorf("host's namespaces %+v", n)
	}
	r.devices["one"].hold(false)
	r.step()
}

// snapshot collects while the groups take turns.
func (r *rig) snapshot() *Snapshot {
	r.tb.Helper()
	done := make(chan *Snapshot, 1)
	go func() {
		s, err := r.t.Snapshot(context.Background())
		if err != nil {
			r.tb.Error(err)
		}
		done <- s
	}()
	for {
		select {
		case s := <-done:
			return s
		case <-time.After(time.Millisecond):
			r.step()
		}
	}
}

// What a host did is not forgotten when its queues close, nor when the
// namespace or the group goes.
func TestCountersNeverDecrease(t *testing.T) {
	r, admin, ios := standard(t, 2)
	for _, l := range ios {
		r.ok(l, blockCmd(nvme.CmdRead, 1, 0, 8, 0), nil, 4096)
	}
	check := func(when string) {
		t.Helper()
		s := r.snapshot()
		if len(s.Hosts) != 1 || s.Hosts[0].Counters.Bytes[OpRead] != 8192 {
			t.Errorf("%s: hosts %+v", when, s.Hosts)
		}
		done := make(chan uint64, 1)
		r.t.gather(sums, func(sum *groupReport) { done <- sum.subsystem(r.t.subs[nqnA]).Bytes[OpRead] })
		r.step()
		if n := <-done; n != 8192 {
			t.Errorf("%s: the subsystem counts %d bytes", when, n)
		}
	}
	check("at first")
	ios[0].Disconnect(ErrClosed)
	r.step()
	check("a queue closed")
	go func() { r.must(r.t.Subsystem(nqnA).RemoveNamespace(context.Background(), 1)) }()
	for r.devices["one"].openQueues() > 0 {
		time.Sleep(time.Millisecond)
		r.step()
	}
	check("the namespace removed")
	admin.Disconnect(ErrClosed)
	ios[1].Disconnect(ErrClosed)
	r.step()
	check("the host gone")
	r.groups[1].end()
	r.groups[1].step()
	r.must(r.groups[1].g.Close())
	check("a group ended")
	if s := r.snapshot(); s.Hosts[0].Controllers != 0 || len(s.Controllers) != 0 {
		t.Errorf("%+v", s.Hosts)
	}
}

// What two hosts do to two namespaces is told apart, and stays when one goes.
func TestHostsByNamespace(t *testing.T) {
	r, _, _ := standard(t, 0)
	two := newFakeDevice(512, 1024)
	r.devices["two"] = two
	r.addNamespace(r.t.Subsystem(nqnA), 2, two)
	for i, host := range []nvme.NQN{hostOne, hostTwo} {
		admin, ios := r.sessionOf(r.ports["front"], string(host), host, 1)
		for k, blocks := range []int{i + 1, i + 2} {
			r.ok(ios[0], blockCmd(nvme.CmdRead, uint32(k+1), 0, uint32(blocks), 0), nil, 512*blocks)
		}
		if i == 0 {
			admin.Disconnect(ErrClosed)
			ios[0].Disconnect(ErrClosed)
			r.step()
		}
	}
	check := func(when string, want ...uint64) {
		t.Helper()
		var got []uint64
		for _, h := range r.snapshot().Hosts {
			for _, n := range h.Namespaces {
				got = append(got, n.Counters.Bytes[OpRead]/512)
				if n.Read.Count != 1 {
					t.Errorf("%s: %s namespace %d: %d latencies", when, h.NQN, n.NSID, n.Read.Count)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: blocks read %v, want %v", when, got, want)
		}
	}
	check("at first", 1, 2, 2, 3)
	go func() { r.must(r.t.Subsystem(nqnA).RemoveNamespace(context.Background(), 1)) }()
	for r.devices["one"].openQueues() > 0 {
		time.Sleep(time.Millisecond)
		r.step()
	}
	check("namespace 1 removed", 2, 3)
}

// Hosts that invent names cannot make the target remember all of them.
func TestHostNamesAreBounded(t *testing.T) {
	s := newGroupStats()
	for i := range 2 * maxHostKeys {
		s.host(hostKey{nvme.UUIDNQN(nvme.UUID{byte(i), byte(i >> 8)}), nil}).Errors++
	}
	if n := len(s.hosts); n > maxHostKeys+1 {
		t.Errorf("%d hosts are remembered", n)
	}
	if n := s.hosts[hostKey{}].Errors; n != maxHostKeys {
		t.Errorf("%d are counted without a name", n)
	}
	for i := range 2 * maxHostKeys {
		s.pair(pairKey{nvme.UUIDNQN(nvme.UUID{byte(i), byte(i >> 8)}), nil}).closed.Errors++
	}
	if p := s.pairs[pairKey{}]; len(s.pairs) > maxHostKeys+1 || p.closed.Errors != maxHostKeys || p.key != (pairKey{}) {
		t.Errorf("%d pairs are remembered, %d are counted without a name", len(s.pairs), p.closed.Errors)
	}
}
