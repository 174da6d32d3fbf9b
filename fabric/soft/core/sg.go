package core

import (
	"sync/atomic"
	"unsafe"

	"github.com/nvmf-go/nvmf/fabric"
)

// Total is the number of bytes that sges name.
func Total(sges []fabric.SGE) uint64 {
	var n uint64
	for i := range sges {
		n += uint64(sges[i].Length)
	}
	return n
}

// Slice is the memory of the message bytes from off on, as far as one SGE
// holds them and at most limit. It is empty with FaultNone at the end of the
// message. need is as for Local.
func (t *Table) Slice(sges []fabric.SGE, off uint64, limit uint32, need fabric.Access) ([]byte, Fault) {
	for i := range sges {
		s := &sges[i]
		if off >= uint64(s.Length) {
			off -= uint64(s.Length)
			continue
		}
		return t.Local(s.LKey, s.Addr+off, min(s.Length-uint32(off), limit), need)
	}
	return nil, FaultNone
}

// Check looks every SGE up without touching memory: FaultNone means that the
// first n bytes of the message are accessible for need.
func (t *Table) Check(sges []fabric.SGE, n uint64, need fabric.Access) Fault {
	for i := range sges {
		k := uint32(min(n, uint64(sges[i].Length)))
		if k == 0 {
			continue
		}
		if _, f := t.Local(sges[i].LKey, sges[i].Addr, k, need); f != FaultNone {
			return f
		}
		n -= uint64(k)
	}
	return FaultNone
}

// Gather copies message bytes from off on into dst and returns how many there
// were: fewer than len(dst) only at the end of the message. After a fault the
// count is what was copied before it.
func (t *Table) Gather(dst []byte, sges []fabric.SGE, off uint64) (int, Fault) {
	n := 0
	for n < len(dst) {
		b, f := t.Slice(sges, off+uint64(n), uint32(len(dst)-n), 0)
		if f != FaultNone || len(b) == 0 {
			return n, f
		}
		n += copy(dst[n:], b)
	}
	return n, FaultNone
}

// Scatter copies src to the message bytes from off on and returns how many
// fitted; the SGEs must allow local writes.
func (t *Table) Scatter(sges []fabric.SGE, off uint64, src []byte) (int, Fault) {
	n := 0
	for n < len(src) {
		b, f := t.Slice(sges, off+uint64(n), uint32(len(src)-n), fabric.AccessLocalWrite)
		if f != FaultNone || len(b) == 0 {
			return n, f
		}
		n += copy(b, src[n:])
	}
	return n, FaultNone
}

// copyInline copies the memory that sges name by address alone into dst, which
// is large enough. As with real devices the caller vouches for the addresses.
func copyInline(dst []byte, sges []fabric.SGE) {
	for i := range sges {
		if sges[i].Length > 0 {
			dst = dst[copy(dst, unsafe.Slice(pointer(&sges[i].Addr), sges[i].Length)):]
		}
	}
}

// pointer reads an address as the pointer it is. Memory is never on the Go
// heap, so the collector has no part in this.
func pointer(addr *uint64) *byte { return *(**byte)(unsafe.Pointer(addr)) }

// AtomicSize is the size of the operand of an atomic, and its alignment.
const AtomicSize = 8

// Atomic runs OpCompareSwap or OpFetchAdd on the 8 bytes b, in host byte
// order, and returns the value before. It is atomic against every other
// Atomic and against sync/atomic of this process. It is false, with nothing
// done, when b is not 8 aligned bytes.
func Atomic(op fabric.Opcode, b []byte, compare, swapAdd uint64) (old uint64, ok bool) {
	if len(b) != AtomicSize || uintptr(unsafe.Pointer(&b[0]))%AtomicSize != 0 {
		return 0, false
	}
	p := (*uint64)(unsafe.Pointer(&b[0]))
	if op == fabric.OpFetchAdd {
		return atomic.AddUint64(p, swapAdd) - swapAdd, true
	}
	for {
		if old = atomic.LoadUint64(p); old != compare {
			return old, true
		}
		if atomic.CompareAndSwapUint64(p, compare, swapAdd) {
			return old, true
		}
	}
}

// HostBytes is the memory of an atomic's old value, in host byte order.
func HostBytes(v *uint64) []byte { return (*[AtomicSize]byte)(unsafe.Pointer(v))[:] }
