package rdma

import "github.com/nvmf-go/nvmf/nvme"

// The namespaces of a group share its I/O buffers. One whose backend answers
// nothing keeps what its requests hold, so it must not get hold of all:
//
//   - A namespace may hold at most maxRatio times the pages that are free, a
//     dynamic threshold as in switches that share their memory (Choudhury and
//     Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). Nobody has a fixed
//     part; k namespaces that hang leave 1/(1+k*maxRatio) of the pool.
//   - The threshold counts the reserve as free, and is not allowed to use it: a
//     namespace alone has all the pool before the reserve, unless the pool is
//     large.
//   - Who finds nothing there may go to the reserve when it holds less than what
//     is left of it, a threshold with ratio 1; and when it holds nothing at all,
//     whatever the size of the request. The reserve has room for two of the
//     largest requests and never fragments.
//   - A request that holds nothing and finds nothing claims the reserve: others
//     do not use it any more, so that small requests cannot starve a large one.
//
// So of a namespace at least one request at a time is on its way, while those
// that hang leave room for it. Requests of one namespace are served first come
// first served; between namespaces it goes in turns.

// maxRatio is how many times the free pages a namespace may hold (the paper's
// alpha). With 8, one alone can use all of a pool of up to 18 times MaxTransfer
// and never less than 8/9, and one that hangs leaves others a ninth or more. Of
// less the usual single namespace would pay more; more would leave little to
// those who are well: a pool that runs short does so because somebody is slow.
const maxRatio = 8

// lookBatch is how many namespaces that wait are looked at for each pool in a
// turn: a bound for what the turn costs beside the I/O that it serves.
const lookBatch = 16

// share is a namespace's part in the buffers of a pool. The group owns it. It is
// made by the namespace's first command and stays; a namespace that gets the
// number later takes it on.
type share struct {
	fifo       // requests that wait for buffers
	used   int // pages that requests hold
	next   *share
	prev   *share // in waiters, when n > 0
	waiter bool   // is in waiters

	// For the watch over those who wait.

	progress uint64 // requests whose buffers came back
	seen     uint64 // progress when the watch began
	watched  uint64 // the latest watch that began when requests waited
	stalled  uint64 // the latest watch in which nothing has moved
	told     uint64 // progress+1 when that was logged
}

// shareOf is the share of a request. Commands of admin queues have one.
func (g *group) shareOf(s *slot) *share {
	if s.pool == adminPool {
		return &g.admin
	}
	n := int(s.Namespace())
	for len(g.shares) <= n {
		g.shares = append(g.shares, new(share))
	}
	return g.shares[n]
}

// allows says whether sh may have n more pages now. There is no bound in a pool
// without a ratio.
func (p *pool) allows(sh *share, n int) bool {
	return p.ratio == 0 || sh.used == 0 || sh.used+n <= p.ratio*(p.free-n)
}

// waiters are those who wait for a pool: a ring of shares, each with a line of
// requests.
type waiters struct {
	turn     *share // who is looked at next
	n        int    // shares in the ring
	requests int    // in all their lines
	look     int    // shares to look at before it is clear that nobody can be served
	claim    *share // has the reserve for itself; its first request waits for it
	void     bool   // the claim has led to nothing and holds no more
}

// again has everybody looked at once more: something has come back.
func (w *waiters) again() { w.look = w.n }

// push puts s at the end of its share's line.
func (w *waiters) push(s *slot) {
	sh := s.share
	sh.push(s)
	w.requests++
	if sh.waiter {
		return
	}
	sh.waiter = true
	w.n++
	if w.turn == nil {
		sh.next, sh.prev, w.turn = sh, sh, sh
		return
	}
	sh.next, sh.prev = w.turn, w.turn.prev // the last to have its turn
	sh.prev.next, sh.next.prev = sh, sh
}

// pop takes the first out of a line.
func (w *waiters) pop(sh *share) *slot {
	s := sh.pop()
	w.requests--
	w.left(sh)
	return s
}

// left is called when requests have left the line of sh: its claim is void, and
// with its last one it leaves the ring.
func (w *waiters) left(sh *share) {
	if w.claim == sh {
		w.claim, w.void = nil, false
		w.again()
	}
	if sh.n > 0 {
		return
	}
	sh.waiter = false
	w.n--
	if sh.next == sh {
		w.turn, w.look = nil, 0
	} else if w.turn == sh {
		w.turn = sh.next
	}
	sh.prev.next, sh.next.prev = sh.next, sh.prev
	sh.next, sh.prev = nil, nil
}

// removeIf takes the requests that match out of all lines. Who was behind them
// may have its turn now.
func (w *waiters) removeIf(match func(*slot) bool) {
	sh := w.turn
	for range w.n {
		next, was := sh.next, sh.n
		sh.removeIf(match)
		if gone := was - sh.n; gone > 0 {
			w.requests -= gone
			w.left(sh)
			w.again()
		}
		sh = next
	}
}

// shares calls f for everybody who waits.
func (w *waiters) shares(f func(*share)) {
	sh := w.turn
	for range w.n {
		f(sh)
		sh = sh.next
	}
}

// mayReserve says whether sh may take n pages of the reserve of p.
func (w *waiters) mayReserve(sh *share, p *pool, n int) bool {
	if w.claim != nil && w.claim != sh && !w.void {
		return false
	}
	return sh.used == 0 || sh.used+n <= p.reserved()-n
}

// wants is called when the first request of sh has found nothing: if it holds
// nothing either, nobody is to use the reserve before it.
func (w *waiters) wants(sh *share) {
	if w.claim == nil && sh.used == 0 {
		w.claim = sh
	}
}

// find gets memory for n bytes of s.
func (g *group) find(s *slot, n uint32, out []block) int {
	p := g.pools[s.pool]
	if got := p.get(n, out); got > 0 {
		return got
	}
	if !g.waiting[s.pool].mayReserve(s.share, p, p.grains(n)<<p.grain) {
		return 0
	}
	return p.getReserve(n, out)
}

// acquire finds the buffers of a request. It is false when it has to wait.
func (g *group) acquire(s *slot) bool { return g.allot(s, s.dataBytes()) }

// allot gives s buffers for n bytes of data and for its scratch memory, if its
// share may have them and they are there.
func (g *group) allot(s *slot, n uint32) bool {
	p := g.pools[s.pool]
	if !p.allows(s.share, pagesOf(n)+pagesOf(s.transfer.Scratch)) {
		return false
	}
	var data, scratch int
	was := p.free
	if n > 0 {
		if data = g.find(s, n, s.blocks[:maxPieces]); data == 0 {
			return false
		}
	}
	if s.transfer.Scratch > 0 {
		if scratch = g.find(s, s.transfer.Scratch, s.blocks[data:data+maxPieces]); scratch == 0 {
			p.putAll(s.blocks[:data])
			return false
		}
	}
	s.share.used += was - p.free
	s.pieces = uint8(data + scratch)
	if data > 0 {
		s.Bufs = p.views(s.vecs[:0], s.blocks[:data], n)
	}
	if scratch > 0 {
		used := len(s.Bufs)
		s.Scratch = p.views(s.vecs[used:used], s.blocks[data:data+scratch], s.transfer.Scratch)
	}
	return true
}

// releaseBuffers gives back what allot found, or the loan.
func (g *group) releaseBuffers(s *slot) {
	if s.transfer.Lent {
		s.endLoan()
	}
	s.Bufs, s.Scratch = nil, nil
	if s.pieces == 0 {
		return
	}
	p := g.pools[s.pool]
	was := p.free
	p.putAll(s.blocks[:s.pieces])
	s.pieces = 0
	s.share.used -= p.free - was
	s.share.progress++
	g.waiting[s.pool].again()
}

// wait puts s in line for buffers.
func (g *group) wait(s *slot) {
	w := &g.waiting[s.pool]
	w.push(s)
	w.wants(s.share)
	g.watchStall()
}

// serve gives buffers to requests that wait: the namespaces have their turns,
// the requests of each are served in order, and none is passed by.
func (g *group) serve() {
	for i := range g.waiting {
		w := &g.waiting[i]
		for n := lookBatch; w.look > 0 && n > 0; n-- {
			w.look--
			sh := w.turn
			w.turn = sh.next
			g.serveShare(w, sh)
		}
	}
}

// serveShare serves the line of sh as far as it goes.
func (g *group) serveShare(w *waiters, sh *share) {
	for sh.n > 0 {
		if !g.acquire(sh.head) {
			w.wants(sh)
			return
		}
		s := w.pop(sh)
		s.conn.proceed(s)
	}
}

// unserved says whether somebody who waits may find buffers in the next turn.
func (g *group) unserved() bool {
	for i := range g.waiting {
		if g.waiting[i].look > 0 {
			return true
		}
	}
	return false
}

// unqueue takes the requests that match out of the lines for buffers.
func (g *group) unqueue(match func(*slot) bool) {
	for i := range g.waiting {
		g.waiting[i].removeIf(match)
	}
}

// namespaceRemoved ends the requests that wait for a namespace's share
// (target.GroupConfig). What it holds may never come back.
func (g *group) namespaceRemoved(namespace uint32) {
	if int(namespace) >= len(g.shares) {
		return
	}
	sh := g.shares[namespace]
	for sh.n > 0 {
		s := g.waiting[dataPool].pop(sh)
		s.conn.refuse(s, nvme.InvalidField|nvme.StatusDNR, nsidOffset) // as Execute would
	}
}
