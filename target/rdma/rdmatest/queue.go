package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

// Sizes of a queue's buffers.
const (
	recvSize  = 64 // a response is 16 bytes; longer ones are to be seen
	pollBatch = 64
)

// Kinds of work requests, the low byte of their IDs.
const (
	idRecv = iota + 1
	idSend
	idBind
)

// Response is a response capsule.
type Response struct {
	Result      uint64
	Status      nvme.Status
	SQHD        uint16
	SQID        uint16
	CID         uint16
	Invalidated bool   // the SEND ended a key of ours
	Key         uint32 // that key
	Len         uint32 // bytes of the capsule
}

// Queue is a raw host's end of a connection.
type Queue struct {
	opts   Options
	dev    fabric.Device
	cq     fabric.CompletionQueue
	conn   fabric.Conn
	qp     fabric.QueuePair
	wake   chan struct{}
	accept []byte // private data of the accept

	data, ctl *fabric.Memory
	dataMR    fabric.MemoryRegion
	ctlMR     fabric.MemoryRegion

	nRecv    int
	sendSize int
	freeSend []uint32 // send buffers
	held     []uint32 // receives not posted again, with HoldReceives
	wc       [pollBatch]fabric.Completion
	recvWRs  []fabric.RecvWR
	recvSGEs []fabric.SGE
	sendWR   [1]fabric.SendWR
	sendSGE  [1]fabric.SGE
	got      []Response // not yet taken
	taken    []Response // by the last Take
	err      error      // of the first completion that failed
	bound    bool       // a memory window was bound
}

// Err is the first completion error of the queue, flushes excepted.
func (q *Queue) Err() error { return q.err }

// Conn is the connection itself.
func (q *Queue) Conn() fabric.Conn { return q.conn }

// QueuePair is the QP itself.
func (q *Queue) QueuePair() fabric.QueuePair { return q.qp }

// Accepted is what the target's accept said.
func (q *Queue) Accepted() (a nvme.CMAccept, err error) {
	err = a.Unmarshal(q.accept)
	return a, err
}

// Data is the memory that the target may read and write.
func (q *Queue) Data() []byte { return q.data.Bytes() }

// Addr and RKey name Data to the target.
func (q *Queue) Addr() uint64 { return q.data.Addr() }

// RKey is the key of Data.
func (q *Queue) RKey() uint32 { return q.dataMR.RKey() }

// Region is the registration of Data.
func (q *Queue) Region() fabric.MemoryRegion { return q.dataMR }

// Send sends the parts as one capsule, whatever they are. It polls until a send
// buffer is free.
func (q *Queue) Send(parts ...[]byte) error { return q.send(parts) }

func (q *Queue) send(parts [][]byte) error {
	for len(q.freeSend) == 0 {
		if _, err := q.Poll(); err != nil {
			return err
		}
	}
	i := q.freeSend[len(q.freeSend)-1]
	buf := q.sendBuf(i)
	n := 0
	for _, p := range parts {
		if len(p) > len(buf)-n {
			return fmt.Errorf("capsule larger than Options.CapsuleSize %d", q.sendSize)
		}
		n += copy(buf[n:], p)
	}
	return q.post(i, n)
}

// SendCommand sends one SQE and the data behind it, without an allocation.
func (q *Queue) SendCommand(cmd nvme.Command, data []byte) error {
	for len(q.freeSend) == 0 {
		if _, err := q.Poll(); err != nil {
			return err
		}
	}
	i := q.freeSend[len(q.freeSend)-1]
	buf := q.sendBuf(i)
	n := copy(buf, cmd)
	n += copy(buf[n:], data)
	return q.post(i, n)
}

func (q *Queue) sendBuf(i uint32) []byte {
	off := q.nRecv*recvSize + int(i)*q.sendSize
	return q.ctl.Bytes()[off : off+q.sendSize]
}

// post posts send buffer i, the last of freeSend.
func (q *Queue) post(i uint32, n int) error {
	off := q.nRecv*recvSize + int(i)*q.sendSize
	q.sendSGE[0] = fabric.SGE{Addr: q.ctl.Addr() + uint64(off), Length: uint32(n), LKey: q.ctlMR.LKey()}
	q.sendWR[0] = fabric.SendWR{ID: uint64(i)<<8 | idSend, NumSGE: 1, Op: fabric.OpSend, Flags: fabric.FlagSignaled}
	if _, err := q.qp.PostSend(q.sendWR[:], q.sendSGE[:]); err != nil {
		return err
	}
	q.freeSend = q.freeSend[:len(q.freeSend)-1]
	return nil
}

// Poll takes completions and returns how many responses are waiting to be
// taken. Responses are kept until Take.
func (q *Queue) Poll() (int, error) {
	n, err := q.cq.Poll(q.wc[:])
	q.recvWRs, q.recvSGEs = q.recvWRs[:0], q.recvSGEs[:0]
	for i := range q.wc[:n] {
		q.completed(&q.wc[i])
	}
	if len(q.recvWRs) > 0 {
		if _, perr := q.qp.PostRecv(q.recvWRs, q.recvSGEs); perr != nil && q.err == nil && q.conn.Err() == nil {
			q.err = perr
		}
	}
	if err == nil {
		err = q.err
	}
	return len(q.got), err
}

func (q *Queue) completed(wc *fabric.Completion) {
	i := uint32(wc.ID >> 8)
	kind := wc.ID & 0xFF
	if kind == idSend {
		q.freeSend = append(q.freeSend, i)
	}
	switch {
	case wc.Status == fabric.StatusFlushed:
		if q.err == nil {
			q.err = net.ErrClosed
		}
		return
	case wc.Status != fabric.StatusSuccess:
		if q.err == nil || errors.Is(q.err, net.ErrClosed) {
			q.err = fmt.Errorf("completion of kind %d: %v", kind, wc.Status)
		}
		return
	case kind == idRecv:
		q.response(i, wc)
	case kind == idBind:
		q.bound = true
	}
}

func (q *Queue) response(i uint32, wc *fabric.Completion) {
	cqe := nvme.Completion(q.ctl.Bytes()[int(i)*recvSize:][:nvme.CQESize])
	q.got = append(q.got, Response{
		Result: cqe.Result(), Status: cqe.Status(), SQHD: cqe.SQHD(), SQID: cqe.SQID(), CID: cqe.CID(),
		Len: wc.ByteLen, Invalidated: wc.Flags&fabric.CompletionInvalidated != 0, Key: wc.Imm,
	})
	if q.opts.HoldReceives {
		q.held = append(q.held, i)
		return
	}
	q.addRecv(i)
}

func (q *Queue) addRecv(i uint32) {
	q.recvWRs = append(q.recvWRs, fabric.RecvWR{ID: uint64(i)<<8 | idRecv, FirstSGE: uint32(len(q.recvSGEs)), NumSGE: 1})
	q.recvSGEs = append(q.recvSGEs, fabric.SGE{
		Addr: q.ctl.Addr() + uint64(i)*recvSize, Length: recvSize, LKey: q.ctlMR.LKey(),
	})
}

// PostHeld posts the receives that HoldReceives kept back, at most n of them.
func (q *Queue) PostHeld(n int) error {
	q.recvWRs, q.recvSGEs = q.recvWRs[:0], q.recvSGEs[:0]
	for range min(n, len(q.held)) {
		q.addRecv(q.held[len(q.held)-1])
		q.held = q.held[:len(q.held)-1]
	}
	if len(q.recvWRs) == 0 {
		return nil
	}
	_, err := q.qp.PostRecv(q.recvWRs, q.recvSGEs)
	return err
}

// Take removes the responses that are waiting and returns them. They are valid
// until the next Take.
func (q *Queue) Take() []Response {
	q.got, q.taken = q.taken[:0], q.got
	return q.taken
}

// Wait polls until a response has come and takes the first. The error is the
// connection's end, or ctx's.
func (q *Queue) Wait(ctx context.Context) (Response, error) {
	return q.waitFor(ctx, func(*Response) bool { return true })
}

// WaitCID polls until the response to cid has come and takes it.
func (q *Queue) WaitCID(ctx context.Context, cid uint16) (Response, error) {
	return q.waitFor(ctx, func(r *Response) bool { return r.CID == cid })
}

func (q *Queue) waitFor(ctx context.Context, match func(*Response) bool) (Response, error) {
	for seen := 0; ; {
		for ; seen < len(q.got); seen++ {
			if match(&q.got[seen]) {
				r := q.got[seen]
				q.got = append(q.got[:seen], q.got[seen+1:]...)
				return r, nil
			}
		}
		if err := q.sleep(ctx, seen); err != nil {
			return Response{}, err
		}
	}
}

// sleep waits for more than n responses, or for the end.
func (q *Queue) sleep(ctx context.Context, n int) error {
	for range 2 {
		if got, err := q.Poll(); got > n {
			return nil
		} else if err != nil {
			return err
		}
		if err := q.cq.Arm(); err != nil {
			return err
		}
	}
	select {
	case <-q.wake:
		return nil
	case <-q.conn.Done():
		if got, _ := q.Poll(); got > n {
			return nil
		}
		return fmt.Errorf("connection ended: %w", q.conn.Err())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WaitClosed polls until the connection has ended and returns why.
func (q *Queue) WaitClosed(ctx context.Context) error {
	for {
		_, _ = q.Poll() // its errors are the end that is waited for
		if err := q.cq.Arm(); err != nil {
			return err
		}
		_, _ = q.Poll()
		select {
		case <-q.conn.Done():
			return q.conn.Err()
		case <-q.wake:
		case <-ctx.Done():
			return fmt.Errorf("connection still open: %w", ctx.Err())
		}
	}
}

// Do sends a command and waits for its response.
func (q *Queue) Do(ctx context.Context, cmd nvme.Command, data ...[]byte) (Response, error) {
	if err := q.send(append([][]byte{cmd}, data...)); err != nil {
		return Response{}, err
	}
	return q.WaitCID(ctx, cmd.CID())
}

// Close disconnects, waits for the flush and frees everything.
func (q *Queue) Close() error {
	if q.conn == nil {
		return q.free()
	}
	conn := q.conn
	q.conn = nil
	err := conn.Disconnect()
	for range 100 { // what has flushed by then is all there is
		if n, _ := q.cq.Poll(q.wc[:]); n == 0 {
			break
		}
	}
	return errors.Join(err, conn.Close(), q.free())
}

func (q *Queue) free() error {
	var errs []error
	for _, mr := range []fabric.MemoryRegion{q.dataMR, q.ctlMR} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	for _, m := range []*fabric.Memory{q.data, q.ctl} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	if q.cq != nil {
		errs = append(errs, q.cq.Close())
	}
	q.dataMR, q.ctlMR, q.data, q.ctl, q.cq = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}
