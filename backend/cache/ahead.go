package cache

import (
	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// ahead is what a queue has read ahead of its sequential readers: pages in
// slots that the queue holds, not the index, so that a scan goes by without
// pushing anything out. They are lent and checked like all others.
type ahead struct {
	size    unitSize
	units   []unit
	live    int // units that are in use
	reading int
	// credit rises with units that were used and falls with those that were
	// not. At 0 there is no read-ahead, but for a try now and then.
	credit int
	paused int // chances that were left out
}

// unit is pages that one operation reads ahead.
type unit struct {
	index   uint32
	stream  uint64 // whose
	first   uint64 // page
	n       uint64 // 0: not in use
	reading bool
	past    bool   // the stream has gone by while it was being read
	used    uint64 // a bit for each page
	slots   [maxUnit]uint32
	bufs    [maxUnit][]byte
	waiting *request
}

// unitSize says how many units of how many pages a queue has.
type unitSize struct {
	count int
	pages uint64
	bytes uint64 // the most ahead of a stream
}

const (
	maxUnit   = 64 // pages
	maxCredit = 32
	tryAgain  = 512 // chances
)

// unitsFor divides the read-ahead: half of it is read while the other half is
// used. It takes no more than an eighth of the pages.
func unitsFor(bytes, page int, pages uint64) unitSize {
	n := min(uint64(bytes/page), pages/8)
	if n == 0 {
		return unitSize{}
	}
	per := min(maxUnit, max(1, n/2))
	return unitSize{count: int(n/per) + 2, pages: per, bytes: n * uint64(page)}
}

func (a *ahead) make(s unitSize) {
	a.size, a.units, a.credit = s, make([]unit, s.count), maxCredit/2
	for i := range a.units {
		a.units[i].index = uint32(i)
	}
}

// find is the unit that has or will have a page, and its slot.
func (a *ahead) find(page uint64) (*unit, uint32) {
	if a.live == 0 {
		return nil, 0
	}
	for i := range a.units {
		if u := &a.units[i]; page-u.first < u.n {
			u.used |= 1 << (page - u.first)
			return u, u.slots[page-u.first]
		}
	}
	return nil, 0
}

func (a *ahead) has(page uint64) bool {
	if a.live == 0 {
		return false
	}
	for i := range a.units {
		if u := &a.units[i]; page-u.first < u.n {
			return true
		}
	}
	return false
}

// readAhead retires what stream i has gone past, and reads further ahead of it
// when half of that is used up. How far depends on how far it has come.
func (q *queue) readAhead(i int) {
	if q.ahead.size.count == 0 {
		return
	}
	s, next := &q.streams.all[i], q.streams.next[i]
	if i >= established || !q.paying() {
		return
	}
	q.retire(s.id, next)
	s.ahead = max(s.ahead, next)
	window := min(q.ahead.size.bytes, s.run)
	if s.ahead-next > window/2 {
		return
	}
	for s.ahead-next < window && q.readUnit(s) {
	}
}

// paying says whether reading ahead has been of use.
func (q *queue) paying() bool {
	if q.ahead.credit > 0 {
		return true
	}
	if q.ahead.paused++; q.ahead.paused >= tryAgain {
		q.ahead.paused, q.ahead.credit = 0, 2
	}
	return false
}

// retire gives up the units of a stream that lie before next, and those whose
// streams are gone.
func (q *queue) retire(stream, next uint64) {
	if q.ahead.live == 0 {
		return
	}
	for i := range q.ahead.units {
		u := &q.ahead.units[i]
		switch {
		case u.n == 0:
		case u.stream == stream && (u.first+u.n)<<q.dev.pageShift <= next, !q.streams.lives(u.stream):
			q.giveUp(u)
		}
	}
}

// giveUp ends a unit, at once or when its read has ended.
func (q *queue) giveUp(u *unit) {
	if u.past = true; u.reading {
		return
	}
	var used uint64
	for i, slot := range u.slots[:u.n] {
		if u.used>>i&1 == 0 {
			q.dev.slots.unref(slot)
			continue
		}
		used++
		q.keepAhead(u.first+uint64(i), slot)
	}
	q.counts.add(aheadUsed, used)
	if 2*used >= u.n {
		q.ahead.credit = min(q.ahead.credit+1, maxCredit)
	} else {
		q.ahead.credit = max(q.ahead.credit-2, 0)
	}
	u.n = 0
	q.ahead.live--
}

// keepAhead hands a page that was used to the index, if it came by before.
func (q *queue) keepAhead(page uint64, slot uint32) {
	hash := mix(page)
	known := q.dev.opts.Admission == AdmitAll || q.dev.door.seen(hash)
	if !known || !q.dev.versions.current(hash, page, q.dev.slots.descs[slot].stamp) {
		q.dev.slots.unref(slot)
		return
	}
	x := q.dev.index
	if x.replace(x.get(hash), page, slot) || x.add(page, slot) {
		q.counts.add(fills, 1)
	}
}

// readUnit reads a unit at the end of what was read ahead of s, if there is one
// free and it lies in the device.
func (q *queue) readUnit(s *stream) bool {
	u := q.idleUnit()
	if u == nil {
		return false
	}
	d := q.dev
	u.first = (s.ahead + d.page - 1) >> d.pageShift
	u.n, u.used, u.past, u.stream = 0, 0, false, s.id
	for page := u.first; u.n < q.ahead.size.pages && d.cacheable(page<<d.pageShift, d.page); page++ {
		slot := d.slots.take()
		if slot == 0 {
			break
		}
		desc, ok := &d.slots.descs[slot], false
		desc.number = page
		if desc.stamp, ok = d.versions.stamp(mix(page), page); !ok {
			d.slots.free(slot)
			break
		}
		u.slots[u.n], u.bufs[u.n] = slot, d.slots.data(slot)
		u.n++
	}
	if u.n == 0 {
		return false
	}
	s.ahead = (u.first + u.n) << d.pageShift
	u.reading = true
	q.ahead.live++
	q.ahead.reading++
	q.counts.add(aheadIssued, u.n)
	q.out = append(q.out, backend.Op{
		ID: ours | oursUnit | uint64(u.index), Kind: backend.Read,
		Offset: u.first << d.pageShift, Length: u.n << d.pageShift, Bufs: u.bufs[:u.n],
	})
	return true
}

func (q *queue) idleUnit() *unit {
	for i := range q.ahead.units {
		if u := &q.ahead.units[i]; u.n == 0 {
			return u
		}
	}
	return nil
}

// aheadDone makes the pages of a unit available to reads, first those that wait
// for it.
func (q *queue) aheadDone(u *unit, st nvme.Status) {
	u.reading = false
	q.ahead.reading--
	waiting := u.waiting
	u.waiting = nil
	if st == nvme.Success {
		for _, slot := range u.slots[:u.n] {
			q.dev.slots.descs[slot].ref.Store(1)
		}
	} else {
		for _, slot := range u.slots[:u.n] {
			q.dev.slots.free(slot)
		}
		u.n, q.ahead.credit = 0, 0
		q.ahead.live--
	}
	for waiting != nil {
		r := waiting
		waiting = r.next
		q.retry(r)
	}
	if u.n > 0 && u.past {
		q.giveUp(u)
	}
}

// await has a read wait for a unit.
func (q *queue) await(r *request, u *unit) {
	r.step = wait
	r.next, u.waiting = u.waiting, r
}

// retry looks for the pages of a read that has waited for some.
func (q *queue) retry(r *request) {
	first, n := q.dev.pages(r.op.Offset, r.op.Length)
	l := q.lookFor(first, n)
	switch {
	case q.closing:
		if l.hit {
			q.unref(n)
		}
		q.finish(r.op.ID, nvme.Success)
		q.release(r)
	case l.hit:
		q.answer(&r.op, l, r.start)
		q.release(r)
	case l.waits != nil:
		q.await(r, l.waits)
	default:
		q.counts.add(misses, 1)
		r.step = relay
		q.pass(r)
	}
}

// dropAhead gives up all units; none is being read.
func (q *queue) dropAhead() {
	for i := range q.ahead.units {
		if u := &q.ahead.units[i]; u.n > 0 {
			q.giveUp(u)
		}
	}
}
