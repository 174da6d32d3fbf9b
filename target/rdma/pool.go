package rdma

import (
	"math/bits"

	"github.com/nvmf-go/nvmf/fabric"
)

// pageSize is the unit of the buffer pools and the smallest block in bytes.
const (
	pageShift = 12
	pageSize  = 1 << pageShift
)

// maxPieces bounds the blocks one buffer is made of, and with it the elements
// of Request.Bufs and of Request.Scratch.
const maxPieces = 8

// maxOrders is one more than the greatest order of a block: 16 MiB, beyond
// what one keyed descriptor can describe.
const maxOrders = 13

// block is a piece of a pool's memory: a power of two of pages, aligned to its
// size. It is the number of its first page and its order.
type block uint32

func makeBlock(page uint32, order int) block { return block(page<<4 | uint32(order)) }
func (b block) page() uint32                 { return uint32(b) >> 4 }
func (b block) order() int                   { return int(b & 15) }
func (b block) offset() uint64               { return uint64(b.page()) << pageShift }
func (b block) size() uint32                 { return pageSize << b.order() }

const noPage = ^uint32(0)

// pool is a buddy allocator over one piece of memory that devices have
// registered. It belongs to one poll group. Freed blocks of common sizes stay
// whole in a short stack for the next request of their size; they are merged
// with their buddies when a request finds nothing else.
//
// A buffer has at most maxPieces blocks, so a fragmented pool can fail with
// enough pages free. The pages behind the buddies, the reserve, cannot: they are
// handed out in blocks so large (grain) that maxPieces of any of them make the
// largest buffer. Who gets some is the business of share.
type pool struct {
	mem      *fabric.Memory
	bytes    []byte
	addr     uint64
	topOrder int

	pages     int                // of the pool, the reserve included
	free      int                // pages not handed out
	grain     int                // order of the reserve's blocks
	buddies   int                // pages before the reserve
	reserve   []block            // not handed out
	returned  uint64             // blocks that came back to the reserve, ever
	ratio     int                // bounds who takes: see share; 0 is no bound
	heads     [maxOrders]uint32  // free lists by order
	next      []uint32           // by page: links of the free lists
	prev      []uint32           //
	freeOrder []int8             // by page: order of the free block beginning here, -1
	kept      [maxOrders][]block // freed and not merged
}

// keptBlocks is how many freed blocks of one order stay whole.
func keptBlocks(order int) int { return max(32>>order, 1) }

// newPool maps size bytes, rounded up to whole blocks of the greatest order,
// which is that of largest bytes (a power of two of pages), and a reserve of
// that many bytes, rounded up to its blocks.
func newPool(size, reserve, largest int) (*pool, error) {
	size = roundUp(size, largest)
	reserve = roundUp(reserve, grainSize(largest))
	mem, err := fabric.AllocMemory(size + reserve)
	if err != nil {
		return nil, err
	}
	p := poolOver(mem, size>>pageShift, orderOf(largest))
	p.grain = orderOf(grainSize(largest))
	for page := p.pages - 1<<p.grain; page >= p.buddies; page -= 1 << p.grain {
		p.reserve = append(p.reserve, makeBlock(uint32(page), p.grain))
	}
	return p, nil
}

// grainSize is the size of the blocks of a reserve, in bytes.
func grainSize(largest int) int { return max(largest/maxPieces, pageSize) }

func orderOf(size int) int    { return bits.Len(uint(size>>pageShift)) - 1 }
func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

// poolOver makes buddies of the first pages of mem; the rest is nobody's yet.
func poolOver(mem *fabric.Memory, pages, top int) *pool {
	all := mem.Len() >> pageShift
	p := &pool{
		mem: mem, bytes: mem.Bytes(), addr: mem.Addr(), topOrder: top, pages: all, free: all, buddies: pages,
		next: make([]uint32, pages), prev: make([]uint32, pages), freeOrder: make([]int8, pages),
	}
	for o := range p.heads {
		p.heads[o] = noPage
		p.kept[o] = make([]block, 0, keptBlocks(o))
	}
	for i := range p.freeOrder {
		p.freeOrder[i] = -1
	}
	for page := pages - 1<<top; page >= 0; page -= 1 << top {
		p.push(uint32(page), top)
	}
	return p
}

// capacity is the pool's size in bytes.
func (p *pool) capacity() uint64 { return uint64(p.pages) << pageShift }

// pagesOf is the number of pages that n bytes take.
func pagesOf(n uint32) int { return int((uint64(n) + pageSize - 1) >> pageShift) }

// reserved is the number of pages in the reserve.
func (p *pool) reserved() int { return len(p.reserve) << p.grain }

// grains is the number of the reserve's blocks that n bytes take.
func (p *pool) grains(n uint32) int { return (pagesOf(n) + 1<<p.grain - 1) >> p.grain }

// get finds a buffer of n bytes outside the reserve and puts its blocks into
// out, the last of them perhaps longer than needed. It returns their number, 0
// when the pool cannot serve now. n is not 0.
func (p *pool) get(n uint32, out []block) int {
	need := pagesOf(n)
	if need > p.free-p.reserved() {
		return 0
	}
	if got := p.gather(need, out); got > 0 {
		return got
	}
	p.merge()
	return p.gather(need, out)
}

// getReserve is get in the reserve.
func (p *pool) getReserve(n uint32, out []block) int {
	k := p.grains(n)
	if k > len(p.reserve) || k > len(out) {
		return 0
	}
	rest := len(p.reserve) - k
	copy(out, p.reserve[rest:])
	p.reserve = p.reserve[:rest]
	p.free -= k << p.grain
	return k
}

// gather takes blocks from the greatest useful order downward.
func (p *pool) gather(need int, out []block) (got int) {
	for order := p.topOrder; need > 0; {
		if got == len(out) {
			p.putAll(out[:got])
			return 0
		}
		order = min(order, bits.Len(uint(need))-1)
		if got == len(out)-1 { // the last piece has to hold the rest
			order = min(bits.Len(uint(need-1)), p.topOrder)
		}
		b, ok := p.take(order)
		for !ok && order > 0 {
			order--
			b, ok = p.take(order)
		}
		if !ok {
			p.putAll(out[:got])
			return 0
		}
		out[got] = b
		got++
		need -= 1 << order
	}
	return got
}

// take finds one block of that order, splitting a greater one if it must.
func (p *pool) take(order int) (block, bool) {
	if k := p.kept[order]; len(k) > 0 {
		b := k[len(k)-1]
		p.kept[order] = k[:len(k)-1]
		p.free -= 1 << order
		return b, true
	}
	o := order
	for p.heads[o] == noPage {
		if o++; o > p.topOrder {
			return 0, false
		}
	}
	page := p.heads[o]
	p.unlink(page, o)
	for o > order {
		o--
		p.push(page+1<<o, o)
	}
	p.free -= 1 << order
	return makeBlock(page, order), true
}

// putAll gives blocks back.
func (p *pool) putAll(bs []block) {
	for _, b := range bs {
		p.put(b)
	}
}

func (p *pool) put(b block) {
	o := b.order()
	p.free += 1 << o
	if int(b.page()) >= p.buddies {
		p.reserve = append(p.reserve, b)
		p.returned++
		return
	}
	if k := p.kept[o]; len(k) < cap(k) {
		p.kept[o] = append(k, b)
		return
	}
	p.join(b.page(), o)
}

// merge lets the kept blocks join their buddies.
func (p *pool) merge() {
	for o, k := range p.kept {
		for _, b := range k {
			p.join(b.page(), o)
		}
		p.kept[o] = k[:0]
	}
}

// join puts a block on its free list, as part of the greatest block that is
// free around it.
func (p *pool) join(page uint32, o int) {
	for o < p.topOrder {
		buddy := page ^ 1<<o
		if p.freeOrder[buddy] != int8(o) {
			break
		}
		p.unlink(buddy, o)
		page &^= 1 << o
		o++
	}
	p.push(page, o)
}

func (p *pool) push(page uint32, o int) {
	head := p.heads[o]
	p.next[page], p.prev[page] = head, noPage
	if head != noPage {
		p.prev[head] = page
	}
	p.heads[o] = page
	p.freeOrder[page] = int8(o)
}

func (p *pool) unlink(page uint32, o int) {
	next, prev := p.next[page], p.prev[page]
	if prev == noPage {
		p.heads[o] = next
	} else {
		p.next[prev] = next
	}
	if next != noPage {
		p.prev[next] = prev
	}
	p.freeOrder[page] = -1
}

// views appends to vec the memory of the blocks, n bytes in all.
func (p *pool) views(vec [][]byte, bs []block, n uint32) [][]byte {
	for _, b := range bs {
		size := min(b.size(), n)
		off := b.offset()
		vec = append(vec, p.bytes[off:off+uint64(size):off+uint64(size)])
		n -= size
	}
	return vec
}
