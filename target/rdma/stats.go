package rdma

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/nvmf-go/nvmf/target"
)

// ConnStats counts what a connection did.
type ConnStats struct {
	Capsules     uint64 // command capsules received
	CapsuleBytes uint64 // their bytes, with the data in them
	Responses    uint64
	ReadBytes    uint64 // fetched from the host by RDMA READ
	WriteBytes   uint64 // placed in the host by RDMA WRITE
	LentBytes    uint64 // of WriteBytes: straight from memory that the backend lent

	// Requests that waited for buffers, and capsules that waited for a slot.
	BufferWaits, SlotWaits uint64
	// Turns that ended with requests waiting to read (ORD), and with responses
	// waiting for the send queue or the host's receives.
	ReadWaits, SendWaits uint64
}

// count counts the response of s.
func (c *ConnStats) count(s *slot) {
	c.Responses++
	if s.transfer.Dir == target.ControllerToHost && s.Status.OK() {
		c.WriteBytes += uint64(s.DataLength)
		if s.transfer.Lent {
			c.LentBytes += uint64(s.DataLength)
		}
	}
}

func (c *ConnStats) add(o *ConnStats) {
	c.Capsules += o.Capsules
	c.CapsuleBytes += o.CapsuleBytes
	c.Responses += o.Responses
	c.ReadBytes += o.ReadBytes
	c.WriteBytes += o.WriteBytes
	c.LentBytes += o.LentBytes
	c.BufferWaits += o.BufferWaits
	c.SlotWaits += o.SlotWaits
	c.ReadWaits += o.ReadWaits
	c.SendWaits += o.SendWaits
}

// GroupStats counts what a poll group did.
type GroupStats struct {
	Turns       uint64 // passes of the loop
	Sleeps      uint64 // times it slept
	Completions uint64 // of all CQs
	Stale       uint64 // completions of nothing that was posted: faults of a device
	Ended       uint64 // connections that have ended
	ConnStats          // sums over its connections, those that ended included
}

func (g *GroupStats) closed(c *ConnStats) {
	g.Ended++
	g.ConnStats.add(c)
}

// ConnInfo describes a connection at a moment.
type ConnInfo struct {
	Peer, Local netip.AddrPort
	Device      string
	Provider    string
	Listener    string // the port's name
	Group       int
	QID         uint16 // as the connection request asked
	Depth       int
	ORD         int
	SharedRecv  bool
	Invalidate  bool // responses end the host's key when asked to
	Closing     bool
	Since       time.Time
	// Slots is the number of requests in each state, by its name; none is free.
	Slots map[string]int
	ConnStats
}

// GroupInfo describes a poll group at a moment.
type GroupInfo struct {
	Connections []ConnInfo
	// Waiting requests for I/O buffers and for those of admin queues, and the
	// bytes of each pool that are free and in all.
	Waiting, AdminWaiting    int
	BuffersFree, BuffersSize uint64
	AdminBuffersFree         uint64
	AdminBuffersSize         uint64
	GroupStats
}

// Snapshot describes a transport at a moment.
type Snapshot struct {
	Groups      []GroupInfo
	Connections int   // open or being set up
	MemoryUsed  int64 // of MemoryLimit, without the bytes of AddRegion
	LentMemory  int64 // bytes of AddRegion
	MemoryLimit int64
	Rejected    uint64 // connection requests
}

// Snapshot asks every poll group for its figures. The error is ctx's, or
// matches net.ErrClosed when the transport has ended.
func (t *Transport) Snapshot(ctx context.Context) (Snapshot, error) {
	snap := Snapshot{
		Groups:     make([]GroupInfo, len(t.groups)),
		MemoryUsed: t.memory.used.Load(), MemoryLimit: t.memory.limit, LentMemory: t.lent.bytes.Load(),
		Rejected: t.rejected.Load(),
	}
	for i, g := range t.groups {
		answer := make(chan GroupInfo, 1)
		if !g.post(func() { answer <- g.info() }) {
			return Snapshot{}, net.ErrClosed
		}
		select {
		case snap.Groups[i] = <-answer:
		case <-ctx.Done():
			return Snapshot{}, ctx.Err()
		}
		snap.Connections += int(g.queues.Load())
	}
	return snap, nil
}

func (g *group) info() GroupInfo {
	data, admin := g.pools[dataPool], g.pools[adminPool]
	i := GroupInfo{
		Waiting: g.waiting[dataPool].requests, AdminWaiting: g.waiting[adminPool].requests,
		BuffersFree: uint64(data.free) << pageShift, BuffersSize: data.capacity(),
		AdminBuffersFree: uint64(admin.free) << pageShift, AdminBuffersSize: admin.capacity(),
		GroupStats: g.stats,
	}
	for _, c := range g.conns {
		if c != nil {
			i.Connections = append(i.Connections, c.info())
			i.GroupStats.ConnStats.add(&c.stats)
		}
	}
	return i
}

func (c *conn) info() ConnInfo {
	i := ConnInfo{
		Peer: c.peer, Local: c.local, Device: c.dev.fdev.Name(), Provider: c.dev.key.provider.Name(),
		Listener: c.listener.port.Name, Group: c.group.index, QID: c.qid, Depth: c.depth, ORD: c.ord,
		SharedRecv: c.shared, Invalidate: c.dev.canInvalidate(), Closing: c.closing, Since: c.since,
		Slots: map[string]int{}, ConnStats: c.stats,
	}
	for k := range c.slots {
		if st := c.slots[k].state; st != slotFree {
			i.Slots[st.String()]++
		}
	}
	return i
}
