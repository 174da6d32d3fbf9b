package rdmatest

import (
	"context"
	"errors"
	"net/netip"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// Host dials a target from one device.
type Host struct {
	Device fabric.Device
	Target netip.AddrPort
	NQN    nvme.NQN
	ID     nvme.HostID
	KATO   uint32 // keep alive timeout of Admin's controllers in ms; 0 is none
}

// Options say how to connect a queue. The zero value is what a host does for an
// admin queue of 32 entries.
type Options struct {
	QID uint16
	// HSQSize is 0-based, HRQSize 1-based; default 31 and HSQSize+1.
	HSQSize, HRQSize uint16
	RecFmt, CNTLID   uint16
	// Private replaces the private data made of the fields above.
	Private []byte
	// IRD is the READs that the host answers at a time; default 16, -1 for
	// none. ORD is what it wants for itself; default none.
	IRD, ORD int
	// DataSize is the memory that the target may access; default 2 MiB.
	// Access are its rights; default all of them.
	DataSize int
	Access   fabric.Access
	// CapsuleSize is the longest capsule that can be sent; default 64 bytes and
	// 16 KiB, and one byte too many. Sends is the number of them that may be in
	// flight; default HSQSize+3.
	CapsuleSize, Sends int
	// Receives is the number of receives posted; default HRQSize, -1 for none.
	Receives int
	// HoldReceives: a receive that was used is posted again by PostHeld only.
	HoldReceives bool
}

func (o *Options) setDefaults() {
	def(&o.HSQSize, 31)
	def(&o.HRQSize, o.HSQSize+1)
	def(&o.IRD, 16)
	def(&o.DataSize, 2<<20)
	def(&o.Access, fabric.AccessLocalWrite|fabric.AccessRemoteRead|fabric.AccessRemoteWrite)
	def(&o.CapsuleSize, nvme.SQESize+16<<10+1)
	def(&o.Sends, int(o.HSQSize)+3)
	def(&o.Receives, int(o.HRQSize))
	if o.Private == nil {
		o.Private = make([]byte, nvme.CMRequestSize)
		(&nvme.CMRequest{
			RecFmt: o.RecFmt, QID: o.QID, HRQSize: o.HRQSize, HSQSize: o.HSQSize, CNTLID: o.CNTLID,
		}).MarshalTo(o.Private)
	}
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Dial connects a queue: the RDMA connection only, no command is sent. A
// refusal is a *fabric.RejectError; RejectStatus reads it.
func (h *Host) Dial(ctx context.Context, o Options) (*Queue, error) {
	o.setDefaults()
	q := &Queue{opts: o, dev: h.Device, wake: make(chan struct{}, 1), sendSize: o.CapsuleSize, nRecv: max(o.Receives, 0)}
	if err := q.alloc(); err != nil {
		return nil, errors.Join(err, q.free())
	}
	conn, err := h.Device.Dial(ctx, netip.AddrPort{}, h.Target, fabric.ConnConfig{
		SendCQ: q.cq, RecvCQ: q.cq, SendDepth: o.Sends + 64, RecvDepth: max(q.nRecv, 1),
		ORD: o.ORD, IRD: max(o.IRD, 0), RetryCount: 7, RNRRetry: 7, PrivateData: o.Private,
		Setup: func(qp fabric.QueuePair) error {
			q.qp = qp
			for i := range uint32(q.nRecv) {
				q.addRecv(i)
			}
			if q.nRecv == 0 {
				return nil
			}
			_, err := qp.PostRecv(q.recvWRs, q.recvSGEs)
			return err
		},
	})
	if err != nil {
		return nil, errors.Join(err, q.free())
	}
	q.conn = conn
	q.accept = append([]byte(nil), conn.PrivateData()...)
	return q, nil
}

func (q *Queue) alloc() (err error) {
	o := &q.opts
	notify := func() {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
	if q.cq, err = q.dev.NewCompletionQueue(o.Sends+64+q.nRecv+16, notify); err != nil {
		return err
	}
	if q.data, err = fabric.AllocMemory(o.DataSize); err != nil {
		return err
	}
	if q.dataMR, err = q.dev.Register(q.data, o.Access); err != nil {
		return err
	}
	if q.ctl, err = fabric.AllocMemory(q.nRecv*recvSize + o.Sends*o.CapsuleSize); err != nil {
		return err
	}
	q.ctlMR, err = q.dev.Register(q.ctl, fabric.AccessLocalWrite)
	for i := range uint32(o.Sends) {
		q.freeSend = append(q.freeSend, i)
	}
	q.recvWRs = make([]fabric.RecvWR, 0, q.nRecv)
	q.recvSGEs = make([]fabric.SGE, 0, q.nRecv)
	q.got, q.taken = make([]Response, 0, 2*q.nRecv), make([]Response, 0, 2*q.nRecv)
	return err
}

// RejectStatus is the NVMe/RDMA status of a refused Dial, 0 when err is
// something else.
func RejectStatus(err error) nvme.CMStatus {
	var reject *fabric.RejectError
	if !errors.As(err, &reject) {
		return 0
	}
	var r nvme.CMReject
	if err := r.Unmarshal(reject.Private); err != nil {
		return 0
	}
	return r.Status
}
