package file

import (
	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// Aligned memory of a queue, in chunks. An operation keeps one until it is
// done and goes through it part by part; when there is none it waits.
const (
	chunkSize = 64 << 10 // bytes
	maxChunks = 128      // of a queue
)

// bounce is owned by the queue's owner.
type bounce struct {
	chunks  int    // constant
	mem     []byte // mapped when first needed; pages are used as touched
	free    []int
	waiting fifo
}

// take gives s a chunk; it is false when s has to wait or the system has no
// memory, which is err.
func (b *bounce) take(s *slot) (ok bool, err error) {
	if b.mem == nil {
		b.mem, err = unix.Mmap(-1, 0, b.chunks*chunkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return false, err
		}
		for i := range b.chunks {
			b.free = append(b.free, b.chunks-1-i)
		}
	}
	if len(b.free) == 0 {
		b.waiting.push(s)
		return false, nil
	}
	last := len(b.free) - 1
	s.chunk, b.free = b.free[last], b.free[:last]
	return true, nil
}

func (b *bounce) of(s *slot) []byte {
	return b.mem[s.chunk*chunkSize : (s.chunk+1)*chunkSize]
}

func (b *bounce) close() error {
	if b.mem == nil {
		return nil
	}
	return unix.Munmap(b.mem)
}

// fillChunk makes s's chunk the data of its call, and copies into it what is
// to be written. It is false when s waits, or has failed.
func (q *queue) fillChunk(s *slot) bool {
	if s.chunk == none {
		ok, err := q.bounce.take(s)
		if err != nil {
			q.finish(s, nvme.InternalError)
		}
		if !ok {
			return false
		}
	}
	data := q.bounce.of(s)
	data = data[:min(uint64(len(data)), s.op.Length-s.moved)]
	if s.op.Kind == backend.Write {
		copyAt(data, s.op.Bufs, s.moved, true)
	}
	s.call.single(&s.one, data)
	return true
}

// emptyChunk copies n bytes that were read to where they belong.
func (q *queue) emptyChunk(s *slot, n int) {
	copyAt(q.bounce.of(s)[:n], s.op.Bufs, s.moved, false)
}

// freeChunk gives s's chunk to the next that waits.
func (q *queue) freeChunk(s *slot) {
	if next := q.bounce.waiting.pop(); next != nil {
		next.chunk, s.chunk = s.chunk, none
		q.move(next)
		return
	}
	q.bounce.free = append(q.bounce.free, s.chunk)
	s.chunk = none
}

// copyAt copies all of data from or to the bytes of bufs that start at skip.
func copyAt(data []byte, bufs [][]byte, skip uint64, fromBufs bool) {
	for _, b := range bufs {
		if uint64(len(b)) <= skip {
			skip -= uint64(len(b))
			continue
		}
		b, skip = b[skip:], 0
		n := 0
		if fromBufs {
			n = copy(data, b)
		} else {
			n = copy(b, data)
		}
		if data = data[n:]; len(data) == 0 {
			return
		}
	}
}
