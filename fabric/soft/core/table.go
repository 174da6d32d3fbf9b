package core

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nvmf-go/nvmf/fabric"
)

// A key is a number of the wire:
//
//	31          20 19       12 11        0
//	+-------------+-----------+-----------+
//	| chunk       | slot      | tag       |
//	+-------------+-----------+-----------+
//
// The chunk's number is drawn at random when the chunk is made and the tag
// anew each time the slot is used, so that knowing one key says nothing of the
// others. Slots are reused in the order they were freed and never the next
// time but after minFree others: a key that died does not come back soon.
const (
	tagBits   = 12
	slotBits  = 8
	chunkBits = 32 - slotBits - tagBits
	minFree   = 128

	// MaxKeys is how many keys (regions and windows) a table can hold.
	MaxKeys = 1 << (chunkBits + slotBits)
)

// Fault is why a lookup was refused.
type Fault uint8

// Faults. FaultNone is success.
const (
	FaultNone   Fault = iota
	FaultKey          // no such key, or a dead one, or another QP's window
	FaultRange        // [addr, addr+n) is not inside
	FaultRights       // the key does not carry the right
)

var faultNames = [...]string{"none", "unknown or dead key", "out of range", "missing right"}

func (f Fault) String() string {
	if int(f) < len(faultNames) {
		return faultNames[f]
	}
	return fmt.Sprintf("Fault(%d)", uint8(f))
}

// region is what a slot points to. For a registered region all but key is
// constant. For a window the fields of the bind are written by the owner of
// the QP qpn while key is 0, and read by that owner only: others see a qpn
// that is not theirs and stop.
type region struct {
	key    atomic.Uint32 // 0 when dead or unbound
	qpn    atomic.Uint32 // windows: the QP bound to
	window bool
	access fabric.Access
	addr   uint64
	mem    []byte
	parent *region // windows: the region bound to
}

type chunk [1 << slotBits]atomic.Pointer[region]

// Table is the keys of one device. Lookups are lock-free and allocate nothing;
// registration is for any goroutine.
type Table struct {
	guards *Guards
	max    int

	chunks [1 << chunkBits]atomic.Pointer[chunk]

	mu   sync.Mutex
	free []uint32 // FIFO of slot numbers (chunk and slot bits)
	tags map[uint32]uint32
	live int
}

// NewTable makes a table for up to limit keys (0 means MaxKeys). guards are the readers of
// it; tables may share them.
func NewTable(guards *Guards, limit int) *Table {
	if limit <= 0 || limit > MaxKeys {
		limit = MaxKeys
	}
	return &Table{guards: guards, max: limit, tags: make(map[uint32]uint32)}
}

// Len is the number of live keys: regions and windows.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

// random is a uniform number below n, a power of two.
func random(n uint32) uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails (Go 1.24)
	return binary.LittleEndian.Uint32(b[:]) & (n - 1)
}

// grow adds a chunk at a random place, its slots in random order.
func (t *Table) grow() {
	no := random(1 << chunkBits)
	for t.chunks[no].Load() != nil {
		no = (no + 1) & (1<<chunkBits - 1)
	}
	t.chunks[no].Store(new(chunk))
	order := make([]uint32, 1<<slotBits)
	for i := range order {
		j := random(1<<slotBits) % uint32(i+1)
		order[i] = order[j]
		order[j] = no<<slotBits | uint32(i)
	}
	t.free = append(t.free, order...)
}

// allocate puts r into a free slot and returns the slot and a fresh key for
// it. The key is not stored in r.
func (t *Table) allocate(r *region) (slot, key uint32, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live >= t.max {
		return 0, 0, fmt.Errorf("%w: all %d memory keys are in use", fabric.ErrQueueFull, t.max)
	}
	if len(t.free) <= minFree && t.live+len(t.free) < MaxKeys {
		t.grow()
	}
	slot = t.free[0]
	t.free = t.free[1:]
	t.live++
	last, used := t.tags[slot]
	if !used {
		last = random(1 << tagBits)
	}
	key = nextKey(slot<<tagBits|last, random(1<<tagBits))
	t.tags[slot] = key & (1<<tagBits - 1)
	t.at(slot).Store(r)
	return slot, key, nil
}

// nextKey is another key of the same slot: the tag moves on by 1+step, skipping
// the key 0 that no memory has.
func nextKey(key, step uint32) uint32 {
	const mask = 1<<tagBits - 1
	tag := key & mask
	for range 2 {
		if n := (tag + 1 + step%mask) & mask; key&^mask|n != 0 {
			return key&^mask | n
		}
		step++
	}
	return key&^mask | 1 // not reached: two steps in a row cannot both give 0
}

func (t *Table) at(slot uint32) *atomic.Pointer[region] {
	return &t.chunks[slot>>slotBits].Load()[slot&(1<<slotBits-1)]
}

// release kills the slot's key and returns when nobody uses its memory.
func (t *Table) release(slot uint32, r *region) {
	r.key.Store(0)
	t.at(slot).Store(nil)
	t.guards.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free = append(t.free, slot)
	t.live--
}

// find is the region whose key that is, or nil.
func (t *Table) find(key uint32) *region {
	c := t.chunks[key>>(tagBits+slotBits)].Load()
	if c == nil {
		return nil
	}
	r := c[key>>tagBits&(1<<slotBits-1)].Load()
	if r == nil || r.key.Load() != key || key == 0 {
		return nil
	}
	return r
}

// slice is the n bytes at addr.
func (r *region) slice(addr uint64, n uint32, need fabric.Access) ([]byte, Fault) {
	if r.access&need != need {
		return nil, FaultRights
	}
	off, size := addr-r.addr, uint64(len(r.mem)) // below r.addr wraps beyond any size
	if off > size || uint64(n) > size-off {
		return nil, FaultRange
	}
	return r.mem[off : off+uint64(n) : off+uint64(n)], FaultNone
}

// Local is the memory of an SGE: key, addr and n are the caller's own. need is
// AccessLocalWrite for a receive or the sink of a READ, 0 for a source. The
// result is valid until the guard is left.
func (t *Table) Local(key uint32, addr uint64, n uint32, need fabric.Access) ([]byte, Fault) {
	r := t.find(key)
	if r == nil || r.window {
		return nil, FaultKey
	}
	return r.slice(addr, n, need)
}

// Remote is the memory that the peer of QP qpn named for an access that wants
// the right need. A range of no bytes needs no key (IBTA vol 1, 9.7.4.1.3): do
// not look it up. The result is valid until the guard is left.
func (t *Table) Remote(qpn, key uint32, addr uint64, n uint32, need fabric.Access) ([]byte, Fault) {
	r := t.find(key)
	if r == nil {
		return nil, FaultKey
	}
	if r.window && (r.qpn.Load() != qpn || r.parent.key.Load() == 0) {
		return nil, FaultKey
	}
	return r.slice(addr, n, need)
}

// Region is a registered range; it implements fabric.MemoryRegion.
type Region struct {
	t    *Table
	mem  *fabric.Memory
	slot uint32
	key  uint32
	r    *region
	once sync.Once
	gone func() // called once at Close
}

// Register makes m available with the rights of a. The error wraps
// fabric.ErrInvalid when m is closed or a asks for remote writes without local
// ones, and fabric.ErrQueueFull when the table is full.
func (t *Table) Register(m *fabric.Memory, a fabric.Access) (*Region, error) {
	const writes = fabric.AccessRemoteWrite | fabric.AccessRemoteAtomic
	switch {
	case m == nil || m.Len() == 0:
		return nil, fmt.Errorf("%w: no memory", fabric.ErrInvalid)
	case a&writes != 0 && a&fabric.AccessLocalWrite == 0:
		return nil, fmt.Errorf("%w: remote writes need local writes", fabric.ErrInvalid)
	}
	r := &region{access: a, addr: m.Addr(), mem: m.Bytes()}
	slot, key, err := t.allocate(r)
	if err != nil {
		return nil, err
	}
	r.key.Store(key)
	return &Region{t: t, mem: m, slot: slot, key: key, r: r}, nil
}

// LKey is the key for SGEs.
func (r *Region) LKey() uint32 { return r.key }

// RKey is the key for the peer; it is the same number, and useless to a peer
// without a remote right.
func (r *Region) RKey() uint32 { return r.key }

// Memory is the memory registered.
func (r *Region) Memory() *fabric.Memory { return r.mem }

// Close ends the key and every window bound to the region, and returns when no
// owner uses the memory any more. Closing twice is nil.
func (r *Region) Close() error {
	r.once.Do(func() {
		r.t.release(r.slot, r.r)
		if r.gone != nil {
			r.gone()
		}
	})
	return nil
}
