package rdma

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// What is written is read, at every size and with every way to move it.
func TestReadWrite(t *testing.T) {
	for _, inCapsule := range []int{0, 4096, 8192, 16384} {
		t.Run(fmt.Sprintf("in-capsule %d", inCapsule), func(t *testing.T) {
			e := newEnv(t, envOptions{cfg: func(c *Config) { c.InCapsule = inCapsule }})
			q := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{InCapsule: inCapsule > 0})
			const half = 1 << 20
			for i, n := range []int{512, 4096, 5 * 512, 16384, 65536, 68 << 10, 1 << 20} {
				out, in := q.Data()[:n], q.Data()[half:half+n]
				fill(out, byte(i))
				e.must(q.Write(e.ctx, memNS, uint64(i*100), uint32(n/blockLen), 0, n))
				clear(in)
				e.must(q.Read(e.ctx, memNS, uint64(i*100), uint32(n/blockLen), half, n))
				if !bytes.Equal(in, out) {
					t.Errorf("%d bytes: not what was written", n)
				}
				if n > inCapsule {
					continue
				}
				fill(out, byte(i+100))
				e.must(q.WriteInCapsule(e.ctx, memNS, uint64(i), uint32(n/blockLen), out))
				e.must(q.Read(e.ctx, memNS, uint64(i), uint32(n/blockLen), half, n))
				if !bytes.Equal(in, out) {
					t.Errorf("%d bytes in the capsule: not what was written", n)
				}
			}
			s := e.snapshot()
			if sum := s.sum(); sum.Stale != 0 || sum.ReadBytes == 0 || sum.WriteBytes == 0 {
				t.Errorf("%+v", sum)
			}
		})
	}
}

func TestIdentify(t *testing.T) {
	e := newEnv(t, envOptions{})
	s := e.admin()
	id, err := s.Admin.Identify(e.ctx, 1, 0)
	e.must(err)
	if ioccsz := uint32(id[1792]) | uint32(id[1793])<<8; ioccsz != (64+4096)/16 {
		t.Errorf("IOCCSZ %d", ioccsz)
	}
}

// A status that is not success moves no data.
func TestReadOutOfRange(t *testing.T) {
	e := newEnv(t, envOptions{})
	q := e.queue(rdmatest.Options{}, rdmatest.ConnectParams{})
	fill(q.Data()[:4096], 1)
	want := bytes.Clone(q.Data()[:4096])
	cmd := make(nvme.Command, nvme.SQESize)
	q.IO(cmd, nvme.CmdRead, 1, memNS, 64<<20/blockLen-1, 8, 0, 4096)
	r, err := q.Do(e.ctx, cmd)
	e.status(r.Status, err, nvme.LBAOutOfRange)
	if !bytes.Equal(q.Data()[:4096], want) {
		t.Error("data was moved")
	}
}
