package rdma

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/fabric"
)

// lender is a device in registered memory that lends all of it: a cache that
// always hits. Its pages lie backwards, so that no two that follow one another
// are one piece.
type lender struct {
	mem    *fabric.Memory
	page   uint64
	pages  uint64
	block  uint64       // bytes: 512 or 4096
	cold   atomic.Bool  // lends nothing
	lent   atomic.Int64 // loans that are out
	loans  atomic.Int64 // ever
	reads  atomic.Int64 // that were executed
	mu     sync.RWMutex // a write against reads
	queues atomic.Int64
	closed atomic.Bool
}

func newLender(pages, page int) (*lender, error) {
	mem, err := fabric.AllocMemory(pages * page)
	if err != nil {
		return nil, err
	}
	for i, b := range mem.Bytes() {
		mem.Bytes()[i] = byte(i>>8) ^ byte(i*3) ^ b
	}
	return &lender{mem: mem, page: uint64(page), pages: uint64(pages), block: blockLen}, nil
}

// at is the piece of memory that the medium's byte off begins, of at most n.
func (d *lender) at(off, n uint64) []byte {
	page, in := off/d.page, off%d.page
	return d.mem.Bytes()[(d.pages-1-page)*d.page:][in:min(in+n, d.page)]
}

// read is the medium's content.
func (d *lender) read(off, n uint64) (data []byte) {
	for uint64(len(data)) < n {
		data = append(data, d.at(off+uint64(len(data)), n-uint64(len(data)))...)
	}
	return data
}

func (d *lender) Lendable() []byte { return d.mem.Bytes() }

func (d *lender) Info() backend.Info {
	return backend.Info{
		Type: "lender", BlockSize: uint32(d.block), Blocks: d.pages * d.page / d.block, Engine: "test",
		Kinds: backend.Kinds(backend.Read, backend.Write, backend.Flush),
	}
}

func (d *lender) Refresh() (bool, error) { return false, nil }

func (d *lender) NewQueue(depth int, notify func()) (backend.Queue, error) {
	if d.closed.Load() {
		return nil, net.ErrClosed
	}
	d.queues.Add(1)
	return &lenderQueue{d: d, notify: notify, done: make([]backend.Completion, 0, depth)}, nil
}

func (d *lender) Close() error {
	if d.queues.Load() > 0 {
		return backend.ErrBusy
	}
	d.closed.Store(true)
	return d.mem.Close()
}

type lenderQueue struct {
	d      *lender
	notify func()
	done   []backend.Completion
	lent   int64
	shut   bool
}

func (q *lenderQueue) Lend(offset, length uint64, bufs [][]byte) ([][]byte, bool) {
	if q.d.cold.Load() {
		return bufs, false
	}
	was := len(bufs)
	for length > 0 {
		if len(bufs) == cap(bufs) {
			return bufs[:was], false
		}
		b := q.d.at(offset, length)
		bufs = append(bufs, b)
		offset, length = offset+uint64(len(b)), length-uint64(len(b))
	}
	q.lent++
	q.d.lent.Add(1)
	q.d.loans.Add(1)
	return bufs, true
}

func (q *lenderQueue) Return(lent [][]byte) {
	if len(lent) == 0 || q.lent == 0 || q.shut {
		panic(fmt.Sprintf("%d pieces come back to a queue with %d loans, closed %v", len(lent), q.lent, q.shut))
	}
	q.lent--
	q.d.lent.Add(-1)
}

func (q *lenderQueue) Submit(ops []backend.Op) int {
	n := min(len(ops), cap(q.done)-len(q.done))
	for i := range ops[:n] {
		q.run(&ops[i])
		q.done = append(q.done, backend.Completion{ID: ops[i].ID})
	}
	return n
}

func (q *lenderQueue) run(op *backend.Op) {
	d := q.d
	if op.Kind == backend.Read {
		d.reads.Add(1)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for off, rest := op.Offset, op.Bufs; len(rest) > 0; rest = rest[1:] {
		for b := rest[0]; len(b) > 0; {
			at := d.at(off, uint64(len(b)))
			if op.Kind == backend.Read {
				copy(b, at)
			} else {
				copy(at, b)
			}
			b, off = b[len(at):], off+uint64(len(at))
		}
	}
}

func (q *lenderQueue) Reap(done []backend.Completion) int {
	n := copy(done, q.done)
	q.done = q.done[:copy(q.done, q.done[n:])]
	return n
}

func (q *lenderQueue) Arm() {
	if len(q.done) > 0 {
		q.notify()
	}
}

func (q *lenderQueue) Close() error {
	if q.lent > 0 {
		panic("a queue is closed with memory on loan")
	}
	if !q.shut {
		q.shut = true
		q.d.queues.Add(-1)
	}
	return nil
}

var (
	_ backend.Lending = (*lender)(nil)
	_ backend.Lender  = (*lenderQueue)(nil)
)
