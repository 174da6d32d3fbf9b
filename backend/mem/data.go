package mem

import (
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvmf-go/nvmf/backend"
)

// Queues of several owners copy at the same time, and a block must be old or
// new, never mixed (the atomic write unit is a block, NVM 2.1.4). A stripe of
// the device is therefore copied under its lock, uncontended nearly always.
const (
	stripeSize = 64 << 10 // bytes, a multiple of every block and page size
	numStripes = 256      // locks; stripes share them in turn
)

var pageSize = uint32(os.Getpagesize())

type stripes [numStripes]struct {
	sync.Mutex
	_ [56]byte // a cache line each
}

func (s *stripes) of(offset uint64) *sync.Mutex {
	return &s[offset/stripeSize%numStripes].Mutex
}

// lockAll takes every lock, in order; others hold one at a time.
func (s *stripes) lockAll() {
	for i := range s {
		s[i].Lock()
	}
}

func (s *stripes) unlockAll() {
	for i := range s {
		s[i].Unlock()
	}
}

// inStripe is how much of n bytes at offset lies in offset's stripe.
func inStripe(offset, n uint64) uint64 { return min(n, stripeSize-offset%stripeSize) }

// move copies between the device and op's buffers, stripe by stripe.
func (d *Device) move(op *backend.Op) {
	bufs, skip := op.Bufs, 0 // skip: bytes of bufs[0] that are done
	for off, left := op.Offset, op.Length; left > 0; {
		n := inStripe(off, left)
		mu := d.stripes.of(off)
		mu.Lock()
		bufs, skip = copyPart(d.mem[off:off+n], bufs, skip, op.Kind == backend.Write)
		mu.Unlock()
		off, left = off+n, left-n
	}
}

// copyPart copies all of medium from or to bufs[0][skip:] and on, and returns
// where it came to.
func copyPart(medium []byte, bufs [][]byte, skip int, write bool) (rest [][]byte, restSkip int) {
	for len(medium) > 0 && len(bufs) > 0 {
		b := bufs[0][skip:]
		var n int
		if write {
			n = copy(medium, b)
		} else {
			n = copy(b, medium)
		}
		medium, skip = medium[n:], skip+n
		if skip == len(bufs[0]) {
			bufs, skip = bufs[1:], 0
		}
	}
	return bufs, skip
}

// zero makes n bytes at off read as zeroes.
func (d *Device) zero(off, n uint64, wipe func([]byte)) {
	if n > numStripes*stripeSize {
		d.stripes.lockAll()
		wipe(d.mem[off : off+n])
		d.stripes.unlockAll()
		return
	}
	for n > 0 {
		part := inStripe(off, n)
		mu := d.stripes.of(off)
		mu.Lock()
		wipe(d.mem[off : off+part])
		mu.Unlock()
		off, n = off+part, n-part
	}
}

// wiper chooses between clearing memory, which is quicker for little, and
// giving its pages back to the system, which also frees them.
func wiper(op *backend.Op) func([]byte) {
	if op.Kind == backend.WriteZeroes && !op.Dealloc && op.Length < stripeSize {
		return overwrite
	}
	return release
}

func overwrite(b []byte) { clear(b) }

// release gives back the whole pages of b and.wipes the rest. The mapping
// starts at a page, so addresses tell where pages do.
func release(b []byte) {
	page := uintptr(pageSize)
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	head := min(-at&(page-1), uintptr(len(b)))
	whole := (uintptr(len(b)) - head) &^ (page - 1)
	if whole == 0 || unix.Madvise(b[head:head+whole], unix.MADV_DONTNEED) != nil {
		clear(b)
		return
	}
	clear(b[:head])
	clear(b[head+whole:])
}
