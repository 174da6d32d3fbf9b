package target

import (
	"testing"

	"github.com/nvmf-go/nvmf/nvme"
)

// fuzzQueue is a queue in one of the states that a peer can bring it to.
func fuzzQueue(tb testing.TB, kind uint8) (*rig, *fakeLink) {
	r := newRig(tb, Config{})
	port := r.addPort(1, "front", "192.0.2.1:4420")
	s := r.addSubsystem(SubsystemConfig{NQN: nqnA, Hosts: AnyHost()})
	for nsid, bs := range map[uint32]uint32{1: 512, 2: 4096} {
		d := newFakeDevice(bs, 64)
		r.devices[string(rune('0'+nsid))] = d
		r.addNamespace(s, nsid, d)
	}
	l := r.link("q", port, 0, -1, 128)
	switch kind % 5 {
	case 0: // new
	case 1: // connected, not enabled
		r.connect(l, connectSpec{})
	case 2:
		r.connect(l, connectSpec{kato: 100})
		r.enable(l)
	case 3:
		r.connect(l, connectSpec{sub: nvme.DiscoveryNQN})
		r.enable(l)
	case 4:
		_, ios := r.session(port, 1)
		l = ios[0]
	}
	return r, l
}

// Whatever a peer sends, each command is completed exactly once, and moves no
// more data than its SGL and the limits allow.
func FuzzCommands(f *testing.F) {
	add := func(kind uint8, sqe nvme.Command, sgl uint64, data []byte) { f.Add(kind, []byte(sqe), sgl, data) }
	sqe := make(nvme.Command, nvme.SQESize)
	sqe.Identify().Init(nvme.CNSController, 0, 0, 0)
	add(2, sqe, nvme.IdentifySize, nil)
	sqe = make(nvme.Command, nvme.SQESize)
	sqe.GetLogPage().Init(0, nvme.LogRequest{LID: nvme.LogDiscovery, Length: 4096})
	add(3, sqe, 4096, nil)
	sqe = make(nvme.Command, nvme.SQESize)
	sqe.Features().InitSet(nvme.FeatHostBehavior, 0, 0, false)
	add(2, sqe, nvme.HostBehaviorSize, []byte{1})
	sqe = make(nvme.Command, nvme.SQESize)
	sqe.Property().InitSet(nvme.PropCC, enableCC)
	add(1, sqe, 0, nil)
	for _, o := range ioNames {
		add(4, blockCmd(o, 1, 3, 2, 0), 1024, []byte("data"))
	}
	sqe = make(nvme.Command, nvme.SQESize)
	sqe.DSM().Init(2, 3, nvme.DSMDeallocate)
	add(4, sqe, 4096, []byte{0: 1, 4: 1, 8: 1})
	sqe = make(nvme.Command, nvme.SQESize)
	sqe.Disconnect().Init()
	add(4, sqe, 0, nil)
	con, data := connectSpec{}.build()
	add(0, con, nvme.ConnectDataSize, data)

	f.Fuzz(func(t *testing.T, kind uint8, sqes []byte, sgl uint64, data []byte) {
		r, l := fuzzQueue(t, kind)
		var sent []*fakeRequest
		for ; len(sqes) >= nvme.SQESize && len(sent) < 8; sqes = sqes[nvme.SQESize:] {
			q := l.start(sqes[:nvme.SQESize], data, sgl)
			checkTransfer(t, q)
			sent = append(sent, q)
			r.step()
		}
		l.Disconnect(ErrClosed)
		r.step()
		for i, q := range sent {
			if q.completed != 1 {
				t.Errorf("command %d was completed %d times: % x", i, q.completed, q.sqe)
			}
		}
	})
}

func checkTransfer(t *testing.T, q *fakeRequest) {
	x := q.transfer
	if uint64(x.Length) > q.SGLLength || x.Length > testCaps().MaxTransfer || x.Scratch > MaxScratch {
		t.Errorf("transfer %+v of an SGL of %d bytes: % x", x, q.SGLLength, q.sqe)
	}
	if (x.Dir == NoData) != (x.Length == 0) {
		t.Errorf("transfer %+v", x)
	}
}

// Connect data of any content is refused or makes a controller.
func FuzzConnect(f *testing.F) {
	_, data := connectSpec{}.build()
	f.Add(uint16(0), uint16(31), []byte(data))
	f.Add(uint16(1), uint16(127), []byte(data))
	f.Add(uint16(0), uint16(0), make([]byte, nvme.ConnectDataSize))
	f.Fuzz(func(t *testing.T, qid, size uint16, data []byte) {
		r, l := fuzzQueue(t, 0)
		sqe := make(nvme.Command, nvme.SQESize)
		sqe.Connect().Init(qid, size, 0, 0)
		q := r.do(l, sqe, data, nvme.ConnectDataSize)
		if q.completed != 1 || q.Status.OK() != (l.q.Controller() != nil) {
			t.Errorf("completed %d, %v, controller %v", q.completed, q.Status, l.q.Controller())
		}
	})
}
