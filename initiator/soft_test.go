package initiator

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/mem"
	"github.com/nvmf-go/nvmf/backend/null"
	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/fabric/soft/iwarp"
	"github.com/nvmf-go/nvmf/fabric/soft/roce"
	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target"
	"github.com/nvmf-go/nvmf/target/rdma"
)

// wires are the software RNICs, host and target on loopback.
var wires = []struct {
	name string
	open func() (fabric.Provider, error)
}{
	{"roce", func() (fabric.Provider, error) {
		p, err := roce.New(roce.Options{Port: uint16(20000 + os.Getpid()%20000)})
		if err != nil {
			return nil, err
		}
		return p, nil
	}},
	{"iwarp", func() (fabric.Provider, error) {
		p, err := iwarp.New(iwarp.Options{})
		if err != nil {
			return nil, err
		}
		return p, nil
	}},
}

// softRig serves a memory and a null namespace on loopback and returns a Config
// for it.
func softRig(t testing.TB, p fabric.Provider) Config {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	log := &logBuffer{}
	core, err := target.NewTarget(target.Config{Log: log.logger()})
	must(err)
	sub, err := core.AddSubsystem(target.SubsystemConfig{NQN: testNQN, Hosts: target.AnyHost()})
	must(err)
	md, err := mem.Open(mem.Options{Size: memSize, BlockSize: memBlock})
	must(err)
	nd, err := null.Open(null.Options{Size: 1 << 30, SkipReads: true})
	must(err)
	for i, d := range []backend.Device{md, nd} {
		_, err = sub.AddNamespace(target.NamespaceConfig{NSID: uint32(i + 1), Device: d})
		must(err)
	}
	cfg := rdma.DefaultConfig()
	cfg.Log, cfg.PollGroups, cfg.Buffers = log.logger(), 1, 64<<20
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
		must(tr.Close(ctx))
		must(core.Close(ctx))
		must(md.Close())
		must(nd.Close())
		must(p.Close())
		if t.Failed() && testing.Verbose() {
			t.Log(log.b.String())
		}
	})
	return Config{Addr: l.Addr(), Subsystem: testNQN, HostNQN: hostNQN, IOQueues: 2, QueueDepth: 64, ReplayDelay: -1}
}

// The same host over real sockets.
func TestWires(t *testing.T) {
	for _, w := range wires {
		t.Run(w.name, func(t *testing.T) {
			p, err := w.open()
			if err != nil {
				t.Skip(err)
			}
			cfg := softRig(t, p)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			c, err := Connect(ctx, p, cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}()
			n, err := c.Namespace(ctx, memNS)
			if err != nil {
				t.Fatal(err)
			}
			roundTrip(t, n)
			if err := c.Reset(ctx); err != nil {
				t.Fatal(err)
			}
			roundTrip(t, n)
			q, err := n.Queue(ctx)
			if err != nil {
				t.Fatal(err)
			}
			roundTripQueue(ctx, t, q)
			if err := q.Close(); err != nil {
				t.Error(err)
			}
			if s := c.Status(); s.Reconnects < 1 || s.State != StateLive {
				t.Errorf("%+v", s)
			}
		})
	}
}

func roundTrip(t *testing.T, n *Namespace) {
	t.Helper()
	for i, size := range []int{512, 4096, 65536, 1 << 20, 3<<20 + 512} {
		out, in := make([]byte, size), make([]byte, size)
		fill(out, byte(i+1))
		if _, err := n.WriteAt(out, int64(i)<<20); err != nil {
			t.Fatalf("write %d: %v", size, err)
		}
		if _, err := n.ReadAt(in, int64(i)<<20); err != nil || !bytes.Equal(in, out) {
			t.Fatalf("read %d: %v, or not what was written", size, err)
		}
	}
}

// roundTripQueue keeps a queue full of writes and reads them back.
func roundTripQueue(ctx context.Context, t *testing.T, q *Queue) {
	t.Helper()
	const size, count = 16 << 10, 512
	b, err := NewBuffer(size * 64)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	slots := make([]uint64, 0, 64)
	for i := range uint64(64) {
		slots = append(slots, i)
	}
	for _, op := range []nvme.Opcode{nvme.CmdWrite, nvme.CmdRead} {
		done := make([]Result, 64)
		for sent, ended := 0, 0; ended < count; {
			for len(slots) > 0 && sent < count {
				slot := slots[len(slots)-1]
				mem := b.Bytes()[slot*size:][:size]
				if op == nvme.CmdWrite {
					fill(mem, byte(sent))
				}
				k, err := q.Submit([]IO{{
					Op: op, LBA: uint64(sent) * size / memBlock, Blocks: size / memBlock,
					Buf: b, Offset: int(slot) * size, Tag: uint64(sent)<<8 | slot,
				}})
				if err != nil {
					t.Fatal(err)
				}
				if k == 0 {
					break
				}
				slots = slots[:len(slots)-1]
				sent++
			}
			if err := q.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			k, err := q.Reap(done)
			if err != nil {
				t.Fatal(err)
			}
			for _, res := range done[:k] {
				slot := res.Tag & 0xFF
				want := make([]byte, size)
				fill(want, byte(res.Tag>>8))
				if !res.OK() || op == nvme.CmdRead && !bytes.Equal(b.Bytes()[slot*size:][:size], want) {
					t.Fatalf("%s %d: %+v, or not what was written", nvme.OpcodeName(op, false), res.Tag>>8, res)
				}
				slots = append(slots, slot)
				ended++
			}
		}
	}

}

// Random 4 KiB reads over real sockets, both ends in this process.
func BenchmarkWires(b *testing.B) {
	for _, w := range wires {
		for _, depth := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/4KiB/depth=%d", w.name, depth), func(b *testing.B) {
				p, err := w.open()
				if err != nil {
					b.Skip(err)
				}
				cfg := softRig(b, p)
				cfg.IOQueues, cfg.QueueDepth = 1, depth
				c, err := Connect(context.Background(), p, cfg)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				n, err := c.Namespace(context.Background(), nullNS)
				if err != nil {
					b.Fatal(err)
				}
				readRandomly(b, n, depth, 1)
			})
		}
	}
}
