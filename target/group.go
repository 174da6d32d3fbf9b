package target

// GroupConfig says how a group meets its owner.
type GroupConfig struct {
	// Run runs fn on the owner's goroutine, soon and in order. It may be
	// called from any goroutine. It is false when the owner has ended: then fn
	// does not run. When it is true fn does run, be it after Group.Close.
	// Required.
	Run func(fn func()) bool
	// Wake is given to backend queues as their notify: it makes the owner call
	// Poll soon. It may be called from any goroutine and does not block.
	// Required.
	Wake func()
	// BackendDepth is the number of operations in flight in each backend
	// queue, 1 to 65536; 0 means 256. Requests beyond it wait in order.
	BackendDepth int
}

// Group is the core's half of a poll group. Its methods are called by the
// group's owner alone. One turn of the owner's loop is
//
//	Tick                             stamps the turn
//	Queue.Prepare, Queue.Execute ... for what the transport received
//	Poll                             completes what the backends did
//	Submit                           gives the backends what Execute gathered
//
// and before it sleeps: Arm, then Poll once more.
type Group struct {
	target *Target
	cfg    GroupConfig
}

// NewGroup makes a group. Its owner is whoever runs cfg.Run's functions.
// It may be called from any goroutine.
func (t *Target) NewGroup(cfg GroupConfig) (*Group, error) {
	return &Group{target: t, cfg: cfg}, nil
}

// NewQueue makes the queue of a connection that the transport has accepted.
// It is not connected in the sense of NVMe: its first command must be Connect.
// A queue that has not been connected after Config.ConnectTimeout gets
// Link.Disconnect.
func (g *Group) NewQueue(cfg QueueConfig) (*Queue, error) {
	return &Queue{group: g, cfg: cfg}, nil
}

// Tick reads the clock for all requests of this turn (their latencies, the
// keep alive). Call it at the top of each turn of the loop, above all after
// having slept.
func (g *Group) Tick() {}

// Poll reaps every backend queue of the group and goes on with the requests:
// it may call Link.Complete many times. It returns the number of operations
// reaped and never blocks.
func (g *Group) Poll() int { return 0 }

// Submit gives the backends what Execute has gathered: one backend Submit for
// each backend queue that has something. What does not fit the backend's depth
// stays, in order, for the Submit after the next Poll that made room. It may
// call Link.Complete (when a backend cannot take a request at all).
func (g *Group) Submit() {}

// Arm asks every backend queue with operations in flight for one Wake. Poll
// once more after it and before sleeping.
func (g *Group) Arm() {}

// Close ends the group: it gives back its backend queues. Every queue must
// have been closed and every request must have come home through
// Link.Complete; with operations still in backends it waits for them. Closing
// twice is nil.
func (g *Group) Close() error { return nil }
