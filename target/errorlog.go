package target

import "github.com/nvmf-go/nvmf/nvme"

// errorLog are the latest errors of a controller (log page 01h). It is guarded
// by Controller.mu, which an I/O queue takes only when a command fails.
type errorLog struct {
	count uint64 // errors since the controller was made
	ring  [errorEntries]nvme.ErrorEntry
}

// add enters an error and numbers it.
func (l *errorLog) add(e nvme.ErrorEntry) {
	l.count++
	e.Count = l.count
	l.ring[(l.count-1)%errorEntries] = e
}

// latest is the i-th latest entry, 0 being the latest; zero when there is none.
func (l *errorLog) latest(i int) nvme.ErrorEntry {
	if uint64(i) >= l.count {
		return nvme.ErrorEntry{}
	}
	return l.ring[(l.count-1-uint64(i))%errorEntries]
}

// logError enters a command that fails with st into the error log, and returns
// st with the bit that says so. Commands that were aborted and those that only
// ask whether there is something are not errors, and before Connect there is no
// log.
func (q *Queue) logError(r *Request, st nvme.Status) nvme.Status {
	c := q.ctrl
	if c == nil || aborted(st) || r.core.inquiry {
		return st
	}
	st |= nvme.StatusMore
	e := nvme.ErrorEntry{
		SQID: q.id, CID: r.Cmd.CID(), Status: st, Location: r.core.loc, NSID: r.Cmd.NSID(),
		TRTYPE: q.cfg.Port.Type, Specific: r.Result,
	}
	if n := r.core.ns; n != nil && r.core.size > 0 {
		e.LBA = r.Cmd.SLBA() + r.core.at>>n.shift
	}
	c.mu.Lock()
	c.errors.add(e)
	c.mu.Unlock()
	return st
}
