// Package curves measures what our target and host cost as work grows, and draws
// it: docs/perf/*.csv and docs/perf/*.svg. `make curves` runs it.
//
// Every point has a daemon of its own (bin/nvmf-target with null backends on an
// address in 127/8) and a host of its own, which is this program started once
// more (Host): so neither inherits memory, and the processor time of each end
// is its own. What a curve varies is in its Curve.Setup and nowhere else.
package curves

import (
	"fmt"
	"time"
)

// Setup is a point of a curve: the daemon, the host, and what they do.
type Setup struct {
	// Load is what the host does. Run fills in where the daemon is.
	Load Load
	// Namespaces is how many the daemon has, 1 at least.
	Namespaces int
	// QueueDepth is rdma.queue_depth of the daemon's file, 0 for its default.
	QueueDepth int
	// Busy has the daemon poll without end (poll: busy), with one poll group:
	// the host wants a processor too.
	Busy bool
	// TargetCPUs and HostCPUs are the processors that each end may use; nil
	// for all.
	TargetCPUs, HostCPUs []int
	// Idle looks at the daemon while the host is connected and does nothing.
	Idle bool
}

// Load is what a host does.
type Load struct {
	Provider string `json:"provider"`
	Addr     string `json:"addr"` // IP:PORT
	NQN      string `json:"nqn"`
	PID      int    `json:"pid"` // of the daemon

	// Queues is the number of I/O queues, each a connection, on as many
	// controllers as it takes with at most PerController (0: all on one).
	Queues        int `json:"queues"`
	PerController int `json:"per_controller"`
	// Depth is how many reads each queue has in flight.
	Depth int `json:"depth"`
	// BlockSize is the bytes of a read.
	BlockSize int `json:"block_size"`
	// Callers, when not 0, are goroutines that read with blocking calls, each
	// time from another of all namespaces, in place of what Depth says.
	Callers int `json:"callers"`
	// Spin is how long a queue that waits polls before it sleeps: 0 for the
	// default, negative for not at all.
	Spin time.Duration `json:"spin"`
	// Time is how long; a tenth of it before is not counted.
	Time time.Duration `json:"time"`
}

// Result is what a host says of a Load.
type Result struct {
	IOPS      float64 `json:"iops"`
	Bandwidth float64 `json:"bandwidth"` // bytes a second
	P50       float64 `json:"p50"`       // us
	P99       float64 `json:"p99"`       // us
	Host      float64 `json:"host"`      // CPU us an I/O
	Target    float64 `json:"target"`    // CPU us an I/O
	// Least and Most are the IOPS of the slowest and of the fastest queue.
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
	Error string  `json:"error,omitempty"`
}

// Idle is a daemon whose hosts do nothing.
type Idle struct {
	Connections float64 // I/O and admin queues
	RSS         float64 // bytes
	Grown       float64 // bytes of RSS more than without hosts
	Registered  float64 // bytes
	CPU         float64 // of a processor, 0 to 1
}

// Measured is a point.
type Measured struct {
	Result
	Idle Idle
}

// pointName is what Options.Only is matched against.
func pointName(curve, series string, x int) string { return fmt.Sprintf("%s/%s/%d", curve, series, x) }
