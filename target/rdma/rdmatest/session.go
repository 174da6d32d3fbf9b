package rdmatest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/nvmf-go/nvmf/nvme"
)

// Session is a connected and enabled controller.
type Session struct {
	Host   *Host
	Admin  *Queue
	CNTLID uint16
	Subsys nvme.NQN
}

// Admin connects the admin queue and enables the controller.
func (h *Host) Admin(ctx context.Context, subsys nvme.NQN, o Options) (*Session, error) {
	q, err := h.Dial(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &Session{Host: h, Admin: q, Subsys: subsys}
	r, err := h.Connect(ctx, q, ConnectParams{Subsys: subsys, CNTLID: nvme.CNTLIDDynamic, SQSize: q.opts.HSQSize, KATO: h.KATO})
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	s.CNTLID = nvme.ConnectResult(r.Result).CNTLID()
	if err := s.enable(ctx); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return s, nil
}

// ConnectParams are the parameters of a Connect command.
type ConnectParams struct {
	Subsys nvme.NQN
	CNTLID uint16
	QID    uint16
	SQSize uint16 // 0-based
	Attr   nvme.ConnectAttr
	KATO   uint32 // ms
	// InCapsule sends the data in the capsule.
	InCapsule bool
}

// Connect sends Connect over q and wants it to succeed. Its data is at the
// beginning of q's memory.
func (h *Host) Connect(ctx context.Context, q *Queue, p ConnectParams) (Response, error) {
	cmd := make(nvme.Command, nvme.SQESize)
	cmd.Connect().Init(p.QID, p.SQSize, p.Attr, p.KATO)
	cmd.SetCID(0xC0DE)
	data := q.Data()[:nvme.ConnectDataSize]
	nvme.ConnectData(data).Put(h.ID, p.CNTLID, p.Subsys, h.NQN)
	if p.InCapsule {
		cmd.SGL1().SetInCapsule(0, nvme.ConnectDataSize)
		return q.must(q.Do(ctx, cmd, data))
	}
	cmd.SGL1().SetKeyed(q.Addr(), nvme.ConnectDataSize, q.RKey(), nvme.SGLAddress)
	return q.must(q.Do(ctx, cmd))
}

// must turns a status into an error.
func (q *Queue) must(r Response, err error) (Response, error) {
	if err == nil && !r.Status.OK() {
		err = fmt.Errorf("CID %#x: %w (result %#x)", r.CID, r.Status, r.Result)
	}
	return r, err
}

// PropertySet and PropertyGet access a controller's properties.
func (q *Queue) PropertySet(ctx context.Context, off uint32, v uint64) error {
	cmd := make(nvme.Command, nvme.SQESize)
	cmd.Init(nvme.CmdFabrics, 0)
	cmd[4] = byte(nvme.FabricsPropertySet)
	binary.LittleEndian.PutUint32(cmd[44:], off)
	binary.LittleEndian.PutUint64(cmd[48:], v)
	cmd.SetCID(0x5E7)
	_, err := q.must(q.Do(ctx, cmd))
	return err
}

// PropertyGet reads a property, of 8 bytes or 4.
func (q *Queue) PropertyGet(ctx context.Context, off uint32, wide bool) (uint64, error) {
	cmd := make(nvme.Command, nvme.SQESize)
	cmd.Init(nvme.CmdFabrics, 0)
	cmd[4] = byte(nvme.FabricsPropertyGet)
	if wide {
		cmd[40] = 1
	}
	binary.LittleEndian.PutUint32(cmd[44:], off)
	cmd.SetCID(0x6E7)
	r, err := q.must(q.Do(ctx, cmd))
	return r.Result, err
}

// enable sets CC.EN and waits for CSTS.RDY.
func (s *Session) enable(ctx context.Context) error {
	const cc, csts = 0x14, 0x1C
	if err := s.Admin.PropertySet(ctx, cc, 0x00460001); err != nil {
		return fmt.Errorf("enable: %w", err)
	}
	for {
		v, err := s.Admin.PropertyGet(ctx, csts, false)
		if err != nil || v&1 != 0 {
			return err
		}
	}
}

// Queue connects an I/O queue of the controller. Options.QID is required.
func (s *Session) Queue(ctx context.Context, o Options, p ConnectParams) (*Queue, error) {
	q, err := s.Host.Dial(ctx, o)
	if err != nil {
		return nil, err
	}
	p.Subsys, p.CNTLID, p.QID = s.Subsys, s.CNTLID, o.QID
	def(&p.SQSize, q.opts.HSQSize)
	if _, err := s.Host.Connect(ctx, q, p); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

// Close closes the admin queue.
func (s *Session) Close() error { return s.Admin.Close() }

// Identify reads a data structure of Identify into the queue's memory and
// returns it; it is valid until the queue is used again.
func (q *Queue) Identify(ctx context.Context, cns uint8, nsid uint32) ([]byte, error) {
	cmd := make(nvme.Command, nvme.SQESize)
	cmd.Init(nvme.AdminIdentify, nsid)
	cmd.SetCID(0x1D)
	cmd.SetCDW(10, uint32(cns))
	cmd.SGL1().SetKeyed(q.Addr(), 4096, q.RKey(), nvme.SGLAddress)
	_, err := q.must(q.Do(ctx, cmd))
	return q.Data()[:4096], err
}

// IO fills cmd with a Read or Write of nlb blocks at lba, whose data is n bytes
// at off of the queue's memory.
func (q *Queue) IO(cmd nvme.Command, op nvme.Opcode, cid uint16, nsid uint32, lba uint64, nlb uint32, off, n int) {
	cmd.Init(op, nsid)
	cmd.SetCID(cid)
	cmd.SetSLBA(lba)
	cmd.SetNLB(nlb)
	cmd.SGL1().SetKeyed(q.Addr()+uint64(off), uint32(n), q.RKey(), nvme.SGLAddress)
}

// Read reads nlb blocks at lba to off of the queue's memory.
func (q *Queue) Read(ctx context.Context, nsid uint32, lba uint64, nlb uint32, off, n int) error {
	cmd := make(nvme.Command, nvme.SQESize)
	q.IO(cmd, nvme.CmdRead, 0x4EAD, nsid, lba, nlb, off, n)
	_, err := q.must(q.Do(ctx, cmd))
	return err
}

// Write writes nlb blocks at lba from off of the queue's memory.
func (q *Queue) Write(ctx context.Context, nsid uint32, lba uint64, nlb uint32, off, n int) error {
	cmd := make(nvme.Command, nvme.SQESize)
	q.IO(cmd, nvme.CmdWrite, 0x3417, nsid, lba, nlb, off, n)
	_, err := q.must(q.Do(ctx, cmd))
	return err
}

// WriteInCapsule writes data in the capsule itself.
func (q *Queue) WriteInCapsule(ctx context.Context, nsid uint32, lba uint64, nlb uint32, data []byte) error {
	cmd := make(nvme.Command, nvme.SQESize)
	q.IO(cmd, nvme.CmdWrite, 0x1CAB, nsid, lba, nlb, 0, 0)
	cmd.SGL1().SetInCapsule(0, uint32(len(data)))
	_, err := q.must(q.Do(ctx, cmd, data))
	return err
}
