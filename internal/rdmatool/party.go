package rdmatool

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

const (
	memorySize = 1 << 20 // of each party
	depth      = 16      // of each queue
	recvSize   = 4096    // each receive; they are at the start of the memory
	dataOffset = 512 << 10
	bulkSize   = 256 << 10
	wordOffset = 256 << 10 // of the atomics' operand, and of what they return

	sendID = 1 << 32 // ids of sends; receives have their index
)

// party is one end of the trial. The caller's goroutine owns its CQ and QP.
type party struct {
	s      *smoke
	mem    *fabric.Memory
	mr     fabric.MemoryRegion
	cq     fabric.CompletionQueue
	conn   fabric.Conn
	win    fabric.MemoryWindow
	key    uint32 // of win
	posted int    // receives
	got    []fabric.Completion
	wc     [8]fabric.Completion
}

func (p *party) register() (err error) {
	if p.mem, err = fabric.AllocMemory(memorySize); err != nil {
		return err
	}
	access := fabric.AccessLocalWrite | fabric.AccessRemoteRead | fabric.AccessRemoteWrite
	lim := p.s.dev.Limits()
	if lim.Atomics {
		access |= fabric.AccessRemoteAtomic
	}
	if lim.MemoryWindows {
		access |= fabric.AccessWindowBind
	}
	p.mr, err = p.s.dev.Register(p.mem, access)
	return err
}

func (p *party) config(private string) fabric.ConnConfig {
	return fabric.ConnConfig{
		SendCQ: p.cq, RecvCQ: p.cq, SendDepth: depth, RecvDepth: depth, MaxInline: 64, ORD: 4, IRD: 4,
		RetryCount: 7, RNRRetry: 7, PrivateData: []byte(private), Setup: p.postReceives,
	}
}

func (p *party) postReceives(qp fabric.QueuePair) error {
	var wrs [depth]fabric.RecvWR
	var sges [depth]fabric.SGE
	for i := range wrs {
		wrs[i] = fabric.RecvWR{ID: uint64(i), FirstSGE: uint32(i), NumSGE: 1}
		sges[i] = p.sge(i*recvSize, recvSize)
	}
	n, err := qp.PostRecv(wrs[:], sges[:])
	p.posted = n
	return err
}

func (p *party) sge(off, n int) fabric.SGE {
	return fabric.SGE{Addr: p.mem.Addr() + uint64(off), Length: uint32(n), LKey: p.mr.LKey()}
}

func (p *party) bytes(off, n int) []byte { return p.mem.Bytes()[off : off+n] }

// fill makes a pattern of the party's data.
func (p *party) fill(seed byte, n int) []byte {
	b := p.bytes(dataOffset, n)
	for i := range b {
		b[i] = byte(i)*31 + byte(i>>8)*17 + seed
	}
	return b
}

// next waits for the party's next completion. Both parties are polled: with a
// provider in software the other's Poll may be what makes it come.
func (p *party) next(ctx context.Context) (fabric.Completion, error) {
	for {
		if len(p.got) > 0 {
			c := p.got[0]
			p.got = p.got[1:]
			return c, nil
		}
		n, err := p.s.poll()
		if err == nil && n == 0 {
			err = p.s.sleep(ctx)
		}
		if err != nil {
			return fabric.Completion{}, err
		}
	}
}

// poll takes what both CQs have.
func (s *smoke) poll() (total int, err error) {
	for _, p := range []*party{s.a, s.b} {
		n, err := p.cq.Poll(p.wc[:])
		if err != nil {
			return total, err
		}
		p.got = append(p.got, p.wc[:n]...)
		total += n
	}
	return total, nil
}

// sleep waits until a CQ has something, or a provider in software wants a Poll.
func (s *smoke) sleep(ctx context.Context) error {
	if err := errors.Join(s.a.cq.Arm(), s.b.cq.Arm()); err != nil {
		return err
	}
	if n, err := s.poll(); n > 0 || err != nil {
		return err
	}
	select {
	case <-s.wake:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: no completion", fabric.ErrTimeout)
	}
}

// expect waits for the completion of that id.
func (p *party) expect(ctx context.Context, id uint64) (fabric.Completion, error) {
	c, err := p.next(ctx)
	switch {
	case err != nil:
		return c, err
	case c.Status != fabric.StatusSuccess:
		return c, fmt.Errorf("completed as %q (vendor error %d)", c.Status, c.Vendor)
	case c.ID != id:
		return c, fmt.Errorf("a completion of WR %#x came, not of %#x", c.ID, id)
	}
	return c, nil
}

// post posts one signaled WR of n bytes of its data and waits for its end.
func (p *party) post(ctx context.Context, wr fabric.SendWR, n int) error {
	wr.ID, wr.NumSGE, wr.Flags = sendID, 1, wr.Flags|fabric.FlagSignaled
	if _, err := p.conn.QueuePair().PostSend([]fabric.SendWR{wr}, []fabric.SGE{p.sge(dataOffset, n)}); err != nil {
		if errors.Is(err, fabric.ErrNotSupported) {
			return errSkip("the device does not have it")
		}
		return err
	}
	_, err := p.expect(ctx, sendID)
	return err
}

// message posts a WR that takes a receive of b, and gives the completion of
// that.
func (s *smoke) message(ctx context.Context, wr fabric.SendWR, n int) (fabric.Completion, error) {
	if err := s.a.post(ctx, wr, n); err != nil {
		return fabric.Completion{}, err
	}
	c, err := s.b.expect(ctx, uint64(depth-s.b.posted))
	if err == nil {
		s.b.posted--
	}
	return c, err
}

// sendOf sends n bytes by wr and compares what arrives.
func (s *smoke) sendOf(ctx context.Context, wr fabric.SendWR, n int) (fabric.Completion, error) {
	want := s.a.fill(byte(depth-s.b.posted), n)
	c, err := s.message(ctx, wr, n)
	if err != nil {
		return c, err
	}
	if got := s.b.bytes(int(c.ID)*recvSize, n); int(c.ByteLen) != n || !bytes.Equal(got, want) {
		return c, fmt.Errorf("%d bytes were sent, %d others arrived", n, c.ByteLen)
	}
	return c, nil
}

func (s *smoke) send(ctx context.Context) (string, error) {
	_, err := s.sendOf(ctx, fabric.SendWR{Op: fabric.OpSend}, recvSize)
	return size(recvSize), err
}

func (s *smoke) sendInline(ctx context.Context) (string, error) {
	n := min(s.a.conn.QueuePair().MaxInline(), recvSize)
	if n == 0 {
		return "", errSkip("no inline data was granted")
	}
	_, err := s.sendOf(ctx, fabric.SendWR{Op: fabric.OpSend, Flags: fabric.FlagInline}, n)
	return size(uint64(n)), err
}

const immediate = 0xfeedbeef

func checkImmediate(c fabric.Completion) error {
	if c.Flags&fabric.CompletionImm == 0 || c.Imm != immediate {
		return fmt.Errorf("the immediate %#x arrived as %#x", uint32(immediate), c.Imm)
	}
	return nil
}

func (s *smoke) sendImm(ctx context.Context) (string, error) {
	c, err := s.sendOf(ctx, fabric.SendWR{Op: fabric.OpSendImm, Imm: immediate}, 64)
	if err == nil {
		err = checkImmediate(c)
	}
	return "", err
}

// toPeer is a WR on the peer's data, through its region.
func (s *smoke) toPeer(op fabric.Opcode) fabric.SendWR {
	return fabric.SendWR{Op: op, RemoteAddr: s.b.mem.Addr() + dataOffset, RKey: s.b.mr.RKey()}
}

func (s *smoke) sameData(n int) error {
	if !bytes.Equal(s.a.bytes(dataOffset, n), s.b.bytes(dataOffset, n)) {
		return errors.New("the data differ")
	}
	return nil
}

func (s *smoke) write(ctx context.Context) (string, error) {
	s.a.fill(1, bulkSize)
	start := time.Now()
	if err := s.a.post(ctx, s.toPeer(fabric.OpWrite), bulkSize); err != nil {
		return "", err
	}
	took := time.Since(start)
	// Where a WRITE is not answered, the message behind it says it is there.
	if _, err := s.sendOf(ctx, fabric.SendWR{Op: fabric.OpSend}, 0); err != nil {
		return "", err
	}
	return rate(bulkSize, took), s.sameData(bulkSize)
}

func (s *smoke) writeImm(ctx context.Context) (string, error) {
	s.a.fill(2, recvSize)
	wr := s.toPeer(fabric.OpWriteImm)
	wr.Imm = immediate
	c, err := s.message(ctx, wr, recvSize)
	if err != nil {
		return "", err
	}
	return "", errors.Join(checkImmediate(c), s.sameData(recvSize))
}

func (s *smoke) read(ctx context.Context) (string, error) {
	if s.a.conn.ORD() == 0 {
		return "", errSkip("no RDMA READ was granted")
	}
	s.b.fill(3, bulkSize)
	start := time.Now()
	if err := s.a.post(ctx, s.toPeer(fabric.OpRead), bulkSize); err != nil {
		return "", err
	}
	return rate(bulkSize, time.Since(start)), s.sameData(bulkSize)
}

// atomic runs one atomic on the peer's word; old and now are what the word
// should have been before and be after it.
func (s *smoke) atomic(ctx context.Context, wr fabric.AtomicWR, old, now uint64) error {
	if !s.dev.Limits().Atomics {
		return errSkip("the device has no atomics")
	}
	at, ok := s.a.conn.QueuePair().(fabric.Atomics)
	if !ok {
		return errors.New("the device claims atomics, its queue pair has none")
	}
	wr.ID, wr.Flags = sendID, fabric.FlagSignaled
	wr.RemoteAddr, wr.RKey = s.b.mem.Addr()+wordOffset, s.b.mr.RKey()
	if _, err := at.PostAtomic([]fabric.AtomicWR{wr}, []fabric.SGE{s.a.sge(wordOffset, 8)}); err != nil {
		return err
	}
	if _, err := s.a.expect(ctx, sendID); err != nil {
		return err
	}
	gotOld := binary.NativeEndian.Uint64(s.a.bytes(wordOffset, 8))
	gotNow := binary.NativeEndian.Uint64(s.b.bytes(wordOffset, 8))
	if gotOld != old || gotNow != now {
		return fmt.Errorf("the word was said to be %d and is %d, want %d and %d", gotOld, gotNow, old, now)
	}
	return nil
}

func (s *smoke) fetchAdd(ctx context.Context) (string, error) {
	binary.NativeEndian.PutUint64(s.b.bytes(wordOffset, 8), 40)
	return "40 + 2 = 42", s.atomic(ctx, fabric.AtomicWR{Op: fabric.OpFetchAdd, SwapAdd: 2}, 40, 42)
}

func (s *smoke) compareSwap(ctx context.Context) (string, error) {
	if err := s.atomic(ctx, fabric.AtomicWR{Op: fabric.OpCompareSwap, Compare: 41, SwapAdd: 7}, 42, 42); err != nil {
		return "", err
	}
	return "42 is not 41; 42 becomes 7", s.atomic(ctx, fabric.AtomicWR{Op: fabric.OpCompareSwap, Compare: 42, SwapAdd: 7}, 42, 7)
}

// window binds a window of b and writes through it.
func (s *smoke) window(ctx context.Context) (string, error) {
	wd, ok := s.dev.(fabric.MemoryWindower)
	bind, ok2 := s.b.conn.QueuePair().(fabric.WindowBinder)
	if !ok || !ok2 || !s.dev.Limits().MemoryWindows {
		return "", errSkip("the device has no type 2 memory windows")
	}
	var err error
	if s.b.win, err = wd.NewMemoryWindow(); err != nil {
		return "", err
	}
	if s.b.key, err = bind.PostBind(s.b.win, s.b.mr, dataOffset, recvSize, fabric.AccessRemoteWrite, sendID, fabric.FlagSignaled); err != nil {
		return "", err
	}
	if _, err := s.b.expect(ctx, sendID); err != nil {
		return "", err
	}
	s.a.fill(4, recvSize)
	wr := s.toPeer(fabric.OpWrite)
	wr.RKey = s.b.key
	if err := s.a.post(ctx, wr, recvSize); err != nil {
		return "", err
	}
	if _, err := s.sendOf(ctx, fabric.SendWR{Op: fabric.OpSend}, 0); err != nil {
		return "", err
	}
	return fmt.Sprintf("key %#x", s.b.key), s.sameData(recvSize)
}

func (s *smoke) sendInvalidate(ctx context.Context) (string, error) {
	switch {
	case !s.dev.Limits().SendInvalidate:
		return "", errSkip("the device cannot invalidate remotely")
	case s.b.win == nil:
		return "", errSkip("no window to invalidate")
	}
	c, err := s.sendOf(ctx, fabric.SendWR{Op: fabric.OpSendInv, RKey: s.b.key}, 64)
	switch {
	case err != nil:
		return "", err
	case c.Flags&fabric.CompletionInvalidated == 0:
		return "the receiving device does not tell the key", nil
	case c.Imm != s.b.key:
		return "", fmt.Errorf("the key %#x was invalidated as %#x", s.b.key, c.Imm)
	}
	return fmt.Sprintf("key %#x", c.Imm), nil
}

// close closes what the party has.
func (p *party) close() error {
	var errs []error
	if p.conn != nil {
		errs = append(errs, p.conn.Close())
	}
	if p.win != nil {
		errs = append(errs, p.win.Close())
	}
	if p.cq != nil {
		errs = append(errs, p.cq.Close())
	}
	if p.mr != nil {
		errs = append(errs, p.mr.Close())
	}
	if p.mem != nil {
		errs = append(errs, p.mem.Close())
	}
	return errors.Join(errs...)
}

func rate(n int, took time.Duration) string {
	if took <= 0 {
		return size(uint64(n))
	}
	return fmt.Sprintf("%s, %s/s", size(uint64(n)), size(uint64(float64(n)/took.Seconds())))
}
