package file

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/backend/uring"
)

// ringOpcodes are what io_uring must know to be used.
var ringOpcodes = []uring.Opcode{
	uring.OpRead, uring.OpWrite, uring.OpReadv, uring.OpWritev,
	uring.OpReadFixed, uring.OpWriteFixed, uring.OpFsync, uring.OpFallocate,
}

// ring makes the calls of a queue through io_uring.
type ring struct {
	// Constant.
	queue  *queue
	evfd   int  // eventfd, signalled by completions while listening
	direct bool // calls do not copy much data

	// Owner.
	uring     *uring.Ring
	cqes      [64]uring.CQE
	regions   []region
	listening bool
	bed       backend.Waker // it watches evfd; nil before the first ArmOn
	abed      bool          // the owner was to sleep there
	ear       ear
}

// region is registered memory.
type region struct{ addr, size uint64 }

func newRing(q *queue, depth int) (*ring, error) {
	mode := uring.Shared
	if q.dev.opts.LockedThread {
		mode = uring.Single
	}
	u, err := uring.New(uint32(depth), mode)
	if err != nil {
		return nil, err
	}
	r := &ring{queue: q, uring: u, direct: q.dev.medium.direct, ear: ear{tell: q.waker.Wake}}
	if err := r.register(); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return r, nil
}

// register names the file and the event descriptor to the kernel.
func (r *ring) register() (err error) {
	if r.evfd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	err = r.uring.RegisterEventFD(r.evfd)
	if err == nil {
		err = r.uring.RegisterFiles([]int32{int32(r.queue.fd)})
	}
	if err != nil {
		return errors.Join(err, unix.Close(r.evfd))
	}
	r.uring.SetEvents(false)
	return nil
}

// push prepares s.call for the next submit. It is false when io_uring cannot
// make the call.
func (r *ring) push(s *slot) bool {
	c := &s.call
	if c.op == callDiscard && r.queue.dev.lacks[lacksDiscardCmd].Load() {
		return false
	}
	e := r.uring.Next()
	if e == nil {
		return false
	}
	e.UserData = uint64(s.index)
	if c.fd == r.queue.fd {
		e.Flags = uring.FixedFile // 0
	} else {
		e.FD = int32(c.fd)
	}
	switch c.op {
	case callRead, callWrite:
		r.transfer(e, c)
	case callSync:
		e.Opcode, e.OpFlags = uring.OpFsync, uring.FsyncDatasync
	case callFallocate:
		e.Opcode, e.Off, e.Addr, e.Len = uring.OpFallocate, c.off, c.n, c.flags
	case callDiscard:
		e.Opcode, e.Off, e.Addr, e.Addr3 = uring.OpURingCmd, uring.CmdBlockDiscard, c.off, c.n
	}
	return true
}

// transfer prepares a read or write in its cheapest form.
func (r *ring) transfer(e *uring.SQE, c *call) {
	vector, plain, fixed := uring.OpReadv, uring.OpRead, uring.OpReadFixed
	if c.op == callWrite {
		vector, plain, fixed = uring.OpWritev, uring.OpWrite, uring.OpWriteFixed
	}
	e.Off, e.OpFlags = c.off, c.flags
	if len(c.iov) != 1 {
		e.Opcode, e.Len = vector, uint32(len(c.iov))
		e.Addr = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(c.iov))))
		return
	}
	e.Opcode, e.Addr, e.Len = plain, c.addr(), uint32(c.n)
	for i := range r.regions {
		if off := e.Addr - r.regions[i].addr; off < r.regions[i].size && c.n <= r.regions[i].size-off {
			e.Opcode, e.BufIndex = fixed, uint16(i)
			return
		}
	}
}

// submit gives prepared calls to the kernel. When it is short of memory they
// stay for the next time, which Arm sees to. Any other error means that the
// owner broke the promise of Options.LockedThread.
func (r *ring) submit() {
	if r.uring.Pending() == 0 {
		return
	}
	err := r.uring.Submit(r.direct)
	if err == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY) {
		return
	}
	r.uring.TakeBack(func(e *uring.SQE) {
		r.queue.deliver(&r.queue.slots[e.UserData], -int32(unix.EPROTO))
	})
}

// reap takes completions. It stops the events when they have served.
func (r *ring) reap() {
	if r.abed && !r.bed.Asleep() {
		r.abed = false
		r.queue.waker.Disarm() // nobody has told it that the sleep is over
	}
	if r.listening && !r.queue.waker.Armed() {
		r.listening = false
		r.uring.SetEvents(false)
	}
	if r.uring.Ready() == 0 {
		r.progress()
	}
	for {
		n := r.uring.Reap(r.cqes[:])
		for i := range r.cqes[:n] {
			r.queue.returned(&r.queue.slots[r.cqes[i].UserData], r.cqes[i].Res)
		}
		if n < len(r.cqes) {
			return
		}
	}
}

// progress makes the kernel post the completions it holds back. A failure
// means that it is short of memory: they come later.
func (r *ring) progress() {
	if r.uring.NeedsEnter() {
		_ = r.uring.Progress(r.direct)
	}
}

// arm has the next completion signal, to w if the owner sleeps there, and says
// whether there is something to do already.
func (r *ring) arm(w backend.Waker) bool {
	if r.abed = w != nil && r.lieDown(w); !r.abed {
		r.ear.open(r.evfd)
	}
	r.listening = true
	r.uring.SetEvents(true)
	r.progress()
	return r.uring.Ready() > 0 || r.uring.Pending() > 0
}

// lieDown has w watch the events. It is false when it cannot.
func (r *ring) lieDown(w backend.Waker) bool {
	if r.bed == nil && w.WatchSignals(r.evfd) == nil {
		r.bed = w
	}
	return r.bed != nil
}

// registerBuffers pins mem in place of what was pinned.
func (r *ring) registerBuffers(mem [][]byte) error {
	if r.regions != nil {
		r.regions = nil
		if err := r.uring.UnregisterBuffers(); err != nil {
			return fmt.Errorf("backend/file: %w", err)
		}
	}
	var parts [][]byte
	for _, b := range mem {
		for len(b) > 0 {
			n := min(len(b), uring.MaxBuffer)
			parts, b = append(parts, b[:n]), b[n:]
		}
	}
	if len(parts) == 0 {
		return nil
	}
	if err := r.uring.RegisterBuffers(parts); err != nil {
		return fmt.Errorf("backend/file: pinning %d buffers: %w", len(parts), err)
	}
	for _, b := range parts {
		r.regions = append(r.regions, region{uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), uint64(len(b))})
	}
	return nil
}

// close lets go of the file and the memory at once: closing the ring alone
// does that later, and a file system could not be unmounted until then.
func (r *ring) close() error {
	_ = r.uring.UnregisterFiles()
	if r.regions != nil {
		_ = r.uring.UnregisterBuffers()
	}
	if r.bed != nil {
		r.bed.Unwatch(r.evfd)
	}
	return errors.Join(r.uring.Close(), r.ear.close(), unix.Close(r.evfd))
}
