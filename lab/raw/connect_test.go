//go:build lab

package raw

import (
	"bytes"
	"testing"

	"github.com/nvmf-go/nvmf/nvme"
	"github.com/nvmf-go/nvmf/target/rdma/rdmatest"
)

// Connection requests that are wrong are refused with their status. On RoCE the
// connection manager pads private data to its full size, so that short data
// looks like zeroes.
func TestReject(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		name string
		o    rdmatest.Options
		want nvme.CMStatus
	}{
		{"no private data", rdmatest.Options{Private: []byte{}}, nvme.CMInvalidHSQSize},
		{"16 bytes of it", rdmatest.Options{Private: make([]byte, 16)}, nvme.CMInvalidHSQSize},
		{"record format 1", rdmatest.Options{RecFmt: 1}, nvme.CMInvalidRecFmt},
		{"queue 65", rdmatest.Options{QID: 65}, nvme.CMInvalidQID},
		{"admin depth 4097", rdmatest.Options{HSQSize: 4096, HRQSize: 1, Sends: 1}, nvme.CMInvalidHSQSize},
		{"I/O depth 65536", rdmatest.Options{QID: 1, HSQSize: 65535, HRQSize: 1, Sends: 1}, nvme.CMInvalidHSQSize},
		{"no receives", rdmatest.Options{QID: 1, Private: request(nvme.CMRequest{QID: 1, HSQSize: 31}, 32)}, nvme.CMInvalidHRQSize},
		{"no READs", rdmatest.Options{IRD: -1}, nvme.CMInvalidIRD},
		{"controller 7777", rdmatest.Options{QID: 1, CNTLID: 7777}, nvme.CMInvalidCNTLID},
	} {
		q, err := r.host.Dial(r.ctx, c.o)
		if err == nil {
			q.Close()
		}
		if got := rdmatest.RejectStatus(err); got != c.want {
			t.Errorf("%s: %v (%v), want %v", c.name, got, err, c.want)
		}
	}
	r.serves()
}

// Nothing but Connect is served on a queue that is not connected.
func TestBeforeConnect(t *testing.T) {
	r := newRig(t)
	for _, qid := range []uint16{0, 1} {
		q := r.dial(rdmatest.Options{QID: qid})
		cmd := make(nvme.Command, nvme.SQESize)
		q.IO(cmd, nvme.CmdWrite, 1, nsid, 0, 8, 0, 4096)
		got, err := q.Do(r.ctx, cmd)
		r.must(err)
		r.status("write by keyed data", got.Status&^nvme.StatusDNR, nvme.CommandSequenceError)
		cmd.SGL1().SetInCapsule(0, 4096)
		got, err = q.Do(r.ctx, cmd, make([]byte, 4096))
		r.must(err)
		r.status("write in the capsule", got.Status&^nvme.StatusDNR, nvme.CommandSequenceError)
	}
	r.serves()
}

// Connect's data has one length.
func TestConnectLength(t *testing.T) {
	r := newRig(t)
	for _, n := range []uint32{0, 1, 512, 1023, 1025, 0xFFFFFF} {
		q := r.dial(rdmatest.Options{})
		cmd := make(nvme.Command, nvme.SQESize)
		cmd.Connect().Init(0, 31, 0, 0)
		cmd.SGL1().SetKeyed(q.Addr(), n, q.RKey(), nvme.SGLAddress)
		got, err := q.Do(r.ctx, cmd)
		if err != nil || got.Status.OK() || !got.Status.DNR() {
			t.Errorf("%d bytes: %v, %v", n, got.Status, err)
		}
	}
	r.serves()
}

// Names without an end, of strange bytes, and of subsystems that are not.
func TestConnectNames(t *testing.T) {
	r := newRig(t)
	const hostAt, subsysAt, nameSize = 512, 256, 256
	for _, c := range []struct {
		name string
		at   int
		text []byte
	}{
		{"subsystem without an end", subsysAt, bytes.Repeat([]byte{'A'}, nameSize)},
		{"host without an end", hostAt, bytes.Repeat([]byte{'A'}, nameSize)},
		{"empty subsystem", subsysAt, nil},
		{"subsystem that is not", subsysAt, []byte("nqn.2026-11.io.nvmf:absent")},
		{"escape sequences", hostAt, []byte("nqn.2026-11.io.nvmf:\x1b[31m\n")},
	} {
		q := r.dial(rdmatest.Options{})
		cmd := make(nvme.Command, nvme.SQESize)
		cmd.Connect().Init(0, 31, 0, 0)
		data := q.Data()[:nvme.ConnectDataSize]
		nvme.ConnectData(data).Put(r.host.ID, nvme.CNTLIDDynamic, r.subsys, r.host.NQN)
		clear(data[c.at:][:nameSize])
		copy(data[c.at:], c.text)
		cmd.SGL1().SetKeyed(q.Addr(), nvme.ConnectDataSize, q.RKey(), nvme.SGLAddress)
		got, err := q.Do(r.ctx, cmd)
		r.must(err)
		r.status(c.name, got.Status, nvme.ConnectInvalidParameters|nvme.StatusDNR)
		const inData = 1 << 16
		if want := uint64(inData | c.at); got.Result&0xFFFFFFFF != want {
			t.Errorf("%s: result %#x, want %#x: the place of the mistake", c.name, got.Result, want)
		}
	}
	r.serves()
}

// Queue id, depth and controller have to be those of the connection.
func TestConnectMismatch(t *testing.T) {
	r := newRig(t)
	s := r.admin()
	for _, p := range []rdmatest.ConnectParams{
		{QID: 2, SQSize: 31, CNTLID: s.CNTLID},
		{QID: 1, SQSize: 32, CNTLID: s.CNTLID},
		{QID: 1, SQSize: 0, CNTLID: s.CNTLID},
		{QID: 1, SQSize: 31, CNTLID: s.CNTLID + 1},
		{QID: 0, SQSize: 31, CNTLID: nvme.CNTLIDDynamic},
	} {
		q := r.dial(rdmatest.Options{QID: 1})
		p.Subsys = r.subsys
		if got, err := r.host.Connect(r.ctx, q, p); err == nil {
			t.Errorf("%+v was let in: %+v", p, got)
		}
	}
	q := r.queue(s, rdmatest.Options{})
	twice := r.dial(rdmatest.Options{QID: 1})
	if _, err := r.host.Connect(r.ctx, twice, rdmatest.ConnectParams{Subsys: r.subsys, QID: 1, SQSize: 31, CNTLID: s.CNTLID}); err == nil {
		t.Error("queue 1 was let in twice")
	}
	r.must(q.Read(r.ctx, nsid, 0, 8, 0, 4096))
	r.serves()
}
