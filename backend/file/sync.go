package file

import (
	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/nvme"
)

// beginFlush starts a Flush. A read-only device has nothing to flush.
func (q *queue) beginFlush(s *slot) {
	if q.dev.opts.ReadOnly {
		q.finish(s, nvme.Success)
		return
	}
	q.sync(s)
}

// sync puts s in the next fdatasync. One that runs already may have passed
// what s is about, so s does not join it; all that wait for it share the next.
func (q *queue) sync(s *slot) {
	if q.dev.syncFail.Load() != 0 {
		q.finish(s, nvme.WriteFault)
		return
	}
	q.flushes.push(s)
	q.nextSync()
}

func (q *queue) nextSync() {
	if q.syncing.head != nil || q.flushes.head == nil {
		return
	}
	q.syncing, q.flushes = q.flushes, fifo{}
	leader := q.syncing.head
	leader.call = call{op: callSync}
	q.start(leader, (*queue).wasSynced)
}

// wasSynced ends all that shared the fdatasync. Another queue's failure counts
// for them too: the kernel may have told only that one.
func (q *queue) wasSynced(leader *slot, res int32) {
	e := unix.Errno(-res)
	if (e == unix.EINTR || e == unix.EAGAIN || e == unix.ECANCELED) && leader.again() {
		q.start(leader, (*queue).wasSynced)
		return
	}
	st := nvme.Success
	if e != 0 {
		q.dev.failSync(e)
	}
	if q.dev.syncFail.Load() != 0 {
		st = nvme.WriteFault
	}
	batch := q.syncing
	q.syncing = fifo{}
	for s := batch.pop(); s != nil; s = batch.pop() {
		q.finish(s, st)
	}
	q.nextSync()
}

// failSync remembers that data was lost, for good.
func (d *Device) failSync(e unix.Errno) { d.syncFail.CompareAndSwap(0, uint32(e)) }
