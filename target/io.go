package target

import (
	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// The NVM command set: commands that end with one backend operation. Those of
// several are in io_chain.go.

// sizeLimit is the most bytes of Write Zeroes and Verify, commands without
// data: VSL and WZSL. With 512-byte blocks it is the greatest NLB.
const (
	sizeLimit    = 1 << (12 + sizeLimitLog)
	sizeLimitLog = 13
)

// optionalKinds are the operations without which a namespace lacks a command.
var optionalKinds = map[nvme.Opcode]backend.Kind{
	nvme.CmdWriteZeroes:       backend.WriteZeroes,
	nvme.CmdDatasetManagement: backend.Discard,
}

// namespace finds the namespace of an I/O command.
func (q *Queue) namespace(r *Request) (*Namespace, nvme.Status) {
	id := r.Cmd.NSID()
	if n := q.ctrl.sub.table.Load().get(id); n != nil {
		r.core.ns = n
		return n, nvme.Success
	}
	return nil, noNamespace(r, id)
}

// noNamespace is the status for an NSID that is not active: inactive NSIDs are
// an invalid field, all else is no NSID (Base 3.2.1.3 and 3.2.1.5).
func noNamespace(r *Request, id uint32) nvme.Status {
	if id == 0 || id > MaxNSID {
		return r.bad(nvme.InvalidNamespace, locNSID, 0)
	}
	return r.bad(nvme.InvalidField, locNSID, 0)
}

// blocks finds the namespace and checks the LBA range, and puts offset and
// length in bytes into r.core.op.
func (q *Queue) blocks(r *Request, k backend.Kind) (*Namespace, nvme.Status) {
	n, st := q.namespace(r)
	if !st.OK() {
		return nil, st
	}
	slba, nlb := r.Cmd.SLBA(), uint64(r.Cmd.NLB())
	r.core.size = nlb << n.shift // from here on the error log names the LBA
	if size := n.blocks.Load(); slba > size || nlb > size-slba {
		return nil, r.bad(nvme.LBAOutOfRange, locCDW10, 0)
	}
	r.core.op = backend.Op{Kind: k, Offset: slba << n.shift, Length: r.core.size}
	return n, nvme.Success
}

// data checks that the SGL describes exactly the range's blocks, and no more
// than MDTS.
func (q *Queue) data(r *Request) nvme.Status {
	if r.core.size > uint64(q.cfg.Port.Caps.MaxTransfer) {
		return r.bad(nvme.InvalidField, locCDW12, 0)
	}
	if r.SGLLength != r.core.size {
		return r.bad(nvme.DataSGLLengthInvalid, locSGL, 0)
	}
	return nvme.Success
}

// writable refuses commands that write to a namespace that is read-only.
func (n *Namespace) writable(r *Request) nvme.Status {
	if n.ro {
		return r.bad(nvme.NamespaceWriteProtected, locNSID, 0)
	}
	return nvme.Success
}

// phaseFlush is the first step of a Read with FUA: what is read must be on the
// medium before.
const phaseFlush = 1

func prepareRead(q *Queue, r *Request) (Transfer, nvme.Status) {
	n, st := q.blocks(r, backend.Read)
	if !st.OK() {
		return Transfer{}, st
	}
	if st = q.data(r); !st.OK() {
		return Transfer{}, st
	}
	if r.Cmd.FUA() && n.info.WriteCache && n.has(backend.Flush) {
		r.core.phase = phaseFlush
	}
	return Transfer{Dir: ControllerToHost, Length: uint32(r.core.size), Lent: q.borrow(n, r)}, nvme.Success
}

func prepareWrite(q *Queue, r *Request) (Transfer, nvme.Status) {
	n, st := q.blocks(r, backend.Write)
	if st.OK() {
		st = n.writable(r)
	}
	if st.OK() {
		st = q.data(r)
	}
	if !st.OK() {
		return Transfer{}, st
	}
	r.core.op.FUA = q.forceUnit(r)
	return Transfer{Dir: HostToController, Length: uint32(r.core.size)}, nvme.Success
}

// forceUnit says whether a write must be on stable media when it completes:
// its FUA bit, or the host has switched the write cache off (feature 06h).
func (q *Queue) forceUnit(r *Request) bool { return r.Cmd.FUA() || q.ctrl.writeThrough.Load() }

func prepareWriteZeroes(q *Queue, r *Request) (Transfer, nvme.Status) {
	n, st := q.blocks(r, backend.WriteZeroes)
	if st.OK() && !n.has(backend.WriteZeroes) {
		st = r.bad(nvme.InvalidOpcode, locOpcode, 0)
	}
	if st.OK() {
		st = n.writable(r)
	}
	if st.OK() && r.core.size > sizeLimit {
		st = r.bad(nvme.InvalidField, locCDW12, 0)
	}
	r.core.op.FUA = q.forceUnit(r)
	r.core.op.Dealloc = r.Cmd.DEAC()
	return Transfer{}, st
}

// executeTransfer runs Read, Write and Write Zeroes.
func executeTransfer(q *Queue, r *Request) {
	a, st := q.attach(r)
	if !st.OK() {
		q.finish(r, st)
		return
	}
	switch r.core.cmd.op {
	case OpRead:
		r.DataLength = uint32(r.core.size)
		if r.core.lent {
			q.finishLent(a, r)
			return
		}
		r.core.op.Bufs = r.Bufs
	case OpWrite:
		r.core.op.Bufs = r.Bufs
	}
	if r.core.phase == phaseFlush {
		r.core.op = backend.Op{Kind: backend.Flush}
	}
	q.group.enqueue(a, r)
}

// resumeRead ends a read, or begins it after the flush that FUA needs.
func resumeRead(q *Queue, r *Request, st nvme.Status) {
	if r.core.phase != phaseFlush || !st.OK() {
		q.finish(r, st)
		return
	}
	r.core.phase = 0
	r.core.op = backend.Op{Kind: backend.Read, Offset: r.Cmd.SLBA() << r.core.ns.shift, Length: r.core.size, Bufs: r.Bufs}
	q.next(r)
}

// attach finds the attachment for the namespace that Prepare has found. The
// namespace may have been removed or have shrunk since.
func (q *Queue) attach(r *Request) (*attachment, nvme.Status) {
	n := r.core.ns
	if q.ctrl.sub.table.Load().get(n.nsid) != n {
		return nil, r.bad(nvme.InvalidField, locNSID, 0)
	}
	if size := n.Size(); r.core.op.Offset > size || r.core.op.Length > size-r.core.op.Offset {
		return nil, r.bad(nvme.LBAOutOfRange, locCDW10, 0)
	}
	a, err := q.group.attachment(n)
	if err != nil {
		q.group.target.log.limited("%v", err)
		return nil, nvme.InternalError
	}
	return a, nvme.Success
}

// next enqueues the next operation of a command on the same attachment, unless
// its queue was closed.
func (q *Queue) next(r *Request) {
	if q.state == queueClosed {
		q.finish(r, nvme.AbortedSQDeletion)
		return
	}
	q.group.enqueue(r.core.att, r)
}
