package bench

import "math/bits"

// choose takes the place of the next I/O. It is false when there is none now:
// the load is done, or every place has an I/O in flight.
func (j *job) choose() (p place, ok bool) {
	if j.phase == phaseVerify {
		return j.chooseWritten()
	}
	if j.o.Runtime == 0 && j.issued >= j.units {
		return p, false
	}
	p.op = j.chooseOp()
	p.unit = j.chooseUnit()
	if j.ledger == nil {
		return p, true
	}
	if p.unit, ok = j.ledger.idle(p.unit); !ok {
		return p, false
	}
	j.ledger.setBusy(p.unit, true)
	p.gen = j.ledger.gens[p.unit]
	switch {
	case p.op == opWrite:
		p.gen++
	default:
		p.check = p.gen != 0 || !j.o.Mode.changes()
	}
	return p, true
}

func (j *job) chooseOp() uint8 {
	switch m := j.o.Mode; {
	case m == Trim || m == RandTrim:
		return opTrim
	case m.Mixed():
		if int(j.below(100)) < j.o.ReadPercent {
			return opRead
		}
		return opWrite
	case m.changes():
		return opWrite
	}
	return opRead
}

func (j *job) chooseUnit() uint64 {
	if j.o.Mode.Random() {
		return j.below(j.units)
	}
	u := j.next
	if j.next++; j.next == j.units {
		j.next = 0
	}
	return u
}

// below is a random number below n.
func (j *job) below(n uint64) uint64 {
	hi, _ := bits.Mul64(j.rng.Uint64(), n)
	return hi
}

// chooseWritten is the next place in order that was written.
func (j *job) chooseWritten() (p place, ok bool) {
	for ; j.next < j.units; j.next++ {
		if g := j.ledger.gens[j.next]; g != 0 {
			p = place{unit: j.next, gen: g, op: opRead, check: true}
			j.ledger.setBusy(p.unit, true)
			j.next++
			return p, true
		}
	}
	return p, false
}

// idle is the first place from u on, around the end, that has no I/O in flight.
func (l *ledger) idle(u uint64) (uint64, bool) {
	n := uint64(len(l.gens))
	for range n {
		if !l.isBusy(u) {
			return u, true
		}
		if u++; u == n {
			u = 0
		}
	}
	return 0, false
}
