//go:build lab

package raw

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// Capsules that are none end their queue.
func TestCapsules(t *testing.T) {
	for _, size := range []int{0, 8, 63, 64 + 4096 + 1, 64 + 16384} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			r := newRig(t)
			s := r.admin()
			q := r.queue(s, rdmatest.Options{})
			r.must(q.Send(make([]byte, size)))
			r.ended(q)
			if size > 64 { // a short one is the controller's end
				if _, err := s.Admin.Identify(r.ctx, 1, 0); err != nil {
					t.Errorf("the admin queue: %v", err)
				}
			}
			r.serves()
		})
	}
}

// Commands that are wrong get their status; the queue lives.
func TestCommands(t *testing.T) {
	const dnr = nvme.StatusDNR
	r := newRig(t)
	q := r.queue(r.admin(), rdmatest.Options{})
	key := func(n uint32) []byte { return keyed(q.Addr(), n, q.RKey(), 0) }
	set := func(sgl []byte) func(nvme.Command) {
		return func(c nvme.Command) { copy(c.SGL1(), sgl) }
	}
	for _, c := range []struct {
		name string
		op   nvme.Opcode
		edit func(nvme.Command)
		data []byte
		want nvme.Status
	}{
		{"a good read", nvme.CmdRead, set(key(4096)), nil, 0},
		{"a good write in the capsule", nvme.CmdWrite, set(descriptor(0, 4096, 1)), make([]byte, 4096), 0},
		{"a good list of two", nvme.CmdRead, set(descriptor(0, 32, 0x31)), bytes.Join([][]byte{key(1000), key(3096)}, nil), 0},
		{"a good write from two", nvme.CmdWrite, set(descriptor(0, 32, 0x31)), bytes.Join([][]byte{key(511), key(3585)}, nil), 0},

		{"opcode 0xFF", 0xFF, set(key(4096)), nil, nvme.InvalidOpcode | dnr},
		{"fused", nvme.CmdRead, func(c nvme.Command) { c.SetFlags(0x41) }, nil, nvme.InvalidField | dnr},
		{"PRP", nvme.CmdRead, func(c nvme.Command) { c.SetFlags(0) }, nil, nvme.InvalidField | dnr},
		{"namespace 0", nvme.CmdRead, func(c nvme.Command) { c.SetNSID(0) }, nil, nvme.InvalidNamespace | dnr},
		{"namespace broadcast", nvme.CmdRead, func(c nvme.Command) { c.SetNSID(0xFFFFFFFF) }, nil, nvme.InvalidNamespace | dnr},
		{"namespace 9, inactive", nvme.CmdRead, func(c nvme.Command) { c.SetNSID(9) }, nil, nvme.InvalidField | dnr},
		{"namespace 0xFFFFFFF0", nvme.CmdRead, func(c nvme.Command) { c.SetNSID(0xFFFFFFF0) }, nil, nvme.InvalidNamespace | dnr},
		{"beyond the end", nvme.CmdRead, func(c nvme.Command) { c.SetSLBA(1 << 40) }, nil, nvme.LBAOutOfRange | dnr},
		{"beyond 2^64", nvme.CmdWrite, func(c nvme.Command) { c.SetSLBA(^uint64(0) - 3) }, nil, nvme.LBAOutOfRange | dnr},

		{"no SGL", nvme.CmdRead, set(descriptor(0, 0, 0)), nil, nvme.DataSGLLengthInvalid | dnr},
		{"SGL a byte short", nvme.CmdRead, set(key(4095)), nil, nvme.DataSGLLengthInvalid | dnr},
		{"unknown SGL type", nvme.CmdRead, set(descriptor(0, 4096, 0x60)), nil, nvme.SGLTypeInvalid | dnr},
		{"data block by address", nvme.CmdWrite, set(descriptor(0x1000, 4096, 0)), nil, nvme.SGLTypeInvalid | dnr},
		{"in-capsule data of a read", nvme.CmdRead, set(descriptor(0, 4096, 1)), make([]byte, 4096), nvme.InvalidField | dnr},
		{"in-capsule offset beyond", nvme.CmdWrite, set(descriptor(4097, 0, 1)), make([]byte, 4096), nvme.SGLOffsetInvalid | dnr},
		{"in-capsule offset that wraps", nvme.CmdWrite, set(descriptor(^uint64(0)-511, 4096, 1)), make([]byte, 4096), nvme.SGLOffsetInvalid | dnr},
		{"in-capsule data that did not come", nvme.CmdWrite, set(descriptor(0, 4096, 1)), make([]byte, 512), nvme.SGLOffsetInvalid | dnr},
		{"list of half a descriptor", nvme.CmdRead, set(descriptor(0, 8, 0x31)), key(4096), nvme.InvalidSGLSegment | dnr},
		{"list outside the capsule", nvme.CmdRead, set(descriptor(0, 32, 0x31)), key(4096), nvme.SGLOffsetInvalid | dnr},
		{"list of 64", nvme.CmdRead, set(descriptor(0, 1024, 0x31)), bytes.Repeat(key(64), 64), nvme.InvalidSGLCount | dnr},
	} {
		cmd := make(nvme.Command, nvme.SQESize)
		q.IO(cmd, c.op, 0x1234, nsid, 0, 8, 0, 4096)
		c.edit(cmd)
		got, err := q.Do(r.ctx, cmd, c.data)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		r.status(c.name, got.Status, c.want)
		if got.CID != 0x1234 || got.SQID != 1 || got.Len != nvme.CQESize {
			t.Errorf("%s: response %+v", c.name, got)
		}
	}
	r.serves()
}

// A key that is none: the target's access fails, that queue ends, the
// controller does not.
func TestWrongKey(t *testing.T) {
	for _, op := range []nvme.Opcode{nvme.CmdRead, nvme.CmdWrite} {
		t.Run(fmt.Sprintf("opcode %#x", uint8(op)), func(t *testing.T) {
			r := newRig(t)
			s := r.admin()
			q := r.queue(s, rdmatest.Options{})
			cmd := make(nvme.Command, nvme.SQESize)
			q.IO(cmd, op, 1, nsid, 0, 256, 0, 128<<10)
			cmd.SGL1().SetKeyed(q.Addr(), 128<<10, q.RKey()+0x1000, nvme.SGLAddress)
			r.must(q.SendCommand(cmd, nil))
			r.ended(q)
			if _, err := s.Admin.Identify(r.ctx, 1, 0); err != nil {
				t.Errorf("the admin queue: %v", err)
			}
			r.serves()
		})
	}
}

// More Asynchronous Event Requests than there may be.
func TestEventLimit(t *testing.T) {
	r := newRig(t)
	s := r.admin()
	cmd := make(nvme.Command, nvme.SQESize)
	for cid := range uint16(5) {
		cmd.Init(nvme.AdminAsyncEvent, 0)
		cmd.SetCID(cid)
		r.must(s.Admin.SendCommand(cmd, nil))
	}
	got, err := s.Admin.WaitCID(r.ctx, 4)
	r.must(err)
	r.status("the fifth", got.Status&^nvme.StatusDNR, nvme.AsyncEventLimitExceeded)
	r.serves()
}

// TestDie connects, keeps the target busy, and dies of SIGKILL in the middle of
// it: run it last and alone, with NVMF_RAW_DIE set.
func TestDie(t *testing.T) {
	if os.Getenv("NVMF_RAW_DIE") == "" {
		t.Skip("NVMF_RAW_DIE is not set")
	}
	r := newRig(t)
	s := r.admin()
	q := r.queue(s, rdmatest.Options{})
	cmd := make(nvme.Command, nvme.SQESize)
	for cid := range uint16(32) {
		op := nvme.CmdRead
		if cid%2 == 1 {
			op = nvme.CmdWrite
		}
		q.IO(cmd, op, cid, nsid, uint64(cid)*2048, 2048, 0, 1<<20)
		r.must(q.SendCommand(cmd, nil))
	}
	r.must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
}
