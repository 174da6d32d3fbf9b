package iwarp

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
	"github.com/nvmf-go/nvmf/target/rdma"
)

const (
	subsystem nvme.NQN = "nqn.2026-11.io.nvmf:iwarp"
	hostNQN   nvme.NQN = "nqn.2014-08.org.nvmexpress:uuid:0f3c6a52-41d7-4c0e-9d1b-8a5be1c2f001"
)

// serve runs a target with 16 MiB of memory behind it.
func serve(t *testing.T, p *Provider) netip.AddrPort {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	core, err := target.NewTarget(target.Config{Log: log})
	must(err)
	sub, err := core.AddSubsystem(target.SubsystemConfig{NQN: subsystem, Hosts: target.AnyHost()})
	must(err)
	disk, err := mem.Open(mem.Options{Size: 16 << 20, BlockSize: 512})
	must(err)
	_, err = sub.AddNamespace(target.NamespaceConfig{NSID: 1, Device: disk})
	must(err)
	cfg := rdma.DefaultConfig()
	cfg.Log, cfg.PollGroups, cfg.Buffers = log, 1, 16<<20
	tr, err := rdma.New(core, cfg)
	must(err)
	addr := netip.MustParseAddrPort("127.0.0.1:0")
	port := &target.Port{ID: 1, Name: "front", Type: nvme.TransportRDMA, Addr: addr, Provider: p.Name(), Caps: tr.Caps()}
	must(core.AddPort(port))
	l, err := tr.Listen(context.Background(), p, addr, port)
	must(err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		must(core.Close(ctx))
		must(tr.Close(ctx))
		must(disk.Close())
	})
	return l.Addr()
}

// A host and a target of this project: I/O of every size, several at a time, in
// each way of framing.
func TestNVMe(t *testing.T) {
	for name, o := range map[string]Options{"default": {}, "CRC": {CRC: CRCOn}, "segments": {MaxFPDU: 1448}, "CRC and segments": {CRC: CRCOn, MaxFPDU: 1448}} {
		t.Run(name, func(t *testing.T) {
			p := newProvider(t, o)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			c, err := initiator.Connect(ctx, p, initiator.Config{Addr: serve(t, p), Subsystem: subsystem, HostNQN: hostNQN, IOQueues: 2, QueueDepth: 32})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			n, err := c.Namespace(ctx, 1)
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for i, size := range []int{512, 4096, 65536, 1 << 20, 3<<20 + 512} {
				wg.Go(func() {
					out, in := bytes.Repeat([]byte{byte(i + 1), 7, byte(size >> 9)}, size/3+1)[:size], make([]byte, size)
					for range 5 {
						clear(in)
						if _, err := n.WriteAt(out, int64(i)*3<<20); err != nil {
							t.Errorf("write of %d bytes: %v", size, err)
							return
						}
						if _, err := n.ReadAt(in, int64(i)*3<<20); err != nil || !bytes.Equal(in, out) {
							t.Errorf("read of %d bytes: %v, or not what was written", size, err)
							return
						}
					}
				})
			}
			wg.Wait()
			if err := c.Reset(ctx); err != nil {
				t.Error(err)
			}
			if err := n.Flush(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
