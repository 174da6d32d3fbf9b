package target

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// The other sides of the seams: a device in memory whose completions can be
// held and failed, and a transport that moves no data but copies.

// fakeDevice is a backend. Its queues complete at the Reap after Submit unless
// it is held.
type fakeDevice struct {
	mu     sync.Mutex
	info   backend.Info
	data   []byte
	medium uint64 // blocks that Refresh finds
	held   bool
	fail   map[backend.Kind]nvme.Status
	trace  []backend.Op // what was submitted, without buffers
	queues int
	closed int
}

const allKinds = backend.KindSet(1<<backend.NumKinds - 1)

func newFakeDevice(blockSize uint32, blocks uint64) *fakeDevice {
	return &fakeDevice{
		info: backend.Info{
			Type: "fake", BlockSize: blockSize, Blocks: blocks, Kinds: allKinds, WriteCache: true, ZeroAfterDiscard: true,
			Identity: "fake:medium", Granularity: 4096, Engine: "test",
		},
		data: make([]byte, uint64(blockSize)*blocks), medium: blocks, fail: map[backend.Kind]nvme.Status{},
	}
}

func (d *fakeDevice) Info() backend.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

func (d *fakeDevice) Refresh() (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := d.info.Blocks != d.medium
	d.resizeLocked()
	return changed, nil
}

func (d *fakeDevice) resizeLocked() {
	d.info.Blocks = d.medium
	if n := uint64(d.info.BlockSize) * d.medium; n > uint64(len(d.data)) {
		d.data = append(d.data, make([]byte, n-uint64(len(d.data)))...)
	}
}

func (d *fakeDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queues > d.closed {
		return backend.ErrBusy
	}
	return nil
}

func (d *fakeDevice) openQueues() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queues - d.closed
}

func (d *fakeDevice) hold(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = on
}

func (d *fakeDevice) failWith(k backend.Kind, st nvme.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail[k] = st
}

func (d *fakeDevice) takeTrace() []backend.Op {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.trace
	d.trace = nil
	return t
}

func (d *fakeDevice) NewQueue(depth int, notify func()) (backend.Queue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queues++
	return &fakeQueue{d: d, depth: depth, notify: notify, ops: make([]backend.Op, 0, depth)}, nil
}

type fakeQueue struct {
	d      *fakeDevice
	depth  int
	notify func()
	ops    []backend.Op
	shut   bool
	quiet  bool // do not trace
}

func (q *fakeQueue) Submit(ops []backend.Op) int {
	n := min(len(ops), q.depth-len(q.ops))
	q.ops = append(q.ops, ops[:n]...)
	return n
}

func (q *fakeQueue) Reap(done []backend.Completion) int {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if q.d.held {
		return 0
	}
	n := min(len(done), len(q.ops))
	for i, op := range q.ops[:n] {
		done[i] = backend.Completion{ID: op.ID, Status: q.d.runLocked(&op)}
		if !q.quiet && len(q.d.trace) < 1000 {
			op.Bufs = nil
			q.d.trace = append(q.d.trace, op)
		}
	}
	q.ops = q.ops[:copy(q.ops, q.ops[n:])]
	return n
}

func (d *fakeDevice) runLocked(op *backend.Op) nvme.Status {
	if st, ok := d.fail[op.Kind]; ok {
		return st
	}
	if op.Kind == backend.Flush {
		return nvme.Success
	}
	size := d.medium * uint64(d.info.BlockSize)
	if op.Offset > size || op.Length > size-op.Offset {
		d.resizeLocked()
		return nvme.LBAOutOfRange
	}
	at := d.data[op.Offset:][:op.Length]
	switch op.Kind {
	case backend.Read:
		for _, b := range op.Bufs {
			at = at[copy(b, at):]
		}
	case backend.Write:
		for _, b := range op.Bufs {
			at = at[copy(at, b):]
		}
	case backend.Discard, backend.WriteZeroes:
		clear(at)
		at = nil
	}
	if len(at) > 0 {
		return nvme.InternalError // the buffers do not add up
	}
	return nvme.Success
}

func (q *fakeQueue) Arm() {
	if len(q.ops) > 0 {
		q.notify()
	}
}

func (q *fakeQueue) Close() error {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if q.shut {
		return nil
	}
	if len(q.ops) > 0 {
		return errors.New("closed with operations in flight")
	}
	q.shut = true
	q.d.closed++
	return nil
}

// fakeGroup is a poll group. Its turns are taken by step, or by loop on a
// goroutine of its own.
type fakeGroup struct {
	g     *Group
	mu    sync.Mutex
	msgs  []func()
	ended bool
	wake  chan struct{}

	removed []uint32 // namespaces, by GroupConfig.Removed
}

func newFakeGroup(tb testing.TB, t *Target, depth int) *fakeGroup {
	tb.Helper()
	f := &fakeGroup{wake: make(chan struct{}, 1)}
	gone := func(n uint32) { f.removed = append(f.removed, n) }
	g, err := t.NewGroup(GroupConfig{Run: f.run, Wake: f.nudge, Removed: gone, BackendDepth: depth})
	if err != nil {
		tb.Fatal(err)
	}
	f.g = g
	return f
}

func (f *fakeGroup) run(fn func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return false
	}
	f.msgs = append(f.msgs, fn)
	f.nudge()
	return true
}

func (f *fakeGroup) nudge() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// step takes turns until nothing is left to do but what is held.
func (f *fakeGroup) step() {
	for {
		f.g.Tick()
		f.mu.Lock()
		msgs := f.msgs
		f.msgs = nil
		f.mu.Unlock()
		for _, fn := range msgs {
			fn()
		}
		n := f.g.Poll()
		f.g.Submit()
		if len(msgs) == 0 && n == 0 && f.g.Poll() == 0 {
			return
		}
	}
}

// loop is the owner's goroutine, until end.
func (f *fakeGroup) loop() {
	for range f.wake {
		f.step()
		f.g.Arm(nil)
		f.mu.Lock()
		ended := f.ended
		f.mu.Unlock()
		if ended {
			f.step()
			return
		}
	}
}

// call runs fn on the owner of a loop and waits for it.
func (f *fakeGroup) call(fn func()) {
	done := make(chan struct{})
	if !f.run(func() { fn(); close(done) }) {
		panic("the group has ended")
	}
	<-done
}

func (f *fakeGroup) end() {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	f.nudge()
}

// fakeLink is a connection.
type fakeLink struct {
	f    *fakeGroup
	q    *Queue
	name string
	peer netip.AddrPort
	addr netip.AddrPort
	hold bool // commands stay between Prepare and Execute
	held []*fakeRequest
	room int  // pieces of a loan
	keep bool // loans are not given back until the test does

	mu     sync.Mutex
	done   []string      // what happened, for golden traces
	reason error         // of Disconnect
	gone   chan struct{} // closed by Disconnect
	onDone func(*fakeRequest)
}

// fakeRequest is a transport's slot.
type fakeRequest struct {
	Request
	sqe       [nvme.SQESize]byte
	out       []byte // data from the host
	transfer  Transfer
	completed int
	sqhd      uint16
	in        []byte // data for the host
}

func newFakeLink(f *fakeGroup, name string) *fakeLink {
	return &fakeLink{
		f: f, name: name, peer: netip.MustParseAddrPort("192.0.2.9:1234"), addr: netip.MustParseAddrPort("192.0.2.1:4420"),
		gone: make(chan struct{}),
	}
}

func (l *fakeLink) Peer() netip.AddrPort  { return l.peer }
func (l *fakeLink) Local() netip.AddrPort { return l.addr }
func (l *fakeLink) Run(fn func()) bool    { return l.f.run(fn) }

func (l *fakeLink) Disconnect(reason error) {
	l.mu.Lock()
	first := l.reason == nil
	if first {
		l.reason = reason
		l.done = append(l.done, fmt.Sprintf("%s disconnected: %v", l.name, reason))
		close(l.gone)
	}
	l.mu.Unlock()
	if first {
		l.f.run(func() { l.q.Close(reason) })
	}
}

func (l *fakeLink) Abort(cid uint16) bool {
	for i, r := range l.held {
		if r.Cmd.CID() == cid {
			l.held = slices.Delete(l.held, i, i+1)
			l.respond(r, l.q.Reject(&r.Request, nvme.AbortRequested, -1))
			return true
		}
	}
	return false
}

func (l *fakeLink) Complete(r *Request) {
	f := (*fakeRequest)(unsafe.Pointer(r)) // Request is its first field
	if r.Status.OK() && f.transfer.Dir == ControllerToHost {
		f.in = bytes.Join(append(r.Bufs[:len(r.Bufs):len(r.Bufs)], r.Loan...), nil)[:r.DataLength]
	}
	if f.transfer.Lent && !l.keep {
		l.q.Release(r)
	}
	l.respond(f, r.Status)
}

// respond is the CQE of r.
func (l *fakeLink) respond(f *fakeRequest, st nvme.Status) {
	f.completed++
	if f.completed > 1 {
		panic(fmt.Sprintf("%s cid %d: completed %d times", l.name, f.Cmd.CID(), f.completed))
	}
	f.Status = st
	f.sqhd = l.q.SQHD()
	if l.onDone != nil {
		l.onDone(f)
		return
	}
	l.note("%s", f.cqe(l))
}

func (l *fakeLink) note(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = append(l.done, fmt.Sprintf(format, a...))
}

// take returns what has happened since the last take.
func (l *fakeLink) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := l.done
	l.done = nil
	return done
}

// cqe is the completion in words.
func (f *fakeRequest) cqe(l *fakeLink) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s cid %d: %s", l.name, f.Cmd.CID(), statusText(f.Status))
	if f.Result != 0 {
		fmt.Fprintf(&b, ", result %#x", f.Result)
	}
	fmt.Fprintf(&b, ", sqhd %d", f.sqhd)
	if len(f.in) > 0 {
		fmt.Fprintf(&b, ", %d bytes", len(f.in))
	}
	return b.String()
}

// statusText is a status with its DNR and More bits.
func statusText(st nvme.Status) string {
	if st.OK() {
		return "success"
	}
	text := fmt.Sprintf("%#03x", uint16(st.Code()))
	if st.DNR() {
		text += " dnr"
	}
	if st&nvme.StatusMore != 0 {
		text += " more"
	}
	return text
}

// start sends a command with its data, and an SGL of n bytes.
func (l *fakeLink) start(sqe nvme.Command, out []byte, n uint64) *fakeRequest {
	f := &fakeRequest{out: out}
	copy(f.sqe[:], sqe)
	f.Cmd, f.SGLLength, f.Loan = f.sqe[:], n, make([][]byte, 0, l.room)
	l.f.g.Tick()
	t, st := l.q.Prepare(&f.Request)
	if !st.OK() {
		l.respond(f, st)
		return f
	}
	f.transfer = t
	if l.hold {
		l.held = append(l.held, f)
		return f
	}
	l.execute(f)
	return f
}

// execute gives the request buffers of several sizes and executes it.
func (l *fakeLink) execute(f *fakeRequest) {
	if f.transfer.Lent {
		l.q.Execute(&f.Request)
		return
	}
	f.Bufs = chop(make([]byte, f.transfer.Length), 512)
	f.Scratch = chop(make([]byte, f.transfer.Scratch), 1024)
	if f.transfer.Dir == HostToController {
		scatter(f.Bufs, f.out)
	}
	l.q.Execute(&f.Request)
}

// chop cuts b into pieces of first, 2*first, 3*first... bytes.
func chop(b []byte, first int) (bufs [][]byte) {
	for n := first; len(b) > 0; n += first {
		k := min(n, len(b))
		bufs = append(bufs, b[:k])
		b = b[k:]
	}
	return bufs
}

// release executes what is held.
func (l *fakeLink) release() {
	held := l.held
	l.held, l.hold = nil, false
	for _, f := range held {
		l.execute(f)
	}
}
