package fabric

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory is page-aligned memory outside the Go heap, the only kind a device
// can register: the collector never moves or frees it, and it holds no Go
// pointers. It stays valid until Close.
type Memory struct {
	b    []byte
	huge bool
}

// hugePage is the size of a huge page on the platforms we meet; a wrong guess
// makes mmap fail and the fallback is taken.
const hugePage = 2 << 20

var liveMemory atomic.Int64

// LiveMemory is the number of bytes of all open Memory, for leak tests and
// metrics.
func LiveMemory() int64 { return liveMemory.Load() }

// AllocMemory maps size bytes, rounded up to whole pages, zeroed. Sizes of
// 2 MiB and more try reserved huge pages, then ask for transparent ones.
func AllocMemory(size int) (*Memory, error) {
	if size <= 0 {
		return nil, &OpError{Op: "allocate memory", Err: fmt.Errorf("%w: size %d", ErrInvalid, size)}
	}
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_ANON | unix.MAP_PRIVATE
	if size%hugePage == 0 {
		if b, err := unix.Mmap(-1, 0, size, prot, flags|unix.MAP_HUGETLB|unix.MAP_POPULATE); err == nil {
			return newMemory(b, true), nil
		}
	}
	page := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, (size+page-1)/page*page, prot, flags)
	if err != nil {
		return nil, &OpError{Op: "allocate memory", Err: fmt.Errorf("mmap of %d bytes: %w", size, err)}
	}
	if size >= hugePage {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // a wish: the mapping works without
	}
	return newMemory(b, false), nil
}

func newMemory(b []byte, huge bool) *Memory {
	liveMemory.Add(int64(len(b)))
	return &Memory{b: b, huge: huge}
}

// Bytes is the memory itself. It must not be used after Close.
func (m *Memory) Bytes() []byte { return m.b }

// Len is the size in bytes, a multiple of the page size.
func (m *Memory) Len() int { return len(m.b) }

// Huge says whether reserved huge pages back the memory.
func (m *Memory) Huge() bool { return m.huge }

// Addr is the address of the first byte: what SGEs and peers name.
func (m *Memory) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.b)))) }

// Close unmaps the memory. Every region of it must be closed before. Closing
// twice is nil.
func (m *Memory) Close() error {
	if m.b == nil {
		return nil
	}
	b := m.b
	m.b = nil
	liveMemory.Add(-int64(len(b)))
	return unix.Munmap(b)
}
