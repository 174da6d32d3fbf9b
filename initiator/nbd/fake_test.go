package nbd

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testBlock = 512
	testSize  = 32 << 20
)

// disk is a volume in memory. Its queues obey a script.
type disk struct {
	t     testing.TB
	id    nvme.IdentifyNamespace
	block int
	zero  bool // it can write zeroes
	trim  bool

	mu     sync.Mutex
	data   []byte
	queues int // that are left
	opened []*fakeQueue
	log    []initiator.IO // without buffers
	// judge decides about a command before it is executed; nil executes all.
	judge func(io *initiator.IO) (initiator.Result, bool)
	hold  bool  // commands are taken and not executed
	deaf  error // of Watch
}

func newDisk(t testing.TB) *disk {
	return &disk{t: t, block: testBlock, zero: true, trim: true, data: make([]byte, testSize), queues: 4}
}

func (d *disk) Size() int64           { d.mu.Lock(); defer d.mu.Unlock(); return int64(len(d.data)) }
func (d *disk) BlockSize() int        { return d.block }
func (d *disk) MaxTransfer() int      { return 128 << 10 }
func (d *disk) MaxDiscard() int64     { return 1 << 20 }
func (d *disk) MaxWriteZeroes() int64 { return 64 << 10 }
func (d *disk) CanDiscard() bool      { return d.trim }
func (d *disk) CanWriteZeroes() bool  { return d.zero }
func (d *disk) Identity() (nvme.IdentifyNamespace, nvme.NSDescriptors) {
	return d.id, nvme.NSDescriptors{}
}

func (d *disk) open(context.Context) (queue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queues == 0 {
		return nil, initiator.ErrNoQueue
	}
	d.queues--
	q := &fakeQueue{disk: d, depth: 32, ready: make(chan struct{}, 1)}
	q.held, q.done = make([]initiator.IO, 0, q.depth), make([]initiator.Result, 0, q.depth)
	d.opened = append(d.opened, q)
	return q, nil
}

// set changes the script.
func (d *disk) set(fn func()) {
	d.mu.Lock()
	fn()
	queues := d.opened
	d.mu.Unlock()
	for _, q := range queues {
		q.nudge()
	}
}

// commands are the commands that were submitted, and forgets them.
func (d *disk) commands() []initiator.IO {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.log
	d.log = nil
	return list
}

// stored is a copy of n bytes at off.
func (d *disk) stored(off uint64, n int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return bytes.Clone(d.data[off:][:n])
}

// fakeQueue is a queue of a disk.
type fakeQueue struct {
	*disk
	depth int
	ready chan struct{}
	quiet bool // keeps no log

	standIn func()
	rung    bool

	held   []initiator.IO
	done   []initiator.Result
	closed bool
}

func (q *fakeQueue) nudge() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *fakeQueue) Submit(ios []initiator.IO) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range ios {
		if q.closed {
			return i, net.ErrClosed
		}
		if len(q.held)+len(q.done) == q.depth {
			return i, nil
		}
		if io := &ios[i]; !q.quiet {
			entry := *io
			entry.Buf = nil
			q.log = append(q.log, entry)
		}
		q.held = append(q.held, ios[i])
	}
	return len(ios), nil
}

// work executes what is held, unless the script holds it.
func (q *fakeQueue) work() {
	if q.hold {
		return
	}
	for i := range q.held {
		q.done = append(q.done, q.execute(&q.held[i]))
	}
	q.held = q.held[:0]
}

func (q *fakeQueue) execute(io *initiator.IO) initiator.Result {
	if q.judge != nil {
		if res, ok := q.judge(io); !ok {
			res.Tag = io.Tag
			return res
		}
	}
	off, size := int(io.LBA)*q.block, int(io.Blocks)*q.block
	if off+size > len(q.data) {
		return initiator.Result{Tag: io.Tag, Status: nvme.LBAOutOfRange}
	}
	switch io.Op {
	case nvme.CmdRead:
		copy(io.Buf.Bytes()[io.Offset:][:size], q.data[off:])
	case nvme.CmdWrite:
		copy(q.data[off:off+size], io.Buf.Bytes()[io.Offset:])
	case nvme.CmdWriteZeroes:
		clear(q.data[off : off+size])
	case nvme.CmdDatasetManagement:
		for i := range q.data[off : off+size] {
			q.data[off+i] = 0xdd
		}
	}
	return initiator.Result{Tag: io.Tag}
}

func (q *fakeQueue) Reap(done []initiator.Result) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work()
	n := copy(done, q.done)
	q.done = q.done[:copy(q.done, q.done[n:])]
	if n == 0 && q.closed {
		return 0, net.ErrClosed
	}
	return n, nil
}

func (q *fakeQueue) Wait(context.Context) error {
	return q.until(func() bool { return len(q.done) > 0 || len(q.held) == 0 || !q.hold })
}

func (q *fakeQueue) Rest(context.Context) error { return q.until(func() bool { return q.closed }) }

// until waits for what over says, or a Ring.
func (q *fakeQueue) until(over func() bool) error {
	for {
		q.mu.Lock()
		stop := over() || q.rung
		q.rung = false
		q.mu.Unlock()
		if stop {
			return nil
		}
		q.standIn()
		<-q.ready
	}
}

func (q *fakeQueue) Watch(_ int, standIn func()) error {
	q.standIn = standIn
	return q.deaf
}

func (q *fakeQueue) Ring() {
	q.mu.Lock()
	q.rung = true
	q.mu.Unlock()
	q.nudge()
}

func (q *fakeQueue) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.held)+len(q.done) > 0 {
		q.t.Error("a queue is closed with commands in it")
	}
	q.closed = true
	return nil
}

// rig is a server of a disk at a unix socket.
type rig struct {
	testing.TB
	*disk
	srv   *Server
	path  string
	stop  context.CancelFunc
	ended chan error
}

func newRig(t testing.TB, o Options, prepare ...func(*disk)) *rig {
	t.Helper()
	d := newDisk(t)
	for _, fn := range prepare {
		fn(d)
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv, err := newServer(ctx, d, o)
	r := &rig{TB: t, disk: d, srv: srv, path: filepath.Join(t.TempDir(), "s"), stop: cancel, ended: make(chan error, 1)}
	r.must(err)
	l, err := ListenUnix(r.path)
	r.must(err)
	go func() { r.ended <- srv.Serve(ctx, l) }()
	t.Cleanup(r.end)
	return r
}

// end ends the server in order.
func (r *rig) end() {
	r.stop()
	r.set(func() { r.hold = false })
	select {
	case err, ok := <-r.ended:
		if ok {
			r.must(err)
			close(r.ended)
		}
	case <-time.After(patience):
		r.Fatal("the server does not end")
	}
}

// patience is how long a busy machine may take.
const patience = 30 * time.Second

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// eventually waits until something has come about.
func (r *rig) eventually(what string, fn func() bool) {
	r.Helper()
	for end := time.Now().Add(patience); !fn(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("in vain: %s", what)
		}
	}
}
