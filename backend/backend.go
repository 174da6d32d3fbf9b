// Package backend says what a block device under a namespace does. Backends
// (file, mem, null, and the cache over any of them) each have a folder and all
// pass backendtest.Conformance.
package backend

import "github.com/nvmf-go/nvmf/nvme"

// Kind is an operation of a backend.
type Kind uint8

// Kinds of operations.
//
//	Read        Length bytes at Offset into Bufs; with FUA what they hold is on
//	            stable media when the operation completes
//	Write       Length bytes at Offset from Bufs; with FUA the data is on
//	            stable media when the operation completes
//	Flush       every Write, WriteZeroes and Discard that completed before the
//	            Flush was submitted is on stable media when it completes
//	Discard     the range may read as zeroes or as it was (Info says which);
//	            frees space where the device can; advisory about space, not
//	            about errors
//	WriteZeroes the range reads as zeroes afterwards; FUA as for Write; with
//	            Deallocate it may free the space
//
// Operations of one queue complete in any order. Operations that overlap and
// are in flight together are unordered, as NVM section 2.1 has it for
// commands; each block is nevertheless old or new, never mixed, as far as the
// device's own block writes are.
const (
	Read Kind = iota
	Write
	Flush
	Discard
	WriteZeroes
	NumKinds
)

// KindSet is a set of kinds.
type KindSet uint8

// Has says whether k is in the set.
func (s KindSet) Has(k Kind) bool { return s>>k&1 != 0 }

// Kinds makes a set.
func Kinds(ks ...Kind) (s KindSet) {
	for _, k := range ks {
		s |= 1 << k
	}
	return s
}

func (k Kind) String() string {
	return [...]string{"read", "write", "flush", "discard", "write zeroes", "?"}[min(k, NumKinds)]
}

// Info describes a device as it is now.
type Info struct {
	Type      string // "file", "mem", "null"
	Path      string // of the file, when there is one
	BlockSize uint32 // bytes: 512 or 4096
	Blocks    uint64 // size in blocks
	Kinds     KindSet
	ReadOnly  bool
	// WriteCache says that a completed Write without FUA may be lost with the
	// power until a Flush completes (Identify VWC).
	WriteCache bool
	// ZeroAfterDiscard says that discarded blocks read as zeroes (DLFEAT 001b).
	ZeroAfterDiscard bool
	// Identity distinguishes the medium across restarts, for stable UUIDs:
	// "file:/abs/path" or alike; empty when the medium does not survive.
	Identity string
	// Granularity is the preferred size and alignment of writes and discards,
	// in bytes, 0 when none (NPWG, NPDG).
	Granularity uint32
	// BufferAlign is the alignment of memory the device likes best, in bytes;
	// buffers aligned worse still work (they may cost a copy).
	BufferAlign uint32
	// Engine says how I/O is done ("io_uring O_DIRECT", "worker pool buffered").
	Engine string
}

// Device is a block device. Its methods are safe for concurrent use.
type Device interface {
	// Info never blocks.
	Info() Info
	// Refresh looks at the medium again and says whether its size changed.
	// Size changes found during I/O are also in Info from then on.
	Refresh() (changed bool, err error)
	// NewQueue makes a queue for depth operations in flight. notify is called,
	// from any goroutine, once for each Arm when there is something for Reap;
	// it must not block and must not call the queue. What there is may be a
	// step of an operation that ends later: a Reap of nothing is followed by
	// another Arm.
	NewQueue(depth int, notify func()) (Queue, error)
	// Close fails with ErrBusy while queues are open. Closing twice is nil.
	Close() error
}

// Queue submits operations and reaps completions. One goroutine owns it.
type Queue interface {
	// Submit takes operations in order and returns how many it took: fewer
	// than len(ops) when the queue is full, the rest is to be submitted again
	// after a Reap. It never blocks on the medium. ops may be reused on return,
	// the buffers may not until the completion.
	Submit(ops []Op) int
	// Reap fills done with what completed and never blocks.
	Reap(done []Completion) int
	// Arm asks for one notify, which comes at once (from inside Arm, even)
	// when there is something for Reap already: nothing is missed by sleeping after
	// it. To Reap once more first may save the sleep.
	Arm()
	// Close waits for what is in flight. Closing twice is nil.
	Close() error
}

// Op is an operation. Offset and Length are bytes and multiples of the block
// size within the device; who submits has checked that.
type Op struct {
	ID      uint64 // comes back in the Completion
	Kind    Kind
	FUA     bool
	Dealloc bool // WriteZeroes: may free the space
	Offset  uint64
	Length  uint64
	// Bufs hold the data of Read and Write: their lengths add up to Length.
	// Memory outside the Go heap, or at least not moving. The slice itself
	// must stay as it is until the completion.
	Bufs [][]byte
}

// Completion is the end of an operation. Status 0 is success; errors are those
// a command can carry as they are: UnrecoveredReadError, WriteFault,
// CapacityExceeded, LBAOutOfRange (the medium shrank), NamespaceWriteProtected,
// InternalError.
type Completion struct {
	ID     uint64
	Status nvme.Status
}

// Waker is where the owner of queues sleeps in the kernel; fabric.Waker is one.
type Waker interface {
	// WatchSignals has each signal of fd, an eventfd that need not be read, end a
	// sleep, until Unwatch.
	WatchSignals(fd int) error
	Unwatch(fd int)
	// Asleep says whether a sleep is prepared, or goes on.
	Asleep() bool
}

// WakeArmer is implemented by queues whose owner can wait in the kernel itself for
// the medium, which costs no other goroutine a turn.
type WakeArmer interface {
	Queue
	// ArmOn is Arm for an owner that has prepared a sleep in w. What w watches ends
	// the sleep instead of notify, which is called for all else. A queue has one w
	// for its life.
	ArmOn(w Waker)
}

// Armer arms a queue in the best way that it knows. What that is is asked once: a
// type assertion may allocate.
type Armer struct {
	q  Queue
	on WakeArmer // q, or nil
}

// NewArmer is the Armer of q.
func NewArmer(q Queue) Armer {
	on, _ := q.(WakeArmer)
	return Armer{q, on}
}

// Arm arms the queue for an owner that sleeps in w; nil stands for any other sleep.
func (a Armer) Arm(w Waker) {
	if a.on != nil && w != nil {
		a.on.ArmOn(w)
		return
	}
	a.q.Arm()
}

// Registrar is implemented by queues that gain from knowing the memory in
// advance (io_uring registered buffers). Failing is not fatal: unregistered
// memory works.
type Registrar interface {
	RegisterBuffers(mem [][]byte) error
}
