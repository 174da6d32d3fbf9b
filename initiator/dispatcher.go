package initiator

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvmf-go/nvmf/nvme"
)

// Policy says which of several usable paths a command takes. Paths in ANA state
// optimized come before non-optimized ones in any case.
type Policy uint8

// Policies.
const (
	// RoundRobin takes the paths in turn.
	RoundRobin Policy = iota
	// QueueDepth takes the path with the fewest commands in flight.
	QueueDepth
	// Failover takes the first path, in the order they were added, and others
	// only while it cannot be used.
	Failover
)

var policyNames = [...]string{"round-robin", "queue-depth", "failover"}

func (p Policy) String() string {
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// ParsePolicy is the reverse of String.
func ParsePolicy(s string) (Policy, error) {
	for i, name := range policyNames {
		if s == name {
			return Policy(i), nil
		}
	}
	return 0, fmt.Errorf("policy %q: expected one of %v", s, policyNames)
}

// maxRetries is how often a command is sent again for its status.
const maxRetries = 64

// retryPause is the wait before, when the controller does not say how long.
const retryPause = 100 * time.Millisecond

// dispatcher gives I/O requests to controllers, and holds them while there is
// none that could take them.
type dispatcher struct {
	fastFail time.Duration // negative: none
	policy   Policy

	paths atomic.Pointer[[]*Controller] // written with mu held
	turn  atomic.Uint32                 // of RoundRobin

	mu     sync.Mutex
	held   requestList
	timer  *time.Timer
	down   int64 // monotonic, since when no controller is live; 0: one is
	closed error
}

func newDispatcher(fastFail time.Duration, p Policy) *dispatcher {
	d := &dispatcher{fastFail: fastFail, policy: p}
	d.paths.Store(new([]*Controller))
	d.timer = time.AfterFunc(math.MaxInt64, d.changed)
	return d
}

func (d *dispatcher) add(c *Controller) {
	d.mu.Lock()
	list := append(slices.Clone(*d.paths.Load()), c)
	d.paths.Store(&list)
	d.mu.Unlock()
	d.changed()
}

func (d *dispatcher) remove(c *Controller) {
	d.mu.Lock()
	list := slices.DeleteFunc(slices.Clone(*d.paths.Load()), func(o *Controller) bool { return o == c })
	d.paths.Store(&list)
	d.mu.Unlock()
	d.changed()
}

// submit sends r on its way. It ends in r.finish, sooner or later.
func (d *dispatcher) submit(r *request) {
	if c := d.pick(r); c != nil {
		if err := c.push(r); err != nil {
			r.fail(err)
		}
		return
	}
	d.hold(r)
}

// requeue takes back a request whose association was lost.
func (d *dispatcher) requeue(r *request, until int64) {
	r.until = until
	d.hold(r)
}

// again decides about a request that c has ended with a status: true means that
// it will be sent again.
func (d *dispatcher) again(r *request, c *Controller) bool {
	wait, ok := d.retry(r, c)
	if !ok || r.abandoned() || r.retries >= maxRetries {
		return false
	}
	r.retries++
	r.status = nvme.Success
	r.until = monotonic() + int64(wait)
	d.hold(r)
	return true
}

// retry says whether a status is worth another attempt, and how much later. A
// path's error is no reason to wait when there is another path.
func (d *dispatcher) retry(r *request, c *Controller) (time.Duration, bool) {
	st := r.status
	switch st.Code() {
	case nvme.ANAInaccessible:
		c.denied(r.nsid, nvme.ANAStateInaccessible)
	case nvme.ANATransition:
		c.denied(r.nsid, nvme.ANAStateChange)
	case nvme.ANAPersistentLoss:
		c.denied(r.nsid, nvme.ANAStatePersistentLoss)
	case nvme.InternalPathError, nvme.ControllerPathError, nvme.HostPathError:
		if st.DNR() {
			return 0, false
		}
		return retryPause, true
	case nvme.NamespaceNotReady, nvme.CommandInterrupted, nvme.TransientTransport, nvme.AbortedSQDeletion:
		if st.DNR() {
			return 0, false
		}
		return c.retryDelay(st), true
	default:
		return 0, false
	}
	if o := d.pick(r); o != nil && o != c {
		return 0, true
	}
	return retryPause, true
}

// retryDelay is what the controller asks to wait (Base 3.3.3.2.1, CRD).
func (c *Controller) retryDelay(st nvme.Status) time.Duration {
	if a := c.assoc.Load(); a != nil && st.CRD() > 0 {
		return time.Duration(a.id.CRDT[st.CRD()-1]) * 100 * time.Millisecond
	}
	return retryPause
}

// hold keeps r until there is a controller for it.
func (d *dispatcher) hold(r *request) {
	d.mu.Lock()
	if r.held == 0 {
		r.held = monotonic()
	}
	d.held.push(r)
	d.mu.Unlock()
	d.changed()
}

// changed looks at everything that is held; it is called when something has
// changed, and by the timer.
func (d *dispatcher) changed() {
	var ready, failed requestList
	now := monotonic()
	d.mu.Lock()
	d.updateDownLocked(now)
	next := int64(math.MaxInt64)
	var keep requestList
	for d.held.head != nil {
		r := d.held.pop()
		at, err := d.verdictLocked(r, now)
		switch {
		case err != nil:
			r.err = err
			failed.push(r)
		case at <= now:
			ready.push(r)
		default:
			keep.push(r)
			next = min(next, at)
		}
	}
	d.held = keep
	if next != math.MaxInt64 {
		d.timer.Reset(time.Duration(next - now))
	}
	d.mu.Unlock()
	for failed.head != nil {
		failed.pop().finish()
	}
	for ready.head != nil {
		d.submit(ready.pop())
	}
}

// updateDownLocked keeps the time since when no controller is live. mu is held.
func (d *dispatcher) updateDownLocked(now int64) {
	for _, c := range *d.paths.Load() {
		if c.usable() {
			d.down = 0
			return
		}
	}
	if d.down == 0 {
		d.down = now
	}
}

// verdictLocked says when to look at a held request again, which is now when it
// can be sent, or why it fails. mu is held.
func (d *dispatcher) verdictLocked(r *request, now int64) (int64, error) {
	switch {
	case d.closed != nil:
		return 0, d.closed
	case r.abandoned():
		return 0, ErrPathLost // nobody listens
	case r.ns != nil && r.ns.gone.Load():
		return 0, r.ns.check()
	case d.pick(r) != nil:
		return r.until, nil
	}
	if err := d.hopeless(); err != nil {
		return 0, err
	}
	retry := d.refresh(now)
	if d.fastFail < 0 {
		return retry, nil
	}
	since := r.held
	if d.down != 0 {
		since = min(since, d.down)
	}
	if at := since + int64(d.fastFail); at > now {
		return min(at, retry), nil
	}
	return 0, fmt.Errorf("%w: for %v there was no way to namespace %d: %w", ErrPathLost, d.fastFail, r.nsid, d.why())
}

// refresh has controllers that are live, but not accessible, asked for their
// states, should events be lost. It says when to look again.
func (d *dispatcher) refresh(now int64) int64 {
	next := int64(math.MaxInt64)
	for _, c := range *d.paths.Load() {
		if c.usable() && c.ana.Load() != nil {
			next = now + int64(recheckANA)
			c.askANA(now)
		}
	}
	return next
}

// hopeless is an error when no controller will ever come back.
func (d *dispatcher) hopeless() error {
	var err error = errClosed
	for _, c := range *d.paths.Load() {
		switch c.State() {
		case StateLost:
			err = c.lostForGood()
		case StateClosed:
		default:
			return nil
		}
	}
	return err
}

// why is what is wrong with one of the controllers.
func (d *dispatcher) why() error {
	for _, c := range *d.paths.Load() {
		if !c.usable() {
			return c.lostError()
		}
	}
	return fmt.Errorf("the namespace is not accessible")
}

// pick is the controller for a request, nil when there is none now.
func (d *dispatcher) pick(r *request) *Controller {
	list := *d.paths.Load()
	if len(list) == 1 {
		if c := list[0]; c.rank(r) > 0 {
			return c
		}
		return nil
	}
	start := 0
	if d.policy == RoundRobin && len(list) > 0 {
		start = int(d.turn.Add(1) % uint32(len(list)))
	}
	var best *Controller
	bestRank, bestLoad := 0, 0
	for i := range list {
		c := list[(start+i)%len(list)]
		rank, load := c.rank(r), 0
		if rank == 0 || rank < bestRank {
			continue
		}
		if d.policy == QueueDepth {
			load = c.load()
		}
		if rank > bestRank || load < bestLoad {
			best, bestRank, bestLoad = c, rank, load
		}
	}
	return best
}

// rank says how good a controller is for a request; 0 is not at all.
func (c *Controller) rank(r *request) int {
	if !c.usable() || c.absent.Load() != nil && c.lacks(r.ns) {
		return 0
	}
	switch c.access(r.nsid) {
	case nvme.ANAOptimized:
		return 2
	case nvme.ANANonOptimized:
		return 1
	}
	return 0
}

// refuse fails everything that is held and all that comes.
func (d *dispatcher) refuse(err error) {
	d.mu.Lock()
	if d.closed == nil {
		d.closed = err
	}
	d.mu.Unlock()
	d.changed()
}

// close is refuse, at the end.
func (d *dispatcher) close(err error) {
	d.refuse(err)
	d.timer.Stop()
}
