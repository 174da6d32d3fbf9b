package cache

import (
	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// takesWrite begins an operation that changes the medium: its pages are marked
// before the queue below sees it, and again when it has ended. Only one that
// changes nothing passes.
func (q *queue) takesWrite(op *backend.Op) bool {
	if op.Length == 0 {
		return false
	}
	r := q.request(op, write)
	if op.Offset > maxOffset || op.Length > maxOffset-op.Offset {
		r.first, r.n = 0, maxOffset>>q.dev.pageShift // not valid below, or all there is
	} else {
		r.first, r.n = q.dev.pages(op.Offset, op.Length)
	}
	clear(r.slots[:])
	refills := r.n <= maxFill && op.Kind == backend.Write
	if refills {
		q.prepareRefill(r)
	}
	q.dev.changes.begin()
	q.dev.versions.begin(r.first, r.n)
	if refills {
		q.stampRefill(r)
	}
	q.counts.add(invalidations, 1)
	q.pass(r)
	return true
}

// maxOffset is the largest offset of a medium in bytes.
const maxOffset = 1<<63 - 1

// prepareRefill takes a slot for each page that the write covers wholly and
// that is in memory now, so that what is read often stays there: its new
// content is to be published when the write has ended.
func (q *queue) prepareRefill(r *request) {
	d := q.dev
	for i := range r.n {
		page := r.first + i
		begin := page << d.pageShift
		whole := begin >= r.op.Offset && begin+d.page <= r.op.Offset+r.op.Length && d.cacheable(begin, d.page)
		if !whole {
			continue
		}
		entry, ok := q.keeps(page)
		if !ok {
			continue
		}
		if slot := d.slots.take(); slot != 0 {
			d.slots.descs[slot].number = page
			r.slots[i], r.entries[i] = slot, entry
		}
	}
}

// keeps says whether a written page is worth a slot, and which entry leads to
// it.
func (q *queue) keeps(page uint64) (entry uint32, ok bool) {
	entry = q.dev.index.get(mix(page))
	slot := q.dev.index.slot(entry)
	if q.dev.opts.Admission == AdmitAll || slot == 0 || !q.dev.slots.ref(slot) {
		return entry, q.dev.opts.Admission == AdmitAll
	}
	d := &q.dev.slots.descs[slot]
	ok = d.number == page && q.dev.versions.current(mix(page), page, d.stamp)
	q.dev.slots.unref(slot)
	return entry, ok
}

// stampRefill predicts the words of each page after this write's end, if no
// other write begins or ends until then. Where one is in flight already, there
// is no telling whose data the medium ends up with.
func (q *queue) stampRefill(r *request) {
	d := q.dev
	for i, slot := range r.slots[:r.n] {
		if slot == 0 {
			continue
		}
		desc := &d.slots.descs[slot]
		s, _ := d.versions.stamp(mix(desc.number), desc.number)
		if s.word&writersMask != writer || s.region&writersMask != 0 {
			d.slots.free(slot)
			r.slots[i] = 0
			continue
		}
		s.word += ended
		desc.stamp = s
	}
}

// written ends an operation that changes the medium. What it is to publish is
// published if it succeeded and was alone.
func (q *queue) written(r *request, st nvme.Status) {
	d := q.dev
	d.versions.end(r.first, r.n)
	d.changes.end()
	if r.op.Kind != backend.Write {
		d.litter(r.n)
	}
	if r.n > maxFill {
		return
	}
	for i, slot := range r.slots[:r.n] {
		switch {
		case slot == 0:
		case st != nvme.Success || q.closing:
			d.slots.free(slot)
		default:
			q.copyWritten(r, uint64(i), slot)
			q.publish(slot, r.entries[i])
		}
	}
}

// copyWritten copies page i of a write from its buffers, which stay as they are
// until its completion.
func (q *queue) copyWritten(r *request, i uint64, slot uint32) {
	skip := (r.first+i)<<q.dev.pageShift - r.op.Offset
	c := cursor{bufs: r.op.Bufs}
	for skip >= uint64(len(c.bufs[0])) {
		skip -= uint64(len(c.bufs[0]))
		c.bufs = c.bufs[1:]
	}
	c.skip = int(skip)
	c.read(q.dev.slots.data(slot))
}
