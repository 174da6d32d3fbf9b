package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// prober sends capsules of any content over queues that it connects anew when
// one has ended, and watches that a bystander is served.
type prober struct {
	e         *env
	bystander *rdmatest.Queue
	qid       uint16 // of the probed queue: 0 or 1
	s         *rdmatest.Session
	q         *rdmatest.Queue
}

func newProber(e *env, qid uint16) *prober {
	return &prober{e: e, qid: qid, bystander: e.queue(rdmatest.Options{DataSize: 8192}, rdmatest.ConnectParams{})}
}

func (p *prober) connect() {
	var err error
	if p.s, err = p.e.host.Admin(p.e.ctx, testNQN, rdmatest.Options{DataSize: 64 << 10}); err != nil {
		p.e.t.Fatal(err)
	}
	p.q = p.s.Admin
	if p.qid != 0 {
		p.q, err = p.s.Queue(p.e.ctx, rdmatest.Options{QID: p.qid, DataSize: 64 << 10}, rdmatest.ConnectParams{})
		p.e.must(err)
	}
}

func (p *prober) drop() {
	if p.q == nil {
		return
	}
	if p.qid != 0 {
		_ = p.q.Close()
	}
	_ = p.s.Close()
	p.q, p.s = nil, nil
}

// probe sends one capsule: it is answered, parked (an Asynchronous Event
// Request), or the end of the connection.
func (p *prober) probe(capsule []byte) {
	p.e.t.Helper()
	if p.q == nil {
		p.connect()
	}
	if err := p.q.Send(capsule); err != nil {
		p.drop()
		return
	}
	parked := p.qid == 0 && len(capsule) >= nvme.SQESize && nvme.Command(capsule).Opcode() == nvme.AdminAsyncEvent
	ctx, cancel := context.WithTimeout(p.e.ctx, 10*time.Second)
	defer cancel()
	if !parked {
		if _, err := p.q.Wait(ctx); errors.Is(err, context.DeadlineExceeded) {
			p.e.t.Fatalf("no answer and no end: %x", capsule[:min(len(capsule), nvme.SQESize)])
		} else if err != nil {
			p.drop()
		}
	} else {
		p.drop()
	}
	if err := p.bystander.Read(p.e.ctx, memNS, 0, 8, 0, 4096); err != nil {
		p.e.t.Fatalf("the bystander: %v", err)
	}
}

// seedCapsules are capsules that go far when a few bytes of them change.
func seedCapsules(q *rdmatest.Queue) (list [][]byte) {
	cmd := func(edit func(nvme.Command), data ...byte) {
		c := make(nvme.Command, nvme.SQESize)
		q.IO(c, nvme.CmdRead, 1, memNS, 0, 8, 0, 4096)
		edit(c)
		list = append(list, append(c, data...))
	}
	cmd(func(nvme.Command) {})
	cmd(func(c nvme.Command) { c.SetNSID(extraNS) })
	cmd(func(c nvme.Command) { c.SetNSID(extraNS); c.SGL1().SetInCapsule(0, 4096) }, make([]byte, 4096)...)
	cmd(func(c nvme.Command) { c.SetOpcode(nvme.CmdWrite) })
	cmd(func(c nvme.Command) { c.SetOpcode(nvme.CmdWrite); c.SetNLB(1); c.SGL1().SetInCapsule(0, 512) }, make([]byte, 512)...)
	cmd(func(c nvme.Command) {
		copy(c.SGL1(), desc(0, 32, 0x31))
	}, append(keyed(q.Addr(), 1024, q.RKey(), 0), keyed(q.Addr()+2048, 3072, q.RKey(), 0xF)...)...)
	cmd(func(c nvme.Command) { c.Connect().Init(1, 31, 0, 0); c.SGL1().SetInCapsule(0, 1024) }, make([]byte, 1024)...)
	cmd(func(c nvme.Command) { c.Init(nvme.AdminAbort, 0); c.SetCDW(10, 1) })
	cmd(func(c nvme.Command) {
		c.Init(nvme.AdminGetLogPage, 0)
		c.SetCDW(10, 0x3FF0002)
		c.SGL1().SetKeyed(q.Addr(), 4096, q.RKey(), 0)
	})
	return list
}

// Whatever a capsule holds, its host gets an answer or loses its queue, and no
// other notices.
func TestRandomCapsules(t *testing.T) {
	for qid := range uint16(2) {
		e, d := lentEnv(t, envOptions{})
		p := newProber(e, qid)
		e.registered(1)
		rng := rand.New(rand.NewPCG(uint64(qid), 42))
		for range 400 {
			if p.q == nil {
				p.connect()
			}
			seeds := seedCapsules(p.q)
			c := seeds[rng.IntN(len(seeds))]
			for range rng.IntN(4) {
				switch i := rng.IntN(len(c)); rng.IntN(3) {
				case 0:
					c[i] ^= 1 << rng.IntN(8)
				case 1:
					c[i] = byte(rng.Uint32())
				case 2:
					binary.LittleEndian.PutUint64(c[rng.IntN(len(c)-7):], []uint64{0, ^uint64(0), 1 << 63, uint64(i)}[rng.IntN(4)])
				}
			}
			p.probe(c[:len(c)-rng.IntN(2)*rng.IntN(len(c))])
		}
		p.drop()
		e.leaves(2)
		e.until("all loans are back", func() bool { return d.lent.Load() == 0 })
		if qid > 0 && d.loans.Load() == 0 {
			t.Error("nothing was lent")
		}
	}
}

func FuzzCapsule(f *testing.F) {
	e, _ := lentEnv(f, envOptions{bound: 1 << 40})
	p := [2]*prober{newProber(e, 0), newProber(e, 1)}
	f.Cleanup(func() {
		e.t = f
		p[0].drop()
		p[1].drop()
	})
	for _, c := range seedCapsules(p[0].bystander) {
		f.Add(false, c)
		f.Add(true, c)
	}
	f.Fuzz(func(t *testing.T, io bool, capsule []byte) {
		i := 0
		if io {
			i = 1
		}
		if len(capsule) > nvme.SQESize+8192 {
			return
		}
		p[i].e.t = t
		p[i].probe(capsule)
	})
}
