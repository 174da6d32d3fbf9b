// Package uring is io_uring without cgo: a ring, its submission and completion
// entries, and the registrations a block backend needs. It does nothing on its
// own: no goroutine, no lock, no policy.
//
// The layout of the shared structures is Linux's include/uapi/linux/io_uring.h.
package uring

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnavailable says that the system has no io_uring for us: the kernel is
// too old, or a policy (seccomp, io_uring_disabled, memory lock limit) forbids
// it.
var ErrUnavailable = errors.New("io_uring not available")

// Mode says how the kernel runs the end of an operation, and with that which
// threads may use the ring.
type Mode uint8

// Modes.
const (
	// Shared lets any thread use the ring, one at a time: right for a
	// goroutine that moves between threads. The kernel interrupts the thread
	// that submitted to post completions.
	Shared Mode = iota
	// Cooperative is Shared without the interrupt: the thread that submitted
	// posts completions when it next enters the kernel. Its owner should stay
	// on one thread, or completions wait for that thread's next timer tick.
	Cooperative
	// Single binds the ring to the thread of the first Submit (SINGLE_ISSUER
	// and DEFER_TASKRUN): completions are posted when that thread asks for
	// them. Linux 6.1.
	Single
	numModes
)

func (m Mode) String() string {
	return [...]string{"shared", "cooperative", "single", "?"}[min(m, numModes)]
}

// flags are the setup flags of each mode.
var flags = [numModes]uint32{
	Shared:      setupSubmitAll,
	Cooperative: setupSubmitAll | setupCoopTaskrun | setupTaskrunFlag,
	Single:      setupSubmitAll | setupSingleIssuer | setupDeferTaskrun | setupTaskrunFlag | setupRDisabled,
}

// Ring is an io_uring. One goroutine owns it, from one thread when its Mode
// is Single.
type Ring struct {
	// Constant.
	fd      int
	mode    Mode
	maps    [][]byte
	sqHead  *atomic.Uint32 // the kernel's
	sqTail  *atomic.Uint32
	sqFlags *atomic.Uint32
	sqes    []SQE
	cqHead  *atomic.Uint32
	cqTail  *atomic.Uint32 // the kernel's
	cqFlags *atomic.Uint32
	cqes    []CQE

	// Owner.
	tail    uint32 // of prepared entries; sqTail follows at Submit
	enabled bool   // false until a Single ring has its thread
}

// New makes a ring for so many operations in flight (at most 32768), in the
// wanted mode or the nearest the kernel has. The error matches ErrUnavailable
// when another way of doing I/O should be taken.
func New(entries uint32, want Mode) (*Ring, error) {
	for m := want; ; m-- {
		r, err := newRing(entries, m, flags[m])
		if errors.Is(err, unix.EINVAL) && m == Shared {
			r, err = newRing(entries, m, 0) // before Linux 5.18
		}
		if !errors.Is(err, unix.EINVAL) || m == Shared {
			return r, unavailable(err)
		}
	}
}

func unavailable(err error) error {
	for _, e := range []unix.Errno{unix.ENOSYS, unix.EPERM, unix.EACCES, unix.ENOMEM, unix.EOPNOTSUPP} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	return err
}

func newRing(entries uint32, m Mode, flags uint32) (*Ring, error) {
	p := params{flags: flags}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("io_uring_setup", errno)
	}
	r := &Ring{fd: int(fd), mode: m, enabled: flags&setupRDisabled == 0}
	const need = featSingleMmap | featNoDrop | featSubmitStable
	if p.features&need != need {
		return nil, errors.Join(fmt.Errorf("%w: kernel before 5.5", ErrUnavailable), r.Close())
	}
	if err := r.mapRings(&p); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// mapRings maps the two rings (one mapping holds both) and the entries.
func (r *Ring) mapRings(p *params) error {
	size := max(p.sqOff.array+p.sqEntries*4, p.cqOff.cqes+p.cqEntries*uint32(unsafe.Sizeof(CQE{})))
	ring, err := r.mmap(offSQRing, int(size))
	if err != nil {
		return err
	}
	sqes, err := r.mmap(offSQEs, int(p.sqEntries)*int(unsafe.Sizeof(SQE{})))
	if err != nil {
		return err
	}
	word := func(off uint32) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&ring[off])) }
	r.sqHead, r.sqTail, r.sqFlags = word(p.sqOff.head), word(p.sqOff.tail), word(p.sqOff.flags)
	r.cqHead, r.cqTail, r.cqFlags = word(p.cqOff.head), word(p.cqOff.tail), word(p.cqOff.flags)
	r.sqes = unsafe.Slice((*SQE)(unsafe.Pointer(&sqes[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*CQE)(unsafe.Pointer(&ring[p.cqOff.cqes])), p.cqEntries)
	array := unsafe.Slice((*uint32)(unsafe.Pointer(&ring[p.sqOff.array])), p.sqEntries)
	for i := range array {
		array[i] = uint32(i) // entries are used in ring order, for good
	}
	return nil
}

func (r *Ring) mmap(offset int64, size int) ([]byte, error) {
	b, err := unix.Mmap(r.fd, offset, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap of io_uring", err)
	}
	r.maps = append(r.maps, b)
	return b, nil
}

// Mode is the mode the kernel gave.
func (r *Ring) Mode() Mode { return r.mode }

// Next is a cleared entry to fill, given to the kernel at the next Submit. It
// is nil when the ring is full until then.
func (r *Ring) Next() *SQE {
	if r.tail-r.sqHead.Load() == uint32(len(r.sqes)) {
		return nil
	}
	e := &r.sqes[r.tail&uint32(len(r.sqes)-1)]
	*e = SQE{}
	r.tail++
	return e
}

// Pending is the number of entries the kernel has not taken yet.
func (r *Ring) Pending() int { return int(r.tail - r.sqHead.Load()) }

// TakeBack withdraws the entries the kernel has not taken, latest first.
func (r *Ring) TakeBack(each func(*SQE)) {
	for r.Pending() > 0 {
		r.tail--
		each(&r.sqes[r.tail&uint32(len(r.sqes)-1)])
	}
	r.sqTail.Store(r.tail)
}

// Submit gives the prepared entries to the kernel, in one system call. Those
// it does not take (EAGAIN, EBUSY: it is short of memory) stay Pending for the
// next Submit. Operations that need not wait may run inside the call; direct
// says that they will not take long, and saves telling the Go scheduler.
func (r *Ring) Submit(direct bool) error {
	if err := r.enable(); err != nil {
		return err
	}
	r.sqTail.Store(r.tail)
	for n := r.Pending(); n > 0; n = r.Pending() {
		var how uint32
		if r.NeedsEnter() {
			how = enterGetEvents
		}
		if err := r.enter(n, how, direct); err != nil {
			return err
		}
	}
	return nil
}

// enable gives a Single ring to the calling thread, once.
func (r *Ring) enable() error {
	if r.enabled {
		return nil
	}
	if err := r.register(registerEnableRings, nil, 0); err != nil {
		return err
	}
	r.enabled = true
	return nil
}

// NeedsEnter says that the kernel holds completions back until Progress.
func (r *Ring) NeedsEnter() bool {
	return r.sqFlags.Load()&(sqTaskrun|sqCQOverflow) != 0
}

// Progress makes the kernel post the completions that NeedsEnter tells of. It
// does not wait.
func (r *Ring) Progress(direct bool) error { return r.enter(0, enterGetEvents, direct) }

// enter is io_uring_enter, for which being interrupted is no error: whoever
// calls looks at the rings.
func (r *Ring) enter(n int, how uint32, direct bool) error {
	var errno unix.Errno
	if direct {
		_, _, errno = unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(n), 0, uintptr(how), 0, 0)
	} else {
		_, _, errno = unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(n), 0, uintptr(how), 0, 0)
	}
	if errno != 0 && errno != unix.EINTR {
		return os.NewSyscallError("io_uring_enter", errno)
	}
	return nil
}

// Ready is the number of completions that Reap would give.
func (r *Ring) Ready() int { return int(r.cqTail.Load() - r.cqHead.Load()) }

// Reap copies completions out of the ring, without a system call.
func (r *Ring) Reap(out []CQE) int {
	head := r.cqHead.Load()
	n := min(int(r.cqTail.Load()-head), len(out))
	for i := range out[:n] {
		out[i] = r.cqes[(head+uint32(i))&uint32(len(r.cqes)-1)]
	}
	if n > 0 {
		r.cqHead.Store(head + uint32(n))
	}
	return n
}

// SetEvents switches the signals to the registered event descriptor on or off
// (Linux 5.8; before, they are always on).
func (r *Ring) SetEvents(on bool) {
	if on {
		r.cqFlags.Store(0)
	} else {
		r.cqFlags.Store(cqEventFDDisabled)
	}
}

// Close unmaps the ring and closes it. No operation may be in flight. Closing
// twice is nil.
func (r *Ring) Close() error {
	if r.fd < 0 {
		return nil
	}
	var errs []error
	for _, m := range r.maps {
		errs = append(errs, unix.Munmap(m))
	}
	errs = append(errs, unix.Close(r.fd))
	r.maps, r.fd = nil, -1
	return errors.Join(errs...)
}
