//go:build lab

package raw

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/fabric/verbs"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

const (
	hostNQN   = nvme.NQN("nqn.2014-08.org.nvmexpress:uuid:6f3c0000-0000-4000-8000-00000000000a")
	nsid      = 1
	blockSize = 512
)

// rig is a raw host, its device and its time.
type rig struct {
	*testing.T
	ctx    context.Context
	host   *rdmatest.Host
	subsys nvme.NQN
}

func newRig(t *testing.T) *rig {
	t.Helper()
	at := os.Getenv("NVMF_RAW_TARGET")
	if at == "" {
		t.Skip("NVMF_RAW_TARGET is not set: this test runs in the lab's guest (lab/run raw)")
	}
	addr, err := netip.ParseAddrPort(at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	p, err := verbs.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	dev, err := p.DeviceFor(ctx, netip.Addr{}, addr.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	r := &rig{T: t, ctx: ctx, subsys: nvme.NQN(os.Getenv("NVMF_RAW_NQN"))}
	r.host = &rdmatest.Host{Device: dev, Target: addr, NQN: hostNQN, ID: nvme.HostID{15: 0x0A}}
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// dial connects a queue; it is closed at the end of the test.
func (r *rig) dial(o rdmatest.Options) *rdmatest.Queue {
	r.Helper()
	q, err := r.host.Dial(r.ctx, o)
	r.must(err)
	r.Cleanup(func() { q.Close() })
	return q
}

// admin connects and enables a controller.
func (r *rig) admin() *rdmatest.Session {
	r.Helper()
	s, err := r.host.Admin(r.ctx, r.subsys, rdmatest.Options{})
	r.must(err)
	r.Cleanup(func() { s.Close() })
	return s
}

// queue connects I/O queue 1 of the controller.
func (r *rig) queue(s *rdmatest.Session, o rdmatest.Options) *rdmatest.Queue {
	r.Helper()
	o.QID = 1
	q, err := s.Queue(r.ctx, o, rdmatest.ConnectParams{})
	r.must(err)
	r.Cleanup(func() { q.Close() })
	return q
}

// ended waits until the target has ended the queue.
func (r *rig) ended(q *rdmatest.Queue) {
	r.Helper()
	if err := q.WaitClosed(r.ctx); errors.Is(err, context.DeadlineExceeded) {
		r.Error("the queue lives on")
	}
}

// serves checks that a new host is served: reads, writes and sees what it wrote.
func (r *rig) serves() {
	r.Helper()
	s := r.admin()
	q := r.queue(s, rdmatest.Options{})
	want := bytes.Repeat([]byte{0xA5, 0x5A}, 4096)
	copy(q.Data(), want)
	r.must(q.Write(r.ctx, nsid, 64, 16, 0, len(want)))
	r.must(q.Read(r.ctx, nsid, 64, 16, 16384, len(want)))
	if !bytes.Equal(q.Data()[16384:][:len(want)], want) {
		r.Error("read back something else")
	}
	r.must(q.Close())
	r.must(s.Close())
}

// status checks a response against a status with DNR; More may be set.
func (r *rig) status(what string, got nvme.Status, want nvme.Status) {
	r.Helper()
	if got&^nvme.StatusMore != want {
		r.Errorf("%s: %v, want %v", what, got, want)
	}
}

// SGL descriptors as bytes: no check stands between a test and the wire.

func descriptor(addr uint64, length uint32, tail ...byte) []byte {
	d := make([]byte, 16)
	binary.LittleEndian.PutUint64(d, addr)
	binary.LittleEndian.PutUint32(d[8:], length)
	copy(d[16-len(tail):], tail)
	return d
}

func keyed(addr uint64, length, key uint32, subtype byte) []byte {
	d := descriptor(addr, length)
	binary.LittleEndian.PutUint32(d[11:], key)
	d[15] = 0x40 | subtype
	return d
}

// request is private data of that size.
func request(req nvme.CMRequest, size int) []byte {
	b := make([]byte, max(size, nvme.CMRequestSize))
	req.MarshalTo(b)
	return b[:size]
}
