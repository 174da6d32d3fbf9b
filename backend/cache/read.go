package cache

import (
	"time"
	"unsafe"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// look is what was found of a read's pages.
type look struct {
	first, n uint64
	hit      bool // all, under references in queue.found
	waits    *unit
	ahead    bool // some were read ahead
	// Of the first maxFill pages: which are in memory, and which are in the
	// index with what is no longer the medium's content.
	have, dead uint16
}

// pages are those that a range meets.
func (d *Device) pages(offset, length uint64) (first, n uint64) {
	first = offset >> d.pageShift
	return first, (offset+length-1)>>d.pageShift - first + 1
}

// cacheable says whether a range lies in whole pages of the device as it is
// known to be. What is left over at its end is not cached.
func (d *Device) cacheable(offset, length uint64) bool {
	size := d.size.Load() &^ (d.page - 1)
	return length > 0 && offset <= size && length <= size-offset
}

// lookFor finds the pages of a read. A page that is found is under a reference
// when its stamp is checked, so its slot cannot be given to another page; and
// all are under references when the first is checked, so that they are the
// medium's content at one moment, that of the first check: each is in memory
// since before it, and nothing has changed it until after.
func (q *queue) lookFor(first, n uint64) (l look) {
	l.first, l.n = first, n
	all := true
	for i := range n {
		q.found[i] = q.reference(first+i, &l)
		all = all && q.found[i] != 0
		if !all && n > maxFill {
			q.unref(i)
			return l
		}
	}
	for i := range n {
		if q.found[i] != 0 && !q.verify(i, &l) {
			all = false
		}
	}
	if l.hit = all; !all {
		q.unref(n)
	}
	return l
}

// reference finds the slot of a page and takes a reference, or gives 0.
func (q *queue) reference(page uint64, l *look) uint32 {
	if u, slot := q.ahead.find(page); u != nil {
		if u.reading {
			l.waits = u
			return 0
		}
		if q.dev.slots.ref(slot) {
			l.ahead = true
			return slot
		}
	}
	slot := q.dev.index.slot(q.dev.index.get(mix(page)))
	if slot == 0 || !q.dev.slots.ref(slot) {
		return 0
	}
	return slot
}

// verify checks what was referenced for page i of the look. What the slot is
// of by now, and whether that is the medium's content, is in its descriptor.
func (q *queue) verify(i uint64, l *look) bool {
	d, page := &q.dev.slots.descs[q.found[i]], l.first+i
	switch {
	case d.number != page:
	case !q.dev.versions.current(mix(page), page, d.stamp):
		q.counts.add(stale, 1)
		l.dead |= bit(i)
	default:
		l.have |= bit(i)
		return true
	}
	q.dev.slots.unref(q.found[i])
	q.found[i] = 0
	return false
}

// bit is that of page i in a mask, none when the mask does not reach so far.
func bit(i uint64) uint16 { return uint16(1 << i) }

// unref gives back what was found of the first n pages.
func (q *queue) unref(n uint64) {
	for _, slot := range q.found[:n] {
		if slot != 0 {
			q.dev.slots.unref(slot)
		}
	}
}

// Lend answers a read from memory, as backend.Lender says. A read with FUA is
// to be submitted instead: memory is not stable media.
func (q *queue) Lend(offset, length uint64, bufs [][]byte) ([][]byte, bool) {
	if q.closed || q.streams.lane.lend.passes(offset, length) || !q.dev.cacheable(offset, length) {
		return bufs, false
	}
	first, n := q.dev.pages(offset, length)
	if n > maxLook || n > uint64(cap(bufs)-len(bufs)) {
		return bufs, false
	}
	start := q.clock()
	l := q.lookFor(first, n)
	if !l.hit {
		q.looked.put(q.turn, offset, length, l)
		if offset == q.streams.lane.lend.next {
			q.streams.lane.lend = after(offset+length, q.dev.pageShift)
		}
		return bufs, false
	}
	q.goOn(offset, length, l.ahead)
	for i, slot := range q.found[:n] {
		bufs = append(bufs, q.part(uint64(i), slot, l.first, offset, length))
	}
	q.hit(length, start)
	q.counts.add(lent, 1)
	return bufs, true
}

// part is the part of a slot, of page i after first, that a range covers.
func (q *queue) part(i uint64, slot uint32, first, offset, length uint64) []byte {
	begin := (first + i) << q.dev.pageShift
	from, to := max(offset, begin), min(offset+length, begin+q.dev.page)
	return q.dev.slots.data(slot)[from-begin : to-begin : to-begin]
}

// Return gives back what one Lend appended. A piece tells its slot.
func (q *queue) Return(lent [][]byte) {
	base := uintptr(unsafe.Pointer(unsafe.SliceData(q.dev.slots.mem)))
	for _, b := range lent {
		at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))) - base)
		q.dev.slots.unref(uint32(at>>q.dev.pageShift) + 1)
	}
}

// scans says that a read of stream i, if that is one, continues a scan and is
// not looked for. What is read ahead is.
func (q *queue) scans(i int, first, n uint64) bool {
	return i >= 0 && q.dev.opts.Admission != AdmitAll && q.streams.all[i].cold() &&
		!probes(first, n) && !q.ahead.has(first)
}

// goOn moves the stream of a read that hit on. It reads on ahead, unless the
// pages are in the index.
func (q *queue) goOn(offset, length uint64, ahead bool) {
	q.streams.leave()
	i, s := q.streams.note(q.streams.find(offset), offset, length)
	s.found()
	q.streams.close(i)
	if ahead {
		q.readAhead(i)
		q.flush()
	}
}

// One of so many is measured.
const (
	hitSample  = 256
	missSample = 16
)

// clock starts the measurement of a look now and then.
func (q *queue) clock() (start time.Time) {
	if q.looks++; q.looks%hitSample == 0 {
		start = time.Now()
	}
	return start
}

func (q *queue) hit(length uint64, start time.Time) {
	q.counts.add(hits, 1)
	q.counts.add(hitBytes, length)
	if !start.IsZero() {
		q.counts.add(hitTimes, 1)
		q.counts.add(hitTime, uint64(time.Since(start)))
	}
}

// takesRead answers or begins a read, or leaves it to the medium. A read with
// FUA is the medium's.
func (q *queue) takesRead(op *backend.Op) bool {
	if op.FUA || !q.dev.cacheable(op.Offset, op.Length) {
		q.counts.add(bypasses, 1)
		return false
	}
	first, n := q.dev.pages(op.Offset, op.Length)
	q.streams.leave()
	i := q.streams.find(op.Offset)
	scan := n > maxLook || q.scans(i, first, n)
	i, s := q.streams.note(i, op.Offset, op.Length)
	if scan {
		q.counts.add(bypasses, 1)
		q.readAhead(i)
		return false
	}
	start := q.clock()
	l, ok := q.looked.take(q.turn, op.Offset, op.Length)
	if !ok {
		l = q.lookFor(first, n)
	}
	took := true
	switch {
	case l.hit:
		s.found()
		q.answer(op, l, start)
	case l.waits != nil:
		q.await(q.request(op, wait), l.waits)
	default:
		took = q.miss(op, l, s)
	}
	if !l.hit || l.ahead {
		q.readAhead(i)
	}
	q.steer(i, s)
	return took
}

// steer has a stream that is cold go on in the lane, and one that is not any
// more leave it. With read-ahead each of its reads is looked at.
func (q *queue) steer(i int, s *stream) {
	switch {
	case s.cold() && q.ahead.size.count == 0 && q.dev.opts.Admission != AdmitAll:
		q.streams.open(i, q.dev.pageShift)
	default:
		q.streams.close(i)
	}
}

// answer copies what was found and ends the read.
func (q *queue) answer(op *backend.Op, l look, start time.Time) {
	to := cursor{bufs: op.Bufs}
	for i, slot := range q.found[:l.n] {
		to.copy(q.part(uint64(i), slot, l.first, op.Offset, op.Length))
	}
	q.unref(l.n)
	q.finish(op.ID, nvme.Success)
	q.hit(op.Length, start)
}

// miss has a read fill pages, or leaves it to the medium.
func (q *queue) miss(op *backend.Op, l look, s *stream) bool {
	q.counts.add(misses, 1)
	q.misses++
	fills := l.n <= maxFill && q.admits(l, s)
	r := q.sample(op)
	if fills {
		if r == nil {
			r = q.request(op, fill)
		}
		if q.fill(r, l) {
			return true
		}
		r.step = relay
	}
	if r == nil {
		return false
	}
	q.pass(r)
	return true
}

// sample makes a request of a miss now and then, to measure it, if none is
// being measured.
func (q *queue) sample(op *backend.Op) *request {
	if q.timing || q.misses%missSample != 0 {
		return nil
	}
	q.timing = true
	r := q.request(op, relay)
	r.start = time.Now()
	return r
}

// admits says whether to keep the pages of a read that are not in memory. All
// of them pass the door, so that it knows them the next time.
func (q *queue) admits(l look, s *stream) bool {
	if q.dev.opts.Admission == AdmitAll {
		return true
	}
	room := q.dev.room() && !s.cold()
	all := true
	for i := range l.n {
		if l.have&bit(i) != 0 {
			continue
		}
		known := q.dev.door.seen(mix(l.first+i)) || l.dead&bit(i) != 0
		if known {
			s.known()
		} else {
			s.unknown()
		}
		all = all && (known || room)
	}
	return all
}

// fill begins a read of a request's pages into slots. It fails when there are
// not enough free ones, or while something changes a page.
func (q *queue) fill(r *request, l look) bool {
	d := q.dev
	r.step, r.first, r.n = fill, l.first, 0
	for i := range l.n {
		slot := d.slots.take()
		if slot == 0 {
			q.counts.add(noPage, 1)
			q.dropSlots(r)
			return false
		}
		r.slots[i], r.bufs[i], r.entries[i], r.n = slot, d.slots.data(slot), 0, i+1
		desc, hash, ok := &d.slots.descs[slot], mix(l.first+i), false
		desc.number = l.first + i
		if desc.stamp, ok = d.versions.stamp(hash, desc.number); !ok {
			q.dropSlots(r)
			return false
		}
		if (l.dead|l.have)&bit(i) != 0 {
			r.entries[i] = d.index.get(hash)
		}
	}
	q.out = append(q.out, backend.Op{
		ID: ours | uint64(r.index), Kind: backend.Read,
		Offset: r.first << d.pageShift, Length: r.n << d.pageShift, Bufs: r.bufs[:r.n],
	})
	return true
}

// filled ends a fill: the read has its data, the pages are published. Where
// more was read than was asked for, and that failed, the read itself is tried.
func (q *queue) filled(r *request, st nvme.Status) bool {
	if st != nvme.Success || q.closing {
		wider := !q.closing && r.n<<q.dev.pageShift != r.op.Length
		q.dropSlots(r)
		r.step = relay
		if wider {
			q.pass(r)
		}
		return !wider
	}
	to := cursor{bufs: r.op.Bufs}
	for i, slot := range r.slots[:r.n] {
		to.copy(q.part(uint64(i), slot, r.first, r.op.Offset, r.op.Length))
		q.publish(slot, r.entries[i])
	}
	return true
}

// publish gives a slot that is the queue's alone to the index, in place of what
// an entry led to if there is one. A page that was changed since its stamp
// would be found stale at once.
func (q *queue) publish(slot, entry uint32) {
	d := &q.dev.slots.descs[slot]
	if !q.dev.versions.current(mix(d.number), d.number, d.stamp) {
		q.dev.slots.free(slot)
		return
	}
	page := d.number
	d.ref.Store(1) // before it can be found
	if q.dev.index.replace(entry, page, slot) || q.dev.index.add(page, slot) {
		q.counts.add(fills, 1)
	}
}

// dropSlots frees the slots of a request.
func (q *queue) dropSlots(r *request) {
	for _, slot := range r.slots[:r.n] {
		if slot != 0 {
			q.dev.slots.free(slot)
		}
	}
	r.n = 0
}

// cursor is a place in buffers.
type cursor struct {
	bufs [][]byte
	skip int // bytes of bufs[0]
}

// copy puts all of b there and moves on.
func (c *cursor) copy(b []byte) {
	for len(b) > 0 {
		n := copy(c.bufs[0][c.skip:], b)
		b = b[n:]
		c.move(n)
	}
}

// read takes len(b) bytes from there and moves on.
func (c *cursor) read(b []byte) {
	for len(b) > 0 {
		n := copy(b, c.bufs[0][c.skip:])
		b = b[n:]
		c.move(n)
	}
}

func (c *cursor) move(n int) {
	if c.skip += n; c.skip == len(c.bufs[0]) {
		c.bufs, c.skip = c.bufs[1:], 0
	}
}

// looked remembers Lends that failed since the last Reap, so that the Submit
// that follows neither looks nor counts again.
type looked [64]struct {
	turn           uint64
	offset, length uint64
	look           look
}

func (k *looked) at(offset uint64) int { return int(mix(offset) % uint64(len(k))) }

func (k *looked) put(turn, offset, length uint64, l look) {
	e := &k[k.at(offset)]
	e.turn, e.offset, e.length, e.look = turn, offset, length, l
	if l.waits != nil {
		e.length = 0 // to be looked for again, when it is there
	}
}

func (k *looked) take(turn, offset, length uint64) (look, bool) {
	e := &k[k.at(offset)]
	if e.turn != turn || e.length != length || e.offset != offset {
		return look{}, false
	}
	e.length = 0
	return e.look, true
}
