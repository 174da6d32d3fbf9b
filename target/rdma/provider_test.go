package rdma

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/roce"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// Providers that put packets on a wire serve the same session as the one in
// memory: connect, write in every way, read back, a bad capsule, disconnect.
func TestOverSoftRNIC(t *testing.T) {
	for _, c := range []struct {
		name string
		open func(t *testing.T) (fabric.Provider, fabric.Provider, [2]netip.Addr)
	}{
		{"roce", openRoCE},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t, envOptions{open: func() (fabric.Provider, fabric.Provider, [2]netip.Addr) { return c.open(t) }})
			s := e.admin()
			q := e.queueOf(s, rdmatest.Options{DataSize: 4 << 20}, rdmatest.ConnectParams{InCapsule: true})
			for _, n := range []int{1, 5, 16} {
				checkList(e, q, n, 64<<10)
			}
			for i, n := range []int{512, 4096, 1 << 20} {
				fill(q.Data()[:n], byte(i))
				e.must(q.Write(e.ctx, memNS, 8, uint32(n/blockLen), 0, n))
				if n <= 4096 {
					e.must(q.WriteInCapsule(e.ctx, memNS, 8, uint32(n/blockLen), q.Data()[:n]))
				}
				e.must(q.Read(e.ctx, memNS, 8, uint32(n/blockLen), 2<<20, n))
				if !bytes.Equal(q.Data()[:n], q.Data()[2<<20:2<<20+n]) {
					t.Errorf("%d bytes: not what was written", n)
				}
			}
			if _, err := e.host.Dial(e.ctx, rdmatest.Options{QID: 999}); rdmatest.RejectStatus(err) != nvme.CMInvalidQID {
				t.Errorf("queue 999: %v", err)
			}
			bad := e.queueOf(s, rdmatest.Options{QID: 2}, rdmatest.ConnectParams{})
			e.must(bad.Send(make([]byte, 20)))
			if err := bad.WaitClosed(e.ctx); e.ctx.Err() != nil {
				t.Error(err)
			}
			if sum := e.snapshot(); sum.sum().Stale != 0 {
				t.Errorf("%+v", sum.sum())
			}
		})
	}
}

func openRoCE(t *testing.T) (target, host fabric.Provider, addrs [2]netip.Addr) {
	t.Helper()
	a, err := roce.New(roce.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := roce.New(roce.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return a, b, [2]netip.Addr{netip.MustParseAddr("127.44.20.1"), netip.MustParseAddr("127.44.20.2")}
}
