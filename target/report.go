package target

// groupReport is what a group has counted, copied out for others to read.
type groupReport struct {
	namespaces map[*Namespace]*namespaceReport
	removed    map[*Subsystem]*Counters // of namespaces that are gone
	hosts      map[hostKey]*Counters
	pairs      map[pairKey]*pairReport
	queues     []queueReport
}

// pairReport is what a host did to a namespace.
type pairReport struct {
	Counters
	read, write Histogram
}

type namespaceReport struct {
	Counters
	read, write Histogram
	lent        Histogram // of the reads that were answered from lent memory
	waits       uint64
	busy        int64 // nanoseconds, the longest of any group
	inflight    int
	waiting     int
}

type queueReport struct {
	ctrl        *Controller
	id          uint16
	size        uint16
	peer        string
	executing   int
	total       Counters
	read, write Histogram
}

func newGroupReport() *groupReport {
	return &groupReport{
		namespaces: map[*Namespace]*namespaceReport{}, removed: map[*Subsystem]*Counters{},
		hosts: map[hostKey]*Counters{}, pairs: map[pairKey]*pairReport{},
	}
}

// detail is how much of a group's counters is copied.
type detail bool

const (
	sums       detail = false // of namespaces and hosts, without latencies
	everything detail = true
)

// report copies the group's counters. The owner calls it.
func (g *Group) report(d detail) *groupReport {
	r := newGroupReport()
	for s, c := range g.stats.removed {
		entry(r.removed, s).add(c)
	}
	for k, c := range g.stats.hosts {
		entry(r.hosts, k).add(c)
	}
	for k, p := range g.stats.pairs {
		r.addPair(k, p, d)
	}
	for q := range g.queues {
		if q.ctrl != nil {
			r.addQueue(q, d)
		}
	}
	for _, a := range g.open {
		r.addAttachment(a, d)
	}
	return r
}

func (r *groupReport) addPair(k pairKey, p *pair, d detail) {
	n := entry(r.namespaces, k.ns)
	n.add(&p.closed)
	if d == sums {
		return
	}
	n.read.Merge(&p.read)
	n.write.Merge(&p.write)
	e := entry(r.pairs, k)
	e.add(&p.closed)
	e.read.Merge(&p.read)
	e.write.Merge(&p.write)
}

func (r *groupReport) addQueue(q *Queue, d detail) {
	total := q.total()
	if q.state != queueClosed && d == everything {
		r.queues = append(r.queues, queueReport{
			ctrl: q.ctrl, id: q.id, size: q.size, peer: q.cfg.Link.Peer().String(), executing: q.executing,
			total: total, read: q.stats.read, write: q.stats.write,
		})
	}
	entry(r.hosts, hostKey{q.ctrl.hostNQN, q.ctrl.sub}).add(&total)
	entry(r.removed, q.ctrl.sub).add(&q.stats.gone)
	for _, u := range q.stats.use {
		if u == nil {
			continue
		}
		entry(r.namespaces, u.ns).add(&u.Counters)
		if d == everything {
			entry(r.pairs, u.pair.key).add(&u.Counters)
		}
	}
}

func (r *groupReport) addAttachment(a *attachment, d detail) {
	n := entry(r.namespaces, a.ns)
	if d == everything {
		n.lent.Merge(&a.stats.lent)
	}
	n.waits += a.stats.waits
	n.busy = max(n.busy, a.stats.busy)
	n.inflight += a.inflight()
	n.waiting += a.waiting.n
}

func (n *namespaceReport) add(c *Counters) { n.Counters.add(c) }

// add merges o, except its queues when it is of a group that has ended.
func (r *groupReport) add(o *groupReport) {
	for n, c := range o.namespaces {
		e := entry(r.namespaces, n)
		e.add(&c.Counters)
		e.read.Merge(&c.read)
		e.write.Merge(&c.write)
		e.lent.Merge(&c.lent)
		e.waits += c.waits
		e.busy = max(e.busy, c.busy)
		e.inflight += c.inflight
		e.waiting += c.waiting
	}
	for s, c := range o.removed {
		entry(r.removed, s).add(c)
	}
	for k, c := range o.hosts {
		entry(r.hosts, k).add(c)
	}
	for k, c := range o.pairs {
		e := entry(r.pairs, k)
		e.add(&c.Counters)
		e.read.Merge(&c.read)
		e.write.Merge(&c.write)
	}
	r.queues = append(r.queues, o.queues...)
}

// subsystem is the sum over the namespaces of s, those that are gone included,
// as its controllers report it in their SMART log.
func (r *groupReport) subsystem(s *Subsystem) (sum namespaceReport) {
	for n, c := range r.namespaces {
		if n.sub != s {
			continue
		}
		sum.add(&c.Counters)
		sum.busy = max(sum.busy, c.busy)
	}
	if c := r.removed[s]; c != nil {
		sum.add(c)
	}
	return sum
}
