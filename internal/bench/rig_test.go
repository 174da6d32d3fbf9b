package bench

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/nvmf-go/nvmf/initiator"
	"github.com/nvmf-go/nvmf/nvme"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testBlock = 512

// disk is a queue on memory. It answers the newest I/O first, at most batch at
// a time.
type disk struct {
	t     testing.TB
	data  []byte
	depth int
	batch int
	queue []initiator.IO

	// before is called before an I/O is executed; its status is the answer
	// when it is not Success, and done when it says so.
	before  func(d *disk, io *initiator.IO) (st nvme.Status, done bool)
	waitErr error
	most    int // I/Os ever in flight
	count   [256]int
}

func (d *disk) Depth() int { return d.depth }

func (d *disk) Submit(ios []initiator.IO) (int, error) {
	n := min(len(ios), d.depth-len(d.queue))
	d.queue = append(d.queue, ios[:n]...)
	d.most = max(d.most, len(d.queue))
	return n, nil
}

func (d *disk) Reap(done []initiator.Result) (int, error) {
	n := 0
	for n < len(done) && n < d.batch && len(d.queue) > 0 {
		io := &d.queue[len(d.queue)-1]
		done[n] = initiator.Result{Tag: io.Tag, Status: d.execute(io)}
		d.queue = d.queue[:len(d.queue)-1]
		n++
	}
	return n, nil
}

func (d *disk) execute(io *initiator.IO) nvme.Status {
	d.count[io.Op]++
	if d.before != nil {
		if st, done := d.before(d, io); done || !st.OK() {
			return st
		}
	}
	off, n := int(io.LBA)*testBlock, int(io.Blocks)*testBlock
	if off > len(d.data) || n > len(d.data)-off {
		d.t.Errorf("I/O at %d of %d bytes", off, n)
		return nvme.LBAOutOfRange
	}
	switch io.Op {
	case nvme.CmdRead:
		copy(io.Buf.Bytes()[io.Offset:][:n], d.data[off:])
	case nvme.CmdWrite:
		copy(d.data[off:], io.Buf.Bytes()[io.Offset:][:n])
	}
	return nvme.Success
}

func (d *disk) Wait(ctx context.Context) error { return errors.Join(ctx.Err(), d.waitErr) }

// load runs options against a disk for each job, all on one medium.
type load struct {
	*testing.T
	disks []*disk
	run   *run
}

func newLoad(t *testing.T, o Options, size int, change func(*disk)) *load {
	t.Helper()
	if err := o.complete(Space{Size: int64(size), BlockSize: testBlock, MaxTransfer: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	o.Seed = 7
	l := &load{T: t, run: &run{o: &o, ctl: newControl()}}
	data := make([]byte, size)
	for i := range o.Jobs {
		d := &disk{t: t, data: data, depth: 64, batch: 8}
		if change != nil {
			change(d)
		}
		buf, err := initiator.NewBuffer(min(o.Depth, d.depth) * o.BlockSize)
		if err != nil {
			t.Fatal(err)
		}
		l.run.closers = append(l.run.closers, buf.Close)
		l.run.addJob(d, buf, i, testBlock)
		l.disks = append(l.disks, d)
	}
	t.Cleanup(l.run.close)
	return l
}

// again is another load on the same media.
func (l *load) again(o Options) *load {
	l.Helper()
	n := newLoad(l.T, o, len(l.disks[0].data), nil)
	for _, d := range n.disks {
		d.data = l.disks[0].data
	}
	return n
}

func (l *load) do() *Report {
	l.Helper()
	rep, err := l.run.do(l.Context())
	if err != nil {
		l.Fatal(err)
	}
	return rep
}
