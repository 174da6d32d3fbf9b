package target

import (
	"github.com/nvmf-go/nvmf/nvme"
)

// Op is what the counters tell apart.
type Op uint8

// Operations that are counted.
const (
	OpRead Op = iota
	OpWrite
	OpFlush
	OpCompare
	OpWriteZeroes
	OpDSM
	OpVerify
	OpOther // admin and fabrics commands, and what is no command
	NumOps
)

func (o Op) String() string {
	return [...]string{"read", "write", "flush", "compare", "write_zeroes", "dsm", "verify", "other"}[o]
}

// Counters count commands that have ended, since the target was made.
type Counters struct {
	Ops    [NumOps]uint64 // commands, failed ones included
	Bytes  [NumOps]uint64 // of blocks read, written, compared, verified, successfully
	Errors uint64         // commands that failed; not those that were aborted
	// MediaErrors are the commands among Errors that the medium failed
	// (Unrecovered Read Error, Write Fault).
	MediaErrors uint64
}

func (c *Counters) add(o *Counters) {
	for i := range c.Ops {
		c.Ops[i] += o.Ops[i]
		c.Bytes[i] += o.Bytes[i]
	}
	c.Errors += o.Errors
	c.MediaErrors += o.MediaErrors
}

// All the statistics are counted by the owners of the groups, without atomics,
// and read in messages. The base is what one queue did to one namespace. When
// a queue closes or a namespace goes, its counts move up, within the same
// message or call, so that no sum ever decreases.

// queueStats is a queue's part.
type queueStats struct {
	use         []*usage // by NSID; nil when there was no command
	other       Counters // commands on no namespace
	gone        Counters // of namespaces that were removed
	read, write Histogram
}

// usage is what a queue did to a namespace.
type usage struct {
	ns   *Namespace
	pair *pair
	Counters
}

// pair is what a host did to a namespace with all its queues in the group.
type pair struct {
	key         pairKey
	closed      Counters  // of queues that are closed; live ones have their own
	read, write Histogram // of all queues
}

// pairKey is a host and a namespace.
type pairKey struct {
	host nvme.NQN
	ns   *Namespace
}

// attachmentStats is an attachment's part.
type attachmentStats struct {
	waits     uint64 // Submits that left requests waiting for depth
	busySince int64
	busy      int64 // time with operations in flight
	lent      Histogram
}

// groupStats is what is not of one queue: latencies by host and namespace, and
// what remains of queues that are closed and of namespaces that were removed.
type groupStats struct {
	pairs   map[pairKey]*pair
	removed map[*Subsystem]*Counters
	hosts   map[hostKey]*Counters
}

// hostKey is a host at a subsystem.
type hostKey struct {
	host nvme.NQN
	sub  *Subsystem
}

// maxHostKeys bounds what hosts that invent names can make a group remember, of
// hosts and of pairs; the counts of the rest are under the empty name.
const maxHostKeys = 4096

func newGroupStats() groupStats {
	return groupStats{map[pairKey]*pair{}, map[*Subsystem]*Counters{}, map[hostKey]*Counters{}}
}

// entry is m[k], made when there is none.
func entry[K comparable, V any](m map[K]*V, k K) *V {
	v := m[k]
	if v == nil {
		v = new(V)
		m[k] = v
	}
	return v
}

// count accounts for a command that has ended with st.
func (q *Queue) count(r *Request, st nvme.Status) {
	op := OpOther
	if r.core.cmd != nil {
		op = r.core.cmd.op
	}
	if r.core.inquiry {
		st = nvme.Success
	}
	if r.core.ns == nil {
		q.stats.other.count(op, 0, st)
		return
	}
	u := q.usageOf(r.core.ns)
	u.count(op, r.core.size, st)
	if !st.OK() {
		return
	}
	switch op {
	case OpRead:
		ns := q.group.now - r.core.start
		q.stats.read.add(ns)
		u.pair.read.add(ns)
	case OpWrite:
		ns := q.group.now - r.core.start
		q.stats.write.add(ns)
		u.pair.write.add(ns)
	}
}

func (c *Counters) count(op Op, size uint64, st nvme.Status) {
	c.Ops[op]++
	if st.OK() {
		c.Bytes[op] += size
	} else {
		c.countError(st)
	}
}

func (c *Counters) countError(st nvme.Status) {
	if aborted(st) {
		return
	}
	c.Errors++
	if code := st.Code(); code == nvme.UnrecoveredReadError || code == nvme.WriteFault {
		c.MediaErrors++
	}
}

// aborted says whether st is the end of a command that nothing was wrong with.
func aborted(st nvme.Status) bool {
	return st.Code() == nvme.AbortedSQDeletion || st.Code() == nvme.AbortRequested
}

// usageOf is what q did to n so far.
func (q *Queue) usageOf(n *Namespace) *usage {
	if n.nsid < uint32(len(q.stats.use)) {
		if u := q.stats.use[n.nsid]; u != nil && u.ns == n {
			return u
		}
	}
	return q.newUsage(n)
}

func (q *Queue) newUsage(n *Namespace) *usage {
	for uint32(len(q.stats.use)) <= n.nsid {
		q.stats.use = append(q.stats.use, nil)
	}
	if old := q.stats.use[n.nsid]; old != nil {
		q.dropUsage(old)
	}
	u := &usage{ns: n, pair: q.group.stats.pair(pairKey{q.ctrl.hostNQN, n})}
	q.stats.use[n.nsid] = u
	return u
}

// dropUsage keeps the counts of a namespace that was removed.
func (q *Queue) dropUsage(u *usage) {
	q.stats.gone.add(&u.Counters)
	q.stats.use[u.ns.nsid] = nil
}

// total is everything that q counted.
func (q *Queue) total() Counters {
	sum := q.stats.other
	sum.add(&q.stats.gone)
	for _, u := range q.stats.use {
		if u != nil {
			sum.add(&u.Counters)
		}
	}
	return sum
}

// foldQueue keeps the counts of a queue that closes.
func (g *Group) foldQueue(q *Queue) {
	delete(g.queues, q)
	if q.ctrl == nil {
		return
	}
	total := q.total()
	g.stats.host(hostKey{q.ctrl.hostNQN, q.ctrl.sub}).add(&total)
	for _, u := range q.stats.use {
		if u != nil {
			u.pair.closed.add(&u.Counters)
		}
	}
	entry(g.stats.removed, q.ctrl.sub).add(&q.stats.gone)
	q.stats = queueStats{}
}

func (s *groupStats) host(k hostKey) *Counters {
	if s.hosts[k] == nil && len(s.hosts) >= maxHostKeys {
		k.host = ""
	}
	return entry(s.hosts, k)
}

func (s *groupStats) pair(k pairKey) *pair {
	if s.pairs[k] == nil && len(s.pairs) >= maxHostKeys {
		k.host = ""
	}
	p := entry(s.pairs, k)
	p.key = k
	return p
}

// foldNamespace keeps the counts of a namespace that was removed.
func (g *Group) foldNamespace(n *Namespace) {
	for q := range g.queues {
		if q.ctrl == nil || q.ctrl.sub != n.sub || n.nsid >= uint32(len(q.stats.use)) {
			continue
		}
		if u := q.stats.use[n.nsid]; u != nil && u.ns == n {
			q.dropUsage(u)
		}
	}
	for k, p := range g.stats.pairs {
		if k.ns == n {
			entry(g.stats.removed, n.sub).add(&p.closed)
			delete(g.stats.pairs, k)
		}
	}
}

// forgetSubsystem drops what was kept of a subsystem that was removed.
func (g *Group) forgetSubsystem(s *Subsystem) {
	delete(g.stats.removed, s)
	for k := range g.stats.hosts {
		if k.sub == s {
			delete(g.stats.hosts, k)
		}
	}
}
