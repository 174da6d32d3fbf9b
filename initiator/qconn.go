package initiator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
	"github.com/nvmf-go/nvmf/nvme"
)

const (
	recvSize   = 64  // bytes of a receive: a response is 16, and longer ones are taken
	capsuleGap = 128 // bytes from SQE to SQE
	pollBatch  = 64
	hostReads  = 16 // RDMA READs of the target that we answer at a time, where the device does
)

// Low bit of a WR's ID.
const (
	wrSend = 0
	wrRecv = 1
)

// answerer takes the responses that arrive.
type answerer interface {
	answer(cqe nvme.Completion, wc *fabric.Completion)
}

// qconn is the RDMA connection of one queue, with its CQ and its capsules. It
// is dialled by the goroutine that builds the association, which then gives it
// to the owner of the queue; that one ends it with close.
type qconn struct {
	// Constant once dialled.

	assoc     *association
	dom       *domain
	qid       uint16
	depth     int // commands in flight
	conn      fabric.Conn
	cq        fabric.CompletionQueue
	ctl       *fabric.Memory // receives, then SQEs
	ctlMR     fabric.MemoryRegion
	sendDepth uint32
	inPoll    bool   // the device sends in Poll
	signalAt  uint32 // a batch that makes so many unsignaled WRs ends in a signaled one

	// Any goroutine.

	w   atomic.Pointer[fabric.Waker]
	up  atomic.Bool // the handshake has succeeded
	cut atomic.Bool // we have ended it, while the association goes on

	// Owner.

	qp         fabric.QueuePair
	inline     fabric.SendFlags
	tail       uint32 // WRs posted
	done       uint32 // of them known to be complete: all before it
	unsignaled uint32 // posted since the last signaled one
	wrs        []fabric.SendWR
	sges       []fabric.SGE
	recvWRs    []fabric.RecvWR
	recvSGEs   []fabric.SGE
	windows    []window // by slot, when the domain has windows
	binder     fabric.WindowBinder
	wc         [pollBatch]fabric.Completion
}

// window is a slot's memory window.
type window struct {
	mw  fabric.MemoryWindow
	key uint32 // of the last bind
}

// dial connects the RDMA connection of a queue for depth commands in flight. No
// command is sent.
func (a *association) dial(ctx context.Context, qid uint16, depth int) (_ *qconn, err error) {
	cfg := &a.ctrl.cfg
	qc := &qconn{assoc: a, dom: a.dom, qid: qid, depth: depth}
	qc.w.Store(fabric.NewWaker())
	if err := qc.alloc(); err != nil {
		return nil, newConnectError(StageDevice, cfg, qid, errors.Join(err, qc.free()))
	}
	private := make([]byte, nvme.CMRequestSize)
	(&nvme.CMRequest{QID: qid, HRQSize: uint16(depth + 1), HSQSize: uint16(depth), CNTLID: a.queueCNTLID(qid)}).MarshalTo(private)
	limits := qc.dom.dev.Limits()
	qc.conn, err = qc.dom.dev.Dial(ctx, netip.AddrPortFrom(cfg.LocalAddr, 0), cfg.Addr, fabric.ConnConfig{
		SendCQ: qc.cq, RecvCQ: qc.cq, SendDepth: int(qc.sendDepth), RecvDepth: depth + 1,
		MaxSendSGE: 2, MaxInline: nvme.SQESize, ORD: 0, IRD: min(hostReads, limits.MaxIRD),
		RetryCount: 7, RNRRetry: 7, PrivateData: private, TrafficClass: cfg.TOS,
		Setup: qc.setUp, Closed: qc.closed,
	})
	if err != nil {
		return nil, newConnectError(StageCM, cfg, qid, errors.Join(err, qc.free()))
	}
	a.add(qc)
	qc.up.Store(true)
	if err := qc.checkAccept(); err != nil {
		qc.close()
		return nil, newConnectError(StageCM, cfg, qid, err)
	}
	return qc, nil
}

// alloc makes what the connection needs before it is dialled.
func (qc *qconn) alloc() (err error) {
	limits := qc.dom.dev.Limits()
	qc.inPoll = limits.SendsInPoll
	// A command is a bind, a SEND and an invalidate at most.
	qc.sendDepth = uint32(4*qc.depth + 16)
	if limits.MaxQPDepth > 0 {
		qc.sendDepth = min(qc.sendDepth, uint32(limits.MaxQPDepth))
	}
	qc.signalAt = max(qc.sendDepth/4, 1)
	recvs := qc.depth + 1
	if qc.cq, err = qc.dom.dev.NewCompletionQueue(int(qc.sendDepth)+recvs, qc.notify); err != nil {
		return err
	}
	if qc.ctl, err = fabric.AllocMemory(recvs*recvSize + qc.depth*capsuleGap); err != nil {
		return err
	}
	if qc.ctlMR, err = qc.dom.dev.Register(qc.ctl, fabric.AccessLocalWrite); err != nil {
		return err
	}
	qc.wrs = make([]fabric.SendWR, 0, 2*qc.depth)
	qc.sges = make([]fabric.SGE, 0, 3*qc.depth)
	qc.recvWRs = make([]fabric.RecvWR, 0, recvs)
	qc.recvSGEs = make([]fabric.SGE, 0, recvs)
	if qc.dom.windows && qc.qid != 0 {
		return qc.makeWindows()
	}
	return nil
}

func (qc *qconn) makeWindows() error {
	dev := qc.dom.dev.(fabric.MemoryWindower) // domain.windows says so
	for range qc.depth {
		mw, err := dev.NewMemoryWindow()
		if err != nil {
			return fmt.Errorf("memory window: %w", err)
		}
		qc.windows = append(qc.windows, window{mw: mw})
	}
	return nil
}

// notify is called by the provider.
func (qc *qconn) notify() { qc.w.Load().Wake() }

// setUp posts the receives, before the target can send.
func (qc *qconn) setUp(qp fabric.QueuePair) error {
	qc.qp = qp
	if qp.MaxInline() >= nvme.SQESize {
		qc.inline = fabric.FlagInline
	}
	if len(qc.windows) > 0 {
		var ok bool
		if qc.binder, ok = qp.(fabric.WindowBinder); !ok {
			return fmt.Errorf("memory windows: %w", fabric.ErrNotSupported)
		}
	}
	for i := range uint64(qc.depth + 1) {
		qc.addRecv(i)
	}
	_, err := qp.PostRecv(qc.recvWRs, qc.recvSGEs)
	return err
}

// closed is called by the provider when the connection has ended.
func (qc *qconn) closed(err error) {
	if qc.up.Load() && !qc.cut.Load() {
		qc.assoc.fail(fmt.Errorf("queue %d: %w", qc.qid, err))
	}
}

// checkAccept judges what the target's accept says. Linux looks at none of it,
// so only what cannot work is refused.
func (qc *qconn) checkAccept() error {
	if qc.conn.IRD() == 0 && qc.conn.Device().Info().Transport != fabric.TransportIWARP {
		return fmt.Errorf("%w: it accepts no RDMA READ responder resources (initiator depth 0), so it could never fetch the data of a write", ErrProtocol)
	}
	return nil
}

func (qc *qconn) addRecv(i uint64) {
	qc.recvWRs = append(qc.recvWRs, fabric.RecvWR{ID: i<<1 | wrRecv, FirstSGE: uint32(len(qc.recvSGEs)), NumSGE: 1})
	qc.recvSGEs = append(qc.recvSGEs, fabric.SGE{Addr: qc.ctl.Addr() + i*recvSize, Length: recvSize, LKey: qc.ctlMR.LKey()})
}

// capsuleOff is where the SQE of slot i is in ctl.
func (qc *qconn) capsuleOff(i int) int { return (qc.depth+1)*recvSize + i*capsuleGap }

// sqe is the SQE of slot i as it will be sent.
func (qc *qconn) sqe(i int) nvme.Command {
	return qc.ctl.Bytes()[qc.capsuleOff(i):][:nvme.SQESize:nvme.SQESize]
}

// room says whether n more WRs fit the send queue.
func (qc *qconn) room(n int) bool {
	return uint32(len(qc.wrs)+n) <= qc.sendDepth-(qc.tail-qc.done)
}

// next is the position that the next gathered WR will have: done is beyond it
// when it is complete. No bind may be posted before it is flushed.
func (qc *qconn) next() uint32 { return qc.tail + uint32(len(qc.wrs)) }

// gather adds the capsule of slot i to the batch: its SQE, and data behind it
// when data has a length.
func (qc *qconn) gather(i int, data fabric.SGE) {
	wr := fabric.SendWR{Op: fabric.OpSend, FirstSGE: uint32(len(qc.sges)), NumSGE: 1, Flags: qc.inline}
	qc.sges = append(qc.sges, fabric.SGE{
		Addr: qc.ctl.Addr() + uint64(qc.capsuleOff(i)), Length: nvme.SQESize, LKey: qc.ctlMR.LKey(),
	})
	if data.Length > 0 {
		qc.sges = append(qc.sges, data)
		wr.NumSGE, wr.Flags = 2, 0
	}
	qc.wrs = append(qc.wrs, wr)
}

// gatherInvalidate adds the local invalidate of key to the batch.
func (qc *qconn) gatherInvalidate(key uint32) {
	qc.wrs = append(qc.wrs, fabric.SendWR{Op: fabric.OpLocalInv, RKey: key})
}

// bind makes the key of slot i for n bytes of r at off. The batch must be
// empty.
func (qc *qconn) bind(i int, r *region, off, n int, a fabric.Access) (uint32, error) {
	w := &qc.windows[i]
	key, err := qc.binder.PostBind(w.mw, r.mr, off, n, a, uint64(qc.tail)<<1|wrSend, 0)
	if err != nil {
		return 0, err
	}
	qc.tail++
	qc.unsignaled++
	w.key = key
	return key, nil
}

// flush posts the batch; with signal its end will be known. An error is the end
// of the connection.
func (qc *qconn) flush(signal bool) error {
	n := len(qc.wrs)
	if n == 0 {
		return nil
	}
	for i := range qc.wrs {
		qc.wrs[i].ID = uint64(qc.tail+uint32(i))<<1 | wrSend
	}
	qc.unsignaled += uint32(n)
	if signal || qc.unsignaled >= qc.signalAt {
		qc.wrs[n-1].Flags |= fabric.FlagSignaled
		qc.unsignaled = 0
	}
	posted, err := qc.qp.PostSend(qc.wrs, qc.sges)
	qc.tail += uint32(posted)
	qc.wrs, qc.sges = qc.wrs[:0], qc.sges[:0]
	if err != nil {
		return fmt.Errorf("queue %d: %w", qc.qid, err)
	}
	return nil
}

// poll takes the completions that are there, gives the responses to to, and
// posts the receives anew. It returns how many there were.
func (qc *qconn) poll(to answerer) int {
	n, err := qc.cq.Poll(qc.wc[:])
	if err != nil {
		qc.assoc.fail(fmt.Errorf("queue %d: %w", qc.qid, err))
	}
	qc.recvWRs, qc.recvSGEs = qc.recvWRs[:0], qc.recvSGEs[:0]
	for i := range qc.wc[:n] {
		qc.completed(&qc.wc[i], to)
	}
	if len(qc.recvWRs) > 0 {
		if _, err := qc.qp.PostRecv(qc.recvWRs, qc.recvSGEs); err != nil {
			qc.assoc.fail(fmt.Errorf("queue %d: %w", qc.qid, err))
		}
	}
	return n
}

func (qc *qconn) completed(wc *fabric.Completion, to answerer) {
	if wc.Status != fabric.StatusSuccess {
		qc.failed(wc)
		return
	}
	i := wc.ID >> 1
	if wc.ID&1 == wrSend {
		qc.done = uint32(i) + 1
		return
	}
	if i > uint64(qc.depth) { // not an ID of ours: the provider is at fault
		qc.assoc.fail(fmt.Errorf("queue %d: completion of unknown receive %d", qc.qid, i))
		return
	}
	qc.addRecv(i)
	if wc.ByteLen < nvme.CQESize {
		qc.violated("a response of %d bytes, a completion has %d", wc.ByteLen, nvme.CQESize)
		return
	}
	to.answer(nvme.Completion(qc.ctl.Bytes()[i*recvSize:][:nvme.CQESize]), wc)
}

// failed is a WR that did not succeed. A flush says that something else has
// failed, which is to be heard of in Closed; if it is not, the flush is the
// reason.
func (qc *qconn) failed(wc *fabric.Completion) {
	if qc.cut.Load() {
		return
	}
	if wc.Status == fabric.StatusFlushed {
		if err := qc.conn.Err(); err != nil {
			qc.assoc.fail(fmt.Errorf("queue %d: %w", qc.qid, err))
		} else {
			qc.assoc.fail(fmt.Errorf("queue %d: connection lost: %w", qc.qid, net.ErrClosed))
		}
		return
	}
	qc.assoc.fail(fmt.Errorf("queue %d: %v: %v", qc.qid, wc.Op, wc.Status))
}

// violated ends the association for an answer that makes no sense.
func (qc *qconn) violated(format string, a ...any) {
	qc.assoc.fail(fmt.Errorf("queue %d: %w: %s", qc.qid, ErrProtocol, fmt.Sprintf(format, a...)))
}

// ended says whether the owner has to leave the connection.
func (qc *qconn) ended() bool { return qc.assoc.gone.Load() || qc.cut.Load() }

// cutOff ends the connection alone: its flushes are no failure.
func (qc *qconn) cutOff() {
	qc.cut.Store(true)
	qc.disconnect()
	qc.w.Load().Wake()
}

// disconnect cuts the connection: any goroutine may call it.
func (qc *qconn) disconnect() { _ = qc.conn.Disconnect() } // an error means that it is cut

// close destroys the connection: from then on the target can reach no memory
// through it. The owner calls it, or who has dialled it before there is one.
func (qc *qconn) close() {
	err := qc.conn.Close()
	if err = errors.Join(err, qc.free()); err != nil {
		qc.assoc.ctrl.log().Warnf("initiator: closing queue %d: %v", qc.qid, err)
	}
	qc.assoc.remove(qc)
}

// free gives back what alloc made.
func (qc *qconn) free() error {
	var errs []error
	for i := range qc.windows {
		errs = append(errs, qc.windows[i].mw.Close())
	}
	if qc.cq != nil {
		errs = append(errs, qc.cq.Close())
	}
	if qc.ctlMR != nil {
		errs = append(errs, qc.ctlMR.Close())
	}
	if qc.ctl != nil {
		errs = append(errs, qc.ctl.Close())
	}
	qc.windows, qc.cq, qc.ctlMR, qc.ctl = nil, nil, nil, nil
	return errors.Join(errs...)
}

// exec sends one command and waits for its answer: for the commands that set a
// queue up, while nobody owns it. data is sent in the capsule when it has a
// length.
func (qc *qconn) exec(ctx context.Context, cmd nvme.Command, data fabric.SGE) (uint64, error) {
	x := &exchange{qc: qc, cid: cmd.CID()}
	copy(qc.sqe(0), cmd)
	qc.gather(0, data)
	if err := qc.flush(true); err != nil {
		return 0, err
	}
	if err := x.wait(ctx); err != nil {
		return 0, err
	}
	if !x.status.OK() {
		return x.result, statusError(cmd, qc.qid, x.status, x.result)
	}
	return x.result, nil
}

// exchange is a command of exec.
type exchange struct {
	qc     *qconn
	cid    uint16
	ok     bool
	status nvme.Status
	result uint64
}

func (x *exchange) answer(cqe nvme.Completion, _ *fabric.Completion) {
	if x.ok || cqe.CID() != x.cid {
		x.qc.violated("a response to command %#x, which was not sent", cqe.CID())
		return
	}
	x.ok, x.status, x.result = true, cqe.Status(), cqe.Result()
}

// wait polls until the answer is there. It is the owner meanwhile.
func (x *exchange) wait(ctx context.Context) error {
	qc, w := x.qc, x.qc.w.Load()
	for {
		w.Prepare()
		if err := qc.cq.Arm(); err != nil {
			return err
		}
		n := qc.poll(x)
		switch {
		case qc.assoc.gone.Load():
			return qc.assoc.reason()
		case x.ok:
			w.Cancel()
			return nil
		case n > 0:
			continue
		}
		select {
		case <-w.C:
		case <-qc.assoc.done:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrTimeout, ctxError(ctx))
		}
	}
}
