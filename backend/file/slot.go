package file

import (
	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// slot is an operation from Submit to Reap. It makes one system call at a
// time, and its function then says what follows:
//
//	Read, Write    moving -+-> syncing -+-> done
//	                ^  |short, again    |
//	                +--+                |
//	WriteZeroes    zeroing -+-----------+   another way when the medium
//	                ^  |    +-> moving      lacks one, at last by writing
//	                +--+
//	Discard        discarding ----------+   (a hole in a file: as WriteZeroes)
//	Flush          syncing -------------+
//
// syncing happens for Flush, and for FUA that the call itself did not honour.
// Before moving, a slot may wait for bounce memory; before syncing, for the
// sync that runs.
type slot struct {
	// Constant.
	queue *queue
	index uint32 // in queue.slots

	// The queue's owner.
	op     backend.Op
	then   func(*queue, *slot, int32) // takes the call's result
	moved  uint64                     // bytes of op.Length that are done
	chunk  int                        // bounce memory, or none
	bounce bool                       // the data goes through bounce memory
	dsync  bool                       // its writes are RWF_DSYNC
	synced bool                       // nothing is left to sync
	way    zeroWay
	tries  uint8       // calls that passed without progress
	status nvme.Status // when it is done
	next   *slot       // in the owner's list that holds it
	vec    []unix.Iovec
	one    [1]unix.Iovec // vec of a single buffer

	// Whoever makes the call: the owner, then the pool until deliver.
	call call
	link *slot // in the list between them
	res  int32 // of the call
}

// none is no bounce memory.
const none = -1

// maxVec is the most buffers one call moves; the rest follows with the next.
const maxVec = 256

// maxTries bounds how often a call is made again that gets nowhere.
const maxTries = 16

// again says whether to make the call once more.
func (s *slot) again() bool {
	s.tries++
	return s.tries < maxTries
}

// fifo is a list of slots of the owner, linked through slot.next.
type fifo struct{ head, tail *slot }

func (f *fifo) push(s *slot) {
	s.next = nil
	if f.head == nil {
		f.head = s
	} else {
		f.tail.next = s
	}
	f.tail = s
}

func (f *fifo) pop() *slot {
	s := f.head
	if s != nil {
		f.head, s.next = s.next, nil
	}
	return s
}
