package target

import (
	"slices"

	"github.com/nvmf-go/nvmf/backend"
	"github.com/nvmf-go/nvmf/nvme"
)

// A backend that has the data of a read in memory lends that memory
// (backend.Lender), and the transport sends from it: no buffer is taken and no
// byte is copied. What is lent is the medium's content at one moment between
// Prepare's beginning and its end; like every read that is in flight together
// with writes it sees them or not.
//
//	Prepare -> lent -(Execute)-> Link.Complete -> on its way -(Release)-> returned
//
// A loan keeps its attachment: the backend queue of a namespace that was removed
// is closed after the last has come back.

// borrow lets the backend lend the data of the read in r.core.op, if it has it
// at hand and the transport has room for it, and says whether it did.
func (q *Queue) borrow(n *Namespace, r *Request) bool {
	if cap(r.Loan) == 0 || r.core.phase != 0 {
		return false
	}
	a, err := q.group.attachment(n)
	if err != nil || a.lender == nil { // Execute meets the error again, and says so
		return false
	}
	lent, ok := a.lender.Lend(r.core.op.Offset, r.core.op.Length, r.Loan[:0])
	if !ok {
		return false
	}
	r.Loan, r.core.att, r.core.lent = lent, a, true
	a.loans++
	if a.warm == 0 {
		q.group.warm = append(q.group.warm, a)
	}
	a.warm = armsAfterLoan
	return true
}

// armsAfterLoan is for how many sleeps of the group a queue that has lent is
// still looked after, though nothing of ours is in it: it may be at work on its
// own, as a cache that reads ahead of who reads.
const armsAfterLoan = 4

// reapWarm lets queues that have lent get on with what they do on their own.
func (g *Group) reapWarm() (reaped int) {
	for _, a := range g.warm {
		if a.busy {
			continue // Poll reaps it
		}
		n := a.queue.Reap(g.done[:])
		for i := range g.done[:n] {
			g.complete(a, g.done[i])
		}
		reaped += n
	}
	return reaped
}

// armWarm asks queues that have lent for a wake-up, some times.
func (g *Group) armWarm(w backend.Waker) {
	for i := 0; i < len(g.warm); {
		a := g.warm[i]
		if !a.busy {
			a.armer.Arm(w)
		}
		if a.warm--; a.warm > 0 {
			i++
			continue
		}
		last := len(g.warm) - 1
		g.warm[i] = g.warm[last]
		g.warm = g.warm[:last]
	}
}

// cool forgets that a has lent.
func (g *Group) cool(a *attachment) {
	if a.warm > 0 {
		a.warm = 0
		g.warm = slices.DeleteFunc(g.warm, func(o *attachment) bool { return o == a })
	}
}

// Release gives the loan of r back (Transfer.Lent), once: when nothing reads the
// memory in r.Loan any more. Before Execute it says that the transport cannot
// send from it: the read is executed with r.Bufs then, as any other. It may be
// called after Close.
func (q *Queue) Release(r *Request) {
	a := r.core.att
	a.lender.Return(r.Loan)
	r.Loan, r.core.lent = nil, false
	a.loans--
	q.group.checkIdle(a)
}

// finishLent ends a read whose data is in r.Loan.
func (q *Queue) finishLent(a *attachment, r *Request) {
	q.group.stampLoan()
	a.stats.lent.add(q.group.now - r.core.start)
	q.finish(r, nvme.Success)
}

// loanClock says when the time is to be read for reads that take none.
type loanClock struct {
	turn uint64 // of the latest loan
	n    uint   // loans in it
}

// loansPerStamp is for how many loans of a turn one reading of the clock does:
// it costs a good part of what such a read costs in all.
const loansPerStamp = 16

// stampLoan brings the group's time up to date for the latency of a loan, which
// is too short by at most loansPerStamp loans.
func (g *Group) stampLoan() {
	if g.loans.turn != g.turn {
		g.loans = loanClock{turn: g.turn}
	}
	if g.loans.n%loansPerStamp == 0 {
		g.now = g.target.now()
	}
	g.loans.n++
}
