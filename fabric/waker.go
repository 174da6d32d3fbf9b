package fabric

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// WakeArmer is implemented by completion queues whose owner can wait in the kernel
// itself for what they wait for (a packet, a timer, the completion channel of
// verbs), which costs no other goroutine a turn.
type WakeArmer interface {
	CompletionQueue
	// ArmOn is Arm for an owner that sleeps in w.Sleep next. What w watches
	// instead ends the sleep; notify is called for all else. The owner has to
	// poll after the sleep.
	ArmOn(w *Waker) error
}

// Waker is where the owner of completion queues sleeps. One sleep is
//
//	w.Prepare()
//	w.Arm(cq)        for each of its queues
//	look once more; if there is something to do: w.Cancel()
//	if w.Kernel() { w.Sleep(d) } else { select { case <-w.C: ... } }
//
// Wake, which the owner gives to NewCompletionQueue as notify, ends it. With at
// least one WakeArmer the sleep is in the kernel: the thread waits for the
// sockets itself, and no goroutine has to be scheduled to wake another. Without,
// it is in the Go scheduler.
//
// A goroutine in a system call keeps its P until the runtime takes it back,
// which can be after 10 ms. So as many sleep in the kernel at a time as leave
// one P of GOMAXPROCS to everybody else; the others sleep in the scheduler. A
// program that wants all its owners in the kernel has GOMAXPROCS greater than
// their number (see Owners).
//
// Wake, Watch, Unwatch and Close may be called from any goroutine, the rest is
// the owner's. The zero Waker is not usable.
type Waker struct {
	// C has a value after a Wake, for an owner that sleeps in a select.
	C chan struct{}

	berth    bool // one of the sleeps in the kernel is ours; the owner's
	asleep   atomic.Bool
	kernel   atomic.Bool // this sleep is to be in the kernel
	signaled atomic.Bool // evfd may be readable

	most time.Duration // the longest sleep, negative for any; the owner's
	woke int           // the descriptor that ended the last sleep, -1 for none; the owner's

	mu     sync.Mutex
	closed bool
	epfd   int // -1 until the first Watch
	evfd   int
}

// forever is the longest sleep.
const forever = -1

// berths are the sleeps in the kernel that there may be at a time, less those
// that there are.
var berths atomic.Int32

func init() { berths.Store(int32(runtime.GOMAXPROCS(0)) - 1) }

// owners is how many there should be berths for, 0 when that was seen to.
var owners atomic.Int32

// Owners lets n owners sleep in the kernel at a time: when the first finds no
// berth, GOMAXPROCS becomes n+1 if it is less. It is for a program to call,
// before its owners begin. GOMAXPROCS in the environment is respected.
func Owners(n int) {
	if os.Getenv("GOMAXPROCS") == "" {
		owners.Store(int32(n))
	}
}

// grow makes the berths that Owners has asked for. It is false when there are
// none to be made.
func grow() bool {
	n, now := owners.Swap(0), int32(runtime.GOMAXPROCS(0))
	if n < now {
		return false
	}
	runtime.GOMAXPROCS(int(n) + 1)
	berths.Add(n + 1 - now)
	return true
}

// NewWaker makes a Waker. It holds no descriptors before it is needed in the
// kernel.
func NewWaker() *Waker {
	return &Waker{C: make(chan struct{}, 1), epfd: -1, evfd: -1, most: forever, woke: -1}
}

// Wake ends the sleep that has been prepared, if there is one.
func (w *Waker) Wake() {
	if !w.asleep.Load() || !w.asleep.Swap(false) {
		return
	}
	select {
	case w.C <- struct{}{}:
	default:
	}
	if w.kernel.Load() { // else Sleep has not looked at asleep yet
		w.signal()
	}
}

// signal makes evfd readable.
func (w *Waker) signal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed && w.evfd >= 0 {
		_, _ = unix.Write(w.evfd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // full is as good
		w.signaled.Store(true)                                    // behind it: drain must not miss it for good
	}
}

// Prepare announces a sleep: from here on a Wake counts for it.
func (w *Waker) Prepare() {
	w.drain() // of a Wake that came before the last sleep began
	w.most = forever
	w.leave()
	w.kernel.Store(false)
	w.asleep.Store(true)
}

// drain makes evfd not readable.
func (w *Waker) drain() {
	if w.signaled.Load() && w.signaled.Swap(false) {
		var b [8]byte
		_, _ = unix.Read(w.evfd, b[:])
	}
}

// enter takes a berth, if there is one.
func (w *Waker) enter() bool {
	if w.berth {
		return true
	}
	for {
		if berths.Add(-1) >= 0 {
			w.berth = true
			return true
		}
		berths.Add(1)
		if owners.Load() == 0 || !grow() {
			return false
		}
	}
}

// leave gives the berth back.
func (w *Waker) leave() {
	if w.berth {
		w.berth = false
		berths.Add(1)
	}
}

// Cancel takes Prepare back.
func (w *Waker) Cancel() {
	w.asleep.Store(false)
	w.leave()
}

// Asleep says whether a sleep was prepared and has not ended.
func (w *Waker) Asleep() bool { return w.asleep.Load() }

// Arm arms q, in the way that serves this Waker best.
func (w *Waker) Arm(q CompletionQueue) error {
	if a, ok := q.(WakeArmer); ok && w.enter() {
		return a.ArmOn(w)
	}
	return q.Arm()
}

// Kernel says whether the sleep that was prepared is to be in the kernel.
func (w *Waker) Kernel() bool { return w.kernel.Load() }

// Watch ends sleeps in the kernel while fd is readable, until Unwatch.
func (w *Waker) Watch(fd int) error { return w.watch(fd, unix.EPOLLIN) }

// WatchSignals has each signal of fd, an eventfd, end a sleep in the kernel, the
// next one if there is none, until Unwatch. Nobody has to read fd.
func (w *Waker) WatchSignals(fd int) error { return w.watch(fd, unix.EPOLLIN|unix.EPOLLET) }

func (w *Waker) watch(fd int, events uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return os.ErrClosed
	}
	if w.epfd < 0 {
		if err := w.open(); err != nil {
			return err
		}
	}
	return w.add(fd, events)
}

func (w *Waker) add(fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.epfd, unix.EPOLL_CTL_ADD, fd, &ev))
}

// open makes the descriptors; mu is held.
func (w *Waker) open() (err error) {
	if w.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		w.epfd = -1
		return os.NewSyscallError("epoll_create1", err)
	}
	if w.evfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		w.evfd = -1
		err = os.NewSyscallError("eventfd", err)
	} else {
		err = w.add(w.evfd, unix.EPOLLIN)
	}
	if err != nil {
		w.shut()
	}
	return err
}

// shut closes the descriptors; mu is held.
func (w *Waker) shut() {
	for _, fd := range []*int{&w.epfd, &w.evfd} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// Unwatch ends a Watch, before fd is closed.
func (w *Waker) Unwatch(fd int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed && w.epfd >= 0 {
		_ = unix.EpollCtl(w.epfd, unix.EPOLL_CTL_DEL, fd, nil) // it may not be watched
	}
}

// Within has the sleep that was prepared be in the kernel and end after d at the
// latest; a negative d sets no limit. It is for ArmOn, after Watch.
func (w *Waker) Within(d time.Duration) {
	if !w.kernel.Load() {
		w.kernel.Store(true)
	}
	if d >= 0 && (w.most < 0 || d < w.most) {
		w.most = d
	}
}

// Sleep sleeps in the kernel, for d at most when it is not negative, unless
// there was a Wake since Prepare. It may end early for no reason. Goroutines that
// the owner has made ready without giving them a turn since (Spin.Look does, else
// runtime.Gosched) wait until another P steals them.
func (w *Waker) Sleep(d time.Duration) {
	w.Within(d)
	w.woke = -1
	if w.asleep.Load() {
		var events [1]unix.EpollEvent
		n, _ := unix.EpollWait(w.epfd, events[:], millis(w.most)) // an error is a reason to look
		if n == 1 {
			w.woke = int(events[0].Fd)
		}
	}
	w.Cancel()
}

// Woke says, once, whether the last sleep in the kernel ended for fd. Of several
// that are readable one ends it; the others end the next.
func (w *Waker) Woke(fd int) bool {
	if w.woke != fd {
		return false
	}
	w.woke = -1
	return true
}

// millis rounds up to what epoll counts in.
func millis(d time.Duration) int {
	if d < 0 {
		return -1
	}
	n := d / time.Millisecond
	if d%time.Millisecond > 0 {
		n++
	}
	return int(min(n, 1<<30))
}

// Close gives the descriptors back. Nobody sleeps.
func (w *Waker) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.shut()
}
