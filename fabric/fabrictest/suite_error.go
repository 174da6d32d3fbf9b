package fabrictest

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/nvmf-go/nvmf/fabric"
)

// unknownKey is a key that neither end has.
func (s *suite) unknownKey() uint32 {
	for key := s.b.mr.RKey() ^ 0x5a5a5a5a; ; key++ {
		if key != s.a.mr.RKey() && key != s.b.mr.RKey() && key != 0 {
			return key
		}
	}
}

// neighbouringKey is the key next to b's that neither end has: what a key's
// variant part is for.
func (s *suite) neighbouringKey() uint32 {
	for i := uint32(1); ; i++ {
		if key := s.b.mr.RKey() ^ i; key != s.a.mr.RKey() && key != s.b.mr.RKey() {
			return key
		}
	}
}

// dies waits for a connection, which has failed at one end at least, to end at
// both, checks that both know, and closes it.
func (ch *channel) dies(what string) {
	s := ch.a.s
	s.Helper()
	s.until(what+": the end of the connection", func() bool { return ch.a.isDone() || ch.b.isDone() })
	for _, sd := range ch.sides() {
		s.must(sd.conn.Disconnect())
	}
	s.until(what+": the end at both sides", func() bool { return ch.a.isDone() && ch.b.isDone() })
	for _, sd := range ch.sides() {
		sd.checkEnded(what)
	}
	ch.close()
}

// checkEnded holds what a side shows after the end of its connection against
// the contract.
func (sd *side) checkEnded(what string) {
	s := sd.s
	s.Helper()
	if st := sd.qp.State(); st != fabric.QPError {
		s.Errorf("%s: the queue pair of %s is in state %v", what, sd.name, st)
	}
	if sd.conn.Err() == nil {
		s.Errorf("%s: Err of %s is nil", what, sd.name)
	}
	s.until(what+": Closed at "+sd.name, func() bool { return sd.closes.Load() > 0 })
	if n := sd.closes.Load(); n != 1 {
		s.Errorf("%s: Closed of %s was called %d times", what, sd.name, n)
	}
	if got, _ := sd.closedErr.Load().(error); got == nil || got.Error() != sd.conn.Err().Error() {
		s.Errorf("%s: Closed of %s was given %v, Err is %v", what, sd.name, got, sd.conn.Err())
	}
}

// violation is a WR of a that must not be, and how it ends.
type violation struct {
	name string
	wr   fabric.SendWR
	sges []fabric.SGE
	// status is how the WR ends at a. remote says that it is the peer who
	// refuses.
	status fabric.Status
	remote bool
	// recv, when not nil, is b's receive for it, which ends with recvStatus.
	recv       *fabric.SGE
	recvStatus fabric.Status
	skip       string
}

// testProtection commits one violation per connection: it ends that connection
// only, each WR ends as it must, the rest is flushed in order, and not a byte
// is written.
func testProtection(s *suite) {
	witness := s.connect()
	for _, v := range s.violations() {
		s.sub(v.name, func(s *suite) {
			if v.skip != "" {
				s.Skip(v.skip)
			}
			s.commit(&v)
		})
		if s.Failed() {
			return
		}
	}
	witness.alive("after all violations")
}

func (s *suite) violations() (list []violation) {
	b, size := s.b, uint64(memorySize)
	base, key := b.mem.Addr(), b.mr.RKey()
	_, dead := b.alloc(4096, b.rights())
	s.must(dead.Close())
	writeOnly := s.region(b, fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	readOnly := s.region(b, fabric.AccessRemoteRead)
	local := s.region(b, fabric.AccessLocalWrite)
	foreign := ""
	if s.sameDevice() {
		foreign = "both ends are on one device"
	}
	ops := map[string]fabric.Opcode{"READ": fabric.OpRead, "WRITE": fabric.OpWrite}
	add := func(only, name string, addr uint64, key uint32, skip string) {
		for opName, op := range ops {
			if only == "" || only == opName {
				list = append(list, violation{name: opName + " " + name, status: fabric.StatusRemoteAccess, remote: true, skip: skip,
					wr: fabric.SendWR{Op: op, RemoteAddr: addr, RKey: key}, sges: []fabric.SGE{s.a.sge(0, 8)}})
			}
		}
	}
	add("", "unknown key", base, s.unknownKey(), "")
	add("", "neighbouring key", base, s.neighbouringKey(), "")
	add("", "key 0", base, 0, "")
	add("", "dead key", dead.Memory().Addr(), dead.RKey(), "")
	add("", "key of another device", s.a.mem.Addr(), s.a.mr.RKey(), foreign)
	add("", "before the region", base-8, key, "")
	add("", "first byte before the region", base-1, key, "")
	add("", "last byte behind the region", base+size-7, key, "")
	add("", "behind the region", base+size, key, "")
	add("", "address wraps around", math.MaxUint64-3, key, "")
	add("", "address 0", 0, key, "")
	add("", "no remote right", local.Memory().Addr(), local.RKey(), "")
	add("READ", "without the right", writeOnly.Memory().Addr(), writeOnly.RKey(), "")
	add("WRITE", "without the right", readOnly.Memory().Addr(), readOnly.RKey(), "")
	slices.SortFunc(list, func(x, y violation) int {
		if x.name < y.name {
			return -1
		}
		return 1
	})
	return append(append(list, s.localViolations()...), s.receiveViolations()...)
}

// localViolations are those of a's own memory.
func (s *suite) localViolations() (list []violation) {
	a, b := s.a, s.b
	noWrite := s.region(a, fabric.AccessRemoteRead)
	bad := a.sge(0, 8)
	bad.LKey = s.unknownKey()
	beyond := a.sge(0, 8)
	beyond.Addr = a.mem.Addr() + memorySize - 4
	sink := fabric.SGE{Addr: noWrite.Memory().Addr(), Length: 8, LKey: noWrite.LKey()}
	for name, sge := range map[string]fabric.SGE{"unknown local key": bad, "beyond the local region": beyond} {
		list = append(list, violation{name: "SEND " + name, wr: fabric.SendWR{Op: fabric.OpSend}, sges: []fabric.SGE{sge}, status: fabric.StatusLocalProtection})
	}
	for name, sge := range map[string]fabric.SGE{"unknown local key": bad, "sink without local write": sink} {
		list = append(list, violation{name: "READ " + name, sges: []fabric.SGE{sge}, status: fabric.StatusLocalProtection,
			wr: fabric.SendWR{Op: fabric.OpRead, RemoteAddr: b.mem.Addr(), RKey: b.mr.RKey()}})
	}
	return list
}

// receiveViolations are those of b's receives.
func (s *suite) receiveViolations() (list []violation) {
	noWrite := s.region(s.b, fabric.AccessRemoteRead)
	bad := s.b.sge(4096, 64)
	bad.LKey = s.unknownKey()
	short := s.b.sge(4096, 7)
	for name, c := range map[string]struct {
		sge        fabric.SGE
		send, recv fabric.Status
	}{
		"unknown local key of the receive": {bad, fabric.StatusRemoteOp, fabric.StatusLocalProtection},
		"receive without local write":      {fabric.SGE{Addr: noWrite.Memory().Addr(), Length: 64, LKey: noWrite.LKey()}, fabric.StatusRemoteOp, fabric.StatusLocalProtection},
		"longer than the receive":          {short, fabric.StatusRemoteInvalidReq, fabric.StatusLocalLength},
	} {
		list = append(list, violation{name: "SEND " + name, wr: fabric.SendWR{Op: fabric.OpSend}, sges: []fabric.SGE{s.a.sge(0, 8)},
			status: c.send, remote: true, recv: &c.sge, recvStatus: c.recv})
	}
	return list
}

// commit runs one violation on a connection of its own, between a SEND before
// and two behind.
func (s *suite) commit(v *violation) {
	ch := s.connect()
	fill(s.b.bytes(0, 65536), 6)
	ch.b.recv(0, 1, 65536, 64)
	if v.recv != nil {
		if n, err := ch.b.qp.PostRecv([]fabric.RecvWR{{ID: recvID + 1, NumSGE: 1}}, []fabric.SGE{*v.recv}); n != 1 || err != nil {
			s.Fatalf("PostRecv: %d, %v", n, err)
		}
	} else {
		ch.b.recv(1, 1, 65536, 64)
	}
	ch.b.recv(2, 2, 65536, 64)
	ch.a.recv(0, 2, 65536, 64)
	before := slices.Clone(s.b.bytes(0, 65536))

	sges := append([]fabric.SGE{s.a.sge(1024, 8)}, v.sges...)
	send := fabric.SendWR{ID: sendID, Op: fabric.OpSend, NumSGE: 1, Flags: fabric.FlagSignaled}
	bad, third, fourth := v.wr, send, send
	bad.ID, bad.FirstSGE, bad.NumSGE, bad.Flags = sendID+1, 1, uint8(len(v.sges)), fabric.FlagSignaled
	third.ID, third.Flags = sendID+2, 0 // unsignaled, but it fails
	fourth.ID = sendID + 3
	ch.a.post(sges, send, bad, third, fourth)

	if v.remote && s.unacknowledged() && bad.Op != fabric.OpRead {
		s.unacknowledgedEnd(ch)
	} else {
		sends, recvs := split(ch.a.take(6))
		checkIDs(s, "a's send before", sends[:1], fabric.StatusSuccess, sendID)
		checkIDs(s, "a's violation", sends[1:2], v.status, sendID+1)
		checkIDs(s, "a's sends behind", sends[2:], fabric.StatusFlushed, sendID+2, sendID+3)
		checkIDs(s, "a's receives", recvs, fabric.StatusFlushed, recvID, recvID+1)
	}
	s.until("the end of the connection at a", ch.a.isDone)
	s.must(ch.a.conn.Disconnect())
	recvs := ch.b.take(4)
	checkIDs(s, "b's receive before", recvs[:1], fabric.StatusSuccess, recvID)
	if v.recv != nil {
		checkIDs(s, "b's receive", recvs[1:2], v.recvStatus, recvID+1)
	} else {
		checkIDs(s, "b's receive", recvs[1:2], fabric.StatusFlushed, recvID+1)
	}
	checkIDs(s, "b's receives behind", recvs[2:], fabric.StatusFlushed, recvID+2, recvID+3)
	same(s, "memory of b", s.b.bytes(0, 65536), before)
	ch.dies(v.name)
}

// unacknowledgedEnd takes a's completions where WRs complete unheard: some
// succeed, of which the unsignaled one does not show, then the rest is flushed.
func (s *suite) unacknowledgedEnd(ch *channel) {
	var sends, recvs []fabric.Completion
	s.until("a's last send and receives", func() bool {
		sends, recvs = split(ch.a.inbox[ch.a.qp.Num()])
		return len(recvs) == 2 && len(sends) > 0 && sends[len(sends)-1].ID == sendID+3
	})
	ch.a.take(len(sends) + len(recvs))
	failed, next := false, uint64(sendID)
	for _, c := range sends {
		if !failed && c.ID == next+1 && next == sendID+2 {
			next++ // the unsignaled one has succeeded
		}
		switch {
		case c.ID != next:
			s.Errorf("completion of send %d, want %d", c.ID-sendID, next-sendID)
		case c.Status != fabric.StatusSuccess:
			failed = true
		case failed:
			s.Errorf("send %d succeeded behind one that failed", c.ID-sendID)
		}
		next++
	}
	if failed && sends[0].Status != fabric.StatusSuccess {
		s.Error("the send before the violation failed")
	}
	checkIDs(s, "a's receives", recvs, fabric.StatusFlushed, recvID, recvID+1)
}

// testDeregisterUnderTraffic ends regions, and unmaps their memory, while the
// peer writes to them and reads from them.
func testDeregisterUnderTraffic(s *suite) {
	for round := range 12 {
		if round%2 == 1 && s.cfg.ReadsOutliveKeys != "" {
			continue
		}
		ch := s.connect()
		m, err := fabric.AllocMemory(1 << 20)
		s.must(err)
		mr, err := s.b.dev.Register(m, s.b.rights())
		s.must(err)
		ops := []fabric.Opcode{fabric.OpWrite, fabric.OpRead}
		wr := fabric.SendWR{Op: ops[round%2], NumSGE: 1, Flags: fabric.FlagSignaled, RemoteAddr: m.Addr(), RKey: mr.RKey()}
		post := func() {
			for err == nil {
				_, err = ch.a.qp.PostSend([]fabric.SendWR{wr}, []fabric.SGE{s.a.sge(0, 1<<18)})
			}
			err = nil
		}
		post()
		ch.a.take(4)
		var wg sync.WaitGroup
		wg.Go(func() {
			time.Sleep(time.Duration(round) * 100 * time.Microsecond)
			s.closed("region under traffic", mr.Close())
			s.closed("memory under traffic", m.Close())
		})
		s.until("the end of the key", func() bool {
			post()
			wc := ch.a.inbox[ch.a.qp.Num()]
			return ch.a.isDone() || len(wc) > 0 && wc[len(wc)-1].Status != fabric.StatusSuccess
		})
		wg.Wait()
		first := slices.IndexFunc(ch.a.inbox[ch.a.qp.Num()], func(c fabric.Completion) bool { return c.Status != fabric.StatusSuccess })
		if first >= 0 && !s.unacknowledged() {
			if c := ch.a.inbox[ch.a.qp.Num()][first]; !s.cfg.accepts(c.Status, fabric.StatusRemoteAccess) {
				s.Errorf("round %d: the WR that met the dead key ended with %v", round, c.Status)
			}
		}
		ch.dies(fmt.Sprintf("round %d", round))
	}
	s.connect().alive("after regions ended under traffic")
}
