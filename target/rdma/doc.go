// Package rdma is the NVMe/RDMA capsule transport of a target (NVM Express RDMA
// Transport Specification 1.0): it stands between a fabric provider and the
// core of package target.
//
// # Who owns what
//
// A [Transport] has poll groups. Each is one goroutine that owns its completion
// queues, its connections with their request slots, its buffers, and a
// target.Group; all of the data path runs there, without a lock, an allocation
// or a hop to another goroutine. Everything else is set-up: a goroutine for
// each [Listener], one for each handshake while it lasts, one for each device
// that waits for its events, one for each connection that gives back its
// memory. They reach a group by messages (group.post).
//
// # A turn of the loop
//
//	poll     completions of the CQs: capsules, READs, responses
//	messages new connections, ends, statistics, the core's own
//	serve    requests that wait for buffers, namespaces in turns
//	core     Submit, then Poll
//	post     for each connection with something: one PostRecv, one PostSend
//
// With nothing done it spins for a bounded time, arms everything, polls once
// more, and sleeps on one waker.
//
// # A request
//
// A command lives in a slot, from its capsule to the completion of its
// response; see slotState for its states. Work requests name it by number:
//
//	wr_id = generation<<32 | connection<<16 | slot<<4 | kind
//
// so that a completion that is late or comes twice is recognised.
//
// Receives and slots are separate: a host may send the next capsule when it has
// our response, which is before the send's completion tells us so. A queue of
// depth n posts n+1 receives (the one beyond finds the host that breaks its
// limit) and has somewhat more than n slots; a capsule without one waits in its
// receive. The receive goes back right before the response that lets the host
// use it again.
//
// # Memory
//
// Data moves between the host and registered pages of the group's pools, or
// lies in the capsule. A request that finds no buffers waits, first come first
// served among those of its namespace; share says how namespaces share them, so
// that one whose backend hangs leaves room for others. Admin queues and Connect
// have a pool of their own, so that no backend can starve them. A read may be answered from memory of the backend instead
// (lent.go): the WRITEs name its pages, and the slot gives them back when it
// goes home. All other registered memory is counted against
// Config.MemoryLimit; a connection beyond it is rejected.
package rdma
