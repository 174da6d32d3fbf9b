package target

import (
	"bytes"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// Commands that take several backend operations run them one after another:
// r.core.at is how far they are.

// MaxScratch is the most bytes that Compare and Verify read at a time, and the
// working memory they ask for (Transfer.Scratch), which is no more than the
// command's blocks.
const MaxScratch = 128 << 10

func prepareCompare(q *Queue, r *Request) (Transfer, nvme.Status) {
	_, st := q.blocks(r, backend.Read)
	if st.OK() {
		st = q.data(r)
	}
	if !st.OK() {
		return Transfer{}, st
	}
	return Transfer{Dir: HostToController, Length: uint32(r.core.size), Scratch: uint32(min(r.core.size, MaxScratch))}, nvme.Success
}

func prepareVerify(q *Queue, r *Request) (Transfer, nvme.Status) {
	_, st := q.blocks(r, backend.Read)
	if st.OK() && r.core.size > sizeLimit {
		st = r.bad(nvme.InvalidField, locCDW12, 0)
	}
	if !st.OK() {
		return Transfer{}, st
	}
	return Transfer{Scratch: uint32(min(r.core.size, MaxScratch))}, nvme.Success
}

// executeScan reads the range chunk by chunk into the working memory.
func executeScan(q *Queue, r *Request) {
	a, st := q.attach(r)
	if !st.OK() {
		q.finish(r, st)
		return
	}
	r.core.op.Bufs = r.Scratch
	r.core.op.Length = min(r.core.size, MaxScratch)
	q.group.enqueue(a, r)
}

// resumeVerify goes on to the next chunk: a chunk that could be read is good.
func resumeVerify(q *Queue, r *Request, st nvme.Status) {
	if !st.OK() || q.scanned(r) {
		q.finish(r, st)
		return
	}
	q.next(r)
}

func resumeCompare(q *Queue, r *Request, st nvme.Status) {
	if st.OK() {
		same := commonPrefix(r.Bufs, r.core.at, r.Scratch)
		if same < r.core.op.Length {
			r.core.at += same // for the LBA in the error log
			st = nvme.CompareFailure | nvme.StatusDNR
		}
	}
	if !st.OK() || q.scanned(r) {
		q.finish(r, st)
		return
	}
	q.next(r)
}

// scanned moves on by a chunk, and says whether that was the last. The last
// chunk is as long as the others and overlaps the one before, so that the
// working memory always fits.
func (q *Queue) scanned(r *Request) bool {
	chunk := r.core.op.Length
	if r.core.at+chunk == r.core.size {
		return true
	}
	was := r.core.at
	r.core.at = min(was+chunk, r.core.size-chunk)
	r.core.op.Offset += r.core.at - was
	return false
}

// commonPrefix is how many bytes of want are what data holds from byte at on:
// whole pieces, and then up to the first byte that differs.
func commonPrefix(data [][]byte, at uint64, want [][]byte) (same uint64) {
	for len(data) > 0 && at >= uint64(len(data[0])) {
		at -= uint64(len(data[0]))
		data = data[1:]
	}
	for _, w := range want {
		for len(w) > 0 && len(data) > 0 {
			d := data[0][at:]
			n := min(len(w), len(d))
			if !bytes.Equal(w[:n], d[:n]) {
				return same + firstDifference(w[:n], d[:n])
			}
			same += uint64(n)
			w, at = w[n:], at+uint64(n)
			if at == uint64(len(data[0])) {
				data, at = data[1:], 0
			}
		}
	}
	return same
}

// firstDifference is the index of the first byte in which a and b, of equal
// length, differ.
func firstDifference(a, b []byte) uint64 {
	for i := range a {
		if a[i] != b[i] {
			return uint64(i)
		}
	}
	return uint64(len(a))
}

func prepareFlush(q *Queue, r *Request) (Transfer, nvme.Status) {
	if r.Cmd.NSID() == nvme.NSIDBroadcast {
		return Transfer{}, nvme.Success
	}
	_, st := q.namespace(r)
	return Transfer{}, st
}

// executeFlush flushes one namespace, or all of the subsystem in turn.
func executeFlush(q *Queue, r *Request) {
	r.core.op = backend.Op{Kind: backend.Flush}
	if r.core.ns == nil {
		q.flushNext(r)
		return
	}
	if !r.core.ns.has(backend.Flush) {
		q.finish(r, nvme.Success) // nothing is volatile
		return
	}
	a, st := q.attach(r)
	if !st.OK() {
		q.finish(r, st)
		return
	}
	q.group.enqueue(a, r)
}

// flushNext flushes the next namespace above NSID r.core.at.
func (q *Queue) flushNext(r *Request) {
	t := q.ctrl.sub.table.Load()
	for r.core.at < MaxNSID && q.state != queueClosed {
		r.core.at++
		n := t.get(uint32(r.core.at))
		if n == nil || !n.has(backend.Flush) {
			continue
		}
		a, err := q.group.attachment(n)
		if err != nil {
			q.group.target.log.limited("%v", err)
			q.finish(r, nvme.InternalError)
			return
		}
		q.group.enqueue(a, r)
		return
	}
	st := nvme.Success
	if q.state == queueClosed {
		st = nvme.AbortedSQDeletion
	}
	q.finish(r, st)
}

func resumeFlush(q *Queue, r *Request, st nvme.Status) {
	if !st.OK() || r.core.ns != nil {
		q.finish(r, st)
		return
	}
	q.flushNext(r)
}

func prepareDSM(q *Queue, r *Request) (Transfer, nvme.Status) {
	n, st := q.namespace(r)
	if !st.OK() {
		return Transfer{}, st
	}
	if !n.has(backend.Discard) {
		return Transfer{}, r.bad(nvme.InvalidOpcode, locOpcode, 0)
	}
	d := r.Cmd.DSM()
	if d.Deallocate() {
		if st := n.writable(r); !st.OK() {
			return Transfer{}, st
		}
	}
	size := uint32(d.Ranges()) * nvme.DSMRangeSize
	// Hosts describe room for 256 ranges whatever they send.
	if r.SGLLength < uint64(size) {
		return Transfer{}, r.bad(nvme.DataSGLLengthInvalid, locSGL, 0)
	}
	return Transfer{Dir: HostToController, Length: size}, nvme.Success
}

// dsmRange is range i of the data. Ranges do not straddle buffers, whose
// lengths are multiples of 512.
func dsmRange(bufs [][]byte, i int) nvme.DSMRange {
	off := i * nvme.DSMRangeSize
	for off >= len(bufs[0]) {
		off -= len(bufs[0])
		bufs = bufs[1:]
	}
	return nvme.DSMRanges(bufs[0][off:]).At(0)
}

// executeDSM checks all ranges before it touches the first.
func executeDSM(q *Queue, r *Request) {
	n, d := r.core.ns, r.Cmd.DSM()
	size := n.blocks.Load()
	for i := range d.Ranges() {
		if v := dsmRange(r.Bufs, i); v.SLBA > size || uint64(v.Blocks) > size-v.SLBA {
			q.finish(r, r.bad(nvme.LBAOutOfRange, locCDW10, 0))
			return
		}
	}
	if !d.Deallocate() {
		q.finish(r, nvme.Success) // the other attributes are hints
		return
	}
	a, st := q.attach(r)
	if !st.OK() {
		q.finish(r, st)
		return
	}
	r.core.att = a
	q.discardNext(r)
}

// discardNext discards the next range that is not empty, from range r.core.at.
func (q *Queue) discardNext(r *Request) {
	for r.core.at < uint64(r.Cmd.DSM().Ranges()) {
		v := dsmRange(r.Bufs, int(r.core.at))
		r.core.at++
		if v.Blocks == 0 {
			continue
		}
		shift := r.core.ns.shift
		r.core.op = backend.Op{Kind: backend.Discard, Offset: v.SLBA << shift, Length: uint64(v.Blocks) << shift}
		q.next(r)
		return
	}
	q.finish(r, nvme.Success)
}

func resumeDSM(q *Queue, r *Request, st nvme.Status) {
	if !st.OK() {
		q.finish(r, st)
		return
	}
	q.discardNext(r)
}
